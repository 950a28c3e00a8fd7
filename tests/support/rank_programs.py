"""What the ranks of tests/support/ranks.py run. Results are plain data; a rank that raises fails the test."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import masked_sample_cases
import pytest
import torch
import torch.distributed as dist
from masked_sample_cases import Case

import structout
import structout.distributed
from structout import ops
from structout.distributed import device_sharding
from structout.distributed.cpu_communicator import channel
from structout.distributed.cuda_communicator import CollectiveLink, device_link
from structout.distributed.transport import _Segment
from structout.distributed.vocab_parallel import ShardStep
from structout.errors import CollectiveError

# -- sampling ---------------------------------------------------------------------------------------------------------


def default_group() -> str:
    assert dist.group.WORLD is not None
    return str(dist.group.WORLD.group_name)


def cut_anywhere(rng: random.Random, vocab_size: int, world_size: int) -> list[int]:
    """Shards of any width, 0 and 1 included."""
    if rng.random() < 0.3:
        width = -(-vocab_size // world_size)
        return [min(rank * width, vocab_size) for rank in range(world_size + 1)]
    return [0, *sorted(rng.randint(0, vocab_size) for _ in range(world_size - 1)), vocab_size]


def shard_of(case: Case, cuts: list[int], rank: int) -> list[Any]:
    logits, *others = case.arguments()
    return [logits[:, cuts[rank] : cuts[rank + 1]], *others]


def _bits(logprobs: torch.Tensor) -> torch.Tensor:
    return (logprobs + 0.0).view(torch.int32)


def compare_with_the_whole(rank: int, seed: int, count: int, max_vocab: int) -> list[str]:
    """What was different on this rank. Every third case has no filters, so that the other way is taken."""
    rng = random.Random(seed)
    group, world_size = default_group(), dist.get_world_size()
    different = []
    for i in range(count):
        case = masked_sample_cases.random_case(rng, max_vocab=max_vocab, max_rows=9)
        if i % 3 == 0:
            case.top_k = case.top_p = case.min_p = None
        cuts = cut_anywhere(rng, case.logits.shape[1], world_size)
        arguments = (*shard_of(case, cuts, rank), cuts[rank], group)
        expected_ids, expected_logprobs = torch.ops.structout.masked_sample_logprobs(*case.arguments())
        ids, logprobs = torch.ops.structout.sharded_masked_sample_logprobs(*arguments)
        ids_alone = torch.ops.structout.sharded_masked_sample(*arguments)
        is_same = torch.equal(ids, expected_ids) and torch.equal(ids_alone, expected_ids)
        if not is_same or not torch.equal(_bits(logprobs), _bits(expected_logprobs)):
            different.append(f"case {i}, cuts {cuts}: {ids} {logprobs} and not {expected_ids} {expected_logprobs}")
    return different


# -- what goes wrong --------------------------------------------------------------------------------------------------


def _gather(num_rows: int = 3, width: int = 5) -> torch.Tensor:
    shard = torch.full((num_rows, width), dist.get_rank(), dtype=torch.int32)
    return torch.ops.structout.all_gather_bitmask(shard, default_group())


def _sample(**changes: Any) -> torch.Tensor:
    """A step that is the same on all ranks, but for what is changed on this one."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    logits = torch.randn(4, 16 * world_size, generator=torch.Generator().manual_seed(1))
    sample = structout.sharded_masked_sample
    if changes.pop("logprobs", False):
        sample = structout.sharded_masked_sample_logprobs
    arguments: dict[str, Any] = {"bitmask": torch.full((4, world_size), 0x0FF7_7FF0, dtype=torch.int32)}
    arguments |= {"vocab_begin": 16 * rank, "seed": 3, "position": torch.arange(4)}
    shard = changes.pop("logits_shard", logits[:, 16 * rank : 16 * rank + 16])
    return sample(shard, **(arguments | changes))


def carry_anything(rank: int, seed: int, count: int) -> str:
    """Payloads of any size from each rank to each, also none, and more than shared memory holds at once."""
    rng, link = random.Random(seed), channel(default_group())
    ranks = range(dist.get_world_size())
    sizes_worth_a_try = [0, 1, 7, 4031, 4032, 4033, 100_000, _Segment.CAPACITY // 2 + 5, _Segment.CAPACITY * 2 + 3]

    def payload(i: int, source: int, destination: int, size: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(i * 64 + source * 8 + destination)
        return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)

    for i in range(count):
        is_for_all = rng.random() < 0.4
        sizes = [[rng.choice(sizes_worth_a_try[: 7 if i % 5 else 9]) for _ in ranks] for _ in ranks]
        if is_for_all:
            sizes = [[of_source[0] for _ in ranks] for of_source in sizes]
        outgoing = [payload(i, rank, 0 if is_for_all else to, sizes[rank][to]) for to in ranks]
        if is_for_all:
            outgoing = [outgoing[0]] * len(ranks)
        into = [torch.zeros(sizes[source][rank], dtype=torch.uint8) for source in ranks]
        given = into if rng.random() < 0.5 else None
        messages = link.exchange("poll_ready", outgoing, agreed={"a": i, "b": 2, "c": 3}, facts=(rank, i), into=given)
        for source, message in enumerate(messages):
            expected = payload(i, source, 0 if is_for_all else rank, sizes[source][rank])
            assert message.facts == (source, i)
            assert torch.equal(message.payload, expected)
            if given is not None and source != rank and len(expected) > 0:
                assert message.payload.data_ptr() == into[source].data_ptr()
    return type(link._wire).__name__


def lose_a_rank(rank: int, victim: int, how: str, after: int) -> tuple[float, tuple[int, ...], int, str]:
    """Of a survivor: seconds from the last success to the error, who is said to be at fault, at which step, and what a
    further call says."""
    for _ in range(after):
        _gather()
    if rank == victim:
        _vanish(how)
    if how == "dead long before":
        time.sleep(0.5)
    last_success = time.monotonic()
    try:
        for _ in range(1000):
            last_success = time.monotonic()
            _gather(num_rows=20_000)
    except CollectiveError as error:
        seconds = time.monotonic() - last_success
        try:
            _sample()
        except CollectiveError as further:
            return seconds, error.at_fault, error.step, str(further)
    raise AssertionError("nobody missed the rank")


def _vanish(how: str) -> None:
    if how == "stalled":
        time.sleep(60)
    if how == "dead long before":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "killed after its header":
        frame = torch.zeros(4096, dtype=torch.uint8)
        frame.view(torch.int64)[2] = 10**6  # bytes that it says will follow
        for peer in set(range(dist.get_world_size())) - {dist.get_rank()}:
            dist.group.WORLD.send([frame], peer, 0x57_01)
        time.sleep(0.05)
    if how == "killed during a transfer":
        if os.fork() == 0:  # dies by another's hand, at any moment
            time.sleep(random.random() * 0.03)
            os.kill(os.getppid(), signal.SIGKILL)
            os._exit(0)
        for _ in range(1000):
            _gather(num_rows=20_000)
    os.kill(os.getpid(), signal.SIGKILL)


def disagree(rank: int, odd_one: int, changes: dict[str, Any], operation: str) -> str:
    """What this rank says, after which the group must still be of use."""
    changes = changes if rank == odd_one else {}
    try:
        _gather(**changes) if operation == "gather" else _sample(**changes)
    except (CollectiveError, ValueError) as error:
        said = f"{type(error).__name__}: {error}"
    else:
        raise AssertionError("nobody noticed")
    expected = [[r] * 5 for r in range(dist.get_world_size()) for _ in range(3)]
    assert _gather().tolist() == expected
    assert _sample().tolist() == _drawn_alone()
    return said


def _drawn_alone() -> list[int]:
    """What `_sample` draws."""
    world_size = dist.get_world_size()
    logits = torch.randn(4, 16 * world_size, generator=torch.Generator().manual_seed(1))
    bitmask = torch.full((4, world_size), 0x0FF7_7FF0, dtype=torch.int32)
    return structout.masked_sample(logits, bitmask, seed=3, position=torch.arange(4)).tolist()


def go_in_and_out_of_inference_mode(rank: int, begins_inside: bool) -> None:
    for i in range(4):
        with torch.inference_mode((i % 2 == 0) == begins_inside):
            _gather()
            _gather(num_rows=2000)
            assert _sample().tolist() == _drawn_alone()
            _sample(top_k=5)


def call_different_ops(rank: int) -> str:
    try:
        _gather() if rank == 0 else _sample()
    except CollectiveError as error:
        return str(error)
    raise AssertionError("nobody noticed")


def start_again(rank: int, store: str) -> list[str]:
    """A group destroyed, another made: no trace of the first."""
    _gather()
    first = default_group()
    first_channel = channel(first)
    dist.destroy_process_group()
    said = []
    try:
        torch.ops.structout.all_gather_bitmask(torch.zeros(1, 1, dtype=torch.int32), first)
    except ValueError as error:
        said.append(str(error))
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    _gather()
    assert channel(default_group()) is not first_channel
    assert channel(default_group()).traffic.exchanges == 1
    return said


def use_two_groups(rank: int) -> list[list[int]]:
    """Ranks 0 and 2, and all; a rank that is in a group of its own takes no part."""
    pair = dist.new_group([0, 2])
    alone = [dist.new_group([i]) for i in range(3)][rank]
    shard = torch.tensor([[rank]], dtype=torch.int32)
    gathered = [structout.all_gather_bitmask(shard), structout.all_gather_bitmask(shard, alone)]
    if rank != 1:
        gathered.append(structout.all_gather_bitmask(shard, pair))
    return [tensor.flatten().tolist() for tensor in gathered]


def gather_nothing(rank: int) -> list[list[int]]:
    no_rows = structout.all_gather_bitmask(torch.zeros(0, 7, dtype=torch.int32))
    ids = structout.sharded_masked_sample(torch.zeros(0, 8), vocab_begin=8 * rank)
    filtered = structout.sharded_masked_sample(torch.zeros(0, 8), vocab_begin=8 * rank, top_k=3)
    return [list(no_rows.shape), list(ids.shape), list(filtered.shape)]


# -- compiled code, bytes, modules ------------------------------------------------------------------------------------


def draw_in_compiled_code(rank: int) -> None:
    """The sampler, masks gathered before it, under fullgraph; and what torch asks of an op."""
    world_size, vocab_size = dist.get_world_size(), 100
    columns = structout.distributed.shard_rows(vocab_size, rank, world_size)
    logits = torch.randn(6, vocab_size, generator=torch.Generator().manual_seed(0))
    shard = logits[:, columns.start : columns.stop]
    mine = structout.pack_bitmask(torch.rand(2, vocab_size, generator=torch.Generator().manual_seed(rank)) < 0.3)
    for return_logprobs in (False, True):
        for filters in ({}, {"top_k": 20, "top_p": 0.9}):
            sampler = structout.VocabParallelSampler(columns.start, return_logprobs=return_logprobs)
            each = torch.arange(6)
            params = structout.SamplingParams(temperature=0.8, seed=each, position=each, **filters)

            def step(shard: torch.Tensor, mine: torch.Tensor, sampler=sampler, params=params):
                bitmask = structout.all_gather_bitmask(mine, sampler.group_name)
                rows = torch.arange(6) % (2 * world_size)
                return sampler(shard, structout.DeviceMasks(bitmask, rows), params)

            eager = step(shard, mine)
            compiled = torch.compile(step, fullgraph=True)(shard, mine)
            whole = structout.MaskedSampler(return_logprobs)(
                logits,
                structout.DeviceMasks(structout.all_gather_bitmask(mine), torch.arange(6) % (2 * world_size)),
                params,
            )
            for one, other, expected in zip(*map(_as_tuple, (eager, compiled, whole)), strict=True):
                assert torch.equal(one, other)
                assert torch.equal(one, expected)
    arguments = (*ops.row_parameters(shard, 1.0, None, None, None, 0, 0), columns.start, default_group())
    torch.library.opcheck(torch.ops.structout.all_gather_bitmask.default, (mine, default_group()))
    torch.library.opcheck(torch.ops.structout.sharded_masked_sample.default, (shard, None, None, *arguments))
    torch.library.opcheck(torch.ops.structout.sharded_masked_sample_logprobs.default, (shard, None, None, *arguments))


def _as_tuple(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def bytes_of_a_step(rank: int, num_rows: int, vocab_size: int, num_allowed: int | None, filters: dict[str, Any]) -> int:
    """That this rank has to tell the others to draw, headers apart."""
    world_size = dist.get_world_size()
    columns = structout.distributed.shard_rows(vocab_size, rank, world_size)
    bitmask = None
    if num_allowed is not None:
        allowed = torch.zeros(num_rows, vocab_size, dtype=torch.bool)
        allowed[:, torch.randperm(vocab_size, generator=torch.Generator().manual_seed(0))[:num_allowed]] = True
        bitmask = structout.pack_bitmask(allowed)
    before = structout.distributed.traffic().payload_bytes
    structout.sharded_masked_sample(
        torch.zeros(num_rows, len(columns), dtype=torch.bfloat16), bitmask, vocab_begin=columns.start, **filters
    )
    return structout.distributed.traffic().payload_bytes - before


def compare_by_collectives(rank: int, seed: int, count: int) -> list[str]:
    """What CUDA tensors take where there is no symmetric memory, with CPU tensors over gloo."""
    rng = random.Random(seed)
    different = []
    for i in range(count):
        case = masked_sample_cases.random_case(rng, max_vocab=900, max_rows=9)
        if i % 3 == 0:
            case.top_k = case.top_p = case.min_p = None
        cuts = cut_anywhere(rng, case.logits.shape[1], dist.get_world_size())
        step = ShardStep.of(tuple(shard_of(case, cuts, rank)), cuts[rank])
        link = CollectiveLink(dist.group.WORLD)  # of its own, because a link is made for one vocabulary
        expected_ids, expected_logprobs = torch.ops.structout.masked_sample_logprobs(*case.arguments())
        ids, logprobs = device_sharding.sample(link, step, return_logprobs=True)
        ids_alone, _ = device_sharding.sample(link, step, return_logprobs=False)
        is_same = torch.equal(ids, expected_ids) and torch.equal(ids_alone, expected_ids)
        if not is_same or not torch.equal(_bits(logprobs), _bits(expected_logprobs)):
            different.append(f"case {i}, cuts {cuts}: {ids} {logprobs} and not {expected_ids} {expected_logprobs}")
    shard = torch.full((3, 2), rank, dtype=torch.int32)
    assert torch.equal(device_sharding.gather_masks(link, shard), structout.all_gather_bitmask(shard))
    link = device_link(default_group(), torch.device("cpu"))
    assert isinstance(link, CollectiveLink)
    assert link is device_link(default_group(), torch.device("cpu"))
    columns = [(10 * r, 10) for r in range(dist.get_world_size())]
    assert link.columns((10 * rank, 10)) == columns
    with pytest.raises(ValueError, match=f"has 10 columns from {10 * rank} on, got 9 from 3 on"):
        link.columns((3, 9))
    structout.distributed.check("cpu")
    return different
