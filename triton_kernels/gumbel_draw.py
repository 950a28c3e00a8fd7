"""Gumbel-max sampling: draws the kept token with the highest score z + gumbel(bits).

Tokens that cannot win are ruled out without a logarithm. This only saves work: the
drawn token does not depend on it. csrc/common/draw_bound.h has the same rule.

The noise is bounded by g <= -ln(u / 2^32) with u = bits + 1/2. So a token can reach the
best score so far only if

    log2(u) <= 32 - (best - z) log2(e).

The bits of a float, read as an integer, are at most 2^23 (127 + log2) of it. All
rounding errors, that of z + g included, stay below 2^-20 |z| + 1e-3, and the limit has
that margin. The 16 coarse bits alone rule out nearly every token. If z or the best
score is so large that the limit is NaN, no token is ruled out.
"""

import triton
import triton.language as tl

from structout.triton_kernels.sampling_math import (
    LOG2_E,
    coarse_noise,
    coarse_noise_of_groups,
    fine_noise,
    fine_noise_of_groups,
    gumbel,
)
from structout.triton_kernels.sampling_row import allowed_bytes, begin_of, end_of, indices_of, keeps, logits_of, z_of

# The log limit below which no random bits let a token win: the smallest u is 1/2, so
# 127 + log2(u) is at least 126.
MIN_LOG_LIMIT = tl.constexpr(125.9)
# The log limit of a token whose z equals the best score: all random bits let it win.
LOG_LIMIT_AT_BEST = tl.constexpr(159.001)


@triton.jit
def log_limit_of(z, best):
    """The highest 127 + log2(u) with which a token of scaled logit z can reach
    `best`."""
    return z * LOG2_E + (tl.abs(z) * 2.0**-20 + (LOG_LIMIT_AT_BEST - best * LOG2_E))


@triton.jit
def loses_with_any_bits(log_limit):
    """True if no random bits let the token win."""
    return log_limit < MIN_LOG_LIMIT


@triton.jit
def loses_with(log_limit, random):
    """True if the token loses with these random bits, and so with any larger ones."""
    return random.to(tl.float32).to(tl.int32, bitcast=True).to(tl.float32) * 2.0**-23 > log_limit


@triton.jit
def tile_noise(row, list_size, seed, position, first, FINE: tl.constexpr, TILE: tl.constexpr):
    """The coarse or the fine random bits of a tile of tokens."""
    if list_size >= 0:
        index = indices_of(first, TILE)
        token = tl.load(row[3] + index, mask=index < list_size, other=0)
        bits = fine_noise(seed, position, token) if FINE else coarse_noise(seed, position, token)
    else:
        group = first // 8 + tl.arange(0, TILE // 8)
        bits = fine_noise_of_groups(seed, position, group) if FINE else coarse_noise_of_groups(seed, position, group)
    return bits


@triton.jit
def draw(row, list_size, scale, lowest_t, lowest_key, seed, position, TILE: tl.constexpr):
    """The winner's index, the lowest on ties, and its score."""
    best = tl.full((), float("-inf"), tl.float32)
    winner = tl.full((), 0, tl.int32)
    for first in range(begin_of(row, list_size, TILE), end_of(row, list_size), TILE):
        allowed = allowed_bytes(row, list_size, first, TILE)
        if tl.max(allowed, 0) > 0:
            x = logits_of(row, list_size, allowed, first, TILE)
            z = z_of(scale, x)
            log_limit = log_limit_of(z, best)
            needs_bits = tl.where(loses_with_any_bits(log_limit), 0, keeps(scale, x, lowest_t, lowest_key).to(tl.int32))
            if tl.max(tl.max(needs_bits, 1), 0) > 0:
                smallest_bits = tile_noise(row, list_size, seed, position, first, False, TILE) << 16
                can_win = tl.where(loses_with(log_limit, smallest_bits), 0, needs_bits)
                if tl.max(tl.max(can_win, 1), 0) > 0:
                    random = smallest_bits | tile_noise(row, list_size, seed, position, first, True, TILE)
                    score = tl.where(can_win != 0, z + gumbel(random), float("-inf"))
                    highest = tl.max(tl.max(score, 1), 0)
                    if highest > best:
                        best = highest
                        index = tl.where(score == highest, indices_of(first, TILE), 0x7FFFFFFF)
                        winner = tl.min(tl.min(index, 1), 0)
    return winner, best
