"""Writes the table of modules in docs/architecture.md: each with what it imports, lower
ones first.

    PYTHONPATH=. python tests/support/make_layering_table.py
"""

import re
import sys
from graphlib import TopologicalSorter

from locations import ROOT

sys.path.insert(0, str(ROOT / "tests" / "repo"))
from test_layering import ROOMS, imports_of, modules

DOCUMENT = ROOT / "docs" / "architecture.md"


def layer_of(name: str) -> str:
    """The line of the table for a module."""
    room = name.split(".")[0]
    return room if room in ROOMS else name


def table() -> str:
    known = modules()
    below: dict[str, set[str]] = {}
    for name, path in known.items():
        imported = {layer_of(other) for other in imports_of(path.read_text(), known)}
        below.setdefault(layer_of(name), set()).update(imported)
    graph = {name: {other for other in others if other != name} for name, others in sorted(below.items())}
    sorter = TopologicalSorter(graph)
    sorter.prepare()
    lines = []
    width = max(map(len, below))
    while sorter.is_active():
        for name in sorted(ready := sorter.get_ready()):
            lines.append(f"{name:{width}} <- {' '.join(sorted(below[name]))}".rstrip())
        sorter.done(*ready)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    text = DOCUMENT.read_text()
    changed = re.sub(r"(?<=```\n)__main__ .*?(?=```)", lambda _: table(), text, count=1, flags=re.DOTALL)
    DOCUMENT.write_text(changed)
