"""Texts of SmolLM2-135M-Instruct: they have the right values, and are the same with
states in the workers, with drafts, in smaller batches, with xgrammar's masks, over HTTP
and in streams."""

import asyncio
import json
import math
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("vllm")

import httpx

from support.locations import ROOT
from support.tool_requests import ask
from support.vllm_clients import serving
from support.vllm_engines import engine, finish_reasons, texts, token_ids
from support.vllm_requests import NGRAM, greedy, structured

MAX_TOKENS = 64
OFFLINE = {"structured_outputs_config": {"reasoning_parser": "deepseek_r1"}, "num_gpu_blocks_override": 64}
# This parser reads whether a model thinks from the request.
ONLINE = ("--reasoning-parser", "qwen3", "--default-chat-template-kwargs", '{"enable_thinking": false}')
ONLINE += ("--num-gpu-blocks-override", "64")


def object_of(**properties):
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def messages_of(*turns):
    """Messages of a user and an assistant in turn."""
    roles = ("user", "assistant")
    return [{"role": roles[number % 2], "content": content} for number, content in enumerate(turns)]


@dataclass
class Case:
    """A request.

    Attributes:
        messages: the chat.
        answer: what the model says; an object is compared as JSON.
        constraint: that of the answer.
        reasoning: what the model thinks before, if the request asks for it.
    """

    messages: list[dict[str, str]]
    answer: Any
    constraint: dict[str, Any] = field(default_factory=dict)
    reasoning: str = ""


PERSON = object_of(name={"type": "string"}, age={"type": "integer"}, city={"type": "string"})
EQUATION = 'root ::= number " + " number " = " number\nnumber ::= [0-9]+'
QUERY = """
root ::= "SELECT " column " FROM users WHERE " column " " ("<" | "=" | ">") " " [0-9]+ ";"
column ::= "name" | "age"
"""
THOUGHTS = messages_of(
    "Ann has 3 apples and buys 2 more. How many apples does she have?",
    '<think>Ann has 3 apples and buys 2 more: 3 + 2 = 5.</think>{"answer": 5}',
    "Ben has 4 pens and buys 5 more. How many pens does he have?",
    '<think>Ben has 4 pens and buys 5 more: 4 + 5 = 9.</think>{"answer": 9}',
    "Tom has 2 books and buys 6 more. How many books does he have?",
)
CASES = {
    "person": Case(
        messages_of("Extract the person as JSON (name, age, city): Maria Lopez is 34 years old and lives in Madrid."),
        {"name": "Maria Lopez", "age": 34, "city": "Madrid"},
        {"json": PERSON},
    ),
    "another person": Case(
        messages_of("Extract the person as JSON (name, age, city): Tom Becker is 52 years old and lives in Berlin."),
        {"name": "Tom Becker", "age": 52, "city": "Berlin"},
        {"json": PERSON},
    ),
    "color": Case(messages_of("What color is the sky on a clear day?"), "blue", {"choice": ["green", "blue", "red"]}),
    "date": Case(
        messages_of("Write the date March 15, 2024 as YYYY-MM-DD."), "2024-03-15", {"regex": r"\d{4}-\d{2}-\d{2}"}
    ),
    "equation": Case(messages_of("What is 2 + 3? Answer with the equation."), "2 + 3 = 5", {"grammar": EQUATION}),
    "query": Case(
        messages_of("Write a SQL query for the names of users older than 30."),
        "SELECT name FROM users WHERE age > 30;",
        {"grammar": QUERY},
    ),
    "reasoning": Case(
        [{"role": "system", "content": "Think first, then answer as JSON."}, *THOUGHTS],
        {"answer": 8},
        {"json": object_of(answer={"type": "integer"})},
        "Tom has 2 books and buys 6 more: 2 + 6 = 8.",
    ),
    "free text": Case(
        messages_of("What is the capital of France? Answer in one sentence."), "The capital of France is Paris."
    ),
}


def tool(name, description, **parameters):
    function = {"name": name, "description": description, "parameters": object_of(**parameters)}
    return {"type": "function", "function": function | {"strict": True}}


TOOLS = [
    tool("add", "Add two numbers.", a={"type": "integer"}, b={"type": "integer"}),
    tool("get_weather", "Get the weather of a city.", city={"type": "string"}),
]
CALLS = messages_of(
    "What is 3 plus 5?",
    '<tool_call>\n{"name": "add", "arguments": {"a": 3, "b": 5}}\n</tool_call>',
    "Is it cold in Oslo?",
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
)
CALLED = {
    "What is 17 plus 25?": ("add", {"a": 17, "b": 25}),
    "What is the weather in Paris?": ("get_weather", {"city": "Paris"}),
}


def generate(running, names=CASES):
    """Generate the texts of cases in one batch."""
    cases = [CASES[name] for name in names]
    prompts = [
        running.tokenizer.apply_chat_template(
            case.messages, tokenize=False, add_generation_prompt=True, enable_thinking=bool(case.reasoning)
        )
        for case in cases
    ]
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
