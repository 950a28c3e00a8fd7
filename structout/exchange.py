"""What the ranks of a process group tell each other on the CPU: a message from each to each, checked before it is used.

A message is a frame of fixed size, which holds a header of eight int64 and a payload if it fits; a larger payload
follows by itself, and the header says how large it is. Every rank sends to every other at once, point to point: no rank
waits for a third, a rank that dies is known by name, and sizes need not agree beforehand. An exchange is always carried
through as announced and only then judged, by all ranks on the same headers, so that all come to the same verdict and
nothing is left on the wire.
"""

import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import xxhash

from structout.errors import CollectiveError

_FRAME_TAG, _PAYLOAD_TAG = 0x57_01, 0x57_02
_FRAME_BYTES, _HEADER_BYTES = 4096, 64  # one message instead of two for up to 336 rows of a draw without filters
_REFUSED = "refused"
EXCHANGES = (_REFUSED, "all_gather_bitmask", "sharded_masked_sample", "grammar_bitmask", "poll_ready")


@dataclass(frozen=True)
class Message:
    """What one rank said: the facts that are its own, and its payload, uint8."""

    facts: tuple[int, int]
    payload: torch.Tensor


@dataclass
class Traffic:
    """Counted on this rank since its first exchange.

    Attributes:
        exchanges: how many.
        payload_bytes: that this rank had to tell the others, all of them together.
        bytes_sent: the same with headers, and with what fills up a frame.
    """

    exchanges: int = 0
    payload_bytes: int = 0
    bytes_sent: int = 0


class Channel:
    """This rank's end of a process group. Use :func:`channel`, so that there is one a group."""

    def __init__(self, group: dist.ProcessGroup):
        self._group = group
        self.rank: int = group.rank()
        self.world_size: int = group.size()
        self.traffic = Traffic()
        self._step = 0
        self._timeout = _timeout_of(group)
        self._breakdown: CollectiveError | None = None
        self._outgoing = torch.zeros(self.world_size, _FRAME_BYTES, dtype=torch.uint8)
        self._incoming = torch.zeros(self.world_size, _FRAME_BYTES, dtype=torch.uint8)
        self._abandoned: list[object] = []  # what a transfer that never ended may still write to

    def exchange(
        self,
        what: str,
        payloads: Sequence[torch.Tensor],
        *,
        agreed: Mapping[str, int],
        facts: tuple[int, int] = (0, 0),
        into: Sequence[torch.Tensor] | None = None,
    ) -> list[Message]:
        """Send ``payloads[r]`` to each rank r and receive theirs, in rank order; this rank's own is handed through.

        Args:
            what: one of ``EXCHANGES``; all ranks must be at the same one.
            payloads: contiguous CPU tensors, of any dtype; one tensor may stand for several ranks.
            agreed: three values, by name, that must be equal on all ranks.
            facts: two that need not.
            into: contiguous tensors for the payloads of each rank, used where the size fits.

        Raises:
            CollectiveError: a rank is gone, is late, refused, or disagrees. In the first two cases the group is broken
                and further calls raise at once; in the others all ranks raise, and the group can still be used.
        """
        if self._breakdown is not None:
            raise CollectiveError(f"the group broke down before: {self._breakdown.message}", self.rank, self._step)
        places = [None] * self.world_size if into is None else [_bytes_of(place) for place in into]
        header = [_kind(what), *facts, *agreed.values()]
        received = self._transfer(what, header, [_bytes_of(payload) for payload in payloads], places)
        self._judge(what, received, tuple(agreed))
        return [Message((said.header[3], said.header[4]), said.payload) for said in received]

    def refuse(self, what: str, problem: Exception) -> None:
        """Take part in the exchange that the other ranks are in, or will be, only to tell them that it cannot be."""
        if self._breakdown is not None or self.world_size == 1:
            return
        text = torch.frombuffer(bytearray(f"{type(problem).__name__}: {problem}".encode()), dtype=torch.uint8)
        header = [_kind(_REFUSED), 0, 0, 0, 0, 0]
        self._transfer(what, header, [text] * self.world_size, [None] * self.world_size)

    def disagreement(self, what: str, problem: str) -> CollectiveError:
        """An error that all ranks find out by themselves, each from what all have said."""
        return CollectiveError(f"{what}: {problem}", self.rank, self._step)

    def _transfer(
        self,
        what: str,
        header: Sequence[int],
        payloads: Sequence[torch.Tensor],
        places: Sequence[torch.Tensor | None],
    ) -> list["_Received"]:
        """``header`` without the step and the size of the payload, which go second and third."""
        self._step += 1
        others = [(self.rank + i) % self.world_size for i in range(1, self.world_size)]
        under_way: list[object] = [payloads, places]
        deadline = time.monotonic() + self._timeout
        peer = self.rank
        try:
            arriving = [(peer, self._group.recv([self._incoming[peer]], peer, _FRAME_TAG)) for peer in others]
            leaving = []
            for peer in (self.rank, *others):
                payload, frame = payloads[peer], self._outgoing[peer]
                frame[:_HEADER_BYTES].view(torch.int64).copy_(
                    torch.tensor([header[0], self._step, payload.numel(), *header[1:]])
                )
                if payload.numel() <= _FRAME_BYTES - _HEADER_BYTES:
                    frame[_HEADER_BYTES : _HEADER_BYTES + payload.numel()].copy_(payload)
                if peer == self.rank:
                    continue
                leaving.append((peer, self._group.send([frame], peer, _FRAME_TAG)))
                if payload.numel() > _FRAME_BYTES - _HEADER_BYTES:
                    leaving.append((peer, self._group.send([payload], peer, _PAYLOAD_TAG)))
            under_way += [arriving, leaving]
            received = [_Received(_header_in(self._outgoing[self.rank]), payloads[self.rank])] * self.world_size
            following = []
            for peer, work in arriving:
                _wait(work, deadline)
                said = _header_in(self._incoming[peer])
                place = places[peer]
                if place is None or place.numel() != said[2]:
                    place = torch.empty(said[2], dtype=torch.uint8)
                received[peer] = _Received(said, place)
                if said[2] <= _FRAME_BYTES - _HEADER_BYTES:
                    place.copy_(self._incoming[peer, _HEADER_BYTES : _HEADER_BYTES + said[2]])
                else:
                    following.append((peer, self._group.recv([place], peer, _PAYLOAD_TAG)))
                    under_way.append((place, following))
            for peer, work in [*following, *leaving]:  # noqa: B007  (an error names it)
                _wait(work, deadline)
        except BaseException as problem:
            self._abandoned = under_way
            self._breakdown = CollectiveError(
                f"{what}: rank {peer} is gone, or did not answer within {self._timeout:g} s ({_first_line(problem)}). "
                "Make a new process group of the ranks that are left",
                self.rank,
                self._step,
                (peer,),
            )
            if not isinstance(problem, RuntimeError):  # such as KeyboardInterrupt
                raise
            raise self._breakdown from problem
        self._count([payloads[peer].numel() for peer in others])
        return received

    def _count(self, sizes: Sequence[int]) -> None:
        self.traffic.exchanges += 1
        self.traffic.payload_bytes += sum(sizes)
        following = [size for size in sizes if size > _FRAME_BYTES - _HEADER_BYTES]
        self.traffic.bytes_sent += _FRAME_BYTES * len(sizes) + sum(following)

    def _judge(self, what: str, received: Sequence["_Received"], names: tuple[str, ...]) -> None:
        refusing = tuple(rank for rank, said in enumerate(received) if said.header[0] == _kind(_REFUSED))
        if refusing:
            reason = received[refusing[0]].payload.numpy().tobytes().decode(errors="replace")
            raise CollectiveError(
                f"{what}: rank {refusing[0]} could not take part at step {self._step}: {reason}",
                self.rank,
                self._step,
                refusing,
            )
        for name, place in (("exchange", 0), ("step", 1), *((name, 5 + i) for i, name in enumerate(names))):
            values = [said.header[place] for said in received]
            others = tuple(rank for rank, value in enumerate(values) if value != values[0])
            if not others:
                continue
            shown = [EXCHANGES[value] if name == "exchange" else str(value) for value in values]
            raise CollectiveError(
                f"{what}: ranks disagree on the {name}: {', '.join(shown)}, by rank. All ranks must make the same "
                "calls, in the same order, with the same rows, dtypes, masks and parameters",
                self.rank,
                self._step,
                others,
            )


@dataclass(frozen=True)
class _Received:
    header: list[int]
    payload: torch.Tensor


def _header_in(frame: torch.Tensor) -> list[int]:
    header: list[int] = frame[:_HEADER_BYTES].view(torch.int64).tolist()
    return header


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


_channels: "weakref.WeakKeyDictionary[dist.ProcessGroup, Channel]" = weakref.WeakKeyDictionary()


def channel(group_name: str) -> Channel:
    """The channel of a process group, by the name that the group goes by in compiled code (``group.group_name``).

    Raises:
        ValueError: there is no such group, or it is not one for CPU tensors.
    """
    group = resolve(group_name)
    known = _channels.get(group)
    if known is None:
        known = _channels[group] = Channel(group)
    return known


def resolve(group_name: str) -> dist.ProcessGroup:
    try:
        return dist.distributed_c10d._resolve_process_group(group_name)  # type: ignore[attr-defined,arg-type]
    except RuntimeError as problem:
        raise ValueError(
            f"there is no process group named {group_name!r} (here, or any more); pass group.group_name of one that "
            "torch.distributed has made and not destroyed"
        ) from problem


def name_of(group: dist.ProcessGroup | str | None) -> str:
    """A group, its name, or None for the default group; ``""`` where there is no group and so one rank."""
    if isinstance(group, str):
        return group
    if group is None:
        if not dist.is_available() or not dist.is_initialized():
            return ""
        group = dist.group.WORLD
    assert group is not None
    return str(group.group_name)


def world_size_of(group_name: str) -> int:
    return 1 if group_name == "" else int(resolve(group_name).size())


def checksum(*tensors: torch.Tensor | None) -> int:
    """63 bits that tell dtypes, shapes and contents of CPU tensors apart."""
    digest = xxhash.xxh3_64()
    for tensor in tensors:
        if tensor is None:
            digest.update(b"none")
            continue
        digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
        digest.update(np.ascontiguousarray(tensor.numpy()).data)
    return digest.intdigest() >> 1


def _kind(what: str) -> int:
    return EXCHANGES.index(what)


def _timeout_of(group: dist.ProcessGroup) -> float:
    try:
        backend: Any = group._get_backend(torch.device("cpu"))
    except RuntimeError as problem:
        raise ValueError(
            f"the process group {group.group_name!r} has no backend for CPU tensors; make it with backend='gloo', or "
            "'cpu:gloo,cuda:nccl'"
        ) from problem
    timeout: timedelta = backend.options._timeout
    return timeout.total_seconds()


def _wait(work: Any, deadline: float) -> None:
    work.wait(timedelta(seconds=max(deadline - time.monotonic(), 0.001)))


def _first_line(problem: BaseException) -> str:
    return str(problem).partition("\n")[0].rpartition("] ")[2]
