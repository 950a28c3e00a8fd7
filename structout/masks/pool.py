"""Mask deduplication: a step sends only the masks that the device does not hold yet.

85 to 91 of 100 masks of real schemas repeat an earlier one. The scheduler's
MaskDeduplicator decides which mask is in which slot, and the worker's MaskPool follows,
step by step. Several steps may be in flight between the two.
"""

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from structout.masks.batch import MaskBatch, MaskRows
from structout.masks.bitmask import bitmask_dtype, bitmask_width

_SLOT_BYTES = 4
_KEYS_PER_MASK = 64  # several keys may stand for equal masks
_NO_MASKS: npt.NDArray[np.int32] = np.zeros((0, 0), dtype=np.int32)


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


class DistinctMasks(NamedTuple):
    """The different masks of a step whose masks have numbers.

    Attributes:
        keys: uint64 ``[U]``. The number of each mask: masks of the same number are
            equal, in all steps of the process. 0 for a mask without a number.
        first_rows: int64 ``[U]``. The first row that has the mask.
        index_of_row: int64 ``[R]``. The index of each row's mask in these.
    """

    keys: npt.NDArray[np.uint64]
    first_rows: npt.NDArray[np.int64]
    index_of_row: npt.NDArray[np.int64]


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
        self._hash = partial(xxhash.xxh3_128_digest, seed=secrets.randbits(64))
        self._slot_of: OrderedDict[bytes, int] = OrderedDict()  # by hash, the most recently used mask last
        self._hash_of_key: dict[int, bytes] = {}
        self._empty_hash = self._hash(np.zeros(self._width, dtype=np.int32).data)
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
        bitmask = np.ascontiguousarray(masks.bitmask)
        hashes = [self._hash(row) for row in bitmask]
        first_rows: dict[bytes, int] = {}
        for row, mask_hash in enumerate(hashes):
            first_rows.setdefault(mask_hash, row)
        return self._pooled(masks, hashes, lambda mask_hash: bitmask[first_rows[mask_hash]])

    def deduplicate_by_key(
        self, rows: MaskRows, masks: DistinctMasks, fill: Callable[[list[int]], npt.NDArray[np.int32]]
    ) -> PooledMaskBatch:
        """Do what ``deduplicate`` does without the masks that the pools hold.

        Args:
            rows: the rows of a step's requests.
            masks: the different masks of these rows.
            fill: returns the masks of the given rows.

        Raises:
            ValueError: as ``deduplicate``.
        """
        keys = masks.keys.tolist()
        hashes = [*map(self._hash_of_key.get, keys)]
        unknown = [i for i, mask_hash in enumerate(hashes) if mask_hash not in self._slot_of]
        filled = fill(masks.first_rows[unknown].tolist()) if unknown else _NO_MASKS
        mask_of_hash: dict[bytes, npt.NDArray[np.int32]] = {}
        if len(self._hash_of_key) > _KEYS_PER_MASK * self.capacity:
            self._hash_of_key.clear()
        for i, mask in zip(unknown, filled, strict=True):
            mask_hash = hashes[i] = self._hash(mask)
            mask_of_hash[mask_hash] = mask
            if keys[i] != 0:
                self._hash_of_key[keys[i]] = mask_hash
        return self._pooled(rows, [*filter(None, hashes)], mask_of_hash.__getitem__, masks.index_of_row)

    def empty_rows(self, pooled: PooledMaskBatch) -> npt.NDArray[np.intp]:
        """The rows of a batch just deduplicated that allow nothing."""
        slot = self._slot_of.get(self._empty_hash)
        return np.flatnonzero(pooled.row_slots == (-1 if slot is None else slot))

    def _pooled(
        self,
        rows: MaskRows,
        hashes: Sequence[bytes],
        mask_of_hash: Callable[[bytes], npt.NDArray[np.int32]],
        index_of_row: npt.NDArray[np.int64] | None = None,
    ) -> PooledMaskBatch:
        """Give each mask a slot.

        Args:
            rows: the rows of a step's requests.
            hashes: of their masks.
            mask_of_hash: returns a mask that the pool does not hold.
            index_of_row: the index in ``hashes`` of each row. Default: its own.
        """
        different = dict.fromkeys(hashes)
        if len(different) > self.capacity:
            raise ValueError(
                f"a step has {len(different)} different masks, but the pool has a capacity of {self.capacity}; "
                "make the capacity at least the number of mask rows that a step may have"
            )
        missing = self._touch(different)
        new_slots = [self._place(mask_hash) for mask_hash in missing]
        new_masks = np.empty((len(missing), self._width), dtype=np.int32)
        for new_mask, mask_hash in zip(new_masks, missing, strict=True):
            new_mask[:] = mask_of_hash(mask_hash)
        row_slots = np.array([self._slot_of[mask_hash] for mask_hash in hashes], dtype=np.int32)
        if index_of_row is not None:
            row_slots = row_slots[index_of_row]
        pooled = PooledMaskBatch(
            request_ids=rows.request_ids,
            row_indptr=rows.row_indptr.copy(),
            errors=rows.errors,
            num_acceptable_drafts=rows.num_acceptable_drafts.copy(),
            new_masks=new_masks,
            new_slots=np.array(new_slots, dtype=np.int32),
            row_slots=row_slots,
            sequence=self._sequence,
        )
        self._sequence += 1
        self._num_sent += len(missing)
        self._num_reused += len(row_slots) - len(missing)
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

    def _touch(self, mask_hashes: Iterable[bytes]) -> list[bytes]:
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
