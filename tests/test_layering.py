"""The one direction of dependency of docs/architecture.md, held by reading the imports and includes."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Each module of structout, and the modules of structout it may import.
LEAVES = {"bitmask", "params", "errors", "envs", "mask_batch", "reference", "_version"}
MAY_IMPORT = {
    "bitmask": set(),
    "errors": set(),
    "envs": set(),
    "_version": set(),
    "params": {"errors"},
    "mask_batch": set(),
    "reference": {"bitmask"},
    "backends": {"envs", "triton_kernels"},
    "ops": {"backends", "bitmask"},
    "grammar": {"bitmask", "errors", "params", "grammar"},
    "manager": {"bitmask", "errors", "params", "mask_batch", "grammar"},
    "generate": {"manager", "ops", "params"},
    "default_model": {"envs"},
    "doctor": {"_version", "backends"},
    "cli": {"_version", "default_model", "doctor", "errors", "generate", "params", "__init__"},
    "triton_kernels": set(),
}


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "structout" else [node.module]
            )
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name for name in names if name.split(".")[0] == "structout"}
    return found


def modules() -> list[tuple[str, Path]]:
    files = [(p.stem, p) for p in (ROOT / "structout").glob("*.py") if p.name != "__init__.py"]
    files += [("grammar", p) for p in (ROOT / "structout" / "grammar").glob("*.py")]
    return files + [("triton_kernels", p) for p in (ROOT / "triton_kernels").glob("*.py")]


@pytest.mark.parametrize(
    ("layer", "path"), modules(), ids=lambda value: value.name if isinstance(value, Path) else value
)
def test_imports_point_downwards(layer, path):
    assert layer in MAY_IMPORT, (
        f"{path.name} has no place in the layering: give it one here and in docs/architecture.md"
    )
    for name in imports_of(path):
        target = name.split(".")[1] if "." in name else "__init__"
        known = target if target in MAY_IMPORT else "__init__"  # `from structout import StructuredOutputManager`
        assert known in MAY_IMPORT[layer], f"{path.name} imports {name}"


def test_kernels_know_no_torch():
    kernels = [
        *ROOT.glob("csrc/*.h"),
        *ROOT.glob("csrc/cpu/*"),
        *ROOT.glob("csrc/cuda/*"),
        *ROOT.glob("csrc/testing/*"),
    ]
    bindings = {"tensor_checks.h", "apply_bitmask_args.h", "bindings.cpp"}
    checked = [path for path in kernels if path.name not in bindings]
    assert len(checked) >= 8
    for path in checked:
        assert not re.search(r"#include\s*[<\"](torch|ATen|c10)/", path.read_text()), path


def test_the_worker_side_loads_no_grammar_engine():
    heavy = "('xgrammar', 'transformers', 'structout.manager')"
    script = f"import sys, structout; print([name for name in {heavy} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.strip() == "[]"
