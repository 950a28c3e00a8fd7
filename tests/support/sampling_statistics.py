"""Chi-square tests of many draws, and a fuzz test for disallowed tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from structout import pack_bitmask
from support import masked_sample_oracle as oracle

# masked_sample, as a function of the op's own signature.
Op = Callable[..., torch.Tensor]
BATCH = 1 << 16
DENSE_BATCH = 1 << 13
NUM_BLOCKS, NUM_QUANTILES = 64, 20
SMALLEST_EXPECTED = 5.0  # below it, a count is too far from normal for a chi-square


@dataclass
class Setting:
    """One row of logits and its parameters. Its draws differ only in seed and
    position."""

    logits: torch.Tensor  # [V]
    allowed: torch.Tensor | None = None  # bool [V]
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def probabilities(self) -> np.ndarray:
        """Return each token's probability, float64 ``[V]``, for the float32 values that
        the op gets."""
        x = self.logits.float().numpy()
        row = oracle.sample_row(
            x,
            np.ones(len(x), dtype=bool) if self.allowed is None else self.allowed.numpy(),
            float(np.float32(self.temperature)),
            self.top_k or 0,
            1.0 if self.top_p is None else float(np.float32(self.top_p)),
            0.0 if self.min_p is None else float(np.float32(self.min_p)),
        )
        assert row is not None
        # Tokens this rare are never drawn, so it does not matter whether a filter keeps
        # them.
        assert not (row.ambiguous & (row.logprobs > -23)).any(), "choose parameters that float32 cannot blur"
        return row.probabilities()

    def draw(self, op: Op, seed: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        n = len(seed)

        def every_row(value: float | None, dtype: torch.dtype = torch.float32) -> torch.Tensor | None:
            return None if value is None else torch.tensor([value], dtype=dtype).expand(n)

        return op(
            self.logits.expand(n, -1),
            None if self.allowed is None else pack_bitmask(self.allowed.unsqueeze(0)),
            None if self.allowed is None else every_row(0, torch.int64),
            every_row(self.temperature),
            every_row(self.top_k, torch.int64),
            every_row(self.top_p),
            every_row(self.min_p),
            seed,
            position,
        )


def count_draws(op: Op, setting: Setting, draws: int) -> np.ndarray:
    """Return how often each token is drawn, int64 ``[V]``.

    Seeds and positions are small and consecutive, as in engines: the hardest inputs for
    noise.
    """
    counts = np.zeros(setting.logits.shape[0], dtype=np.int64)
    for i in torch.arange(draws).split(BATCH):
        ids = setting.draw(op, i // 1000, i % 1000)
        assert bool((ids >= 0).all())
        counts += np.bincount(ids.numpy(), minlength=len(counts))
    return counts


# ---- the test


def p_values(counts: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
    """Return the p-value of each grouping; 0 if an impossible token was drawn."""
    if counts[probabilities == 0].any():
        return {"impossible token": 0.0}
    expected = probabilities * counts.sum()
    return {
        name: chi_square_p_value(np.bincount(group, counts), np.bincount(group, expected))
        for name, group in groupings(probabilities).items()
    }


def groupings(probabilities: np.ndarray) -> dict[str, np.ndarray]:
    """Return the group of each token, int ``[V]``, for several groupings.

    Single tokens show local faults. The other groupings add up small faults that have a
    pattern: in the lanes of a vector or a warp, along the row, or with the size of a
    logit.
    """
    ids = np.arange(len(probabilities))
    by_size = np.argsort(-probabilities, kind="stable")
    quantile = np.empty_like(ids)
    middle = np.cumsum(probabilities[by_size]) - probabilities[by_size] / 2
    quantile[by_size] = np.minimum(NUM_QUANTILES * middle, NUM_QUANTILES - 1)
    return {
        "token": ids,
        "id mod 32": ids % 32,
        "id block": ids * NUM_BLOCKS // len(ids),
        "probability quantile": quantile,
    }


def chi_square_p_value(observed: np.ndarray, expected: np.ndarray) -> float:
    observed, expected = _pool_small(observed, expected)
    if len(expected) < 2:
        return 1.0
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return chi_square_survival(statistic, len(expected) - 1)


def chi_square_survival(statistic: float, degrees_of_freedom: int) -> float:
    return float(torch.special.gammaincc(_float64(degrees_of_freedom / 2), _float64(statistic / 2)))


def _pool_small(observed: np.ndarray, expected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Merge the groups that are too small for the test.

    If they are too small together, the smallest other group joins them.
    """
    order = np.argsort(expected)
    observed, expected = observed[order], expected[order]
    pooled = int((expected < SMALLEST_EXPECTED).sum())
    if pooled and expected[:pooled].sum() < SMALLEST_EXPECTED:
        pooled += 1
    if pooled == 0:
        return observed, expected
    return np.r_[observed[:pooled].sum(), observed[pooled:]], np.r_[expected[:pooled].sum(), expected[pooled:]]


def poisson_interval(mean: float, significance: float) -> tuple[int, int]:
    """Return the lowest and highest plausible counts.

    Lower and higher counts each have a probability below ``significance / 2``.
    """
    counts = torch.arange(int(mean + 12 * mean**0.5 + 40), dtype=torch.float64)
    at_most = torch.special.gammaincc(counts + 1, _float64(mean))
    plausible = (at_most > significance / 2) & (1 - at_most + _poisson(counts, mean) > significance / 2)
    return int(plausible.nonzero()[0]), int(plausible.nonzero()[-1])


def _poisson(counts: torch.Tensor, mean: float) -> torch.Tensor:
    return torch.exp(counts * _float64(mean).log() - mean - torch.lgamma(counts + 1))


def _float64(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


# ---- one likely token and many unlikely ones


def long_tail(tail: int, gap: float) -> Setting:
    """Return token 0 and ``tail`` tokens whose logits are lower by ``gap``."""
    logits = torch.full((tail + 1,), -gap)
    logits[0] = 0.0
    return Setting(logits)


# ---- the settings


def _normal(vocab_size: int, scale: float, seed: int) -> torch.Tensor:
    return torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


def _mask(vocab_size: int, density: float, seed: int) -> torch.Tensor:
    return torch.rand(vocab_size, generator=torch.Generator().manual_seed(seed)) < density


# Distributions for chi-square tests. Sizes are on both sides of 4,096 allowed tokens,
# where the CPU op goes from a candidate list to the whole row.
SETTINGS = {
    "two tokens": Setting(torch.tensor([0.3, -0.4])),
    "three of sixteen": Setting(_normal(16, 2, 0), allowed=torch.arange(16) % 6 == 1),
    "all equal": Setting(torch.zeros(1000)),
    "normal": Setting(_normal(256, 1, 1)),
    "wide": Setting(_normal(1500, 3, 2)),
    "long": Setting(_normal(6007, 2, 2)),
    "cold": Setting(_normal(1023, 0.2, 3), temperature=0.05),
    "hot": Setting(_normal(500, 8, 4), temperature=50.0),
    "half allowed": Setting(_normal(2001, 2, 5), allowed=_mask(2001, 0.5, 6), temperature=0.7),
    "few of many": Setting(_normal(32_000, 2, 7), allowed=_mask(32_000, 0.004, 8), temperature=1.3),
    "bfloat16": Setting(_normal(1000, 2, 9).bfloat16()),
    "float16 ties, top_k": Setting((_normal(2000, 2, 10) * 2).round().half() / 2, top_k=40),
    "top_p": Setting(_normal(900, 2, 11), top_p=0.9),
    "long, top_p": Setting(_normal(4300, 2, 11), top_p=0.8),
    "long, min_p": Setting(_normal(4300, 2, 12), min_p=0.05, temperature=1.2),
    "mask, min_p, top_k, top_p": Setting(_normal(5000, 2, 13), _mask(5000, 0.9, 14), 0.9, 300, 0.8, 0.003),
    # With noise of 24 bits the tail wins 3 times instead of 46.
    "long tail": long_tail(tail=8192, gap=19.0),
}


# ---- the fuzz


def fuzz_disallowed(op: Op, draws: int, seed: int = 0) -> None:
    """Assert that no draw of many is disallowed.

    Most batches allow 1 to 16 tokens a row, where a draw is cheap; every fourth allows
    nearly all of 20,000.
    """
    generator = torch.Generator().manual_seed(seed)
    start = batch = 0
    while start < draws:
        is_dense = batch % 4 == 1
        n = min(DENSE_BATCH if is_dense else BATCH, draws - start)
        logits, allowed = (_dense_masks if is_dense else _sparse_masks)(generator)
        rows, parameters = torch.randint(len(allowed), (n,), generator=generator), _fuzz_parameters(generator, n)
        ids = op(logits.expand(n, -1), pack_bitmask(allowed), rows, *parameters)
        vocab_size = allowed.shape[1]
        bad = (ids < 0) | (ids >= vocab_size) | ~allowed[rows, ids.clamp(0, vocab_size - 1)]
        if bad.any():
            row = int(bad.nonzero()[0])
            raise AssertionError(
                f"{int(bad.sum())} draws are disallowed, first {int(ids[row])}: "
                f"row {row} of fuzz batch {batch}, seed {seed}, V={vocab_size}"
            )
        start += n
        batch += 1


def _sparse_masks(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits ``[V]`` for all rows, and masks of 1 to 16 tokens, bool ``[M,
    V]``."""
    vocab_size, num_masks = _integer(generator, 1, 4000), 128
    columns = torch.randint(vocab_size, (num_masks, 16), generator=generator)
    num_allowed = torch.randint(1, 17, (num_masks, 1), generator=generator)
    allowed = torch.zeros(num_masks, vocab_size, dtype=torch.bool)
    allowed.scatter_(1, torch.where(torch.arange(16) < num_allowed, columns, columns[:, :1]), True)
    return _fuzz_logits(generator, allowed, torch.zeros(vocab_size)), allowed


def _dense_masks(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits ``[V]``, and masks that allow 97%, bool ``[M, V]``.

    Half of the masks disallow each token with a large logit, which would win. All masks
    disallow 1% of the tokens.
    """
    vocab_size, num_masks = _integer(generator, 19_000, 21_000), 32
    allowed = torch.rand(num_masks, vocab_size, generator=generator) < 0.98
    allowed[:, torch.rand(vocab_size, generator=generator) < 0.01] = False
    would_win = torch.rand(vocab_size, generator=generator) < 0.005
    allowed[:, would_win] &= torch.rand(num_masks, int(would_win.sum()), generator=generator) < 0.5
    return _fuzz_logits(generator, allowed, would_win * 30.0), allowed


def _fuzz_logits(generator: torch.Generator, allowed: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    """Return logits that are NaN, infinite or huge where no mask allows the token."""
    vocab_size = allowed.shape[1]
    logits = torch.randn(vocab_size, generator=generator) * 4 + advantage
    poison = torch.tensor([float("nan"), float("inf"), 3e38])
    poison = poison[torch.randint(3, (vocab_size,), generator=generator)]
    dtype = (torch.float32, torch.float16, torch.bfloat16)[_integer(generator, 0, 3)]
    return torch.where(allowed.any(0), logits, poison).to(dtype)


def _fuzz_parameters(generator: torch.Generator, n: int) -> list[torch.Tensor]:
    """Return the per-row parameters in the op's order."""

    def choose(values: list[float]) -> torch.Tensor:
        return torch.tensor(values)[torch.randint(len(values), (n,), generator=generator)]

    seed, position = torch.randint(-(2**63), 2**63 - 1, (2, n), generator=generator)
    temperature = choose([0.0, 0.3, 1.0, 1.0, 1.7])
    top_k, top_p, min_p = choose([0, 1, 3]).long(), choose([1.0, 0.9, 0.1]), choose([0.0, 0.0, 0.2])
    return [temperature, top_k, top_p, min_p, seed, position]


def _integer(generator: torch.Generator, low: int, high: int) -> int:
    return int(torch.randint(low, high, (), generator=generator))
