"""Parts of the engine alone: the unit tests in C++ of tests/native."""

import json
import subprocess

import pytest

from support import corpus
from support.builds import CSRC, SANITIZED, changed_csrc, compiled, compiled_engine, cxx
from support.locations import NATIVE


def run(program, *arguments):
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=600)


@pytest.fixture
def schemas(tmp_path):
    """A file with the corpus of schemas, each after whether it has a value."""
    path = tmp_path / "schemas"
    lines = [f"{int(line['group'] != 'impossible')} {json.dumps(line['schema'])}\n" for line in corpus.LINES]
    path.write_text("".join(lines))
    return path


# Programs that need few files of the engine.
FILES = {
    "formulas": ["json/formulas/formula.cpp"],
    "mask_row": ["token_masks/mask_row.cpp"],
}


def program_of(name, csrc=CSRC, options=SANITIZED):
    if name not in FILES:
        return compiled_engine(name, NATIVE / f"{name}.cpp", options, csrc=csrc)
    sources = [NATIVE / f"{name}.cpp", *(csrc / file for file in FILES[name])]
    command = [*cxx(), *options, "-Wall", "-Wextra", "-Werror"]
    return compiled(name, command, sources, csrc=csrc, follows_includes=True)


@pytest.mark.parametrize("name", FILES)
def test_unit_alone_is_what_a_plain_judge_says(name):
    result = run(program_of(name))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(("sanitizers", "arguments"), [("thread", ()), ("address,undefined", ("fork",))])
def test_thread_pool_does_each_range_once(sanitizers, arguments):
    options = ["-std=c++17", "-g1", "-O1", f"-fsanitize={sanitizers}", "-Wall", "-Wextra", "-Werror", "-pthread"]
    program = compiled("thread_pool", [*cxx(), *options], [NATIVE / "thread_pool.cpp"], follows_includes=True)
    result = run(program, *arguments)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", ["stacks", "texts", "liveness"])
def test_unit_of_the_engine_is_what_a_plain_judge_says(request, schemas, name):
    if not request.config.getoption("--long"):
        pytest.skip("building the engine with sanitizers takes minutes: make test-all")
    result = run(program_of(name), schemas)
    assert result.returncode == 0, result.stderr


FAULTS = {
    "formulas-one of equals": (
        "json/formulas/formula.cpp",
        "if (operands[i] == kAlways) {",
        "if (operands[i] == kNever) {",
    ),
    "formulas-unsorted": ("json/formulas/formula.cpp", "engine::make_set(flat);", ""),
    "mask_row-overruled": ("token_masks/mask_row.cpp", "    restore_mask();\n", ""),
    "mask_row-scratch": (
        "token_masks/mask_row.cpp",
        "    restore_mask();\n",
        "    present_ = words_;\n    restore_mask();\n",
    ),
    "mask_row-forgotten": ("token_masks/mask_row.h", "if (content_ != nullptr) content_->forget();", ""),
    "stacks-no returns": (
        "grammar/gss/stacks.cpp",
        "if (network_.is_accepting(top.state)) kernel",
        "if (false) kernel",
    ),
    "stacks-one apart": (
        "grammar/gss/stacks.cpp",
        "if (below.size() > 1) remove_subsets(below, budget);",
        "below.resize(1);",
    ),
    "stacks-all subsets": ("grammar/gss/stacks.cpp", "is_subset_.add(x, y, result);", "is_subset_.add(x, y, true);"),
    "texts-edges of a byte": ("json/scalars/texts_count.cpp", "uint64_t(edge.last - edge.first + 1) * known", "known"),
    "texts-length": (
        "json/scalars/texts_search.cpp",
        "distance(split->first) < split->second;",
        "distance(split->first) <= split->second;",
    ),
    "liveness-compounds": (
        "json/satisfiability/liveness.cpp",
        "bool are_few = !has_compound(child);",
        "bool are_few = true;",
    ),
}


@pytest.mark.planted
@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_found(tmp_path, schemas, name):
    program = program_of(name.partition("-")[0], changed_csrc(tmp_path, *FAULTS[name]))
    result = run(program, schemas)
    assert result.returncode == 1
    assert "expected" in result.stderr
