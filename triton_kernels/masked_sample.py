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
from structout.triton_kernels.race import draw
from structout.triton_kernels.sampling_filters import bound_by_lanes, select
from structout.triton_kernels.sampling_math import log, log_of_mass, mass, order_key
from structout.triton_kernels.sampling_row import (
    LOWEST_DRAWABLE_KEY,
    keeps,
    list_allowed,
    list_kept,
    mass_of_kept,
    size_of,
    survey,
    t_of,
)

from structout import sampling_math as table

TILE = 2048
NUM_WARPS = 8
SMALLEST_MIN_P = tl.constexpr(table.SMALLEST_MIN_P)
# Low bits of an order key that widening to float32 leaves all alike (even, because a pass finds two).
IDLE_KEY_BITS = {torch.float32: 0, torch.float16: 12, torch.bfloat16: 16}

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
                list_size = list_allowed(row, TILE)
    lane_highest, lane_index, has_nan = survey(row, list_size, TILE)
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
            total = mass_of_kept(row, list_size, scale, lowest_t, lowest_key, TILE)
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
                    bound = bound_by_lanes(order_key(lane_highest), one, k, IDLE_KEY_BITS)
                    lowest_key = tl.maximum(lowest_key, bound)
                    may_be_few = True
            if HAS_MIN_P or HAS_TOP_K:
                if may_be_few & (list_size < 0):
                    list_size = list_kept(row, scale, lowest_t, lowest_key, TILE)
            if HAS_TOP_K:
                if (k > 0) & (k < size_of(row, list_size)):
                    lowest_key, list_size = select(
                        row, list_size, scale, lowest_t, lowest_key, k, False, IDLE_KEY_BITS, TILE
                    )
            if HAS_TOP_P:
                if p < 1:
                    left = mass_of_kept(row, list_size, scale, lowest_t, lowest_key, TILE)
                    target = tl.minimum(left, tl.maximum((p * left.to(tl.float32)).to(tl.int64), 1))
                    if list_size < 0:
                        is_kept = keeps(scale, lane_highest, lowest_t, lowest_key)
                        weight = tl.where(is_kept, mass(t_of(scale, lane_highest)), 0)
                        bound = bound_by_lanes(order_key(lane_highest), weight, target, IDLE_KEY_BITS)
                        lowest_key = tl.maximum(lowest_key, bound)
                        list_size = list_kept(row, scale, lowest_t, lowest_key, TILE)
                    lowest_key, list_size = select(
                        row, list_size, scale, lowest_t, lowest_key, target, True, IDLE_KEY_BITS, TILE
                    )
            winner = draw(
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
            logprob = t_of(scale, x) - log_of_mass(total)
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
