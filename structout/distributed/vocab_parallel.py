"""all_gather_bitmask and sharded_masked_sample among several ranks.

Each rank holds columns ``vocab_begin ... vocab_begin + width`` of the logits. The
exchanges between ranks depend only on what the host knows, never on values in the
batch, so a step on CUDA tensors can be captured in a graph:

    no filters    each row's highest logit, and its drawn token's score and id: 12 bytes
    + logprobs    also the drawn token's logit, then the shard's mass: 24 bytes in all
    with filters  each row's logits to its owner rank, then the drawn ids to all

Every path gives the bits of masked_sample on the gathered logits
(docs/tensor_parallel.md).
"""

import torch

from structout.distributed.cuda_communicator import Communicator
from structout.distributed.sharded_logprobs import FILL_RESULTS, AllGather, logprobs_of_logits
from structout.distributed.vocab_shard import VocabShard, owned_rows, vocab_size_from
from structout.errors import CollectiveError

_FILL_MASKS = 0x00  # a byte that makes masks allow nothing after an error

SampleResult = tuple[torch.Tensor, torch.Tensor | None]  # ids, logprobs


def all_gather_bitmask(communicator: Communicator, local_masks: torch.Tensor) -> torch.Tensor:
    """Gather ``[r, W]`` of every rank to ``[world_size * r, W]`` in rank order."""
    return communicator.all_gather(local_masks, (), _FILL_MASKS).flatten(0, 1)


def sample_single_rank(shard: VocabShard, return_logprobs: bool) -> SampleResult:
    """Sample where one rank holds the whole vocabulary."""
    if shard.vocab_begin != 0:
        raise ValueError(
            "sharded_masked_sample: a single rank must hold all columns, so vocab_begin must be 0, "
            f"got {shard.vocab_begin}"
        )
    parameters = shard.row_parameters(range(len(shard.logits)))
    return _masked_sample(shard.logits, shard.bitmask, shard.rows, *parameters, return_logprobs=return_logprobs)


def sample(communicator: Communicator, shard: VocabShard, return_logprobs: bool) -> SampleResult:
    """Sample on all ranks, by a fixed sequence of kernels and exchanges."""
    try:
        vocab_size = vocab_size_from(tuple(communicator.all_columns(shard.columns)))
    except ValueError as error:
        raise CollectiveError(f"sharded_masked_sample: {error}", communicator.rank, 0) from None
    if shard.has_filters:
        return _sample_owned_rows(communicator, shard, vocab_size, return_logprobs)
    return _sample_by_shard(
        shard, return_logprobs, lambda local: communicator.all_gather(local, ("shards", vocab_size), FILL_RESULTS)
    )


def _sample_by_shard(shard: VocabShard, return_logprobs: bool, all_gather: AllGather) -> SampleResult:
    """Draw on every rank among its columns, and take the best draw of each row."""
    local_results = torch.ops.structout._sample_shard(*shard.unfiltered_arguments)
    all_results = all_gather(local_results if return_logprobs else local_results[:3])
    ids, merged = torch.ops.structout._merge_shard_results(all_results, shard.temperature)
    if not return_logprobs:
        return ids, None
    masks = (shard.bitmask, shard.rows, shard.temperature)
    highest, token_logits = merged[0].view(torch.float32), merged[3].view(torch.float32)
    no_top = token_logits.new_empty(len(ids), 0)
    return ids, logprobs_of_logits(shard.logits, masks, shard.vocab_begin, highest, token_logits, no_top, all_gather)[0]


def _sample_owned_rows(
    communicator: Communicator, shard: VocabShard, vocab_size: int, return_logprobs: bool
) -> SampleResult:
    """Draw for the rows that this rank owns, from the allowed logits of all shards."""
    num_rows = shard.logits.shape[0]
    rows_of_ranks = [owned_rows(num_rows, rank, communicator.world_size) for rank in range(communicator.world_size)]
    local_rows = rows_of_ranks[communicator.rank]
    logits, row_map = communicator.gather_owned_rows(shard, vocab_size)
    bitmask = shard.masks(local_rows)[0] if row_map is None or shard.bitmask is None else shard.bitmask
    if bitmask is None and row_map is not None:
        # A bitmask without rows, so that the row map's -2 (a failed exchange) disallows
        # everything.
        bitmask = torch.zeros(0, 1, dtype=torch.int32, device=logits.device)
    ids, logprobs = _masked_sample(
        logits, bitmask, row_map, *shard.row_parameters(local_rows), return_logprobs=return_logprobs
    )
    max_rows = -(-num_rows // communicator.world_size)
    local_results = torch.full((max_rows, 2), -1, dtype=torch.int32, device=logits.device)
    if logprobs is not None:
        local_results[: len(local_rows), 1] = logprobs.view(torch.int32)
    local_results[: len(local_rows), 0] = ids
    all_results = communicator.all_gather(local_results, ("answers", vocab_size), FILL_RESULTS)
    results = torch.cat([all_results[rank, : len(rows)] for rank, rows in enumerate(rows_of_ranks)])
    return results[:, 0].long(), results[:, 1].contiguous().view(torch.float32) if return_logprobs else None


def _masked_sample(logits: torch.Tensor, *arguments: torch.Tensor | None, return_logprobs: bool) -> SampleResult:
    if not return_logprobs:
        return torch.ops.structout.masked_sample(logits, *arguments), None
    ids, logprobs = torch.ops.structout.masked_sample_logprobs(logits, *arguments)
    return ids, logprobs
