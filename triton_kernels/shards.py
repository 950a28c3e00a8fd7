"""The parts of sharded_masked_sample that run on one rank, in Triton.

sample_shard: masked_sample's kernel, on a shard.

merge_shard_results: one program per MERGE_ROWS rows, over 12 or 16 bytes of each shard.

Both give the bits of csrc/common/shard_result.h and of the C++ and CUDA kernels.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from structout.triton_kernels import masked_sample
from structout.triton_kernels.masked_sample import as_matrix
from structout.triton_kernels.sampling_row import scale_of
from structout.triton_kernels.shard_result import NUM_FIELDS, load_shard_result, store_shard_result

MERGE_ROWS = 128

# A new value of these arguments must not compile a new kernel, as in masked_sample.
_PLAIN_INTEGERS = ("num_shards", "num_rows", "temperature_stride")
_PLAIN_POINTERS = ("temperatures", "shard_results")


@triton.jit(do_not_specialize=_PLAIN_INTEGERS, do_not_specialize_on_alignment=_PLAIN_POINTERS)
def merge_shard_results_kernel(
    shard_results,
    temperatures,
    ids,
    merged,
    num_shards,
    num_rows,
    temperature_stride,
    HAS_LOGITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = row < num_rows
    shard_stride = tl.cast(num_rows, tl.int64) * (4 if HAS_LOGITS else 3)

    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    for shard in range(num_shards):
        shard_highest, _, _, _ = load_shard_result(
            shard_results + shard * shard_stride, num_rows, row, mask, HAS_LOGITS
        )
        is_higher = (shard_highest > highest) | (shard_highest != shard_highest)  # NaN wins
        highest = tl.where(is_higher, shard_highest, highest)

    # Each shard scales by its own highest logit. This matters only if the scaled logit
    # overflows:
    # - If the row's highest overflows, so does that of every shard that holds it. Their
    #   scores are noise alone, as the contract asks; other shards cannot win.
    # - If the row's highest does not overflow, a shard whose own does (towards -inf)
    #   has nothing that could win.
    # A row whose highest is NaN draws nothing, because no shard's highest equals NaN.
    temperature = tl.load(temperatures + row * temperature_stride, mask=mask, other=1)
    _, inverse, z_of_highest = scale_of(highest, temperature)
    must_be_highest = tl.where(tl.abs(z_of_highest) < float("inf"), temperature == 0, True)
    score = tl.full([BLOCK], float("-inf"), tl.float32)
    token = tl.full([BLOCK], -1, tl.int32)
    logit = tl.full([BLOCK], float("-inf"), tl.float32)
    for shard in range(num_shards):
        shard_highest, shard_score, shard_token, shard_logit = load_shard_result(
            shard_results + shard * shard_stride, num_rows, row, mask, HAS_LOGITS
        )
        can_win = tl.where(must_be_highest, shard_highest == highest, tl.abs(shard_highest * inverse) < float("inf"))
        is_better = (token < 0) | (shard_score > score) | ((shard_score == score) & (shard_token < token))
        wins = (shard_token >= 0) & can_win & is_better
        score = tl.where(wins, shard_score, score)
        token = tl.where(wins, shard_token, token)
        logit = tl.where(wins, shard_logit, logit)
    tl.store(ids + row, token.to(tl.int64), mask=mask)
    store_shard_result(merged, num_rows, row, mask, highest, score, token, logit)


def sample_shard(
    logits_shard: torch.Tensor,
    bitmask: torch.Tensor | None,
    rows: torch.Tensor | None,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
    vocab_begin: int,
) -> torch.Tensor:
    """``torch.ops.structout._sample_shard`` in Triton (on the CPU with
    TRITON_INTERPRET=1).
    """
    arguments = (logits_shard, bitmask, rows, temperature, None, None, None, seed, position)
    torch.ops.structout._check_sharded_masked_sample(*arguments, vocab_begin)
    num_rows = as_matrix(logits_shard).shape[0]
    shard_results = torch.empty(NUM_FIELDS, num_rows, dtype=torch.int32, device=logits_shard.device)
    masked_sample.launch(*arguments, shard_results=shard_results, vocab_begin=vocab_begin)
    return shard_results


def merge_shard_results(shard_results: torch.Tensor, temperature: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``torch.ops.structout._merge_shard_results`` in Triton."""
    num_shards, num_fields, num_rows = shard_results.shape
    _check("shard_results", shard_results, torch.int32, num_shards, NUM_FIELDS if num_fields != 3 else 3, num_rows)
    _check("temperature", temperature, torch.float32, num_rows)
    ids = torch.empty(num_rows, dtype=torch.int64, device=shard_results.device)
    merged = torch.empty(NUM_FIELDS, num_rows, dtype=torch.int32, device=shard_results.device)
    if num_rows == 0:
        return ids, merged
    kernel: Any = merge_shard_results_kernel[(triton.cdiv(num_rows, MERGE_ROWS),)]
    with torch.cuda.device_of(shard_results):
        kernel(
            shard_results.contiguous(),
            temperature,
            ids,
            merged,
            num_shards,
            num_rows,
            temperature.stride(0),
            HAS_LOGITS=num_fields == NUM_FIELDS,
            BLOCK=MERGE_ROWS,
            enable_fp_fusion=False,
        )
    return ids, merged


def _check(name: str, tensor: torch.Tensor, dtype: torch.dtype, *shape: int) -> None:
    if tensor.dtype != dtype or tensor.shape != shape:
        raise ValueError(
            f"sharded_masked_sample: {name} must be {dtype} {list(shape)}, got {tensor.dtype} {list(tensor.shape)}"
        )
