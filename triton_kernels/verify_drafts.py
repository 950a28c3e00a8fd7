"""verify_drafts in Triton: masked_sample, then one program per request compares its
tokens with its drafts, 16 bytes of each row."""

from typing import Any

import torch
import triton
import triton.language as tl

from structout.triton_kernels.masked_sample import masked_sample


@triton.jit(do_not_specialize=["num_tokens"])
def verify_drafts_kernel(ids, drafts, row_indptr, num_accepted, num_tokens, drafts_stride, indptr_stride):
    request = tl.program_id(0)
    begin = tl.load(row_indptr + request * indptr_stride).to(tl.int64)
    end = tl.load(row_indptr + (request + 1) * indptr_stride).to(tl.int64)
    begin = tl.minimum(tl.maximum(begin, 0), num_tokens)
    end = tl.minimum(tl.maximum(end, 0), num_tokens)
    accepted = tl.full((), 0, tl.int32)
    is_accepted = True
    for row in range(begin, end):
        if not is_accepted:
            tl.store(ids + row, -1)
        elif row + 1 < end:
            token = tl.load(ids + row)
            is_accepted = (token >= 0) & (token == tl.load(drafts + row * drafts_stride))
            accepted += is_accepted.to(tl.int32)
    tl.store(num_accepted + request, accepted)


def accept_drafts(ids: torch.Tensor, drafts: torch.Tensor, row_indptr: torch.Tensor) -> torch.Tensor:
    """``torch.ops.structout._accept_drafts`` in Triton."""
    num_accepted = ids.new_empty(len(row_indptr) - 1, dtype=torch.int32)
    if len(num_accepted) > 0:
        kernel: Any = verify_drafts_kernel[(len(num_accepted),)]
        with torch.cuda.device_of(ids):
            kernel(ids, drafts, row_indptr, num_accepted, len(ids), drafts.stride(0), row_indptr.stride(0))
    return num_accepted


def verify_drafts(
    logits: torch.Tensor,
    bitmask: torch.Tensor | None,
    rows: torch.Tensor | None,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    seed: torch.Tensor,
    position: torch.Tensor,
    drafts: torch.Tensor,
    row_indptr: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``torch.ops.structout.verify_drafts`` in Triton."""
    torch.ops.structout._check_verify_drafts(logits, drafts, row_indptr)
    ids = masked_sample(logits, bitmask, rows, temperature, top_k, top_p, min_p, seed, position)
    return ids, accept_drafts(ids, drafts, row_indptr)
