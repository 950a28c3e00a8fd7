"""BufferRing: CPU mask buffers that steps use in turn."""

from collections import deque
from dataclasses import dataclass

import torch

from structout.masks.bitmask import allocate_token_bitmask


@dataclass(eq=False, slots=True)
class Lease:
    """One step's use of a buffer.

    Attributes:
        is_over: whether a later step uses the buffer.
    """

    is_over: bool = False


class BufferRing:
    """Mask buffers that are reused in turn and grow with the largest step.

    With two buffers, one step's masks can be copied to the device while the next step
    is filled.

    Args:
        num_buffers: how many calls of :meth:`next_rows` until a buffer is reused.
        vocab_size: V, the number of tokens that a mask row covers.

    Attributes:
        lease: the lease of the rows that :meth:`next_rows` returned last.
    """

    def __init__(self, num_buffers: int, vocab_size: int):
        self._vocab_size = vocab_size
        self._buffers = deque((allocate_token_bitmask(0, vocab_size), Lease()) for _ in range(num_buffers))
        self.lease = Lease()

    def next_rows(self, num_rows: int) -> torch.Tensor:
        """The next buffer's first rows, int32 ``[num_rows, ceil(V / 32)]``, pinned
        where CUDA is available. They hold an earlier step's masks, if any."""
        buffer, lease = self._buffers.popleft()
        lease.is_over = True
        self.lease = Lease()
        # Other threads fill the buffer, and they do not share the caller's inference
        # mode.
        with torch.inference_mode(False):
            if buffer.shape[0] < num_rows:
                buffer = allocate_token_bitmask(max(num_rows, 2 * buffer.shape[0]), self._vocab_size)
            self._buffers.append((buffer, self.lease))
            return buffer[:num_rows]
