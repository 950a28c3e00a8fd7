"""Logprobs, ranks and the likeliest tokens where the vocabulary is divided among ranks.

Two exchanges, of 4 + 8 * max(1, top_n) and of 16 bytes a row and rank: the likeliest
tokens of all shards, then the totals that logprobs and ranks are made of. The results
have the bits of token_logprobs on the gathered logits.
"""

from collections.abc import Callable

import torch

from structout.distributed.cuda_communicator import Communicator

# Returns a tensor of every rank, [world_size, *local.shape].
AllGather = Callable[[torch.Tensor], torch.Tensor]
# Mask, row map and temperature; each may be None.
Masks = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]

FILL_RESULTS = 0xFF  # a byte that makes ids -1 and logits NaN after an error


def sharded_token_logprobs(
    logits: torch.Tensor, masks: Masks, token_ids: torch.Tensor, vocab_begin: int, top_n: int, all_gather: AllGather
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what ``token_logprobs`` returns for logits ``[N, width]`` of each rank."""
    num_top = max(1, top_n)
    top_ids, top_logits, token_logits = torch.ops.structout._top_tokens(logits, *masks, token_ids, vocab_begin, num_top)
    found = [top_ids.int(), top_logits.view(torch.int32), token_logits.view(torch.int32).unsqueeze(1)]
    found_by_ranks = all_gather(torch.cat(found, dim=1)).unbind()
    top_ids = torch.cat([found[:, :num_top] for found in found_by_ranks], dim=1)
    top_logits = torch.cat([found[:, num_top:-1] for found in found_by_ranks], dim=1).view(torch.float32)
    token_logits = torch.stack([found[:, -1] for found in found_by_ranks]).view(torch.float32).amax(dim=0)

    by_id = top_ids.argsort(dim=1)
    by_logit = top_logits.gather(1, by_id).argsort(dim=1, descending=True, stable=True)  # ties: the lowest id first
    order = by_id.gather(1, by_logit)[:, :num_top]
    top_ids, top_logits = top_ids.gather(1, order).long(), top_logits.gather(1, order)

    returned_logits = top_logits[:, :top_n].contiguous()
    logprobs, ranks, top_logprobs = logprobs_of_logits(
        logits, masks, vocab_begin, top_logits[:, 0], token_logits, returned_logits, all_gather
    )
    return logprobs, ranks, top_ids[:, :top_n].contiguous(), top_logprobs


def logprobs_of_logits(
    logits: torch.Tensor,
    masks: Masks,
    vocab_begin: int,
    highest: torch.Tensor,
    token_logits: torch.Tensor,
    top_logits: torch.Tensor,
    all_gather: AllGather,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The second exchange: logprobs ``[N]`` and ranks ``[N]`` of tokens whose logits
    all ranks know, and logprobs ``[N, n]`` of the top logits.

    Args:
        logits: ``[N, width]``, this rank's columns.
        masks: as ``token_logprobs`` takes them.
        vocab_begin: the token id of the first column.
        highest: float32 ``[N]``, the highest allowed logit of each row.
        token_logits: float32 ``[N]``.
        top_logits: float32 ``[N, n]``.
        all_gather: the exchange.
    """
    totals = all_gather(torch.ops.structout._row_totals(logits, *masks, highest, token_logits, vocab_begin))
    logprobs, ranks, top_logprobs = torch.ops.structout._merge_totals(
        totals, masks[2], highest, token_logits, top_logits
    )
    return logprobs, ranks, top_logprobs


def exchange(communicator: Communicator, top_n: int) -> AllGather:
    """The exchange of :func:`sharded_token_logprobs`."""
    return lambda local: communicator.all_gather(local, ("top", top_n), FILL_RESULTS)
