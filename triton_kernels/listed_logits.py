"""apply_penalties and apply_logit_bias in Triton.

    penalties   x = x / repetition if x > 0 else x * repetition
                x = x - frequency * count - presence * (count > 0)
    bias        x = x + bias

One program per row takes its list in chunks of CHUNK entries. Entries of one token are
applied one after the other: round r of a chunk applies those that have r earlier
entries of their token in the chunk. Nearly all chunks have one round.

Bytes moved per entry: 4 to 8 of id, 4 to 8 of count or bias, and a sector of logits
read and written.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from structout.triton_kernels.masked_sample import as_matrix

CHUNK = 64


@triton.jit
def penalized(x, count, repetition, frequency, presence):
    x = tl.where(x > 0, tl.div_rn(x, tl.full(x.shape, 1.0, tl.float32) * repetition), x * repetition)
    x = x - frequency * count
    return x - presence * tl.where(count > 0, 1.0, 0.0)


@triton.jit
def rounded(x, DTYPE: tl.constexpr):
    """Convert float32 to the logits' dtype, ties to even. The interpreter truncates to
    bfloat16 by itself, so the bits are rounded here."""
    if tl.bfloat16 == DTYPE:
        bits = x.to(tl.int32, bitcast=True)
        is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
        bits = tl.where(is_nan, 0x7FC00000, bits + 0x7FFF + ((bits >> 16) & 1))
        result = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        result = x.to(DTYPE)
    return result


@triton.jit(do_not_specialize=["vocab_size", "num_entries", "num_rows"])
def change_listed_logits_kernel(
    logits,
    indptr,
    token_ids,
    entry_values,
    repetition,
    frequency,
    presence,
    vocab_size,
    num_entries,
    row_stride,
    indptr_stride,
    token_stride,
    value_stride,
    repetition_stride,
    frequency_stride,
    presence_stride,
    HAS_PENALTIES: tl.constexpr,
    CHUNK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    begin = tl.load(indptr + row * indptr_stride).to(tl.int64)
    end = tl.load(indptr + (row + 1) * indptr_stride).to(tl.int64)
    begin = tl.minimum(tl.maximum(begin, 0), num_entries)
    end = tl.minimum(tl.maximum(end, 0), num_entries)
    lane = tl.arange(0, CHUNK)
    for chunk in range(begin, end, CHUNK):
        entry = chunk + lane
        token = tl.load(token_ids + entry * token_stride, mask=entry < end, other=-1).to(tl.int64)
        is_listed = (token >= 0) & (token < vocab_size)
        is_earlier = (token[:, None] == token[None, :]) & (lane[None, :] < lane[:, None])
        round_of = tl.where(is_listed, tl.sum(is_earlier.to(tl.int32), 1), -1)
        value = tl.load(entry_values + entry * value_stride, mask=is_listed, other=0).to(tl.float32)
        at = logits + row * row_stride + tl.where(is_listed, token, 0)
        for round in range(tl.max(round_of, 0) + 1):
            is_now = round_of == round
            x = tl.load(at, mask=is_now, other=0.0).to(tl.float32)
            if HAS_PENALTIES:
                x = penalized(
                    x,
                    value,
                    tl.load(repetition + row * repetition_stride),
                    tl.load(frequency + row * frequency_stride),
                    tl.load(presence + row * presence_stride),
                )
            else:
                x = x + value
            tl.store(at, rounded(x, logits.dtype.element_ty), mask=is_now)
            tl.debug_barrier()  # the next round and chunk may read what other threads stored


def _launch(
    logits: torch.Tensor,
    indptr: torch.Tensor,
    token_ids: torch.Tensor,
    entry_values: torch.Tensor,
    penalties: tuple[torch.Tensor, ...] | None,
) -> None:
    logits = as_matrix(logits)
    num_rows, vocab_size = logits.shape
    if num_rows == 0 or vocab_size == 0 or len(token_ids) == 0:
        return
    per_row = (entry_values,) * 3 if penalties is None else penalties
    kernel: Any = change_listed_logits_kernel[(num_rows,)]
    with torch.cuda.device_of(logits):
        kernel(
            logits,
            indptr,
            token_ids,
            entry_values,
            *per_row,
            vocab_size,
            len(token_ids),
            logits.stride(0),
            indptr.stride(0),
            token_ids.stride(0),
            entry_values.stride(0),
            *(values.stride(0) for values in per_row),
            HAS_PENALTIES=penalties is not None,
            CHUNK=CHUNK,
            num_warps=2,
            enable_fp_fusion=False,
        )


def apply_penalties(
    logits: torch.Tensor,
    indptr: torch.Tensor,
    token_ids: torch.Tensor,
    output_counts: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> None:
    """``torch.ops.structout.apply_penalties`` in Triton."""
    torch.ops.structout._check_apply_penalties(
        logits, indptr, token_ids, output_counts, repetition, frequency, presence
    )
    _launch(logits, indptr, token_ids, output_counts, (repetition, frequency, presence))


def apply_logit_bias(logits: torch.Tensor, indptr: torch.Tensor, token_ids: torch.Tensor, bias: torch.Tensor) -> None:
    """``torch.ops.structout.apply_logit_bias`` in Triton."""
    torch.ops.structout._check_apply_logit_bias(logits, indptr, token_ids, bias)
    _launch(logits, indptr, token_ids, bias, None)
