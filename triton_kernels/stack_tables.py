"""stack_advance, stack_rows and stack_draft_rows in Triton.

One program takes LANES texts, which go on byte by byte side by side, one text a thread.
The frames that a token pushes are in scratch memory of the text until the token is
known to be allowed; a thread reads there what it has written itself.
"""

from typing import Any

import torch
import triton
import triton.language as tl

LANES = 32  # of one warp, so that each text stays with its thread

FREE = tl.constexpr(-1)
FINISHED = tl.constexpr(-2)
DEAD = tl.constexpr(-3)
ASKED = tl.constexpr(-4)
FREE_ROW = tl.constexpr(-1)
EMPTY_ROW = tl.constexpr(-2)
MISSED_ROW = tl.constexpr(-3)
TOKEN_FRAMES = tl.constexpr(24)
MAX_PAIRS = tl.constexpr(64)
MAX_CONDITIONS = tl.constexpr(224)
MISS_ACTION = tl.constexpr(5)
LOWEST = tl.constexpr(-(2**31))


@triton.jit
def num_bits(words):
    """The bits that are set in each word."""
    words = words.to(tl.uint32, bitcast=True)
    words = words - ((words >> 1) & 0x55555555)
    words = (words & 0x33333333) + ((words >> 2) & 0x33333333)
    words = (words + (words >> 4)) & 0x0F0F0F0F
    words = words + (words >> 8)
    return ((words + (words >> 16)) & 0x3F).to(tl.int32)


@triton.jit
def bits_of_names(names):
    """The two words with the bit of each name, 0 for what is none."""
    bit = tl.full(names.shape, 1, tl.int32) << (names & 31)
    return tl.where((names >= 0) & (names < 32), bit, 0), tl.where((names >= 32) & (names < 64), bit, 0)


@triton.jit
def guards_hold(guard, names_0, names_1, is_asked, cells, num_cells):
    is_guard = is_asked & (guard >= 0) & (guard <= num_cells - 6)  # guard + 6 might overflow
    at = cells + guard.to(tl.int64)
    required_0 = tl.load(at, mask=is_guard, other=0)
    required_1 = tl.load(at + 1, mask=is_guard, other=0)
    left_0 = tl.load(at + 2, mask=is_guard, other=0) & ~names_0
    left_1 = tl.load(at + 3, mask=is_guard, other=0) & ~names_1
    limit = tl.load(at + 4, mask=is_guard, other=-1)
    flags = tl.load(at + 5, mask=is_guard, other=0)
    num_missing = num_bits(required_0 & ~names_0) + num_bits(required_1 & ~names_1)
    must_be_required = (limit >= 0) & (num_missing >= limit)
    left_0 = tl.where(must_be_required, left_0 & required_0, left_0)
    left_1 = tl.where(must_be_required, left_1 & required_1, left_1)
    is_left = ((flags & 2) != 0) & ~must_be_required | ((left_0 | left_1) != 0)
    return is_guard & tl.where((flags & 1) != 0, num_missing == 0, is_left)


@triton.jit
def keep_names(states, is_asked, state_fields, num_states):
    """Whether the states keep names."""
    is_state = is_asked & (states >= 0) & (states < num_states)
    flags = tl.load(state_fields + states.to(tl.int64) * 5 + 4, mask=is_state, other=0)
    return (flags & 2) != 0


@triton.jit
def actions_of(top, byte, is_walking, state_fields, class_maps, cells, num_class_maps, num_cells):
    at = state_fields + top.to(tl.int64) * 5
    class_map = tl.load(at, mask=is_walking, other=-1).to(tl.int64)
    is_known = is_walking & (class_map >= 0) & (class_map < num_class_maps)
    byte_class = tl.load(class_maps + class_map * 256 + byte, mask=is_known, other=0)
    cell = tl.load(at + 1, mask=is_known, other=-1).to(tl.int64) + byte_class
    is_known = is_known & (cell >= 0) & (cell < num_cells)
    return tl.load(cells + cell, mask=is_known, other=MISS_ACTION)


@triton.jit
def paired(states, verdicts_or_tokens, is_asked, state_fields, cells, num_states, num_cells):
    """The states that follow those that wait, or read tokens by their ids; -1 refused,
    -2 asked, -3 none is known."""
    is_known = is_asked & (states >= 0) & (states < num_states)
    cell = tl.load(state_fields + states.to(tl.int64) * 5 + 2, mask=is_known, other=-1).to(tl.int64)
    after = tl.where(is_known, -3, -1)
    is_searching = is_known
    step = 0
    while (step < MAX_PAIRS) & (tl.max(is_searching.to(tl.int32)) > 0):
        is_searching = is_searching & (cell >= 0) & (cell + 2 <= num_cells)
        of_pair = tl.load(cells + cell, mask=is_searching, other=-1)
        is_searching = is_searching & (of_pair >= 0)
        is_found = is_searching & (of_pair == verdicts_or_tokens)
        state = tl.load(cells + cell + 1, mask=is_found, other=-1)
        state = tl.where((state == -2) | ((state >= 0) & (state < num_states)), state, -1)
        after = tl.where(is_found, state, after)
        is_searching = is_searching & ~is_found
        cell += 2
        step += 1
    return after


@triton.jit
def advanced(
    stack,
    column_stride,
    is_row,
    token,
    pushed,
    state_fields,
    class_maps,
    cells,
    stop_tokens,
    token_bytes,
    token_begin,
    max_depth,
    num_states,
    num_class_maps,
    num_cells,
    num_languages,
    max_stop_tokens,
    num_bytes,
    vocab_size,
):
    """Advance the stacks at the pointers by a token each. Return which have missed."""
    first_top = tl.load(stack, mask=is_row, other=-1)
    depth = tl.load(stack + column_stride, mask=is_row, other=0)
    is_closed = is_row & (((first_top < 0) & (first_top > DEAD)) | (first_top == ASKED))
    is_known = is_row & (first_top >= 0) & (first_top < num_states) & (depth >= 0) & (depth <= max_depth)
    is_known = is_known & (token >= 0) & (token < vocab_size)
    flags = tl.load(state_fields + first_top.to(tl.int64) * 5 + 4, mask=is_known, other=-1)
    language = (flags >> 8).to(tl.int64)
    has_stops = is_known & (language >= 0) & (language < num_languages)
    is_stop = tl.zeros(token.shape, tl.int1)
    for i in range(max_stop_tokens):
        stop = tl.load(stop_tokens + language * max_stop_tokens + i, mask=has_stops, other=-1)
        is_stop = is_stop | (has_stops & (stop == token))

    may_read_id = is_known & ~is_stop & ((flags & 8) != 0)
    class_map = tl.load(state_fields + first_top.to(tl.int64) * 5, mask=may_read_id, other=0)
    is_unlisted = may_read_id & (class_map < 0)
    may_read_id = may_read_id & ~is_unlisted
    after_id = paired(first_top, token, may_read_id, state_fields, cells, num_states, num_cells)
    is_read_by_id = may_read_id & (after_id != -3)

    is_spelled = is_known & ~is_stop & ~is_unlisted & ~is_read_by_id
    byte = tl.load(token_begin + token, mask=is_spelled, other=0).to(tl.int64)
    end = tl.load(token_begin + token + 1, mask=is_spelled, other=0).to(tl.int64)
    is_text = is_spelled & (byte >= 0) & (end <= num_bytes) & (byte < end)
    is_walking = is_text
    is_missed = is_unlisted | (is_read_by_id & (after_id == -2))
    top = tl.where(is_read_by_id, after_id, first_top)
    names_0 = tl.load(stack + 2 * column_stride, mask=is_text, other=0)
    names_1 = tl.load(stack + 3 * column_stride, mask=is_text, other=0)
    num_kept = depth
    num_pushed = tl.zeros(token.shape, tl.int32)
    while tl.max(is_walking.to(tl.int32)) > 0:
        value = tl.load(token_bytes + byte, mask=is_walking, other=0).to(tl.int64)
        action = actions_of(top, value, is_walking, state_fields, class_maps, cells, num_class_maps, num_cells)
        action = tl.where(is_walking, action, 0)

        is_guarded = is_walking & ((action & 7) == 6)
        guarded = action >> 3
        has_guard = is_guarded & (guarded >= 0) & (guarded + 3 <= num_cells)
        at = cells + guarded.to(tl.int64)
        guard = tl.load(at, mask=has_guard, other=-1)
        inner = tl.load(at + 1, mask=has_guard, other=MISS_ACTION)
        name = tl.load(at + 2, mask=has_guard, other=-1)
        holds = guards_hold(guard, names_0, names_1, has_guard, cells, num_cells)
        inner = tl.where(has_guard & ~holds, 0, inner)  # fails
        action = tl.where(is_guarded, inner, action)
        kind = action & 7
        operand = action >> 3

        is_replacing = is_walking & (kind == 1)
        new_0, new_1 = bits_of_names(name)
        names_0 = tl.where(is_replacing, names_0 | new_0, names_0)
        names_1 = tl.where(is_replacing, names_1 | new_1, names_1)

        is_pushing = is_walking & (kind == 2)
        has_room = (num_pushed < TOKEN_FRAMES) & (num_kept + num_pushed < max_depth)
        can_push = is_pushing & has_room & (operand >= 0) & (operand + 2 <= num_cells)
        new_top = tl.load(cells + operand.to(tl.int64), mask=can_push, other=-1)
        below = tl.load(cells + operand.to(tl.int64) + 1, mask=can_push, other=-1)
        are_kept = keep_names(below, can_push, state_fields, num_states)
        slot = pushed + num_pushed * 3
        tl.store(slot, below, mask=can_push)
        tl.store(slot + 1, tl.where(are_kept, names_0, 0), mask=can_push)
        tl.store(slot + 2, tl.where(are_kept, names_1, 0), mask=can_push)
        names_0 = tl.where(can_push, 0, names_0)
        names_1 = tl.where(can_push, 0, names_1)

        is_popping = is_walking & ((kind == 3) | (kind == 4))
        can_pop = is_popping & (num_kept + num_pushed > 0)
        is_from_token = can_pop & (num_pushed > 0)
        is_from_row = can_pop & (num_pushed == 0)
        num_pushed = tl.where(is_from_token, num_pushed - 1, tl.where(can_push, num_pushed + 1, num_pushed))
        num_kept = tl.where(is_from_row, num_kept - 1, num_kept)
        slot = pushed + num_pushed * 3
        frame = stack + (4 + 3 * num_kept).to(tl.int64) * column_stride
        waiting = tl.load(slot, mask=is_from_token, other=-1)
        waiting = tl.where(is_from_row, tl.load(frame, mask=is_from_row, other=-1), waiting)
        old_0 = tl.load(slot + 1, mask=is_from_token, other=0)
        old_0 = tl.where(is_from_row, tl.load(frame + column_stride, mask=is_from_row, other=0), old_0)
        old_1 = tl.load(slot + 2, mask=is_from_token, other=0)
        old_1 = tl.where(is_from_row, tl.load(frame + 2 * column_stride, mask=is_from_row, other=0), old_1)
        after_pop = paired(waiting, operand, can_pop, state_fields, cells, num_states, num_cells)
        names_0 = tl.where(can_pop, old_0, names_0)
        names_1 = tl.where(can_pop, old_1, names_1)

        next_top = tl.where(is_replacing, operand, tl.where(can_push, new_top, tl.where(can_pop, after_pop, -1)))
        misses = (is_pushing & ~can_push) | (can_pop & (after_pop < -1)) | (is_walking & (kind > 4))
        is_missed = is_missed | misses
        is_allowed = is_walking & ~misses & (next_top >= 0) & (next_top < num_states)
        top = tl.where(is_walking, tl.where(is_allowed, next_top, -1), top)
        has_names = is_allowed & ((names_0 | names_1) != 0)
        are_lost = has_names & ~keep_names(top, has_names, state_fields, num_states)
        names_0 = tl.where(are_lost, 0, names_0)
        names_1 = tl.where(are_lost, 0, names_1)
        byte = tl.where(is_allowed & (kind != 4), byte + 1, byte)
        is_walking = is_allowed & (byte < end)

    is_in = (is_text | is_read_by_id) & (top >= 0)
    last_flags = tl.load(state_fields + top.to(tl.int64) * 5 + 4, mask=is_in, other=0)
    is_in = is_in & ((last_flags & 4) != 0)
    most = tl.max(tl.where(is_in, num_pushed, 0))
    for i in range(0, most):
        is_written = is_in & (i < num_pushed)
        slot = pushed + i * 3
        frame = stack + (4 + 3 * (num_kept + i)).to(tl.int64) * column_stride
        tl.store(frame, tl.load(slot, mask=is_written, other=0), mask=is_written)
        tl.store(frame + column_stride, tl.load(slot + 1, mask=is_written, other=0), mask=is_written)
        tl.store(frame + 2 * column_stride, tl.load(slot + 2, mask=is_written, other=0), mask=is_written)
    tl.store(stack + column_stride, num_kept + num_pushed, mask=is_in)
    tl.store(stack + 2 * column_stride, names_0, mask=is_in)
    tl.store(stack + 3 * column_stride, names_1, mask=is_in)
    accepts = is_stop & (depth <= 1) & ((flags & 1) != 0)
    last_top = tl.where(is_in, top, tl.where(accepts, FINISHED, DEAD))
    tl.store(stack, last_top, mask=is_row & ~is_closed & ~is_missed)
    return is_missed | (is_row & (first_top == ASKED))


@triton.jit
def mixed(value, part):
    value = (value ^ part.to(tl.uint32, bitcast=True)) * 0x85EBCA6B
    return value ^ (value >> 15)


@triton.jit
def found(k0, k1, k2, k3, k4, k5, k6, k7, is_asked, keys, num_keys):
    """The slots of keys, -1 for those that are not in the table."""
    hashed = tl.full(k0.shape, 0x9E3779B1, tl.uint32)
    hashed = mixed(mixed(mixed(mixed(hashed, k0), k1), k2), k3)
    hashed = mixed(mixed(mixed(mixed(hashed, k4), k5), k6), k7)
    at = hashed.to(tl.int64) & (num_keys - 1)
    slot = tl.full(k0.shape, -1, tl.int32)
    is_searching = is_asked
    step = tl.zeros([1], tl.int64)
    while (tl.max(step) < num_keys) & (tl.max(is_searching.to(tl.int32)) > 0):
        entry = keys + at * 9
        value = tl.load(entry + 8, mask=is_searching, other=-1)
        is_searching = is_searching & (value != -1)
        is_equal = is_searching & (tl.load(entry, mask=is_searching, other=0) == k0)
        is_equal = is_equal & (tl.load(entry + 1, mask=is_equal, other=0) == k1)
        is_equal = is_equal & (tl.load(entry + 2, mask=is_equal, other=0) == k2)
        is_equal = is_equal & (tl.load(entry + 3, mask=is_equal, other=0) == k3)
        is_equal = is_equal & (tl.load(entry + 4, mask=is_equal, other=0) == k4)
        is_equal = is_equal & (tl.load(entry + 5, mask=is_equal, other=0) == k5)
        is_equal = is_equal & (tl.load(entry + 6, mask=is_equal, other=0) == k6)
        is_equal = is_equal & (tl.load(entry + 7, mask=is_equal, other=0) == k7)
        slot = tl.where(is_equal, value, slot)
        is_searching = is_searching & ~is_equal
        at = (at + 1) & (num_keys - 1)
        step += 1
    return slot


@triton.jit
def key_part(stack, column_stride, depth, num_frames, is_asked, i: tl.constexpr):
    """The state that is ``i`` below the top; -2 below the bottom, -1 where no key
    needs it."""
    is_frame = is_asked & (i < num_frames) & (depth >= i)
    frame = stack + (4 + 3 * (depth - i)).to(tl.int64) * column_stride
    state = tl.load(frame, mask=is_frame, other=-1)
    is_bottom = is_asked & (i < num_frames) & (depth + 1 == i)
    return tl.where(is_bottom, -2, tl.where(is_frame, state, -1))


@triton.jit
def with_bit(word, is_set, bit, i: tl.constexpr):
    """The ``i``-th word of seven, with a bit of all."""
    one = tl.full(word.shape, 1, tl.int32) << (bit & 31)
    return tl.where(is_set & ((bit >> 5) == i), word | one, word)


@triton.jit
def rows_of(stack, column_stride, is_row, state_fields, cells, keys, max_depth, num_states, num_cells, num_keys):
    """The slots of the masks of the stacks at the pointers."""
    top = tl.load(stack, mask=is_row, other=-1)
    depth = tl.load(stack + column_stride, mask=is_row, other=0)
    is_known = is_row & (top >= 0) & (top < num_states) & (depth >= 0) & (depth <= max_depth)
    state = tl.load(state_fields + top.to(tl.int64) * 5 + 3, mask=is_known, other=-1)
    is_asked = is_known & (state >= 0) & (state < num_states)
    flags = tl.load(state_fields + state.to(tl.int64) * 5 + 4, mask=is_asked, other=0)
    num_frames = (flags >> 4) & 15
    is_asked = is_asked & (num_frames > 0) & (num_frames <= 8)
    k1 = key_part(stack, column_stride, depth, num_frames, is_asked, 1)
    k2 = key_part(stack, column_stride, depth, num_frames, is_asked, 2)
    k3 = key_part(stack, column_stride, depth, num_frames, is_asked, 3)
    k4 = key_part(stack, column_stride, depth, num_frames, is_asked, 4)
    k5 = key_part(stack, column_stride, depth, num_frames, is_asked, 5)
    k6 = key_part(stack, column_stride, depth, num_frames, is_asked, 6)
    k7 = key_part(stack, column_stride, depth, num_frames, is_asked, 7)
    slot = found(state, k1, k2, k3, k4, k5, k6, k7, is_asked, keys, num_keys)

    is_conditional = is_asked & (slot <= -2) & (slot > LOWEST)
    if tl.max(is_conditional.to(tl.int32)) > 0:
        w0 = tl.zeros(slot.shape, tl.int32)
        w1 = w0
        w2 = w0
        w3 = w0
        w4 = w0
        w5 = w0
        w6 = w0
        cell = tl.where(is_conditional, -2 - slot, 0).to(tl.int64)
        is_listing = is_conditional
        bit = tl.zeros(slot.shape, tl.int32)
        while (tl.max(bit) < MAX_CONDITIONS) & (tl.max(is_listing.to(tl.int32)) > 0):
            is_listing = is_listing & (cell >= 0) & (cell + 3 <= num_cells)
            before = tl.load(cells + cell, mask=is_listing, other=-2)
            frame = tl.load(cells + cell + 1, mask=is_listing, other=0)
            guard = tl.load(cells + cell + 2, mask=is_listing, other=0)
            is_listing = is_listing & (before != -2)
            is_raw = is_listing & (guard == -1)
            is_listing = is_listing & ~(is_raw & (2 * bit + 2 > 7))
            is_raw = is_raw & is_listing
            has_names = is_listing & (frame >= 0) & (frame <= depth)
            names = stack + tl.where(frame == 0, 2, 5 + 3 * (depth - frame)).to(tl.int64) * column_stride
            names_0 = tl.load(names, mask=has_names, other=0)
            names_1 = tl.load(names + column_stride, mask=has_names, other=0)
            w0 = tl.where(is_raw & (bit == 0), names_0, w0)
            w1 = tl.where(is_raw & (bit == 0), names_1, w1)
            w2 = tl.where(is_raw & (bit == 1), names_0, w2)
            w3 = tl.where(is_raw & (bit == 1), names_1, w3)
            w4 = tl.where(is_raw & (bit == 2), names_0, w4)
            w5 = tl.where(is_raw & (bit == 2), names_1, w5)
            part = before >> 5
            word = tl.where(part == 0, w0, tl.where(part == 1, w1, tl.where(part == 2, w2, w3)))
            word = tl.where(part == 4, w4, tl.where(part == 5, w5, tl.where(part == 6, w6, word)))
            is_open = (before < 0) | (before >= bit) | (((word >> (before & 31)) & 1) != 0)
            is_open = is_listing & ~is_raw & is_open
            is_set = is_open & guards_hold(guard, names_0, names_1, is_open, cells, num_cells)
            w0 = with_bit(w0, is_set, bit, 0)
            w1 = with_bit(w1, is_set, bit, 1)
            w2 = with_bit(w2, is_set, bit, 2)
            w3 = with_bit(w3, is_set, bit, 3)
            w4 = with_bit(w4, is_set, bit, 4)
            w5 = with_bit(w5, is_set, bit, 5)
            w6 = with_bit(w6, is_set, bit, 6)
            cell += 3
            bit += 1
        other = found(slot, w0, w1, w2, w3, w4, w5, w6, is_conditional, keys, num_keys)
        slot = tl.where(is_conditional, other, slot)

    row = tl.where(is_asked & (slot >= 0), slot, MISSED_ROW)
    row = tl.where(is_known, row, EMPTY_ROW)
    row = tl.where((top < 0) & (top > DEAD), FREE_ROW, row)
    return tl.where(top == ASKED, MISSED_ROW, row)


@triton.jit(do_not_specialize=["num_rows"])
def stack_advance_kernel(
    stacks,
    tokens,
    results,
    scratch,
    state_fields,
    class_maps,
    cells,
    stop_tokens,
    token_bytes,
    token_begin,
    num_rows,
    row_stride,
    column_stride,
    tokens_stride,
    max_depth,
    num_states,
    num_class_maps,
    num_cells,
    num_languages,
    max_stop_tokens,
    num_bytes,
    vocab_size,
    LANES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    is_row = row < num_rows
    token = tl.load(tokens + row * tokens_stride, mask=is_row, other=-1).to(tl.int64)
    is_missed = advanced(
        stacks + row * row_stride,
        column_stride,
        is_row,
        token,
        scratch + row * (TOKEN_FRAMES * 3),
        state_fields,
        class_maps,
        cells,
        stop_tokens,
        token_bytes,
        token_begin,
        max_depth,
        num_states,
        num_class_maps,
        num_cells,
        num_languages,
        max_stop_tokens,
        num_bytes,
        vocab_size,
    )
    tl.store(results + row, is_missed.to(tl.int32), mask=is_row)


@triton.jit(do_not_specialize=["num_rows"])
def stack_rows_kernel(
    stacks,
    rows,
    state_fields,
    cells,
    keys,
    num_rows,
    row_stride,
    column_stride,
    max_depth,
    num_states,
    num_cells,
    num_keys,
    LANES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    is_row = row < num_rows
    slot = rows_of(
        stacks + row * row_stride,
        column_stride,
        is_row,
        state_fields,
        cells,
        keys,
        max_depth,
        num_states,
        num_cells,
        num_keys,
    )
    tl.store(rows + row, slot, mask=is_row)


@triton.jit(do_not_specialize=["num_requests", "num_rows"])
def stack_draft_rows_kernel(
    stacks,
    drafts,
    row_indptr,
    rows,
    copies,
    scratch,
    state_fields,
    class_maps,
    cells,
    keys,
    stop_tokens,
    token_bytes,
    token_begin,
    num_requests,
    num_rows,
    row_stride,
    column_stride,
    drafts_stride,
    indptr_stride,
    max_depth,
    num_states,
    num_class_maps,
    num_cells,
    num_keys,
    num_languages,
    max_stop_tokens,
    num_bytes,
    vocab_size,
    LANES: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    is_request = request < num_requests
    is_entry = request <= num_requests
    row = tl.load(row_indptr + request * indptr_stride, mask=is_entry, other=0).to(tl.int64)
    row = tl.minimum(tl.maximum(row, 0), num_rows)
    end = tl.load(row_indptr + (request + 1) * indptr_stride, mask=is_request, other=0).to(tl.int64)
    end = tl.minimum(tl.maximum(end, 0), num_rows)

    # The rows of no request: before the first, and after the last.
    first = tl.minimum(tl.maximum(tl.load(row_indptr).to(tl.int64), 0), num_rows)
    place = tl.zeros(row.shape, tl.int64)
    is_free = (request == 0) & (place < first)
    while tl.max(is_free.to(tl.int32)) > 0:
        tl.store(rows + place, FREE_ROW, mask=is_free)
        place += 1
        is_free = is_free & (place < first)
    place = row
    is_free = (request == num_requests) & (place < num_rows)
    while tl.max(is_free.to(tl.int32)) > 0:
        tl.store(rows + place, FREE_ROW, mask=is_free)
        place += 1
        is_free = is_free & (place < num_rows)

    num_columns = 4 + 3 * max_depth
    given = stacks + request * row_stride
    stack = copies + request * num_columns
    depth = tl.load(given + column_stride, mask=is_request, other=0)
    num_used = 4 + 3 * tl.minimum(tl.maximum(depth, 0), max_depth)
    for i in range(0, tl.max(tl.where(is_request, num_used, 0))):
        is_copied = is_request & (i < num_used)
        tl.store(stack + i, tl.load(given + i * column_stride, mask=is_copied, other=0), mask=is_copied)

    slot = rows_of(stack, 1, is_request, state_fields, cells, keys, max_depth, num_states, num_cells, num_keys)
    is_open = is_request
    is_going = is_request & (row < end)
    while tl.max(is_going.to(tl.int32)) > 0:
        tl.store(rows + row, slot, mask=is_going)
        top = tl.load(stack, mask=is_going, other=-1)
        is_open = is_open & is_going & (top >= 0) & (row + 1 < end)
        draft = tl.load(drafts + row * drafts_stride, mask=is_open, other=-1).to(tl.int64)
        is_none = is_open & (draft == -1)
        tl.store(stack, FREE, mask=is_none)
        slot = tl.where(is_none, FREE_ROW, slot)
        is_drafted = is_open & (draft != -1)
        is_missed = advanced(
            stack,
            1,
            is_drafted,
            draft,
            scratch + request * (TOKEN_FRAMES * 3),
            state_fields,
            class_maps,
            cells,
            stop_tokens,
            token_bytes,
            token_begin,
            max_depth,
            num_states,
            num_class_maps,
            num_cells,
            num_languages,
            max_stop_tokens,
            num_bytes,
            vocab_size,
        )
        slot = tl.where(is_missed, MISSED_ROW, slot)
        after = tl.load(stack, mask=is_drafted, other=DEAD)
        is_moved = is_drafted & ~is_missed & (after != DEAD)
        moved = rows_of(stack, 1, is_moved, state_fields, cells, keys, max_depth, num_states, num_cells, num_keys)
        slot = tl.where(is_moved, moved, slot)
        is_open = is_moved & (after >= 0)
        row += 1
        is_going = is_going & (row < end)


def _max_depth(stacks: torch.Tensor) -> int:
    return (stacks.shape[1] - 4) // 3


def _new_frames(stacks: torch.Tensor) -> torch.Tensor:
    """Memory for the frames that a token pushes."""
    return stacks.new_empty(len(stacks), TOKEN_FRAMES.value * 3)


def stack_advance(
    stacks: torch.Tensor,
    tokens: torch.Tensor,
    state_fields: torch.Tensor,
    class_maps: torch.Tensor,
    cells: torch.Tensor,
    keys: torch.Tensor,
    stop_tokens: torch.Tensor,
    token_bytes: torch.Tensor,
    token_begin: torch.Tensor,
) -> torch.Tensor:
    """``torch.ops.structout.stack_advance`` in Triton."""
    tables = (state_fields, class_maps, cells, keys, stop_tokens, token_bytes, token_begin)
    torch.ops.structout._check_stack_advance(stacks, tokens, *tables)
    num_rows = len(stacks)
    results = stacks.new_empty(num_rows)
    if num_rows == 0:
        return results
    kernel: Any = stack_advance_kernel[(triton.cdiv(num_rows, LANES),)]
    with torch.cuda.device_of(stacks):
        kernel(
            *(stacks, tokens, results, _new_frames(stacks)),
            *(state_fields, class_maps, cells, stop_tokens, token_bytes, token_begin),
            *(num_rows, stacks.stride(0), stacks.stride(1), tokens.stride(0), _max_depth(stacks)),
            *(len(state_fields), len(class_maps), len(cells), *stop_tokens.shape),
            *(len(token_bytes), len(token_begin) - 1),
            LANES=LANES,
            num_warps=1,
        )
    return results


def stack_rows(
    stacks: torch.Tensor,
    state_fields: torch.Tensor,
    class_maps: torch.Tensor,
    cells: torch.Tensor,
    keys: torch.Tensor,
    stop_tokens: torch.Tensor,
    token_bytes: torch.Tensor,
    token_begin: torch.Tensor,
) -> torch.Tensor:
    """``torch.ops.structout.stack_rows`` in Triton."""
    tables = (state_fields, class_maps, cells, keys, stop_tokens, token_bytes, token_begin)
    torch.ops.structout._check_stack_rows(stacks, *tables)
    num_rows = len(stacks)
    rows = stacks.new_empty(num_rows)
    if num_rows == 0:
        return rows
    kernel: Any = stack_rows_kernel[(triton.cdiv(num_rows, LANES),)]
    with torch.cuda.device_of(stacks):
        kernel(
            *(stacks, rows, state_fields, cells, keys, num_rows, stacks.stride(0), stacks.stride(1)),
            *(_max_depth(stacks), len(state_fields), len(cells), len(keys)),
            LANES=LANES,
            num_warps=1,
        )
    return rows


def stack_draft_rows(
    stacks: torch.Tensor,
    drafts: torch.Tensor,
    row_indptr: torch.Tensor,
    state_fields: torch.Tensor,
    class_maps: torch.Tensor,
    cells: torch.Tensor,
    keys: torch.Tensor,
    stop_tokens: torch.Tensor,
    token_bytes: torch.Tensor,
    token_begin: torch.Tensor,
) -> torch.Tensor:
    """``torch.ops.structout.stack_draft_rows`` in Triton."""
    tables = (state_fields, class_maps, cells, keys, stop_tokens, token_bytes, token_begin)
    torch.ops.structout._check_stack_draft_rows(stacks, drafts, row_indptr, *tables)
    rows = stacks.new_empty(len(drafts))
    if len(drafts) == 0:
        return rows
    num_requests = len(stacks)
    kernel: Any = stack_draft_rows_kernel[(triton.cdiv(num_requests + 1, LANES),)]
    with torch.cuda.device_of(stacks):
        kernel(
            *(stacks, drafts, row_indptr, rows, stacks.new_empty(stacks.shape), _new_frames(stacks), *tables),
            *(num_requests, len(drafts), stacks.stride(0), stacks.stride(1), drafts.stride(0), row_indptr.stride(0)),
            *(_max_depth(stacks), len(state_fields), len(class_maps), len(cells), len(keys), *stop_tokens.shape),
            *(len(token_bytes), len(token_begin) - 1),
            LANES=LANES,
            num_warps=1,
        )
    return rows
