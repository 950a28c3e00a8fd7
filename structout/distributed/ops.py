"""Wrappers and implementations of the collective ops."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from structout import ops
from structout.distributed import vocab_parallel
from structout.distributed.cpu_communicator import cpu_communicator
from structout.distributed.cuda_communicator import cuda_communicator
from structout.distributed.process_groups import group_name_of, world_size_of
from structout.distributed.vocab_shard import VocabShard


@contextlib.contextmanager
def _report_failure_to_peers(operation: str, tensor: torch.Tensor, group_name: str) -> Iterator[None]:
    """Make the other ranks' call fail too if this rank's arguments are invalid."""
    try:
        yield
    except Exception as error:
        if tensor.device.type == "cpu" and world_size_of(group_name) > 1:
            cpu_communicator(group_name).report_failure(operation, error)
        raise


def all_gather_bitmask_impl(shard: torch.Tensor, group_name: str) -> torch.Tensor:
    """Implement ``torch.ops.structout.all_gather_bitmask``."""
    with _report_failure_to_peers("all_gather_bitmask", shard, group_name):
        if shard.dtype != torch.int32 or shard.dim() != 2:
            raise ValueError(
                f"all_gather_bitmask: shard must be int32 [rows, words], got {shard.dtype} {list(shard.shape)}"
            )
    if world_size_of(group_name) == 1:
        return shard.clone()
    if shard.device.type == "cpu":
        return vocab_parallel.all_gather_bitmask_cpu(cpu_communicator(group_name), shard)
    return vocab_parallel.all_gather_bitmask_cuda(cuda_communicator(group_name, shard.device), shard)


def sharded_masked_sample_impl(*arguments: Any, return_logprobs: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Implement ``torch.ops.structout.sharded_masked_sample``, with its arguments."""
    *tensors, vocab_begin, group_name = arguments
    device = tensors[0].device
    if world_size_of(group_name) == 1:
        shard = VocabShard.from_op_arguments(tuple(tensors), vocab_begin)
        return vocab_parallel.sample_single_rank(shard, return_logprobs)
    if device.type == "cpu":
        return vocab_parallel.sample_cpu(cpu_communicator(group_name), tuple(tensors), vocab_begin, return_logprobs)
    shard = VocabShard.from_op_arguments(tuple(tensors), vocab_begin)
    return vocab_parallel.sample_cuda(cuda_communicator(group_name, device), shard, return_logprobs)


def all_gather_bitmask(shard: torch.Tensor, group: dist.ProcessGroup | str | None = None) -> torch.Tensor:
    """Gather the mask rows that each rank has filled on every rank.

    Equivalent to::

        gathered = [torch.empty_like(shard) for _ in range(world_size)]
        torch.distributed.all_gather(gathered, shard, group)
        return torch.cat(gathered)

    Args:
        shard: int32 ``[r, W]``, with the same r and W on all ranks.
        group: a process group, its name, or None for the default group. Without a
            group, or with a single rank, nothing is sent.

    Returns:
        int32 ``[world_size * r, W]``, in rank order; never a view of ``shard``.

    Raises:
        ValueError: ``shard`` has another dtype or number of dimensions, or there is no
            such group. Raised before any mask is sent.
        CollectiveError: the ranks' shapes or calls differ (raised on all of them), or a
            rank has died or is late.
    """
    gathered: torch.Tensor = torch.ops.structout.all_gather_bitmask(shard, group_name_of(group))
    return gathered


def sharded_masked_sample(
    logits_shard: torch.Tensor,
    bitmask: torch.Tensor | None = None,
    rows: torch.Tensor | None = None,
    *,
    vocab_begin: int,
    group: dist.ProcessGroup | str | None = None,
    temperature: torch.Tensor | float = 1.0,
    top_k: torch.Tensor | int | None = None,
    top_p: torch.Tensor | float | None = None,
    min_p: torch.Tensor | float | None = None,
    seed: torch.Tensor | int = 0,
    position: torch.Tensor | int = 0,
) -> torch.Tensor:
    """Sample where each rank holds some columns of the logits.

    The ids are those of :func:`structout.masked_sample`, bit for bit. Equivalent to::

        logits = torch.cat(all_gather(logits_shard), dim=1)
        return masked_sample(logits, bitmask, rows, temperature=temperature, ...)

    but without filters ranks exchange only 12 bytes a row. With filters (an argument
    that is not None, whatever its values) each row's allowed logits go to one owner
    rank, which samples it.

    Args:
        logits_shard: ``[N, width]`` or ``[width]``: columns ``vocab_begin ...
            vocab_begin + width``; float32, float16 or bfloat16. Shards may be uneven,
            unaligned or empty; together they hold every column once.
        bitmask: masks of the whole vocabulary, as in :func:`structout.masked_sample`.
            This and all following arguments but ``vocab_begin`` are the same on all
            ranks.
        rows: as in :func:`structout.masked_sample`.
        vocab_begin: the token id of the first column.
        group: as in :func:`all_gather_bitmask`.
        temperature: as in :func:`structout.masked_sample`.
        top_k: as in :func:`structout.masked_sample`.
        top_p: as in :func:`structout.masked_sample`.
        min_p: as in :func:`structout.masked_sample`.
        seed: as in :func:`structout.masked_sample`.
        position: as in :func:`structout.masked_sample`.

    Returns:
        int64 ``[N]``, the same on all ranks.

    Raises:
        ValueError: as :func:`structout.masked_sample`, on the rank with the invalid
            argument; the others raise a CollectiveError.
        CollectiveError: the ranks' arguments or calls differ (raised on all of them),
            or a rank has died or is late.

    Source of the exchange: the max-score reduction of FlashSampling's tensor-parallel
    mode, extended to masks, exact ties and logprobs.
    """
    name = group_name_of(group)
    with _report_failure_to_peers("sharded_masked_sample", logits_shard, name):
        parameters = ops.row_parameters(logits_shard, temperature, top_k, top_p, min_p, seed, position)
    ids: torch.Tensor = torch.ops.structout.sharded_masked_sample(
        logits_shard, bitmask, rows, *parameters, vocab_begin, name
    )
    return ids


def sharded_masked_sample_logprobs(
    logits_shard: torch.Tensor,
    bitmask: torch.Tensor | None = None,
    rows: torch.Tensor | None = None,
    *,
    vocab_begin: int,
    group: dist.ProcessGroup | str | None = None,
    temperature: torch.Tensor | float = 1.0,
    top_k: torch.Tensor | int | None = None,
    top_p: torch.Tensor | float | None = None,
    min_p: torch.Tensor | float | None = None,
    seed: torch.Tensor | int = 0,
    position: torch.Tensor | int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample as :func:`sharded_masked_sample` does, and return logprobs too.

    Returns:
        ids int64 ``[N]`` and logprobs float32 ``[N]``, those of
        :func:`structout.masked_sample_logprobs` bit for bit.
    """
    name = group_name_of(group)
    with _report_failure_to_peers("sharded_masked_sample", logits_shard, name):
        parameters = ops.row_parameters(logits_shard, temperature, top_k, top_p, min_p, seed, position)
    ids, logprobs = torch.ops.structout.sharded_masked_sample_logprobs(
        logits_shard, bitmask, rows, *parameters, vocab_begin, name
    )
    return ids, logprobs
