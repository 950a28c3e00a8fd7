"""Memory segments that the ranks of one host share."""

import fcntl
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class SegmentHalf:
    """What a rank writes in every other epoch.

    Attributes:
        specs: int64 ``[world_size, SPEC_WORDS]``: one row for each reading rank.
        data: uint8 ``[CAPACITY]``.
    """

    specs: torch.Tensor
    data: torch.Tensor


class SharedMemorySegment:
    """A mapped anonymous file: the owner's epoch, a nonce, and two halves.

    The owner holds a lock on the file for as long as its process lives, so that other
    ranks notice its death.
    """

    CAPACITY = 8 << 20
    SPEC_WORDS = 11  # eight of the header; payload offset, bytes per round, number of rounds
    _NAME = "structout"
    _PAGE = 4096
    _NONCE_WORD = 8  # on another cache line than the epoch

    def __init__(self, descriptor: int, world_size: int, *, is_new: bool):
        """
        Raises:
            OSError: a new segment does not fit in memory, or an existing one has
                another size.
        """
        self._descriptor = descriptor
        specs_bytes = 8 * self.SPEC_WORDS * world_size
        half_bytes = -(-specs_bytes // self._PAGE) * self._PAGE + self.CAPACITY
        size = self._PAGE + 2 * half_bytes
        if is_new:
            os.posix_fallocate(descriptor, 0, size)  # fail here, rather than by a bus error at the first write
        elif (actual_size := os.fstat(descriptor).st_size) != size:
            raise OSError(f"expected a shared-memory segment of {size} bytes, got {actual_size}")
        memory = torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)
        self._words = memory[: self._PAGE].view(torch.int64)
        self.epoch = self._words[:1]
        self.halves = []
        for begin in (self._PAGE, self._PAGE + half_bytes):
            half = memory[begin : begin + half_bytes]
            specs = half[:specs_bytes].view(torch.int64).view(world_size, -1)
            self.halves.append(SegmentHalf(specs, half[half_bytes - self.CAPACITY :]))

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
        segment._words[cls._NONCE_WORD] = nonce
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
        if int(segment._words[cls._NONCE_WORD]) != nonce:
            raise not_a_segment
        return segment

    def is_owner_alive(self) -> bool:
        """Return whether the owner still holds its lock.

        Only for segments of other processes.
        """
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False

    def __del__(self) -> None:
        os.close(self._descriptor)
