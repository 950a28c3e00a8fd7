"""The tokens that masked_sample may draw, with probabilities, by float64 in NumPy.

Written from the sampling contract; it shares no code with the implementations. They
compute in float32 and fixed point, so they need not keep exactly the tokens that
float64 keeps. This module decides for each token which disagreements are correct:

- ``top_k``, ties and the largest logit compare logits, which is exact: they must
  always agree.
- ``min_p`` and ``top_p`` compare a computed quantity with a threshold. If a token's
  float64 quantity is further from the threshold than the largest error of the
  contract's arithmetic (``_error_of_t`` and the errors derived from it), both must
  agree. Otherwise the token is ``ambiguous``: it may be kept or not.
- ``top_p`` takes its share of the tokens that ``min_p`` left. Tokens that were
  ambiguous there widen the tolerance by their mass, because both totals are correct.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ULP = 2.0**-24  # the relative error of one float32 rounding
EXP_ERROR = 2e-7  # relative error of the contract's EXP, apart from the part that grows with |t|
MASS_UNIT = 2.0**-40  # masses are truncated to it, relative to the largest
SMALLEST_MIN_P = 2.0**-126  # noise cannot make such a token win: below this, min_p keeps all


@dataclass
class Row:
    """The result for one row, with one entry per token.

    Attributes:
        kept: Whether the filters keep the token, bool.
        ambiguous: Whether a correct result may also decide otherwise, bool.
        logprobs: Log-probability over the allowed set, float64; -inf if not allowed.
        logprob_errors: The largest error of a correct float32 result, float64.
    """

    kept: np.ndarray
    ambiguous: np.ndarray
    logprobs: np.ndarray
    logprob_errors: np.ndarray

    def probabilities(self) -> np.ndarray:
        """Return the probability of each token: the softmax over the kept tokens."""
        weights = np.where(self.kept, np.exp(self.logprobs - self.logprobs[self.kept].max()), 0.0)
        return weights / weights.sum()


def sample_row(
    logits: np.ndarray,
    allowed: np.ndarray,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Row | None:
    """Return the result for one row, or None if no token can be drawn."""
    if not (0 <= temperature < np.inf) or not top_p >= 0 or not min_p >= 0:
        return None
    x = logits.astype(np.float64)
    if np.isnan(x[allowed]).any():
        return None
    allowed = allowed & (x > -np.inf)
    if not allowed.any():
        return None

    highest = x[allowed].max()
    if highest == np.inf:  # only the infinite logits can be drawn, uniformly
        allowed, highest = allowed & (x == np.inf), 0.0
        x = np.where(allowed, 0.0, -np.inf)
    is_greedy = temperature == 0
    z = np.where(allowed, x, -np.inf) / (1.0 if is_greedy else temperature)
    t = z - z.max()
    mass = np.exp(t)
    error_of_t = _error_of_t(z, t)
    logprobs = t - np.log(mass.sum())
    # LOG of the total has the errors of its masses, of its conversion and of LOG; then
    # comes a subtraction.
    error_of_total = (mass * _relative_error_of_mass(error_of_t, t)).sum() / mass.sum() + len(x) * MASS_UNIT
    logprob_errors = np.where(allowed, error_of_t + error_of_total + 4 * ULP * (1 + np.abs(logprobs)), 0.0)

    if is_greedy:
        kept = np.arange(len(x)) == np.flatnonzero(allowed & (x == highest))[0]
        return Row(kept, np.zeros_like(kept), logprobs, logprob_errors)

    kept, ambiguous = _min_p(t, error_of_t, min_p, allowed)
    in_top_k = _top_k(x, top_k, allowed)
    kept, ambiguous = kept & in_top_k, ambiguous & in_top_k
    if top_p < 1:
        kept, ambiguous = _top_p(x, mass, _relative_error_of_mass(error_of_t, t), top_p, kept, ambiguous)
    return Row(kept, ambiguous, logprobs, logprob_errors)


def _error_of_t(z: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Bound the error of t.

    1/T, the products z and z_max, and their difference are rounded. z and z_max share
    the error of 1/T.
    """
    with np.errstate(invalid="ignore"):  # -inf is exact
        error = ULP * (np.abs(z) + np.abs(z.max()) + 2 * np.abs(t))
    return np.where(np.isfinite(z), 1.01 * error + 2.0**-148, 0.0)


def _relative_error_of_mass(error_of_t: np.ndarray, t: np.ndarray) -> np.ndarray:
    exponent = np.minimum(error_of_t + 7.5e-8 * np.abs(np.maximum(t, -30.0)), 100.0)
    return np.expm1(exponent) + EXP_ERROR


def _min_p(t: np.ndarray, error_of_t: np.ndarray, min_p: float, allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keep p_i >= min_p * p_max, as t_i >= log(min_p)."""
    if min_p < SMALLEST_MIN_P:
        return allowed.copy(), np.zeros_like(allowed)
    threshold = np.log(min(min_p, 1.0))
    tolerance = error_of_t + 2 * ULP * abs(threshold)
    is_highest = t == 0  # exact on both sides, and LOG(1) is 0
    return allowed & (t >= threshold), allowed & (np.abs(t - threshold) <= tolerance) & ~is_highest


def _top_k(x: np.ndarray, top_k: int, allowed: np.ndarray) -> np.ndarray:
    """Keep every logit that is at least the k-th largest.

    min_p and top_k both keep the logits above a threshold, so their order does not
    matter.
    """
    if not 0 < top_k < allowed.sum():
        return allowed
    return allowed & (x >= np.sort(x[allowed])[-top_k])


def _top_p(
    x: np.ndarray, mass: np.ndarray, relative_error: np.ndarray, top_p: float, kept: np.ndarray, ambiguous: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Keep a group of ties if the mass above it is below the share. The largest is
    always kept."""
    candidates = np.flatnonzero(kept | ambiguous)
    order = candidates[np.argsort(-x[candidates], kind="stable")]
    sorted_x = x[order]
    starts = np.flatnonzero(np.r_[True, sorted_x[1:] != sorted_x[:-1]])
    first_of_group = starts[np.searchsorted(starts, np.arange(len(order)), side="right") - 1]

    sure_mass = np.where(kept[order], mass[order], 0.0)
    above = np.r_[0.0, np.cumsum(sure_mass)][first_of_group]
    total = sure_mass.sum()
    target = top_p * total
    # Both `above` and `target` may have the whole error.
    error = 2 * ((mass[order] * relative_error[order]).sum() + len(x) * MASS_UNIT + 2 * ULP * total)
    error += mass[order][ambiguous[order]].sum()

    is_largest = first_of_group == 0
    reaches = is_largest | (above < target)
    # p = 0 asks for no mass, so no sum is near the target.
    is_near = ~is_largest & (np.abs(above - target) <= error) & (top_p > 0)
    kept_now, ambiguous_now = np.zeros_like(kept), np.zeros_like(kept)
    kept_now[order] = reaches & kept[order]
    ambiguous_now[order] = is_near | (ambiguous[order] & reaches)
    return kept_now, ambiguous_now
