"""How the ranks' masks of a step come to one buffer on every rank.

There are two ways. Ranks of one host share the buffers: each fills its own rows where
all read them. Other ranks send their masks, and each writes those of all ranks to a
buffer of its own.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from structout.distributed.shared_memory import SharedMemorySegment, share_segments
from structout.distributed.step_message import NO_MASKS, StepMessage, UInt32Array
from structout.grammar.native.extension import core
from structout.masks.batch import MaskBatch
from structout.masks.bitmask import bitmask_dtype, bitmask_width, row_memory
from structout.masks.buffers import BufferRing, Lease, MaskBuffer

Gathered = tuple[npt.NDArray[np.int32], Lease]


class MaskExchange(Protocol):
    """How the ranks' masks of a step come together.

    Attributes:
        number: equal on all ranks that have exchanged the same masks, and never 0.
        max_rows: the most rows of a step.
    """

    number: int
    max_rows: float

    def local_buffer(self, local_rows: range) -> MaskBuffer | None:
        """Begin a step. Return where this rank fills its rows, or None for the
        manager's own buffers."""

    def message(self, local_masks: MaskBatch) -> UInt32Array:
        """Return what the others need to know of this rank's masks."""

    def gather(self, messages: Sequence[StepMessage], rows_of_ranks: Sequence[range]) -> Gathered:
        """Return the masks of all ranks, and their lease."""


class SharedMasks:
    """Mask buffers in memory that all ranks map, used in turn.

    Each rank knows what the rows hold that it owned in the buffer's last step, for no
    other rank has written to them.

    Args:
        segment: of ``segment_bytes``.
        num_batches: how many calls a batch stays valid.
        max_rows: of each buffer.
        vocab_size: V, the number of tokens that a mask covers.
    """

    def __init__(self, segment: SharedMemorySegment, num_batches: int, max_rows: int, vocab_size: int):
        self.number = segment.nonce
        self.max_rows: float = max_rows
        words = segment.memory[segment.PAGE :].view(np.int32)
        # A rank may be in call n while another, which is between its calls n - 1 and n,
        # still reads the batches of the num_batches calls before n. So there is one
        # buffer more.
        arrays = words.reshape(num_batches + 1, max_rows, bitmask_width(vocab_size))
        with torch.inference_mode(False):
            self._buffers = deque(_OwnedRows(torch.from_numpy(array)) for array in arrays)
        self._leases = deque([Lease() for _ in range(num_batches)])

    @staticmethod
    def segment_bytes(num_batches: int, max_rows: int, vocab_size: int) -> int:
        row_bytes = bitmask_width(vocab_size) * bitmask_dtype.itemsize
        return SharedMemorySegment.PAGE + (num_batches + 1) * max_rows * row_bytes

    def local_buffer(self, local_rows: range) -> MaskBuffer:
        self._leases.popleft().is_over = True
        self._leases.append(Lease())
        self._buffers.rotate(-1)
        return self._buffers[0].own(local_rows)

    def message(self, local_masks: MaskBatch) -> UInt32Array:
        return NO_MASKS

    def gather(self, messages: Sequence[StepMessage], rows_of_ranks: Sequence[range]) -> Gathered:
        return self._buffers[0].array[: rows_of_ranks[-1].stop], self._leases[-1]


class _OwnedRows:
    """A buffer of all ranks, some of whose rows this rank writes."""

    def __init__(self, rows: torch.Tensor):
        self._rows = rows
        self._native = core().MaskBuffer(*row_memory(rows), len(rows))
        self._owned = range(len(rows))
        self._buffer = MaskBuffer(rows, self._native)
        self.array = self._buffer.array

    def own(self, rows: range) -> MaskBuffer:
        """Return the rows as a buffer; the others belong to other ranks."""
        if rows != self._owned:
            self._native.own(rows.start, rows.stop)
            self._owned, self._buffer = rows, MaskBuffer(self._rows[rows.start : rows.stop], self._native)
        return self._buffer


class MaskMessages:
    """Each rank sends its masks to the others, each mask once and then its number.

    Args:
        world_size: the number of ranks.
        num_batches: how many calls a batch stays valid.
        vocab_size: V, the number of tokens that a mask covers.
    """

    number = 1
    max_rows = float("inf")

    def __init__(self, world_size: int, num_batches: int, vocab_size: int):
        self._buffers = BufferRing(num_batches, vocab_size, core().MaskBuffer)
        self._sender = core().MaskSender()
        self._receivers = [core().MaskReceiver() for _ in range(world_size)]

    def local_buffer(self, local_rows: range) -> None:
        return None

    def message(self, local_masks: MaskBatch) -> UInt32Array:
        assert local_masks.lease is not None
        message: UInt32Array = self._sender.message(local_masks.lease.native, len(local_masks.bitmask))
        return message

    def gather(self, messages: Sequence[StepMessage], rows_of_ranks: Sequence[range]) -> Gathered:
        num_rows = rows_of_ranks[-1].stop
        buffer = self._buffers.next(num_rows)
        for receiver, message, rows in zip(self._receivers, messages, rows_of_ranks, strict=True):
            receiver.write(message.masks, buffer.native, rows.start)
        return buffer.array[:num_rows], buffer.lease


def choose_mask_exchange(
    rank: int,
    world_size: int,
    num_batches: int,
    max_rows: int,
    vocab_size: int,
    all_gather: Callable[[torch.Tensor], list[torch.Tensor]],
) -> MaskExchange:
    """Choose shared buffers where all ranks can map them, else messages. Collective.

    Args:
        rank: this rank.
        world_size: the number of ranks.
        num_batches: how many calls a batch stays valid.
        max_rows: of a step, equal on all ranks.
        vocab_size: V, the number of tokens that a mask covers.
        all_gather: returns the uint8 payloads of all ranks.
    """
    size = SharedMasks.segment_bytes(num_batches, max_rows, vocab_size)
    segments = share_segments(rank, [0], size, all_gather)
    if segments is None:
        return MaskMessages(world_size, num_batches, vocab_size)
    return SharedMasks(segments[0], num_batches, max_rows, vocab_size)
