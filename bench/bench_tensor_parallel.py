"""Time tensor parallelism on two CPU ranks over gloo; count the bytes of eight ranks.

Compares sampling on shards with gathering the logits first, gathering masks with gloo's
all-gather, and a manager that divides the requests among ranks with one that does not.
Every result is checked before it is timed.

    python bench/bench_tensor_parallel.py [--maskbench maskbench_sample.jsonl] [--quick]

All ranks make the calls in the same random order and begin each call together. A call
ends when it has ended on all ranks.
"""

import dataclasses
import datetime
import functools
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
import torch.distributed as dist
from bench_manager import Text, comparable_texts, maskbench_texts, own_texts
from large_tokenizer import VOCAB_SIZE, large_tokenizer, trained_tokenizer
from torch.multiprocessing.spawn import spawn

import structout
from structout.distributed import ShardedManager, owned_rows, traffic

Row = dict[str, Any]
BATCHES = (1, 16, 64, 256)
ALLOWED = {"1,000": 1000, "JSON string (96.8%)": 0.968 * VOCAB_SIZE, "free": None}
FILTERS: dict[str, dict[str, Any]] = {"none": {}, "top-k 50, top-p 0.9": {"top_k": 50, "top_p": 0.9}}
BYTES_RANKS, BYTES_ROWS = 8, 256


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


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the slowest rank's seconds for a collective call, and its result."""
    barrier()
    start = time.perf_counter()
    result = call()
    seconds = torch.tensor([time.perf_counter() - start])
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds), result


@functools.cache
def _barrier_group() -> Any:
    return dist.new_group()


def barrier() -> None:
    """Let ranks continue within microseconds of each other; gloo's barrier wakes them
    one after the other.
    """
    structout.all_gather_bitmask(torch.zeros(1, 1, dtype=torch.int32), _barrier_group())


def medians_us(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return median times of collective calls, each until the last rank has ended."""
    shuffle = random.Random(0).shuffle  # the same on all ranks
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for round_ in range(rounds + 1):
        shuffle(order)
        for name in order:
            seconds, _ = timed(calls[name])
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
        "call": "sharded_masked_sample",
        "ranks": world_size,
        "batch": batch,
        "vocab": VOCAB_SIZE,
        "dtype": str(dtype)[6:],
        "allowed": allowed,
        "filters": filters,
        "us": us,
    }


def time_masks(rank: int, world_size: int, num_rows: int, rounds: int) -> Row:
    """Gather `num_rows` rows, an equal number from each rank."""
    shard = torch.full((num_rows // world_size, structout.bitmask_width(VOCAB_SIZE)), rank, dtype=torch.int32)

    def gloo() -> torch.Tensor:
        gathered = shard.new_empty(num_rows, shard.shape[1])
        dist.all_gather_into_tensor(gathered, shard)
        return gathered

    if not torch.equal(structout.all_gather_bitmask(shard), gloo()):
        raise AssertionError("all_gather_bitmask differs from gloo; nothing is timed")
    us = medians_us({"structout": lambda: structout.all_gather_bitmask(shard), "gloo": gloo}, rounds)
    return {"call": "all_gather_bitmask", "ranks": world_size, "rows": num_rows, "vocab": VOCAB_SIZE, "us": us}


def time_fills(
    rank: int, world_size: int, texts: list[Text], make_tokenizer: Callable[[], Any], num_requests: int, num_steps: int
) -> Row:
    """Time both managers' fills for requests at random positions of their texts."""
    tokenizer = make_tokenizer()
    with (
        structout.StructuredOutputManager(tokenizer, VOCAB_SIZE) as single,
        structout.StructuredOutputManager(tokenizer, VOCAB_SIZE) as local,
    ):
        sharded = ShardedManager(local)
        rng = random.Random(0)
        positions: dict[str, tuple[Text, int]] = {}
        for i in range(num_requests):
            text = texts[i % len(texts)]
            begin = rng.randrange(max(1, len(text.token_ids) - num_steps))
            request_id, params = f"request-{i}", structout.StructuredOutputsParams(**text.constraint)
            for manager in (single, sharded):
                manager.add_request(request_id, params, output_token_ids=text.token_ids[:begin])
            positions[request_id] = (text, begin)
        ids = list(positions)
        waiting = set(ids)
        while waiting:
            waiting -= set(sharded.poll_ready())
        for request_id in ids:
            single.wait_ready(request_id)
        samples: dict[str, list[float]] = {"structout": [], "every rank fills all": []}
        calls = {"structout": sharded.grammar_bitmask, "every rank fills all": single.grammar_bitmask}
        for step in range(num_steps):
            masks = {}
            for name in rng.sample(list(calls), 2):
                seconds, masks[name] = timed(functools.partial(calls[name], ids))
                samples[name].append(seconds)
            if not np.array_equal(*(batch.dense(ids) for batch in masks.values())):
                raise AssertionError("the sharded manager's masks differ from one manager's; nothing is timed")
            for request_id, (text, begin) in positions.items():
                tokens = text.token_ids[begin + step : begin + step + 1]
                single.accept_tokens(request_id, tokens)
                sharded.accept_tokens(request_id, tokens)
    us = {name: round(statistics.median(seconds) * 1e6, 1) for name, seconds in samples.items()}
    return {
        "call": "grammar_bitmask",
        "ranks": world_size,
        "requests": num_requests,
        "vocab": VOCAB_SIZE,
        "tokenizer": tokenizer.name_or_path,
        "texts": len(texts),
        "us": us,
    }


def count_bytes(rank: int, world_size: int, num_rows: int, allowed: str, filters: str) -> Row:
    """Count the bytes a rank sends in one step, and to gather bfloat16 logits."""
    generator = torch.Generator().manual_seed(0)
    share = ALLOWED[allowed]
    bitmask = None
    if share is not None:
        rows = [torch.rand(VOCAB_SIZE, generator=generator) < share / VOCAB_SIZE for _ in range(num_rows)]
        bitmask = torch.stack([structout.pack_bitmask(row).flatten() for row in rows])
    columns = owned_rows(VOCAB_SIZE, rank, world_size)
    shard = torch.zeros(num_rows, len(columns), dtype=torch.bfloat16)
    before = dataclasses.replace(traffic())
    structout.sharded_masked_sample(shard, bitmask, vocab_begin=columns.start, **FILTERS[filters])
    after = traffic()
    sent = torch.tensor([after.payload_bytes - before.payload_bytes, after.bytes_sent - before.bytes_sent])
    dist.all_reduce(sent, dist.ReduceOp.MAX)
    return {
        "call": "bytes",
        "ranks": world_size,
        "batch": num_rows,
        "vocab": VOCAB_SIZE,
        "allowed": allowed,
        "filters": filters,
        "payload_bytes": int(sent[0]),
        "bytes_sent": int(sent[1]),
        "bytes_to_gather_logits": shard.numel() * shard.element_size() * (world_size - 1),
    }


def print_row(row: Row) -> None:
    labels = [str(row[key]) for key in ("dtype", "batch", "rows", "requests", "allowed", "filters") if key in row]
    if "us" in row:
        structout_us = row["us"]["structout"]
        result = "  ".join(f"{name} {us:,.0f} us ({us / structout_us:.2f}x)" for name, us in row["us"].items())
    else:
        share = row["payload_bytes"] / row["bytes_to_gather_logits"]
        result = f"{row['payload_bytes']:,} bytes ({row['bytes_sent']:,} with headers), {share:.3%} of the logits"
    print(f"{row['call']:<24}{' '.join(labels):<52}{result}", flush=True)


def main() -> None:
    parser = harness.argument_parser("tensor parallelism over gloo", quick="a few small cases")
    parser.add_argument("--maskbench", type=Path, help="schemas with instances, one a line")
    arguments = parser.parse_args()
    results = harness.ResultsFile("tensor_parallel", torch.device("cpu"), arguments)

    def measure(world_size: int, program: Callable[..., Row], *values: Any) -> None:
        row = run_on_ranks(world_size, program, *values)
        results.add(row)
        print_row(row)

    make_tokenizer = functools.partial(trained_tokenizer, 2_000, 1_000_000) if arguments.quick else large_tokenizer
    tokenizer = make_tokenizer()
    sample = maskbench_texts(arguments.maskbench, tokenizer) if arguments.maskbench else own_texts(tokenizer)
    texts = comparable_texts(sample, tokenizer, VOCAB_SIZE, most=8 if arguments.quick else 64)
    measure(2, time_fills, texts, make_tokenizer, *((8, 3) if arguments.quick else (256, 60)))
    for num_rows in (4,) if arguments.quick else (2, 64, 256):
        measure(2, time_masks, num_rows, 5 if arguments.quick else 60)
    for batch in (2,) if arguments.quick else BATCHES:
        for dtype in (torch.bfloat16,) if arguments.quick else (torch.float32, torch.bfloat16):
            for allowed in ALLOWED:
                for filters in FILTERS:
                    measure(
                        2, time_sampling, batch, dtype, allowed, filters, 3 if arguments.quick or batch > 64 else 30
                    )
    for allowed in () if arguments.quick else ALLOWED:
        for filters in FILTERS:
            measure(BYTES_RANKS, count_bytes, BYTES_ROWS, allowed, filters)
    results.close()


if __name__ == "__main__":
    main()
