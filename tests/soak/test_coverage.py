"""The fuzz targets: their committed inputs hold, and show planted faults."""

import json
import random
import re
import subprocess
import sys

import pytest

import soak.__main__
from soak import coverage
from soak.hunt import hunted
from support import corpus
from support.builds import CSRC, SANITIZED, changed_csrc, compiled_engine
from support.engine_schemas import EngineSchema
from support.locations import NATIVE


def read_by(target, inputs, csrc=CSRC):
    """Run a target over inputs, without libFuzzer."""
    program = compiled_engine("fuzz", NATIVE / "fuzz.cpp", SANITIZED, csrc=csrc)
    return subprocess.run([program, target, *inputs], capture_output=True, text=True, timeout=900)


def damaged(text, words, rng):
    """A text with up to three words more, bytes less, other bits or parts twice."""
    for _ in range(rng.randint(1, 3)):
        at, length = rng.randrange(len(text) + 1), rng.randint(1, 30)
        changes = [
            text[:at] + rng.choice(words) + text[at:],
            text[:at] + text[at + length % 5 :],
            text[:at] + bytes(byte ^ 1 << rng.randrange(8) for byte in text[at : at + 1]) + text[at + 1 :],
            text[:at] + text[at : at + length] + text[at:],
        ]
        text = rng.choice(changes)
    return text


@pytest.mark.parametrize("target", coverage.TARGETS)
def test_committed_and_damaged_inputs_of_a_fuzz_target_hold(request, tmp_path, target):
    if not request.config.getoption("--long"):
        pytest.skip("building the engine with sanitizers takes minutes: make test-all")
    rng = random.Random(target)
    inputs = coverage.unpacked(target, tmp_path / "inputs")
    texts = [path.read_bytes() for path in inputs]
    dictionary = coverage.FOLDER / f"{target}.dict"
    words = re.findall(r'^"(.*)"$', dictionary.read_text(), re.MULTILINE) if dictionary.exists() else ["\\0", "\\xff"]
    words = [word.encode().decode("unicode_escape").encode("latin-1") for word in words]
    if target == "schema":
        texts += [json.dumps(line["schema"]).encode() for line in corpus.LINES]
        texts += [EngineSchema(rng).text.encode() for _ in range(300)]
    for number in range(1_500):
        inputs.append(tmp_path / str(number))
        inputs[-1].write_bytes(damaged(rng.choice(texts), words, rng))
    result = read_by(target, inputs)
    assert result.returncode == 0, result.stderr[-3_000:]
    num_inputs, num_compiled, num_refused = map(int, result.stdout.split())
    assert num_inputs == len(inputs)
    assert target == "saved" or min(num_compiled, num_refused) > 50


FAULTS = {
    "saved": (
        "automata/serialize.cpp",
        "if (num_states > 0 && !(builder.minimal(0, budget) == automaton))",
        "if (num_states > 0 && builder.minimal(0, budget).num_states() == 0)",
    ),
    "tags": ("automata/free_text.cpp", "stops_[ending[0]].size() <= from.num_bytes + 1", "false"),
}


@pytest.mark.planted
@pytest.mark.parametrize("target", FAULTS)
def test_committed_inputs_show_a_planted_fault(tmp_path, target):
    inputs = coverage.unpacked(target, tmp_path / "inputs")
    result = read_by(target, inputs, changed_csrc(tmp_path, *FAULTS[target]))
    assert result.returncode != 0
    assert "does not hold" in result.stderr


@pytest.mark.parametrize(
    ("names", "newest"),
    [
        (["clang++-9", "clang++-14", "clang-19"], "clang++-14"),
        (["clang++", "clang++-14"], "clang++"),
        (["g++", "clang-cpp-19"], None),
    ],
)
def test_clang_is_the_newest_on_the_path(tmp_path, monkeypatch, names, newest):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in names:
        (tmp_path / name).touch()
    assert coverage.clang() == newest


def test_soak_without_clang_tells_what_it_leaves_out(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "argv", ["soak", "--only", "coverage", "--seconds", "0", "--results", str(tmp_path)])
    assert soak.__main__.main() == 0
    assert capsys.readouterr().out.startswith("coverage: skipped, needs clang")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(coverage.clang() is None, reason="needs clang with libFuzzer")
def test_fuzzing_for_seconds_finds_nothing(request):
    if not request.config.getoption("--full"):
        pytest.skip("building the engine for libFuzzer takes minutes: make test-all reads the committed inputs")
    hunter = coverage.Coverage(seconds=2)
    for seed, target in enumerate(coverage.TARGETS):
        found = hunted(hunter, seed)
        assert found.findings == []
        assert found.executions[f"inputs of {target}"] > 0
        assert found.measures[f"edges covered by {target}"] > 1_000


def test_committed_inputs_are_small_and_no_two_are_equal():
    assert sum(path.stat().st_size for path in coverage.FOLDER.iterdir()) < 300_000
    for target in coverage.TARGETS:
        inputs = [json.loads(line)["input"] for line in coverage.committed(target).read_text().splitlines()]
        assert len(set(inputs)) == len(inputs)
