"""Programs for the ranks of tests/support/ranks.py.

Results are plain data; a rank that raises fails the test.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

import structout
import structout.distributed
from structout.distributed import sharded_logprobs, vocab_parallel
from structout.distributed.checked_collectives import checked_collectives
from structout.distributed.cuda_communicator import (
    CollectiveCommunicator,
    SymmetricMemoryCommunicator,
    cuda_communicator,
)
from structout.distributed.vocab_shard import VocabShard
from structout.errors import CollectiveError
from structout.ops.row_parameters import row_parameters
from support import masked_sample_cases
from support.masked_sample_cases import Case

# -- sampling --------------------------------------------------------------------------


def default_group() -> str:
    assert dist.group.WORLD is not None
    return str(dist.group.WORLD.group_name)


def random_cuts(rng: random.Random, vocab_size: int, world_size: int) -> list[int]:
    """Return where shards begin and end; widths are often uneven, 0 and 1 included."""
    if rng.random() < 0.3:
        width = -(-vocab_size // world_size)
        return [min(rank * width, vocab_size) for rank in range(world_size + 1)]
    return [0, *sorted(rng.randint(0, vocab_size) for _ in range(world_size - 1)), vocab_size]


def shard_arguments(case: Case, cuts: list[int], rank: int) -> list[Any]:
    logits, *others = case.arguments()
    return [logits[:, cuts[rank] : cuts[rank + 1]], *others]


def _bits(logprobs: torch.Tensor) -> torch.Tensor:
    return (logprobs + 0.0).view(torch.int32)


def compare_with_whole_vocabulary(rank: int, seed: int, count: int, max_vocab: int) -> list[str]:
    """Return the differences seen by this rank.

    Every third case has no filters, which takes the other path.
    """
    rng = random.Random(seed)
    group, world_size = default_group(), dist.get_world_size()
    differences = []
    for i in range(count):
        case = masked_sample_cases.random_case(rng, max_vocab=max_vocab, max_rows=9)
        if i % 3 == 0:
            case.top_k = case.top_p = case.min_p = None
        cuts = random_cuts(rng, case.logits.shape[1], world_size)
        arguments = (*shard_arguments(case, cuts, rank), cuts[rank], group)
        ids, logprobs = torch.ops.structout.sharded_masked_sample_logprobs(*arguments)
        ids_only = torch.ops.structout.sharded_masked_sample(*arguments)
        topn = (rng.choice([0, 1, 5, 64]), rng.random() < 0.5)
        sample = torch.ops.structout.sharded_masked_sample_topn(*arguments[:-1], *topn, group)
        expected = torch.ops.structout.masked_sample_topn(*case.arguments(), *topn)
        if not all(map(torch.equal, sample, expected)):
            differences.append(f"case {i}, cuts {cuts}, top_n and raw {topn}: {sample} != {expected}")
        differences += _difference(case, f"case {i}, cuts {cuts}", ids, ids_only, logprobs)
    return differences


def _difference(case: Case, about: str, ids: torch.Tensor, ids_only: torch.Tensor, logprobs: torch.Tensor) -> list[str]:
    """Compare with masked_sample_logprobs on the whole vocabulary, bit for bit."""
    expected_ids, expected_logprobs = torch.ops.structout.masked_sample_logprobs(*case.arguments())
    is_same = torch.equal(ids, expected_ids) and torch.equal(ids_only, expected_ids)
    if is_same and torch.equal(_bits(logprobs), _bits(expected_logprobs)):
        return []
    return [f"{about}: got {ids} {logprobs}, expected {expected_ids} {expected_logprobs}"]


# -- faults ----------------------------------------------------------------------------


def _gather(num_rows: int = 3, width: int = 5) -> torch.Tensor:
    shard = torch.full((num_rows, width), dist.get_rank(), dtype=torch.int32)
    return torch.ops.structout.all_gather_bitmask(shard, default_group())


def _sample(**changes: Any) -> torch.Tensor:
    """Sample with the same arguments on all ranks, except for the changes."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    logits = torch.randn(4, 16 * world_size, generator=torch.Generator().manual_seed(1))
    sample = structout.sharded_masked_sample
    if changes.pop("logprobs", False):
        sample = structout.sharded_masked_sample_logprobs
    arguments: dict[str, Any] = {"bitmask": torch.full((4, world_size), 0x0FF7_7FF0, dtype=torch.int32)}
    arguments |= {"vocab_begin": 16 * rank, "seed": 3, "position": torch.arange(4)}
    shard = changes.pop("logits_shard", logits[:, 16 * rank : 16 * rank + 16])
    return sample(shard, **(arguments | changes))


class ActiveClock(threading.Thread):
    """Counts only seconds in which this process could run, even on a busy machine."""

    PERIOD_S = 0.01

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._num_ticks = 0

    def run(self) -> None:
        while True:
            time.sleep(self.PERIOD_S)
            self._num_ticks += 1

    def seconds(self) -> float:
        return self._num_ticks * self.PERIOD_S


def lose_a_rank(rank: int, victim: int, fault: str, num_successes: int) -> tuple[float, int, str, str]:
    """Return what a survivor sees.

    Returns:
        Seconds from the last success to the error, the step that the error names, its
        message, and that of the next call's error.
    """
    clock = ActiveClock()
    clock.start()
    for _ in range(num_successes):
        _gather()
    if rank == victim:
        _fail(fault)
    if fault == "dead long before":
        time.sleep(0.5)
    last_success = clock.seconds()
    try:
        for _ in range(1000):
            last_success = clock.seconds()
            _gather(num_rows=20_000)
    except CollectiveError as error:
        seconds = clock.seconds() - last_success
        try:
            _sample()
        except CollectiveError as next_error:
            return seconds, error.step, str(error), str(next_error)
    raise AssertionError("no error was raised for the lost rank")


def _fail(fault: str) -> None:
    if fault == "stalled":
        time.sleep(60)
    if fault == "dead long before":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "killed during a transfer":
        if os.fork() == 0:  # the child kills its parent at a random moment
            time.sleep(random.random() * 0.03)
            os.kill(os.getppid(), signal.SIGKILL)
            os._exit(0)
        for _ in range(1000):
            _gather(num_rows=20_000)
    os.kill(os.getpid(), signal.SIGKILL)


def disagree(rank: int, odd_rank: int, changes: dict[str, Any], operation: str) -> str:
    """Return this rank's error, after which the group must still work."""
    changes = changes if rank == odd_rank else {}
    try:
        _gather(**changes) if operation == "gather" else _sample(**changes)
    except (CollectiveError, ValueError) as error:
        message = f"{type(error).__name__}: {error}"
    else:
        raise AssertionError("no error was raised for the difference")
    expected = [[r] * 5 for r in range(dist.get_world_size()) for _ in range(3)]
    assert _gather().tolist() == expected
    assert _sample().tolist() == _expected_sample()
    return message


def _expected_sample() -> list[int]:
    """Return what `_sample` draws, from the whole vocabulary."""
    world_size = dist.get_world_size()
    logits = torch.randn(4, 16 * world_size, generator=torch.Generator().manual_seed(1))
    bitmask = torch.full((4, world_size), 0x0FF7_7FF0, dtype=torch.int32)
    return structout.masked_sample(logits, bitmask, seed=3, position=torch.arange(4)).tolist()


def alternate_inference_mode(rank: int, begins_inside: bool) -> None:
    for i in range(4):
        with torch.inference_mode((i % 2 == 0) == begins_inside):
            _gather()
            _gather(num_rows=2000)
            assert _sample().tolist() == _expected_sample()
            _sample(top_k=5)


def call_different_ops(rank: int) -> str:
    try:
        _gather() if rank == 0 else _sample()
    except CollectiveError as error:
        return str(error)
    raise AssertionError("no error was raised for the difference")


def recreate_default_group(rank: int, store: str) -> list[str]:
    """Destroy the default group and make another, which must start afresh."""
    _gather()
    first_group = default_group()
    first_communicator = checked_collectives(first_group)
    dist.destroy_process_group()
    messages = []
    try:
        torch.ops.structout.all_gather_bitmask(torch.zeros(1, 1, dtype=torch.int32), first_group)
    except ValueError as error:
        messages.append(str(error))
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    _gather()
    assert checked_collectives(default_group()) is not first_communicator
    return messages


def use_overlapping_groups(rank: int) -> list[list[int]]:
    """Gather among all ranks, on this rank alone, and among ranks 0 and 2."""
    pair = dist.new_group([0, 2])
    single = [dist.new_group([i]) for i in range(3)][rank]
    shard = torch.tensor([[rank]], dtype=torch.int32)
    gathered = [structout.all_gather_bitmask(shard), structout.all_gather_bitmask(shard, single)]
    if rank != 1:
        gathered.append(structout.all_gather_bitmask(shard, pair))
    return [tensor.flatten().tolist() for tensor in gathered]


def call_with_no_rows(rank: int) -> list[list[int]]:
    """Return the shapes of the results of gathering and drawing zero rows."""
    no_rows = structout.all_gather_bitmask(torch.zeros(0, 7, dtype=torch.int32))
    ids = structout.sharded_masked_sample(torch.zeros(0, 8), vocab_begin=8 * rank)
    filtered = structout.sharded_masked_sample(torch.zeros(0, 8), vocab_begin=8 * rank, top_k=3)
    return [list(no_rows.shape), list(ids.shape), list(filtered.shape)]


# -- compiled code, sizes, collectives -------------------------------------------------


def sample_in_compiled_code(rank: int, backend: str) -> None:
    """Gather masks and sample under fullgraph; run opcheck on the collective ops."""
    world_size, vocab_size = dist.get_world_size(), 100
    columns = structout.distributed.owned_rows(vocab_size, rank, world_size)
    logits = torch.randn(6, vocab_size, generator=torch.Generator().manual_seed(0))
    shard = logits[:, columns.start : columns.stop]
    local_masks = structout.pack_bitmask(torch.rand(2, vocab_size, generator=torch.Generator().manual_seed(rank)) < 0.3)
    for logprobs in ({}, {"top_n": 0}, {"top_n": 3, "raw": True}):
        for filters in ({}, {"top_k": 20, "top_p": 0.9}):
            sampler = structout.VocabParallelSampler(columns.start, **logprobs)
            row_numbers = torch.arange(6)
            params = structout.SamplingParams(temperature=0.8, seed=row_numbers, position=row_numbers, **filters)

            def step(shard: torch.Tensor, local_masks: torch.Tensor, sampler=sampler, params=params):
                bitmask = structout.all_gather_bitmask(local_masks, sampler.group_name)
                rows = torch.arange(6) % (2 * world_size)
                return sampler(shard, structout.DeviceMasks(bitmask, rows), params)

            eager = step(shard, local_masks)
            compiled = torch.compile(step, fullgraph=True, backend=backend)(shard, local_masks)
            whole = structout.MaskedSampler(**logprobs)(
                logits,
                structout.DeviceMasks(structout.all_gather_bitmask(local_masks), torch.arange(6) % (2 * world_size)),
                params,
            )
            for eager_part, compiled_part, expected in zip(eager, compiled, whole, strict=True):
                assert eager_part is expected is None or torch.equal(eager_part, expected)
                assert compiled_part is expected is None or torch.equal(compiled_part, expected)
    verify_with_lists_of_the_whole_vocabulary(logits, columns)
    arguments = (*row_parameters(shard, 1.0, None, None, None, 0, 0), columns.start, default_group())
    torch.library.opcheck(torch.ops.structout.all_gather_bitmask.default, (local_masks, default_group()))
    torch.library.opcheck(torch.ops.structout.sharded_masked_sample.default, (shard, None, None, *arguments))
    torch.library.opcheck(torch.ops.structout.sharded_masked_sample_logprobs.default, (shard, None, None, *arguments))
    topn = (*arguments[:-1], 2, False, default_group())
    torch.library.opcheck(torch.ops.structout.sharded_masked_sample_topn.default, (shard, None, None, *topn))
    tokens = (None, row_numbers, columns.start, 2, default_group())
    torch.library.opcheck(torch.ops.structout.sharded_token_logprobs.default, (shard, None, None, *tokens))


def verify_with_lists_of_the_whole_vocabulary(logits: torch.Tensor, columns: range) -> None:
    """Compare penalties, bias and drafts on a shard with those on all columns."""
    generator = torch.Generator().manual_seed(5)
    num_rows, vocab_size = logits.shape
    indptr = torch.arange(0, 4 * num_rows + 1, 4)
    token_ids = torch.randint(vocab_size, (4 * num_rows,), generator=generator)
    counts = torch.randint(3, (4 * num_rows,), generator=generator)
    penalties = structout.Penalties(indptr, token_ids, counts, repetition=1.4, frequency=0.3, presence=-0.2)
    bias = structout.LogitBias(indptr, token_ids.flip(0), torch.randn(4 * num_rows, generator=generator) * 4)
    params = structout.SamplingParams(seed=9, position=torch.arange(num_rows))
    likely = structout.MaskedSampler()(logits.clone(), None, params, penalties=penalties, bias=bias).ids
    drafts = structout.Drafts(torch.where(torch.arange(num_rows) == 1, 0, likely), torch.tensor([0, 4, num_rows]))
    whole, shard = logits.clone(), logits[:, columns.start : columns.stop].clone()
    step = {"penalties": penalties, "bias": bias, "drafts": drafts}
    expected = structout.MaskedSampler(top_n=2, raw=True)(whole, None, params, **step)
    got = structout.VocabParallelSampler(columns.start, top_n=2, raw=True)(shard, None, params, **step)
    assert all(map(torch.equal, got, expected))
    assert torch.equal(shard, whole[:, columns.start : columns.stop])
    assert expected.num_accepted.sum() > 0


def bytes_of_exchanges(rank: int, num_rows: int, vocab_size: int, filters: dict[str, Any]) -> list[int]:
    """Return the sizes of the tensors that this rank gives the others to draw once."""
    columns = structout.distributed.owned_rows(vocab_size, rank, dist.get_world_size())
    sizes = []
    all_gather = CollectiveCommunicator.all_gather

    def counted(communicator: CollectiveCommunicator, local: torch.Tensor, *arguments: Any) -> torch.Tensor:
        sizes.append(local.nbytes)
        return all_gather(communicator, local, *arguments)

    CollectiveCommunicator.all_gather = counted
    logits = torch.zeros(num_rows, len(columns), dtype=torch.bfloat16)
    structout.sharded_masked_sample(logits, vocab_begin=columns.start, **filters)
    return sizes


def compare_collectives(rank: int, seed: int, count: int) -> list[str]:
    """Run what CUDA tensors use without symmetric memory, with CPU tensors over gloo.

    Return the differences.
    """
    rng = random.Random(seed)
    differences = []
    for i in range(count):
        case = masked_sample_cases.random_case(rng, max_vocab=900, max_rows=9)
        if i % 3 == 0:
            case.top_k = case.top_p = case.min_p = None
        cuts = random_cuts(rng, case.logits.shape[1], dist.get_world_size())
        shard = VocabShard.from_op_arguments(tuple(shard_arguments(case, cuts, rank)), cuts[rank])
        communicator = CollectiveCommunicator(dist.group.WORLD)  # a new one, because each serves one vocabulary
        ids, logprobs = vocab_parallel.sample(communicator, shard, return_logprobs=True)
        ids_only, _ = vocab_parallel.sample(communicator, shard, return_logprobs=False)
        differences += _difference(case, f"case {i}, cuts {cuts}", ids, ids_only, logprobs)
        masks = (shard.bitmask, shard.rows, shard.temperature)
        found = sharded_logprobs.sharded_token_logprobs(
            shard.logits, masks, ids, cuts[rank], 3, sharded_logprobs.exchange(communicator, 3)
        )
        expected = structout.token_logprobs(
            case.logits, ids, case.bitmask, case.rows, temperature=case.temperature, top_n=3
        )
        if not all(map(torch.equal, found, expected)):
            differences.append(f"case {i}, cuts {cuts}: {found} != {expected}")
        arguments = {"bitmask": case.bitmask, "rows": case.rows, "temperature": case.temperature}
        kept = structout.sharded_log_kept(shard.logits, vocab_begin=cuts[rank], **arguments)
        if not torch.equal(kept, structout.log_kept(case.logits, **arguments)):
            differences.append(f"case {i}, cuts {cuts}: {kept} is kept")
    masks = torch.full((3, 2), rank, dtype=torch.int32)
    gathered = vocab_parallel.all_gather_bitmask(communicator, masks)
    assert torch.equal(gathered, structout.all_gather_bitmask(masks))
    communicator = cuda_communicator(default_group(), torch.device("cpu"))
    assert isinstance(communicator, CollectiveCommunicator)
    assert communicator is cuda_communicator(default_group(), torch.device("cpu"))
    expected_columns = [(10 * r, 10) for r in range(dist.get_world_size())]
    assert communicator.all_columns((10 * rank, 10)) == expected_columns
    with pytest.raises(ValueError, match=f"has 10 columns from {10 * rank} on, got 9 from 3 on"):
        communicator.all_columns((3, 9))
    structout.distributed.check("cpu")
    return differences


def allocate_on_all_but_rank_1(rank: int) -> str:
    """Return why a communicator over symmetric memory could not be made."""
    import torch.distributed._symmetric_memory as symmetric_memory

    def empty(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        if rank == 1:
            raise torch.OutOfMemoryError("no room")
        return torch.empty(size, dtype=dtype, device=device)

    symmetric_memory.empty = empty
    with pytest.raises(RuntimeError, match="could not allocate") as raised:
        SymmetricMemoryCommunicator(dist.group.WORLD, torch.device("cpu"))
    return str(raised.value)
