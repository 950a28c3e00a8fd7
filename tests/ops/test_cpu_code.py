"""The machine code of the CPU kernels handles vectors of the instruction set's width,
and no lane by itself: g++ compiles vectors that are too wide into a branch for each
lane."""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from support import builds
from support.locations import ROOT

sys.path.insert(0, str(ROOT / "bench"))
bench = importlib.import_module("bench_cpu_code")
sys.path.pop(0)

# Instructions for 64 tokens, with room for other compilers. Lane by lane it would be
# some hundreds more.
MOST = {
    "masked_sample: highest logit": {"avx512": 45, "avx2": 80, "sse2": 220, "neon": 170},
    "masked_sample: draw": {"avx512": 150, "avx2": 220, "sse2": 520, "neon": 320},
    "masked_sample: masses": {"avx512": 180, "avx2": 350, "sse2": 800, "neon": 650},
    "apply_bitmask: float32": {"avx512": 45, "avx2": 80, "sse2": 210, "neon": 160},
    "apply_bitmask: 16-bit": {"avx512": 40, "avx2": 65, "sse2": 130, "neon": 120},
}


def compile_kernels(prefix: str, source: str, folder: Path, csrc: Path = builds.CSRC) -> Path:
    """Compile as the bench does, but only what has changed."""
    command = [f"{prefix}g++", *bench.FLAGS, "-c"]
    return builds.compiled(source, command, [csrc / "cpu" / f"{source}.cpp"], suffix=".o", csrc=csrc)


@pytest.fixture(autouse=True)
def compiled_once(monkeypatch):
    monkeypatch.setattr(bench, "compile_kernels", compile_kernels)


@pytest.fixture(params=bench.INSTRUCTION_SETS, ids=lambda instructions: instructions.name)
def instructions(request):
    if not request.param.is_installed:
        pytest.skip(f"needs {request.param.prefix}g++: make test-arm")
    return request.param


def problems(loop: Any, instructions: Any) -> list[str]:
    turn = bench.turn(loop, instructions)
    if not turn:
        return ["the code has no such loop"]
    found = [instruction for instruction in turn if bench.LANE_EXTRACTION.search(instruction)]
    scalar = [instruction for instruction in turn if bench.SCALAR_COMPARISON.search(instruction)]
    found += scalar[loop.scalar_comparisons :]
    count, most = len(turn) * bench.TOKENS / loop.tokens, MOST[loop.name][instructions.name]
    return found + ([f"{count} instructions, expected at most {most}"] if count > most else [])


@pytest.mark.parametrize("loop", bench.LOOPS, ids=lambda loop: loop.name)
def test_streaming_loop_takes_no_lane_by_itself(instructions, loop):
    assert problems(loop, instructions) == []


@pytest.mark.planted
def test_lanes_taken_one_by_one_are_found(tmp_path, monkeypatch):
    largest = "return (Floats)_mm_max_ps((__m128)a, (__m128)b);"
    by_lane = "for (int i = 0; i < 4; ++i) a[i] = std::fmax(a[i], b[i]);\n  return a;"
    csrc = builds.changed_csrc(tmp_path, "cpu/lanes_sse2.inc", largest, by_lane)
    monkeypatch.setattr(bench, "compile_kernels", functools.partial(compile_kernels, csrc=csrc))
    monkeypatch.setattr(bench, "functions", bench.functions.__wrapped__)
    sse2 = next(instructions for instructions in bench.INSTRUCTION_SETS if instructions.name == "sse2")
    assert problems(bench.LOOPS[0], sse2) != []
