"""MaskedSampler: masked_sample as a module, for the place where an engine's sampler is."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.distributed as dist

from structout.distributed.cpu_communicator import name_of
from structout.mask_batch import MaskBatch, MaskShard
from structout.mask_pool import MaskPool, PooledMaskBatch
from structout.ops import masked_sample, masked_sample_logprobs
from structout.distributed.ops import all_gather_bitmask, sharded_masked_sample, sharded_masked_sample_logprobs


@dataclass(frozen=True)
class SamplingParams:
    """What each row of a batch asks of its draw: numbers for all rows, or tensors ``[N]`` on the logits' device.

    Dtypes and meaning as in :func:`structout.masked_sample`. ``position`` is the index of the token to draw within its
    text; together with ``seed`` it should not repeat.
    """

    temperature: torch.Tensor | float = 1.0
    top_k: torch.Tensor | int | None = None
    top_p: torch.Tensor | float | None = None
    min_p: torch.Tensor | float | None = None
    seed: torch.Tensor | int = 0
    position: torch.Tensor | int = 0


@dataclass(frozen=True)
class DeviceMasks:
    """A MaskBatch on the worker's device, in the order of its batch: what ops take."""

    bitmask: torch.Tensor  # int32 [R, ceil(V / 32)]; a pool's has a row for each of its slots
    rows: torch.Tensor  # int32 [N]

    @classmethod
    def of(
        cls,
        masks: MaskBatch,
        request_ids: Sequence[str],
        device: torch.device | str,
        num_logits_per_request: Sequence[int] | None = None,
    ) -> "DeviceMasks":
        rows = masks.rows_for(request_ids, num_logits_per_request)
        return cls(masks.to(device), rows.to(device, non_blocking=True))

    @classmethod
    def of_pool(
        cls,
        pool: MaskPool,
        masks: PooledMaskBatch,
        request_ids: Sequence[str],
        num_logits_per_request: Sequence[int] | None = None,
    ) -> "DeviceMasks":
        """The same masks, held by a pool: it takes those that are new; the bitmask is the pool's own."""
        rows = masks.rows_for(request_ids, num_logits_per_request)
        pool.update(masks)
        return cls(pool.bitmask, rows.to(pool.bitmask.device, non_blocking=True))

    @classmethod
    def of_shard(
        cls,
        shard: MaskShard,
        request_ids: Sequence[str],
        device: torch.device | str,
        num_logits_per_request: Sequence[int] | None = None,
        group: dist.ProcessGroup | str | None = None,
    ) -> "DeviceMasks":
        """The masks of all ranks, of which each copies only its own rows to its device; there they are gathered."""
        rows = shard.masks.rows_for(request_ids, num_logits_per_request)
        most = max(shard.rows_of_rank)
        mine = torch.from_numpy(shard.bitmask)
        padded = torch.zeros(most, mine.shape[1], dtype=torch.int32, device=device)  # ranks may have unequally many
        padded[: len(mine)].copy_(mine, non_blocking=True)
        of_rank = all_gather_bitmask(padded, group).split(most) if most > 0 else []
        bitmask = torch.cat([padded[:0], *(part[:n] for part, n in zip(of_rank, shard.rows_of_rank, strict=False))])
        return cls(bitmask, rows.to(device, non_blocking=True))


class MaskedSampler(torch.nn.Module):
    """Mask, temperature, filters and draw in one op; no state, no branch on the contents of the batch.

    Args:
        with_logprobs: return the logprobs of the drawn tokens too.
    """

    def __init__(self, with_logprobs: bool = False):
        super().__init__()
        self.with_logprobs = with_logprobs

    def forward(
        self, logits: torch.Tensor, masks: DeviceMasks | None, params: SamplingParams
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """
        Args:
            logits: ``[N, V]``, as the lm_head leaves them: float32, float16 or bfloat16.
            masks: this step's masks; None if no row is constrained.
            params: of each row.

        Returns:
            int64 ``[N]``, and float32 ``[N]`` if ``with_logprobs``. An id of -1 says that nothing can be drawn: it must
            not reach an embedding.
        """
        sample = masked_sample_logprobs if self.with_logprobs else masked_sample
        return sample(logits, **_arguments(masks, params))


class VocabParallelSampler(torch.nn.Module):
    """:class:`MaskedSampler` for a sharded lm_head: it takes this rank's columns of the logits and gives the
    ids that one rank with all of them would draw, bit for bit. The logits are never gathered.

    Args:
        vocab_start: the token id of this rank's first column.
        group: the tensor-parallel ranks: a process group, its name, or None for the default group.
        with_logprobs: return the logprobs of the drawn tokens too.
    """

    def __init__(self, vocab_start: int, group: dist.ProcessGroup | str | None = None, *, with_logprobs: bool = False):
        super().__init__()
        self.vocab_start = vocab_start
        self.group_name = name_of(group)
        if group is None and self.group_name == "":
            raise ValueError("there is no process group yet; make one first, or say group='' for a rank alone")
        self.with_logprobs = with_logprobs

    def forward(
        self, logits_shard: torch.Tensor, masks: DeviceMasks | None, params: SamplingParams
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """
        Args:
            logits_shard: ``[N, width]``, as this rank's part of the lm_head leaves them.
            masks, params: as :class:`MaskedSampler` takes them, the same on all ranks.

        Returns:
            as :class:`MaskedSampler`, the same on all ranks.
        """
        sample = sharded_masked_sample_logprobs if self.with_logprobs else sharded_masked_sample
        return sample(logits_shard, vocab_start=self.vocab_start, group=self.group_name, **_arguments(masks, params))


def _arguments(masks: DeviceMasks | None, params: SamplingParams) -> dict[str, Any]:
    """What masked_sample takes beside the logits."""
    arguments = {field.name: getattr(params, field.name) for field in fields(params)}
    if masks is not None:
        arguments |= {"bitmask": masks.bitmask, "rows": masks.rows}
    return arguments
