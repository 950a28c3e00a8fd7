"""BufferRing: CPU mask buffers that steps use in turn."""

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from structout.masks.bitmask import get_bitmask_shape


@dataclass(eq=False, slots=True)
class Lease:
    """One step's use of a buffer.

    Attributes:
        is_over: whether a later step uses the buffer.
    """

    is_over: bool = False


@dataclass(eq=False, slots=True)
class MaskBuffer:
    """Memory for the masks of a step.

    Attributes:
        array: int32 ``[num_rows, ceil(V / 32)]``, pinned where torch has a CUDA device.
        native: the same memory for native steps, which remember what its rows hold.
        lease: of the step that uses it.
    """

    array: npt.NDArray[np.int32]
    native: Any = None
    lease: Lease = field(init=False, default_factory=Lease)


class BufferRing:
    """Mask buffers that are reused in turn and grow with the largest step.

    With two buffers, one step's masks can be copied to the device while the next step
    is filled.

    Args:
        num_buffers: how many calls of :meth:`next` until a buffer is reused.
        vocab_size: V, the number of tokens that a mask row covers.
        native: makes a buffer's ``native`` of its address, the bytes from one row to
            the next, and the number of rows. None if native steps do not use it.
    """

    def __init__(self, num_buffers: int, vocab_size: int, native: Callable[[int, int, int], Any] | None = None):
        self._vocab_size = vocab_size
        self._native = native
        self._buffers = deque(self._new(0) for _ in range(num_buffers))

    def next(self, num_rows: int) -> MaskBuffer:
        """A buffer of at least ``num_rows`` rows. They hold an earlier step's masks, if
        any."""
        buffer = self._buffers.popleft()
        buffer.lease.is_over = True
        if len(buffer.array) < num_rows:
            buffer = self._new(max(num_rows, 2 * len(buffer.array)))
        else:
            buffer.lease = Lease()
        self._buffers.append(buffer)
        return buffer

    def _new(self, num_rows: int) -> MaskBuffer:
        array = _allocate(*get_bitmask_shape(num_rows, self._vocab_size))
        return MaskBuffer(array, self._native and self._native(array.ctypes.data, array.strides[0], num_rows))


def _allocate(num_rows: int, width: int) -> npt.NDArray[np.int32]:
    """Rows that allow all tokens. A process that has not imported torch copies none to
    a device, so it needs no pinned memory."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        pinned: npt.NDArray[np.int32] = torch.full((num_rows, width), -1, dtype=torch.int32, pin_memory=True).numpy()
        return pinned
    return np.full((num_rows, width), -1, dtype=np.int32)
