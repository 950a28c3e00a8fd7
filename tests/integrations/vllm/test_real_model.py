"""Texts of SmolLM2-135M-Instruct: they have the right values, and are the same with
states in the workers, with drafts, in smaller batches, with xgrammar's masks, over HTTP
and in streams."""

import asyncio
import json
import math
import subprocess
import sys

import pytest

pytest.importorskip("vllm")

import httpx

from support.locations import ROOT
from support.real_model_cases import CALLS, CASES, OFFLINE, TOOLS, messages_of, prompt_of
from support.tool_requests import ask
from support.vllm_clients import serving
from support.vllm_engines import engine, finish_reasons, texts, token_ids
from support.vllm_requests import NGRAM, greedy, structured

MAX_TOKENS = 64
# This parser reads whether a model thinks from the request.
ONLINE = ("--reasoning-parser", "qwen3", "--default-chat-template-kwargs", '{"enable_thinking": false}')
ONLINE += ("--num-gpu-blocks-override", "64")


CALLED = {
    "What is 17 plus 25?": ("add", {"a": 17, "b": 25}),
    "What is the weather in Paris?": ("get_weather", {"city": "Paris"}),
}


def generate(running, names=CASES):
    """Generate the texts of cases in one batch."""
    cases = [CASES[name] for name in names]
    prompts = [prompt_of(running.tokenizer, case) for case in cases]
    constraints = [structured(**case.constraint) if case.constraint else {} for case in cases]
    return running.generate([greedy(MAX_TOKENS, logprobs=2, **constraint) for constraint in constraints], prompts)


def read(text):
    """The object that a text is, or else the text."""
    return json.loads(text) if text.startswith("{") else text


@pytest.fixture(scope="module")
def running(real_model):
    """An engine whose scheduler keeps the states of grammars."""
    with engine(real_model, **OFFLINE) as running:
        yield running
        assert running.num_held == 0


@pytest.fixture(scope="module")
def expected(running):
    """The outputs of all cases in one batch, by name."""
    return dict(zip(CASES, generate(running), strict=True))


@pytest.fixture(scope="module")
def drafting(real_model):
    """An engine whose worker keeps the states of grammars."""
    with engine(real_model, keeps_states=True, speculative_config=NGRAM, **OFFLINE) as drafting:
        assert drafting.states is not None
        yield drafting
        drafting.step(2)
        assert drafting.num_held == drafting.states.num_requests == 0


@pytest.fixture(scope="module")
def server(real_model, tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(real_model, log, *ONLINE, keeps_states=True) as (url, _):
        yield url


@pytest.mark.parametrize("name", CASES)
def test_text_has_the_right_values(expected, name):
    (completion,) = expected[name].outputs
    reasoning, _, answer = completion.text.rpartition("</think>")
    assert (reasoning, read(answer)) == (CASES[name].reasoning, CASES[name].answer)
    assert completion.finish_reason == "stop"


def test_no_token_is_drawn_by_a_rounding_error(expected):
    """The likeliest token always leads by 0.05 nats, so that sums in another order
    choose it, too, and texts can be compared."""
    for name, output in expected.items():
        for drawn, step in zip(output.outputs[0].token_ids, output.outputs[0].logprobs, strict=True):
            others = max((entry.logprob for token, entry in step.items() if token != drawn), default=-math.inf)
            assert step[drawn].logprob > others + 0.05, name


def test_texts_with_states_in_the_worker_and_drafts_are_the_same(drafting, expected):
    outputs = generate(drafting)
    assert token_ids(outputs) == token_ids(expected.values())
    assert finish_reasons(outputs) == finish_reasons(expected.values())
    metrics = {metric.name: metric for metric in drafting.llm.get_metrics()}
    assert metrics["vllm:spec_decode_num_accepted_tokens"].value > 10


def test_texts_of_requests_that_are_alone_are_the_same(running, expected):
    for name in ("query", "reasoning"):
        assert token_ids(generate(running, [name])) == token_ids([expected[name]])


def test_texts_with_masks_of_xgrammar_are_the_same(running, expected, monkeypatch):
    monkeypatch.setattr(running.manager.vllm_config.structured_outputs_config, "backend", "xgrammar")
    outputs = dict(zip(CASES, generate(running), strict=True))
    assert running.manager.structout.stats().backends["xgrammar"] > 0
    for name, output in outputs.items():
        if "json" in CASES[name].constraint:  # xgrammar lets JSON have more whitespace
            ((text,),) = texts([output])
            assert read(text.rpartition("</think>")[2]) == CASES[name].answer
        else:
            assert token_ids([output]) == token_ids([expected[name]]), name


def answers_of(url, bodies):
    """The answers to requests that are sent at once, each of them whole and as a
    stream."""
    greedy = {"model": "small", "max_tokens": MAX_TOKENS, "temperature": 0, "return_token_ids": True}

    async def run():
        async with httpx.AsyncClient(timeout=300) as client:
            sent = [
                ask(client, url, greedy | body, is_stream=is_stream) for body in bodies for is_stream in (False, True)
            ]
            return await asyncio.gather(*sent)

    answers = asyncio.run(run())
    return list(zip(answers[::2], answers[1::2], strict=True))


def test_texts_over_http_are_the_same_whole_and_as_streams(server, expected):
    bodies = [
        {"messages": case.messages}
        | ({"structured_outputs": case.constraint} if case.constraint else {})
        | ({"chat_template_kwargs": {"enable_thinking": True}} if case.reasoning else {})
        for case in CASES.values()
    ]
    for (name, case), (whole, stream) in zip(CASES.items(), answers_of(server, bodies), strict=True):
        assert whole == stream
        assert (whole.reasoning, read(whole.content)) == (case.reasoning, case.answer)
        assert [[whole.token_ids]] == token_ids([expected[name]])
        assert whole.finish_reason == "stop"


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_calls_are_of_the_right_tools_with_the_right_arguments(server, choice):
    tools = {"tools": TOOLS, "tool_choice": choice}
    bodies = [tools | {"messages": [*CALLS, *messages_of(question)]} for question in CALLED]
    for call, (whole, stream) in zip(CALLED.values(), answers_of(server, bodies), strict=True):
        assert whole == stream
        assert [(name, json.loads(arguments)) for name, arguments in whole.calls] == [call]
        assert (whole.content, whole.reasoning, whole.finish_reason) == ("", "", "tool_calls")


def test_client_example_prints_what_its_page_shows(server):
    command = [sys.executable, "-P", str(ROOT / "examples" / "vllm_client.py"), server]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert f"```text\n{run.stdout}```" in (ROOT / "docs" / "vllm.md").read_text()
