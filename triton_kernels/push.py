"""push_all_gather in Triton, with the protocol of csrc/cuda/push.cuh and the memory
layout of csrc/common/push.h.

    out = the shards of all ranks, in rank order

A program owns a chunk of the shard. It pushes the chunk into the peers' buffers,
signals them, waits for the same program of every peer, and copies their chunks from its
own buffer. Bytes that leave a device: the shard once per peer, because Triton has no
multicast.

Launch: up to 32 programs of 8 warps, 2 vectors of 16 bytes per thread.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda as tl_cuda

NUM_WARPS = 8
LANES = 32 * NUM_WARPS  # one element per thread, so that no atomic is repeated
TILE = 4 * LANES
MAX_PROGRAMS = 32
SIGNAL_BYTES = tl.constexpr(2 * MAX_PROGRAMS * 16)  # per rank, for even and odd epochs
VECTORS_PER_PROGRAM = 2 * LANES
_IS_INTERPRETED = triton.knobs.runtime.interpret

TIMEOUT = tl.constexpr(1)
MISMATCH = tl.constexpr(2)
# Offsets in the state, in int64.
ROWS_EPOCH = tl.constexpr(1)
DONE = tl.constexpr(2)
ERROR = tl.constexpr(3)


@triton.jit
def _gathered(epoch, source, world_size, gather_capacity):
    """The offset in a buffer of the shard that rank `source` pushes."""
    slot_bytes = (gather_capacity + 15) // 16 * 16
    return SIGNAL_BYTES * world_size + (epoch % 2 * world_size + source) * slot_bytes


@triton.jit
def _signals(buffer, epoch, source, world_size):
    """The address of the signal from this program of rank `source`: token, then
    epoch."""
    at = ((epoch % 2 * world_size + source) * (SIGNAL_BYTES // 32) + tl.program_id(0)) * 16
    return (buffer + at).to(tl.pointer_type(tl.int64))


@triton.jit
def _copy(source, size, to, begin, end, TILE: tl.constexpr):
    """Copy elements [begin, end). Elements from `size` on are 0.

    It reads nothing after `end`: another program may still wait for that part.
    """
    for at in range(begin, end, TILE):
        i = at + tl.arange(0, TILE)
        is_copied = i < end
        tl.store(to + i, tl.load(source + i, mask=is_copied & (i < size), other=0), mask=is_copied)


@triton.jit
def _now(polls, HAS_CLOCK: tl.constexpr):
    """The time in nanoseconds. In the interpreter a poll counts as 1 us."""
    if HAS_CLOCK:
        return tl_cuda.globaltimer()
    return polls * 1000


@triton.jit
def _from_first_thread(value, LANES: tl.constexpr):
    """One thread's value, given to all threads. `value` must not be negative.

    Threads that saw different values would diverge at a barrier.
    """
    return tl.max(tl.where(tl.arange(0, LANES) == 0, value, 0), 0)


@triton.jit
def _error(state, LANES: tl.constexpr):
    return _from_first_thread(tl.load(state + ERROR, volatile=True), LANES)


@triton.jit
def _fail(state, error, peer, epoch):
    if tl.atomic_cas(state + ERROR, tl.full((), 0, tl.int64), tl.full((), error, tl.int64)) == 0:
        tl.store(state + ERROR + 1, peer.to(tl.int64))
        tl.store(state + ERROR + 2, epoch)


@triton.jit
def _meet(state, buffers, rank, world_size, epoch, token, timeout_ns, LANES: tl.constexpr, HAS_CLOCK: tl.constexpr):
    """Signal all peers that this program has pushed, and wait for their signals.

    Returns false if a peer did not arrive in time or made another call. One thread per
    peer releases and acquires; the barriers order the other threads' accesses before
    and after.
    """
    lane = tl.arange(0, LANES)
    is_peer = lane < world_size - 1
    peer = (rank + 1 + lane) % world_size
    at_peers = _signals(tl.load(buffers + peer, mask=is_peer, other=0), epoch, rank, world_size)
    from_peers = _signals(tl.load(buffers + rank), epoch, peer, world_size)
    tl.store(at_peers, token, mask=is_peer)
    tl.debug_barrier()
    tl.atomic_xchg(at_peers + 1, epoch, mask=is_peer, sem="release", scope="sys")

    polls = tl.full((), 0, tl.int64)
    begin = _now(polls, HAS_CLOCK)
    first_missing = tl.full((), 0, tl.int32)
    is_waiting = True
    while is_waiting:
        seen = tl.atomic_add(from_peers + 1, 0, mask=is_peer, sem="acquire", scope="sys")
        first_missing = tl.min(tl.where(is_peer & (seen != epoch), lane, LANES), 0)
        polls += 1
        is_waiting = first_missing < LANES
        if is_waiting:
            if _from_first_thread(_now(polls, HAS_CLOCK) - begin, LANES) > timeout_ns:
                _fail(state, TIMEOUT, (rank + 1 + first_missing) % world_size, epoch)
            is_waiting = _error(state, LANES) == 0
    tl.debug_barrier()

    all_have_arrived = first_missing == LANES
    if all_have_arrived:
        tokens = tl.load(from_peers, mask=is_peer, other=0)
        first_mismatch = tl.min(tl.where(is_peer & (tokens != token), lane, LANES), 0)
        if first_mismatch < LANES:
            _fail(state, MISMATCH, (rank + 1 + first_mismatch) % world_size, epoch)
            all_have_arrived = False
    return all_have_arrived


# A new value of these arguments must not compile a new kernel. The size may, because it
# decides whether 16 bytes are loaded at a time.
_PLAIN = ("buffers", "rank", "world_size", "gather_capacity", "token", "timeout_ns", "fill_on_error")


@triton.jit(do_not_specialize=_PLAIN)
def push_all_gather_kernel(
    shard_bytes,
    out_bytes,
    state,
    buffers: tl.int64,
    rank,
    world_size,
    gather_capacity: tl.int64,
    size: tl.int64,
    token: tl.int64,
    timeout_ns: tl.int64,
    fill_on_error: tl.int32,
    ELEMENT: tl.constexpr,
    LANES: tl.constexpr,
    TILE: tl.constexpr,
    HAS_CLOCK: tl.constexpr,
):
    PER_VECTOR: tl.constexpr = 128 // ELEMENT.primitive_bitwidth
    shard = shard_bytes.to(tl.pointer_type(ELEMENT))
    out = out_bytes.to(tl.pointer_type(ELEMENT))
    addresses = buffers.to(tl.pointer_type(tl.int64))
    epoch = tl.load(state) + 1

    if _error(state, LANES) == 0:
        vectors = (size + PER_VECTOR - 1) // PER_VECTOR
        begin = vectors * tl.program_id(0) // tl.num_programs(0) * PER_VECTOR
        end = vectors * (tl.program_id(0) + 1) // tl.num_programs(0) * PER_VECTOR
        slot = _gathered(epoch, rank, world_size, gather_capacity)
        for distance in range(1, world_size):
            to = (tl.load(addresses + (rank + distance) % world_size) + slot).to(tl.pointer_type(ELEMENT))
            _copy(shard, size, tl.multiple_of(to, 16), begin, end, TILE)

        last = tl.minimum(end, size)
        if _meet(state, addresses, rank, world_size, epoch, token, timeout_ns, LANES, HAS_CLOCK):
            own = tl.load(addresses + rank)
            _copy(shard, size, out + rank * size, begin, last, TILE)
            for distance in range(1, world_size):
                source = (rank + distance) % world_size
                slot_of_source = own + _gathered(epoch, source, world_size, gather_capacity)
                pushed = tl.multiple_of(slot_of_source.to(tl.pointer_type(ELEMENT)), 16)
                _copy(pushed, size, out + source * size, begin, last, TILE)

    # The program that ends last sees everything that the others wrote, and no program
    # reads the state after it.
    tl.debug_barrier()
    if tl.atomic_add(state + DONE, 1, sem="acq_rel", scope="gpu") == tl.num_programs(0) - 1:
        tl.store(state + DONE, 0)
        tl.store(state, epoch)
        if _error(state, LANES) != 0:
            for at in range(0, world_size * size, TILE):
                i = at + tl.arange(0, TILE)
                tl.store(out + i, fill_on_error.to(ELEMENT), mask=i < world_size * size)


def push_all_gather(
    shard: torch.Tensor,
    out: torch.Tensor,
    state: torch.Tensor,
    buffers: int,
    multicast: int,
    rank: int,
    world_size: int,
    gather_capacity: int,
    token: int,
    timeout_ns: int,
    fill_on_error: int,
) -> None:
    """``torch.ops.structout._push_all_gather`` in Triton (on the CPU with
    TRITON_INTERPRET=1).
    """
    torch.ops.structout._check_push_all_gather(
        shard, out, state, buffers, multicast, rank, world_size, gather_capacity, token, timeout_ns, fill_on_error
    )
    num_bytes = shard.numel() * shard.element_size()
    element_bytes = 4 if (num_bytes | shard.data_ptr() | out.data_ptr()) % 4 == 0 else 1
    fill = int.from_bytes(bytes([fill_on_error]) * element_bytes, "little", signed=True)
    programs = min(MAX_PROGRAMS, max(1, triton.cdiv(num_bytes, 16 * VECTORS_PER_PROGRAM)))
    kernel: Any = push_all_gather_kernel[(programs,)]
    with torch.cuda.device_of(shard):
        kernel(
            shard.view(-1).view(torch.uint8),
            out.view(-1).view(torch.uint8),
            state,
            buffers,
            rank,
            world_size,
            gather_capacity,
            num_bytes // element_bytes,
            token,
            timeout_ns,
            fill,
            ELEMENT=tl.int32 if element_bytes == 4 else tl.int8,
            LANES=LANES,
            TILE=TILE,
            HAS_CLOCK=not _IS_INTERPRETED,
            num_warps=NUM_WARPS,
        )
