"""Imports and includes follow the table of layers in docs/architecture.md."""

import ast
import graphlib
import os
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import fresh_process
import pytest
from locations import ROOT

# Each module of structout, and the rooms and modules that it may import.
MAY_IMPORT = {
    module: set(imports.split())
    for module, imports in re.findall(
        r"^([\w.]+) +<-(.*)$", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE
    )
}
# Each folder of csrc, and the folders that it may include.
MAY_INCLUDE = {
    folder: set(includes.split())
    for folder, includes in re.findall(
        r"^csrc/(\w+) <-(.*)$", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE
    )
}
# Packages that other modules may import any module of.
ROOMS = ("triton_kernels",)


def modules() -> dict[str, Path]:
    """Map module names as in architecture.md ("grammar.router") to paths."""
    package = ROOT / "structout"
    found = {".".join(path.relative_to(package).with_suffix("").parts): path for path in package.rglob("*.py")}
    found |= {f"triton_kernels.{path.stem}": path for path in (ROOT / "triton_kernels").glob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in found.items() if name != "__init__"}


def imports_of(source: str, known: Collection[str]) -> set[str]:
    """Return the modules of structout that a source imports, by their names in
    ``known``."""
    found = set()
    for node in ast.walk(ast.parse(source)):
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


def is_allowed(module: str, imported: str) -> bool:
    room = imported.split(".")[0]
    return bool({imported, room if room in ROOMS else imported} & MAY_IMPORT[module])


def test_modules_import_only_modules_below_them():
    known = modules()
    for module, path in known.items():
        layer = module.split(".")[0] if module.split(".")[0] in ROOMS else module
        assert layer in MAY_IMPORT, f"{module} is not in the table of docs/architecture.md: add it"
        imported = imports_of(path.read_text(), known)
        assert [name for name in sorted(imported) if not is_allowed(layer, name)] == [], module


def test_layering_table_names_only_modules_that_exist():
    names = set(MAY_IMPORT).union(*MAY_IMPORT.values())
    assert names - set(modules()) - set(ROOMS) == set()


def test_layering_table_has_no_cycle():
    graphlib.TopologicalSorter({name: below - {name} for name, below in MAY_IMPORT.items()}).prepare()


def test_imports_of_returns_modules_and_not_their_members():
    source = (
        "import torch, structout.errors\nfrom structout import envs, Name\nfrom structout.grammar.vocabulary import x"
    )
    assert imports_of(source, modules()) == {"errors", "envs", "Name", "grammar.vocabulary"}
    assert imports_of("import structout", modules()) == {"structout"}
    with pytest.raises(AssertionError, match="imports are absolute here"):
        imports_of("from . import ops", modules())


def test_table_of_folders_names_the_folders_of_csrc():
    assert {path.name for path in (ROOT / "csrc").iterdir() if path.is_dir()} == set(MAY_INCLUDE)


@pytest.mark.parametrize("folder", MAY_INCLUDE)
def test_sources_include_only_folders_below_theirs(folder):
    allowed = MAY_INCLUDE[folder] | {folder}
    for path in (path for path in (ROOT / "csrc" / folder).rglob("*") if path.is_file()):
        source = path.read_text()
        included = set(re.findall(r'^#include "(\w+)/', source, re.MULTILINE))
        assert included <= allowed, path
        if folder != "bindings":
            assert not re.search(r"#include\s*<(torch|ATen|c10|pybind11)/", source), path


def test_table_of_folders_has_no_cycle():
    graphlib.TopologicalSorter(MAY_INCLUDE).prepare()


def test_import_of_worker_side_loads_no_grammar_engine():
    heavy = "('xgrammar', 'transformers', 'structout.scheduler.manager')"
    script = f"import sys, structout.distributed; print([name for name in {heavy} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.strip() == "[]"


def test_import_of_structout_loads_no_communicators():
    """``import structout`` registers the collective ops; their first call loads the
    rest."""
    script = "import sys, structout; print([n for n in sys.modules if n.startswith('structout.distributed.')])"
    run = fresh_process.run("-c", script, env=dict(os.environ))
    assert run.stdout.strip() == "['structout.distributed.registration']", run.stderr
