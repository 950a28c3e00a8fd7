"""top_k and top_p: an exact search for the lowest key to keep, two bits per pass."""

import triton
import triton.language as tl

from structout.triton_kernels.sampling_math import mass, order_key
from structout.triton_kernels.sampling_row import allowed_bytes, begin_of, end_of, keeps, list_kept, logits_of, t_of


@triton.jit
def bound_by_lanes(key, weight, target, IDLE_KEY_BITS: tl.constexpr):
    """The highest key such that the lanes at or above it have the target weight, or 0.

    It is found bit by bit. It is a lower bound on the row's threshold, because the row
    has all the tokens of the lanes and more.
    """
    threshold = tl.full((), 0, tl.uint32)
    for i in range(0, 32 - IDLE_KEY_BITS):
        candidate = threshold | (tl.full((), 0x80000000, tl.uint32) >> i)
        reached = tl.sum(tl.sum(tl.where(key >= candidate, weight, 0), 1), 0)
        threshold = tl.where(reached >= target, candidate, threshold)
    return threshold


@triton.jit
def weigh(row, list_size, scale, lowest_t, lowest_key, base, step, BY_MASS: tl.constexpr, TILE: tl.constexpr):
    """The number and weight of the kept tokens at or above base + 1, 2, 3 steps."""
    count_1 = tl.zeros([TILE // 8], tl.int32)
    count_2 = tl.zeros([TILE // 8], tl.int32)
    count_3 = tl.zeros([TILE // 8], tl.int32)
    mass_1 = tl.zeros([TILE // 8], tl.int64)
    mass_2 = tl.zeros([TILE // 8], tl.int64)
    mass_3 = tl.zeros([TILE // 8], tl.int64)
    for first in range(begin_of(row, list_size, TILE), end_of(row, list_size), TILE):
        allowed = allowed_bytes(row, list_size, first, TILE)
        if tl.max(allowed, 0) > 0:
            x = logits_of(row, list_size, allowed, first, TILE)
            key = tl.where(keeps(scale, x, lowest_t, lowest_key), order_key(x), 0)  # 0: below all
            reaches_1 = key >= base + step
            reaches_2 = key >= base + step * 2
            reaches_3 = key >= base + step * 3
            count_1 += tl.sum(reaches_1.to(tl.int32), 1)
            count_2 += tl.sum(reaches_2.to(tl.int32), 1)
            count_3 += tl.sum(reaches_3.to(tl.int32), 1)
            if BY_MASS:
                weight = mass(t_of(scale, x))
                mass_1 += tl.sum(tl.where(reaches_1, weight, 0), 1)
                mass_2 += tl.sum(tl.where(reaches_2, weight, 0), 1)
                mass_3 += tl.sum(tl.where(reaches_3, weight, 0), 1)
    n_1, n_2, n_3 = tl.sum(count_1, 0), tl.sum(count_2, 0), tl.sum(count_3, 0)
    w_1, w_2, w_3 = n_1.to(tl.int64), n_2.to(tl.int64), n_3.to(tl.int64)
    if BY_MASS:
        w_1, w_2, w_3 = tl.sum(mass_1, 0), tl.sum(mass_2, 0), tl.sum(mass_3, 0)
    return n_1, n_2, n_3, w_1, w_2, w_3


@triton.jit
def select(
    row,
    list_size,
    scale,
    lowest_t,
    lowest_key,
    target,
    BY_MASS: tl.constexpr,
    IDLE_KEY_BITS: tl.constexpr,
    TILE: tl.constexpr,
):
    """The highest key such that the kept tokens at or above it have the target weight.

    Finds two bits of the key per pass, from the top. Lists the tokens that may be kept
    as soon as they fit, and also returns the size of that list.
    """
    highest_key = order_key(scale[0])
    shift = 30
    while (shift > IDLE_KEY_BITS) & ((highest_key ^ lowest_key) >> shift == 0):
        shift -= 2
    base = (highest_key >> shift >> 2) << shift << 2  # the prefix that all kept keys share
    count = tl.full((), 0x7FFFFFFF, tl.int32)  # tokens at or above base: not known yet
    count_above = tl.full((), 0, tl.int32)  # tokens at or above a key that is too high
    # If only one token lies between the two, it is the threshold. If exactly `target`
    # tokens are at or above base, the set is final. An equal mass does not show that,
    # because tokens below the threshold may have mass 0.
    while (shift >= IDLE_KEY_BITS) & (count - count_above > 1):
        step = tl.full((), 1, tl.uint32) << shift
        n_1, n_2, n_3, w_1, w_2, w_3 = weigh(row, list_size, scale, lowest_t, lowest_key, base, step, BY_MASS, TILE)
        if w_3 >= target:
            base += step * 3
            count = n_3
        elif w_2 >= target:
            base += step * 2
            count = n_2
            count_above = n_3
        elif w_1 >= target:
            base += step
            count = n_1
            count_above = n_2
        else:
            count_above = n_1
        shift -= 2
        if (not BY_MASS) and count == target:
            shift = -1
        if (list_size < 0) & (count <= TILE):
            list_size = list_kept(row, scale, lowest_t, tl.maximum(lowest_key, base), TILE)
    return tl.maximum(lowest_key, base), list_size
