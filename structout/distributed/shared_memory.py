"""Memory segments that the ranks of one host share."""

import contextlib
import fcntl
import mmap
import os
import secrets
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from structout import envs
from structout.grammar.native.extension import core


class SharedMemorySegment:
    """A mapped anonymous file with a nonce in its first page.

    ``csrc/ranks/shared_exchange.h`` describes the segments of an exchange.

    The owner holds a lock on the file for as long as its process lives, so that other
    ranks notice its death.

    Attributes:
        memory: uint8 ``[size]``. It stays mapped for as long as an array or a tensor
            uses it.
        nonce: a random number that the other ranks know.
    """

    PAGE = 4096  # bytes
    _NAME = "structout"

    def __init__(self, descriptor: int, size: int, nonce: int, *, is_new: bool):
        """
        Raises:
            OSError: a new segment does not fit in memory, or an existing one has
                another size or another nonce.
        """
        self.descriptor = descriptor
        if is_new:
            os.posix_fallocate(descriptor, 0, size)  # fail here, rather than by a bus error at the first write
        elif (actual_size := os.fstat(descriptor).st_size) != size:
            raise OSError(f"expected a shared-memory segment of {size} bytes, got {actual_size}")
        self.memory: npt.NDArray[np.uint8] = np.frombuffer(mmap.mmap(descriptor, size), dtype=np.uint8)
        self.nonce = nonce
        kept_nonce = self.memory[: self.PAGE].view(np.int64)[core().SharedExchange.FREE_WORD :][:1]
        if is_new:
            kept_nonce[0] = nonce
        elif int(kept_nonce[0]) != nonce:
            raise OSError("the shared-memory segment is not the one that was meant")

    @property
    def address(self) -> int:
        return int(self.memory.ctypes.data)

    @classmethod
    def create(cls, size: int, nonce: int) -> "tuple[SharedMemorySegment, str]":
        """Create a segment.

        Other processes of this host find it at the returned path while it lives.

        Raises:
            OSError: this system has no anonymous files, or not enough memory.
        """
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no memfd_create")
        descriptor = os.memfd_create(cls._NAME)
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # until this process and its forks have ended
        return cls(descriptor, size, nonce, is_new=True), f"/proc/{os.getpid()}/fd/{descriptor}"

    @classmethod
    def open(cls, path: str, size: int, nonce: int) -> "SharedMemorySegment":
        """Open the segment of another process.

        Raises:
            OSError: the path cannot be opened, or names another file, because the
                segment is on another host. That file is not changed.
        """
        if not str(Path(path).readlink()).startswith(f"/memfd:{cls._NAME}"):
            raise OSError(f"{path} is not the shared-memory segment of another rank")
        return cls(os.open(path, os.O_RDWR), size, nonce, is_new=False)

    def __del__(self) -> None:
        os.close(self.descriptor)


def share_segments(
    rank: int, owners: Collection[int], size: int, all_gather: Callable[[torch.Tensor], list[torch.Tensor]]
) -> list[SharedMemorySegment] | None:
    """Create a segment on each of the owners, and map it on all ranks. Collective.

    Args:
        rank: this rank.
        owners: ranks.
        size: of each segment, in bytes.
        all_gather: returns the uint8 payloads of all ranks.

    Returns:
        the segments in the order of ranks. None on all ranks if one of them cannot map
        a segment, or must not.
    """

    def all_gather_text(text: str) -> list[str]:
        payloads = all_gather(torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8))
        return [payload.numpy().tobytes().decode() for payload in payloads]

    own_segment, own_path, nonce = None, "nowhere", secrets.randbits(62)
    if rank in owners and envs.shared_memory():
        with contextlib.suppress(OSError):
            own_segment, own_path = SharedMemorySegment.create(size, nonce)
    texts = all_gather_text(f"{own_path} {nonce}")
    segments: list[SharedMemorySegment] = []
    with contextlib.suppress(OSError):
        for owner in sorted(owners) if envs.shared_memory() else ():
            path, owners_nonce = texts[owner].split()
            if owner == rank and own_segment is not None:
                segments.append(own_segment)
            else:
                segments.append(SharedMemorySegment.open(path, size, int(owners_nonce)))
    has_every_segment = len(segments) == len(owners)
    answers = all_gather_text("shared" if has_every_segment else "apart")
    return segments if all(answer == "shared" for answer in answers) else None
