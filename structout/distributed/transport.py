"""Transports carry messages among the CPUs of a group's ranks.

A message is a header of eight int64, whose third is the payload size in bytes, and the
payload. A transport delivers each message whole or raises PeerLostError. It does not
interpret them. There are two: the process group's own backend, and shared memory for
the ranks of one host.
"""

import contextlib
import secrets
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from structout import envs
from structout.distributed.shared_memory import SharedMemorySegment

Header = list[int]
PAYLOAD_SIZE = 2  # index in the header
_HEADER_BYTES = 64


class PeerLostError(Exception):
    """A rank has died, or did not answer in time."""

    def __init__(self, rank: int, reason: str):
        super().__init__(reason)
        self.rank = rank


@dataclass(frozen=True)
class ReceivedMessage:
    """A message as it arrived; the payload is uint8."""

    header: Header
    payload: torch.Tensor


class Transport(Protocol):
    def transfer(
        self,
        headers: Sequence[Header],
        payloads: Sequence[torch.Tensor],
        recv_buffers: Sequence[torch.Tensor | None],
        deadline: float,
    ) -> list[ReceivedMessage]:
        """Send ``headers[r]`` and ``payloads[r]`` to each rank r, and receive theirs.

        Args:
            headers: one for each rank.
            payloads: one for each rank, uint8; one tensor may serve several ranks.
            recv_buffers: where to write the payload of each rank, uint8. A payload of
                another size than its buffer goes to the transport's own memory, which
                is valid until the next transfer.
            deadline: in terms of ``time.monotonic``.

        Returns:
            The messages in rank order. This rank's own is returned as it was given.

        Raises:
            PeerLostError: not every message arrived by the deadline. The transport
                cannot be used again.
        """

    def num_bytes_sent(self, payload_bytes: int) -> int:
        """Return how many bytes it takes to send a payload of that size to one rank."""


class ProcessGroupTransport:
    """Sends messages point to point by the backend of a process group.

    Every rank sends to every other at once, so that no rank waits for a third. A small
    payload travels in one frame with its header, because on a busy host each message
    may have to wait for a thread.
    """

    FRAME_BYTES = 4096
    _FRAME_TAG, _PAYLOAD_TAG = 0x57_01, 0x57_02
    _PEER_LOST_NOTICE = -1  # in place of a payload size: the rank in the first word is lost

    def __init__(self, group: dist.ProcessGroup):
        self._group = weakref.proxy(group)  # a transport must not keep its group alive
        self.rank: int = group.rank()
        self.world_size: int = group.size()
        self._outgoing_frames = allocate_buffer(self.world_size * self.FRAME_BYTES).view(self.world_size, -1)
        self._incoming_frames = allocate_buffer(self.world_size * self.FRAME_BYTES).view(self.world_size, -1)
        self._recv_buffers = _RecvBuffers(self.world_size)
        self._abandoned: list[object] = []  # memory that an unfinished transfer may still access

    def transfer(
        self,
        headers: Sequence[Header],
        payloads: Sequence[torch.Tensor],
        recv_buffers: Sequence[torch.Tensor | None],
        deadline: float,
    ) -> list[ReceivedMessage]:
        peers = [(self.rank + i) % self.world_size for i in range(1, self.world_size)]
        received = [ReceivedMessage(headers[self.rank], payloads[self.rank])] * self.world_size
        frame_receives: list[tuple[int, Any]] = []
        sends: list[tuple[int, Any]] = []
        payload_receives: list[tuple[int, Any]] = []
        payload_buffers: list[torch.Tensor] = []
        in_flight = [payloads, recv_buffers, payload_buffers, frame_receives, sends, payload_receives]
        peer = peers[0]
        try:
            for peer in peers:
                frame_receives.append((peer, self._group.recv([self._incoming_frames[peer]], peer, self._FRAME_TAG)))
            for peer in peers:
                frame, payload = self._outgoing_frames[peer], payloads[peer]
                frame[:_HEADER_BYTES].view(torch.int64).copy_(torch.tensor(headers[peer]))
                if self._fits_in_frame(payload.numel()):
                    frame[_HEADER_BYTES : _HEADER_BYTES + payload.numel()].copy_(payload)
                sends.append((peer, self._group.send([frame], peer, self._FRAME_TAG)))
                if not self._fits_in_frame(payload.numel()):
                    sends.append((peer, self._group.send([payload], peer, self._PAYLOAD_TAG)))
            for peer, work in frame_receives:
                _wait(work, deadline)
                header = self._incoming_frames[peer, :_HEADER_BYTES].view(torch.int64).tolist()
                size = header[PAYLOAD_SIZE]
                if size == self._PEER_LOST_NOTICE:
                    raise PeerLostError(header[0], f"rank {peer} has lost it")
                buffer = self._recv_buffers.select(peer, recv_buffers[peer], size)
                received[peer] = ReceivedMessage(header, buffer)
                if self._fits_in_frame(size):
                    buffer.copy_(self._incoming_frames[peer, _HEADER_BYTES : _HEADER_BYTES + size])
                else:
                    payload_receives.append((peer, self._group.recv([buffer], peer, self._PAYLOAD_TAG)))
                    payload_buffers.append(buffer)
            for peer, work in [*payload_receives, *sends]:  # noqa: B007  (errors name the peer)
                _wait(work, deadline)
        except BaseException as error:
            self._abandoned += in_flight
            if isinstance(error, RuntimeError):
                error = PeerLostError(peer, str(error).partition("\n")[0].rpartition("] ")[2])
            if isinstance(error, PeerLostError):
                self._notify_peers(error)
            raise error from None
        return received

    def num_bytes_sent(self, payload_bytes: int) -> int:
        return self.FRAME_BYTES + (0 if self._fits_in_frame(payload_bytes) else payload_bytes)

    def _notify_peers(self, error: PeerLostError) -> None:
        """Tell the other ranks, which may have heard from the lost one."""
        notice = torch.zeros(self.FRAME_BYTES, dtype=torch.uint8)
        notice[:_HEADER_BYTES].view(torch.int64)[[0, PAYLOAD_SIZE]] = torch.tensor([error.rank, self._PEER_LOST_NOTICE])
        for peer in {*range(self.world_size)} - {self.rank, error.rank}:
            with contextlib.suppress(RuntimeError):  # this peer may be lost too
                self._abandoned.append((notice, self._group.send([notice], peer, self._FRAME_TAG)))

    def _fits_in_frame(self, payload_bytes: int) -> bool:
        return payload_bytes <= self.FRAME_BYTES - _HEADER_BYTES


class SharedMemoryTransport:
    """Each rank writes to a segment of its own, from which the others read.

    Rounds are counted in epochs, which use the two halves of a segment in turn (as in
    csrc/cuda/push.cuh). No rank asks whether the others are ready: a rank that has seen
    all others reach epoch e knows that they have finished e - 1 and read everything
    written in it. So in e + 1 it may overwrite the half of e - 1. A payload larger than
    its part of a half takes several epochs.
    """

    _LIVENESS_CHECK_US = 100_000

    def __init__(self, rank: int, segments: Sequence[SharedMemorySegment]):
        self.rank = rank
        self.world_size = len(segments)
        self._segments = segments
        self._recv_buffers = _RecvBuffers(self.world_size)
        self._epoch = 0

    def transfer(
        self,
        headers: Sequence[Header],
        payloads: Sequence[torch.Tensor],
        recv_buffers: Sequence[torch.Tensor | None],
        deadline: float,
    ) -> list[ReceivedMessage]:
        peers = [(self.rank + i) % self.world_size for i in range(1, self.world_size)]
        is_broadcast = all(payloads[peer] is payloads[peers[0]] for peer in peers)
        capacity = SharedMemorySegment.CAPACITY
        round_bytes = capacity if is_broadcast else capacity // self.world_size // 64 * 64
        offsets = [0 if is_broadcast else peer * round_bytes for peer in range(self.world_size)]
        local_rounds = max(1, *(-(-payloads[peer].numel() // round_bytes) for peer in peers))
        specs = torch.tensor(
            [[*header, offset, round_bytes, local_rounds] for header, offset in zip(headers, offsets, strict=True)]
        )
        received = [ReceivedMessage(headers[self.rank], payloads[self.rank])] * self.world_size
        sources: list[tuple[int, int, int]] = []  # peer, offset, bytes per round
        round_index, num_rounds = 0, local_rounds
        while round_index < num_rounds:
            self._epoch += 1
            half = self._segments[self.rank].halves[self._epoch % 2]
            if round_index == 0:
                half.specs.copy_(specs)
            for peer in peers[:1] if is_broadcast else peers:
                part = payloads[peer][round_index * round_bytes : (round_index + 1) * round_bytes]
                half.data[offsets[peer] : offsets[peer] + part.numel()].copy_(part)
            torch.ops.structout._post_word(self._segments[self.rank].epoch, self._epoch)
            for peer in peers:
                self._await_epoch(peer, deadline)
                half = self._segments[peer].halves[self._epoch % 2]
                if round_index == 0:
                    *header, peer_offset, peer_round_bytes, peer_rounds = half.specs[self.rank].tolist()
                    buffer = self._recv_buffers.select(peer, recv_buffers[peer], header[PAYLOAD_SIZE])
                    received[peer] = ReceivedMessage(header, buffer)
                    sources.append((peer, peer_offset, peer_round_bytes))
                    num_rounds = max(num_rounds, peer_rounds)
            for peer, peer_offset, peer_round_bytes in sources:
                part = received[peer].payload[round_index * peer_round_bytes : (round_index + 1) * peer_round_bytes]
                data = self._segments[peer].halves[self._epoch % 2].data
                part.copy_(data[peer_offset : peer_offset + part.numel()])
            round_index += 1
        return received

    def num_bytes_sent(self, payload_bytes: int) -> int:
        return 8 * SharedMemorySegment.SPEC_WORDS + payload_bytes

    def _await_epoch(self, peer: int, deadline: float) -> None:
        """Wait until ``peer`` has written everything of the current epoch."""
        while True:
            remaining_us = int(max(0.0, deadline - time.monotonic()) * 1e6)
            timeout_us = min(remaining_us, self._LIVENESS_CHECK_US)
            if torch.ops.structout._await_word(self._segments[peer].epoch, self._epoch, timeout_us):
                return
            # The peer may itself be waiting for a dead rank, so every rank is checked.
            for rank, segment in enumerate(self._segments):
                if rank != self.rank and not segment.is_owner_alive() and int(segment.epoch) < self._epoch:
                    raise PeerLostError(rank, "its process has ended")
            if remaining_us == 0:
                raise PeerLostError(peer, "timed out waiting for it")


def choose_transport(group: dist.ProcessGroup, deadline: float) -> Transport:
    """Choose shared memory where all ranks can map it, else the group's backend.

    Collective.

    Raises:
        PeerLostError: a rank has died or did not answer in time.
    """
    group_transport = ProcessGroupTransport(group)
    rank, world_size = group_transport.rank, group_transport.world_size

    def all_gather_text(text: str) -> list[str]:
        payload = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        header = [0, 0, payload.numel(), 0, 0, 0, 0, 0]
        messages = group_transport.transfer(
            [header] * world_size, [payload] * world_size, [None] * world_size, deadline
        )
        return [message.payload.numpy().tobytes().decode() for message in messages]

    nonce = secrets.randbits(62)
    local_segment, local_path = None, "nowhere"
    if envs.shared_memory():
        with contextlib.suppress(OSError):
            local_segment, local_path = SharedMemorySegment.create(world_size, nonce)
    segments: list[SharedMemorySegment] = []
    with contextlib.suppress(OSError):
        for peer, text in enumerate(all_gather_text(f"{local_path} {nonce}")):
            path, peer_nonce = text.split()
            if peer == rank and local_segment is not None:
                segments.append(local_segment)
            else:
                segments.append(SharedMemorySegment.open(path, world_size, int(peer_nonce)))
    has_every_segment = len(segments) == world_size
    if all(text == "shared" for text in all_gather_text("shared" if has_every_segment else "apart")):
        return SharedMemoryTransport(rank, segments)
    return group_transport


def allocate_buffer(size: int) -> torch.Tensor:
    """Allocate zeroed uint8 ``[size]`` for use in and out of inference mode."""
    with torch.inference_mode(False):
        return torch.zeros(size, dtype=torch.uint8)


class _RecvBuffers:
    """Reused buffers, for payloads that the caller gave no buffer of the right size."""

    def __init__(self, world_size: int):
        self._buffers = [torch.empty(0, dtype=torch.uint8)] * world_size

    def select(self, peer: int, requested: torch.Tensor | None, size: int) -> torch.Tensor:
        if requested is not None and requested.numel() == size:
            return requested
        if self._buffers[peer].numel() < size:
            self._buffers[peer] = allocate_buffer(size)
        return self._buffers[peer][:size]


def _wait(work: Any, deadline: float) -> None:
    work.wait(timedelta(seconds=max(deadline - time.monotonic(), 0.001)))
