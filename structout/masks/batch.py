"""MaskBatch: the message from the scheduler to the workers, one per decoding step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from structout.errors import StaleMasksError
from structout.masks.buffers import Lease

if TYPE_CHECKING:
    import torch


def _no_draft_counts() -> npt.NDArray[np.int32]:
    return np.zeros(0, dtype=np.int32)


class _LeasedBitmask:
    """An attribute that can be read as long as no later step uses its buffer. It cannot
    be written to, because later steps write only what differs from it."""

    def __get__(self, masks: MaskBatch | None, owner: type) -> npt.NDArray[np.int32]:
        if masks is None:
            raise AttributeError("bitmask")  # dataclasses: it has no default
        bitmask = masks._memory()
        if masks.lease is not None:
            bitmask = bitmask.view()
            bitmask.flags.writeable = False
        return bitmask

    def __set__(self, masks: MaskBatch, bitmask: npt.NDArray[np.int32]) -> None:
        vars(masks)["bitmask"] = bitmask


class _ArrayMemory:
    """The memory of an array, for another that numpy takes for writable."""

    def __init__(self, array: npt.NDArray[np.int32]):
        self._array = array  # lives as long as its memory is used
        self.__array_interface__ = array.__array_interface__ | {"data": (array.ctypes.data, False)}


def _as_writable(array: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """The array, or one over its memory that is marked writable: torch warns about
    read-only arrays, such as one from another process."""
    return array if array.flags.writeable else np.asarray(_ArrayMemory(array))


@dataclass(frozen=True, kw_only=True)
class MaskBatch:
    """The masks of one step.

    It crosses processes as numpy, because pickling tensors is 10 to 1,000 times slower,
    and is made without torch.
    The bitmask lives in one of the manager's buffers: it stays valid until the
    ``num_mask_buffers``-th next call of ``grammar_bitmask``. From then on every use
    raises :class:`structout.errors.StaleMasksError`. A pickled copy stays valid.

    Attributes:
        request_ids: the requests of the step.
        row_indptr: int32 ``[len(request_ids) + 1]``. Request i owns rows
            ``row_indptr[i] ... row_indptr[i + 1]``. It owns none if it is
            unconstrained: it has terminated, or the manager does not know it.
        errors: the reason for each request that cannot continue. Its rows allow
            nothing.
        num_acceptable_drafts: int32 ``[len(request_ids)]``. The number of leading
            drafts of each request that its grammar allows.
        bitmask: int32 ``[R, ceil(V / 32)]``, one row for each constrained position.
            Read-only while it is in a buffer.
        lease: of the buffer; None if the memory is the batch's own.
    """

    request_ids: tuple[str, ...]
    row_indptr: npt.NDArray[np.int32]
    errors: Mapping[str, str] = field(default_factory=dict)
    num_acceptable_drafts: npt.NDArray[np.int32] = field(default_factory=_no_draft_counts)
    bitmask: _LeasedBitmask = _LeasedBitmask()
    lease: Lease | None = field(default=None, repr=False, compare=False)

    def renamed(self, request_ids: Sequence[str]) -> MaskBatch:
        """These masks under other request ids, for an engine whose own ids differ from
        the manager's. Both batches share the memory.

        Args:
            request_ids: the new id of each request, in the order of ``request_ids``.

        Raises:
            ValueError: there is not one new id for each request, or two are equal.
        """
        if len(request_ids) != len(self.request_ids) or len(set(request_ids)) < len(request_ids):
            raise ValueError(
                f"request_ids needs a different id for each of the {len(self.request_ids)} requests, "
                f"got {list(request_ids)}"
            )
        names = dict(zip(self.request_ids, request_ids, strict=True)) if self.errors else {}
        errors = {names[request_id]: reason for request_id, reason in self.errors.items()}
        return replace(self, request_ids=tuple(request_ids), errors=errors, bitmask=self._memory())

    def rows_for(
        self,
        batch_request_ids: Sequence[str],
        num_logits_per_request: Sequence[int] | None = None,
        *,
        expected_rows: int | None = None,
    ) -> torch.Tensor:
        """The row map of a worker's batch, in the worker's order.

        Args:
            batch_request_ids: the requests whose logits are in the batch, in order.
            num_logits_per_request: how many logits rows each of them has. Default: one
                each. N is their sum.
            expected_rows: the number of logits rows that the worker has. Default: not
                checked.

        Returns:
            int32 ``[N]``: the mask row that governs each logits row, -1 for requests
            without mask rows. A request's first logits row takes its first mask row.

        Raises:
            ValueError: ``num_logits_per_request`` has the wrong length, a request has
                more logits rows than mask rows, or N is not ``expected_rows``.
            StaleMasksError: the masks' buffer has been filled again.
        """
        import torch

        return torch.from_numpy(self._map_rows(batch_request_ids, num_logits_per_request, expected_rows))

    def rows_in_order(self, num_logits: int) -> torch.Tensor:
        """The row map of logits that stand in the order of these requests: for each as
        many rows as it has masks, or one that is free.

        Args:
            num_logits: N, the number of logits rows.

        Returns:
            int32 ``[N]``, as ``rows_for``.

        Raises:
            ValueError: there are more or fewer rows.
            StaleMasksError: as ``rows_for``.
        """
        counts = np.maximum(np.diff(self.row_indptr), 1).tolist()
        return self.rows_for(self.request_ids, counts, expected_rows=num_logits)

    def to(self, device: torch.device | str) -> torch.Tensor:
        """Copy the bitmask to ``device``, asynchronously where the buffer is pinned.

        Nothing is copied for the CPU: the tensor is the buffer itself, which must not
        be written to.
        """
        import torch

        return torch.from_numpy(_as_writable(self._memory())).to(device, non_blocking=True)

    def dense(
        self, batch_request_ids: Sequence[str], num_logits_per_request: Sequence[int] | None = None
    ) -> npt.NDArray[np.int32]:
        """A mask for each logits row of a worker's batch, for engines that take no row
        map.

        Args:
            batch_request_ids: as in ``rows_for``.
            num_logits_per_request: as in ``rows_for``.

        Returns:
            int32 ``[N, ceil(V / 32)]``, of its own memory. Rows of requests without
            mask rows allow everything.

        Raises:
            ValueError: as ``rows_for``.
            StaleMasksError: as ``rows_for``.
        """
        rows = self._map_rows(batch_request_ids, num_logits_per_request)
        masks = np.full((len(rows), self.bitmask.shape[1]), -1, dtype=np.int32)
        is_constrained = rows >= 0
        masks[is_constrained] = self.bitmask[rows[is_constrained]]
        return masks

    def _memory(self) -> npt.NDArray[np.int32]:
        if self.lease is not None and self.lease.is_over:
            raise StaleMasksError(
                "the buffer of these masks has been filled by a later step: use them before the num_mask_buffers-th "
                "next call of grammar_bitmask, copy the bitmask, or raise num_mask_buffers"
            )
        memory: npt.NDArray[np.int32] = vars(self)["bitmask"]
        return memory

    def _map_rows(
        self,
        batch_request_ids: Sequence[str],
        num_logits_per_request: Sequence[int] | None,
        expected_rows: int | None = None,
    ) -> npt.NDArray[np.int32]:
        self._memory()  # raises if it has expired
        num_requests = len(batch_request_ids)
        is_one_to_one = self._is_one_to_one(batch_request_ids, num_logits_per_request)
        if is_one_to_one and expected_rows in (None, num_requests):
            return np.arange(num_requests, dtype=np.int32)
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
        if expected_rows is not None and counts.sum() != expected_rows:
            raise ValueError(
                f"the {num_requests} requests have {counts.sum()} logits rows, expected {expected_rows}; pass "
                "num_logits_per_request in the order of the batch"
            )
        first_logits_row = np.cumsum(counts) - counts
        rows = np.arange(counts.sum()) + np.repeat(first_mask_row - first_logits_row, counts)
        rows[np.repeat(num_masks == 0, counts)] = -1
        return rows.astype(np.int32)

    def _is_one_to_one(self, batch_request_ids: Sequence[str], num_logits_per_request: Sequence[int] | None) -> bool:
        """True if the batch has these requests in this order, each with one row: the
        common case of a worker that fills its own masks."""
        num_requests = len(batch_request_ids)
        return (
            self.request_ids == tuple(batch_request_ids)
            and (num_logits_per_request is None or list(num_logits_per_request) == [1] * num_requests)
            and self.row_indptr.tolist() == [*range(num_requests + 1)]
        )

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"bitmask": self._memory(), "lease": None}

    def __copy__(self) -> MaskBatch:
        return replace(self)
