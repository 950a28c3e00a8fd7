"""VocabParallelSampler: MaskedSampler for a vocabulary that is divided among ranks."""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from structout.distributed.ops import all_gather_bitmask, sharded_masked_sample, sharded_masked_sample_logprobs
from structout.distributed.process_groups import group_name_of
from structout.mask_batch import MaskShard
from structout.sampler import (
    DeviceMasks,
    Drafts,
    LogitBias,
    Penalties,
    SamplingParams,
    change_listed,
    op_arguments,
    refuse_logprobs_of_drafts,
)


def gather_device_masks(
    shard: MaskShard,
    request_ids: Sequence[str],
    device: torch.device | str,
    num_logits_per_request: Sequence[int] | None = None,
    group: dist.ProcessGroup | str | None = None,
) -> DeviceMasks:
    """Gather the masks of all ranks on each rank's device.

    Each rank copies only the rows that it filled to its device. The devices exchange
    the rest.

    Args:
        shard: from :meth:`ShardedManager.grammar_bitmask_shard`.
        request_ids: the requests of the worker's batch, in its order.
        device: the logits' device.
        num_logits_per_request: logits rows of each request. Default: one each.
        group: as in :func:`all_gather_bitmask`.
    """
    row_map = shard.rows_for(request_ids, num_logits_per_request)
    max_rows = max(shard.rows_of_rank)
    local_rows = torch.from_numpy(shard.bitmask)
    # Padded, because an all-gather needs equal sizes.
    local_masks = torch.zeros(max_rows, local_rows.shape[1], dtype=torch.int32, device=device)
    local_masks[: len(local_rows)].copy_(local_rows, non_blocking=True)
    all_masks = all_gather_bitmask(local_masks, group).split(max_rows) if max_rows > 0 else []
    masks_of_ranks = [masks[:num_rows] for masks, num_rows in zip(all_masks, shard.rows_of_rank, strict=False)]
    bitmask = torch.cat([local_masks[:0], *masks_of_ranks])
    return DeviceMasks(bitmask, row_map.to(device, non_blocking=True))


class VocabParallelSampler(torch.nn.Module):
    """:class:`MaskedSampler` for a sharded lm_head.

    It takes this rank's columns of the logits and returns the ids that a single rank
    with all columns would draw, bit for bit. The logits are never gathered.

    Args:
        vocab_begin: the token id of this rank's first column.
        group: the tensor-parallel ranks: a process group, its name, or None for the
            default group. ``""`` is a single rank without a group.
        return_logprobs: return the logprobs of the drawn tokens too.
    """

    def __init__(
        self, vocab_begin: int, group: dist.ProcessGroup | str | None = None, *, return_logprobs: bool = False
    ):
        super().__init__()
        self.vocab_begin = vocab_begin
        self.group_name = group_name_of(group)
        if group is None and self.group_name == "":
            raise ValueError(
                "there is no default process group; call torch.distributed.init_process_group first, or pass "
                "group='' for a single rank"
            )
        self.return_logprobs = return_logprobs

    def forward(
        self,
        logits_shard: torch.Tensor,
        masks: DeviceMasks | None,
        params: SamplingParams,
        *,
        penalties: Penalties | None = None,
        bias: LogitBias | None = None,
        drafts: Drafts | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Sample one token a row.

        Args:
            logits_shard: ``[N, width]``, the output of this rank's part of the lm_head.
                Penalties and bias change this rank's columns in place.
            masks: as in :class:`MaskedSampler`; the same on all ranks, as are all
                further arguments.
            params: as in :class:`MaskedSampler`.
            penalties: as in :class:`MaskedSampler`, with token ids of the whole
                vocabulary.
            bias: as in :class:`MaskedSampler`, with token ids of the whole vocabulary.
            drafts: as in :class:`MaskedSampler`.

        Returns:
            As :class:`MaskedSampler`; the same on all ranks.
        """
        change_listed(logits_shard, penalties, bias, self.vocab_begin)
        arguments = op_arguments(masks, params) | {"vocab_begin": self.vocab_begin, "group": self.group_name}
        if drafts is not None:
            refuse_logprobs_of_drafts(self.return_logprobs)
            ids = sharded_masked_sample(logits_shard, **arguments)
            return ids, torch.ops.structout._accept_drafts(ids, drafts.token_ids, drafts.row_indptr)
        sample = sharded_masked_sample_logprobs if self.return_logprobs else sharded_masked_sample
        return sample(logits_shard, **arguments)
