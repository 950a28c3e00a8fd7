"""The ops of tensor parallelism for CUDA tensors, over a DeviceLink: fixed sequences of kernels and exchanges, whatever
the batch holds, so that a step can be captured in a graph. What they compute is what structout/sharding.py does.
"""

import torch

from structout.distributed.cuda_communicator import DeviceLink
from structout.distributed.vocab_parallel import ShardStep, draw, sample_shards, shard_rows, vocab_size_of
from structout.errors import CollectiveError

_NO_TOKEN, _ALL_BITS = 0x00, 0xFF  # fill results after an error: masks that allow nothing; ids of -1, logits of NaN


def gather_masks(link: DeviceLink, shard: torch.Tensor) -> torch.Tensor:
    return link.all_gather(shard, (), _NO_TOKEN).flatten(0, 1)


def sample(link: DeviceLink, step: ShardStep, return_logprobs: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    try:
        vocab_size = vocab_size_of(link.columns(step.columns))
    except ValueError as problem:
        raise CollectiveError(f"sharded_masked_sample: {problem}", link.rank, 0) from None
    if step.has_filters:
        return _sample_owned(link, step, vocab_size, return_logprobs)
    return sample_shards(step, return_logprobs, lambda mine: link.all_gather(mine, ("shards", vocab_size), _ALL_BITS))


def _sample_owned(
    link: DeviceLink, step: ShardStep, vocab_size: int, return_logprobs: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    num_rows = step.logits.shape[0]
    owned = [shard_rows(num_rows, rank, link.world_size) for rank in range(link.world_size)]
    mine = owned[link.rank]
    logits, row_map = link.own_rows(step, vocab_size)
    bitmask = step.masks(mine)[0] if row_map is None or step.bitmask is None else step.bitmask
    if bitmask is None and row_map is not None:
        bitmask = torch.zeros(0, 1, dtype=torch.int32, device=logits.device)  # no mask, so that -2 can say "nothing"
    answers = torch.full((-(-num_rows // link.world_size), 2), -1, dtype=torch.int32, device=logits.device)
    ids, logprobs = draw(logits, bitmask, row_map, *step.parameters(mine), return_logprobs=return_logprobs)
    if logprobs is not None:
        answers[: len(mine), 1] = logprobs.view(torch.int32)
    answers[: len(mine), 0] = ids
    of_all = link.all_gather(answers, ("answers", vocab_size), _ALL_BITS)
    in_order = torch.cat([of_all[rank, : len(rows)] for rank, rows in enumerate(owned)])
    ids = in_order[:, 0].long()
    return ids, in_order[:, 1].contiguous().view(torch.float32) if return_logprobs else None
