"""masked_sample compared with masked_sample_oracle.py: kept tokens, drawn tokens,
logprobs.

The op does not return the set of tokens that its filters keep. Filters keep all logits
above a threshold, so the lowest kept logit determines the set: the reference draws it
when the noise is replaced by values that strongly prefer low logits. The op's noise
cannot be replaced. From it many tokens are drawn: none may lie outside the oracle's
set, and every likely member must come up. test_masked_sample.py tests that op and
reference draw the same tokens.
"""

from __future__ import annotations

import random
from unittest import mock

import numpy as np
import pytest
import torch

from structout import pack_bitmask
from structout.ops import reference, sampling_math
from support import masked_sample_oracle as oracle
from support.seeds import for_each_seed

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Config:
    """One row and its parameters, rounded to float32."""

    def __init__(self, rng: random.Random, max_vocab: int = 500):
        generator = torch.Generator().manual_seed(rng.getrandbits(62))
        vocab_size = rng.choice([1, 2, rng.randint(1, 40), rng.randint(1, max_vocab), rng.randint(1, max_vocab)])
        values = torch.randn(vocab_size, generator=generator) * rng.choice([0.0, 0.3, 1.0, 3.0, 8.0])
        if rng.random() < 0.3:
            values = (values * 2).round() / 2  # ties
        if rng.random() < 0.15:
            values[torch.rand(vocab_size, generator=generator) < 0.2] = float("-inf")
        if rng.random() < 0.05:
            values[torch.rand(vocab_size, generator=generator) < 0.1] = float("inf")
        self.logits = values.to(rng.choice(DTYPES)).unsqueeze(0)
        self.allowed = torch.rand(vocab_size, generator=generator) < rng.choice([0.02, 0.3, 0.97, 2.0])
        temperatures = [0.0, 1.0, 1.0, 0.7, 1.3, 0.1, 1e-3, 50.0, 1e-30, 1e30, rng.uniform(0.2, 3.0)]
        self.temperature = _float32(rng.choice(temperatures))
        self.top_k = rng.choice([0, 0, 1, 2, 5, rng.randint(1, vocab_size), vocab_size, 2**31 - 1])
        self.top_p = _float32(rng.choice([1.0, 1.0, 0.9, 0.5, 0.999, 0.0, 1e-9, 0.9999999, rng.random()]))
        self.min_p = _float32(rng.choice([0.0, 0.0, 0.05, 0.5, 1.0, 1e-39, 3.0, rng.random(), rng.random() ** 8]))

    def expected(self) -> oracle.Row | None:
        logits, allowed = self.logits[0].float().numpy(), self.allowed.numpy()
        return oracle.sample_row(logits, allowed, self.temperature, self.top_k, self.top_p, self.min_p)

    def draw(self, op, seeds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        n = len(seeds)

        def every_row(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.tensor([value], dtype=dtype).expand(n)

        return op(
            self.logits.expand(n, -1),
            pack_bitmask(self.allowed.unsqueeze(0)),
            every_row(0, torch.int64),
            every_row(self.temperature),
            every_row(self.top_k, torch.int64),
            every_row(self.top_p),
            every_row(self.min_p),
            seeds,
            every_row(0, torch.int64),
        )

    def __str__(self) -> str:
        return (
            f"{self.logits.dtype} V={self.logits.shape[1]} allowed={int(self.allowed.sum())} T={self.temperature} "
            f"top_k={self.top_k} top_p={self.top_p!r} min_p={self.min_p!r}"
        )


def _float32(value: float) -> float:
    return float(np.float32(value))


def kept_by_reference(config: Config) -> np.ndarray | None:
    """Return the tokens that the reference keeps, bool ``[V]``; None if it draws
    nothing."""
    x = config.logits[0].float()
    # Steps of 1e35 exceed every finite z of these cases, and their sum stays finite.
    rank_from_top = torch.unique(-x.nan_to_num(posinf=1e38, neginf=-1e38), return_inverse=True)[1]
    prefers_low = rank_from_top.to(torch.float32) * 1e35
    with (
        mock.patch.object(sampling_math, "noise_bits", lambda seed, position, ids: ids),
        mock.patch.object(sampling_math, "gumbel", lambda ids: prefers_low[ids]),
    ):
        lowest = int(config.draw(reference.masked_sample_logprobs, torch.tensor([0]))[0])
    if lowest == -1:
        return None
    return (config.allowed & (x >= x[lowest])).numpy()


@for_each_seed(6)
def test_reference_keeps_the_tokens_that_the_oracle_keeps(seed, num_cases):
    rng = random.Random(seed)
    tokens = ambiguous = 0
    for _ in range(num_cases(150, long=2000)):
        config = Config(rng)
        expected, kept = config.expected(), kept_by_reference(config)
        if expected is None:
            assert kept is None, config
            continue
        assert kept is not None, config
        if config.temperature == 0:  # greedy rows use no noise and draw the first of the largest
            kept = kept & (np.cumsum(kept) == 1)
        differs = (kept != expected.kept) & ~expected.ambiguous
        assert not differs.any(), f"{config}: columns {np.flatnonzero(differs)[:8]}"
        tokens += int(config.allowed.sum())
        ambiguous += int((expected.ambiguous & ~_has_no_mass(expected)).sum())
    # A larger share would hide faults in the tolerance.
    assert ambiguous < 0.01 * tokens


def _has_no_mass(expected: oracle.Row) -> np.ndarray:
    """Tokens without mass in fixed point: for p just below 1, thousands of them are
    ambiguous."""
    return expected.logprobs < expected.logprobs.max() - 27


def test_oracle_on_a_small_row_matches_values_computed_by_hand():
    """Probabilities 0.5, 0.25, 0.125, 0.125 and one disallowed token."""
    logits, allowed = np.log([0.5, 0.25, 0.125, 9.0, 0.125]), np.array([True, True, True, False, True])

    def kept(**filters: float) -> list[int]:
        row = oracle.sample_row(logits, allowed, 1.0, **filters)
        assert not row.ambiguous.any()
        return np.flatnonzero(row.kept).tolist()

    assert kept() == [0, 1, 2, 4]
    assert kept(top_k=1) == [0]
    assert kept(top_k=3) == [0, 1, 2, 4]  # ties stay
    assert kept(top_p=0.49) == [0]
    assert kept(top_p=0.51) == [0, 1]
    assert kept(top_p=0.76) == [0, 1, 2, 4]
    assert kept(top_p=0.0) == [0]
    assert kept(min_p=0.26) == [0, 1]
    assert kept(min_p=0.24) == [0, 1, 2, 4]
    assert kept(min_p=7.0) == [0]
    assert kept(top_k=2, top_p=0.6) == [0]  # the first token has 2/3 of the 0.75 left
    assert kept(min_p=0.3, top_p=0.7) == [0, 1]
    np.testing.assert_allclose(
        oracle.sample_row(logits, allowed, 1.0, top_k=2).probabilities(), [2 / 3, 1 / 3, 0, 0, 0], rtol=1e-12
    )
    np.testing.assert_allclose(
        np.exp(oracle.sample_row(logits, allowed, 0.5, top_k=1).logprobs[[0, 1, 3]]), [8 / 11, 2 / 11, 0], rtol=1e-12
    )


@pytest.mark.planted
@pytest.mark.parametrize("faulty", ["top_p 1% low", "min_p 10% high", "top_k one more"])
def test_comparison_with_oracle_of_a_faulty_filter_fails(faulty):
    rng = random.Random(99)
    num_detected = 0
    for _ in range(2000):
        config = Config(rng)
        expected = config.expected()
        if expected is None or config.temperature == 0:
            continue
        if faulty == "top_p 1% low":
            config.top_p = _float32(config.top_p * 0.99)
        elif faulty == "min_p 10% high":
            config.min_p = _float32(config.min_p * 1.1)
        elif config.top_k > 0:
            config.top_k += 1
        kept = kept_by_reference(config)
        num_detected += bool(((kept != expected.kept) & ~expected.ambiguous).any())
    assert num_detected >= 10


def _noise_is_felt(config: Config) -> bool:
    """Whether |z| is small enough for the noise to survive float32 addition.

    From 2^29 on nothing of the noise is left, and the lowest of equal logits always
    wins.
    """
    x = config.logits[0][config.allowed].float()
    highest = float(x[x.isfinite()].abs().max()) if bool(x.isfinite().any()) else 0.0
    return config.temperature == 0 or highest / config.temperature < 2.0**16


def _op(*arguments: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ops.structout.masked_sample_logprobs(*arguments)


@pytest.mark.parametrize(
    ("op", "configs", "draws"),
    [
        pytest.param(reference.masked_sample_logprobs, (15, 40), 200, id="reference"),
        pytest.param(_op, (50, 300), 20_000, id="op"),
    ],
)
def test_draws_lie_in_the_kept_set_and_fill_it(op, configs, draws, num_cases):
    configs = num_cases(configs[0], long=configs[1])
    rng = random.Random(1000)
    seeds = torch.arange(draws) * 0x9E3779B97F4A7
    filled = 0
    for _ in range(configs):
        config = Config(rng)
        expected = config.expected()
        ids, logprobs = (result.numpy() for result in config.draw(op, seeds))
        if expected is None:
            assert (ids == -1).all(), config
            assert (logprobs == -np.inf).all(), config
            continue
        assert (ids >= 0).all(), config
        drawn = np.bincount(ids, minlength=len(expected.kept))
        outside = (drawn > 0) & ~expected.kept & ~expected.ambiguous
        assert not outside.any(), f"{config}: columns {np.flatnonzero(outside)[:8]}"
        # A count with an expectation of 64 is 0 once in 10^27. Ambiguous tokens may
        # take mass from others.
        likely = (expected.probabilities() * draws >= 64) & ~expected.ambiguous & _noise_is_felt(config)
        assert (drawn[likely] > 0).all(), f"{config}: columns {np.flatnonzero(likely & (drawn == 0))[:8]}"
        filled += int(likely.sum())
        error = np.abs(logprobs - expected.logprobs[ids])
        assert (error <= expected.logprob_errors[ids]).all(), f"{config}: {error.max()}"
    assert filled > configs // 4
