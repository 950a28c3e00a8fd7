// Browsers start no workers for pages that are read from files, but the search is one. There
// a hidden frame takes the worker's place.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      const inside = frame.contentWindow
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = async (...urls) => {
        for (const each of urls) await this.load(each)
      }
      this.frame = frame
      this.isLoaded = this.load(url)
    }

    load(url) {
      const script = this.frame.contentDocument.createElement("script")
      script.src = url
      const isLoaded = new Promise((resolve, reject) => Object.assign(script, { onload: resolve, onerror: reject }))
      this.frame.contentDocument.body.appendChild(script)
      return isLoaded
    }

    async postMessage(data) {
      await this.isLoaded
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
