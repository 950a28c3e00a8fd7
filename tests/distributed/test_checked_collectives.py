"""Faults among ranks raise on every surviving rank, in time."""

import copy
import random

import pytest
import torch

import structout
from structout.errors import CollectiveError
from support import rank_programs, ranks
from support.seeds import for_each_seed

TIMEOUT_S = 1.5
FAULTS = ("killed before", "killed during a transfer", "dead long before", "stalled")


@for_each_seed(8, long=50)
def test_exchange_with_lost_rank_raises_on_all_survivors_in_time(seed):
    """A rank may wait for another that has noticed the loss, for as long again."""
    rng = random.Random(seed)
    world_size, fault = rng.choice([2, 2, 3, 4]), rng.choices(FAULTS, [4, 4, 4, 1])[0]
    victim, num_successes = rng.randrange(world_size), rng.randint(0, 3)
    survivors = set(range(world_size)) - {victim}
    outcomes = ranks.collect_outcomes(
        world_size, rank_programs.lose_a_rank, victim, fault, num_successes, timeout=TIMEOUT_S, wait_for=survivors
    )
    for outcome in (outcomes[rank] for rank in survivors):
        assert outcome.error is None, outcome.error
        assert not outcome.was_killed, f"a survivor went down with rank {victim}, which was {fault}"
        seconds, step, message, next_message = outcome.result
        assert seconds < 2 * TIMEOUT_S + 1
        assert step > num_successes
        assert "a rank has died or did not answer in time" in message
        assert "broke down earlier" in next_message


SAMPLE_CHANGES = {
    "the number of rows": {"logits_shard": torch.zeros(5, 16), "bitmask": None, "position": 0},
    "the dtype of the logits": {"logits_shard": torch.zeros(4, 16, dtype=torch.float16)},
    "masks and parameters": {"seed": 4},
    "the mask": {"bitmask": torch.zeros(4, 3, dtype=torch.int32)},
    "no mask": {"bitmask": None},
    "filters": {"top_k": 5},
    "logprobs": {"logprobs": True},
    "an invalid number": {"temperature": -1.0},
    "repeated columns": {"vocab_begin": 0},
    "missing columns": {"logits_shard": torch.zeros(4, 15)},
}


@pytest.mark.parametrize("change", SAMPLE_CHANGES)
def test_sharded_masked_sample_with_one_differing_rank_raises_on_all(change):
    messages = ranks.run(3, rank_programs.disagree, 1, SAMPLE_CHANGES[change], "sample")
    for rank, text in enumerate(messages):
        if rank == 1 and "invalid" in change:
            assert text.startswith("ValueError: masked_sample: temperature must be a finite number of at least 0")
            continue
        assert text.startswith(f"CollectiveError: [rank {rank}, step 1] sharded_masked_sample: ")
        assert "disagree on" in text or "must hold every column once" in text or "rank 1 failed at step 1" in text
    problems = {text.partition("] ")[2] for text in messages if text.startswith("CollectiveError")}
    assert len(problems) == 1


@pytest.mark.parametrize("changes", [{"num_rows": 4}, {"width": 6}, {"num_rows": 0}])
def test_all_gather_bitmask_with_one_differing_shape_raises_on_all(changes):
    messages = ranks.run(3, rank_programs.disagree, 2, changes, "gather")
    assert all("all_gather_bitmask: ranks disagree on the" in text for text in messages)


def test_sharded_masked_sample_with_invalid_argument_on_one_rank_gives_its_error_to_the_others():
    changes = {"temperature": torch.ones(4, dtype=torch.float64)}
    messages = ranks.run(3, rank_programs.disagree, 1, changes, "sample")
    own_error = (
        "ValueError: sharded_masked_sample: temperature must be float32, got float64; "
        "convert with temperature.to(torch.float32)"
    )
    assert messages[1] == own_error
    for rank in (0, 2):
        begin = f"CollectiveError: [rank {rank}, step 1] sharded_masked_sample: rank 1 failed at step 1: "
        assert messages[rank] == begin + own_error


@pytest.mark.parametrize("begins_inside", [True, False])
def test_exchange_in_and_out_of_inference_mode_works(begins_inside):
    ranks.run(2, rank_programs.alternate_inference_mode, begins_inside)


def test_ranks_calling_different_ops_raise_an_error_that_names_both():
    messages = ranks.run(2, rank_programs.call_different_ops)
    assert all("disagree on the operation: all_gather_bitmask, sharded_masked_sample" in text for text in messages)


def test_new_group_after_destroyed_group_starts_afresh(tmp_path):
    for messages in ranks.run(2, rank_programs.recreate_default_group, str(tmp_path / "store")):
        assert len(messages) == 1
        assert "no process group named '0'" in messages[0]


def test_overlapping_groups_do_not_disturb_each_other():
    assert ranks.run(3, rank_programs.use_overlapping_groups) == [
        [[0, 1, 2], [0], [0, 2]],
        [[0, 1, 2], [1]],
        [[0, 1, 2], [2], [0, 2]],
    ]


def test_collective_ops_with_no_rows_return_empty_results():
    assert ranks.run(2, rank_programs.call_with_no_rows) == [[[0, 7], [0], [0]]] * 2


def test_all_gather_bitmask_with_unknown_group_names_it():
    with pytest.raises(ValueError, match="no process group named 'nonesuch'"):
        structout.all_gather_bitmask(torch.zeros(1, 1, dtype=torch.int32), "nonesuch")


def test_collective_error_survives_pickling():
    error = copy.copy(CollectiveError("no", 1, 2, (3,)))  # uses __reduce__, as pickle does
    assert (str(error), error.rank, error.step, error.at_fault) == ("[rank 1, step 2] no", 1, 2, (3,))


def test_rank_without_symmetric_memory_fails_on_every_rank_before_the_rendezvous():
    messages = ranks.run(3, rank_programs.allocate_on_all_but_rank_1)
    assert len(set(messages)) == 1
    assert messages[0].startswith("ranks [1] could not allocate ")
