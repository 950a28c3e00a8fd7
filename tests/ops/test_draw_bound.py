"""draw_bound, in C++ and Triton, skips only tokens that cannot win the Gumbel draw.

Each bound is also made a little too tight on purpose: then the same check must fail.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from structout.ops import sampling_math
from structout.triton_kernels import gumbel_draw
from support import builds
from support.devices import HAS_GPU, TRITON_DEVICE as DEVICE
from support.locations import NATIVE

PROGRAM = NATIVE / "draw_bound.cpp"


def check_cpp_bound(num_tokens: int, csrc: Path = builds.CSRC) -> str:
    """Return the output of the program that looks for a winner below the bound."""
    command = [*builds.cxx(), "-std=c++17", "-O2", "-ffp-contract=off"]
    program = builds.compiled("draw_bound", command, [PROGRAM], csrc=csrc)
    return subprocess.run([program, str(num_tokens)], capture_output=True, text=True).stdout


def test_cpp_draw_bound_skips_no_winner(num_cases):
    assert check_cpp_bound(num_cases(5_000_000, long=20_000_000)) == "ok\n"


@pytest.mark.planted
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        pytest.param(" + fabsf(score) * 0x1p-21f", "", id="no allowance for |score|"),
        pytest.param("0x1p-21f", "0x1p-24f", id="an eighth of that allowance"),
        pytest.param("159.0f + 2e-4f", "159.0f - 1e-4f", id="no margin"),
        pytest.param("125.9f", "126.1f", id="too little noise"),
        pytest.param("125.9f", "133.0f", id="noise up to 18"),
        pytest.param("160.0f / 4 ? 160.0f", "158.9f / 4 ? 158.9f", id="highest bits cut off"),
        pytest.param("0x41900000", "0x41910000", id="coarse bits a power of two too high"),
        pytest.param("static_cast<uint32_t>(limit)", "static_cast<uint32_t>(limit) - 1", id="one bit less"),
    ],
)
def test_cpp_draw_bound_made_too_tight_skips_a_winner(tmp_path, right, wrong):
    csrc = builds.changed_csrc(tmp_path, "common/draw_bound.h", right, wrong)
    assert "passed over" in check_cpp_bound(1_000_000, csrc)


# ---- Triton

BLOCK = 1024 if HAS_GPU else 1 << 18


@triton.jit
def skip_kernel(z, bits, best, skipped, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    log_limit = gumbel_draw.log_limit_of(tl.load(z + i, mask=i < count), tl.load(best + i, mask=i < count))
    random = tl.load(bits + i, mask=i < count).to(tl.uint32)
    is_skipped = gumbel_draw.loses_with_any_bits(log_limit) | gumbel_draw.loses_with(log_limit, random)
    tl.store(skipped + i, is_skipped.to(tl.int8), mask=i < count)


def count_winners_that_triton_skips(count: int) -> int:
    """Count skipped winners among ``count`` tokens, drawn as in draw_bound.cpp."""
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

    skipped = torch.empty(count, dtype=torch.int8, device=DEVICE)
    inputs = (tensor.to(DEVICE) for tensor in (z, bits, best))
    skip_kernel[(triton.cdiv(count, BLOCK),)](*inputs, skipped, count, BLOCK, enable_fp_fusion=False)
    return int((skipped.cpu().bool() & (score >= best)).sum())


@pytest.mark.triton
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy warns of overflow
def test_triton_draw_bound_skips_no_winner(num_cases):
    assert count_winners_that_triton_skips(num_cases(2_000_000, long=8_000_000)) == 0


@pytest.mark.planted
@pytest.mark.interpreter  # a GPU kernel is compiled once, with its first constants
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("constant", "wrong"), [("LOG_LIMIT_AT_BEST", 158.999), ("MIN_LOG_LIMIT", 126.1)])
def test_triton_draw_bound_with_wrong_constant_skips_a_winner(monkeypatch, constant, wrong):
    monkeypatch.setattr(gumbel_draw, constant, tl.constexpr(wrong))
    assert count_winners_that_triton_skips(1_000_000) > 0


@pytest.mark.planted
@pytest.mark.interpreter  # a GPU kernel is compiled once, with its first constants
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_triton_draw_bound_without_allowance_for_z_skips_a_winner(monkeypatch):
    @triton.jit
    def log_limit_of(z, best):
        return z * gumbel_draw.LOG2_E + (gumbel_draw.LOG_LIMIT_AT_BEST - best * gumbel_draw.LOG2_E)

    monkeypatch.setattr(gumbel_draw, "log_limit_of", log_limit_of)
    assert count_winners_that_triton_skips(1_000_000) > 0
