"""Draws of model runner V1 beside those of vLLM's own sampler, in the same engine."""

import json
import math
import re

import pytest

pytest.importorskip("vllm")

from vllm import SamplingParams

from support.vllm_engines import engine, finish_reasons, texts, token_ids, vllm_sampler
from support.vllm_requests import LETTERS, SCHEMA, every_kind, greedy, seeded_kinds, structured


@pytest.fixture(scope="module")
def running(small_model):
    with engine(small_model) as running:
        yield running
        assert running.num_held == 0


def test_greedy_tokens_with_each_parameter_equal_those_of_vllms_sampler(running):
    kinds = every_kind(running)
    outputs = running.generate(list(kinds.values()))
    with vllm_sampler():
        expected = running.generate(list(kinds.values()))
    assert dict(zip(kinds, token_ids(outputs), strict=True)) == dict(zip(kinds, token_ids(expected), strict=True))
    assert finish_reasons(outputs) == finish_reasons(expected)
    ids = {name: ids[0] for name, ids in zip(kinds, token_ids(outputs), strict=True)}
    for name in kinds.keys() - {"nothing"}:
        is_cut = "stop" in name
        assert is_cut or ids[name] != ids["nothing"][: len(ids[name])], name


def test_a_greedy_request_draws_the_same_tokens_alone(running):
    kinds = every_kind(running)
    together = dict(zip(kinds, token_ids(running.generate(list(kinds.values()))), strict=True))
    for name in ("all penalties", "bad words", "regex, minimum", "json"):
        assert token_ids(running.generate([kinds[name]])) == [together[name]], name


def assert_same_logprobs(outputs, expected):
    """Compare the logprobs of all tokens that are possible. Of equally likely tokens
    any may be in a list."""
    for output, expected_output in zip(outputs, expected, strict=True):
        steps = output.outputs[0].logprobs, expected_output.outputs[0].logprobs
        assert len(steps[0]) == len(steps[1])
        for drawn, ours, theirs in zip(output.outputs[0].token_ids, *steps, strict=True):
            assert ours[drawn].rank == theirs[drawn].rank
            values = [
                {token: entry.logprob for token, entry in step.items() if entry.logprob > -math.inf}
                for step in (ours, theirs)
            ]
            assert len(values[0]) == len(values[1])
            smallest = min(values[1].values())
            for token in values[0].keys() ^ values[1].keys():
                assert (values[0] | values[1])[token] == pytest.approx(smallest, abs=1e-4)
            for token in values[0].keys() & values[1].keys():
                assert values[0][token] == pytest.approx(values[1][token], abs=1e-4)
                if values[1][token] > smallest:
                    assert ours[token].rank == theirs[token].rank


@pytest.mark.parametrize("num_logprobs", [0, 1, 5, 64, 65, 200, -1])
def test_logprobs_and_ranks_equal_those_of_vllms_sampler(running, num_logprobs):
    requests = [
        greedy(12, logprobs=num_logprobs),
        greedy(12),
        greedy(12, logprobs=num_logprobs, repetition_penalty=1.5, logit_bias={40: 9.0}, bad_words=["a"]),
        greedy(12, logprobs=num_logprobs, **structured(regex=LETTERS), presence_penalty=1.0),
        greedy(12, logprobs=min(num_logprobs, 1), **structured(json=SCHEMA)),
        greedy(12, logprobs=num_logprobs, **structured(choice=["red", "green"]), min_tokens=2),
        greedy(12, logprobs=num_logprobs, prompt_logprobs=2, allowed_token_ids=[40, 41, 42, 43]),
    ]
    outputs = running.generate(requests)
    with vllm_sampler():
        expected = running.generate(requests)
    assert token_ids(outputs) == token_ids(expected)
    assert outputs[1].outputs[0].logprobs is None
    with_logprobs = [0, 2, 3, 4, 5, 6]
    assert_same_logprobs([outputs[i] for i in with_logprobs], [expected[i] for i in with_logprobs])
    assert len(outputs[6].prompt_logprobs) == len(expected[6].prompt_logprobs) > 1


def test_logprobs_of_named_tokens_equal_those_of_vllms_sampler(running):
    requests = [
        greedy(12, logprob_token_ids=[40, 41, 300]),
        greedy(12, logprob_token_ids=[42], **structured(regex=LETTERS)),
        greedy(12),
    ]
    outputs = running.generate(requests)
    with vllm_sampler():
        expected = running.generate(requests)
    assert token_ids(outputs) == token_ids(expected)
    assert_same_logprobs(outputs[:2], expected[:2])


def test_listed_logprobs_beside_full_ones_equal_those_of_vllms_sampler(running):
    requests = [greedy(8, logprobs=-1), greedy(8, logprobs=3), greedy(8, logprobs=3, **structured(regex=LETTERS))]
    outputs = running.generate(requests)
    with vllm_sampler():
        expected = running.generate(requests)
    assert_same_logprobs(outputs, expected)


def test_each_token_of_a_list_of_logprobs_is_another_one(running):
    (output,) = running.generate([greedy(logprobs=5, **structured(choice=["red", "green"]))])
    for drawn, step in zip(output.outputs[0].token_ids, output.outputs[0].logprobs, strict=True):
        assert step[drawn].logprob > -math.inf
        assert len(step) == 5


@pytest.mark.parametrize(
    ("filters", "is_kept"),
    [
        ({"top_k": 3}, lambda logprobs, drawn: sum(value > logprobs[drawn] for value in logprobs.values()) < 3),
        (
            {"top_p": 0.6},
            lambda logprobs, drawn: (
                sum(math.exp(value) for value in logprobs.values() if value > logprobs[drawn]) < 0.6 + 1e-4
            ),
        ),
        (
            {"min_p": 0.2},
            lambda logprobs, drawn: logprobs[drawn] >= max(logprobs.values()) + math.log(0.2) - 1e-4,
        ),
    ],
    ids=["top_k", "top_p", "min_p"],
)
@pytest.mark.parametrize("constraint", [{}, {"regex": LETTERS}], ids=["free", "regex"])
def test_filtered_draws_are_among_the_tokens_that_the_filter_keeps(running, filters, is_kept, constraint):
    arguments = structured(**constraint) if constraint else {}
    filtered = SamplingParams(seed=1, max_tokens=10, logprobs=-1, n=4, **filters, **arguments)
    free = SamplingParams(seed=1, max_tokens=10, logprobs=-1, n=4, **arguments)
    kept = {}
    for output, name in zip(running.generate([filtered, free]), ("filtered", "free"), strict=True):
        steps = [(c.token_ids[i], step) for c in output.outputs for i, step in enumerate(c.logprobs)]
        kept[name] = [is_kept({t: e.logprob for t, e in step.items()}, drawn) for drawn, step in steps]
    assert all(kept["filtered"])
    assert not all(kept["free"])


def test_seeded_requests_draw_the_same_tokens_in_another_batch(running):
    seeded = list(seeded_kinds().values())
    others = [SamplingParams(max_tokens=20), SamplingParams(max_tokens=40, **structured(regex=LETTERS)), greedy(10)]
    first = token_ids(running.generate(seeded))
    assert token_ids(running.generate([*others, *seeded], reverse=True))[3:] == first
    for params, expected in zip(seeded, first, strict=True):
        assert token_ids(running.generate([params])) == [expected]
    assert first[0] != first[1]
    assert len({tuple(ids) for ids in first[-1]}) == 3  # vLLM gives each of the n a seed


def test_unseeded_requests_draw_different_tokens(running):
    requests = [SamplingParams(max_tokens=20)] * 4 + [SamplingParams(max_tokens=20, n=4)]
    drawn = [ids for group in token_ids(running.generate(requests)) for ids in group]
    assert len({tuple(ids) for ids in drawn}) == 8
    assert token_ids(running.generate(requests[:1]))[0] != [drawn[0]]


def test_draws_have_the_probabilities_of_the_logits(running):
    num_draws = 2000
    bias, temperature = {40: 6.0, 300: 5.0}, 1.3
    (exact,) = running.generate([greedy(1, logprobs=-1)])
    logprobs = {token: entry.logprob for token, entry in exact.outputs[0].logprobs[0].items()}
    weights = {token: math.exp((value + bias.get(token, 0)) / temperature) for token, value in logprobs.items()}
    total = sum(weights.values())
    (output,) = running.generate(
        [SamplingParams(n=num_draws, max_tokens=1, temperature=temperature, logit_bias=bias, seed=3)]
    )
    counts = dict.fromkeys(weights, 0)
    for completion in output.outputs:
        counts[completion.token_ids[0]] += 1
    frequent = [token for token in weights if weights[token] / total * num_draws >= 10]
    assert len(frequent) > 10
    expected = [weights[token] / total * num_draws for token in frequent]
    observed = [counts[token] for token in frequent]
    expected.append(num_draws - sum(expected))
    observed.append(num_draws - sum(observed))
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    # 6 standard deviations of a chi-square with as many degrees of freedom
    assert statistic < len(frequent) + 6 * math.sqrt(2 * len(frequent))


def test_texts_of_random_requests_satisfy_their_constraints(running):
    constraints = [
        ({"regex": LETTERS}, lambda text: re.fullmatch(LETTERS, text)),
        ({"json": SCHEMA}, lambda text: json.loads(text)["b"] in ("x", "y")),
        ({"choice": ["red", "green"]}, lambda text: text in ("red", "green")),
        ({"regex": "(yes|no), [0-9]{3}"}, lambda text: re.fullmatch("(yes|no), [0-9]{3}", text)),
    ]
    arguments = [
        {"n": 3},
        {"top_k": 4, "frequency_penalty": 0.5},
        {"top_p": 0.8, "logprobs": 2, "logit_bias": {40: 4.0}},
        {"min_p": 0.1, "seed": 3, "temperature": 1.5},
        {"bad_words": ["de", "4"], "repetition_penalty": 1.2},
    ]
    cases = [(constraint, check, extra) for constraint, check in constraints for extra in arguments]
    requests = [SamplingParams(max_tokens=150, **structured(**constraint), **extra) for constraint, _, extra in cases]
    for (constraint, check, _), output in zip(cases, running.generate(requests), strict=True):
        for completion in output.outputs:
            if completion.finish_reason == "stop":
                assert check(completion.text), (constraint, completion.text)
            else:
                assert "json" in constraint  # an integer has any number of digits
    assert texts(running.generate(requests[:1])) != [[]]
