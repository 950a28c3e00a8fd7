"""Which source lines the instructions of compiled kernels come from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from support.locations import ROOT

_FILES = re.compile(r'^\s*\.file\s+(\d+) "([^"]+)"', re.MULTILINE)
_PLACES = re.compile(r"(?:\.loc\s+|inlined_at )(\d+) (\d+)")


def source_of_lines(ptx: Path) -> dict[int, str]:
    """Return the line of csrc, as "file: text", that each line of nvcc's PTX was made
    of. A line of CUDA's own headers counts as the one that calls it."""
    text = ptx.read_text()
    paths = {number: Path(name) for number, name in _FILES.findall(text)}
    sources: dict[Path, list[str]] = {}
    source, source_of = "", {}
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith(".loc"):
            own = [(paths[file], int(at)) for file, at in _PLACES.findall(line) if ROOT in paths[file].parents]
            if own and own[0][1] > 0:
                path, at = own[0]
                lines = sources.setdefault(path, path.read_text().split("\n"))
                source = f"{path.name}: {lines[at - 1].strip()}"
        source_of[number] = source
    return source_of


def unexecuted(executions: Mapping[tuple[str, int], int], files: Iterable[Path]) -> Counter[str]:
    """Return the source lines of instructions that nothing executed, with their number.

    Args:
        executions: How often each line of each kernel was executed.
        files: The PTX of the kernels.
    """
    found: Counter[str] = Counter()
    for file in files:
        kernels = set(re.findall(r"\.entry (\w+)\(", file.read_text()))
        sources = source_of_lines(file)
        found.update(sources[line] for (kernel, line), count in executions.items() if not count and kernel in kernels)
    return found
