"""The logprobs of drawn tokens in the columns that vLLM reads."""

import torch

from structout.logprobs import TokenLogprobs


def logprob_columns(
    ids: torch.Tensor, scores: TokenLogprobs, vocab_size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Put the drawn token and the likeliest tokens side by side.

    vLLM's frontend decodes every id of a row and keeps the last entry of ids that
    repeat. A row with fewer than ``top_n`` allowed tokens therefore ends with other
    ids, each once, whose logprob is -inf: vLLM's own sampler returns such rows too.

    Args:
        ids: int64 ``[N]``, the drawn tokens, -1 where there is none.
        scores: of these tokens.
        vocab_size: V, at least ``top_n``.

    Returns:
        token ids int64 ``[N, 1 + top_n]``, none of them negative; their logprobs
        float32 ``[N, 1 + top_n]``; and the ranks of the drawn tokens int64 ``[N]``.
    """
    token_ids = torch.cat([ids.clamp(min=0)[:, None], _without_gaps(scores.top_ids, vocab_size)], dim=1)
    logprobs = torch.cat([scores.logprobs[:, None], scores.top_logprobs], dim=1)
    return token_ids, logprobs, scores.ranks


def _without_gaps(top_ids: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Replace each -1 with the lowest id that the row does not list yet."""
    top_n = top_ids.shape[1]
    if top_n == 0:
        return top_ids
    # A row lists at most top_n ids, so that enough of the first 2 * top_n are free.
    num_candidates = min(2 * top_n, vocab_size)
    is_gap = top_ids < 0
    listed = top_ids.where(~is_gap & (top_ids < num_candidates), num_candidates)
    is_listed = top_ids.new_zeros(top_ids.shape[0], num_candidates + 1).scatter_(1, listed, 1)
    free_ids = is_listed[:, :num_candidates].argsort(dim=1, stable=True)
    return free_ids.gather(1, (is_gap.cumsum(1) - 1).clamp(min=0)).where(is_gap, top_ids)
