"""The collective ops: typed, documented wrappers, and what serves them on each device."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from structout import ops
from structout.distributed import device_sharding, vocab_parallel
from structout.distributed.cpu_communicator import channel, name_of, world_size_of
from structout.distributed.cuda_communicator import device_link


@contextlib.contextmanager
def _telling_others(what: str, tensor: torch.Tensor, group_name: str) -> Iterator[None]:
    """That this rank's arguments will not do, so that they need not wait for it."""
    try:
        yield
    except Exception as problem:
        if tensor.device.type == "cpu" and world_size_of(group_name) > 1:
            channel(group_name).refuse(what, problem)
        raise


def gather_on_device(shard: torch.Tensor, group_name: str) -> torch.Tensor:
    with _telling_others("all_gather_bitmask", shard, group_name):
        if shard.dtype != torch.int32 or shard.dim() != 2:
            raise ValueError(
                f"all_gather_bitmask: shard must be int32 [rows, words], got {shard.dtype} {list(shard.shape)}"
            )
    if world_size_of(group_name) == 1:
        return shard.clone()
    if shard.device.type == "cpu":
        return vocab_parallel.gather_masks(channel(group_name), shard)
    return device_sharding.gather_masks(device_link(group_name, shard.device), shard)


def sample_on_device(*arguments: Any, return_logprobs: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The op's implementation; ``arguments`` are those of its schema."""
    *tensors, vocab_begin, group_name = arguments
    device = tensors[0].device
    if world_size_of(group_name) == 1:
        return vocab_parallel.sample_alone(vocab_parallel.ShardStep.of(tuple(tensors), vocab_begin), return_logprobs)
    if device.type == "cpu":
        return vocab_parallel.sample(channel(group_name), tuple(tensors), vocab_begin, return_logprobs)
    step = vocab_parallel.ShardStep.of(tuple(tensors), vocab_begin)
    return device_sharding.sample(device_link(group_name, device), step, return_logprobs)


def all_gather_bitmask(shard: torch.Tensor, group: dist.ProcessGroup | str | None = None) -> torch.Tensor:
    """Every rank's mask rows on every rank, where each has filled only its own.

    Equivalent to::

        gathered = [torch.empty_like(shard) for _ in range(world_size)]
        torch.distributed.all_gather(gathered, shard, group)
        return torch.cat(gathered)

    Args:
        shard: int32 ``[r, W]``, with the same r and W on all ranks.
        group: the ranks: a process group, its name, or None for the default group. Without one, or with a single rank,
            nothing is sent.

    Returns:
        int32 ``[world_size * r, W]``, in rank order; a tensor of its own.

    Raises:
        ValueError: wrong dtype or rank of the tensor, or no such group; before anything is sent.
        CollectiveError: the ranks' shapes or steps disagree (raised on all of them), or a rank is gone or late.
    """
    gathered: torch.Tensor = torch.ops.structout.all_gather_bitmask(shard, name_of(group))
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
    """:func:`structout.masked_sample` where each rank holds some columns of the logits: the same ids, bit for bit.

    Equivalent to::

        logits = torch.cat(all_gather(logits_shard), dim=1)
        return masked_sample(logits, bitmask, rows, temperature=temperature, ...)

    but what is exchanged is 12 bytes a row without filters, and with filters (an argument that is not None, whatever it
    holds) what the masks allow of the logits, to the one rank that draws for the row.

    Args:
        logits_shard: ``[N, width]`` or ``[width]``, the columns from ``vocab_begin`` on; float32, float16 or bfloat16.
            Shards may be uneven, unaligned or empty; together they hold every column once.
        bitmask, rows: of the whole vocabulary, as in :func:`structout.masked_sample`; the same on all ranks, as is
            everything that follows.
        vocab_begin: the token id of the first column.
        group: as in :func:`all_gather_bitmask`.
        temperature, top_k, top_p, min_p, seed, position: as in :func:`structout.masked_sample`.

    Returns:
        int64 ``[N]``, the same on all ranks.

    Raises:
        ValueError: as :func:`structout.masked_sample`, on the rank where it is so; the others get a CollectiveError.
        CollectiveError: the ranks' arguments or steps disagree (raised on all of them), or a rank is gone or late.

    Source of the exchange: the max-score reduction of FlashSampling's tensor-parallel mode, extended to masks, exact
    ties and logprobs.
    """
    name = name_of(group)
    with _telling_others("sharded_masked_sample", logits_shard, name):
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
    """:func:`sharded_masked_sample`, and the logprobs of :func:`structout.masked_sample_logprobs`, bit for bit."""
    name = name_of(group)
    with _telling_others("sharded_masked_sample", logits_shard, name):
        parameters = ops.row_parameters(logits_shard, temperature, top_k, top_p, min_p, seed, position)
    ids, logprobs = torch.ops.structout.sharded_masked_sample_logprobs(
        logits_shard, bitmask, rows, *parameters, vocab_begin, name
    )
    return ids, logprobs
