"""MaskedSampler: masked_sample as a module, for the place where an engine's sampler is."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from structout.mask_batch import MaskBatch
from structout.mask_pool import MaskPool, PooledMaskBatch
from structout.ops import masked_sample, masked_sample_logprobs


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


class MaskedSampler(torch.nn.Module):
    """Mask, temperature, filters and draw in one op; no state, no branch on the contents of the batch.

    Args:
        return_logprobs: return the logprobs of the drawn tokens too.
    """

    def __init__(self, return_logprobs: bool = False):
        super().__init__()
        self.return_logprobs = return_logprobs

    def forward(
        self, logits: torch.Tensor, masks: DeviceMasks | None, params: SamplingParams
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """
        Args:
            logits: ``[N, V]``, as the lm_head leaves them: float32, float16 or bfloat16.
            masks: this step's masks; None if no row is constrained.
            params: of each row.

        Returns:
            int64 ``[N]``, and float32 ``[N]`` if ``return_logprobs``. An id of -1
            means that nothing can be drawn: it must not reach an embedding.
        """
        sample = masked_sample_logprobs if self.return_logprobs else masked_sample
        return sample(logits, **op_arguments(masks, params))


def op_arguments(masks: DeviceMasks | None, params: SamplingParams) -> dict[str, Any]:
    """The keyword arguments of masked_sample."""
    arguments = {field.name: getattr(params, field.name) for field in fields(params)}
    if masks is not None:
        arguments |= {"bitmask": masks.bitmask, "rows": masks.rows}
    return arguments
