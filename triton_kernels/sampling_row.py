"""Reads, lists and sums one row of logits, a tile of tokens at a time."""

import triton
import triton.language as tl

from structout.triton_kernels.sampling_math import mass, order_key

LOWEST_DRAWABLE_KEY = tl.constexpr(0x00800000)  # just above the order key of -inf
WORDS_AT_A_TIME = tl.constexpr(2048)  # of a mask, when allowed tokens are listed

# A row is (logits, vocab_begin, vocab_end, listed, mask_bytes, num_mask_bytes,
# unmentioned). It has the tokens from vocab_begin to vocab_end. vocab_begin None means
# 0, known at compile time. `logits` and `mask_bytes` point to where token 0 is or would
# be. `unmentioned` is the mask byte of tokens past the mask's end. A pass runs over one
# of two sources:
#   list_size < 0    the row itself: index = token id
#   otherwise        a list of some of its tokens, ascending: token id = listed[index]
# A scale is (highest logit, inverse temperature, z of the highest logit). Kept tokens
# reach the thresholds lowest_t (from min_p) and lowest_key (from top_k, top_p).


@triton.jit
def mask_of(
    row_id,
    bitmask,
    rows,
    rows_stride,
    num_masks,
    words_per_mask,
    mask_row_stride,
    HAS_MASK: tl.constexpr,
    HAS_ROWS: tl.constexpr,
):
    """(mask_bytes, num_mask_bytes, unmentioned) of a row.

    A free row allows every token. A row id out of range allows none.
    """
    num_mask_bytes = 0
    unmentioned = 0xFF
    if HAS_MASK:
        mask_id = row_id
        if HAS_ROWS:
            mask_id = tl.load(rows + row_id * rows_stride).to(tl.int64)
        is_known = (mask_id >= 0) & (mask_id < num_masks)
        bitmask += tl.where(is_known, mask_id, 0) * mask_row_stride
        num_mask_bytes = tl.where(is_known, words_per_mask * 4, 0)
        unmentioned = tl.where(mask_id == -1, 0xFF, 0)
    return bitmask.to(tl.pointer_type(tl.int8), bitcast=True), num_mask_bytes, unmentioned


@triton.jit
def begin_of(row, list_size, TILE: tl.constexpr):
    """The first index of the first tile.

    It is a multiple of TILE, because a byte of a mask and a group of random bits cover
    eight tokens.
    """
    begin = 0
    if row[1] is not None:
        begin = tl.where(list_size < 0, row[1] // TILE * TILE, 0)
    return begin


@triton.jit
def end_of(row, list_size):
    return tl.where(list_size < 0, row[2], list_size)


@triton.jit
def indices_of(first, TILE: tl.constexpr):
    return first + tl.arange(0, TILE // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]


@triton.jit
def allowed_bytes(row, list_size, first, TILE: tl.constexpr):
    """One bit per index of the tile, eight to an element, least significant first."""
    _, vocab_begin, _, _, mask_bytes, num_mask_bytes, unmentioned = row
    byte = first // 8 + tl.arange(0, TILE // 8)
    left = tl.minimum(tl.maximum(end_of(row, list_size) - byte * 8, 0), 8)
    existing = (1 << left) - 1
    if vocab_begin is not None:
        begin = tl.where(list_size < 0, vocab_begin, 0)
        existing &= 0xFF << tl.minimum(tl.maximum(begin - byte * 8, 0), 8)
    is_mentioned = byte < tl.where(list_size < 0, num_mask_bytes, 0)
    allowed = tl.load(mask_bytes + byte, mask=is_mentioned, other=0).to(tl.int32)
    allowed = tl.where(is_mentioned, allowed, tl.where(list_size < 0, unmentioned, 0xFF))
    return allowed & existing


@triton.jit
def bits_of(allowed, TILE: tl.constexpr):
    return (allowed[:, None] >> tl.arange(0, 8)[None, :]) & 1


@triton.jit
def logits_of(row, list_size, allowed, first, TILE: tl.constexpr):
    """The logits of a tile as float32, -inf where not allowed."""
    logits, vocab_begin, vocab_end, listed, _, _, _ = row
    index = indices_of(first, TILE)
    if list_size >= 0:
        token = tl.load(listed + index, mask=index < list_size, other=0)
        x = tl.load(logits + token, mask=index < list_size, other=float("-inf")).to(tl.float32)
    else:
        # One predicate per mask byte: a predicate per bit would make every load scalar.
        predicate = (allowed != 0)[:, None] & (index < vocab_end)
        if vocab_begin is not None:
            predicate &= index >= vocab_begin
        x = tl.load(logits + index, mask=predicate, other=float("-inf")).to(tl.float32)
    return tl.where(bits_of(allowed, TILE) != 0, x, float("-inf"))


@triton.jit
def scale_of(highest, temperature):
    one = tl.full(highest.shape, 1.0, tl.float32)
    inverse = tl.div_rn(one, tl.where(temperature == 0, one, temperature))
    return highest, inverse, highest * inverse


@triton.jit
def z_of(scale, x):
    """x / temperature. If the highest overflows: 0 for the highest logit, else -inf."""
    highest, inverse, z_of_highest = scale
    return tl.where(tl.abs(z_of_highest) < float("inf"), x * inverse, tl.where(x == highest, 0.0, float("-inf")))


@triton.jit
def t_of(scale, x):
    """t = z - max(z), with the same rule."""
    highest, inverse, z_of_highest = scale
    shifted = x * inverse - z_of_highest
    return tl.where(tl.abs(z_of_highest) < float("inf"), shifted, tl.where(x == highest, 0.0, float("-inf")))


@triton.jit
def keeps(scale, x, lowest_t, lowest_key):
    """True if x reaches both thresholds; false for NaN."""
    return (x == x) & (order_key(x) >= lowest_key) & (t_of(scale, x) >= lowest_t)


@triton.jit
def append(listed, size, index, is_kept, TILE: tl.constexpr):
    """Append the kept indices if all of them fit. Returns the new count, listed or
    not."""
    is_kept = tl.reshape(is_kept, [TILE])
    new_size = size + tl.sum(is_kept, 0)
    if (new_size > size) & (new_size <= TILE):
        place = size + tl.cumsum(is_kept, 0) - 1
        tl.store(listed + place, tl.reshape(index, [TILE]), mask=is_kept != 0)
    return new_size


@triton.jit
def popcount(bits):
    """The number of ones in each uint32."""
    pairs = bits - ((bits >> 1) & 0x55555555)
    fours = (pairs & 0x33333333) + ((pairs >> 2) & 0x33333333)
    return ((((fours + (fours >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def list_allowed(row, TILE: tl.constexpr):
    """List the tokens that the mask allows. Returns their number, or -1 if more than a
    tile.

    Each thread places the tokens of whole mask words, so many tiles are listed at once.
    """
    _, vocab_begin, vocab_end, listed, mask_bytes, num_mask_bytes, _ = row
    mask_words = mask_bytes.to(tl.pointer_type(tl.uint32), bitcast=True)
    all_tokens = tl.full([WORDS_AT_A_TIME], 0xFFFFFFFF, tl.uint64)
    count = 0
    first_word = begin_of(row, -1, TILE) // 32
    while (first_word * 32 < vocab_end) & (count <= TILE):
        word = first_word + tl.arange(0, WORDS_AT_A_TIME)
        past_end = tl.minimum(tl.maximum(word * 32 + 32 - vocab_end, 0), 32)
        existing = all_tokens >> past_end.to(tl.uint64)
        if vocab_begin is not None:
            before_begin = tl.minimum(tl.maximum(vocab_begin - word * 32, 0), 32)
            existing &= all_tokens << before_begin.to(tl.uint64)
        bits = tl.load(mask_words + word, mask=word < num_mask_bytes // 4, other=0) & existing.to(tl.uint32)
        num_tokens = popcount(bits)
        new_count = count + tl.sum(num_tokens, 0)
        if (new_count > count) & (new_count <= TILE):
            place = count + tl.cumsum(num_tokens, 0) - num_tokens
            while tl.max(num_tokens, 0) > 0:
                below_lowest = ~bits & (bits - 1)
                tl.store(listed + place, word * 32 + popcount(below_lowest), mask=num_tokens > 0)
                bits &= bits - 1
                num_tokens -= 1
                place += 1
        count = new_count
        first_word += WORDS_AT_A_TIME
    tl.debug_barrier()  # threads read what other threads have listed
    return tl.where(count <= TILE, count, -1)


@triton.jit
def list_kept(row, scale, lowest_t, lowest_key, TILE: tl.constexpr):
    """List the kept tokens of the row. Returns their number, or -1 if more than a
    tile."""
    count = 0
    first = begin_of(row, -1, TILE)
    while (first < end_of(row, -1)) & (count <= TILE):
        allowed = allowed_bytes(row, -1, first, TILE)
        if tl.max(allowed, 0) > 0:
            x = logits_of(row, -1, allowed, first, TILE)
            is_kept = keeps(scale, x, lowest_t, lowest_key).to(tl.int32)
            count = append(row[3], count, indices_of(first, TILE), is_kept, TILE)
        first += TILE
    tl.debug_barrier()
    return tl.where(count <= TILE, count, -1)


@triton.jit
def survey(row, list_size, TILE: tl.constexpr):
    """Each lane's highest logit and the first index of it; whether any logit is NaN."""
    highest = tl.full([TILE // 8, 8], float("-inf"), tl.float32)
    index_of_highest = tl.zeros([TILE // 8, 8], tl.int32)
    nans = tl.zeros([TILE // 8, 8], tl.int32)
    for first in range(begin_of(row, list_size, TILE), end_of(row, list_size), TILE):
        allowed = allowed_bytes(row, list_size, first, TILE)
        if tl.max(allowed, 0) > 0:
            x = logits_of(row, list_size, allowed, first, TILE)
            nans |= (x != x).to(tl.int32)
            is_higher = x > highest
            highest = tl.where(is_higher, x, highest)
            index_of_highest = tl.where(is_higher, indices_of(first, TILE), index_of_highest)
    return highest, index_of_highest, tl.max(tl.max(nans, 1), 0) != 0


@triton.jit
def mass_of_kept(row, list_size, scale, lowest_t, lowest_key, TILE: tl.constexpr):
    """The total mass of the kept tokens."""
    total = tl.zeros([TILE // 8], tl.int64)
    for first in range(begin_of(row, list_size, TILE), end_of(row, list_size), TILE):
        allowed = allowed_bytes(row, list_size, first, TILE)
        if tl.max(allowed, 0) > 0:
            x = logits_of(row, list_size, allowed, first, TILE)
            is_kept = keeps(scale, x, lowest_t, lowest_key)
            total += tl.sum(tl.where(is_kept, mass(t_of(scale, x)), 0), 1)
    return tl.sum(total, 0)
