"""What masked_sample may draw, and how likely: float64 NumPy, by sorting, from the definition in the sampling contract.

It shares no code with the implementations. They compute in float32 and in fixed point, so they need not keep exactly
the tokens that float64 keeps. Which disagreements are right is decided here, two-sided and token by token:

- `top_k`, ties, and which logit is the largest are comparisons of logits, which are exact: they must agree always.
- `min_p` and `top_p` compare a computed quantity with a threshold. A token whose float64 quantity is further from the
  threshold than the error that the contract's arithmetic may have (`_error_of_t` and what is derived from it) must
  agree; one that is nearer is `ambiguous` and may go either way. On which side a rounding falls is never asked.
- What `top_p` takes a share of is what `min_p` left. Tokens that were ambiguous there widen the tolerance here by their
  mass, because either total is right.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ULP = 2.0**-24  # the relative error of one float32 rounding
EXP_ERROR = 2e-7  # of the contract's EXP, relative, beside what grows with |t|
MASS_UNIT = 2.0**-40  # masses are truncated to it, relative to the largest
SMALLEST_MIN_P = 2.0**-126  # a token this unlikely is out of reach of the noise: below it, min_p keeps all


@dataclass
class Row:
    """Of every column: what filters keep, whether they may go either way, and the logprob over the allowed set."""

    kept: np.ndarray  # bool
    ambiguous: np.ndarray  # bool
    logprobs: np.ndarray  # float64, -inf where not allowed
    logprob_errors: np.ndarray  # float64: how far a correct float32 result may be off

    def probabilities(self) -> np.ndarray:
        """Of being drawn: the softmax over what is kept."""
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
    """None where nothing can be drawn."""
    if not (0 <= temperature < np.inf) or not top_p >= 0 or not min_p >= 0:
        return None
    x = logits.astype(np.float64)
    if np.isnan(x[allowed]).any():
        return None
    allowed = allowed & (x > -np.inf)
    if not allowed.any():
        return None

    highest = x[allowed].max()
    if highest == np.inf:  # only the infinite ones can be drawn, each as likely
        allowed, highest = allowed & (x == np.inf), 0.0
        x = np.where(allowed, 0.0, -np.inf)
    is_greedy = temperature == 0
    z = np.where(allowed, x, -np.inf) / (1.0 if is_greedy else temperature)
    t = z - z.max()
    mass = np.exp(t)
    error_of_t = _error_of_t(z, t)
    logprobs = t - np.log(mass.sum())
    # LOG of the total: the errors of its masses, of its conversion and of LOG; then the last subtraction.
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
    """1/T and the products z and z_max are rounded, then their difference. The error of 1/T is common to both."""
    with np.errstate(invalid="ignore"):  # -inf is exact
        error = ULP * (np.abs(z) + np.abs(z.max()) + 2 * np.abs(t))
    return np.where(np.isfinite(z), 1.01 * error + 2.0**-148, 0.0)


def _relative_error_of_mass(error_of_t: np.ndarray, t: np.ndarray) -> np.ndarray:
    exponent = np.minimum(error_of_t + 7.5e-8 * np.abs(np.maximum(t, -30.0)), 100.0)
    return np.expm1(exponent) + EXP_ERROR


def _min_p(t: np.ndarray, error_of_t: np.ndarray, min_p: float, allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """p_i >= min_p * p_max, as t_i >= log(min_p)."""
    if min_p < SMALLEST_MIN_P:
        return allowed.copy(), np.zeros_like(allowed)
    threshold = np.log(min(min_p, 1.0))
    tolerance = error_of_t + 2 * ULP * abs(threshold)
    is_highest = t == 0  # exact on both sides, and LOG(1) is 0
    return allowed & (t >= threshold), allowed & (np.abs(t - threshold) <= tolerance) & ~is_highest


def _top_k(x: np.ndarray, top_k: int, allowed: np.ndarray) -> np.ndarray:
    """Everything that is not below the k-th largest. It does not matter whether min_p came before: both keep what is
    above a line."""
    if not 0 < top_k < allowed.sum():
        return allowed
    return allowed & (x >= np.sort(x[allowed])[-top_k])


def _top_p(
    x: np.ndarray, mass: np.ndarray, relative_error: np.ndarray, top_p: float, kept: np.ndarray, ambiguous: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A group of ties is kept if what lies above it has not reached the share. The largest is kept always."""
    candidates = np.flatnonzero(kept | ambiguous)
    order = candidates[np.argsort(-x[candidates], kind="stable")]
    sorted_x = x[order]
    starts = np.flatnonzero(np.r_[True, sorted_x[1:] != sorted_x[:-1]])
    first_of_group = starts[np.searchsorted(starts, np.arange(len(order)), side="right") - 1]

    sure_mass = np.where(kept[order], mass[order], 0.0)
    above = np.r_[0.0, np.cumsum(sure_mass)][first_of_group]
    total = sure_mass.sum()
    target = top_p * total
    # Of `above` and of `target`, either of which may be off by all of it.
    error = 2 * ((mass[order] * relative_error[order]).sum() + len(x) * MASS_UNIT + 2 * ULP * total)
    error += mass[order][ambiguous[order]].sum()

    is_largest = first_of_group == 0
    reaches = is_largest | (above < target)
    # p = 0 asks for no mass at all: then there is nothing to be near to.
    is_near = ~is_largest & (np.abs(above - target) <= error) & (top_p > 0)
    kept_now, ambiguous_now = np.zeros_like(kept), np.zeros_like(kept)
    kept_now[order] = reaches & kept[order]
    ambiguous_now[order] = is_near | (ambiguous[order] & reaches)
    return kept_now, ambiguous_now
