"""masked_sample in Triton: docs/sampling_contract.md, in one launch.

A program reads TILE tokens at a time. It first lists the tokens that the mask allows.
If they fit in one tile, everything else runs over the list, and reads only the listed
logits. Otherwise the row is streamed, in up to three steps:

    survey     the highest logit, NaN, and the highest logit of every lane
    filters    min_p is a threshold on t. The lanes' highest logits give lower bounds
               for the thresholds of top_k and top_p. The tokens that pass these bounds
               usually fit in the list, and the selections run over it. Otherwise they
               run over the row until the remaining tokens fit.
    draw       Philox and two logarithms, for tiles in which a token could still win

Bytes moved: V/8 of mask, and either 32 bytes (a sector) per allowed token or the row
once per pass; passes after the first find it in L2. Selections are exact: they search
the key of the threshold, two bits per pass, over counts (top_k) or fixed-point masses
(top_p).

A shard of the vocabulary (sharded_masked_sample) is a row that begins at a later token.
Its shard result is written instead of the id.

Launch: one program of 8 warps per row.
"""

# ruff: noqa: SIM102  (an `if` on a constexpr is decided by the compiler, and must not be joined with one that is not)

from typing import Any

import torch
import triton
import triton.language as tl

from structout.ops import sampling_math as table
from structout.triton_kernels.gumbel_draw import draw
from structout.triton_kernels.sampling_filters import bound_by_lanes, select
from structout.triton_kernels.sampling_math import log, log_of_mass, mass, order_key
from structout.triton_kernels.sampling_row import (
    LOWEST_DRAWABLE_KEY,
    end_of,
    keeps,
    list_allowed,
    list_kept,
    mask_of,
    mass_of_kept,
    scale_of,
    survey,
    t_of,
)
from structout.triton_kernels.shard_result import store_shard_result

TILE = 2048
NUM_WARPS = 8
SMALLEST_MIN_P = tl.constexpr(table.SMALLEST_MIN_P)
# The low bits of an order key that are constant after widening to float32. Rounded down
# to an even number, because a pass finds two bits.
IDLE_KEY_BITS = {torch.float32: 0, torch.float16: 12, torch.bfloat16: 16}

# A new value of these arguments must not compile a new kernel while serving: batches
# have all sizes, and scalars are expanded with stride 0. Only the alignment of the
# logits matters, because it decides whether they are loaded 16 bytes at a time.
_STRIDES = ("rows", "temperature", "top_k", "top_p", "min_p", "seed", "position", "mask_row")
_PLAIN_INTEGERS = ("num_masks", "words_per_mask", *(f"{name}_stride" for name in _STRIDES))
_PLAIN_POINTERS = ("bitmask", "rows", "temperatures", "top_k", "top_p", "min_p", "seed", "position")


@triton.jit(do_not_specialize=_PLAIN_INTEGERS, do_not_specialize_on_alignment=_PLAIN_POINTERS)
def masked_sample_kernel(
    logits,
    bitmask,
    rows,
    temperatures,
    top_k,
    top_p,
    min_p,
    seed,
    position,
    lists,
    ids,
    logprobs,
    shard_results,
    vocab_begin,
    vocab_end,
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
    RETURN_LOGPROBS: tl.constexpr,
    IS_SHARD: tl.constexpr,
    IDLE_KEY_BITS: tl.constexpr,
    TILE: tl.constexpr,
):
    row_id = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row_id * temperature_stride)
    is_valid = (temperature >= 0) & (temperature < float("inf"))  # false for NaN
    p = tl.full((), 1.0, tl.float32)
    if HAS_TOP_P:
        p = tl.load(top_p + row_id * top_p_stride)
        is_valid = is_valid & (p >= 0)
    lowest_p = tl.full((), 0.0, tl.float32)
    if HAS_MIN_P:
        lowest_p = tl.load(min_p + row_id * min_p_stride)
        is_valid = is_valid & (lowest_p >= 0)

    mask_bytes, num_mask_bytes, unmentioned = mask_of(
        row_id, bitmask, rows, rows_stride, num_masks, words_per_mask, mask_row_stride, HAS_MASK, HAS_ROWS
    )
    token_0 = logits + row_id * logits_row_stride
    if IS_SHARD:
        token_0 -= vocab_begin
    listed = lists + row_id * TILE
    row = (token_0, vocab_begin if IS_SHARD else None, vocab_end, listed, mask_bytes, num_mask_bytes, unmentioned)

    list_size = tl.full((), 0, tl.int32)  # an invalid row is an empty list
    if is_valid:
        list_size = tl.full((), -1, tl.int32)
        if HAS_MASK:
            if unmentioned == 0:
                list_size = list_allowed(row, TILE)
    lane_highest, lane_index, has_nan = survey(row, list_size, TILE)
    highest = tl.where(is_valid & (has_nan == 0), tl.max(tl.max(lane_highest, 1), 0), float("nan"))

    token = tl.full((), -1, tl.int32)
    score = tl.full((), float("-inf"), tl.float32)
    logit = tl.full((), float("-inf"), tl.float32)
    logprob = tl.full((), float("-inf"), tl.float32)
    if highest > float("-inf"):
        is_greedy = temperature == 0
        scale = scale_of(highest, temperature)
        lowest_key = tl.full((), LOWEST_DRAWABLE_KEY, tl.uint32)
        lowest_t = tl.full((), float("-inf"), tl.float32)
        total = tl.full((), 0, tl.int64)
        if RETURN_LOGPROBS:
            total = mass_of_kept(row, list_size, scale, lowest_t, lowest_key, TILE)
        if is_greedy:
            winner = tl.min(tl.min(tl.where(lane_highest == highest, lane_index, 0x7FFFFFFF), 1), 0)
            score = highest
        else:
            may_fit_list = False
            if HAS_MIN_P:
                if lowest_p >= SMALLEST_MIN_P:
                    lowest_t = log(tl.minimum(lowest_p, 1.0))
                    may_fit_list = True
            if HAS_TOP_K:
                k = tl.load(top_k + row_id * top_k_stride).to(tl.int64)
                if (k > 0) & (k <= TILE):
                    one = tl.full([TILE // 8, 8], 1, tl.int32)
                    bound = bound_by_lanes(order_key(lane_highest), one, k, IDLE_KEY_BITS)
                    lowest_key = tl.maximum(lowest_key, bound)
                    may_fit_list = True
            if HAS_MIN_P or HAS_TOP_K:
                if may_fit_list & (list_size < 0):
                    list_size = list_kept(row, scale, lowest_t, lowest_key, TILE)
            if HAS_TOP_K:
                if (k > 0) & (k < end_of(row, list_size)):
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
            winner, score = draw(
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
        token = winner
        if RETURN_LOGPROBS or IS_SHARD:
            logit = tl.load(token_0 + winner).to(tl.float32)
        if RETURN_LOGPROBS:
            logprob = t_of(scale, logit) - log_of_mass(total)
    if IS_SHARD:
        store_shard_result(shard_results, tl.num_programs(0), row_id, None, highest, score, token, logit)
    else:
        tl.store(ids + row_id, token.to(tl.int64))
    if RETURN_LOGPROBS:
        tl.store(logprobs + row_id, logprob)


def launch(
    logits: torch.Tensor,
    bitmask: torch.Tensor | None,
    rows: torch.Tensor | None,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    seed: torch.Tensor,
    position: torch.Tensor,
    *,
    ids: torch.Tensor | None = None,
    logprobs: torch.Tensor | None = None,
    shard_results: torch.Tensor | None = None,
    vocab_begin: int = 0,
) -> None:
    """Launch the kernel on checked arguments. It writes ``ids`` and, if given,
    ``logprobs``; or ``shard_results``, for a shard without filters."""
    logits, bitmask = as_matrix(logits), None if bitmask is None else as_matrix(bitmask)
    num_rows, num_columns = logits.shape
    if num_rows == 0:
        return
    lists = torch.empty(num_rows, TILE, dtype=torch.int32, device=logits.device)

    def or_placeholder(tensor: torch.Tensor | None) -> torch.Tensor:
        return lists if tensor is None else tensor  # a placeholder: the kernel does not read it

    kernel: Any = masked_sample_kernel[(num_rows,)]
    with torch.cuda.device_of(logits):
        kernel(
            logits,
            or_placeholder(bitmask),
            or_placeholder(rows),
            temperature,
            or_placeholder(top_k),
            or_placeholder(top_p),
            or_placeholder(min_p),
            seed,
            position,
            lists,
            or_placeholder(ids),
            or_placeholder(logprobs),
            or_placeholder(shard_results),
            vocab_begin,
            vocab_begin + num_columns,
            logits.stride(0),
            0 if bitmask is None else bitmask.shape[0],
            0 if bitmask is None else bitmask.shape[1],
            stride_of(bitmask),
            stride_of(rows),
            stride_of(temperature),
            stride_of(top_k),
            stride_of(top_p),
            stride_of(min_p),
            stride_of(seed),
            stride_of(position),
            HAS_MASK=bitmask is not None,
            HAS_ROWS=rows is not None,
            HAS_TOP_K=top_k is not None,
            HAS_TOP_P=top_p is not None,
            HAS_MIN_P=min_p is not None,
            RETURN_LOGPROBS=logprobs is not None,
            IS_SHARD=shard_results is not None,
            IDLE_KEY_BITS=IDLE_KEY_BITS[logits.dtype],
            TILE=TILE,
            num_warps=NUM_WARPS,
            enable_fp_fusion=False,
        )


def as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dim() == 2 else tensor.unsqueeze(0)


def stride_of(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.stride(0)


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
    """``torch.ops.structout.masked_sample`` in Triton (on the CPU with
    TRITON_INTERPRET=1).
    """
    arguments = (logits, bitmask, rows, temperature, top_k, top_p, min_p, seed, position)
    torch.ops.structout._check_masked_sample(*arguments)
    ids = _one_per_row(logits, torch.int64)
    launch(*arguments, ids=ids)
    return ids


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
    """``torch.ops.structout.masked_sample_logprobs`` in Triton."""
    arguments = (logits, bitmask, rows, temperature, top_k, top_p, min_p, seed, position)
    torch.ops.structout._check_masked_sample(*arguments)
    ids, logprobs = _one_per_row(logits, torch.int64), _one_per_row(logits, torch.float32)
    launch(*arguments, ids=ids, logprobs=logprobs)
    return ids, logprobs


def _one_per_row(logits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(len(as_matrix(logits)), dtype=dtype, device=logits.device)
