"""Tool calls through vLLM's HTTP server: what its parsers return is what was generated,
and valid."""

import asyncio
import json
import time

import pytest

pytest.importorskip("vllm")

import httpx
import jsonschema
from transformers import AutoTokenizer

from support.tool_calls import TEN
from support.tool_requests import BEGINS, MAX_TOKENS, ask, problems_of, tool_request
from support.vllm_tool_servers import save_tool_model, tool_servers

# Markers that are tokens with a text, tokens beside the text, and text alone.
PARSERS = ("hermes", "qwen3_coder", "kimi_k2", "minimax_m2")
NUM_SEEDS = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tool_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tokenizer(model):
    return AutoTokenizer.from_pretrained(model)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return tmp_path_factory.mktemp("servers") / "log"


@pytest.fixture(scope="module")
def urls(model, log):
    with tool_servers(model, PARSERS, log) as urls:
        yield urls
        assert "EngineDeadError" not in log.read_text()


def answers_to(url, *bodies):
    """The answers to requests that are sent at once, each of them in one piece and as a
    stream."""

    async def run():
        async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=64)) as client:
            sent = [ask(client, url, body, is_stream=is_stream) for body in bodies for is_stream in (False, True)]
            return await asyncio.gather(*sent)

    answers = asyncio.run(run())
    return [*zip(answers[::2], answers[1::2], strict=True)]


def is_whole(answer):
    return len(answer.token_ids) < MAX_TOKENS


def read(calls):
    return [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("choice", ["auto", "required", "book"])
def test_what_a_client_gets_is_valid_and_the_same_streamed_or_not(urls, tokenizer, parser, choice):
    cases = [(seed, thinks) for seed in range(NUM_SEEDS) for thinks in (False, True)]
    bodies = [tool_request(tokenizer, parser, TEN, choice, seed, thinks=thinks) for seed, thinks in cases]
    num_calls = num_reasonings = 0
    for (_, thinks), (whole, streamed) in zip(cases, answers_to(urls[parser], *bodies), strict=True):
        assert (whole.status, streamed.status) == (200, 200), (whole.error, streamed.error)
        assert streamed.token_ids == whole.token_ids
        if not is_whole(whole):
            continue
        for answer in (whole, streamed):
            assert problems_of(answer, parser, TEN, tokenizer) == []
        assert read(streamed.calls) == read(whole.calls)
        # Some parsers leave out what comes after a call, but not of a stream.
        assert streamed.content.strip().startswith(whole.content.strip())
        assert streamed.reasoning.strip() == whole.reasoning.strip()
        names = [name for name, _ in whole.calls]
        if choice == "required":
            assert names
        elif choice != "auto":
            assert names == [choice]
        num_calls += len(names)
        num_reasonings += bool(whole.reasoning)
        assert thinks or not whole.reasoning
    assert num_calls > 0
    assert num_reasonings > 0


@pytest.mark.parametrize("parser", PARSERS[:2])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_one_call_at_most_without_parallel_calls(urls, tokenizer, parser, choice):
    bodies = [tool_request(tokenizer, parser, TEN, choice, seed) for seed in range(NUM_SEEDS)]
    answers = answers_to(urls[parser], *(body | {"parallel_tool_calls": False} for body in bodies))
    counts = {len(answer.calls) for pair in answers for answer in pair if is_whole(answer)}
    assert counts <= {0, 1}
    assert 1 in counts


@pytest.mark.parametrize("parser", PARSERS[:3])
def test_beside_a_response_format_an_answer_is_calls_or_a_value_of_it(urls, tokenizer, parser):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    format_of = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    begins = [str(tokenizer.convert_tokens_to_ids(token)) for token in ("{", BEGINS[parser][1])]
    options = {"response_format": format_of, "parallel_tool_calls": False}
    bodies = [tool_request(tokenizer, parser, TEN, "auto", seed) | options for seed in range(NUM_SEEDS)]
    bodies = [body | {"logit_bias": body["logit_bias"] | {begin: 40.0}} for body in bodies for begin in begins]
    num_values = num_calls = 0
    for whole, streamed in answers_to(urls[parser], *bodies):
        assert (whole.status, streamed.status) == (200, 200), (whole.error, streamed.error)
        if not is_whole(whole):
            continue
        assert problems_of(whole, parser, TEN, tokenizer) == problems_of(streamed, parser, TEN, tokenizer) == []
        if not whole.calls:
            jsonschema.validate(json.loads(whole.content), schema)
            assert json.loads(streamed.content) == json.loads(whole.content)
        num_values += not whole.calls
        num_calls += bool(whole.calls)
    assert num_values > 0
    assert num_calls > 0


@pytest.mark.parametrize("parser", PARSERS[:2])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_bad_schema_is_answered_with_400_and_its_place(urls, tokenizer, parser, choice):
    bad = {"type": "object", "properties": {"age": {"type": "string", "pattern": "(a"}}}
    body = tool_request(tokenizer, parser, TEN | {"seven": bad}, choice, 0)
    for answer in answers_to(urls[parser], body)[0]:
        assert answer.status == 400
        assert "json_schema/properties/age/pattern" in answer.error
        assert "a ( is not closed" in answer.error


def test_what_fails_after_the_frontend_is_logged_with_its_reason(urls, tokenizer, log):
    body = {"model": "small", "prompt": "a", "structured_outputs": {"grammar": "root ::= <no_such_token>"}}
    response = httpx.post(f"{urls['hermes']}/v1/completions", json=body, timeout=120)
    assert response.status_code >= 400
    deadline = time.monotonic() + 60
    while "no special token <no_such_token>" not in response.text + log.read_text():
        assert time.monotonic() < deadline, response.text
        time.sleep(0.2)
