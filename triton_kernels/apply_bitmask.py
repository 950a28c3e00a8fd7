"""apply_bitmask in Triton.

    logits[n, v] = -inf where bit v of bitmask[rows[n]] is 0

The logits of a byte of mask, eight tokens, are written together. If some of them are
allowed, all are loaded first: a store to a part of a sector would read the rest anyway,
later and out of order. Only at the end of a row are tokens stored alone.

Bytes moved per row: V/8 of mask, each disallowed logit once, and the logits beside it
once more in each direction.

Launch: one program per TILE_BYTES of a row's mask. Programs lie as the logits do in
memory, so those that run at a time write side by side.
"""

from typing import Any

import torch
import triton
import triton.language as tl

TILE_BYTES = 128  # 1,024 tokens
NUM_WARPS = 2
MAX_GRID_ROWS = 65535


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
    TILE_BYTES: tl.constexpr,
):
    byte = tl.program_id(0) * TILE_BYTES + tl.arange(0, TILE_BYTES)
    bit = tl.arange(0, 8)
    token = byte[:, None] * 8 + bit[None, :]

    for row in range(tl.program_id(1), num_rows, tl.num_programs(1)):
        row_id = tl.cast(row, tl.int64)
        if HAS_ROWS:
            row_id = tl.load(rows + row_id * rows_stride).to(tl.int64)
        if row_id != -1:
            # A row id out of range allows nothing and reads nothing.
            is_known = (row_id >= 0) & (row_id < num_masks)
            num_bytes = tl.where(is_known, words_per_mask * 4, 0)
            mask = bitmask + tl.where(is_known, row_id, 0) * mask_row_stride
            at = mask.to(tl.pointer_type(tl.uint8)) + byte
            allowed = tl.load(at, mask=byte < num_bytes, other=0).to(tl.int32)
            is_allowed = (allowed[:, None] >> bit[None, :]) & 1 != 0
            out = logits + tl.cast(row, tl.int64) * logits_row_stride + token
            neg_inf = tl.full([TILE_BYTES, 8], float("-inf"), logits.dtype.element_ty)
            if (tl.program_id(0) + 1) * TILE_BYTES * 8 > vocab_size:
                tl.store(out, neg_inf, mask=(token < vocab_size) & (is_allowed == 0))
            else:
                # The compiler uses vectors where eight tokens share a condition.
                is_changed = tl.broadcast_to((allowed != 255)[:, None], [TILE_BYTES, 8])
                is_mixed = is_changed & (allowed != 0)[:, None]
                values = tl.load(out, mask=is_mixed, other=float("-inf"))
                tl.store(out, tl.where(is_allowed, values, neg_inf), mask=is_changed)


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
    tiles = triton.cdiv(vocab_size, TILE_BYTES * 8)
    kernel: Any = apply_bitmask_kernel[(tiles, min(num_rows, MAX_GRID_ROWS))]
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
            TILE_BYTES=TILE_BYTES,
            num_warps=NUM_WARPS,
        )
