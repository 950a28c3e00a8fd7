"""Wrappers and implementations of the collective ops."""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from structout.distributed import sharded_logprobs, vocab_parallel
from structout.distributed.checked_collectives import checked_collectives, checksum_tensors
from structout.distributed.cuda_communicator import Communicator, cuda_communicator
from structout.distributed.process_groups import group_name_of, world_size_of
from structout.distributed.vocab_shard import VocabShard
from structout.errors import CollectiveError
from structout.ops.row_parameters import float_parameter, row_parameters
from structout.ops.token_logprobs import TokenLogprobs, TopnSample, check_top_n, log_kept_by

_SAMPLE = "sharded_masked_sample"


@contextlib.contextmanager
def _report_failure_to_peers(operation: str, tensor: torch.Tensor, group_name: str) -> Iterator[None]:
    """Make the other ranks' call fail too if this rank's does, for CPU tensors."""
    try:
        yield
    except CollectiveError:
        raise
    except Exception as error:
        if tensor.device.type == "cpu" and world_size_of(group_name) > 1:
            checked_collectives(group_name).report_failure(operation, error)
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
        communicator = checked_collectives(group_name)
        num_rows, width = shard.shape
        communicator.begin("all_gather_bitmask", {"number of rows": num_rows, "mask width": width})
        return vocab_parallel.all_gather_bitmask(communicator, shard)
    return vocab_parallel.all_gather_bitmask(cuda_communicator(group_name, shard.device), shard)


def sharded_masked_sample_impl(*arguments: Any, return_logprobs: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Implement ``torch.ops.structout.sharded_masked_sample``, with its arguments."""
    *tensors, vocab_begin, group_name = arguments
    with _report_failure_to_peers(_SAMPLE, tensors[0], group_name):
        shard = VocabShard.from_op_arguments(tuple(tensors), vocab_begin)
        if world_size_of(group_name) == 1:
            return vocab_parallel.sample_single_rank(shard, return_logprobs)
        if shard.logits.device.type != "cpu":
            return vocab_parallel.sample(cuda_communicator(group_name, shard.logits.device), shard, return_logprobs)
        replicated = (shard.bitmask, shard.rows, shard.temperature, shard.top_k, shard.top_p, shard.min_p)
        communicator = checked_collectives(group_name)
        communicator.begin(
            _SAMPLE,
            {
                "number of rows": len(shard.logits),
                "dtype of the logits": shard.logits.dtype,
                "masks and parameters": checksum_tensors(*replicated, shard.seed, shard.position),
                "logprobs": return_logprobs,
            },
            shard.columns,
        )
        return vocab_parallel.sample(communicator, shard, return_logprobs)


def sharded_token_logprobs_impl(
    logits_shard: torch.Tensor,
    bitmask: torch.Tensor | None,
    rows: torch.Tensor | None,
    temperature: torch.Tensor | None,
    token_ids: torch.Tensor,
    vocab_begin: int,
    top_n: int,
    group_name: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Implement ``torch.ops.structout.sharded_token_logprobs``."""
    logits = torch.atleast_2d(logits_shard)
    masks = (bitmask, rows, temperature)
    if world_size_of(group_name) == 1:
        results: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor] = torch.ops.structout.token_logprobs(
            logits, *masks, token_ids, top_n
        )
        return results
    communicator: Communicator
    with _report_failure_to_peers("sharded_token_logprobs", logits, group_name):
        torch.ops.structout._check_sharded_token_logprobs(logits, *masks, token_ids, vocab_begin, top_n)
        if logits.device.type == "cpu":
            communicator = checked = checked_collectives(group_name)
            checked.begin(
                "sharded_token_logprobs",
                {
                    "number of rows": len(logits),
                    "dtype of the logits": logits.dtype,
                    "masks, temperatures and token ids": checksum_tensors(*masks, token_ids),
                    "top_n": top_n,
                },
                (vocab_begin, logits.shape[1]),
            )
        else:
            communicator = cuda_communicator(group_name, logits.device)
        exchange = sharded_logprobs.exchange(communicator, top_n)
        return sharded_logprobs.sharded_token_logprobs(logits, masks, token_ids, vocab_begin, top_n, exchange)


def sharded_masked_sample_topn_impl(*arguments: Any) -> tuple[torch.Tensor, ...]:
    """Implement ``torch.ops.structout.sharded_masked_sample_topn``, with its
    arguments."""
    *tensors, vocab_begin, top_n, raw, group_name = arguments
    logits, bitmask, rows, temperature = tensors[:4]
    with _report_failure_to_peers(_SAMPLE, logits, group_name):
        check_top_n("sharded_masked_sample_topn", top_n)
    ids, _ = sharded_masked_sample_impl(*tensors, vocab_begin, group_name, return_logprobs=False)
    if raw:
        bitmask = rows = temperature = None
    logprobs = sharded_token_logprobs_impl(logits, bitmask, rows, temperature, ids, vocab_begin, top_n, group_name)
    return ids, *logprobs


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
    that is not None, whatever its values) each row's logits go to one owner rank, which
    samples it.

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
        temperature: as in :func:`structout.masked_sample`, as are the others.

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
    with _report_failure_to_peers(_SAMPLE, logits_shard, name):
        parameters = row_parameters(logits_shard, temperature, top_k, top_p, min_p, seed, position)
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
    with _report_failure_to_peers(_SAMPLE, logits_shard, name):
        parameters = row_parameters(logits_shard, temperature, top_k, top_p, min_p, seed, position)
    ids, logprobs = torch.ops.structout.sharded_masked_sample_logprobs(
        logits_shard, bitmask, rows, *parameters, vocab_begin, name
    )
    return ids, logprobs


def sharded_token_logprobs(
    logits_shard: torch.Tensor,
    token_ids: torch.Tensor,
    bitmask: torch.Tensor | None = None,
    rows: torch.Tensor | None = None,
    *,
    vocab_begin: int,
    group: dist.ProcessGroup | str | None = None,
    temperature: torch.Tensor | float | None = None,
    top_n: int = 0,
) -> TokenLogprobs:
    """Compute logprobs, ranks and the likeliest tokens where each rank holds some
    columns of the logits.

    Args:
        logits_shard: as in :func:`sharded_masked_sample`.
        token_ids: as in :func:`structout.token_logprobs`, as are all further arguments
            but these two: the same on all ranks.
        vocab_begin: the token id of the first column.
        group: as in :func:`all_gather_bitmask`.

    Returns:
        the result of :func:`structout.token_logprobs`, bit for bit, on all ranks.

    Raises:
        ValueError: as :func:`structout.token_logprobs`, on the rank with the invalid
            argument; the others raise a CollectiveError.
        CollectiveError: as :func:`sharded_masked_sample`.
    """
    name = group_name_of(group)
    with _report_failure_to_peers("sharded_token_logprobs", logits_shard, name):
        if temperature is not None:
            temperature = float_parameter("sharded_token_logprobs", "temperature", temperature, logits_shard)
    return TokenLogprobs(
        *torch.ops.structout.sharded_token_logprobs(
            logits_shard, bitmask, rows, temperature, token_ids, vocab_begin, top_n, name
        )
    )


def sharded_log_kept(
    logits_shard: torch.Tensor,
    bitmask: torch.Tensor | None,
    rows: torch.Tensor | None = None,
    *,
    vocab_begin: int,
    group: dist.ProcessGroup | str | None = None,
    temperature: torch.Tensor | float | None = None,
) -> torch.Tensor:
    """Compute the log of the probability that a mask leaves of each row, where each
    rank holds some columns of the logits.

    Args:
        logits_shard: as in :func:`sharded_token_logprobs`, as are all other arguments.
        bitmask: see ``logits_shard``.
        rows: see ``logits_shard``.
        vocab_begin: see ``logits_shard``.
        group: see ``logits_shard``.
        temperature: see ``logits_shard``.

    Returns:
        the result of :func:`structout.log_kept`, bit for bit, on all ranks.

    Raises:
        ValueError: as :func:`sharded_token_logprobs`.
        CollectiveError: as :func:`sharded_masked_sample`.
    """
    logprobs = partial(
        sharded_token_logprobs, logits_shard, vocab_begin=vocab_begin, group=group, temperature=temperature
    )
    return log_kept_by(logprobs, logits_shard, bitmask, rows)


def sharded_masked_sample_topn(
    logits_shard: torch.Tensor,
    bitmask: torch.Tensor | None = None,
    rows: torch.Tensor | None = None,
    *,
    vocab_begin: int,
    top_n: int,
    raw: bool = False,
    group: dist.ProcessGroup | str | None = None,
    temperature: torch.Tensor | float = 1.0,
    top_k: torch.Tensor | int | None = None,
    top_p: torch.Tensor | float | None = None,
    min_p: torch.Tensor | float | None = None,
    seed: torch.Tensor | int = 0,
    position: torch.Tensor | int = 0,
) -> TopnSample:
    """Sample as :func:`sharded_masked_sample` does, and return logprobs, ranks and the
    likeliest tokens too.

    ``top_n`` and ``raw`` are those of :func:`structout.masked_sample_topn`, the same on
    all ranks; the other arguments are those of :func:`sharded_masked_sample`.

    Returns:
        the result of :func:`structout.masked_sample_topn`, bit for bit, on all ranks.
    """
    name = group_name_of(group)
    with _report_failure_to_peers(_SAMPLE, logits_shard, name):
        parameters = row_parameters(logits_shard, temperature, top_k, top_p, min_p, seed, position)
    return TopnSample(
        *torch.ops.structout.sharded_masked_sample_topn(
            logits_shard, bitmask, rows, *parameters, vocab_begin, top_n, raw, name
        )
    )
