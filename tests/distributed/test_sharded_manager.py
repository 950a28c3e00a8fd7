"""ShardedManager in real process groups gives the masks of one manager."""

import pytest

from structout import ShardedManager, StructuredOutputManager
from support import manager_rank_programs, ranks
from support.locations import ROOT


@pytest.mark.parametrize(
    ("world_size", "num_requests", "shared_memory"),
    [(1, 8, True), (2, 16, True), (2, 16, False), (3, 9, True), (3, 9, False), (4, 5, True), (3, 2, True)],
)
def test_grammar_bitmask_on_many_ranks_equals_one_manager(world_size, num_requests, shared_memory):
    program = manager_rank_programs.compare_with_one_manager
    results = ranks.run(world_size, program, max(5, num_requests), world_size, shared_memory=shared_memory)
    assert all(result == results[0] for result in results)
    owners = results[0]["owners"]
    counts = [owners.count(rank) for rank in range(world_size)]
    assert max(counts) - min(counts) <= 6  # even, except for shared constraints, a fork and finished requests
    assert results[0]["rows"] > 0
    assert "a ( is not closed" in results[0]["error"]


DIFFERENCES = ["aborts", "draws another token", "asks for others", "waits for one", "waits for less time"]


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_grammar_bitmask_after_one_rank_diverged_raises_on_all(difference):
    messages = ranks.run(3, manager_rank_programs.diverge, 1, difference)
    for rank, text in enumerate(messages):
        assert text.startswith(f"[rank {rank}, step ")
        assert "grammar_bitmask: ranks disagree on the" in text


@pytest.mark.parametrize("shared_memory", [True, False])
def test_rank_that_was_interrupted_while_it_read_masks_gets_them_again(shared_memory):
    program = manager_rank_programs.break_a_step
    outcomes = ranks.run(3, program, 1, "is interrupted while it reads", shared_memory=shared_memory)
    assert outcomes[1][1].startswith("KeyboardInterrupt")
    assert outcomes[0][1] == outcomes[2][1] == "masks"
    for rank, outcome in enumerate(outcomes):
        assert outcome[2].startswith(f"CollectiveError: [rank {rank}, step ")
        assert "ranks [1] were interrupted in an earlier step and have missed masks" in outcome[2]
        assert [outcome[0], *outcome[3:]] == ["masks"] * 6


@pytest.mark.parametrize("shared_memory", [True, False])
def test_rank_that_raises_while_it_fills_raises_on_all_and_the_next_step_is_right(shared_memory):
    outcomes = ranks.run(3, manager_rank_programs.break_a_step, 1, "raises while it fills", shared_memory=shared_memory)
    assert outcomes[1][1] == "OSError: out of order"
    for rank in (0, 2):
        assert outcomes[rank][1].startswith("CollectiveError")
        assert "rank 1 failed at step" in outcomes[rank][1]
    assert all([outcome[0], *outcome[2:]] == ["masks"] * 7 for outcome in outcomes)


def test_rank_that_was_interrupted_while_it_filled_has_made_other_calls_than_the_rest():
    outcomes = ranks.run(2, manager_rank_programs.break_a_step, 1, "is interrupted while it fills", timeout=2)
    assert outcomes[1][1].startswith("KeyboardInterrupt")
    for outcome in (outcomes[0][1:], outcomes[1][2:]):
        assert all("ranks disagree on the calls so far" in text for text in outcome[:6])


def test_rank_that_dies_while_it_fills_raises_on_the_others():
    outcomes = ranks.collect_outcomes(
        3, manager_rank_programs.break_a_step, 1, "is killed while it fills", timeout=5, wait_for=(0, 2)
    )
    for rank in (0, 2):
        first, broken, *later = outcomes[rank].result
        assert first == "masks"
        assert "rank 1 has died or did not answer" in broken
        assert all("the group broke down earlier" in text for text in later)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_masks_stay_as_they_are_until_the_call_that_ends_their_time_on_every_rank(shared_memory):
    for slow_rank in (0, 1):
        results = ranks.run(2, manager_rank_programs.keep_masks, slow_rank, shared_memory=shared_memory)
        assert all(stale == [True] * (len(stale) - 2) + [False] * 2 for stale in results)


OPEN = "structout.distributed.shared_memory.SharedMemorySegment.open"


@pytest.mark.parametrize(
    ("failing_call", "failing_rank", "expected"),
    [("", -1, "SharedMasks"), ("os.posix_fallocate", 0, "MaskMessages"), (OPEN, 1, "MaskMessages")],
)
def test_masks_that_outgrow_their_memory_get_more_or_are_sent_and_leave_no_descriptors(
    failing_call, failing_rank, expected
):
    results = ranks.run(2, manager_rank_programs.grow, failing_call, failing_rank)
    assert [way for _, way in results] == [expected] * 2
    assert all(num_left <= 0 for num_left, _ in results)


def test_accept_batch_with_illegal_token_reports_it_on_all_ranks():
    results = ranks.run(2, manager_rank_programs.accept_illegal_token)
    assert results[0] == results[1]
    assert results[0][0] == {}
    assert list(results[0][1]) == ["a"]
    assert "does not allow the tokens" in results[0][1]["a"]


def test_add_request_keeps_equal_constraints_on_one_rank_within_the_imbalance_limit():
    (owners,) = {tuple(result) for result in ranks.run(2, manager_rank_programs.share_constraints)}
    different, equal = owners[:8], owners[8:]
    assert different == (0, 1) * 4  # each on the rank with the fewest requests
    assert equal.count(equal[0]) >= 5
    assert abs(owners.count(0) - owners.count(1)) <= 5


def test_is_terminated_while_thinking_is_false():
    for world_size in (1, 2):
        results = ranks.run(world_size, manager_rank_programs.report_termination_with_thinking)
        assert results == [[False, False, False, False, True, False]] * world_size


def test_errors_on_one_rank_are_reported_on_all():
    first, second = ranks.run(2, manager_rank_programs.fail_on_owner)
    assert first[0] == second[0] == "failed"
    assert first[1] == second[1] == "ValueError"
    assert {first[2], second[2]} == {"TypeError", "CollectiveError"}
    assert {first[3], second[3]} == {"AttributeError", "CollectiveError"}
    assert first[4] == second[4] == "StructOutError"
    assert first[5:] == second[5:]
    assert first[5].startswith("a: the request could not be rolled back: num_tokens must be in [0, 0], got 3")
    assert first[6].startswith("b: the grammar does not allow the tokens")
    assert first[7].startswith("forked: the grammar does not allow the tokens")
    assert first[8] == "ready"


def test_grammar_bitmask_and_grammar_bitmask_shard_in_one_step_raise():
    messages = ranks.run(2, manager_rank_programs.call_grammar_bitmask_on_one_rank_only)
    assert all("ranks disagree on the calls so far" in text for text in messages)


def test_fork_that_fails_on_its_owner_allows_no_token_on_any_rank():
    results = ranks.run(2, manager_rank_programs.fork_with_failing_owner)
    assert results[0] == results[1]
    assert results[0]["allows"] == [True, False]
    assert results[0]["errors"] == {"forked": "the request could not be forked: out of memory"}


def test_wait_all_and_answers_of_owners_equal_one_managers():
    for world_size in (1, 3):
        results = ranks.run(world_size, manager_rank_programs.wait_and_ask_owners)
        assert all(result == results[0] for result in results)
    answers = results[0]
    assert answers["num_tokens r0"] > 0
    assert answers["find_jump_forward_string r0"] == ""
    assert answers["weakened r3"] == ("#/pattern",)
    assert answers["annotations r4"] == ("#/format",)
    assert answers["backend_name r0"]
    assert not answers["backend_name r5"]
    assert " is not allowed; " in answers["refusal"]


def test_wait_all_raises_the_timeout_on_all_ranks_and_can_be_called_again():
    results = ranks.run(2, manager_rank_programs.wait_for_a_slow_compilation)
    message = "requests ['a'] are still compiling after {} s"
    assert results == [[message.format(0), message.format(0.2), "ready", "ready"]] * 2


def test_owner_that_fails_while_it_waits_or_answers_raises_on_all_ranks():
    first, second = ranks.run(2, manager_rank_programs.wait_and_ask_a_failing_owner)
    assert {first[0], second[0]} == {"StructOutError", "CollectiveError"}
    assert first[1:] == second[1:] == ["StructOutError: the manager was closed", "0"]


def test_sharded_manager_has_each_method_of_one_manager_or_the_docs_name_it():
    names, sharded_names = (
        {name for name in vars(manager) if not name.startswith("_")}
        for manager in (StructuredOutputManager, ShardedManager)
    )
    page = (ROOT / "docs" / "tensor_parallel.md").read_text()
    absent = page.partition("The other methods of `StructuredOutputManager`")[2].partition("\n\n")[0]
    assert [name for name in sorted(names - sharded_names) if f"`{name}`" not in absent] == []
    assert [name for name in sorted(sharded_names) if f"`{name}`" not in page] == []
