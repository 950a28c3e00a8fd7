"""The one direction of dependency of docs/architecture.md, held by reading the imports and includes."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
# Each module of structout, and the modules of structout it may import.
MAY_IMPORT = {
    module: set(imports.split()) for module, imports in re.findall(r"^(\w+) +<-(.*)$", ARCHITECTURE, re.MULTILINE)
}


def imports_of(source: str) -> set[str]:
    """The modules of structout that a source imports, as architecture.md calls them."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute here"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "structout" else [module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] if "." in name else name for name in names if name.split(".")[0] == "structout"}
    return found


def modules() -> list[tuple[str, Path]]:
    package = ROOT / "structout"
    files = [(p.relative_to(package).parts[0].removesuffix(".py"), p) for p in package.rglob("*.py")]
    files += [("triton_kernels", p) for p in (ROOT / "triton_kernels").glob("*.py")]
    return [(layer, path) for layer, path in files if layer != "__init__"]


@pytest.mark.parametrize(
    ("layer", "path"), modules(), ids=lambda value: value.name if isinstance(value, Path) else value
)
def test_imports_point_downwards(layer, path):
    assert layer in MAY_IMPORT, f"{path.name} has no place in the layering: give it one in docs/architecture.md"
    assert imports_of(path.read_text()) <= MAY_IMPORT[layer]


def test_what_counts_as_an_import():
    source = (
        "import torch, structout.ops\nfrom structout import params, Name\nfrom structout.grammar.vocabulary import x"
    )
    assert imports_of(source) == {"ops", "params", "Name", "grammar"}
    assert imports_of("import structout") == {"structout"}
    with pytest.raises(AssertionError, match="imports are absolute here"):
        imports_of("from . import ops")


def test_kernels_know_no_torch():
    kernels = [
        *ROOT.glob("csrc/*.h"),
        *ROOT.glob("csrc/cpu/*"),
        *ROOT.glob("csrc/cuda/*"),
        *ROOT.glob("csrc/testing/*"),
    ]
    about_tensors = r"^(\w*bindings\.cpp|shared_word\.cpp|tensor_checks\.h|\w+_args\.h|threads\.h|device\.h)$"
    checked = [path for path in kernels if not re.search(about_tensors, path.name)]
    assert len(checked) >= 8
    for path in checked:
        assert not re.search(r"#include\s*[<\"](torch|ATen|c10)/", path.read_text()), path


def test_the_worker_side_loads_no_grammar_engine():
    heavy = "('xgrammar', 'transformers', 'structout.scheduler.manager')"
    script = f"import sys, structout.distributed; print([name for name in {heavy} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.strip() == "[]"
