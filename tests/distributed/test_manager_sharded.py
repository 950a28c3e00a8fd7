"""ShardedManager in real process groups: the masks of one manager with all requests, filled by many."""

import manager_rank_programs
import pytest
import ranks


@pytest.mark.parametrize(("world_size", "num_requests"), [(1, 7), (2, 14), (3, 9), (4, 5), (3, 2)])
def test_masks_are_those_of_one_manager(world_size, num_requests):
    results = ranks.run(world_size, manager_rank_programs.serve_together, max(5, num_requests), world_size)
    assert all(result == results[0] for result in results)
    owners = results[0]["owners"]
    counts = [owners.count(rank) for rank in range(world_size)]
    assert max(counts) - min(counts) <= 6  # evenly, but for those that share a constraint, a fork, and who finished
    assert results[0]["rows"] > 0
    assert "unclosed" in results[0]["error"] or "parenthes" in results[0]["error"], results[0]["error"]


@pytest.mark.parametrize("difference", ["aborts", "draws another token", "asks for others"])
def test_a_rank_that_goes_its_own_way_is_an_error_on_all(difference):
    said = ranks.run(3, manager_rank_programs.serve_apart, 1, difference)
    for rank, text in enumerate(said):
        assert text.startswith(f"[rank {rank}, step ")
        assert "grammar_bitmask: ranks disagree on the" in text


def test_tokens_that_a_grammar_refuses_are_told_to_all():
    results = ranks.run(2, manager_rank_programs.refuse_tokens)
    assert results[0] == results[1]
    assert results[0][0] == {}
    assert list(results[0][1]) == ["a"]
    assert "does not allow the tokens" in results[0][1]["a"]


def test_requests_of_one_constraint_stay_together_within_reason():
    (owners,) = {tuple(result) for result in ranks.run(2, manager_rank_programs.share_constraints)}
    different, equal = owners[:8], owners[8:]
    assert different == (0, 1) * 4  # each to the rank with the fewest
    assert equal.count(equal[0]) >= 5
    assert abs(owners.count(0) - owners.count(1)) <= 5


def test_thinking_is_not_the_end_of_a_text():
    for world_size in (1, 2):
        seen = ranks.run(world_size, manager_rank_programs.think_first)
        assert seen == [[False, False, False, False, True, False]] * world_size


def test_what_goes_wrong_on_one_rank_is_told_to_all():
    first, second = ranks.run(2, manager_rank_programs.err_on_one_rank)
    assert first[0] == second[0] == "failed"
    assert first[1] == second[1] == "ValueError"
    assert {first[2], second[2]} == {"TypeError", "CollectiveError"}
    assert first[3] == second[3] == "StructOutError"
    assert first[4:] == second[4:]
    assert first[4].startswith("a: it could not be rolled back: num_tokens must be in [0, 0], got 3")
    assert first[5].startswith("b: the grammar does not allow the tokens")
    assert first[6].startswith("forked: the grammar does not allow the tokens")
    assert first[7] == "ready"


def test_whole_masks_and_shards_of_them_are_not_mixed():
    assert all(
        "ranks disagree on the calls so far" in text for text in ranks.run(2, manager_rank_programs.mix_whole_and_shard)
    )
