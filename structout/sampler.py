"""MaskedSampler: ``masked_sample`` as a module, in place of an engine's sampler."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from structout.mask_batch import MaskBatch
from structout.mask_pool import MaskPool, PooledMaskBatch
from structout.ops import masked_sample, masked_sample_logprobs


@dataclass(frozen=True)
class SamplingParams:
    """The per-row parameters of :func:`structout.masked_sample`, with the same meaning.

    Each is a number for all rows, or a tensor ``[N]`` on the logits' device.

    Attributes:
        temperature: float32. 0 is greedy.
        top_k: int32 or int64; None or k <= 0 turns it off.
        top_p: float32; None or p >= 1 turns it off.
        min_p: float32; None or 0 turns it off.
        seed: int64.
        position: int64, the index of the token in its text. Do not repeat a
            (seed, position) pair.
    """

    temperature: torch.Tensor | float = 1.0
    top_k: torch.Tensor | int | None = None
    top_p: torch.Tensor | float | None = None
    min_p: torch.Tensor | float | None = None
    seed: torch.Tensor | int = 0
    position: torch.Tensor | int = 0


@dataclass(frozen=True)
class DeviceMasks:
    """A step's masks on the worker's device, in the order of the worker's batch.

    Attributes:
        bitmask: int32 ``[R, ceil(V / 32)]``; with a pool, R is the pool's capacity.
        rows: int32 ``[N]``, the bitmask row of each logits row, -1 for none.
    """

    bitmask: torch.Tensor
    rows: torch.Tensor

    @classmethod
    def of(
        cls,
        masks: MaskBatch,
        request_ids: Sequence[str],
        device: torch.device | str,
        num_logits_per_request: Sequence[int] | None = None,
    ) -> "DeviceMasks":
        """Copy a step's masks to the device.

        Args:
            masks: the step's masks.
            request_ids: the requests of the worker's batch, in order.
            device: the device of the logits.
            num_logits_per_request: how many logits rows each request has. Default: one
                each.
        """
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
        """Copy a step's new masks to the pool, and use the pool's bitmask.

        Args:
            pool: the worker's pool.
            masks: the step's masks, from the scheduler's MaskDeduplicator.
            request_ids: the requests of the worker's batch, in order.
            num_logits_per_request: how many logits rows each request has. Default: one
                each.
        """
        rows = masks.rows_for(request_ids, num_logits_per_request)
        pool.update(masks)
        return cls(pool.bitmask, rows.to(pool.bitmask.device, non_blocking=True))


class MaskedSampler(torch.nn.Module):
    """Masks, filters and samples in one op.

    It has no state, and no branch depends on the contents of the batch, so it compiles
    to one graph and can be captured in a CUDA graph.

    Args:
        return_logprobs: whether to return the logprobs of the drawn tokens too.
    """

    def __init__(self, return_logprobs: bool = False):
        super().__init__()
        self.return_logprobs = return_logprobs

    def forward(
        self, logits: torch.Tensor, masks: DeviceMasks | None, params: SamplingParams
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Draw one token from each row.

        Args:
            logits: ``[N, V]``, float32, float16 or bfloat16.
            masks: the step's masks; None if no row is constrained.
            params: the sampling parameters of each row.

        Returns:
            ids int64 ``[N]``; with ``return_logprobs`` also logprobs float32 ``[N]``.
            The id -1 means that no token can be drawn. Replace it before the next
            forward pass: it is no index of an embedding.
        """
        sample = masked_sample_logprobs if self.return_logprobs else masked_sample
        return sample(logits, **op_arguments(masks, params))


def op_arguments(masks: DeviceMasks | None, params: SamplingParams) -> dict[str, Any]:
    """The keyword arguments of ``masked_sample`` for these masks and parameters."""
    arguments = {field.name: getattr(params, field.name) for field in fields(params)}
    if masks is not None:
        arguments |= {"bitmask": masks.bitmask, "rows": masks.rows}
    return arguments
