"""Asynchronous scheduling: a step starts before the last one's tokens are known."""

import pytest

pytest.importorskip("vllm")

from support.vllm_engines import engine, finish_reasons, token_ids
from support.vllm_requests import (
    LETTERS,
    check_dead_ends,
    check_preempted_requests,
    every_kind,
    greedy,
    letters_of,
    seeded_kinds,
    structured,
)


@pytest.fixture(scope="module")
def synchronous(small_model):
    with engine(small_model) as synchronous:
        yield synchronous


@pytest.fixture(scope="module")
def running(small_model):
    with engine(small_model, is_async=True, block_size=32, num_gpu_blocks_override=20) as running:
        yield running


@pytest.fixture(autouse=True)
def no_request_is_left(running):
    yield
    running.assert_empty()


def test_texts_of_every_kind_are_those_of_synchronous_scheduling(running, synchronous):
    kinds = every_kind(synchronous) | {f"seeded, {name}": params for name, params in seeded_kinds().items()}
    expected = synchronous.generate(list(kinds.values()))
    outputs = running.generate(list(kinds.values()))
    assert dict(zip(kinds, token_ids(outputs), strict=True)) == dict(zip(kinds, token_ids(expected), strict=True))
    assert finish_reasons(outputs) == finish_reasons(expected)


def test_logprobs_are_those_of_synchronous_scheduling(running, synchronous):
    requests = [greedy(12, logprobs=3), greedy(12, logprobs=3, **structured(regex=LETTERS), **{"presence_penalty": 1})]
    for output, expected in zip(running.generate(requests), synchronous.generate(requests), strict=True):
        for ours, theirs in zip(output.outputs[0].logprobs, expected.outputs[0].logprobs, strict=True):
            assert {t: (e.rank, pytest.approx(e.logprob, abs=1e-4)) for t, e in theirs.items()} == {
                t: (e.rank, e.logprob) for t, e in ours.items()
            }


def test_preempted_requests_draw_what_they_draw_alone(running, synchronous):
    check_preempted_requests(running, synchronous)


def test_a_dead_end_ends_its_request_with_an_error_and_no_other(running):
    check_dead_ends(running)


def test_a_dead_end_with_penalties_leaves_the_step_in_flight_alone(running):
    a, b = letters_of(running, "ab")
    dead = greedy(20, **structured(regex="ab[xy]"), allowed_token_ids=[a, b], frequency_penalty=1.0, bad_words=["zz"])
    goes_on = greedy(40, frequency_penalty=1.0, bad_words=["zz"], ignore_eos=True)
    expected = token_ids(running.generate([goes_on]))
    outputs = running.generate([dead, goes_on, dead])
    assert finish_reasons(outputs) == [["error"], ["length"], ["error"]]
    assert token_ids(outputs[1:2]) == expected


def test_aborted_requests_leave_nothing(running):
    params = greedy(200, **structured(regex="[a-z ]{150,}"))
    ids = [running.add(params) for _ in range(4)]
    running.abort(ids[0])
    while not running.manager.structout.stats().ready:
        running.step()
    for request_id in ids[1:]:
        running.step(3)
        running.abort(request_id)
    while not running.is_idle:
        running.step()
    running.step()  # the one in flight
