"""The fuzz targets: their committed inputs hold, and show planted faults."""

import json
import os
import subprocess
import sys

import pytest

from soak import coverage
from soak.hunt import hunted
from support.builds import CSRC, SANITIZED, changed_csrc, compiled_engine
from support.locations import NATIVE, ROOT


def replayed(target, folder, csrc=CSRC):
    """Run a target over its committed inputs, without libFuzzer."""
    program = compiled_engine("fuzz", NATIVE / "fuzz.cpp", SANITIZED, csrc=csrc)
    inputs = coverage.unpacked(target, folder / "inputs")
    result = subprocess.run([program, target, *inputs], capture_output=True, text=True, timeout=600)
    return result, len(inputs)


@pytest.mark.parametrize("target", coverage.TARGETS)
def test_committed_inputs_of_a_fuzz_target_hold(request, tmp_path, target):
    if not request.config.getoption("--long"):
        pytest.skip("building the engine with sanitizers takes minutes: make test-all")
    result, num_inputs = replayed(target, tmp_path)
    assert result.returncode == 0, result.stderr[-3_000:]
    assert int(result.stdout) == num_inputs > 20


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
    result, _ = replayed(target, tmp_path, changed_csrc(tmp_path, *FAULTS[target]))
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


def test_soak_without_clang_tells_what_it_leaves_out(tmp_path):
    command = [sys.executable, "-m", "soak", "--only", "coverage", "--seconds", "0", "--results", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PATH": "/nowhere"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("coverage: skipped, needs clang")
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
