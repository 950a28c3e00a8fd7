"""Texts that end within the limits of vLLM's requests."""

import json
import re

import jsonschema
import pytest

pytest.importorskip("vllm")

from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from support.vllm_clients import SCHEMA
from support.vllm_engines import PROMPT, engine, finish_reasons, token_ids
from support.vllm_requests import CUT_OFF, NGRAM, greedy, structured

PATTERN = "(name|city): [a-z ]*; that is all[.!]*"
MAX_MODEL_LEN = 128


@pytest.fixture(scope="module")
def small(small_model):
    with engine(small_model, max_model_len=MAX_MODEL_LEN) as small:
        yield small
        assert small.num_held == 0


@pytest.fixture(scope="module", params=["scheduler", "worker", "scheduler drafts", "worker drafts"])
def running(small_model, request):
    arguments = {"speculative_config": NGRAM} if "drafts" in request.param else {}
    keeps_states = "worker" in request.param
    with engine(small_model, keeps_states=keeps_states, max_model_len=MAX_MODEL_LEN, **arguments) as running:
        assert (running.states is not None) == keeps_states
        yield running
        assert running.num_held == 0


@pytest.fixture(scope="module")
def num_needed(small):
    with pytest.raises(VLLMValidationError) as caught:
        small.generate([greedy(1, **structured(regex=PATTERN))])
    return int(re.search(r"needs at least (\d+) tokens, max_tokens is 1", str(caught.value))[1])


def requests(num_needed):
    """Requests whose texts would be longer."""
    return [
        SamplingParams(seed=seed, max_tokens=num_needed + spare, **structured(regex=PATTERN), **arguments)
        for seed, spare in enumerate((0, 1, 2, 5, 9, 20))
        for arguments in ({}, {"temperature": 0}, {"n": 2, "top_p": 0.9})
    ]


def check(outputs, params):
    assert finish_reasons(outputs) == [["stop"] * each.n for each in params]
    for output, each in zip(outputs, params, strict=True):
        for completion in output.outputs:
            assert re.fullmatch(PATTERN, completion.text)
            assert len(completion.token_ids) <= each.max_tokens


def test_texts_end_within_max_tokens_wherever_the_states_are(running, small, num_needed):
    params = requests(num_needed)
    outputs = running.generate(params, PROMPT)
    check(outputs, params)
    assert token_ids(outputs) == token_ids(small.generate(params, PROMPT))


def test_texts_end_within_the_length_of_the_model(running, num_needed):
    num_prompt_tokens = MAX_MODEL_LEN - num_needed - 3
    params = [SamplingParams(seed=seed, max_tokens=400, **structured(regex=PATTERN)) for seed in range(4)]
    outputs = running.generate(params, "x" * num_prompt_tokens)
    assert len(outputs[0].prompt_token_ids) == num_prompt_tokens
    check(outputs, params)
    assert max(len(output.outputs[0].token_ids) for output in outputs) > num_needed


def test_preempted_texts_end_within_max_tokens(running, small, num_needed):
    params = [each for each in requests(num_needed) if each.n == 1]
    ids = [running.add(each, PROMPT) for each in params]
    outputs = {}
    while not running.is_idle:
        outputs |= {output.request_id: output for output in running.step(6)}
        running.llm.llm_engine.reset_prefix_cache(reset_running_requests=True)
    check([outputs[request_id] for request_id in ids], params)
    assert token_ids([outputs[request_id] for request_id in ids]) == token_ids(small.generate(params, PROMPT))


def test_json_ends_within_max_tokens(running):
    params = [SamplingParams(seed=seed, max_tokens=32, **structured(json=SCHEMA)) for seed in range(8)]
    outputs = running.generate(params)
    assert finish_reasons(outputs) == [["stop"]] * len(params)
    for output in outputs:
        jsonschema.validate(json.loads(output.outputs[0].text), SCHEMA)


@pytest.mark.parametrize("options", [CUT_OFF, {"ignore_eos": True}, {"min_tokens": 9}], ids=str)
def test_texts_without_a_limit_of_their_own_are_cut_off(small, options):
    outputs = small.generate([greedy(9, **structured(regex="[a-z ]{60,}"), **options)])
    assert finish_reasons(outputs) == [["length"]]
    assert len(outputs[0].outputs[0].token_ids) == 9


def test_a_prompt_that_leaves_too_little_of_the_models_length_ends_its_request_with_an_error(small, num_needed):
    params = greedy(400, **structured(regex=PATTERN))
    outputs = small.generate([params, greedy(3)], "x" * (MAX_MODEL_LEN - num_needed + 1))
    assert finish_reasons(outputs) == [["error"], ["length"]]
