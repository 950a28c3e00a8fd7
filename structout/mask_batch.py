"""MaskBatch: the one message from the scheduler to the workers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True)
class MaskBatch:
    """One step's masks, by request. It crosses processes as numpy, which is far cheaper to send than tensors.

    Attributes:
        request_ids: the requests that were asked for.
        bitmask: int32 ``[R, ceil(V / 32)]``: compact, only rows that constrain something.
        row_indptr: int32 ``[len(request_ids) + 1]``: request i owns rows ``row_indptr[i] ... row_indptr[i + 1]``. None:
            nothing constrains it (it has terminated, or it never was with the manager).
        errors: for requests that cannot go on, why. Their rows allow nothing.

    The bitmask lives in one of the manager's buffers: it is valid until the ``num_mask_buffers``-th next call.
    """

    request_ids: tuple[str, ...]
    bitmask: npt.NDArray[np.int32]
    row_indptr: npt.NDArray[np.int32]
    errors: Mapping[str, str] = field(default_factory=dict)

    def rows_for(
        self, batch_request_ids: Sequence[str], num_logits_per_request: Sequence[int] | None = None
    ) -> torch.Tensor:
        """The row map for a worker's batch, in the worker's order: int32 ``[N]``, -1 for requests without masks.

        Args:
            batch_request_ids: the requests whose logits are in the batch, in order.
            num_logits_per_request: logits rows of each of them. Default: one each. N is their sum.
        """
        counts = [1] * len(batch_request_ids) if num_logits_per_request is None else list(num_logits_per_request)
        if len(counts) != len(batch_request_ids):
            raise ValueError(f"num_logits_per_request has {len(counts)} entries for {len(batch_request_ids)} requests")
        first_row = dict(
            zip(self.request_ids, zip(self.row_indptr[:-1], self.row_indptr[1:], strict=True), strict=True)
        )
        rows = np.full(sum(counts), -1, dtype=np.int32)
        at = 0
        for request_id, count in zip(batch_request_ids, counts, strict=True):
            begin, end = first_row.get(request_id, (0, 0))
            if begin < end:
                if count > end - begin:
                    raise ValueError(f"{request_id!r} has {count} logits rows but only {end - begin} mask rows")
                rows[at : at + count] = np.arange(begin, begin + count)
            at += count
        return torch.from_numpy(rows)

    def to(self, device: torch.device | str) -> torch.Tensor:
        """The bitmask as a tensor on ``device``; asynchronous where the buffer is pinned."""
        return torch.from_numpy(self.bitmask).to(device, non_blocking=True)
