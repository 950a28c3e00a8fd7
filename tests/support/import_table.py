"""The modules of structout and what each imports, read from the sources."""

import ast
from collections.abc import Collection, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]


def modules() -> dict[str, Path]:
    """Map module names as in architecture.md ("grammar.registry") to paths."""
    package = ROOT / "structout"
    found = {".".join(path.relative_to(package).with_suffix("").parts): path for path in package.rglob("*.py")}
    found |= {f"triton_kernels.{path.stem}": path for path in (ROOT / "triton_kernels").glob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in found.items() if name != "__init__"}


def imports_of(source: str, known: Collection[str]) -> set[str]:
    """Return the modules of structout that a source imports when it runs, at the top or
    in a function, by their names in ``known``."""
    found = set()
    for node in _executed(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute here"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        inside = [name.removeprefix("structout.") for name in names if name.split(".")[0] == "structout"]
        found |= {next((name for name in (n, n.rpartition(".")[0]) if name in known), n) for n in inside}
    return found


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    for child in ast.iter_child_nodes(node):
        yield from _executed(child)


def imports() -> dict[str, set[str]]:
    """Map each module to the modules that it imports."""
    known = modules()
    return {name: imports_of(path.read_text(), known) for name, path in known.items()}


def table() -> str:
    """Each module with what it imports, a line each, lower modules first.

    Raises:
        graphlib.CycleError: modules import one another.
    """
    below = {name: imported - {name} for name, imported in sorted(imports().items())}
    sorter = TopologicalSorter(below)
    sorter.prepare()
    lines = []
    width = max(map(len, below))
    while sorter.is_active():
        for name in sorted(ready := sorter.get_ready()):
            lines.append(f"{name:{width}} <- {' '.join(sorted(below[name]))}".rstrip())
        sorter.done(*ready)
    return "\n".join(lines) + "\n"
