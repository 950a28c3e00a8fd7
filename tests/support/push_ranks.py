"""Run push_all_gather in Triton's interpreter, each rank a process.

Usage: TRITON_INTERPRET=1 python push_ranks.py RANKS EPOCHS SEED [absent | mismatch]

push_ranks_on_ptx.py runs the same ranks as compiled code.
"""

import mmap
import multiprocessing
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import triton

from structout.triton_kernels.push import push_all_gather

CAPACITY = 40_000
FILL = 0xA5
# A rank that is present must not look absent because the machine is busy. In the
# interpreter a poll counts as 1 us.
IS_INTERPRETED = triton.knobs.runtime.interpret
LONG_TIMEOUT_NS, SHORT_TIMEOUT_NS = (20_000_000, 200_000) if IS_INTERPRETED else (120_000_000_000, 500_000_000)


def buffer_size(world_size: int) -> int:
    return torch.ops.structout._push_buffer(world_size, CAPACITY, 0)[1]


class Rank:
    """One rank.

    Args:
        buffers: The buffers of all ranks, where this rank has them.
    """

    def __init__(self, rank: int, buffers: list[torch.Tensor]):
        self.rank, self.world_size, self.buffers = rank, len(buffers), buffers
        self.addresses = torch.tensor([buffer.data_ptr() for buffer in buffers])
        self.state = torch.zeros(6, dtype=torch.int64)

    def gather(self, shard: torch.Tensor, token: int, timeout_ns: int = LONG_TIMEOUT_NS) -> torch.Tensor:
        out = shard.new_empty((self.world_size, *shard.shape))
        push_all_gather(
            shard, out, self.state, self.addresses.data_ptr(), 0, self.rank, self.world_size, CAPACITY, token,
            timeout_ns, FILL,
        )  # fmt: skip
        return out


def random_shard(rank: int, epoch: int, seed: int) -> torch.Tensor:
    """Return a random shard: the same dtype and size on all ranks, any alignment."""
    shared_rng = random.Random(f"{seed} {epoch}")
    dtype = shared_rng.choice([torch.uint8, torch.int32, torch.int64, torch.bfloat16])
    count = shared_rng.choice([0, 1, shared_rng.randrange(60), shared_rng.randrange(CAPACITY // 8)])
    offset = random.Random(f"{seed} {epoch} {rank}").randrange(4)
    bits = np.random.default_rng([seed, epoch, rank]).integers(0, 256, (1 + offset + count) * dtype.itemsize, np.uint8)
    return torch.from_numpy(bits).view(dtype)[1 + offset :]


def run(rank: int, buffers: list[torch.Tensor], epochs: int, seed: int) -> None:
    local, rng, world_size = Rank(rank, buffers), random.Random(f"{seed} {rank}"), len(buffers)
    for epoch in range(1, epochs + 1):
        if rng.random() < (0.5 if rank == 0 else 0.1):
            time.sleep(rng.random() * 0.01)
        gathered = local.gather(random_shard(rank, epoch, seed), token=epoch - 2**62)
        expected = torch.stack([random_shard(i, epoch, seed) for i in range(world_size)])
        assert torch.equal(gathered.view(torch.uint8), expected.view(torch.uint8)), f"epoch {epoch} of rank {rank}"
    assert local.state.tolist() == [epochs, 0, 0, 0, 0, 0]


def run_failure(rank: int, buffers: list[torch.Tensor], failure: str) -> None:
    """Make a call that succeeds, one that fails, and one that must end at once."""
    local, shard, world_size = Rank(rank, buffers), torch.full((1000,), rank, dtype=torch.uint8), len(buffers)
    assert local.gather(shard, token=1)[-1, 0] == world_size - 1
    is_last = rank == world_size - 1
    if failure == "absent" and is_last:
        return
    token, timeout_ns = (3 if is_last else 2), SHORT_TIMEOUT_NS if failure == "absent" else LONG_TIMEOUT_NS
    assert (local.gather(shard, token, timeout_ns) == FILL).all()
    assert (local.gather(shard, token) == FILL).all()
    error, peer, epoch = local.state.tolist()[3:]
    assert (error, epoch) == (1 if failure == "absent" else 2, 2)
    assert peer == world_size - 1 or is_last


def run_process(rank: int, world_size: int, epochs: int, seed: int, failure: str | None, directory: str) -> None:
    gaps, buffers = [], []
    for i in range(world_size):
        gaps.append(mmap.mmap(-1, mmap.PAGESIZE * (1 + rank)))  # makes addresses differ among ranks
        size = buffer_size(world_size)
        buffers.append(torch.from_file(f"{directory}/{i}", shared=True, size=size, dtype=torch.uint8))
    run(rank, buffers, epochs, seed) if failure is None else run_failure(rank, buffers, failure)


def main(world_size: int, epochs: int, seed: int, failure: str | None = None) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        for rank in range(world_size):
            Path(directory, str(rank)).write_bytes(bytes(buffer_size(world_size)))
        fork = multiprocessing.get_context("fork")  # imports Triton only once
        ranks = [
            fork.Process(target=run_process, args=(rank, world_size, epochs, seed, failure, directory))
            for rank in range(world_size)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        sys.exit(any(process.exitcode for process in ranks))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *sys.argv[4:])
