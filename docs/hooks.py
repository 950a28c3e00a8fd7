"""mkdocs: README.md, CONTRIBUTING.md, CHANGELOG.md and plots become pages beside those
of docs/, and the page on the architecture gets the table of imports."""

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support import import_table  # noqa: E402

PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and plots that lie outside of docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=_with_site_links((ROOT / source).read_text())))
    for plot in sorted((ROOT / "bench" / "results").glob("*.png")):
        files.append(File.generated(config, f"plots/{plot.name}", content=plot.read_bytes()))
    for script in ("hooks.py", "pictures.py"):
        files.remove(files.get_file_from_path(script))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links of the repository at the pages of the site, fill in the table of
    imports, and part commands from what they print, so that they can be pasted."""
    markdown = markdown.replace("<!-- table of imports -->", f"```\n{import_table.table()}```")
    markdown = re.sub(r"^```text\n\$ (.*)\n", r"```sh\n\1\n```\n\n```text\n", markdown, flags=re.MULTILINE)
    return _with_site_links(markdown)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Show reStructuredText of docstrings (:func:`name`, ``::``) as plain code."""
    return re.sub(
        r":(?:attr|class|func|meth|mod):<code>~?(.*?)</code>", r"<code>\1</code>", html.replace("::</p>", ":</p>")
    )


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Let the search that works from files load nothing from elsewhere."""
    return _with_own_worker(output, page.url)


def on_post_template(output: str, template_name: str, config: Any) -> str:
    return _with_own_worker(output, template_name)


def _with_own_worker(html: str, url: str) -> str:
    script = get_relative_url("assets/worker_in_frame.js", url)
    return html.replace("https://unpkg.com/iframe-worker/shim", script)


def _with_site_links(markdown: str) -> str:
    markdown = re.sub(r"\]\((?:\.\./)?bench/results/", "](plots/", markdown)
    for source, page in PAGES.items():
        markdown = re.sub(rf"\]\((?:\.\./)?{source}", f"]({page}", markdown)
    return markdown.replace("](docs/", "](")
