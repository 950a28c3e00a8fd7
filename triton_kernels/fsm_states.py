"""fsm_advance, fsm_rows and fsm_draft_states in Triton.

fsm_advance takes one program per LANES states, which follow their tokens byte by byte
side by side. fsm_rows takes one program per row and part of its words: TILE_WORDS words
of a mask at a time, 32 tokens each. fsm_draft_states takes one program per request.
"""

from typing import Any

import torch
import triton
import triton.language as tl

LANES = 64
TILE_WORDS = 16
NUM_PROGRAMS = 2048  # of fsm_rows: all of them look up a state, few have a mask to compute

FREE = tl.constexpr(-1)
FINISHED = tl.constexpr(-2)
DEAD = tl.constexpr(-3)


@triton.jit
def known_states(states, num_states):
    return tl.where((states >= DEAD) & (states < num_states), states, DEAD)


@triton.jit
def after_texts(states, tokens, is_token, transitions, state_flags, token_bytes, token_begin, num_states, num_bytes):
    """The states after the bytes of tokens, DEAD if they are not allowed. Elementwise
    over any shape; ``states`` must be in the tables where ``is_token``."""
    byte = tl.load(token_begin + tokens, mask=is_token, other=0).to(tl.int64)
    end = tl.load(token_begin + tokens + 1, mask=is_token, other=0).to(tl.int64)
    is_walking = is_token & (byte >= 0) & (end <= num_bytes) & (byte < end)
    has_walked = is_walking
    while tl.max(is_walking.to(tl.int32)) > 0:
        value = tl.load(token_bytes + byte, mask=is_walking, other=0).to(tl.int64)
        after = tl.load(transitions + states.to(tl.int64) * 256 + value, mask=is_walking, other=0)
        is_known = (after >= 0) & (after < num_states)
        states = tl.where(is_walking, after, states)
        has_walked = has_walked & (is_known | ~is_walking)
        byte += 1
        is_walking = is_walking & is_known & (byte < end)
    flags = tl.load(state_flags + states, mask=has_walked, other=0)
    return tl.where(has_walked & ((flags & 2) != 0), states, DEAD)


@triton.jit
def advanced(
    states,
    tokens,
    transitions,
    state_flags,
    stop_tokens,
    token_bytes,
    token_begin,
    num_states,
    num_grammars,
    max_stop_tokens,
    num_bytes,
    vocab_size,
):
    """The states, which must be known, after a token each."""
    is_inside = states >= 0
    is_token = is_inside & (tokens >= 0) & (tokens < vocab_size)
    flags = tl.load(state_flags + states, mask=is_token, other=0)
    grammar = flags >> 2
    has_stops = is_token & (grammar >= 0) & (grammar < num_grammars)
    is_stop = tl.zeros(tokens.shape, tl.int1)
    for i in range(max_stop_tokens):
        stop = tl.load(stop_tokens + grammar.to(tl.int64) * max_stop_tokens + i, mask=has_stops, other=-1)
        is_stop = is_stop | (has_stops & (stop == tokens))
    after = after_texts(
        states,
        tokens,
        is_token & ~is_stop,
        transitions,
        state_flags,
        token_bytes,
        token_begin,
        num_states,
        num_bytes,
    )
    after = tl.where(is_stop, tl.where((flags & 1) != 0, FINISHED, DEAD), after)
    return tl.where(is_inside, after, states)


@triton.jit(do_not_specialize=["num_rows"])
def fsm_advance_kernel(
    states,
    tokens,
    transitions,
    state_flags,
    stop_tokens,
    token_bytes,
    token_begin,
    num_rows,
    states_stride,
    tokens_stride,
    num_states,
    num_grammars,
    max_stop_tokens,
    num_bytes,
    vocab_size,
    LANES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    is_row = row < num_rows
    state = known_states(tl.load(states + row * states_stride, mask=is_row, other=-1), num_states)
    token = tl.load(tokens + row * tokens_stride, mask=is_row, other=-1).to(tl.int64)
    state = advanced(
        state,
        token,
        transitions,
        state_flags,
        stop_tokens,
        token_bytes,
        token_begin,
        num_states,
        num_grammars,
        max_stop_tokens,
        num_bytes,
        vocab_size,
    )
    tl.store(states + row * states_stride, state, mask=is_row)


@triton.jit(do_not_specialize=["num_slots"])
def fsm_rows_kernel(
    states,
    rows,
    masks,
    num_computed,
    mask_slots,
    transitions,
    state_flags,
    stop_tokens,
    token_bytes,
    token_begin,
    num_slots,
    states_stride,
    masks_stride,
    words_per_row,
    num_states,
    num_grammars,
    max_stop_tokens,
    num_bytes,
    vocab_size,
    TILE_WORDS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    state = known_states(tl.load(states + row * states_stride), num_states)
    mask_row = tl.where(state == DEAD, -2, -1)
    if state >= 0:
        slot = tl.load(mask_slots + state)
        mask_row = tl.where((slot >= 0) & (slot < num_slots), slot, (num_slots + row).to(tl.int32))
    if tl.program_id(1) == 0:
        tl.store(rows + row, mask_row)
        if mask_row >= num_slots:
            tl.atomic_add(num_computed, 1)
    if mask_row >= num_slots:
        flags = tl.load(state_flags + state)
        grammar = flags >> 2
        has_stops = (grammar >= 0) & (grammar < num_grammars)
        for first in range(tl.program_id(1) * TILE_WORDS, words_per_row, tl.num_programs(1) * TILE_WORDS):
            word = first + tl.arange(0, TILE_WORDS)
            token = word[:, None] * 32 + tl.arange(0, 32)[None, :]
            after = after_texts(
                tl.full([TILE_WORDS, 32], 0, tl.int32) + state,
                token,
                token < vocab_size,
                transitions,
                state_flags,
                token_bytes,
                token_begin,
                num_states,
                num_bytes,
            )
            is_allowed = after >= 0
            for i in range(max_stop_tokens):
                stop = tl.load(stop_tokens + grammar.to(tl.int64) * max_stop_tokens + i, mask=has_stops, other=-1)
                is_allowed = tl.where((token == stop) & (token < vocab_size), (flags & 1) != 0, is_allowed)
            # The bits are disjoint, so their sum is their union.
            bits = tl.sum(is_allowed.to(tl.int32) << tl.arange(0, 32)[None, :], 1)
            tl.store(masks + mask_row.to(tl.int64) * masks_stride + word, bits, mask=word < words_per_row)


@triton.jit(do_not_specialize=["num_requests", "num_rows"])
def fsm_draft_states_kernel(
    states,
    drafts,
    row_indptr,
    row_states,
    transitions,
    state_flags,
    stop_tokens,
    token_bytes,
    token_begin,
    num_requests,
    num_rows,
    states_stride,
    drafts_stride,
    indptr_stride,
    num_states,
    num_grammars,
    max_stop_tokens,
    num_bytes,
    vocab_size,
):
    request = tl.program_id(0)
    lane = tl.arange(0, 1)
    begin = tl.load(row_indptr + request * indptr_stride).to(tl.int64)
    begin = tl.minimum(tl.maximum(begin, 0), num_rows)
    if request == num_requests:  # the rows of no request
        first = tl.minimum(tl.maximum(tl.load(row_indptr).to(tl.int64), 0), num_rows)
        for row in range(0, first):
            tl.store(row_states + row, FREE)
        for row in range(begin, num_rows):
            tl.store(row_states + row, FREE)
    else:
        end = tl.load(row_indptr + (request + 1) * indptr_stride).to(tl.int64)
        end = tl.minimum(tl.maximum(end, 0), num_rows)
        state = known_states(tl.load(states + request * states_stride + lane), num_states)
        is_legal = state >= 0
        for row in range(begin, end):
            tl.store(row_states + row + lane, state)
            draft = tl.load(drafts + row * drafts_stride + lane, mask=is_legal & (row + 1 + lane < end), other=-1).to(
                tl.int64
            )
            after = advanced(
                state,
                draft,
                transitions,
                state_flags,
                stop_tokens,
                token_bytes,
                token_begin,
                num_states,
                num_grammars,
                max_stop_tokens,
                num_bytes,
                vocab_size,
            )
            after = tl.where(draft == -1, FREE, after)
            is_legal = is_legal & (after != DEAD)
            state = tl.where(is_legal, after, state)
            is_legal = is_legal & (state >= 0)


def _sizes(
    transitions: torch.Tensor, stop_tokens: torch.Tensor, token_bytes: torch.Tensor, token_begin: torch.Tensor
) -> tuple[int, ...]:
    """num_states, num_grammars, max_stop_tokens, num_bytes and vocab_size."""
    return len(transitions), *stop_tokens.shape, len(token_bytes), len(token_begin) - 1


def fsm_advance(
    states: torch.Tensor,
    tokens: torch.Tensor,
    transitions: torch.Tensor,
    state_flags: torch.Tensor,
    stop_tokens: torch.Tensor,
    token_bytes: torch.Tensor,
    token_begin: torch.Tensor,
) -> None:
    """``torch.ops.structout.fsm_advance`` in Triton."""
    tables = (transitions, state_flags, stop_tokens, token_bytes, token_begin)
    torch.ops.structout._check_fsm_advance(states, tokens, *tables)
    num_rows = len(states)
    if num_rows == 0:
        return
    kernel: Any = fsm_advance_kernel[(triton.cdiv(num_rows, LANES),)]
    with torch.cuda.device_of(states):
        kernel(
            *(states, tokens, *tables, num_rows, states.stride(0), tokens.stride(0)),
            *_sizes(transitions, stop_tokens, token_bytes, token_begin),
            LANES=LANES,
        )


def fsm_rows(
    states: torch.Tensor,
    masks: torch.Tensor,
    num_computed: torch.Tensor,
    mask_slots: torch.Tensor,
    transitions: torch.Tensor,
    state_flags: torch.Tensor,
    stop_tokens: torch.Tensor,
    token_bytes: torch.Tensor,
    token_begin: torch.Tensor,
    num_slots: int,
) -> torch.Tensor:
    """``torch.ops.structout.fsm_rows`` in Triton."""
    tables = (transitions, state_flags, stop_tokens, token_bytes, token_begin)
    torch.ops.structout._check_fsm_rows(states, masks, num_computed, mask_slots, *tables, num_slots)
    num_rows, words_per_row = len(states), masks.shape[1]
    rows = states.new_empty(num_rows)
    if num_rows == 0:
        return rows
    num_parts = max(1, min(triton.cdiv(words_per_row, TILE_WORDS), NUM_PROGRAMS // num_rows))
    kernel: Any = fsm_rows_kernel[(num_rows, num_parts)]
    with torch.cuda.device_of(states):
        kernel(
            *(states, rows, masks, num_computed, mask_slots, *tables, num_slots),
            *(states.stride(0), masks.stride(0), words_per_row),
            *_sizes(transitions, stop_tokens, token_bytes, token_begin),
            TILE_WORDS=TILE_WORDS,
        )
    return rows


def fsm_draft_states(
    states: torch.Tensor,
    drafts: torch.Tensor,
    row_indptr: torch.Tensor,
    transitions: torch.Tensor,
    state_flags: torch.Tensor,
    stop_tokens: torch.Tensor,
    token_bytes: torch.Tensor,
    token_begin: torch.Tensor,
) -> torch.Tensor:
    """``torch.ops.structout.fsm_draft_states`` in Triton."""
    tables = (transitions, state_flags, stop_tokens, token_bytes, token_begin)
    torch.ops.structout._check_fsm_draft_states(states, drafts, row_indptr, *tables)
    row_states = states.new_empty(len(drafts))
    if len(drafts) == 0:
        return row_states
    num_requests = len(states)
    kernel: Any = fsm_draft_states_kernel[(num_requests + 1,)]
    with torch.cuda.device_of(states):
        kernel(
            *(states, drafts, row_indptr, row_states, *tables, num_requests, len(drafts)),
            *(states.stride(0), drafts.stride(0), row_indptr.stride(0)),
            *_sizes(transitions, stop_tokens, token_bytes, token_begin),
            num_warps=1,
        )
    return row_states
