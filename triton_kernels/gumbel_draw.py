"""The draw of masked_sample: the highest z + gumbel of what is kept, without a logarithm for tokens that cannot win.

Which these are changes no answer. As g <= -ln(u / 2^32) for u = bits + 1/2, a token can reach the best score so far
only if log2(u) <= 32 - (best - z) log2(e); and the bits of a float, taken for an integer, are at most
2^23 (127 + log2) of it. All roundings, those of z + g included, are less than 2^-20 |z| + 1e-3 of that. Where z or the
best is so large that this gives NaN, nothing is skipped. (csrc/draw_bound.h is the same rule.)
"""

import triton
import triton.language as tl
from structout.triton_kernels.sampling_math import LOG2_E, gumbel, noise_bits, noise_bits_of_groups
from structout.triton_kernels.sampling_row import allowed_bytes, begin_of, end_of, indices_of, keeps, logits_of, z_of

# The smallest random bits, 0, stand for u = 1/2 of 2^32, so log2 of u is at least -1; floats hold it with 127 added.
NO_BITS_REACH = tl.constexpr(125.9)
ALL_BITS_REACH = tl.constexpr(159.001)


@triton.jit
def reach_of(z, best):
    """log2 of the random bits, with 127 added, that a token of logit z may have and still score `best`."""
    return z * LOG2_E + (tl.abs(z) * 2.0**-20 + (ALL_BITS_REACH - best * LOG2_E))


@triton.jit
def is_out_of_reach(reach):
    """Whatever the random bits."""
    return reach < NO_BITS_REACH


@triton.jit
def falls_short(reach, random):
    return random.to(tl.float32).to(tl.int32, bitcast=True).to(tl.float32) * 2.0**-23 > reach


@triton.jit
def random_bits(row, list_size, seed, position, first, TILE: tl.constexpr):
    if list_size >= 0:
        index = indices_of(first, TILE)
        token = tl.load(row[3] + index, mask=index < list_size, other=0)
        bits = noise_bits(seed, position, token)
    else:
        group = first // 4 + tl.arange(0, TILE // 8)[:, None] * 2 + tl.arange(0, 2)[None, :]
        bits = noise_bits_of_groups(seed, position, group)
    return bits


@triton.jit
def draw(row, list_size, scale, lowest_t, lowest_key, seed, position, TILE: tl.constexpr):
    """The index of the winner, the lowest on ties, and its score."""
    best = tl.full((), float("-inf"), tl.float32)
    winner = tl.full((), 0, tl.int32)
    for first in range(begin_of(row, list_size, TILE), end_of(row, list_size), TILE):
        allowed = allowed_bytes(row, list_size, first, TILE)
        if tl.max(allowed, 0) > 0:
            x = logits_of(row, list_size, allowed, first, TILE)
            z = z_of(scale, x)
            reach = reach_of(z, best)
            is_open = tl.where(is_out_of_reach(reach), 0, keeps(scale, x, lowest_t, lowest_key).to(tl.int32))
            if tl.max(tl.max(is_open, 1), 0) > 0:
                random = random_bits(row, list_size, seed, position, first, TILE)
                may_win = tl.where(falls_short(reach, random), 0, is_open)
                if tl.max(tl.max(may_win, 1), 0) > 0:
                    score = tl.where(may_win != 0, z + gumbel(random), float("-inf"))
                    highest = tl.max(tl.max(score, 1), 0)
                    if highest > best:
                        best = highest
                        index = tl.where(score == highest, indices_of(first, TILE), 0x7FFFFFFF)
                        winner = tl.min(tl.min(index, 1), 0)
    return winner, best
