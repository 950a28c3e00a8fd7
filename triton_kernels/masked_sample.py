"""masked_sample in Triton: the contract of docs/sampling_contract.md, in one launch of one program a row.

A program holds TILE tokens at a time. It first lists the tokens that the mask allows; if they fit a tile, everything
after that runs over the list, and of the logits only those are read. Otherwise the row is streamed:

    survey     the highest logit, NaN, and the highest logit of every lane
    filters    min_p is a threshold on t, and the lanes give lower bounds for top_k (the k-th highest of them) and
               top_p. Usually what passes these fits the list, and the selections run there; else over the row, until
               what is left fits.
    draw       Philox and two logarithms, for tiles in which some token could still win

Bytes moved: V/8 of mask, and either 32 bytes (a sector) for each token allowed, or the row once for each pass; the
passes after the first find it in L2. Selections are exact: a search for the threshold's key, two bits a pass, over
counts (top_k) or masses in fixed point (top_p).
"""

# ruff: noqa: SIM102  (an `if` on a constexpr is decided by the compiler, and must not be joined with one that is not)

from typing import Any

import torch
import triton
import triton.language as tl
from structout.triton_kernels.sampling_math import (
    LOG2_E,
    gumbel,
    log,
    log_of_mass,
    mass,
    noise_bits,
    noise_bits_of_groups,
    order_key,
)

from structout import sampling_math as table

TILE = 2048
NUM_WARPS = 8
SMALLEST_MIN_P = tl.constexpr(table.SMALLEST_MIN_P)
LOWEST_DRAWABLE_KEY = tl.constexpr(0x00800000)  # just above that of -inf
# Low bits of an order key that widening to float32 leaves all alike (even, because a pass finds two).
IDLE_KEY_BITS = {torch.float32: 0, torch.float16: 12, torch.bfloat16: 16}

# A row is (logits, vocab_size, listed, mask_bytes, num_mask_bytes, unmentioned), and a pass runs over one of two
# sources, which address tokens by an index:
#   list_size < 0    the row itself: index = token id
#   otherwise        the list of some of its tokens, in ascending order: token id = listed[index]
# A scale is (highest logit, inverse temperature, z of the highest).
# What is kept is what reaches the thresholds lowest_t (of min_p) and lowest_key (of top_k and top_p).


@triton.jit
def _size(row, list_size):
    return tl.where(list_size < 0, row[1], list_size)


@triton.jit
def _indices(first, TILE: tl.constexpr):
    return first + tl.arange(0, TILE // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]


@triton.jit
def _allowed_bytes(row, list_size, first, TILE: tl.constexpr):
    """A bit for each index, eight to an element, least significant first."""
    _, _, _, mask_bytes, num_mask_bytes, unmentioned = row
    byte = first // 8 + tl.arange(0, TILE // 8)
    left = tl.minimum(tl.maximum(_size(row, list_size) - byte * 8, 0), 8)
    is_mentioned = byte < tl.where(list_size < 0, num_mask_bytes, 0)
    allowed = tl.load(mask_bytes + byte, mask=is_mentioned, other=0).to(tl.int32)
    allowed = tl.where(is_mentioned, allowed, tl.where(list_size < 0, unmentioned, 0xFF))
    return allowed & ((1 << left) - 1)


@triton.jit
def _bits(allowed, TILE: tl.constexpr):
    return (allowed[:, None] >> tl.arange(0, 8)[None, :]) & 1


@triton.jit
def _logits(row, list_size, allowed, first, TILE: tl.constexpr):
    """float32, -inf where not allowed."""
    logits, vocab_size, listed, _, _, _ = row
    index = _indices(first, TILE)
    if list_size >= 0:
        token = tl.load(listed + index, mask=index < list_size, other=0)
        x = tl.load(logits + token, mask=index < list_size, other=float("-inf")).to(tl.float32)
    else:
        # One predicate for a byte of mask: one for each bit would make every load a scalar load.
        predicate = (allowed != 0)[:, None] & (index < vocab_size)
        x = tl.load(logits + index, mask=predicate, other=float("-inf")).to(tl.float32)
    return tl.where(_bits(allowed, TILE) != 0, x, float("-inf"))


@triton.jit
def _random_bits(row, list_size, seed, position, first, TILE: tl.constexpr):
    if list_size >= 0:
        index = _indices(first, TILE)
        token = tl.load(row[2] + index, mask=index < list_size, other=0)
        bits = noise_bits(seed, position, token)
    else:
        group = first // 4 + tl.arange(0, TILE // 8)[:, None] * 2 + tl.arange(0, 2)[None, :]
        bits = noise_bits_of_groups(seed, position, group)
    return bits


@triton.jit
def _z(scale, x):
    """Where the highest logit overflows, only those equal to it can be drawn."""
    highest, inverse, z_of_highest = scale
    return tl.where(tl.abs(z_of_highest) < float("inf"), x * inverse, tl.where(x == highest, 0.0, float("-inf")))


@triton.jit
def _t(scale, x):
    highest, inverse, z_of_highest = scale
    shifted = x * inverse - z_of_highest
    return tl.where(tl.abs(z_of_highest) < float("inf"), shifted, tl.where(x == highest, 0.0, float("-inf")))


@triton.jit
def _keeps(scale, x, lowest_t, lowest_key):
    return (order_key(x) >= lowest_key) & (_t(scale, x) >= lowest_t)


@triton.jit
def _append(listed, size, index, is_kept, TILE: tl.constexpr):
    """Adds what is kept to the list if all of it fits. Returns how many there are now, listed or not."""
    is_kept = tl.reshape(is_kept, [TILE])
    new_size = size + tl.sum(is_kept, 0)
    if (new_size > size) & (new_size <= TILE):
        place = size + tl.cumsum(is_kept, 0) - 1
        tl.store(listed + place, tl.reshape(index, [TILE]), mask=is_kept != 0)
    return new_size


@triton.jit
def _list_allowed(row, TILE: tl.constexpr):
    """Lists what the mask allows, reading no logit. Returns its size, or -1 if it is more than a tile."""
    count = 0
    first = 0
    while (first < row[1]) & (count <= TILE):
        allowed = _allowed_bytes(row, -1, first, TILE)
        count = _append(row[2], count, _indices(first, TILE), _bits(allowed, TILE), TILE)
        first += TILE
    tl.debug_barrier()  # threads will read what others have written
    return tl.where(count <= TILE, count, -1)


@triton.jit
def _list_kept(row, scale, lowest_t, lowest_key, TILE: tl.constexpr):
    """The same for what is kept of the row."""
    count = 0
    first = 0
    while (first < row[1]) & (count <= TILE):
        allowed = _allowed_bytes(row, -1, first, TILE)
        if tl.max(allowed, 0) > 0:
            x = _logits(row, -1, allowed, first, TILE)
            is_kept = _keeps(scale, x, lowest_t, lowest_key).to(tl.int32)
            count = _append(row[2], count, _indices(first, TILE), is_kept, TILE)
        first += TILE
    tl.debug_barrier()
    return tl.where(count <= TILE, count, -1)


@triton.jit
def _survey(row, list_size, TILE: tl.constexpr):
    """The highest logit of every lane, the first index that has it, and whether there is NaN."""
    highest = tl.full([TILE // 8, 8], float("-inf"), tl.float32)
    index_of_highest = tl.zeros([TILE // 8, 8], tl.int32)
    nans = tl.zeros([TILE // 8, 8], tl.int32)
    for first in range(0, _size(row, list_size), TILE):
        allowed = _allowed_bytes(row, list_size, first, TILE)
        if tl.max(allowed, 0) > 0:
            x = _logits(row, list_size, allowed, first, TILE)
            nans |= (x != x).to(tl.int32)
            is_higher = x > highest
            highest = tl.where(is_higher, x, highest)
            index_of_highest = tl.where(is_higher, _indices(first, TILE), index_of_highest)
    return highest, index_of_highest, tl.max(tl.max(nans, 1), 0) != 0


@triton.jit
def _mass_of_kept(row, list_size, scale, lowest_t, lowest_key, TILE: tl.constexpr):
    total = tl.zeros([TILE // 8], tl.int64)
    for first in range(0, _size(row, list_size), TILE):
        allowed = _allowed_bytes(row, list_size, first, TILE)
        if tl.max(allowed, 0) > 0:
            x = _logits(row, list_size, allowed, first, TILE)
            is_kept = _keeps(scale, x, lowest_t, lowest_key)
            total += tl.sum(tl.where(is_kept, mass(_t(scale, x)), 0), 1)
    return tl.sum(total, 0)


@triton.jit
def _bound_by_lanes(key, weight, target, IDLE_KEY_BITS: tl.constexpr):
    """The highest key such that the lanes from it up weigh the target, bit by bit; 0 if all of them do not.

    What a selection looks for cannot be lower, for the row has all that the lanes have and more.
    """
    threshold = tl.full((), 0, tl.uint32)
    for i in range(0, 32 - IDLE_KEY_BITS):
        candidate = threshold | (tl.full((), 0x80000000, tl.uint32) >> i)
        reached = tl.sum(tl.sum(tl.where(key >= candidate, weight, 0), 1), 0)
        threshold = tl.where(reached >= target, candidate, threshold)
    return threshold


@triton.jit
def _weigh(row, list_size, scale, lowest_t, lowest_key, base, step, BY_MASS: tl.constexpr, TILE: tl.constexpr):
    """Of what is kept and reaches base + 1, 2, 3 steps: how many there are, and their weight."""
    count_1 = tl.zeros([TILE // 8], tl.int32)
    count_2 = tl.zeros([TILE // 8], tl.int32)
    count_3 = tl.zeros([TILE // 8], tl.int32)
    mass_1 = tl.zeros([TILE // 8], tl.int64)
    mass_2 = tl.zeros([TILE // 8], tl.int64)
    mass_3 = tl.zeros([TILE // 8], tl.int64)
    for first in range(0, _size(row, list_size), TILE):
        allowed = _allowed_bytes(row, list_size, first, TILE)
        if tl.max(allowed, 0) > 0:
            x = _logits(row, list_size, allowed, first, TILE)
            key = tl.where(_keeps(scale, x, lowest_t, lowest_key), order_key(x), 0)  # 0 reaches nothing
            reaches_1 = key >= base + step
            reaches_2 = key >= base + step * 2
            reaches_3 = key >= base + step * 3
            count_1 += tl.sum(reaches_1.to(tl.int32), 1)
            count_2 += tl.sum(reaches_2.to(tl.int32), 1)
            count_3 += tl.sum(reaches_3.to(tl.int32), 1)
            if BY_MASS:
                weight = mass(_t(scale, x))
                mass_1 += tl.sum(tl.where(reaches_1, weight, 0), 1)
                mass_2 += tl.sum(tl.where(reaches_2, weight, 0), 1)
                mass_3 += tl.sum(tl.where(reaches_3, weight, 0), 1)
    n_1, n_2, n_3 = tl.sum(count_1, 0), tl.sum(count_2, 0), tl.sum(count_3, 0)
    w_1, w_2, w_3 = n_1.to(tl.int64), n_2.to(tl.int64), n_3.to(tl.int64)
    if BY_MASS:
        w_1, w_2, w_3 = tl.sum(mass_1, 0), tl.sum(mass_2, 0), tl.sum(mass_3, 0)
    return n_1, n_2, n_3, w_1, w_2, w_3


@triton.jit
def _select(
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
    """The lowest key to keep, so that it and what lies above weigh the target, with the least of such sets.

    Two bits of the key a pass, from the top. What may be kept is listed as soon as it fits: also returns the size of
    that list.
    """
    highest_key = order_key(scale[0])
    shift = 30
    while (shift > IDLE_KEY_BITS) & ((highest_key ^ lowest_key) >> shift == 0):
        shift -= 2
    base = (highest_key >> shift >> 2) << shift << 2  # what all keys that are kept begin with
    count = tl.full((), 0x7FFFFFFF, tl.int32)  # how many reach base: not known yet
    count_above = tl.full((), 0, tl.int32)  # how many reach a key already found to be too high
    # One token between the two must be the threshold. So is any base that just `target` tokens reach, but not one that
    # just the target mass reaches: below the threshold there may be tokens without mass.
    while (shift >= IDLE_KEY_BITS) & (count - count_above > 1):
        step = tl.full((), 1, tl.uint32) << shift
        n_1, n_2, n_3, w_1, w_2, w_3 = _weigh(row, list_size, scale, lowest_t, lowest_key, base, step, BY_MASS, TILE)
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
            list_size = _list_kept(row, scale, lowest_t, tl.maximum(lowest_key, base), TILE)
    return tl.maximum(lowest_key, base), list_size


# The smallest random bits, 0, stand for u = 1/2 of 2^32, so log2 of u is at least -1; floats hold it with 127 added.
NO_BITS_REACH = tl.constexpr(125.9)
ALL_BITS_REACH = tl.constexpr(159.001)


@triton.jit
def _draw(row, list_size, scale, lowest_t, lowest_key, seed, position, TILE: tl.constexpr):
    """The index of the highest z + gumbel of what is kept, the lowest on ties.

    Most logarithms are skipped, which changes no answer. As g <= -ln(u / 2^32) for u = bits + 1/2, a token can reach
    the best score so far only if log2(u) <= 32 - (best - z) log2(e); and the bits of a float, taken for an integer, are
    at most 2^23 (127 + log2) of it. All roundings, those of z + g included, are less than 2^-20 |z| + 1e-3 of that.
    Where z or the best is so large that this gives NaN, nothing is skipped.
    """
    best = tl.full((), float("-inf"), tl.float32)
    winner = tl.full((), 0, tl.int32)
    for first in range(0, _size(row, list_size), TILE):
        allowed = _allowed_bytes(row, list_size, first, TILE)
        if tl.max(allowed, 0) > 0:
            x = _logits(row, list_size, allowed, first, TILE)
            z = _z(scale, x)
            reach = z * LOG2_E + (tl.abs(z) * 2.0**-20 + (ALL_BITS_REACH - best * LOG2_E))
            is_open = tl.where(reach < NO_BITS_REACH, 0, _keeps(scale, x, lowest_t, lowest_key).to(tl.int32))
            if tl.max(tl.max(is_open, 1), 0) > 0:
                random = _random_bits(row, list_size, seed, position, first, TILE)
                needed = random.to(tl.float32).to(tl.int32, bitcast=True).to(tl.float32) * 2.0**-23
                may_win = tl.where(needed > reach, 0, is_open)
                if tl.max(tl.max(may_win, 1), 0) > 0:
                    score = tl.where(may_win != 0, z + gumbel(random), float("-inf"))
                    highest = tl.max(tl.max(score, 1), 0)
                    if highest > best:
                        best = highest
                        index = tl.where(score == highest, _indices(first, TILE), 0x7FFFFFFF)
                        winner = tl.min(tl.min(index, 1), 0)
    return winner


# A new value of these must not mean a new compilation, in the middle of serving: batches come in all sizes, and scalars
# come expanded with stride 0. Only how logits lie decides anything, which is whether they load 16 bytes at a time.
_STRIDES = ("rows", "temperature", "top_k", "top_p", "min_p", "seed", "position", "mask_row")
_PLAIN_INTEGERS = ("num_masks", "words_per_mask", *(f"{name}_stride" for name in _STRIDES))
_PLAIN_POINTERS = ("bitmask", "rows", "temperature", "top_k", "top_p", "min_p", "seed", "position")


@triton.jit(do_not_specialize=_PLAIN_INTEGERS, do_not_specialize_on_alignment=_PLAIN_POINTERS)
def masked_sample_kernel(
    logits,
    bitmask,
    rows,
    temperature,
    top_k,
    top_p,
    min_p,
    seed,
    position,
    lists,
    ids,
    logprobs,
    vocab_size,
    logits_row_stride,
    num_masks,
    words_per_mask,
    mask_row_stride,
    rows_stride,
    temperature_stride,
    top_k_stride,
    top_p_stride,
    min_p_stride,
    seed_stride,
    position_stride,
    HAS_MASK: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    HAS_TOP_K: tl.constexpr,
    HAS_TOP_P: tl.constexpr,
    HAS_MIN_P: tl.constexpr,
    HAS_LOGPROBS: tl.constexpr,
    IDLE_KEY_BITS: tl.constexpr,
    TILE: tl.constexpr,
):
    row_id = tl.program_id(0).to(tl.int64)
    heat = tl.load(temperature + row_id * temperature_stride)
    is_valid = (heat >= 0) & (heat < float("inf"))  # so that NaN is not
    p = tl.full((), 1.0, tl.float32)
    if HAS_TOP_P:
        p = tl.load(top_p + row_id * top_p_stride)
        is_valid = is_valid & (p >= 0)
    lowest_p = tl.full((), 0.0, tl.float32)
    if HAS_MIN_P:
        lowest_p = tl.load(min_p + row_id * min_p_stride)
        is_valid = is_valid & (lowest_p >= 0)

    # A free row has no mask and allows what it does not mention; a row of an unknown mask allows nothing.
    mask_bytes = lists.to(tl.pointer_type(tl.int8), bitcast=True)
    num_mask_bytes = 0
    unmentioned = 0xFF
    if HAS_MASK:
        mask_id = row_id
        if HAS_ROWS:
            mask_id = tl.load(rows + row_id * rows_stride).to(tl.int64)
        is_known = (mask_id >= 0) & (mask_id < num_masks)
        words = bitmask + tl.where(is_known, mask_id, 0) * mask_row_stride
        mask_bytes = words.to(tl.pointer_type(tl.int8), bitcast=True)
        num_mask_bytes = tl.where(is_known, words_per_mask * 4, 0)
        unmentioned = tl.where(mask_id == -1, 0xFF, 0)
    listed = lists + row_id * TILE
    row = (logits + row_id * logits_row_stride, vocab_size, listed, mask_bytes, num_mask_bytes, unmentioned)

    list_size = tl.full((), 0, tl.int32)  # of an invalid row
    if is_valid:
        list_size = tl.full((), -1, tl.int32)
        if HAS_MASK:
            if unmentioned == 0:
                list_size = _list_allowed(row, TILE)
    lane_highest, lane_index, has_nan = _survey(row, list_size, TILE)
    highest = tl.max(tl.max(lane_highest, 1), 0)

    token = tl.full((), -1, tl.int64)
    logprob = tl.full((), float("-inf"), tl.float32)
    if (highest > float("-inf")) & (has_nan == 0):
        is_greedy = heat == 0
        inverse = tl.div_rn(tl.full((), 1.0, tl.float32), tl.where(is_greedy, 1.0, heat))
        scale = (highest, inverse, highest * inverse)
        lowest_key = tl.full((), LOWEST_DRAWABLE_KEY, tl.uint32)
        lowest_t = tl.full((), float("-inf"), tl.float32)
        total = tl.full((), 0, tl.int64)
        if HAS_LOGPROBS:
            total = _mass_of_kept(row, list_size, scale, lowest_t, lowest_key, TILE)
        if is_greedy:
            winner = tl.min(tl.min(tl.where(lane_highest == highest, lane_index, 0x7FFFFFFF), 1), 0)
        else:
            may_be_few = False
            if HAS_MIN_P:
                if lowest_p >= SMALLEST_MIN_P:
                    lowest_t = log(tl.minimum(lowest_p, 1.0))
                    may_be_few = True
            if HAS_TOP_K:
                k = tl.load(top_k + row_id * top_k_stride).to(tl.int64)
                if (k > 0) & (k <= TILE):
                    one = tl.full([TILE // 8, 8], 1, tl.int32)
                    bound = _bound_by_lanes(order_key(lane_highest), one, k, IDLE_KEY_BITS)
                    lowest_key = tl.maximum(lowest_key, bound)
                    may_be_few = True
            if HAS_MIN_P or HAS_TOP_K:
                if may_be_few & (list_size < 0):
                    list_size = _list_kept(row, scale, lowest_t, lowest_key, TILE)
            if HAS_TOP_K:
                if (k > 0) & (k < _size(row, list_size)):
                    lowest_key, list_size = _select(
                        row, list_size, scale, lowest_t, lowest_key, k, False, IDLE_KEY_BITS, TILE
                    )
            if HAS_TOP_P:
                if p < 1:
                    left = _mass_of_kept(row, list_size, scale, lowest_t, lowest_key, TILE)
                    target = tl.minimum(left, tl.maximum((p * left.to(tl.float32)).to(tl.int64), 1))
                    if list_size < 0:
                        is_kept = _keeps(scale, lane_highest, lowest_t, lowest_key)
                        weight = tl.where(is_kept, mass(_t(scale, lane_highest)), 0)
                        bound = _bound_by_lanes(order_key(lane_highest), weight, target, IDLE_KEY_BITS)
                        lowest_key = tl.maximum(lowest_key, bound)
                        list_size = _list_kept(row, scale, lowest_t, lowest_key, TILE)
                    lowest_key, list_size = _select(
                        row, list_size, scale, lowest_t, lowest_key, target, True, IDLE_KEY_BITS, TILE
                    )
            winner = _draw(
                row,
                list_size,
                scale,
                lowest_t,
                lowest_key,
                tl.load(seed + row_id * seed_stride),
                tl.load(position + row_id * position_stride),
                TILE,
            )
        if list_size >= 0:
            winner = tl.load(listed + winner)
        token = winner.to(tl.int64)
        if HAS_LOGPROBS:
            x = tl.load(row[0] + winner).to(tl.float32)
            logprob = _t(scale, x) - log_of_mass(total)
    tl.store(ids + row_id, token)
    if HAS_LOGPROBS:
        tl.store(logprobs + row_id, logprob)


def _launch(
    logits: torch.Tensor,
    bitmask: torch.Tensor | None,
    rows: torch.Tensor | None,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    seed: torch.Tensor,
    position: torch.Tensor,
    wants_logprobs: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of arguments that have been checked. Without wants_logprobs the second result is not written."""
    logits = logits if logits.dim() == 2 else logits.unsqueeze(0)
    num_rows, vocab_size = logits.shape
    ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    logprobs = torch.empty(num_rows if wants_logprobs else 0, dtype=torch.float32, device=logits.device)
    if num_rows == 0:
        return ids, logprobs
    if bitmask is not None and bitmask.dim() == 1:
        bitmask = bitmask.unsqueeze(0)
    lists = torch.empty(num_rows, TILE, dtype=torch.int32, device=logits.device)

    def given(tensor: torch.Tensor | None) -> torch.Tensor:
        return ids if tensor is None else tensor  # what is absent is not read

    def stride(tensor: torch.Tensor | None) -> int:
        return 0 if tensor is None else tensor.stride(0)

    kernel: Any = masked_sample_kernel[(num_rows,)]
    with torch.cuda.device_of(logits):
        kernel(
            logits,
            given(bitmask),
            given(rows),
            temperature,
            given(top_k),
            given(top_p),
            given(min_p),
            seed,
            position,
            lists,
            ids,
            logprobs,
            vocab_size,
            logits.stride(0),
            0 if bitmask is None else bitmask.shape[0],
            0 if bitmask is None else bitmask.shape[1],
            stride(bitmask),
            stride(rows),
            stride(temperature),
            stride(top_k),
            stride(top_p),
            stride(min_p),
            stride(seed),
            stride(position),
            HAS_MASK=bitmask is not None,
            HAS_ROWS=rows is not None,
            HAS_TOP_K=top_k is not None,
            HAS_TOP_P=top_p is not None,
            HAS_MIN_P=min_p is not None,
            HAS_LOGPROBS=wants_logprobs,
            IDLE_KEY_BITS=IDLE_KEY_BITS[logits.dtype],
            TILE=TILE,
            num_warps=NUM_WARPS,
            enable_fp_fusion=False,
        )
    return ids, logprobs


def masked_sample(
    logits: torch.Tensor,
    bitmask: torch.Tensor | None,
    rows: torch.Tensor | None,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    seed: torch.Tensor,
    position: torch.Tensor,
) -> torch.Tensor:
    """``torch.ops.structout.masked_sample`` for CUDA tensors, or CPU tensors under TRITON_INTERPRET=1."""
    arguments = (logits, bitmask, rows, temperature, top_k, top_p, min_p, seed, position)
    torch.ops.structout._check_masked_sample(*arguments)
    return _launch(*arguments, wants_logprobs=False)[0]


def masked_sample_logprobs(
    logits: torch.Tensor,
    bitmask: torch.Tensor | None,
    rows: torch.Tensor | None,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    seed: torch.Tensor,
    position: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``torch.ops.structout.masked_sample_logprobs`` for the same tensors."""
    arguments = (logits, bitmask, rows, temperature, top_k, top_p, min_p, seed, position)
    torch.ops.structout._check_masked_sample(*arguments)
    return _launch(*arguments, wants_logprobs=True)
