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
        num_acceptable_drafts: int32 ``[len(request_ids)]``: how many drafts of each request its grammar allows, counted
            from the first.

    The bitmask lives in one of the manager's buffers: it is valid until the ``num_mask_buffers``-th next call.
    """

    request_ids: tuple[str, ...]
    bitmask: npt.NDArray[np.int32]
    row_indptr: npt.NDArray[np.int32]
    errors: Mapping[str, str] = field(default_factory=dict)
    num_acceptable_drafts: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))

    def rows_for(
        self, batch_request_ids: Sequence[str], num_logits_per_request: Sequence[int] | None = None
    ) -> torch.Tensor:
        """The row map for a worker's batch, in the worker's order: int32 ``[N]``, -1 for requests without masks.

        Args:
            batch_request_ids: the requests whose logits are in the batch, in order.
            num_logits_per_request: logits rows of each of them. Default: one each. N is their sum.
        """
        rows = map_rows(self.request_ids, self.row_indptr, batch_request_ids, num_logits_per_request)
        return torch.from_numpy(rows)

    def to(self, device: torch.device | str) -> torch.Tensor:
        """The bitmask as a tensor on ``device``; asynchronous where the buffer is pinned."""
        return torch.from_numpy(self.bitmask).to(device, non_blocking=True)


@dataclass(frozen=True)
class MaskShard:
    """A step's masks where each rank has filled some of the rows, and they have not met yet.

    Attributes:
        bitmask: int32 ``[rows_of_rank[rank], W]``, the rows of this rank, in one of its manager's buffers.
        masks: all else of the MaskBatch of all requests, which come in the order of the ranks; its bitmask has no row.
        rows_of_rank: how many rows each rank has.
    """

    bitmask: npt.NDArray[np.int32]
    masks: MaskBatch
    rows_of_rank: tuple[int, ...]


def map_rows(
    request_ids: Sequence[str],
    row_indptr: npt.NDArray[np.int32],
    batch_request_ids: Sequence[str],
    num_logits_per_request: Sequence[int] | None = None,
) -> npt.NDArray[np.int32]:
    """For each logits row of a worker's batch the mask row that governs it: int32 ``[N]``, -1 where there is none.

    Request ``request_ids[i]`` owns mask rows ``row_indptr[i] ... row_indptr[i + 1]``; its first logits row takes the
    first of them.

    Raises:
        ValueError: as many counts as requests are needed, and no more logits rows of a request than it has mask rows.
    """
    num_requests = len(batch_request_ids)
    counts = np.ones(num_requests, dtype=np.intp)
    if num_logits_per_request is not None:
        counts = np.array(num_logits_per_request, dtype=np.intp)
    if len(counts) != num_requests:
        raise ValueError(f"num_logits_per_request has {len(counts)} entries for {num_requests} requests")
    index_of = {request_id: i for i, request_id in enumerate(request_ids)}
    unknown = len(request_ids)  # owns the empty range at the end
    index = np.array([index_of.get(request_id, unknown) for request_id in batch_request_ids], dtype=np.intp)
    begin = np.append(row_indptr[:-1], 0)[index]
    num_masks = np.append(np.diff(row_indptr), 0)[index]
    too_many = (num_masks > 0) & (counts > num_masks)
    if too_many.any():
        i = int(too_many.argmax())
        raise ValueError(f"{batch_request_ids[i]!r} has {counts[i]} logits rows but only {num_masks[i]} mask rows")
    first_logits_row = np.cumsum(counts) - counts
    rows = np.arange(counts.sum()) + np.repeat(begin - first_logits_row, counts)
    rows[np.repeat(num_masks == 0, counts)] = -1
    return rows.astype(np.int32)
