"""Time sampling on two CPU ranks over gloo: on shards, and with the logits gathered
first. Every result is checked before it is timed.

    python bench/bench_tensor_parallel.py [--quick]

All ranks make the calls in the same random order and begin each call together. A call
ends when it has ended on all ranks.
"""

import datetime
import functools
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import harness
import torch
import torch.distributed as dist
from large_tokenizer import VOCAB_SIZE
from torch.multiprocessing.spawn import spawn

import structout
from structout.distributed import owned_rows

Row = dict[str, Any]
BATCHES = (1, 16, 64, 256)
ALLOWED = {"1,000": 1000, "JSON string (96.8%)": 0.968 * VOCAB_SIZE, "free": None}
FILTERS: dict[str, dict[str, Any]] = {"none": {}, "top-k 50, top-p 0.9": {"top_k": 50, "top_p": 0.9}}


def run_on_ranks(world_size: int, program: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of rank 0."""
    with tempfile.TemporaryDirectory() as directory:
        spawn(_rank, (world_size, directory, program, arguments), world_size)
        return torch.load(f"{directory}/result", weights_only=False)


def _rank(rank: int, world_size: int, directory: str, program: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    timeout = datetime.timedelta(minutes=10)
    dist.init_process_group("gloo", f"file://{directory}/store", timeout, world_size, rank)
    with torch.inference_mode():
        result = program(rank, world_size, *arguments)
    if rank == 0:
        torch.save(result, f"{directory}/result")
    dist.barrier()
    dist.destroy_process_group()


def timed(call: Callable[[], Any]) -> float:
    """Return the slowest rank's seconds for a collective call."""
    dist.barrier()
    start = time.perf_counter()
    call()
    seconds = torch.tensor([time.perf_counter() - start])
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)


def medians_us(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return median times of collective calls, each until the last rank has ended."""
    shuffle = random.Random(0).shuffle  # the same on all ranks
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for round_ in range(rounds + 1):
        shuffle(order)
        for name in order:
            seconds = timed(calls[name])
            if round_ > 0:
                samples[name].append(seconds)
    return {name: round(statistics.median(values) * 1e6, 1) for name, values in samples.items()}


def gather_logits(shard: torch.Tensor) -> torch.Tensor:
    """Gather as engines do: receive [ranks, N, width], then copy it to [N, V]."""
    parts = shard.new_empty(dist.get_world_size() * shard.shape[0], shard.shape[1])
    dist.all_gather_into_tensor(parts, shard)
    return parts.view(-1, *shard.shape).movedim(0, 1).reshape(shard.shape[0], -1)


def time_sampling(
    rank: int, world_size: int, batch: int, dtype: torch.dtype, allowed: str, filters: str, rounds: int
) -> Row:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(batch, VOCAB_SIZE, generator=generator) * 3).to(dtype)
    bitmask = None
    share = ALLOWED[allowed]
    if share is not None:
        bitmask = structout.pack_bitmask(torch.rand(batch, VOCAB_SIZE, generator=generator) < share / VOCAB_SIZE)
    columns = owned_rows(VOCAB_SIZE, rank, world_size)
    shard = logits[:, columns.start : columns.stop].contiguous()
    row_numbers = torch.arange(batch)
    options: dict[str, Any] = {"temperature": 0.7, "seed": row_numbers, "position": row_numbers, **FILTERS[filters]}
    sharded = functools.partial(structout.sharded_masked_sample, shard, bitmask, vocab_begin=columns.start, **options)

    def gathered() -> torch.Tensor:
        return structout.masked_sample(gather_logits(shard), bitmask, **options)

    if not (
        torch.equal(sharded(), gathered())
        and torch.equal(gathered(), structout.masked_sample(logits, bitmask, **options))
    ):
        raise AssertionError("sampling on shards differs from masked_sample; nothing is timed")
    us = medians_us({"structout": sharded, "gather, then masked_sample": gathered}, rounds)
    return {
        "ranks": world_size,
        "batch": batch,
        "vocab": VOCAB_SIZE,
        "dtype": str(dtype)[6:],
        "allowed": allowed,
        "filters": filters,
        "us": us,
    }


def print_row(row: Row) -> None:
    labels = [str(row[key]) for key in ("dtype", "batch", "allowed", "filters")]
    structout_us = row["us"]["structout"]
    result = "  ".join(f"{name} {us:,.0f} us ({us / structout_us:.2f}x)" for name, us in row["us"].items())
    print(f"{' '.join(labels):<52}{result}", flush=True)


def main() -> None:
    parser = harness.argument_parser("tensor parallelism over gloo", quick="a few small cases")
    arguments = parser.parse_args()
    results = harness.ResultsFile("tensor_parallel", torch.device("cpu"), arguments)

    for batch in (2,) if arguments.quick else BATCHES:
        for dtype in (torch.bfloat16,) if arguments.quick else (torch.float32, torch.bfloat16):
            for allowed in ALLOWED:
                for filters in FILTERS:
                    rounds = 3 if arguments.quick or batch > 64 else 30
                    row = run_on_ranks(2, time_sampling, batch, dtype, allowed, filters, rounds)
                    results.add(row)
                    print_row(row)
    results.close()


if __name__ == "__main__":
    main()
