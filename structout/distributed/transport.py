"""Transports carry messages among the CPUs of a group's ranks.

A message is a header of eight int64, whose sixth is the payload size in bytes, and the
payload. A transport delivers each message whole or raises PeerLostError. It does not
interpret them. There are two: the process group's own backend, and shared memory for
the ranks of one host.
"""

import contextlib
import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from structout.distributed.shared_memory import SharedMemorySegment, share_segments
from structout.grammar.native.extension import core

Header = list[int]
PAYLOAD_SIZE = 5  # index in the header
_HEADER_BYTES = 64


class PeerLostError(Exception):
    """A rank has died, or did not answer in time."""

    def __init__(self, rank: int, reason: str):
        super().__init__(reason)
        self.rank = rank


class ReceivedMessage(NamedTuple):
    """A message as it arrived. The payload is uint8, or the buffer that it was to go
    to."""

    header: Header
    payload: torch.Tensor


class Transport(Protocol):
    def transfer(
        self,
        header: Header,
        payloads: Sequence[torch.Tensor],
        recv_buffers: Sequence[torch.Tensor] | None,
        deadline: float,
    ) -> list[ReceivedMessage]:
        """Send a header and ``payloads[r]`` to each rank r, and receive theirs.

        Args:
            header: for all ranks; the transport adds the payload size.
            payloads: a contiguous tensor for each rank; one may serve several ranks.
            recv_buffers: where to write the payload of each rank; contiguous. A payload
                of another size than its buffer goes to the transport's own memory,
                which is valid until the next transfer, as do all of them without
                buffers.
            deadline: in terms of ``time.monotonic``.

        Returns:
            The messages in rank order. This rank's own payload is returned as it was
            given.

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
        header: Header,
        payloads: Sequence[torch.Tensor],
        recv_buffers: Sequence[torch.Tensor] | None,
        deadline: float,
    ) -> list[ReceivedMessage]:
        peers = [(self.rank + i) % self.world_size for i in range(1, self.world_size)]
        received = [ReceivedMessage(header, payloads[self.rank])] * self.world_size
        payloads = [_as_bytes(payload) for payload in payloads]
        frame_receives: list[tuple[int, Any]] = []
        sends: list[tuple[int, Any]] = []
        payload_receives: list[tuple[int, Any]] = []
        payload_buffers: list[torch.Tensor] = []
        in_flight = [payloads, payload_buffers, frame_receives, sends, payload_receives]
        peer = peers[0]
        try:
            for peer in peers:
                frame_receives.append((peer, self._group.recv([self._incoming_frames[peer]], peer, self._FRAME_TAG)))
            for peer in peers:
                frame, payload = self._outgoing_frames[peer], payloads[peer]
                sent_header = [*header[:PAYLOAD_SIZE], payload.numel(), *header[PAYLOAD_SIZE + 1 :]]
                frame[:_HEADER_BYTES].view(torch.int64).copy_(torch.tensor(sent_header))
                if self._fits_in_frame(payload.numel()):
                    frame[_HEADER_BYTES : _HEADER_BYTES + payload.numel()].copy_(payload)
                sends.append((peer, self._group.send([frame], peer, self._FRAME_TAG)))
                if not self._fits_in_frame(payload.numel()):
                    sends.append((peer, self._group.send([payload], peer, self._PAYLOAD_TAG)))
            for peer, work in frame_receives:
                _wait(work, deadline)
                peers_header = self._incoming_frames[peer, :_HEADER_BYTES].view(torch.int64).tolist()
                size = peers_header[PAYLOAD_SIZE]
                if size == self._PEER_LOST_NOTICE:
                    raise PeerLostError(peers_header[0], f"rank {peer} has lost it")
                requested = None if recv_buffers is None else _as_bytes(recv_buffers[peer])
                buffer = self._recv_buffers.select(peer, requested, size)
                received[peer] = ReceivedMessage(peers_header, buffer)
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

    ``csrc/ranks/shared_exchange.h`` describes the protocol.
    """

    CAPACITY = 8 << 20  # bytes of payloads in a segment, twice

    def __init__(self, rank: int, segments: Sequence[SharedMemorySegment]):
        self._segments = segments  # the exchange has their addresses
        owned = [(segment.address, segment.descriptor) for segment in segments]
        self._exchange = core().SharedExchange(rank, owned, self.CAPACITY)
        self._rank = rank
        self._lost_rank: type[Exception] = core().LostRank
        self._bytes_beside_payload = int(core().SharedExchange.BYTES_BESIDE_PAYLOAD)

    def transfer(
        self,
        header: Header,
        payloads: Sequence[torch.Tensor],
        recv_buffers: Sequence[torch.Tensor] | None,
        deadline: float,
    ) -> list[ReceivedMessage]:
        memories = [(payload.data_ptr(), payload.nbytes) for payload in payloads]
        rooms = [] if recv_buffers is None else [(buffer.data_ptr(), buffer.nbytes) for buffer in recv_buffers]
        try:
            arrived = self._exchange.transfer(header, memories, rooms, deadline - time.monotonic())
        except self._lost_rank as error:
            raise PeerLostError(*error.args) from None
        received = [ReceivedMessage(header, payloads[self._rank])] * len(arrived)
        for rank, (peers_header, payload) in enumerate(arrived):
            if payload is not None:
                received[rank] = ReceivedMessage(peers_header, torch.from_numpy(payload))
            elif recv_buffers is not None and rank != self._rank:
                received[rank] = ReceivedMessage(peers_header, recv_buffers[rank])
        return received

    def num_bytes_sent(self, payload_bytes: int) -> int:
        return self._bytes_beside_payload + payload_bytes


def choose_transport(group: dist.ProcessGroup, deadline: float) -> Transport:
    """Choose shared memory where all ranks can map it, else the group's backend.

    Collective.

    Raises:
        PeerLostError: a rank has died or did not answer in time.
    """
    group_transport = ProcessGroupTransport(group)
    rank, world_size = group_transport.rank, group_transport.world_size

    def all_gather(payload: torch.Tensor) -> list[torch.Tensor]:
        messages = group_transport.transfer([0] * 8, [payload] * world_size, None, deadline)
        return [message.payload for message in messages]

    size = core().SharedExchange.segment_bytes(world_size, SharedMemoryTransport.CAPACITY)
    segments = share_segments(rank, range(world_size), size, all_gather)
    return group_transport if segments is None else SharedMemoryTransport(rank, segments)


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


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


def _wait(work: Any, deadline: float) -> None:
    work.wait(timedelta(seconds=max(deadline - time.monotonic(), 0.001)))
