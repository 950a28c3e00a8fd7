"""vLLM's ``LogprobsTensors`` of drawn tokens."""

from typing import Any

import torch
from vllm.v1.outputs import LogprobsTensors

from structout.ops.apply_bitmask import apply_bitmask
from structout.ops.sampler import DeviceMasks
from structout.ops.token_logprobs import MAX_TOP_N, token_logprobs


def is_dense(metadata: Any, logprobs_mode: str) -> bool:
    """True if a batch needs the logprobs of all tokens: for all or more than 64
    likeliest tokens, for tokens that a request lists, or in a mode other than
    raw_logprobs.

    Args:
        metadata: vLLM's ``SamplingMetadata``.
        logprobs_mode: what vLLM was configured to return.
    """
    in_list = 0 <= (metadata.max_num_logprobs or 0) <= MAX_TOP_N
    return not in_list or bool(metadata.logprob_token_ids) or logprobs_mode != "raw_logprobs"


def listed_logprobs(logits: torch.Tensor, ids: torch.Tensor, masks: DeviceMasks | None, top_n: int) -> LogprobsTensors:
    """The logprob and rank of each drawn token and the ``top_n`` likeliest tokens of
    those that the masks allow.

    Args:
        logits: ``[N, V]``. Only read.
        ids: int64 ``[N]``; rows with -1 have logprobs of -inf.
        masks: the masks of the rows; None if there are none.
        top_n: at most 64.
    """
    if masks is None:
        result = token_logprobs(logits, ids, top_n=top_n)
        top_ids = result.top_ids.clamp(min=0)
    else:
        result = token_logprobs(logits, ids, masks.bitmask, masks.rows, top_n=top_n)
        top_ids = _distinct(result.top_ids)
    return LogprobsTensors(
        torch.cat([ids.clamp(min=0).unsqueeze(1), top_ids], dim=1).to(torch.int32),
        torch.cat([result.logprobs.unsqueeze(1), result.top_logprobs], dim=1),
        result.ranks,
    )


def _distinct(top_ids: torch.Tensor) -> torch.Tensor:
    """Replace -1 by ids that are not in the row.

    vLLM keys a token's logprobs by id, so that a repeated id would hide one of them.
    """
    num_columns = top_ids.shape[1]
    candidates = torch.arange(num_columns, device=top_ids.device)
    is_used = (top_ids.unsqueeze(2) == candidates).any(1)  # [N, candidates]
    unused_first = is_used.to(torch.int8).argsort(dim=1, stable=True)
    is_missing = top_ids < 0
    # A row with m missing ids uses at most n - m of the n candidates.
    place = (is_missing.cumsum(1) - 1).clamp(min=0)
    return torch.where(is_missing, unused_first.gather(1, place), top_ids)


def dense_logprobs(
    sampler: Any, logits: torch.Tensor, ids: torch.Tensor, masks: DeviceMasks | None, metadata: Any
) -> LogprobsTensors:
    """The logprobs from vLLM's own sampler, which needs a float32 copy of all logits.

    Args:
        sampler: vLLM's ``Sampler``.
        logits: ``[N, V]``. Only read.
        ids: int64 ``[N]``.
        masks: the masks of the rows; None if there are none.
        metadata: vLLM's ``SamplingMetadata``.
    """
    logits = logits.to(torch.float32, copy=True)
    if masks is not None:
        apply_bitmask(logits, masks.bitmask, masks.rows)
    values = sampler.compute_logprobs(logits) if sampler.logprobs_mode == "raw_logprobs" else logits
    drawn = ids.clamp(min=0)
    if metadata.logprob_token_ids:
        return sampler.gather_specific_token_logprobs(values, metadata.logprob_token_ids, drawn)
    if metadata.max_num_logprobs == -1:
        return LogprobsTensors(torch.empty(0), values, torch.empty(0))
    return sampler.gather_logprobs(values, metadata.max_num_logprobs, drawn)
