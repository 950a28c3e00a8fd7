"""What the ranks of a process group tell each other on the CPU: a message from each to each, checked before it is used.

A message is a header of eight int64 and a payload whose size the header announces. Every rank sends to every other at
once, point to point: no rank waits for a third, a rank that dies is known by name, and sizes need not agree
beforehand. An exchange is always carried through as announced and only then judged, by all ranks on the same headers,
so that all come to the same verdict and nothing is left on the wire.
"""

import functools
import hashlib
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import xxhash

from structout.errors import CollectiveError

_HEADER_TAG, _PAYLOAD_TAG = 0x57_01, 0x57_02
_REFUSED = "refused"


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
        bytes_sent: to all other ranks together, headers included.
    """

    exchanges: int = 0
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
            what: the name of the exchange; all ranks must be at the same one.
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
        self._step += 1
        payloads = [payload.reshape(-1).view(torch.uint8) for payload in payloads]
        kind = _kind(what)
        headers = [
            torch.tensor([kind, self._step, payload.numel(), *facts, *agreed.values()], dtype=torch.int64)
            for payload in payloads
        ]
        places = [None] * self.world_size if into is None else [place.view(-1).view(torch.uint8) for place in into]
        received = self._transfer(what, headers, payloads, places)
        said = [header.tolist() for header, _ in received]
        self._judge(what, said, [payload for _, payload in received], tuple(agreed))
        return [Message((header[3], header[4]), payload) for header, (_, payload) in zip(said, received, strict=True)]

    def refuse(self, what: str, problem: Exception) -> None:
        """Take part in the exchange that the other ranks are in, or will be, only to tell them that it cannot be."""
        if self._breakdown is not None or self.world_size == 1:
            return
        self._step += 1
        text = torch.frombuffer(bytearray(f"{type(problem).__name__}: {problem}".encode()), dtype=torch.uint8)
        header = torch.tensor([_kind(_REFUSED), self._step, text.numel(), 0, 0, 0, 0, 0], dtype=torch.int64)
        self._transfer(what, [header] * self.world_size, [text] * self.world_size, [None] * self.world_size)

    def disagreement(self, what: str, problem: str) -> CollectiveError:
        """An error that all ranks find out by themselves, each from what all have said."""
        return CollectiveError(f"{what}: {problem}", self.rank, self._step)

    def _transfer(
        self,
        what: str,
        headers: Sequence[torch.Tensor],
        payloads: Sequence[torch.Tensor],
        places: Sequence[torch.Tensor | None],
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        others = [(self.rank + i) % self.world_size for i in range(1, self.world_size)]
        received_headers = [torch.empty(8, dtype=torch.int64) for _ in range(self.world_size)]
        received = [payloads[self.rank]] * self.world_size
        received_headers[self.rank] = headers[self.rank]
        under_way: list[object] = [headers, payloads, places, received_headers, received]
        deadline = time.monotonic() + self._timeout
        peer = self.rank
        try:
            arriving, leaving = [], []
            for peer in others:
                arriving.append((peer, self._group.recv([received_headers[peer]], peer, _HEADER_TAG)))
                leaving.append((peer, self._group.send([headers[peer]], peer, _HEADER_TAG)))
                if payloads[peer].numel() > 0:
                    leaving.append((peer, self._group.send([payloads[peer]], peer, _PAYLOAD_TAG)))
            under_way += [arriving, leaving]
            payloads_arriving = []
            for peer, work in arriving:
                _wait(work, deadline)
                num_bytes = int(received_headers[peer][2])
                place = places[peer]
                if place is None or place.numel() != num_bytes:
                    place = torch.empty(num_bytes, dtype=torch.uint8)
                received[peer] = place
                if num_bytes > 0:
                    payloads_arriving.append((peer, self._group.recv([received[peer]], peer, _PAYLOAD_TAG)))
                    under_way.append(payloads_arriving)
            for peer, work in [*payloads_arriving, *leaving]:  # noqa: B007  (an error names it)
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
        self.traffic.exchanges += 1
        self.traffic.bytes_sent += sum(64 + payloads[peer].numel() for peer in others)
        return list(zip(received_headers, received, strict=True))

    def _judge(self, what: str, said: list[list[int]], payloads: list[torch.Tensor], names: tuple[str, ...]) -> None:
        refusing = [rank for rank, header in enumerate(said) if header[0] == _kind(_REFUSED)]
        if refusing:
            reason = bytes(payloads[refusing[0]].tolist()).decode(errors="replace")
            raise CollectiveError(
                f"{what}: rank {refusing[0]} could not take part at step {self._step}: {reason}",
                self.rank,
                self._step,
                tuple(refusing),
            )
        for name, place in (("exchange", 0), ("step", 1), *((name, 5 + i) for i, name in enumerate(names))):
            values = [header[place] for header in said]
            others = tuple(rank for rank, value in enumerate(values) if value != values[0])
            if not others:
                continue
            shown = [_names.get(value, "another") if name == "exchange" else str(value) for value in values]
            raise CollectiveError(
                f"{what}: ranks disagree on the {name}: {', '.join(shown)}, by rank. All ranks must make the same "
                "calls, in the same order, with the same rows, dtypes, masks and parameters",
                self.rank,
                self._step,
                others,
            )


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
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.intdigest() >> 1


_names: dict[int, str] = {}  # of the exchanges that this process knows of


@functools.cache
def _kind(what: str) -> int:
    kind = int.from_bytes(hashlib.blake2s(what.encode(), digest_size=7).digest(), "little")
    _names[kind] = what
    return kind


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
