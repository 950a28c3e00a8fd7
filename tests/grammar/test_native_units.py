"""Parts of the engine alone: the unit tests in C++ of tests/native."""

import json
import subprocess

import pytest

from support import corpus
from support.builds import CSRC, changed_csrc, compiled, compiled_engine, cxx
from support.locations import NATIVE

SANITIZED = ["-std=c++17", "-g1", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def run(program, *arguments):
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=600)


@pytest.fixture
def schemas(tmp_path):
    """A file with the corpus of schemas, each after whether it has a value."""
    path = tmp_path / "schemas"
    lines = [f"{int(line['group'] != 'impossible')} {json.dumps(line['schema'])}\n" for line in corpus.LINES]
    path.write_text("".join(lines))
    return path


def formulas(csrc=CSRC):
    sources = [NATIVE / "formulas.cpp", csrc / "json" / "formula.cpp"]
    command = [*cxx(), *SANITIZED, "-Wall", "-Wextra", "-Werror"]
    return compiled("formulas", command, sources, csrc=csrc, follows_includes=True)


def test_formulas_mean_what_their_operators_say():
    result = run(formulas())
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
    result = run(compiled_engine(name, NATIVE / f"{name}.cpp", SANITIZED), schemas)
    assert result.returncode == 0, result.stderr


FAULTS = {
    "formulas-one of equals": ("json/formula.cpp", "if (operands[i] == kAlways) {", "if (operands[i] == kNever) {"),
    "formulas-unsorted": ("json/formula.cpp", "engine::make_set(flat);", ""),
    "stacks-no returns": (
        "context_free/stacks.cpp",
        "if (network_.is_accepting(item.state)) kernel",
        "if (false) kernel",
    ),
    "stacks-all subsets": ("context_free/stacks.cpp", "is_subset_.add(x, y, result);", "is_subset_.add(x, y, true);"),
    "texts-edges of a byte": ("json/texts_count.cpp", "uint64_t(edge.last - edge.first + 1) * known", "known"),
    "texts-length": (
        "json/texts_search.cpp",
        "distance(split->first) < split->second;",
        "distance(split->first) <= split->second;",
    ),
    "liveness-compounds": ("json/liveness.cpp", "bool are_few = !has_compound(child);", "bool are_few = true;"),
}


@pytest.mark.planted
@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_found(tmp_path, schemas, name):
    program = name.partition("-")[0]
    csrc = changed_csrc(tmp_path, *FAULTS[name])
    if program == "formulas":
        result = run(formulas(csrc))
    else:
        result = run(compiled_engine(program, NATIVE / f"{program}.cpp", SANITIZED, csrc=csrc), schemas)
    assert result.returncode == 1
    assert "expected" in result.stderr
