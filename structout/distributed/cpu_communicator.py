"""What the ranks of a process group tell each other on the CPU: a message from each to each, checked before it is used.

An exchange is always carried through as announced and only then judged, by all ranks on the same headers, so that all
come to the same verdict and nothing is left on the wire.
"""

import threading
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

from structout.distributed.transport import Delivery, PeerLost, Wire, best_wire, lasting_bytes
from structout.errors import CollectiveError

_REFUSED = "refused"
EXCHANGES = (_REFUSED, "all_gather_bitmask", "sharded_masked_sample", "grammar_bitmask", "poll_ready")


@dataclass(frozen=True)
class Message:
    """What one rank said: the facts that are its own, and its payload, uint8, valid until the next exchange."""

    facts: tuple[int, int]
    payload: torch.Tensor


@dataclass
class Traffic:
    """Counted on this rank since its first exchange.

    Attributes:
        exchanges: how many.
        payload_bytes: that this rank had to tell the others, all of them together.
        bytes_sent: the same with headers, and with what fills up a frame of the network's.
    """

    exchanges: int = 0
    payload_bytes: int = 0
    bytes_sent: int = 0


class Channel:
    """This rank's end of a process group. Use :func:`channel`, so that there is one a group."""

    def __init__(self, group: dist.ProcessGroup):
        self._group = weakref.ref(group)
        self.rank: int = group.rank()
        self.world_size: int = group.size()
        self.traffic = Traffic()
        self._step = 0
        self._timeout = _timeout_of(group)
        self._wire: Wire | None = None
        self._is_busy = threading.Lock()
        self._breakdown: CollectiveError | None = None
        self._workspaces: dict[str, torch.Tensor] = {}

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
            agreed: up to three values, by name, that must be equal on all ranks.
            facts: two that need not.
            into: contiguous tensors for the payloads of each rank, which must be of that size.

        Raises:
            CollectiveError: a rank is gone, is late, refused, or disagrees. In the first two cases the group is broken
                and further calls raise at once; in the others all ranks raise, and the group can still be used.
        """
        if self._breakdown is not None:
            raise CollectiveError(f"the group broke down before: {self._breakdown.message}", self.rank, self._step)
        places = [None] * self.world_size if into is None else [_bytes_of(place) for place in into]
        header = [_kind(what), *facts, *agreed.values(), *[0] * (3 - len(agreed))]
        delivered = self._transfer(what, header, _bytes_of_each(payloads), places)
        self._judge(what, delivered, tuple(agreed))
        for rank, (said, place) in enumerate(zip(delivered, places, strict=True)):
            if place is not None and said.payload.numel() != place.numel():
                sizes = f"{said.payload.numel()} bytes and not {place.numel()}"
                raise self.disagreement(what, f"ranks disagree on the payload: rank {rank} sent {sizes}")
        return [Message((said.header[3], said.header[4]), said.payload) for said in delivered]

    def refuse(self, what: str, problem: Exception) -> None:
        """Take part in the exchange that the other ranks are in, or will be, only to tell them that it cannot be."""
        if self._breakdown is not None or self.world_size == 1:
            return
        text = torch.frombuffer(bytearray(f"{type(problem).__name__}: {problem}".encode()), dtype=torch.uint8)
        header = [_kind(_REFUSED), 0, 0, 0, 0, 0]
        self._transfer(what, header, [text] * self.world_size, [None] * self.world_size)

    def workspace(self, name: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory of this channel's, with whatever is in it; fresh memory would cost more than the work in it."""
        size = count * dtype.itemsize
        known = self._workspaces.get(name)
        if known is None or known.numel() < size:
            known = self._workspaces[name] = lasting_bytes(size)
        return known[:size].view(dtype)

    def _known_group(self) -> dist.ProcessGroup:
        group = self._group()
        assert group is not None  # whoever calls has it
        return group

    def disagreement(self, what: str, problem: str) -> CollectiveError:
        """An error that all ranks find out by themselves, each from what all have said."""
        return CollectiveError(f"{what}: {problem}", self.rank, self._step)

    def _transfer(
        self,
        what: str,
        header: Sequence[int],
        payloads: Sequence[torch.Tensor],
        places: Sequence[torch.Tensor | None],
    ) -> list[Delivery]:
        """``header`` without the step and the size of the payload, which go second and third."""
        if not self._is_busy.acquire(blocking=False):
            raise RuntimeError(f"{what}: another thread is in an exchange of this group; give each its own group")
        self._step += 1
        deadline = time.monotonic() + self._timeout
        headers = [[header[0], self._step, payload.numel(), *header[1:]] for payload in payloads]
        try:
            if self._wire is None:
                with torch.inference_mode(False):  # for calls in and out of it
                    self._wire = best_wire(self._known_group(), deadline)
            delivered = self._wire.transfer(headers, payloads, places, deadline)
        except PeerLost as lost:
            self._breakdown = CollectiveError(
                f"{what}: rank {lost.rank} is gone, or did not answer within {self._timeout:g} s ({lost}). Make a new "
                "process group of the ranks that are left",
                self.rank,
                self._step,
                (lost.rank,),
            )
            raise self._breakdown from lost
        except BaseException as problem:  # such as KeyboardInterrupt: half of a message may be on its way
            self._breakdown = CollectiveError(f"{what}: interrupted by {problem!r}", self.rank, self._step)
            raise
        finally:
            self._is_busy.release()
        sizes = [payload.numel() for peer, payload in enumerate(payloads) if peer != self.rank]
        self.traffic.exchanges += 1
        self.traffic.payload_bytes += sum(sizes)
        self.traffic.bytes_sent += sum(map(self._wire.bytes_for, sizes))
        return delivered

    def _judge(self, what: str, delivered: Sequence[Delivery], names: tuple[str, ...]) -> None:
        refusing = tuple(rank for rank, said in enumerate(delivered) if said.header[0] == _kind(_REFUSED))
        if refusing:
            reason = delivered[refusing[0]].payload.numpy().tobytes().decode(errors="replace")
            raise CollectiveError(
                f"{what}: rank {refusing[0]} could not take part at step {self._step}: {reason}",
                self.rank,
                self._step,
                refusing,
            )
        for name, place in (("exchange", 0), ("step", 1), *((name, 5 + i) for i, name in enumerate(names))):
            values = [said.header[place] for said in delivered]
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


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


def _bytes_of_each(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """One tensor for several ranks stays one."""
    viewed = {id(tensor): _bytes_of(tensor) for tensor in tensors}
    return [viewed[id(tensor)] for tensor in tensors]


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
