"""sharded_masked_sample and all_gather_bitmask in real process groups: the bits of the whole, whatever the cut."""

import random
import subprocess
import sys
from itertools import pairwise

import pytest
import rank_programs
import ranks
import torch
from locations import ROOT
from masked_sample_cases import random_case

import structout
from structout.distributed import Traffic, shard_rows, traffic

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
WORLD_SIZES = (1, 2, 3, 4, 8)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_rank_draws_what_one_would_draw_alone(world_size):
    different = ranks.run(world_size, rank_programs.compare_with_the_whole, world_size, 150, 3000)
    assert different == [[]] * world_size


def test_nor_does_it_matter_how_the_ranks_are_connected():
    assert ranks.run(3, rank_programs.compare_with_the_whole, 99, 60, 3000, shared_memory=False) == [[]] * 3


@pytest.mark.parametrize("world_size", [2, 3])
def test_collectives_of_a_device_give_the_same(world_size):
    assert ranks.run(world_size, rank_programs.compare_by_collectives, world_size, 100) == [[]] * world_size


@pytest.mark.parametrize("world_size", [1, 2])
def test_compiled_code_draws_the_same(world_size):
    ranks.run(world_size, rank_programs.draw_in_compiled_code)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def test_shards_on_one_device_merge_to_the_whole(device):
    """What each rank computes, without ranks."""
    ops, rng = torch.ops.structout, random.Random(7)
    for _ in range(300 if device == "cpu" else 3000):
        case = random_case(rng, device, max_vocab=4000, max_rows=5)
        logits, bitmask, rows, temperature, *_, seed, position = case.arguments()
        cuts = rank_programs.cut_anywhere(rng, logits.shape[1], rng.choice([1, 2, 3, 8]))
        shards = [
            (logits[:, begin:end], bitmask, rows, temperature, seed, position, begin) for begin, end in pairwise(cuts)
        ]
        expected = ops.masked_sample_logprobs(logits, bitmask, rows, temperature, None, None, None, seed, position)
        outcomes = torch.stack([ops._sample_shard(*shard) for shard in shards])
        assert torch.equal(ops._merge_outcomes(outcomes[:, :3].contiguous(), temperature)[0], expected[0])
        ids, merged = ops._merge_outcomes(outcomes, temperature)
        logprobs = ops._merge_masses(
            torch.stack([ops._shard_mass(*shard, merged) for shard in shards]), merged, temperature
        )
        assert torch.equal(ids, expected[0])
        assert torch.equal((logprobs + 0.0).view(torch.int32), (expected[1] + 0.0).view(torch.int32))


def test_masses_that_did_not_come_give_no_logprob():
    merged = torch.zeros(4, 1, dtype=torch.int32)
    logprobs = torch.ops.structout._merge_masses(torch.tensor([[-1], [-1]]), merged, torch.ones(1))
    assert logprobs.isnan().all()


def test_a_draw_without_filters_sends_twelve_bytes_a_row():
    sent = ranks.run(4, rank_programs.bytes_of_a_step, 32, 20_000, None, {})
    assert sent == [12 * 32 * 3] * 4


def test_with_filters_only_what_masks_allow_is_sent():
    rows, vocab_size, world_size = 32, 20_000, 4
    ids = 4 * rows // world_size * (world_size - 1)
    gathered = rows * vocab_size // world_size * 2 * (world_size - 1)
    dense = ranks.run(world_size, rank_programs.bytes_of_a_step, rows, vocab_size, None, {"top_k": 50})
    assert dense == [gathered // world_size + ids] * world_size
    sparse = ranks.run(world_size, rank_programs.bytes_of_a_step, rows, vocab_size, 100, {"top_p": 0.9})
    assert sum(sparse) == 2 * 100 * rows * (world_size - 1) // world_size + ids * world_size


def test_rows_are_shared_out_evenly_in_order():
    for num_rows in (0, 1, 7, 256):
        for world_size in (1, 2, 3, 8):
            owned = [shard_rows(num_rows, rank, world_size) for rank in range(world_size)]
            assert [row for rows in owned for row in rows] == list(range(num_rows))
            assert max(map(len, owned)) - min(map(len, owned)) <= 1
    with pytest.raises(ValueError, match="got rank 2, world_size 2"):
        shard_rows(3, 2, 2)


class TestAlone:
    """One rank, without any process group."""

    def test_nothing_is_sent_and_the_tokens_are_the_same(self):
        logits = torch.randn(5, 70)
        bitmask = structout.pack_bitmask(torch.rand(5, 70) < 0.5)
        for filters in ({}, {"top_k": 3}):
            expected = structout.masked_sample_logprobs(logits, bitmask, seed=3, **filters)
            drawn = structout.sharded_masked_sample_logprobs(logits, bitmask, vocab_begin=0, seed=3, **filters)
            assert all(map(torch.equal, drawn, expected))
            ids = structout.sharded_masked_sample(logits, bitmask, vocab_begin=0, seed=3, **filters)
            assert torch.equal(ids, expected[0])
        assert traffic() == Traffic(0, 0, 0)

    def test_gathered_masks_are_a_copy(self):
        shard = torch.ones(2, 3, dtype=torch.int32)
        gathered = structout.all_gather_bitmask(shard)
        assert torch.equal(gathered, shard)
        assert gathered.data_ptr() != shard.data_ptr()

    def test_one_row_may_come_without_its_dimension(self):
        logits, mask = torch.randn(40), torch.full((2,), -1, dtype=torch.int32)
        assert structout.sharded_masked_sample(logits, mask, vocab_begin=0).shape == (1,)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"vocab_begin": 3}, "one rank alone must hold all columns, got vocab_begin 3"),
            ({"vocab_begin": -1}, r"vocab_begin must be in \[0, 8388607\], got -1"),
            ({"vocab_begin": 2**23 - 8}, "up to 8388607 tokens, got a shard that ends at 8388640"),
            ({"vocab_begin": 0, "temperature": torch.ones(5).double()}, "temperature must be float32, got float64"),
            ({"vocab_begin": 0, "top_k": torch.ones(5)}, "top_k must be int32 or int64, got float32"),
            ({"vocab_begin": 0, "rows": torch.zeros(5).int()}, "there is no bitmask"),
        ],
    )
    def test_refusals(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            structout.sharded_masked_sample(torch.randn(5, 40), **arguments)

    def test_masks_that_are_none(self):
        with pytest.raises(ValueError, match=r"shard must be int32 \[rows, words\], got torch.int64 \[2, 2\]"):
            structout.all_gather_bitmask(torch.zeros(2, 2, dtype=torch.int64))


def test_the_example_draws_what_one_process_draws():
    """On two ranks under torchrun, as its first lines say."""
    example = ROOT / "examples" / "tensor_parallel.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(example)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    assert "tokens of one process alone:        the same" in run.stdout
    assert run.stdout.count('"status"') == 8
