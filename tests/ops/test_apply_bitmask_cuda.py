"""apply_bitmask on a CUDA device: streams, graphs, no synchronization, no
allocation."""

import random

import pytest
import torch

import structout
from support import apply_bitmask_backends, apply_bitmask_cases as cases

pytestmark = pytest.mark.gpu


@pytest.fixture(params=["cuda", pytest.param("triton", marks=pytest.mark.triton)])
def op(request):
    return apply_bitmask_backends.get(request.param)


def test_apply_bitmask_in_captured_graph_reads_new_masks_and_rows(op):
    rng = random.Random(0)
    case = cases.make_case(
        rng, num_rows=4, vocab_size=5000, dtype=torch.bfloat16, device="cuda", num_masks=3, rows="int32"
    )
    op(case.logits, case.bitmask, case.rows)  # Triton compiles in the first call
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        op(case.logits, case.bitmask, case.rows)
    for _ in range(1000):
        case.buffer.normal_()
        case.bitmask.random_(-(2**31), 2**31 - 1)
        case.rows.random_(-2, 5)
        expected = case.expected_buffer()
        graph.replay()
        cases.assert_same_bits(case.buffer, expected, str(case))


def test_apply_bitmask_runs_on_current_stream(op):
    case = cases.make_case(random.Random(1), num_rows=2, vocab_size=100_000, dtype=torch.float32, device="cuda")
    expected = case.expected_buffer()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # an op on another stream would finish before this
        kept = case.logits.clone()
        op(case.logits, case.bitmask, case.rows)
        untouched_while_waiting = kept.clone()
    torch.cuda.current_stream().wait_stream(stream)
    cases.assert_same_bits(case.buffer, expected)
    assert not torch.equal(untouched_while_waiting.isneginf(), case.logits.isneginf())


def test_apply_bitmask_never_synchronizes(op):
    case = cases.make_case(
        random.Random(2), num_rows=3, vocab_size=1000, dtype=torch.float16, device="cuda", rows="int64"
    )
    indices = torch.tensor([0, 2], device="cuda")
    op(case.logits, case.bitmask, case.rows)
    torch.cuda.set_sync_debug_mode("error")
    try:
        op(case.logits, case.bitmask, case.rows)
        structout.apply_token_bitmask_inplace(case.logits, case.bitmask, indices=indices)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_apply_bitmask_allocates_nothing(op):
    case = cases.make_case(random.Random(3), num_rows=3, vocab_size=1000, dtype=torch.float16, device="cuda")
    op(case.logits, case.bitmask, case.rows)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    op(case.logits, case.bitmask, case.rows)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
