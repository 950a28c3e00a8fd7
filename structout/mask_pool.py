"""Mask deduplication: a step sends only the masks that the device does not hold yet.

85 to 91 of 100 masks of real schemas repeat an earlier one. The scheduler's
MaskDeduplicator decides which mask is in which slot, and the worker's MaskPool follows,
step by step. Several steps may be in flight between the two.
"""

import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from structout.bitmask import bitmask_dtype, bitmask_width
from structout.mask_batch import MaskBatch, MaskRows

_SLOT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class PooledMaskBatch(MaskRows):
    """A MaskBatch that names masks by their slots in a pool, and brings only new masks.

    It crosses processes as numpy and owns its memory.

    Attributes:
        new_masks: int32 ``[M, ceil(V / 32)]``: the masks that the pool does not hold.
        new_slots: int32 ``[M]``: the slot for each new mask.
        row_slots: int32 ``[R]``: the slot of each row's mask.
        sequence: the number of batches since the start or the last reset.
    """

    new_masks: npt.NDArray[np.int32]
    new_slots: npt.NDArray[np.int32]
    row_slots: npt.NDArray[np.int32]
    sequence: int

    def rows_for(
        self,
        batch_request_ids: Sequence[str],
        num_logits_per_request: Sequence[int] | None = None,
        *,
        expected_rows: int | None = None,
    ) -> torch.Tensor:
        """:meth:`MaskBatch.rows_for` with the rows of the pool's bitmask."""
        rows = self._map_rows(batch_request_ids, num_logits_per_request, expected_rows)
        return torch.from_numpy(np.append(self.row_slots, np.int32(-1))[rows])  # row -1 reads the appended -1


@dataclass(frozen=True)
class MaskPoolStats:
    """A deduplicator's counters since it was made.

    Attributes:
        masks_sent: rows whose mask was sent.
        masks_reused: rows whose mask was in the pool already, or in an earlier row of
            the same step.
        bytes_sent: the bytes of the masks sent and of their slots.
        bytes_reused: the bytes of the masks reused.
        masks_evicted: masks whose slot was given to another mask.
    """

    masks_sent: int = 0
    masks_reused: int = 0
    bytes_sent: int = 0
    bytes_reused: int = 0
    masks_evicted: int = 0


class MaskDeduplicator:
    """The scheduler's record of what every worker's MaskPool holds. Not thread-safe.

    Args:
        capacity: the number of masks in a pool, at least the number of different masks
            in one step. Each takes ``V / 8`` bytes on every device. The least recently
            used mask is evicted first, and never one of the same step.
        vocab_size: V, the number of tokens that a mask covers.

    Masks are equal if their 128-bit hashes are. For a billion different masks the
    probability of any collision is 10^-21, less than that of a memory error. Clients
    cannot construct a collision: the hash has a random seed that never leaves the
    process.
    """

    def __init__(self, capacity: int, vocab_size: int):
        _check_capacity(capacity)
        self.capacity = capacity
        self._width = bitmask_width(vocab_size)
        self._hash = partial(_import_xxh3(), seed=secrets.randbits(64))
        self._slot_of: OrderedDict[bytes, int] = OrderedDict()  # by hash, the most recently used mask last
        self._sequence = 0
        self._num_sent = self._num_reused = self._num_evicted = 0

    def deduplicate(self, masks: MaskBatch) -> PooledMaskBatch:
        """Replace masks that the pools hold by their slots.

        Args:
            masks: a step's masks. Their buffer may be reused when this returns.

        Returns:
            the batch to send to every worker.

        Raises:
            ValueError: the masks have another width, or more of them differ than fit
                the pool. Nothing changes.
        """
        _check_masks(masks.bitmask, self._width)
        hashes = [self._hash(row) for row in np.ascontiguousarray(masks.bitmask)]
        first_row: dict[bytes, int] = {}
        for row, mask_hash in enumerate(hashes):
            first_row.setdefault(mask_hash, row)
        if len(first_row) > self.capacity:
            raise ValueError(
                f"a step has {len(first_row)} different masks, but the pool has a capacity of {self.capacity}; "
                "make the capacity at least the number of mask rows that a step may have"
            )
        missing = self._touch(first_row)
        new_slots = [self._place(mask_hash) for mask_hash in missing]
        pooled = PooledMaskBatch(
            request_ids=masks.request_ids,
            row_indptr=masks.row_indptr.copy(),
            errors=masks.errors,
            num_acceptable_drafts=masks.num_acceptable_drafts.copy(),
            new_masks=masks.bitmask[[first_row[mask_hash] for mask_hash in missing]],
            new_slots=np.array(new_slots, dtype=np.int32),
            row_slots=np.array([self._slot_of[mask_hash] for mask_hash in hashes], dtype=np.int32),
            sequence=self._sequence,
        )
        self._sequence += 1
        self._num_sent += len(missing)
        self._num_reused += len(hashes) - len(missing)
        return pooled

    def reset(self) -> None:
        """Forget what the pools hold, after a worker has restarted. The next step sends
        all its masks."""
        self._slot_of.clear()
        self._sequence = 0

    def stats(self) -> MaskPoolStats:
        mask_bytes = 4 * self._width
        return MaskPoolStats(
            self._num_sent,
            self._num_reused,
            self._num_sent * (mask_bytes + _SLOT_BYTES),
            self._num_reused * mask_bytes,
            self._num_evicted,
        )

    def _touch(self, mask_hashes: Mapping[bytes, int]) -> list[bytes]:
        """Mark the masks as most recently used, so that this step evicts none of them.

        Returns:
            the hashes of masks that the pool does not hold.
        """
        missing = []
        for mask_hash in mask_hashes:
            if mask_hash in self._slot_of:
                self._slot_of.move_to_end(mask_hash)
            else:
                missing.append(mask_hash)
        return missing

    def _place(self, mask_hash: bytes) -> int:
        slot = len(self._slot_of)
        if slot == self.capacity:
            _, slot = self._slot_of.popitem(last=False)
            self._num_evicted += 1
        self._slot_of[mask_hash] = slot
        return slot


class MaskPool:
    """A worker's masks, on its device.

    Args:
        capacity: the capacity of the scheduler's MaskDeduplicator.
        vocab_size: V, the number of tokens that a mask covers.
        device: the device of the logits.

    Attributes:
        bitmask: int32 ``[capacity, ceil(V / 32)]``. Use it in the ops with the rows of
            ``PooledMaskBatch.rows_for``. Its address never changes, so a CUDA graph may
            capture it.
    """

    def __init__(self, capacity: int, vocab_size: int, device: torch.device | str):
        _check_capacity(capacity)
        self.bitmask = torch.zeros(capacity, bitmask_width(vocab_size), dtype=bitmask_dtype, device=device)
        self._next_sequence = 0

    def update(self, masks: PooledMaskBatch) -> None:
        """Copy a step's new masks into their slots, asynchronously.

        Call it once per step, in the order of the steps. Use the step's rows on the
        same stream, before the next update.

        Raises:
            ValueError: a step is missing, so the contents of the pool are unknown, or
                the masks do not fit the pool. Nothing changes.
        """
        if masks.sequence not in (0, self._next_sequence):
            raise ValueError(
                f"expected masks of step {self._next_sequence} since the last reset, got those of step "
                f"{masks.sequence}; after a worker restarts, call reset() on the scheduler's MaskDeduplicator"
            )
        capacity, width = self.bitmask.shape
        _check_masks(masks.new_masks, width)
        if len(masks.new_slots) and not 0 <= masks.new_slots.min() <= masks.new_slots.max() < capacity:
            raise ValueError(
                f"expected mask slots in [0, {capacity}), the capacity of this pool, got {masks.new_slots.max()}; "
                "give the MaskDeduplicator the same capacity"
            )
        if len(masks.new_slots):
            self._write(masks.new_masks, masks.new_slots)
        self._next_sequence = masks.sequence + 1

    def _write(self, new_masks: npt.NDArray[np.int32], new_slots: npt.NDArray[np.int32]) -> None:
        num_masks, width = new_masks.shape
        # The slots are the last column, so that one copy is enough. torch keeps the
        # pinned memory until the copy is done.
        shape = (num_masks, width + 1)
        staged = torch.empty(shape, dtype=bitmask_dtype, pin_memory=self.bitmask.is_cuda)
        staged.numpy()[:, :width] = new_masks
        staged.numpy()[:, width] = new_slots
        staged = staged.to(self.bitmask.device, non_blocking=True)
        self.bitmask.index_copy_(0, staged[:, width].long(), staged[:, :width])


def _check_capacity(capacity: int) -> None:
    if capacity < 1:
        raise ValueError(f"capacity must be at least 1 mask, got {capacity}")


def _check_masks(bitmask: npt.NDArray[np.int32], width: int) -> None:
    if bitmask.dtype != np.int32 or bitmask.ndim != 2 or bitmask.shape[1] != width:
        raise ValueError(
            f"expected masks int32 [rows, {width}], got {bitmask.dtype} {list(bitmask.shape)}; "
            "use the same vocab_size for the manager, the MaskDeduplicator and the MaskPool"
        )


def _import_xxh3() -> Callable[..., bytes]:
    """Import the hash of masks, which only schedulers need. hashlib's fastest hash
    takes 20 times as long."""
    try:
        from xxhash import xxh3_128_digest
    except ModuleNotFoundError as error:
        raise ImportError(
            "MaskDeduplicator needs xxhash, which is not installed: pip install 'structout[manager]'"
        ) from error
    return xxh3_128_digest
