"""What goes wrong between ranks: each fault is an error on every rank that is left, in time, never a wrong answer."""

import copy
import random

import pytest
import rank_programs
import ranks
import torch

import structout
from structout.distributed.transport import _Segment
from structout.errors import CollectiveError

TIMEOUT_S = 1.5
WAYS = ("killed before", "killed after its header", "killed during a transfer", "dead long before", "stalled")


@pytest.mark.parametrize("seed", range(50))
def test_a_lost_rank_is_an_error_on_all_others_in_time(seed):
    rng = random.Random(seed)
    world_size, how = rng.choice([2, 2, 3, 4]), rng.choices(WAYS, [4, 4, 4, 4, 1])[0]
    victim, after, shared_memory = rng.randrange(world_size), rng.randint(0, 3), rng.random() < 0.5
    ended = ranks.run_to_the_end(
        world_size,
        rank_programs.lose_a_rank,
        victim,
        how,
        after,
        timeout=TIMEOUT_S,
        shared_memory=shared_memory,
        wait_for=set(range(world_size)) - {victim},
    )
    for rank, one in enumerate(ended):
        if rank == victim:
            continue
        assert one.error is None, one.error
        assert not one.was_killed, f"rank {rank} went down with rank {victim}, which was {how}"
        seconds, at_fault, step, further = one.result
        assert seconds < TIMEOUT_S + 1
        assert at_fault == (victim,)
        assert step > after
        assert "broke down before" in further


@pytest.mark.parametrize(("world_size", "shared_memory"), [(2, True), (3, True), (2, False), (3, False)])
def test_what_is_sent_is_what_arrives(world_size, shared_memory):
    wires = ranks.run(world_size, rank_programs.carry_anything, world_size, 40, shared_memory=shared_memory)
    assert wires == ["SharedMemoryWire" if shared_memory else "GroupWire"] * world_size


SAMPLE_CHANGES = {
    "the number of rows": {"logits_shard": torch.zeros(5, 16), "bitmask": None, "position": 0},
    "the dtype of the logits": {"logits_shard": torch.zeros(4, 16, dtype=torch.float16)},
    "masks and parameters": {"seed": 4},
    "the mask": {"bitmask": torch.zeros(4, 3, dtype=torch.int32)},
    "no mask": {"bitmask": None},
    "filters": {"top_k": 5},
    "logprobs": {"logprobs": True},
    "a number that is refused": {"temperature": -1.0},
    "columns twice": {"vocab_begin": 0},
    "columns of nobody": {"logits_shard": torch.zeros(4, 15)},
}


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("change", SAMPLE_CHANGES)
def test_a_rank_that_differs_is_an_error_on_all(change, shared_memory):
    said = ranks.run(3, rank_programs.disagree, 1, SAMPLE_CHANGES[change], "sample", shared_memory=shared_memory)
    for rank, text in enumerate(said):
        if rank == 1 and "refused" in change:
            assert text.startswith("ValueError: masked_sample: temperature must be a finite number of at least 0")
            continue
        assert text.startswith(f"CollectiveError: [rank {rank}, step 1] sharded_masked_sample: ")
        assert "disagree on" in text or "must hold every column once" in text or "could not take part" in text
    verdicts = {text.partition("] ")[2] for text in said if text.startswith("CollectiveError")}
    assert len(verdicts) == 1


@pytest.mark.parametrize("changes", [{"num_rows": 4}, {"width": 6}, {"num_rows": 0}])
def test_masks_of_different_shapes_are_an_error_on_all(changes):
    said = ranks.run(3, rank_programs.disagree, 2, changes, "gather")
    assert all("all_gather_bitmask: ranks disagree on the" in text for text in said)


def test_a_rank_that_refuses_its_arguments_tells_the_others_why():
    changes = {"temperature": torch.ones(4, dtype=torch.float64)}
    said = ranks.run(3, rank_programs.disagree, 1, changes, "sample")
    assert said[1] == "ValueError: sharded_masked_sample: temperature must be float32, got float64"
    for rank in (0, 2):
        assert said[rank].startswith(f"CollectiveError: [rank {rank}, step 1] sharded_masked_sample: rank 1 could not")
        assert said[rank].endswith("sharded_masked_sample: temperature must be float32, got float64")


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("begins_inside", [True, False])
def test_inference_mode_may_come_and_go(begins_inside, shared_memory):
    ranks.run(2, rank_programs.go_in_and_out_of_inference_mode, begins_inside, shared_memory=shared_memory)


def test_a_file_that_is_no_segment_is_left_as_it_is(tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"fourteen bytes")
    with other.open("r+b") as file, pytest.raises(OSError, match="is not what it should be"):
        _Segment.open(f"/proc/self/fd/{file.fileno()}", 2, 7)
    assert other.read_bytes() == b"fourteen bytes"


def test_ranks_in_different_ops_are_told():
    said = ranks.run(2, rank_programs.call_different_ops)
    assert all("disagree on the exchange: all_gather_bitmask, sharded_masked_sample" in text for text in said)


def test_a_new_group_has_no_trace_of_one_that_was_destroyed(tmp_path):
    for said in ranks.run(2, rank_programs.start_again, str(tmp_path / "store")):
        assert len(said) == 1
        assert "there is no process group named '0'" in said[0]


def test_groups_do_not_disturb_each_other():
    assert ranks.run(3, rank_programs.use_two_groups) == [
        [[0, 1, 2], [0], [0, 2]],
        [[0, 1, 2], [1]],
        [[0, 1, 2], [2], [0, 2]],
    ]


def test_no_rows_are_no_special_case():
    assert ranks.run(2, rank_programs.gather_nothing) == [[[0, 7], [0], [0]]] * 2


def test_errors_name_the_group_that_is_not_there():
    with pytest.raises(ValueError, match="there is no process group named 'nonesuch'"):
        structout.all_gather_bitmask(torch.zeros(1, 1, dtype=torch.int32), "nonesuch")


def test_collective_errors_survive_pickling():
    error = copy.copy(CollectiveError("no", 1, 2, (3,)))  # by __reduce__, as pickle
    assert (str(error), error.rank, error.step, error.at_fault) == ("[rank 1, step 2] no", 1, 2, (3,))
