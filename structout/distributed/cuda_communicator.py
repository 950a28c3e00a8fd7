"""How the ranks of a group exchange tensors on their GPUs: by push kernels over symmetric memory, or by collectives.

Which of the two is decided once for a group, by all ranks alike: push kernels where every rank can write to the memory
of every other (torch symmetric memory), else the group's own collectives (NCCL). This is decided, and the memory made,
at the first call, which must therefore not be captured in a graph; later ones may be.
"""

import contextlib
import socket
import weakref
from typing import Any, Protocol

import torch
import torch.distributed as dist
import xxhash

from structout import _kernels
from structout.distributed.cpu_communicator import resolve
from structout.distributed.vocab_parallel import ShardStep, shard_rows
from structout.errors import CollectiveError

_SMALLEST_CAPACITY = 1 << 20
_STATE_WORDS, _ERROR, _PEER, _EPOCH = 6, 3, 4, 5  # PushState of csrc/push.h, in int64
_ERRORS = {1: "did not come in time", 2: "came with other arguments"}


class DeviceLink(Protocol):
    """This rank's end of a group, for tensors on one device."""

    rank: int
    world_size: int

    def all_gather(self, mine: torch.Tensor, facts: tuple[object, ...], fill_on_error: int) -> torch.Tensor:
        """``[world_size, *mine.shape]``. ``facts``: what must be equal on all ranks, beside the shape."""

    def own_rows(self, step: ShardStep, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Of the rows this rank owns all that their masks allow ``[n, vocab_size]``, and the row map ``[n]``."""

    def columns(self, mine: tuple[int, int]) -> list[tuple[int, int]]:
        """Where each rank's columns begin, and how many it has. The first step asks the others; later ones must not
        differ, for a rank could not know whether the others are asking."""


class CollectiveLink:
    """By the collectives of the group. Nothing but the group's timeout tells of a rank that is gone or differs."""

    def __init__(self, group: dist.ProcessGroup):
        self._group = weakref.ref(group)
        self.rank: int = group.rank()
        self.world_size: int = group.size()
        self._columns: list[tuple[int, int]] | None = None

    def all_gather(self, mine: torch.Tensor, facts: tuple[object, ...], fill_on_error: int) -> torch.Tensor:
        gathered = mine.new_empty(self.world_size, *mine.shape)
        dist.all_gather(list(gathered.unbind()), mine.contiguous(), group=_alive(self._group))
        return gathered

    def own_rows(self, step: ShardStep, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """All columns, allowed or not: how many are allowed is known on the device alone."""
        num_rows = step.logits.shape[0]
        mine = shard_rows(num_rows, self.rank, self.world_size)
        logits = step.logits.new_empty(len(mine), vocab_size)
        transfers, arriving = [], []
        for rank, (start, width) in enumerate(self.columns(step.columns)):
            owned = shard_rows(num_rows, rank, self.world_size)
            leaving = step.logits[owned.start : owned.stop].contiguous()
            if rank == self.rank:
                logits[:, start : start + width] = leaving
                continue
            if leaving.numel() > 0:
                transfers.append(dist.P2POp(dist.isend, leaving, group=_alive(self._group), group_peer=rank))
            part = step.logits.new_empty(len(mine), width)
            if part.numel() > 0:
                transfers.append(dist.P2POp(dist.irecv, part, group=_alive(self._group), group_peer=rank))
                arriving.append((start, part))
        for transfer in dist.batch_isend_irecv(transfers) if transfers else []:
            transfer.wait()
        for start, part in arriving:
            logits[:, start : start + part.shape[1]] = part
        return logits, step.masks(mine)[1]

    def columns(self, mine: tuple[int, int]) -> list[tuple[int, int]]:
        if self._columns is None:
            _must_not_be_captured()
            self._columns = [tuple(told) for told in _told_by_all(_alive(self._group), mine)]
        known = self._columns[self.rank]
        if known != mine:
            raise ValueError(
                f"sharded_masked_sample: this group's rank {self.rank} has {known[1]} columns from {known[0]} on, got "
                f"{mine[1]} from {mine[0]} on; on a GPU another vocabulary needs another process group"
            )
        return self._columns


class SymmetricLink:
    """By push kernels (csrc/cuda/push.cuh): nobody waits to be asked, and a captured graph can be replayed.

    An error on the device (a rank that is late, or came with other arguments) makes every later result empty: masks
    that allow nothing, ids of -1. :meth:`check` raises it.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device):
        self._group = weakref.ref(group)
        self._device = device
        self.rank: int = group.rank()
        self.world_size: int = group.size()
        self._by_collectives = CollectiveLink(group)
        timeout: Any = group._get_backend(device).options._timeout
        self._timeout_ns = int(timeout.total_seconds() * 1e9)
        self._capacities = (0, 0)
        self._generations: list[tuple[torch.Tensor, torch.Tensor, Any]] = []  # captured graphs may use old ones
        self._reserve(_SMALLEST_CAPACITY, 0)

    def all_gather(self, mine: torch.Tensor, facts: tuple[object, ...], fill_on_error: int) -> torch.Tensor:
        mine = mine.contiguous()
        self._reserve(mine.numel() * mine.element_size(), 0)
        gathered = mine.new_empty(self.world_size, *mine.shape)
        torch.ops.structout._push_all_gather(
            mine,
            gathered,
            self._state,
            self._handle.buffer_ptrs_dev,
            self._handle.multicast_ptr,
            self.rank,
            self.world_size,
            self._capacities[0],
            _token("all_gather", mine.dtype, tuple(mine.shape), facts),
            self._timeout_ns,
            fill_on_error,
        )
        return gathered

    def own_rows(self, step: ShardStep, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        if _kernels.load().cuda == "triton":  # which has no kernel for it
            return self._by_collectives.own_rows(step, vocab_size)
        logits = step.logits
        num_rows, pitch = logits.shape[0], -(-vocab_size * logits.element_size() // 16) * 16
        mine = shard_rows(num_rows, self.rank, self.world_size)
        self._reserve(0, -(-num_rows // self.world_size) * pitch)
        row_map = torch.empty(len(mine), dtype=torch.int64, device=self._device)
        torch.ops.structout._push_rows(
            logits,
            step.bitmask,
            step.rows,
            row_map,
            self._state,
            self._handle.buffer_ptrs_dev,
            self.rank,
            self.world_size,
            self._capacities[0],
            _token("own_rows", logits.dtype, num_rows, vocab_size),
            self._timeout_ns,
            self._capacities[1],
            step.vocab_begin,
            vocab_size,
        )
        rows = self._buffer[self._rows_offset :].view(logits.dtype)[: len(mine) * pitch // logits.element_size()]
        return rows.view(len(mine), pitch // logits.element_size())[:, :vocab_size], row_map

    def columns(self, mine: tuple[int, int]) -> list[tuple[int, int]]:
        return self._by_collectives.columns(mine)

    def check(self) -> None:
        """Raise what a kernel has met. Waits for the device."""
        state = self._state.tolist()
        if state[_ERROR] != 0:
            peer, step = state[_PEER], state[_EPOCH]
            problem = f"rank {peer} {_ERRORS[state[_ERROR]]}. Make a new process group"
            raise CollectiveError(problem, self.rank, step, (peer,))

    def _reserve(self, gather_bytes: int, rows_bytes: int) -> None:
        """Room in every rank's buffer; all ranks ask for the same, and so make a larger one together."""
        gather, rows = self._capacities
        if gather_bytes <= gather and rows_bytes <= rows:
            return
        _must_not_be_captured()
        import torch.distributed._symmetric_memory as symmetric_memory

        group = _alive(self._group)
        grown = (max(gather, _power_of_two(gather_bytes)), max(rows, _power_of_two(rows_bytes)))
        rows_offset, size = torch.ops.structout._push_buffer(self.world_size, *grown)
        with torch.inference_mode(False):
            buffer = symmetric_memory.empty(size, dtype=torch.uint8, device=self._device).zero_()
            state = torch.zeros(_STATE_WORDS, dtype=torch.int64, device=self._device)
        handle: Any = symmetric_memory.rendezvous(buffer, group)
        if self._generations:
            state[_ERROR:] = self._generations[-1][1][_ERROR:]  # an error is not forgotten
        torch.cuda.synchronize(self._device)
        dist.barrier(group=group)  # no rank pushes into a buffer that is not zero yet
        self._buffer, self._state, self._handle, self._rows_offset = buffer, state, handle, rows_offset
        self._capacities = grown
        self._generations.append((buffer, state, handle))


_links: "weakref.WeakKeyDictionary[dist.ProcessGroup, dict[torch.device, CollectiveLink | SymmetricLink]]"
_links = weakref.WeakKeyDictionary()


def device_link(group_name: str, device: torch.device) -> CollectiveLink | SymmetricLink:
    """The link of a process group for tensors on ``device``; collective when it is first asked for.

    Raises:
        ValueError: there is no such group.
        RuntimeError: the first call is being captured in a CUDA graph.
    """
    group, device = resolve(group_name), _with_index(device)
    links = _links.setdefault(group, {})
    if device not in links:
        _must_not_be_captured()
        links[device] = _symmetric_link(group, device) or CollectiveLink(group)
    return links[device]


def known_link(group_name: str, device: torch.device) -> CollectiveLink | SymmetricLink | None:
    """The link if there is one; never collective."""
    return _links.get(resolve(group_name), {}).get(_with_index(device))


def _with_index(device: torch.device) -> torch.device:
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _must_not_be_captured() -> None:
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a captured step must not be the first of its kind and size on a group: run it once before")


def _symmetric_link(group: dist.ProcessGroup, device: torch.device) -> SymmetricLink | None:
    """None where one rank cannot have it, on all ranks alike."""
    if not _all_can_push(group, device):
        return None
    link = None
    with contextlib.suppress(RuntimeError):  # a container, or a driver, may forbid what the devices could do
        link = SymmetricLink(group, device)
    return link if all(_told_by_all(group, link is not None)) else None


def _all_can_push(group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether all ranks are on one host, on devices that reach each other's memory. All ranks get the same answer."""
    if device.type != "cuda":
        return False
    places = _told_by_all(group, (socket.gethostname(), device.index))
    own_host = all(host == socket.gethostname() for host, _ in places) and len(set(places)) == len(places)
    others = [i for _, i in places if i != device.index]
    reaches = own_host and all(
        i < torch.cuda.device_count() and torch.cuda.can_device_access_peer(device, i) for i in others
    )
    return all(_told_by_all(group, reaches))


def _alive(group: "weakref.ref[dist.ProcessGroup]") -> dist.ProcessGroup:
    """Links must not keep their group alive; whoever calls them has it."""
    known = group()
    assert known is not None
    return known


def _told_by_all(group: dist.ProcessGroup, mine: Any) -> list[Any]:
    told: list[Any] = [None] * group.size()
    dist.all_gather_object(told, mine, group=group)
    return told


def _token(*facts: object) -> int:
    return xxhash.xxh3_64_intdigest(repr(facts).encode()) >> 1


def _power_of_two(size: int) -> int:
    return 1 << max(0, size - 1).bit_length() if size > 0 else 0
