"""Statistics of many draws of masked_sample: distribution, tail, and no disallowed
token.

Seeds and positions are fixed, so a test that passes once always passes.
"""

from __future__ import annotations

import dataclasses
import math
import random

import numpy as np
import pytest
import torch

import structout  # noqa: F401 (registers the ops)
from structout import pack_bitmask, unpack_bitmask
from support import builds, sampling_statistics as statistics
from support.masked_sample_builds import CpuKernel
from support.masked_sample_cases import Case
from support.sampling_statistics import SETTINGS, Setting

DRAWS = 1_000_000  # under --long
SHORT_DRAWS = 100_000  # sees faults that are three times as large
SMALLEST_P_VALUE = 2.5e-7


def draw(*arguments: torch.Tensor | None) -> torch.Tensor:
    return torch.ops.structout.masked_sample(*arguments)


@pytest.fixture
def draws(num_cases) -> int:
    return num_cases(SHORT_DRAWS, long=DRAWS)


@pytest.mark.parametrize("name", SETTINGS)
def test_masked_sample_draws_follow_their_distribution(name, draws):
    setting = SETTINGS[name]
    counts = statistics.count_draws(draw, setting, draws)
    assert counts.sum() == draws
    p_values = statistics.p_values(counts, setting.probabilities())
    assert min(p_values.values()) > SMALLEST_P_VALUE, p_values


def _with_logits(setting: Setting, change: torch.Tensor) -> Setting:
    return dataclasses.replace(setting, logits=setting.logits + change)


def _too_hot(setting: Setting) -> Setting:
    return dataclasses.replace(setting, temperature=setting.temperature * 1.03)


def _every_32nd_too_rare(setting: Setting) -> Setting:
    is_faulty = torch.arange(len(setting.logits)) % 32 == 5
    return _with_logits(setting, is_faulty * math.log(0.9))


def _upper_half_too_likely(setting: Setting) -> Setting:
    is_faulty = torch.arange(len(setting.logits)) >= len(setting.logits) // 2
    return _with_logits(setting, is_faulty * math.log(1.03))


@pytest.mark.planted
@pytest.mark.parametrize(
    ("fault", "seen_by"),
    [
        (_too_hot, "probability quantile"),
        (_every_32nd_too_rare, "id mod 32"),
        (_upper_half_too_likely, "id block"),
    ],
)
def test_chi_square_of_faulty_distribution_is_rejected(fault, seen_by):
    """The grouping that looks for this kind of fault finds it."""
    setting = SETTINGS["normal"]
    counts = statistics.count_draws(draw, fault(setting), DRAWS)
    p_values = statistics.p_values(counts, setting.probabilities())
    assert p_values[seen_by] < SMALLEST_P_VALUE, p_values


@pytest.mark.planted
def test_chi_square_of_24_bit_noise_is_rejected(tmp_path):
    """The CPU kernel is built with shorter noise.

    The reference would take minutes: only some 10^9 noise values tell the two apart.
    """
    fault = "float gumbel(uint32_t bits) {", "float gumbel(uint32_t bits) {\n  bits = (bits & ~0xffu) | 0x80u;"
    faulty = CpuKernel(builds.changed_csrc(tmp_path, "common/sampling_math.h", *fault), optimize="-O2")
    setting = SETTINGS["long tail"]
    counts = statistics.count_draws(faulty.ids, setting, DRAWS)
    assert 0 < counts[1:].sum() < 10
    p_values = statistics.p_values(counts, setting.probabilities())
    assert min(p_values.values()) < SMALLEST_P_VALUE, p_values


def test_p_values_of_true_samples_are_uniform():
    """NumPy draws from the distribution itself; otherwise the limit would mean
    something else."""
    rng = np.random.default_rng(0)
    for name in ("normal", "wide", "long tail", "top_p"):
        probabilities = SETTINGS[name].probabilities()
        samples = [statistics.p_values(rng.multinomial(DRAWS, probabilities), probabilities) for _ in range(200)]
        for grouping in samples[0]:
            mean = np.mean([sample[grouping] for sample in samples])
            assert abs(mean - 0.5) < 5 * math.sqrt(1 / 12 / 200), (name, grouping)


def test_chi_square_survival_matches_published_tables():
    for statistic, degrees_of_freedom, p_value in ((3.841, 1, 0.05), (18.307, 10, 0.05), (149.449, 100, 0.001)):
        assert statistics.chi_square_survival(statistic, degrees_of_freedom) == pytest.approx(p_value, rel=1e-3)


def test_masked_sample_tail_wins_as_often_as_expected(num_cases):
    """262,144 tokens, each e^-19 (e^-20 under --long) as likely as token 0, are drawn
    32 times. Noise of 24 bits draws one of them twice (never)."""
    setting = statistics.long_tail(tail=262_144, gap=float(num_cases(19, long=20)))
    draws = num_cases(22_000, long=60_000)
    hits = draws - int(statistics.count_draws(draw, setting, draws)[0])
    expected = draws * float(setting.probabilities()[1:].sum())
    least, most = statistics.poisson_interval(expected, significance=1e-6)
    assert least > 5, "too few draws for a test"
    assert least <= hits <= most, f"{hits} hits, {expected:.1f} expected"


@pytest.mark.parametrize(("z", "distinct"), [(1e5, 858), (1e7, 847), (1e8, 232), (2.0**29, 1), (1e9, 1)])
def test_masked_sample_of_equal_logits_far_from_zero_loses_noise_as_specified(z, distinct):
    setting = Setting(torch.full((1000,), z))
    ids = setting.draw(draw, torch.arange(2000), torch.zeros(2000, dtype=torch.int64))
    assert len(ids.unique()) == distinct


def test_masked_sample_never_draws_a_disallowed_token(num_cases):
    statistics.fuzz_disallowed(draw, num_cases(200_000, long=2_000_000))


def test_fuzz_with_one_disallowed_token_fails():
    def faulty(logits: torch.Tensor, bitmask: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        ids = draw(logits, bitmask, *others)
        unpacked = unpack_bitmask(bitmask, logits.shape[1])
        ids[1234] = int((~unpacked[others[0][1234]]).nonzero()[0])
        return ids

    with pytest.raises(AssertionError, match=r"1 draws are disallowed.* fuzz batch 0"):
        statistics.fuzz_disallowed(faulty, 20_000)


def test_fuzz_with_one_bit_too_many_in_a_dense_mask_fails():
    """The extra token has the highest logit."""

    def faulty(logits: torch.Tensor, bitmask: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        allowed = unpack_bitmask(bitmask, logits.shape[1])
        if allowed.float().mean() > 0.5:
            allowed[:, (~allowed).any(0) & (logits[0].float() > 20) & allowed.any(0)] = True
        return draw(logits, pack_bitmask(allowed), *others)

    with pytest.raises(AssertionError, match=r"draws are disallowed.* fuzz batch 1"):
        statistics.fuzz_disallowed(faulty, 100_000)


# ---- batch invariance


def _rows_of_many_kinds(vocab_size: int, dtype: torch.dtype, count: int) -> Case:
    """Return greedy, seeded, filtered, free, closed and invalid rows, each with its own
    mask."""
    rng = random.Random(vocab_size)
    generator = torch.Generator().manual_seed(vocab_size)

    def floats(values: list[float]) -> torch.Tensor:
        return torch.tensor([rng.choice(values) for _ in range(count)])

    densities = torch.tensor([rng.choice([0.0, 0.001, 0.01, 0.5, 0.97]) for _ in range(count)]).unsqueeze(1)
    return Case(
        (torch.randn(count, vocab_size, generator=generator) * 3).to(dtype),
        pack_bitmask(torch.rand(count, vocab_size, generator=generator) < densities),
        torch.tensor([rng.choice([i, i, i, -1]) for i in range(count)]),
        floats([0.0, 0.5, 1.0, 1.0, 2.0, float("nan")]),
        torch.tensor([rng.choice([0, 0, 1, 20]) for _ in range(count)]),
        floats([1.0, 1.0, 0.9, 0.3]),
        floats([0.0, 0.0, 0.1]),
        torch.tensor([rng.getrandbits(63) for _ in range(count)]),
        torch.tensor([rng.getrandbits(20) for _ in range(count)]),
    )


def _select(case: Case, index: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Return the arguments for a batch of these rows, with the whole bitmask and a row
    map into it."""
    return tuple(a if a is case.bitmask else a[index] for a in case.arguments())


@pytest.mark.parametrize(
    ("vocab_size", "dtype", "batches"),
    [
        (700, torch.float32, (2, 3, 7, 64, 1000, 4096)),
        (5000, torch.bfloat16, (2, 5, 33, 512, 4096)),
        (151_936, torch.float16, (2, 3, 16, 64)),  # long enough that a row alone is split over threads
    ],
)
def test_masked_sample_of_a_row_alone_equals_the_row_in_any_batch(vocab_size, dtype, batches):
    case = _rows_of_many_kinds(vocab_size, dtype, count=24)
    op = torch.ops.structout.masked_sample_logprobs
    alone = [op(*_select(case, torch.tensor([row]))) for row in range(24)]
    ids = torch.cat([ids for ids, _ in alone])
    logprob_bits = torch.cat([logprobs for _, logprobs in alone]).view(torch.int32)
    assert len(ids.unique()) > 8
    for size in batches:
        index = torch.randint(24, (size,), generator=torch.Generator().manual_seed(size))
        batch_ids, batch_logprobs = op(*_select(case, index))
        assert torch.equal(batch_ids, ids[index]), size
        assert torch.equal(batch_logprobs.view(torch.int32), logprob_bits[index]), size
