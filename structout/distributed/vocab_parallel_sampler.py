"""VocabParallelSampler: MaskedSampler for a vocabulary that is divided among ranks."""

from typing import Any

import torch
import torch.distributed as dist

from structout.distributed.collectives import sharded_masked_sample, sharded_token_logprobs
from structout.distributed.process_groups import group_name_of
from structout.ops.sampler import (
    DeviceMasks,
    Drafts,
    LogitBias,
    Penalties,
    SamplerOutput,
    SamplingParams,
    change_listed,
    logprob_context,
    op_arguments,
    unchanged_logits,
)
from structout.ops.token_logprobs import check_top_n


class VocabParallelSampler(torch.nn.Module):
    """:class:`MaskedSampler` for a sharded lm_head.

    It takes this rank's columns of the logits and returns the ids that a single rank
    with all columns would draw, bit for bit. The logits are never gathered.

    Args:
        vocab_begin: the token id of this rank's first column.
        group: the tensor-parallel ranks: a process group, its name, or None for the
            default group. ``""`` is a single rank without a group.
        top_n: as in :class:`MaskedSampler`.
        raw: as in :class:`MaskedSampler`.
    """

    def __init__(
        self,
        vocab_begin: int,
        group: dist.ProcessGroup | str | None = None,
        *,
        top_n: int | None = None,
        raw: bool = False,
    ):
        super().__init__()
        self.vocab_begin = vocab_begin
        self.group_name = group_name_of(group)
        if group is None and self.group_name == "":
            raise ValueError(
                "there is no default process group; call torch.distributed.init_process_group first, or pass "
                "group='' for a single rank"
            )
        if top_n is not None:
            check_top_n("VocabParallelSampler", top_n)
        self.top_n = top_n
        self.raw = raw

    def forward(
        self,
        logits_shard: torch.Tensor,
        masks: DeviceMasks | None,
        params: SamplingParams,
        *,
        penalties: Penalties | None = None,
        bias: LogitBias | None = None,
        drafts: Drafts | None = None,
    ) -> SamplerOutput:
        """Sample one token a row.

        Args:
            logits_shard: ``[N, width]``, the output of this rank's part of the lm_head.
                Penalties and bias change this rank's columns in place.
            masks: as in :class:`MaskedSampler`, as are all further arguments: the same
                on all ranks, with token ids of the whole vocabulary.

        Returns:
            As :class:`MaskedSampler`; the same on all ranks.
        """
        raw_logits = logits_shard
        if self.raw and self.top_n is not None:
            raw_logits = unchanged_logits(logits_shard, penalties, bias)
        change_listed(logits_shard, penalties, bias, self.vocab_begin)
        arguments = op_arguments(masks, params)
        shard: dict[str, Any] = {"vocab_begin": self.vocab_begin, "group": self.group_name}
        ids = sharded_masked_sample(logits_shard, **arguments, **shard)
        num_accepted = None
        if drafts is not None:
            num_accepted = torch.ops.structout._accept_drafts(ids, drafts.token_ids, drafts.row_indptr)
        if self.top_n is None:
            return SamplerOutput(ids, num_accepted=num_accepted)
        context = {} if self.raw else logprob_context(arguments)
        logprobs = sharded_token_logprobs(raw_logits, ids, **context, **shard, top_n=self.top_n)
        return SamplerOutput(ids, *logprobs, num_accepted=num_accepted)
