"""Memory segments that the ranks of one host share."""

import fcntl
import mmap
import os
from pathlib import Path

import numpy as np

from structout.grammar.native.extension import core


class SharedMemorySegment:
    """A mapped anonymous file with a nonce.

    ``csrc/ranks/shared_exchange.h`` describes its layout.

    The owner holds a lock on the file for as long as its process lives, so that other
    ranks notice its death.
    """

    CAPACITY = 8 << 20  # bytes of payloads, twice
    _NAME = "structout"

    def __init__(self, descriptor: int, world_size: int, *, is_new: bool):
        """
        Raises:
            OSError: a new segment does not fit in memory, or an existing one has
                another size.
        """
        self.descriptor = descriptor
        size = core().SharedExchange.segment_bytes(world_size, self.CAPACITY)
        if is_new:
            os.posix_fallocate(descriptor, 0, size)  # fail here, rather than by a bus error at the first write
        elif (actual_size := os.fstat(descriptor).st_size) != size:
            raise OSError(f"expected a shared-memory segment of {size} bytes, got {actual_size}")
        self._memory = np.frombuffer(mmap.mmap(descriptor, size), dtype=np.uint8)
        self._nonce = self._memory.view(np.int64)[core().SharedExchange.FREE_WORD :][:1]

    @property
    def address(self) -> int:
        return int(self._memory.ctypes.data)

    @classmethod
    def create(cls, world_size: int, nonce: int) -> "tuple[SharedMemorySegment, str]":
        """Create a segment.

        Other processes of this host find it at the returned path while it lives.

        Raises:
            OSError: this system has no anonymous files, or not enough memory.
        """
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no memfd_create")
        descriptor = os.memfd_create(cls._NAME)
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # until this process and its forks have ended
        segment = cls(descriptor, world_size, is_new=True)
        segment._nonce[0] = nonce
        return segment, f"/proc/{os.getpid()}/fd/{descriptor}"

    @classmethod
    def open(cls, path: str, world_size: int, nonce: int) -> "SharedMemorySegment":
        """Open the segment of another process.

        Raises:
            OSError: the path cannot be opened, or names another file, because the
                segment is on another host. That file is not changed.
        """
        not_a_segment = OSError(f"{path} is not the shared-memory segment of another rank")
        if not str(Path(path).readlink()).startswith(f"/memfd:{cls._NAME}"):
            raise not_a_segment
        segment = cls(os.open(path, os.O_RDWR), world_size, is_new=False)
        if int(segment._nonce[0]) != nonce:
            raise not_a_segment
        return segment

    def __del__(self) -> None:
        os.close(self.descriptor)
