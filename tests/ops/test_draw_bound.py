"""Skipping logarithms changes no answer: a token that is passed over has a score below the best. In C++ and Triton.

Each rule is also made a little too bold, on purpose: then the same test must fail.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from locations import ROOT
from structout.triton_kernels import gumbel_draw

from structout import sampling_math

PROGRAM = ROOT / "tests" / "data" / "draw_bound.cpp"
HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"


def run_cpp(directory: Path, count: int, bolder: tuple[str, str] | None = None) -> str:
    """What the program says of the headers, in one of which a text is replaced."""
    for header in (ROOT / "csrc").glob("*.h"):
        text = header.read_text()
        if bolder is not None and header.name == "draw_bound.h":
            assert bolder[0] in text
            text = text.replace(*bolder)
        (directory / header.name).write_text(text)
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    command = [*compiler, "-std=c++17", "-O2", "-ffp-contract=off", f"-I{directory}", str(PROGRAM)]
    result = subprocess.run([*command, "-o", directory / "draw_bound"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return subprocess.run([directory / "draw_bound", str(count)], capture_output=True, text=True).stdout


def test_cpp_passes_over_no_winner(tmp_path):
    assert run_cpp(tmp_path, 20_000_000) == "ok\n"


@pytest.mark.parametrize(
    "bolder",
    [
        pytest.param(("fabsf(z) * 0x1p-22f + offset_", "offset_"), id="no allowance for |z|"),
        pytest.param(("0x1p-22f", "0x1p-24f"), id="a quarter of it"),
        pytest.param(("159.0f + 1e-4f", "159.0f - 1e-4f"), id="no margin"),
        pytest.param(("125.9f", "126.1f"), id="less noise than there is"),
        pytest.param(("125.9f", "133.0f"), id="noise up to 18"),
        pytest.param(("160.0f / 4", "158.9f / 4"), id="the most bits cut off"),
        pytest.param(("static_cast<uint32_t>(most)", "static_cast<uint32_t>(most) - 1"), id="one bit less"),
    ],
)
def test_a_bolder_rule_in_cpp_is_caught(tmp_path, bolder):
    assert "passed over" in run_cpp(tmp_path, 1_000_000, bolder)


# ---- Triton

BLOCK = 1024 if HAS_GPU else 1 << 18


@triton.jit
def pass_over_kernel(z, bits, best, passed_over, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    reach = gumbel_draw.reach_of(tl.load(z + i, mask=i < count), tl.load(best + i, mask=i < count))
    random = tl.load(bits + i, mask=i < count).to(tl.uint32)
    is_passed_over = gumbel_draw.is_out_of_reach(reach) | gumbel_draw.falls_short(reach, random)
    tl.store(passed_over + i, is_passed_over.to(tl.int8), mask=i < count)


def count_winners_that_triton_passes_over(count: int) -> int:
    """Of inputs as in draw_bound.cpp."""
    generator = torch.Generator().manual_seed(0)

    def integers(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high, (count,), generator=generator)

    magnitude = torch.full((count,), 1.99).ldexp(integers(-20, 128).to(torch.float32))
    z = (integers(0, 2_000_001).to(torch.float32) * 1e-6 - 1) * magnitude
    bits = integers(0, 2**32) >> integers(0, 32)
    bits = torch.where(integers(0, 8) == 0, 2**32 - 1 - integers(0, 8), bits)
    around_powers = ((torch.ones_like(bits) << integers(0, 32)) + integers(-2, 3)).clamp(min=0)
    bits = torch.where(integers(0, 4) == 0, around_powers, bits)
    score = z + sampling_math.gumbel(bits)
    best = torch.where(integers(0, 2) == 0, score, score.nextafter(torch.tensor(-torch.inf)))

    passed_over = torch.empty(count, dtype=torch.int8, device=DEVICE)
    inputs = (tensor.to(DEVICE) for tensor in (z, bits, best))
    pass_over_kernel[(triton.cdiv(count, BLOCK),)](*inputs, passed_over, count, BLOCK, enable_fp_fusion=False)
    return int((passed_over.cpu().bool() & (score >= best)).sum())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of overflow, under the interpreter
def test_triton_passes_over_no_winner():
    assert count_winners_that_triton_passes_over(8_000_000) == 0


@pytest.mark.skipif(HAS_GPU, reason="on a GPU a kernel is compiled once, with the constants that it was first given")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("constant", "bolder"), [("ALL_BITS_REACH", 158.999), ("NO_BITS_REACH", 126.1)])
def test_a_bolder_constant_in_triton_is_caught(monkeypatch, constant, bolder):
    monkeypatch.setattr(gumbel_draw, constant, tl.constexpr(bolder))
    assert count_winners_that_triton_passes_over(1_000_000) > 0


@pytest.mark.skipif(HAS_GPU, reason="on a GPU a kernel is compiled once, with the constants that it was first given")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_allowance_for_z_in_triton_is_caught(monkeypatch):
    @triton.jit
    def reach_of(z, best):
        return z * gumbel_draw.LOG2_E + (gumbel_draw.ALL_BITS_REACH - best * gumbel_draw.LOG2_E)

    monkeypatch.setattr(gumbel_draw, "reach_of", reach_of)
    assert count_winners_that_triton_passes_over(1_000_000) > 0
