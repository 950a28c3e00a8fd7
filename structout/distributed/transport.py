"""How a message gets from each rank of a group to each other one, on the CPU: through the group's own backend, or
through memory that the ranks of one host share.

A wire carries, to every rank, a header of eight int64 whose third word is the size of the payload in bytes, and the
payload. It delivers what was announced or raises PeerLost; it does not look at what it carries.
"""

import contextlib
import fcntl
import mmap
import os
import secrets
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from structout import envs

Header = list[int]
SIZE = 2  # the word of a header that says how many bytes the payload has
_HEADER_BYTES = 64


class PeerLost(Exception):
    """A rank is gone, or did not answer in time."""

    def __init__(self, rank: int, reason: str):
        super().__init__(reason)
        self.rank = rank


@dataclass(frozen=True)
class Delivery:
    header: Header
    payload: torch.Tensor  # uint8


class Wire(Protocol):
    def transfer(
        self,
        headers: Sequence[Header],
        payloads: Sequence[torch.Tensor],
        places: Sequence[torch.Tensor | None],
        deadline: float,
    ) -> list[Delivery]:
        """Send ``headers[r]`` and ``payloads[r]``, uint8, to each rank r. What each rank sent here, in rank order, in
        ``places[r]`` if it has the right size, else in memory of the wire's that is valid until the next transfer. This
        rank's own is handed through.

        Raises:
            PeerLost: not all by ``deadline`` (of ``time.monotonic``). The wire is of no more use.
        """

    def bytes_for(self, size: int) -> int:
        """What carrying a payload of ``size`` bytes to one rank takes."""


class GroupWire:
    """By the group's own backend, point to point: every rank sends to every other at once, so that no rank waits for a
    third. Small payloads travel in one frame with their header: on a busy host each message may wait for a thread."""

    FRAME_BYTES = 4096
    _FRAME_TAG, _PAYLOAD_TAG = 0x57_01, 0x57_02
    _NEWS = -1  # in place of a size: the rank in the first word is lost

    def __init__(self, group: dist.ProcessGroup):
        self._group = weakref.proxy(group)  # a group must be free to go, whoever has a wire in it
        self.rank: int = group.rank()
        self.world_size: int = group.size()
        self._outgoing = lasting_bytes(self.world_size * self.FRAME_BYTES).view(self.world_size, -1)
        self._incoming = lasting_bytes(self.world_size * self.FRAME_BYTES).view(self.world_size, -1)
        self._scratch = _Scratch(self.world_size)
        self._abandoned: list[object] = []  # what a transfer that never ended may still write to

    def transfer(
        self,
        headers: Sequence[Header],
        payloads: Sequence[torch.Tensor],
        places: Sequence[torch.Tensor | None],
        deadline: float,
    ) -> list[Delivery]:
        others = [(self.rank + i) % self.world_size for i in range(1, self.world_size)]
        delivered = [Delivery(headers[self.rank], payloads[self.rank])] * self.world_size
        arriving: list[tuple[int, Any]] = []
        leaving: list[tuple[int, Any]] = []
        following: list[tuple[int, Any]] = []
        places_of_following: list[torch.Tensor] = []
        under_way = [payloads, places, places_of_following, arriving, leaving, following]
        peer = others[0]
        try:
            for peer in others:
                arriving.append((peer, self._group.recv([self._incoming[peer]], peer, self._FRAME_TAG)))
            for peer in others:
                frame, payload = self._outgoing[peer], payloads[peer]
                frame[:_HEADER_BYTES].view(torch.int64).copy_(torch.tensor(headers[peer]))
                if self._fits(payload.numel()):
                    frame[_HEADER_BYTES : _HEADER_BYTES + payload.numel()].copy_(payload)
                leaving.append((peer, self._group.send([frame], peer, self._FRAME_TAG)))
                if not self._fits(payload.numel()):
                    leaving.append((peer, self._group.send([payload], peer, self._PAYLOAD_TAG)))
            for peer, work in arriving:
                _wait(work, deadline)
                header = self._incoming[peer, :_HEADER_BYTES].view(torch.int64).tolist()
                if header[SIZE] == self._NEWS:
                    raise PeerLost(header[0], f"rank {peer} has lost it")
                place = self._scratch.place(peer, places[peer], header[SIZE])
                delivered[peer] = Delivery(header, place)
                if self._fits(header[SIZE]):
                    place.copy_(self._incoming[peer, _HEADER_BYTES : _HEADER_BYTES + header[SIZE]])
                else:
                    following.append((peer, self._group.recv([place], peer, self._PAYLOAD_TAG)))
                    places_of_following.append(place)
            for peer, work in [*following, *leaving]:  # noqa: B007  (an error names it)
                _wait(work, deadline)
        except BaseException as problem:
            self._abandoned += under_way
            if isinstance(problem, RuntimeError):
                problem = PeerLost(peer, str(problem).partition("\n")[0].rpartition("] ")[2])
            if isinstance(problem, PeerLost):
                self._pass_on(problem)
            raise problem from None
        return delivered

    def _pass_on(self, lost: PeerLost) -> None:
        """To those who had the message of the rank that is lost, and would wait for this rank's next one."""
        news = torch.zeros(self.FRAME_BYTES, dtype=torch.uint8)
        news[:_HEADER_BYTES].view(torch.int64)[[0, SIZE]] = torch.tensor([lost.rank, self._NEWS])
        for peer in {*range(self.world_size)} - {self.rank, lost.rank}:
            with contextlib.suppress(RuntimeError):  # whoever is lost too
                self._abandoned.append((news, self._group.send([news], peer, self._FRAME_TAG)))

    def bytes_for(self, size: int) -> int:
        return self.FRAME_BYTES + (0 if self._fits(size) else size)

    def _fits(self, size: int) -> bool:
        return size <= self.FRAME_BYTES - _HEADER_BYTES


class SharedMemoryWire:
    """Through a segment of shared memory of each rank, which the others read. As in csrc/cuda/push.cuh, rounds are
    counted in epochs, two halves of a segment are taken in turn, and nobody asks whether the others are ready:

    A rank that has seen all others at epoch e knows that they have begun e, and so have read what was written in e - 1.
    So in e + 1 it may write to the half of e - 1. A payload larger than its place takes several epochs.
    """

    # The words of a header; where its payload begins, how much of it a round takes, how many rounds its sender needs.
    SPEC_WORDS = 11
    _ALIVE_CHECK_US = 100_000

    def __init__(self, rank: int, segments: "Sequence[_Segment]"):
        self.rank = rank
        self.world_size = len(segments)
        self._segments = segments
        self._scratch = _Scratch(self.world_size)
        self._epoch = 0

    def transfer(
        self,
        headers: Sequence[Header],
        payloads: Sequence[torch.Tensor],
        places: Sequence[torch.Tensor | None],
        deadline: float,
    ) -> list[Delivery]:
        others = [(self.rank + i) % self.world_size for i in range(1, self.world_size)]
        is_same_for_all = all(payloads[peer] is payloads[others[0]] for peer in others)
        slot = _Segment.CAPACITY if is_same_for_all else _Segment.CAPACITY // self.world_size // 64 * 64
        offsets = [0 if is_same_for_all else peer * slot for peer in range(self.world_size)]
        rounds = max(1, *(-(-payloads[peer].numel() // slot) for peer in others))
        specs = torch.tensor([[*header, offset, slot, rounds] for header, offset in zip(headers, offsets, strict=True)])
        delivered = [Delivery(headers[self.rank], payloads[self.rank])] * self.world_size
        pulls: list[tuple[int, int, int]] = []  # peer, offset, slot
        round_, num_rounds = 0, rounds
        while round_ < num_rounds:
            self._epoch += 1
            half = self._segments[self.rank].halves[self._epoch % 2]
            if round_ == 0:
                half.specs.copy_(specs)
            for peer in others[:1] if is_same_for_all else others:
                part = payloads[peer][round_ * slot : (round_ + 1) * slot]
                half.data[offsets[peer] : offsets[peer] + part.numel()].copy_(part)
            torch.ops.structout._post_word(self._segments[self.rank].epoch, self._epoch)
            for peer in others:
                self._await(peer, deadline)
                half = self._segments[peer].halves[self._epoch % 2]
                if round_ == 0:
                    spec = half.specs[self.rank].tolist()
                    delivered[peer] = Delivery(spec[:8], self._scratch.place(peer, places[peer], spec[SIZE]))
                    pulls.append((peer, spec[8], spec[9]))
                    num_rounds = max(num_rounds, spec[10])
            for peer, offset, their_slot in pulls:
                part = delivered[peer].payload[round_ * their_slot : (round_ + 1) * their_slot]
                part.copy_(self._segments[peer].halves[self._epoch % 2].data[offset : offset + part.numel()])
            round_ += 1
        return delivered

    def bytes_for(self, size: int) -> int:
        return 8 * self.SPEC_WORDS + size

    def _await(self, peer: int, deadline: float) -> None:
        while True:
            left = int(max(0.0, deadline - time.monotonic()) * 1e6)
            patience = min(left, self._ALIVE_CHECK_US)
            if torch.ops.structout._await_word(self._segments[peer].epoch, self._epoch, patience):
                return
            for other, segment in enumerate(self._segments):  # whoever waits for a dead rank keeps others waiting
                if other != self.rank and not segment.has_living_owner() and int(segment.epoch) < self._epoch:
                    raise PeerLost(other, "its process has ended")
            if left == 0:
                raise PeerLost(peer, "timed out waiting for it")


@dataclass(frozen=True)
class _Half:
    specs: torch.Tensor  # int64 [world_size, SPEC_WORDS]: to each rank
    data: torch.Tensor  # uint8 [CAPACITY]


class _Segment:
    """A file that is only in memory, mapped: a page with the epoch and a nonce, then two halves."""

    CAPACITY = 8 << 20
    _NAME = "structout"
    _PAGE = 4096
    _NONCE = 8  # its place in the first page, on a cache line of its own

    def __init__(self, descriptor: int, world_size: int, *, is_new: bool):
        """
        Raises:
            OSError: there is no room, or it has another size.
        """
        self._descriptor = descriptor
        specs_bytes = 8 * SharedMemoryWire.SPEC_WORDS * world_size
        half_bytes = -(-specs_bytes // self._PAGE) * self._PAGE + self.CAPACITY
        size = self._PAGE + 2 * half_bytes
        if is_new:
            os.posix_fallocate(descriptor, 0, size)  # now, rather than a bus error when it is written to
        elif os.fstat(descriptor).st_size != size:
            raise OSError("not of the size that it should have")
        memory = torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)
        self.words = memory[: self._PAGE].view(torch.int64)
        self.epoch = self.words[:1]
        self.halves = []
        for begin in (self._PAGE, self._PAGE + half_bytes):
            half = memory[begin : begin + half_bytes]
            specs = half[:specs_bytes].view(torch.int64).view(world_size, -1)
            self.halves.append(_Half(specs, half[half_bytes - self.CAPACITY :]))

    @classmethod
    def create(cls, world_size: int, nonce: int) -> "tuple[_Segment, str]":
        """A new one, and where other processes of this host find it as long as this one lives.

        Raises:
            OSError: this host has no such files, or no room.
        """
        if not hasattr(os, "memfd_create"):
            raise OSError("no memfd_create")
        descriptor = os.memfd_create(cls._NAME)
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # as long as this process and its forks live
        segment = cls(descriptor, world_size, is_new=True)
        segment.words[cls._NONCE] = nonce
        return segment, f"/proc/{os.getpid()}/fd/{descriptor}"

    @classmethod
    def open(cls, path: str, world_size: int, nonce: int) -> "_Segment":
        """
        Raises:
            OSError: it cannot be opened, or is another file, because its owner is on another host. That is then left
                as it is.
        """
        if not str(Path(path).readlink()).startswith(f"/memfd:{cls._NAME}"):
            raise OSError(f"{path} is not what it should be")
        segment = cls(os.open(path, os.O_RDWR), world_size, is_new=False)
        if int(segment.words[cls._NONCE]) != nonce:
            raise OSError(f"{path} is not what it should be")
        return segment

    def has_living_owner(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False

    def __del__(self) -> None:
        os.close(self._descriptor)


def best_wire(group: dist.ProcessGroup, deadline: float) -> Wire:
    """Shared memory where all ranks are on one host that has room for it, else the group's own backend. Collective.

    Raises:
        PeerLost: a rank is gone or late.
    """
    by_group = GroupWire(group)
    rank, world_size = by_group.rank, by_group.world_size

    def tell(text: str) -> list[str]:
        payload = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        header = [0, 0, payload.numel(), 0, 0, 0, 0, 0]
        said = by_group.transfer([header] * world_size, [payload] * world_size, [None] * world_size, deadline)
        return [delivery.payload.numpy().tobytes().decode() for delivery in said]

    nonce = secrets.randbits(62)
    own, path = None, "nowhere"
    if envs.shared_memory():
        with contextlib.suppress(OSError):
            own, path = _Segment.create(world_size, nonce)
    segments: list[_Segment] = []
    with contextlib.suppress(OSError):
        for peer, text in enumerate(tell(f"{path} {nonce}")):
            their_path, their_nonce = text.split()
            segments.append(own if peer == rank and own else _Segment.open(their_path, world_size, int(their_nonce)))
    has_all = len(segments) == world_size
    if all(text == "shared" for text in tell("shared" if has_all else "apart")):
        return SharedMemoryWire(rank, segments)
    return by_group


def lasting_bytes(size: int) -> torch.Tensor:
    """uint8 ``[size]``, zero, that calls in and out of inference mode may write to."""
    with torch.inference_mode(False):
        return torch.zeros(size, dtype=torch.uint8)


class _Scratch:
    """Memory for payloads that have no place of their own, used again and again."""

    def __init__(self, world_size: int):
        self._of_peer = [torch.empty(0, dtype=torch.uint8)] * world_size

    def place(self, peer: int, wanted: torch.Tensor | None, size: int) -> torch.Tensor:
        if wanted is not None and wanted.numel() == size:
            return wanted
        if self._of_peer[peer].numel() < size:
            self._of_peer[peer] = lasting_bytes(size)
        return self._of_peer[peer][:size]


def _wait(work: Any, deadline: float) -> None:
    work.wait(timedelta(seconds=max(deadline - time.monotonic(), 0.001)))
