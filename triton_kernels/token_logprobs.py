"""token_logprobs and masked_sample_topn in Triton, one program per row and step.

top_tokens: lists the allowed tokens if they fit in a tile. Otherwise the lanes' highest
logits give a lower bound for the n-th highest; the tokens above it usually fit in the
list, and a selection raises the bound until they do. Then the program takes the
likeliest token n times, from the list or, where more tokens tie than fit, from the row.
Bytes moved: V/8 of mask, and the allowed logits once, or the row two to three times.

row_totals: one pass over the allowed logits.

merge_totals: 16 bytes of each shard, 12 bytes a token.

The steps are those of csrc/common/token_logprobs.h, and give its bits.
"""

# ruff: noqa: SIM102  (an `if` on a constexpr is decided by the compiler, and must not be joined with one that is not)

from typing import Any

import torch
import triton
import triton.language as tl

from structout.triton_kernels.masked_sample import (
    IDLE_KEY_BITS,
    NUM_WARPS,
    TILE,
    as_matrix,
    masked_sample,
    stride_of,
)
from structout.triton_kernels.sampling_filters import bound_by_lanes, select
from structout.triton_kernels.sampling_math import log_of_mass, mass, order_key
from structout.triton_kernels.sampling_row import (
    LOWEST_DRAWABLE_KEY,
    allowed_bytes,
    begin_of,
    end_of,
    indices_of,
    list_allowed,
    list_kept,
    logits_of,
    mask_of,
    scale_of,
    survey,
    t_of,
)

_STRIDES = ("rows_stride", "temperature_stride", "mask_row_stride", "token_stride", "highest_stride")
_PLAIN_INTEGERS = ("num_masks", "words_per_mask", "num_shards", "num_top", *_STRIDES)
_PLAIN_POINTERS = ("bitmask", "rows", "temperatures", "token_ids", "highest", "token_logits", "totals")


@triton.jit
def likeliest_below(row, list_size, last_x, last_token, TILE: tl.constexpr):
    """The likeliest token after (last_x, last_token), the lowest id first on ties; its
    logit is -inf if there is none."""
    best_x = tl.full([TILE // 8, 8], float("-inf"), tl.float32)
    best_token = tl.full([TILE // 8, 8], 0x7FFFFFFF, tl.int32)
    for first in range(begin_of(row, list_size, TILE), end_of(row, list_size), TILE):
        allowed = allowed_bytes(row, list_size, first, TILE)
        if tl.max(allowed, 0) > 0:
            x = logits_of(row, list_size, allowed, first, TILE)
            token = indices_of(first, TILE)
            if list_size >= 0:
                token = tl.load(row[3] + token, mask=token < list_size, other=0)
            is_below = (x < last_x) | ((x == last_x) & (token > last_token))
            # Tokens ascend within a lane, so the first of equal logits stays.
            is_better = is_below & (x > best_x)
            best_x = tl.where(is_better, x, best_x)
            best_token = tl.where(is_better, token, best_token)
    highest = tl.max(tl.max(best_x, 1), 0)
    token = tl.where(best_x == highest, best_token, 0x7FFFFFFF)
    return highest, tl.min(tl.min(token, 1), 0)


@triton.jit(do_not_specialize=_PLAIN_INTEGERS, do_not_specialize_on_alignment=_PLAIN_POINTERS)
def top_tokens_kernel(
    logits,
    bitmask,
    rows,
    temperatures,
    token_ids,
    lists,
    top_ids,
    top_logits,
    token_logits,
    vocab_begin,
    vocab_end,
    logits_row_stride,
    num_masks,
    words_per_mask,
    mask_row_stride,
    rows_stride,
    temperature_stride,
    token_stride,
    num_top,
    HAS_MASK: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    HAS_TEMPERATURE: tl.constexpr,
    IDLE_KEY_BITS: tl.constexpr,
    TILE: tl.constexpr,
):
    row_id = tl.program_id(0).to(tl.int64)
    token = tl.load(token_ids + row_id * token_stride)
    counts = token >= 0
    if HAS_TEMPERATURE:
        temperature = tl.load(temperatures + row_id * temperature_stride)
        counts = counts & (temperature >= 0) & (temperature < float("inf"))  # false for NaN
    token_logit = tl.full((), float("-inf"), tl.float32)
    place = tl.full((), 0, tl.int32)
    if counts:
        mask_bytes, num_mask_bytes, unmentioned = mask_of(
            row_id, bitmask, rows, rows_stride, num_masks, words_per_mask, mask_row_stride, HAS_MASK, HAS_ROWS
        )
        token_0 = logits + row_id * logits_row_stride - vocab_begin
        row = (token_0, vocab_begin, vocab_end, lists + row_id * TILE, mask_bytes, num_mask_bytes, unmentioned)
        if (token >= vocab_begin) & (token < vocab_end):
            byte = (token // 8).to(tl.int32)
            allowed = unmentioned
            if byte < num_mask_bytes:
                allowed = tl.load(mask_bytes + byte).to(tl.int32)
            if (allowed >> (token % 8).to(tl.int32)) & 1 != 0:
                x = tl.load(token_0 + token).to(tl.float32)
                token_logit = tl.where(x > float("-inf"), x, float("-inf"))  # also for NaN

        list_size = tl.full((), -1, tl.int32)
        if HAS_MASK:
            if unmentioned == 0:
                list_size = list_allowed(row, TILE)
        if list_size < 0:
            lane_highest, _lane_index, _has_nan = survey(row, list_size, TILE)
            highest = tl.max(tl.max(lane_highest, 1), 0)
            scale = scale_of(highest, tl.full((), 1.0, tl.float32))
            one = tl.full([TILE // 8, 8], 1, tl.int32)
            bound = bound_by_lanes(order_key(lane_highest), one, num_top, IDLE_KEY_BITS)
            lowest_key = tl.maximum(tl.full((), LOWEST_DRAWABLE_KEY, tl.uint32), bound)
            list_size = list_kept(row, scale, float("-inf"), lowest_key, TILE)
            if list_size < 0:
                target = tl.full((), 0, tl.int64) + num_top
                lowest_key, list_size = select(
                    row, list_size, scale, float("-inf"), lowest_key, target, False, IDLE_KEY_BITS, TILE
                )
        x = tl.full((), float("inf"), tl.float32)
        last = tl.full((), -1, tl.int32)
        while place < num_top:
            x, last = likeliest_below(row, list_size, x, last, TILE)
            if x > float("-inf"):
                tl.store(top_ids + row_id * num_top + place, last.to(tl.int64))
                tl.store(top_logits + row_id * num_top + place, x)
                place += 1
            else:
                place += num_top  # there are no more
    tl.store(token_logits + row_id, token_logit)


@triton.jit(do_not_specialize=_PLAIN_INTEGERS, do_not_specialize_on_alignment=_PLAIN_POINTERS)
def row_totals_kernel(
    logits,
    bitmask,
    rows,
    temperatures,
    highest,
    token_logits,
    lists,
    totals,
    vocab_begin,
    vocab_end,
    logits_row_stride,
    num_masks,
    words_per_mask,
    mask_row_stride,
    rows_stride,
    temperature_stride,
    highest_stride,
    HAS_MASK: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    HAS_TEMPERATURE: tl.constexpr,
    TILE: tl.constexpr,
):
    row_id = tl.program_id(0).to(tl.int64)
    highest_logit = tl.load(highest + row_id * highest_stride) + 0.0
    total_mass = tl.zeros([TILE // 8], tl.int64)
    num_likelier = tl.zeros([TILE // 8], tl.int64)
    if highest_logit > float("-inf"):  # false for NaN
        temperature = tl.full((), 1.0, tl.float32)
        if HAS_TEMPERATURE:
            temperature = tl.load(temperatures + row_id * temperature_stride)
        scale = scale_of(highest_logit, temperature)
        token_logit = tl.load(token_logits + row_id)
        mask_bytes, num_mask_bytes, unmentioned = mask_of(
            row_id, bitmask, rows, rows_stride, num_masks, words_per_mask, mask_row_stride, HAS_MASK, HAS_ROWS
        )
        token_0 = logits + row_id * logits_row_stride - vocab_begin
        row = (token_0, vocab_begin, vocab_end, lists + row_id * TILE, mask_bytes, num_mask_bytes, unmentioned)
        list_size = tl.full((), -1, tl.int32)
        if HAS_MASK:
            if unmentioned == 0:
                list_size = list_allowed(row, TILE)
        for first in range(begin_of(row, list_size, TILE), end_of(row, list_size), TILE):
            allowed = allowed_bytes(row, list_size, first, TILE)
            if tl.max(allowed, 0) > 0:
                x = logits_of(row, list_size, allowed, first, TILE)
                total_mass += tl.sum(tl.where(x > float("-inf"), mass(t_of(scale, x)), 0), 1)  # NaN is not above
                num_likelier += tl.sum((x > token_logit).to(tl.int64), 1)
    tl.store(totals + row_id, tl.sum(total_mass, 0))
    tl.store(totals + tl.num_programs(0).to(tl.int64) + row_id, tl.sum(num_likelier, 0))


@triton.jit(do_not_specialize=_PLAIN_INTEGERS, do_not_specialize_on_alignment=_PLAIN_POINTERS)
def merge_totals_kernel(
    totals,
    temperatures,
    highest,
    token_logits,
    top_logits,
    logprobs,
    ranks,
    top_logprobs,
    num_shards,
    temperature_stride,
    highest_stride,
    num_top,
    HAS_TEMPERATURE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    num_rows = tl.num_programs(0).to(tl.int64)
    total_mass = tl.full((), 0, tl.int64)
    num_likelier = tl.full((), 0, tl.int64)
    for shard in range(num_shards):
        of_shard = totals + shard * 2 * num_rows + row
        total_mass += tl.load(of_shard)
        num_likelier += tl.load(of_shard + num_rows)
    temperature = tl.full((), 1.0, tl.float32)
    if HAS_TEMPERATURE:
        temperature = tl.load(temperatures + row * temperature_stride)
    scale = scale_of(tl.load(highest + row * highest_stride) + 0.0, temperature)
    is_known = total_mass >= 0  # a gather that failed fills the totals with -1
    log_total = tl.where(is_known, log_of_mass(total_mass), float("nan"))

    token_logit = tl.load(token_logits + row)
    logprob = t_of(scale, token_logit + 0.0) - log_total  # + 0: -0 becomes 0
    tl.store(logprobs + row, tl.where(token_logit == float("-inf"), float("-inf"), logprob))
    rank = tl.where(is_known & (token_logit > float("-inf")), num_likelier + 1, 0)
    tl.store(ranks + row, rank)
    place = tl.arange(0, BLOCK)
    x = tl.load(top_logits + row * num_top + place, mask=place < num_top, other=float("-inf"))
    logprob = tl.where(x == float("-inf"), float("-inf"), t_of(scale, x + 0.0) - log_total)
    tl.store(top_logprobs + row * num_top + place, logprob, mask=place < num_top)


def _launch(
    kernel: Any,
    logits: torch.Tensor,
    bitmask: torch.Tensor | None,
    rows: torch.Tensor | None,
    temperature: torch.Tensor | None,
    vocab_begin: int,
    inputs: tuple[torch.Tensor, ...],
    outputs: tuple[torch.Tensor, ...],
    last: tuple[int, ...],
    **constants: Any,
) -> None:
    """Launch one program per row, on what both steps read and on a step's own
    arguments."""
    if len(logits) == 0:
        return
    bitmask = None if bitmask is None else as_matrix(bitmask)
    lists = torch.empty(len(logits), TILE, dtype=torch.int32, device=logits.device)
    with torch.cuda.device_of(logits):
        kernel[(len(logits),)](
            logits,
            lists if bitmask is None else bitmask,  # a placeholder: the kernel does not read it
            lists if rows is None else rows,
            lists if temperature is None else temperature,
            *inputs,
            lists,
            *outputs,
            vocab_begin,
            vocab_begin + logits.shape[1],
            logits.stride(0),
            0 if bitmask is None else bitmask.shape[0],
            0 if bitmask is None else bitmask.shape[1],
            stride_of(bitmask),
            stride_of(rows),
            stride_of(temperature),
            *last,
            HAS_MASK=bitmask is not None,
            HAS_ROWS=rows is not None,
            HAS_TEMPERATURE=temperature is not None,
            TILE=TILE,
            num_warps=NUM_WARPS,
            enable_fp_fusion=False,
            **constants,
        )


def top_tokens(
    logits_shard: torch.Tensor,
    bitmask: torch.Tensor | None,
    rows: torch.Tensor | None,
    temperature: torch.Tensor | None,
    token_ids: torch.Tensor,
    vocab_begin: int,
    num_top: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``torch.ops.structout._top_tokens`` in Triton (on the CPU with
    TRITON_INTERPRET=1)."""
    torch.ops.structout._check_sharded_token_logprobs(
        logits_shard, bitmask, rows, temperature, token_ids, vocab_begin, num_top
    )
    logits = as_matrix(logits_shard)
    top_ids = logits.new_full((len(logits), num_top), -1, dtype=torch.int64)
    top_logits = logits.new_full((len(logits), num_top), float("-inf"), dtype=torch.float32)
    token_logits = logits.new_empty(len(logits), dtype=torch.float32)
    outputs = (top_ids, top_logits, token_logits)
    last = (token_ids.stride(0), num_top)
    idle = IDLE_KEY_BITS[logits.dtype]
    arguments = (logits, bitmask, rows, temperature, vocab_begin, (token_ids,), outputs, last)
    _launch(top_tokens_kernel, *arguments, IDLE_KEY_BITS=idle)
    return outputs


def row_totals(
    logits_shard: torch.Tensor,
    bitmask: torch.Tensor | None,
    rows: torch.Tensor | None,
    temperature: torch.Tensor | None,
    highest: torch.Tensor,
    token_logits: torch.Tensor,
    vocab_begin: int,
) -> torch.Tensor:
    """``torch.ops.structout._row_totals`` in Triton."""
    logits = as_matrix(logits_shard)
    totals = logits.new_empty(2, len(logits), dtype=torch.int64)
    inputs = (highest, token_logits)
    last = (highest.stride(0),)
    _launch(row_totals_kernel, logits, bitmask, rows, temperature, vocab_begin, inputs, (totals,), last)
    return totals


def merge_totals(
    totals: torch.Tensor,
    temperature: torch.Tensor | None,
    highest: torch.Tensor,
    token_logits: torch.Tensor,
    top_logits: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``torch.ops.structout._merge_totals`` in Triton."""
    num_shards, _, num_rows = totals.shape
    num_top = top_logits.shape[1]
    logprobs, ranks = torch.empty_like(token_logits), totals.new_empty(num_rows)
    top_logprobs = torch.empty_like(top_logits)
    if num_rows == 0:
        return logprobs, ranks, top_logprobs
    kernel: Any = merge_totals_kernel[(num_rows,)]
    with torch.cuda.device_of(totals):
        kernel(
            totals.contiguous(),
            totals if temperature is None else temperature,
            highest,
            token_logits,
            top_logits,
            logprobs,
            ranks,
            top_logprobs,
            num_shards,
            stride_of(temperature),
            highest.stride(0),
            num_top,
            HAS_TEMPERATURE=temperature is not None,
            BLOCK=64,
            num_warps=1,
            enable_fp_fusion=False,
        )
    return logprobs, ranks, top_logprobs


def token_logprobs(
    logits: torch.Tensor,
    bitmask: torch.Tensor | None,
    rows: torch.Tensor | None,
    temperature: torch.Tensor | None,
    token_ids: torch.Tensor,
    top_n: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """``torch.ops.structout.token_logprobs`` in Triton."""
    masks = (bitmask, rows, temperature)
    torch.ops.structout._check_token_logprobs(logits, *masks, token_ids, top_n)
    top_ids, top_logits, token_logits = top_tokens(logits, *masks, token_ids, 0, max(1, top_n))
    highest = top_logits[:, 0]
    totals = row_totals(logits, *masks, highest, token_logits, 0).unsqueeze(0)
    if top_n == 0:
        top_ids, top_logits = top_ids.new_empty(len(top_ids), 0), top_logits.new_empty(len(top_ids), 0)
    logprobs, ranks, top_logprobs = merge_totals(totals, temperature, highest, token_logits, top_logits)
    return logprobs, ranks, top_ids, top_logprobs


def masked_sample_topn(
    logits: torch.Tensor,
    bitmask: torch.Tensor | None,
    rows: torch.Tensor | None,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    seed: torch.Tensor,
    position: torch.Tensor,
    top_n: int,
    raw: bool,
) -> tuple[torch.Tensor, ...]:
    """``torch.ops.structout.masked_sample_topn`` in Triton."""
    ids = masked_sample(logits, bitmask, rows, temperature, top_k, top_p, min_p, seed, position)
    masks = (None, None, None) if raw else (bitmask, rows, temperature)
    return ids, *token_logprobs(logits, *masks, ids, top_n)
