"""MaskBatch: the message from the scheduler to the workers, one per decoding step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch


def _no_draft_counts() -> npt.NDArray[np.int32]:
    return np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, kw_only=True)
class MaskRows:
    """The mask rows of a step's requests, without the masks themselves.

    Attributes:
        request_ids: the requests of the step.
        row_indptr: int32 ``[len(request_ids) + 1]``. Request i owns rows
            ``row_indptr[i] ... row_indptr[i + 1]``. It owns none if it is
            unconstrained: it has terminated, or the manager does not know it.
        errors: the reason for each request that cannot continue. Its rows allow
            nothing.
        num_acceptable_drafts: int32 ``[len(request_ids)]``. How many of each request's
            leading drafts its grammar allows.
    """

    request_ids: tuple[str, ...]
    row_indptr: npt.NDArray[np.int32]
    errors: Mapping[str, str] = field(default_factory=dict)
    num_acceptable_drafts: npt.NDArray[np.int32] = field(default_factory=_no_draft_counts)

    def rows_for(
        self, batch_request_ids: Sequence[str], num_logits_per_request: Sequence[int] | None = None
    ) -> torch.Tensor:
        """The row map of a worker's batch, in the worker's order.

        Args:
            batch_request_ids: the requests whose logits are in the batch, in order.
            num_logits_per_request: how many logits rows each of them has. Default: one
                each. N is their sum.

        Returns:
            int32 ``[N]``: the mask row that governs each logits row, -1 for requests
            without mask rows. A request's first logits row takes its first mask row.

        Raises:
            ValueError: ``num_logits_per_request`` has the wrong length, or a request
                has more logits rows than mask rows.
        """
        return torch.from_numpy(self._map_rows(batch_request_ids, num_logits_per_request))

    def _map_rows(
        self, batch_request_ids: Sequence[str], num_logits_per_request: Sequence[int] | None
    ) -> npt.NDArray[np.int32]:
        num_requests = len(batch_request_ids)
        counts = np.ones(num_requests, dtype=np.intp)
        if num_logits_per_request is not None:
            counts = np.array(num_logits_per_request, dtype=np.intp)
        if len(counts) != num_requests:
            raise ValueError(
                f"num_logits_per_request needs one entry for each of the {num_requests} requests, got {len(counts)}"
            )
        index_of = {request_id: i for i, request_id in enumerate(self.request_ids)}
        unknown = len(self.request_ids)  # the index of an empty range, appended below
        index = np.array([index_of.get(request_id, unknown) for request_id in batch_request_ids], dtype=np.intp)
        first_mask_row = np.append(self.row_indptr[:-1], 0)[index]
        num_masks = np.append(np.diff(self.row_indptr), 0)[index]
        has_too_many = (num_masks > 0) & (counts > num_masks)
        if has_too_many.any():
            i = int(has_too_many.argmax())
            raise ValueError(
                f"request {batch_request_ids[i]!r} has {counts[i]} logits rows but only {num_masks[i]} mask rows; "
                "pass its drafts to grammar_bitmask too"
            )
        first_logits_row = np.cumsum(counts) - counts
        rows = np.arange(counts.sum()) + np.repeat(first_mask_row - first_logits_row, counts)
        rows[np.repeat(num_masks == 0, counts)] = -1
        return rows.astype(np.int32)


@dataclass(frozen=True, kw_only=True)
class MaskBatch(MaskRows):
    """The masks of one step.

    It crosses processes as numpy, because pickling tensors is 10 to 1,000 times slower.
    The bitmask lives in one of the manager's buffers: it stays valid until the
    ``num_mask_buffers``-th next call of ``grammar_bitmask``.

    Attributes:
        bitmask: int32 ``[R, ceil(V / 32)]``, one row for each constrained position.
    """

    bitmask: npt.NDArray[np.int32]

    def to(self, device: torch.device | str) -> torch.Tensor:
        """Copy the bitmask to ``device``, asynchronously where the buffer is pinned."""
        return torch.from_numpy(self.bitmask).to(device, non_blocking=True)


@dataclass(frozen=True, kw_only=True)
class MaskShard(MaskRows):
    """One rank's part of a step's masks: the rows that this rank filled.

    ``request_ids``, ``row_indptr``, ``errors`` and ``num_acceptable_drafts`` cover the
    requests of all ranks, in rank order.

    Attributes:
        bitmask: int32 ``[rows_of_rank[rank], ceil(V / 32)]``, in one of the manager's
            buffers.
        rows_of_rank: how many rows each rank has filled.
    """

    bitmask: npt.NDArray[np.int32]
    rows_of_rank: tuple[int, ...]
