"""Speculative decoding: n-gram drafts and jump-forward change no text."""

import time

import pytest

pytest.importorskip("vllm")

from vllm import SamplingParams

from support.vllm_engines import PROMPT, engine, finish_reasons, texts, token_ids, vllm_sampler
from support.vllm_requests import (
    CUT_OFF,
    JUMP_FORWARD,
    LETTERS,
    NGRAM,
    SCHEMA,
    check_dead_ends,
    check_preempted_requests,
    every_kind,
    greedy,
    letters_of,
    seeded_kinds,
    structured,
)

LONG_NAMES = {
    "type": "object",
    "properties": {"nameOfTheCustomer": {"enum": ["Ada", "Bob"]}, "numberOfItemsOrdered": {"enum": [10, 20]}},
    "required": ["nameOfTheCustomer", "numberOfItemsOrdered"],
    "additionalProperties": False,
}
REPEATING = " ".join([PROMPT] * 4)


@pytest.fixture(scope="module")
def ngram(small_model):
    with engine(small_model, speculative_config=NGRAM, block_size=32, num_gpu_blocks_override=18) as ngram:
        yield ngram
        assert ngram.num_held == 0


@pytest.fixture(scope="module")
def ngram_in_worker(small_model):
    arguments = {"speculative_config": NGRAM, "block_size": 32, "num_gpu_blocks_override": 18}
    with engine(small_model, keeps_states=True, **arguments) as ngram_in_worker:
        assert ngram_in_worker.states is not None
        yield ngram_in_worker
        ngram_in_worker.step(2)
        assert ngram_in_worker.num_held == ngram_in_worker.states.num_requests == 0


@pytest.fixture(params=["ngram", "ngram_in_worker"])
def drafting(request):
    """An engine whose scheduler or whose worker keeps the states of grammars."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def jumping(small_model):
    with engine(small_model, speculative_config=JUMP_FORWARD) as jumping:
        yield jumping
        assert jumping.num_held == 0


def steps_of(engine, params, prompt=PROMPT):
    """The number of steps of a single request, and its output."""
    engine.add(params, prompt)
    while engine.manager.structout.stats().waiting:
        time.sleep(0.001)
    num_steps = 0
    while True:
        num_steps += 1
        for output in engine.step():
            return num_steps, output


@pytest.mark.parametrize("name", ["ngram", "ngram_in_worker", "jumping"])
def test_texts_of_every_kind_are_those_without_drafts(name, plain, request):
    drafting = request.getfixturevalue(name)
    kinds = every_kind(plain) | {f"seeded, {name}": params for name, params in seeded_kinds().items()}
    # vLLM refuses these with drafts.
    kinds = {name: params for name, params in kinds.items() if not params.logit_bias and not params.min_p}
    expected = plain.generate(list(kinds.values()), REPEATING)
    outputs = drafting.generate(list(kinds.values()), REPEATING)
    assert dict(zip(kinds, token_ids(outputs), strict=True)) == dict(zip(kinds, token_ids(expected), strict=True))
    assert finish_reasons(outputs) == finish_reasons(expected)


def test_preempted_requests_with_drafts_draw_what_they_draw_alone(plain, drafting):
    check_preempted_requests(drafting, plain)


@pytest.mark.parametrize("arguments", [{}, {"frequency_penalty": -2.0, "bad_words": ["c"]}], ids=str)
def test_repeated_text_is_drafted_and_accepted(plain, drafting, arguments):
    params = greedy(80, **structured(regex="(ab|cd){20,30}!"), **arguments)
    num_steps, output = steps_of(drafting, params)
    (expected,) = plain.generate([params])
    assert output.outputs[0].token_ids == expected.outputs[0].token_ids
    assert num_steps < 0.7 * len(output.outputs[0].token_ids)


def test_seeded_draws_with_filters_accept_drafts(plain, drafting):
    params = SamplingParams(seed=3, top_k=2, temperature=0.3, max_tokens=80, **structured(regex="(ab){20,30}!"))
    num_steps, output = steps_of(drafting, params)
    (expected,) = plain.generate([params])
    assert output.outputs[0].token_ids == expected.outputs[0].token_ids
    assert num_steps < 0.7 * len(output.outputs[0].token_ids)


@pytest.mark.parametrize("num_logprobs", [0, 3, -1])
def test_logprobs_of_drafted_tokens_are_those_without_drafts(plain, drafting, num_logprobs):
    requests = [
        greedy(20, logprobs=num_logprobs, **structured(regex="(ab|cd){20,30}!"), **CUT_OFF),
        greedy(20, logprobs=num_logprobs, presence_penalty=1.0),
        greedy(20),
    ]
    for output, expected in zip(drafting.generate(requests), plain.generate(requests), strict=True):
        ours, theirs = (each.outputs[0].logprobs for each in (output, expected))
        assert (ours is None) == (theirs is None)
        for step, expected_step in zip(ours or (), theirs or (), strict=True):
            finite = {t: (e.rank, pytest.approx(e.logprob, abs=1e-4)) for t, e in expected_step.items() if e.rank < 20}
            assert {t: (step[t].rank, step[t].logprob) for t in finite} == finite


@pytest.mark.parametrize("name", ["ngram", "ngram_in_worker", "jumping"])
def test_a_dead_end_ends_its_request_with_an_error_and_no_other(name, request):
    check_dead_ends(request.getfixturevalue(name))


def test_a_dead_end_after_accepted_drafts_keeps_their_text(drafting):
    a, b = letters_of(drafting, "ab")
    params = greedy(80, **structured(regex="(ab){20}z"), allowed_token_ids=[a, b], logprobs=2)
    num_steps, output = steps_of(drafting, params)
    (completion,) = output.outputs
    assert (completion.text, completion.finish_reason) == ("ab" * 20, "error")
    assert len(completion.logprobs) == len(completion.token_ids)
    assert num_steps < 0.7 * len(completion.token_ids)
    assert drafting.num_held == 0


def test_the_sampler_changes_between_steps_with_drafts(plain, ngram):
    params = greedy(60, **structured(regex="(ab|cd){20,30}!"))
    expected = texts(plain.generate([params]))
    ngram.add(params)
    ngram.step(6)
    with vllm_sampler():
        ngram.step(6)
    (output,) = ngram.run().values()
    assert texts([output]) == expected


def test_a_request_aborted_between_drafts_leaves_nothing(drafting):
    ids = [drafting.add(greedy(200, **structured(regex="(ab|cd){60,}"))) for _ in range(3)]
    drafting.step(10)
    drafting.abort(*ids)
    drafting.step()
    assert drafting.num_held == 0


def test_jumping_forward_takes_fewer_steps(plain, jumping):
    params = greedy(120, **structured(json=LONG_NAMES))
    num_steps, output = steps_of(jumping, params)
    expected_steps, expected = steps_of(plain, params)
    assert output.outputs[0].text == expected.outputs[0].text
    assert output.outputs[0].token_ids == expected.outputs[0].token_ids
    assert num_steps < 0.6 * expected_steps


def test_jumping_forward_beside_free_requests_takes_them_as_they_are(plain, jumping):
    requests = [
        greedy(40),
        SamplingParams(seed=1, max_tokens=60, **structured(json=SCHEMA)),
        greedy(120, **structured(json=LONG_NAMES)),
        greedy(40, **structured(regex=LETTERS), logprobs=2),
        SamplingParams(seed=2, max_tokens=120, **structured(json=LONG_NAMES), top_k=5, **{"presence_penalty": 0.5}),
    ]
    assert token_ids(jumping.generate(requests)) == token_ids(plain.generate(requests))
