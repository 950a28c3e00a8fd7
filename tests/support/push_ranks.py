"""push_all_gather by Triton's interpreter: each rank a process, over memory that each has mapped for itself.

python push_ranks.py RANKS EPOCHS SEED [absent | mismatch]
"""

import mmap
import multiprocessing
import os
import random
import sys
import tempfile
import time
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from structout.triton_kernels.push import push_all_gather

CAPACITY = 40_000
FILL = 0xA5
LONG_TIME_NS = 20_000_000  # 20,000 polls
SHORT_TIME_NS = 200_000


class Rank:
    def __init__(self, rank: int, world_size: int, directory: str):
        self.rank, self.world_size = rank, world_size
        _, size = torch.ops.structout._push_buffer(world_size, CAPACITY, 0)
        self.gaps, self.buffers = [], []
        for i in range(world_size):
            self.gaps.append(mmap.mmap(-1, mmap.PAGESIZE * (1 + rank)))  # so that addresses differ from rank to rank
            self.buffers.append(torch.from_file(f"{directory}/{i}", shared=True, size=size, dtype=torch.uint8))
        self.addresses = torch.tensor([buffer.data_ptr() for buffer in self.buffers])
        self.state = torch.zeros(6, dtype=torch.int64)

    def gather(self, shard: torch.Tensor, token: int, timeout_ns: int = LONG_TIME_NS) -> torch.Tensor:
        out = shard.new_empty((self.world_size, *shard.shape))
        push_all_gather(
            shard, out, self.state, self.addresses.data_ptr(), 0, self.rank, self.world_size, CAPACITY, token,
            timeout_ns, FILL,
        )  # fmt: skip
        return out


def shard_of(rank: int, epoch: int, seed: int) -> torch.Tensor:
    """Of the same type and size on all ranks, at any alignment."""
    same = random.Random(f"{seed} {epoch}")
    dtype = same.choice([torch.uint8, torch.int32, torch.int64, torch.bfloat16])
    count = same.choice([0, 1, same.randrange(60), same.randrange(CAPACITY // 8)])
    offset = random.Random(f"{seed} {epoch} {rank}").randrange(4)
    bits = np.random.default_rng([seed, epoch, rank]).integers(0, 256, (1 + offset + count) * dtype.itemsize, np.uint8)
    return torch.from_numpy(bits).view(dtype)[1 + offset :]


def run(rank: int, world_size: int, epochs: int, seed: int, directory: str) -> None:
    me, luck = Rank(rank, world_size, directory), random.Random(f"{seed} {rank}")
    for epoch in range(1, epochs + 1):
        if luck.random() < (0.5 if rank == 0 else 0.1):
            time.sleep(luck.random() * 0.01)
        got = me.gather(shard_of(rank, epoch, seed), token=epoch - 2**62)
        expected = torch.stack([shard_of(i, epoch, seed) for i in range(world_size)])
        assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8)), f"epoch {epoch} of rank {rank}"
    assert me.state.tolist() == [epochs, 0, 0, 0, 0, 0]


def run_failure(rank: int, world_size: int, what: str, directory: str) -> None:
    me, shard = Rank(rank, world_size, directory), torch.full((1000,), rank, dtype=torch.uint8)
    assert me.gather(shard, token=1)[-1, 0] == world_size - 1
    is_last = rank == world_size - 1
    if what == "absent" and is_last:
        return
    token, timeout_ns = (3 if is_last else 2), SHORT_TIME_NS if what == "absent" else LONG_TIME_NS
    assert (me.gather(shard, token, timeout_ns) == FILL).all()
    assert (me.gather(shard, token) == FILL).all()
    error, peer, epoch = me.state.tolist()[3:]
    assert (error, epoch) == (1 if what == "absent" else 2, 2)
    assert peer == world_size - 1 or is_last


def main(world_size: int, epochs: int, seed: int, what: str | None = None) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        _, size = torch.ops.structout._push_buffer(world_size, CAPACITY, 0)
        for rank in range(world_size):
            Path(directory, str(rank)).write_bytes(bytes(size))
        fork = multiprocessing.get_context("fork")  # Triton is imported once
        target, how = (run, (epochs, seed)) if what is None else (run_failure, (what,))
        ranks = [fork.Process(target=target, args=(rank, world_size, *how, directory)) for rank in range(world_size)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        sys.exit(any(process.exitcode for process in ranks))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *sys.argv[4:])
