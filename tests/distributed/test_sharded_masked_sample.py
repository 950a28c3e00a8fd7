"""The collective ops in real process groups equal the unsharded ops, bit for bit."""

import random
from itertools import pairwise

import pytest
import torch

import structout
from structout.distributed import owned_rows
from support import rank_programs, ranks
from support.devices import DEVICES
from support.masked_sample_cases import random_case
from support.refusals import REFUSED

WORLD_SIZES = (1, 2, 3, *(pytest.param(size, marks=pytest.mark.long) for size in (4, 8)))


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_sharded_masked_sample_on_any_shards_equals_masked_sample(world_size, num_cases):
    count = num_cases(30, long=150)
    differences = ranks.run(world_size, rank_programs.compare_with_whole_vocabulary, world_size, count, 3000)
    assert differences == [[]] * world_size


@pytest.mark.parametrize("world_size", [2, 3])
def test_sample_by_collectives_equals_masked_sample(world_size):
    assert ranks.run(world_size, rank_programs.compare_collectives, world_size, 100) == [[]] * world_size


@pytest.mark.parametrize("world_size", [1, 2])
def test_vocab_parallel_sampler_compiled_equals_eager_and_masked_sampler(world_size, pytestconfig):
    """Ranks compile to C++ under --long only."""
    backend = "inductor" if pytestconfig.getoption("--long") else "aot_eager"
    ranks.run(world_size, rank_programs.sample_in_compiled_code, backend)


@pytest.mark.parametrize("device", DEVICES)
def test_merged_shard_results_on_one_device_equal_masked_sample(device):
    """Runs the ops of every rank in one process."""
    ops, rng = torch.ops.structout, random.Random(7)
    for _ in range(300 if device == "cpu" else 3000):
        case = random_case(rng, device, max_vocab=4000, max_rows=5)
        logits, bitmask, rows, temperature, *_, seed, position = case.arguments()
        cuts = rank_programs.random_cuts(rng, logits.shape[1], rng.choice([1, 2, 3, 8]))
        shards = [
            (logits[:, begin:end], bitmask, rows, temperature, seed, position, begin) for begin, end in pairwise(cuts)
        ]
        expected = ops.masked_sample_logprobs(logits, bitmask, rows, temperature, None, None, None, seed, position)
        shard_results = torch.stack([ops._sample_shard(*shard) for shard in shards])
        assert torch.equal(ops._merge_shard_results(shard_results[:, :3].contiguous(), temperature)[0], expected[0])
        ids, merged = ops._merge_shard_results(shard_results, temperature)
        highest, token_logits = merged[0].view(torch.float32), merged[3].view(torch.float32)
        totals = [
            ops._row_totals(columns, bitmask, rows, temperature, highest, token_logits, begin)
            for columns, *_, begin in shards
        ]
        no_top = token_logits.new_empty(len(ids), 0)
        logprobs = ops._merge_totals(torch.stack(totals), temperature, highest, token_logits, no_top)[0]
        assert torch.equal(ids, expected[0])
        assert torch.equal((logprobs + 0.0).view(torch.int32), (expected[1] + 0.0).view(torch.int32))


def test_merge_totals_after_a_failed_gather_gives_nan_and_rank_0():
    zeros = torch.zeros(1)
    totals = torch.full((2, 2, 1), -1)
    logprobs, ranks, top_logprobs = torch.ops.structout._merge_totals(totals, None, zeros, zeros, zeros[:, None])
    assert logprobs.isnan().all()
    assert top_logprobs.isnan().all()
    assert ranks.tolist() == [0]


def test_sharded_masked_sample_sends_twelve_bytes_per_row_and_with_filters_the_drawn_ids():
    assert ranks.run(4, rank_programs.bytes_of_exchanges, 32, 20_000, {}) == [[12 * 32]] * 4
    assert ranks.run(4, rank_programs.bytes_of_exchanges, 32, 20_000, {"top_k": 50}) == [[8 * 32 // 4]] * 4


def test_owned_rows_divides_rows_evenly_in_rank_order():
    for num_rows in (0, 1, 7, 256):
        for world_size in (1, 2, 3, 8):
            owned = [owned_rows(num_rows, rank, world_size) for rank in range(world_size)]
            assert [row for rows in owned for row in rows] == list(range(num_rows))
            assert max(map(len, owned)) - min(map(len, owned)) <= 1
    with pytest.raises(ValueError, match="got rank 2, world_size 2"):
        owned_rows(3, 2, 2)


class TestSingleRank:
    """Without a process group."""

    def test_sharded_masked_sample_sends_nothing_and_equals_masked_sample(self):
        logits = torch.randn(5, 70)
        bitmask = structout.pack_bitmask(torch.rand(5, 70) < 0.5)
        for filters in ({}, {"top_k": 3}):
            expected = structout.masked_sample_logprobs(logits, bitmask, seed=3, **filters)
            drawn = structout.sharded_masked_sample_logprobs(logits, bitmask, vocab_begin=0, seed=3, **filters)
            assert all(map(torch.equal, drawn, expected))
            ids = structout.sharded_masked_sample(logits, bitmask, vocab_begin=0, seed=3, **filters)
            assert torch.equal(ids, expected[0])

    def test_all_gather_bitmask_returns_a_copy(self):
        shard = torch.ones(2, 3, dtype=torch.int32)
        gathered = structout.all_gather_bitmask(shard)
        assert torch.equal(gathered, shard)
        assert gathered.data_ptr() != shard.data_ptr()

    def test_sharded_masked_sample_with_one_dimension_returns_one_id(self):
        logits, mask = torch.randn(40), torch.full((2,), -1, dtype=torch.int32)
        assert structout.sharded_masked_sample(logits, mask, vocab_begin=0).shape == (1,)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"vocab_begin": 3}, "a single rank must hold all columns, so vocab_begin must be 0, got 3"),
            ({"vocab_begin": -1}, r"vocab_begin must be in \[0, 8388607\], got -1"),
            ({"vocab_begin": 2**23 - 8}, "at most 8388607 tokens, got a shard that ends at 8388640"),
            ({"vocab_begin": 0, "temperature": torch.ones(5).double()}, "temperature must be float32, got float64"),
            ({"vocab_begin": 0, "top_k": torch.ones(5)}, "top_k must be int32 or int64, got float32"),
            ({"vocab_begin": 0, "rows": torch.zeros(5).int()}, "there is no bitmask"),
        ],
    )
    def test_sharded_masked_sample_with_invalid_arguments_raises(self, arguments, message):
        with pytest.raises(REFUSED, match=message):
            structout.sharded_masked_sample(torch.randn(5, 40), **arguments)

    def test_all_gather_bitmask_with_wrong_dtype_raises(self):
        with pytest.raises(ValueError, match=r"shard must be int32 \[rows, words\], got torch.int64 \[2, 2\]"):
            structout.all_gather_bitmask(torch.zeros(2, 2, dtype=torch.int64))
