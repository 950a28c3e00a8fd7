"""CudaCommunicator exchanges tensors among the GPUs of a process group.

There are two implementations: push kernels, where every rank can write to every other's
memory (torch symmetric memory), else the group's own collectives (NCCL). All ranks
choose the same one, and allocate its memory, at the first call. A CUDA graph can
capture later calls, but not the first one.
"""

import contextlib
import hashlib
import socket
import weakref
from typing import Any, Protocol

import torch
import torch.distributed as dist

from structout.distributed.process_groups import resolve_group
from structout.distributed.vocab_shard import VocabShard, owned_rows
from structout.errors import CollectiveError
from structout.ops import kernels

_MIN_CAPACITY = 1 << 20  # bytes
# PushState of csrc/common/push.h, in int64.
_STATE_WORDS, _ERROR_WORD, _PEER_WORD, _EPOCH_WORD = 6, 3, 4, 5
_ERRORS = {1: "did not arrive in time", 2: "made a call with other arguments"}


class Communicator(Protocol):
    """This rank's end of a process group, for tensors on one device."""

    rank: int
    world_size: int

    def all_gather(self, local: torch.Tensor, expected_equal: tuple[object, ...], fill_on_error: int) -> torch.Tensor:
        """Return ``[world_size, *local.shape]``.

        Args:
            local: this rank's tensor; the same shape and dtype on all ranks.
            expected_equal: what else must be equal on all ranks.
            fill_on_error: the byte that fills the result if the exchange fails.
        """

    def gather_owned_rows(self, shard: VocabShard, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the logits of the n rows that this rank owns, and their row map.

        Returns:
            ``[n, vocab_size]`` logits, of which disallowed ones may be anything; and a
            row map ``[n]``, or None.
        """

    def all_columns(self, local_columns: tuple[int, int]) -> list[tuple[int, int]]:
        """Return each rank's first column and number of columns.

        The first call exchanges them. Later calls must pass the same columns, because a
        rank cannot know whether the others are exchanging theirs.
        """


class _GroupMember:
    """This rank in a process group, which a communicator must not keep alive."""

    def __init__(self, group: dist.ProcessGroup):
        self._group = weakref.ref(group)
        self.rank: int = group.rank()
        self.world_size: int = group.size()

    def _live_group(self) -> dist.ProcessGroup:
        group = self._group()
        assert group is not None  # the caller holds it
        return group


class CollectiveCommunicator(_GroupMember):
    """Uses the group's collectives.

    A rank that is lost or differs is noticed only by the group's timeout.
    """

    def __init__(self, group: dist.ProcessGroup):
        super().__init__(group)
        self._columns: list[tuple[int, int]] | None = None

    def all_gather(self, local: torch.Tensor, expected_equal: tuple[object, ...], fill_on_error: int) -> torch.Tensor:
        gathered = local.new_empty(self.world_size, *local.shape)
        dist.all_gather(list(gathered.unbind()), local.contiguous(), group=self._live_group())
        return gathered

    def gather_owned_rows(self, shard: VocabShard, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Gather all logits: only the device knows how many are allowed."""
        num_rows = shard.logits.shape[0]
        local_rows = owned_rows(num_rows, self.rank, self.world_size)
        logits = shard.logits.new_empty(len(local_rows), vocab_size)
        transfers, receives = [], []
        for rank, (begin, width) in enumerate(self.all_columns(shard.columns)):
            rows = owned_rows(num_rows, rank, self.world_size)
            outgoing = shard.logits[rows.start : rows.stop].contiguous()
            if rank == self.rank:
                logits[:, begin : begin + width] = outgoing
                continue
            if outgoing.numel() > 0:
                transfers.append(dist.P2POp(dist.isend, outgoing, group=self._live_group(), group_peer=rank))
            incoming = shard.logits.new_empty(len(local_rows), width)
            if incoming.numel() > 0:
                transfers.append(dist.P2POp(dist.irecv, incoming, group=self._live_group(), group_peer=rank))
                receives.append((begin, incoming))
        for transfer in dist.batch_isend_irecv(transfers) if transfers else []:
            transfer.wait()
        for begin, incoming in receives:
            logits[:, begin : begin + incoming.shape[1]] = incoming
        return logits, shard.masks(local_rows)[1]

    def all_columns(self, local_columns: tuple[int, int]) -> list[tuple[int, int]]:
        if self._columns is None:
            _check_not_capturing()
            self._columns = [tuple(columns) for columns in all_gather_object(self._live_group(), local_columns)]
        expected = self._columns[self.rank]
        if expected != local_columns:
            raise ValueError(
                f"sharded_masked_sample: rank {self.rank} of this group has {expected[1]} columns from {expected[0]} "
                f"on, got {local_columns[1]} from {local_columns[0]} on; on a GPU each vocabulary needs a process "
                "group of its own"
            )
        return self._columns


class SymmetricMemoryCommunicator(_GroupMember):
    """Uses push kernels (csrc/cuda/push.cuh), which captured graphs can replay.

    After an error on the device (a rank is late, or made a call with other arguments)
    every result is empty: masks that allow nothing, ids of -1. :meth:`check` raises the
    error.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device):
        super().__init__(group)
        self._device = device
        self._collectives = CollectiveCommunicator(group)
        timeout: Any = group._get_backend(device).options._timeout
        self._timeout_ns = int(timeout.total_seconds() * 1e9)
        self._gather_capacity, self._rows_capacity = 0, 0  # bytes
        self._allocations: list[tuple[torch.Tensor, torch.Tensor, Any]] = []  # captured graphs may use earlier ones
        self._reserve(_MIN_CAPACITY, 0)

    def all_gather(self, local: torch.Tensor, expected_equal: tuple[object, ...], fill_on_error: int) -> torch.Tensor:
        local = local.contiguous()
        self._reserve(local.numel() * local.element_size(), 0)
        gathered = local.new_empty(self.world_size, *local.shape)
        torch.ops.structout._push_all_gather(
            local,
            gathered,
            self._state,
            self._handle.buffer_ptrs_dev,
            self._handle.multicast_ptr,
            self.rank,
            self.world_size,
            self._gather_capacity,
            _call_token("all_gather", local.dtype, tuple(local.shape), expected_equal),
            self._timeout_ns,
            fill_on_error,
        )
        return gathered

    def gather_owned_rows(self, shard: VocabShard, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        if kernels.load().cuda == "triton":  # there is no push_rows in Triton
            return self._collectives.gather_owned_rows(shard, vocab_size)
        logits = shard.logits
        num_rows, row_bytes = logits.shape[0], -(-vocab_size * logits.element_size() // 16) * 16
        num_local_rows = len(owned_rows(num_rows, self.rank, self.world_size))
        self._reserve(0, -(-num_rows // self.world_size) * row_bytes)
        row_map = torch.empty(num_local_rows, dtype=torch.int64, device=self._device)
        torch.ops.structout._push_rows(
            logits,
            shard.bitmask,
            shard.rows,
            row_map,
            self._state,
            self._handle.buffer_ptrs_dev,
            self.rank,
            self.world_size,
            self._gather_capacity,
            _call_token("own_rows", logits.dtype, num_rows, vocab_size),
            self._timeout_ns,
            self._rows_capacity,
            shard.vocab_begin,
            vocab_size,
        )
        row_stride = row_bytes // logits.element_size()
        gathered = self._buffer[self._rows_offset :].view(logits.dtype)[: num_local_rows * row_stride]
        return gathered.view(num_local_rows, row_stride)[:, :vocab_size], row_map

    def all_columns(self, local_columns: tuple[int, int]) -> list[tuple[int, int]]:
        return self._collectives.all_columns(local_columns)

    def check(self) -> None:
        """Raise the error that a kernel has recorded, if any. Waits for the device."""
        state = self._state.tolist()
        if state[_ERROR_WORD] != 0:
            peer, step = state[_PEER_WORD], state[_EPOCH_WORD]
            problem = f"rank {peer} {_ERRORS[state[_ERROR_WORD]]}. Make a new process group"
            raise CollectiveError(problem, self.rank, step, (peer,))

    def _reserve(self, gather_bytes: int, rows_bytes: int) -> None:
        """Make every rank's buffer large enough.

        Collective where it grows: all ranks ask for the same sizes.
        """
        if gather_bytes <= self._gather_capacity and rows_bytes <= self._rows_capacity:
            return
        _check_not_capturing()
        import torch.distributed._symmetric_memory as symmetric_memory

        group = self._live_group()
        gather_capacity = max(self._gather_capacity, _round_up_to_power_of_two(gather_bytes))
        rows_capacity = max(self._rows_capacity, _round_up_to_power_of_two(rows_bytes))
        rows_offset, size = torch.ops.structout._push_buffer(self.world_size, gather_capacity, rows_capacity)
        buffer, state = self._allocate(size)
        handle: Any = symmetric_memory.rendezvous(buffer, group)
        if handle.offset != 0:  # the ranks' addresses and the multicast address are those of offset 0
            raise RuntimeError(f"symmetric memory begins at offset {handle.offset} of its allocation, expected 0")
        if self._allocations:
            state[_ERROR_WORD:] = self._allocations[-1][1][_ERROR_WORD:]  # keep an earlier error
        torch.cuda.synchronize(self._device)
        dist.barrier(group=group)  # no rank may push into a buffer before it is zeroed
        self._buffer, self._state, self._handle, self._rows_offset = buffer, state, handle, rows_offset
        self._gather_capacity, self._rows_capacity = gather_capacity, rows_capacity
        self._allocations.append((buffer, state, handle))

    def _allocate(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a zeroed buffer of symmetric memory and a zeroed state.

        Collective. It raises on all ranks if one of them has no memory, which would
        leave the others waiting for it in the rendezvous.
        """
        import torch.distributed._symmetric_memory as symmetric_memory

        memory, failure = None, None
        try:
            with torch.inference_mode(False):
                buffer = symmetric_memory.empty(size, dtype=torch.uint8, device=self._device).zero_()
                memory = buffer, torch.zeros(_STATE_WORDS, dtype=torch.int64, device=self._device)
        except RuntimeError as error:
            failure = error
        has_memory = all_gather_object(self._live_group(), memory is not None)
        if memory is None or not all(has_memory):
            ranks = [rank for rank, has in enumerate(has_memory) if not has]
            raise RuntimeError(f"ranks {ranks} could not allocate {size} bytes of symmetric memory") from failure
        return memory


_AnyCommunicator = CollectiveCommunicator | SymmetricMemoryCommunicator
_communicators: "weakref.WeakKeyDictionary[dist.ProcessGroup, dict[torch.device, _AnyCommunicator]]"
_communicators = weakref.WeakKeyDictionary()


def cuda_communicator(group_name: str, device: torch.device) -> _AnyCommunicator:
    """Return the communicator of a process group for tensors on ``device``.

    The first call is collective.

    Raises:
        ValueError: there is no such group.
        RuntimeError: the first call is being captured in a CUDA graph.
    """
    group, device = resolve_group(group_name), _with_index(device)
    communicators = _communicators.setdefault(group, {})
    if device not in communicators:
        _check_not_capturing()
        communicators[device] = _symmetric_memory_communicator(group, device) or CollectiveCommunicator(group)
    return communicators[device]


def existing_cuda_communicator(group_name: str, device: torch.device) -> _AnyCommunicator | None:
    """Return the communicator if :func:`cuda_communicator` has made it.

    Never collective.
    """
    return _communicators.get(resolve_group(group_name), {}).get(_with_index(device))


def _with_index(device: torch.device) -> torch.device:
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _check_not_capturing() -> None:
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "the first step of its shape on a process group cannot be captured in a CUDA graph; run one eager step of "
            "this shape before capturing"
        )


def _symmetric_memory_communicator(
    group: dist.ProcessGroup, device: torch.device
) -> SymmetricMemoryCommunicator | None:
    """Return None on all ranks if one of them cannot use symmetric memory."""
    if not _all_ranks_have_peer_access(group, device):
        return None
    communicator = None
    with contextlib.suppress(RuntimeError):  # a container or driver may forbid what the devices support
        communicator = SymmetricMemoryCommunicator(group, device)
    return communicator if all(all_gather_object(group, communicator is not None)) else None


def _all_ranks_have_peer_access(group: dist.ProcessGroup, device: torch.device) -> bool:
    """Return whether all devices reach each other's memory; equal on all ranks."""
    if device.type != "cuda":
        return False
    places = all_gather_object(group, (socket.gethostname(), device.index))
    is_one_host = all(host == socket.gethostname() for host, _ in places)
    has_own_device = len(set(places)) == len(places)
    peers = [index for _, index in places if index != device.index]
    has_access = (is_one_host and has_own_device) and all(
        index < torch.cuda.device_count() and torch.cuda.can_device_access_peer(device, index) for index in peers
    )
    return all(all_gather_object(group, has_access))


def all_gather_object(group: dist.ProcessGroup, local: Any) -> list[Any]:
    """Return the objects of all ranks, in rank order."""
    gathered: list[Any] = [None] * group.size()
    dist.all_gather_object(gathered, local, group=group)
    return gathered


def _call_token(*arguments: object) -> int:
    """Return 63 bits that are equal on ranks whose calls have equal arguments."""
    digest = hashlib.blake2b(repr(arguments).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _round_up_to_power_of_two(size: int) -> int:
    return 1 << max(0, size - 1).bit_length() if size > 0 else 0
