"""Imports and includes follow the tables of rooms in docs/architecture.md."""

import graphlib
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from support import fresh_process, import_table
from support.import_table import imports_of
from support.locations import ROOT

DOCUMENT = (ROOT / "docs" / "architecture.md").read_text()
# Each room or module of structout with a line of its own, and what it may import.
MAY_IMPORT = {room: set(imports.split()) for room, imports in re.findall(r"^([\w.]+) +<-(.*)$", DOCUMENT, re.MULTILINE)}
# Each folder of csrc, and the folders that it may include.
MAY_INCLUDE = {
    folder: set(includes.split()) for folder, includes in re.findall(r"^csrc/(\w+) <-(.*)$", DOCUMENT, re.MULTILINE)
}
IMPORTS = import_table.imports()


def line_of(module: str) -> str:
    """The line of the table for a module: the module's own, or that of the room in
    which it is."""
    parts = module.split(".")
    prefixes = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    found = next((prefix for prefix in prefixes if prefix in MAY_IMPORT), None)
    assert found is not None, f"{module} is not in the table of docs/architecture.md: add its room"
    return found


def permissions(module: str) -> dict[str, set[str]]:
    """Map each module that a module imports to the entries that permit it: the
    imported module's own name, or its line's."""
    return {name: MAY_IMPORT[line_of(module)] & {name, line_of(name)} for name in IMPORTS[module]}


@pytest.mark.parametrize("module", sorted(IMPORTS))
def test_module_imports_only_rooms_below_its_own(module):
    allowed_by = permissions(module)
    assert [name for name, entries in allowed_by.items() if not entries and line_of(name) != line_of(module)] == []


def test_table_of_rooms_permits_nothing_that_no_module_needs():
    used = {(line_of(module), entry) for module in IMPORTS for entry in set().union(*permissions(module).values())}
    assert {(line, entry) for line, entries in MAY_IMPORT.items() for entry in entries} - used == set()


def test_table_of_rooms_has_no_cycle():
    graph = {line: {line_of(entry) for entry in entries} - {line} for line, entries in MAY_IMPORT.items()}
    graphlib.TopologicalSorter(graph).prepare()


def test_modules_do_not_import_one_another():
    lines = import_table.table().splitlines()
    assert len(lines) == len(IMPORTS)


def test_no_two_modules_have_one_name():
    """A kernel in Triton has the name of its op, though."""
    names = Counter(name.rpartition(".")[2] for name in IMPORTS if not name.startswith("triton_kernels."))
    assert [name for name, count in names.items() if count > 1] == []


def test_imports_of_returns_modules_and_not_their_members():
    source = (
        "import torch, structout.errors\nfrom structout import envs, Name\nfrom structout.grammar.vocabulary import x"
    )
    assert imports_of(source, IMPORTS) == {"errors", "envs", "Name", "grammar.vocabulary"}
    assert imports_of("import structout", IMPORTS) == {"structout"}
    assert imports_of("if TYPE_CHECKING:\n    from structout import envs", IMPORTS) == set()
    assert imports_of("def f():\n    from structout import envs", IMPORTS) == {"envs"}
    with pytest.raises(AssertionError, match="imports are absolute here"):
        imports_of("from . import ops", IMPORTS)


def test_table_of_folders_names_the_folders_of_csrc():
    assert {path.name for path in (ROOT / "csrc").iterdir() if path.is_dir()} == set(MAY_INCLUDE)


def sources_in(folder: str) -> list[Path]:
    return [path for path in (ROOT / "csrc" / folder).rglob("*") if path.is_file()]


@pytest.mark.parametrize("folder", MAY_INCLUDE)
def test_sources_include_only_folders_below_theirs(folder):
    allowed = MAY_INCLUDE[folder] | {folder} | ({"simt"} if folder == "cuda" else set())  # of tests/native
    for path in sources_in(folder):
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
