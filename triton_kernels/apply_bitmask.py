"""apply_bitmask in Triton. It divides the work as csrc/cuda/apply_bitmask.cu does.

    logits[n, v] = -inf where bit v of bitmask[rows[n]] is 0

Bytes moved per row: V/8 of mask, and the logit of each disallowed token once. Logits
are never read. A tile that allows every token costs its mask alone. A tile that allows
none is filled by vector stores, a mixed one by stores with a predicate per token.

Launch: one program per TILE_WORDS mask words of a row; programs stride over the rows.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl

TILE_WORDS = 64  # 2,048 tokens
PROGRAMS_PER_SM = 16
MAX_GRID_ROWS = 65535
_INTERPRETER_SMS = 1


@triton.jit(do_not_specialize=["num_rows", "num_masks"])  # a new batch size must not compile a new kernel
def apply_bitmask_kernel(
    logits,
    bitmask,
    rows,
    num_rows,
    vocab_size,
    logits_row_stride,
    num_masks,
    words_per_mask,
    mask_row_stride,
    rows_stride,
    HAS_ROWS: tl.constexpr,
    TILE_WORDS: tl.constexpr,
):
    word = tl.program_id(0) * TILE_WORDS + tl.arange(0, TILE_WORDS)
    # Bits past the last column read as allowed, so that nothing is stored there.
    tokens_left = tl.minimum(tl.maximum(vocab_size - word * 32, 0), 32)
    past_end = tl.where(tokens_left < 32, -1 << tl.minimum(tokens_left, 31), 0)
    bit = tl.arange(0, 32)
    token = word[:, None] * 32 + bit[None, :]

    for row in range(tl.program_id(1), num_rows, tl.num_programs(1)):
        row_id = tl.cast(row, tl.int64)
        if HAS_ROWS:
            row_id = tl.load(rows + row_id * rows_stride).to(tl.int64)
        if row_id != -1:
            # A row id out of range allows nothing and reads nothing.
            is_known = (row_id >= 0) & (row_id < num_masks)
            num_words = tl.where(is_known, words_per_mask, 0)
            at = bitmask + tl.where(is_known, row_id, 0) * mask_row_stride + word
            allowed = tl.load(at, mask=word < num_words, other=0) | past_end
            out = logits + tl.cast(row, tl.int64) * logits_row_stride + token
            neg_inf = tl.full([TILE_WORDS, 32], float("-inf"), logits.dtype.element_ty)
            if tl.max(tl.where(allowed == 0, 0, 1), 0) == 0:
                tl.store(out, neg_inf)
            elif tl.min(tl.where(allowed == -1, 1, 0), 0) == 0:
                tl.store(out, neg_inf, mask=((allowed[:, None] >> bit[None, :]) & 1) == 0)


@functools.lru_cache
def _num_sms(device: torch.device) -> int:
    if device.type != "cuda":
        return _INTERPRETER_SMS
    return torch.cuda.get_device_properties(device).multi_processor_count


def _as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dim() == 2 else tensor.unsqueeze(0)


def apply_bitmask(logits: torch.Tensor, bitmask: torch.Tensor, rows: torch.Tensor | None = None) -> None:
    """``torch.ops.structout.apply_bitmask`` in Triton (on the CPU with
    TRITON_INTERPRET=1).
    """
    torch.ops.structout._check_apply_bitmask(logits, bitmask, rows)
    logits, bitmask = _as_matrix(logits), _as_matrix(bitmask)
    num_rows, vocab_size = logits.shape
    if num_rows == 0 or vocab_size == 0:
        return
    if vocab_size >= 2**31:
        raise ValueError(
            f"apply_bitmask: the Triton kernel needs fewer than 2^31 columns, got {vocab_size}; "
            "set STRUCTOUT_BACKEND=cuda"
        )
    tiles = triton.cdiv(vocab_size, TILE_WORDS * 32)
    resident_rows = max(1, _num_sms(logits.device) * PROGRAMS_PER_SM // tiles)
    kernel: Any = apply_bitmask_kernel[(tiles, min(num_rows, resident_rows, MAX_GRID_ROWS))]
    with torch.cuda.device_of(logits):
        kernel(
            logits,
            bitmask,
            bitmask if rows is None else rows,
            num_rows,
            vocab_size,
            logits.stride(0),
            bitmask.shape[0],
            bitmask.shape[1],
            bitmask.stride(0),
            0 if rows is None else rows.stride(0),
            HAS_ROWS=rows is not None,
            TILE_WORDS=TILE_WORDS,
        )
