"""vLLM's HTTP server with many clients at once."""

import asyncio
import json
import re
import subprocess
import sys
import time

import pytest

pytest.importorskip("vllm")

import httpx

from support.locations import ROOT
from support.openai_client import ChatTests, chat_client
from support.server_processes import free_ports, running
from support.vllm_requests import LETTERS, SCHEMA

MESSAGES = [{"role": "user", "content": "The quick brown fox"}]
SLOW_SCHEMA = {"enum": [f"value {i} {i * 7919 % 10007}" for i in range(4000)]}


@pytest.fixture(scope="module")
def server(small_model, tmp_path_factory):
    """The address of a server, which runs without errors until it is told to stop."""
    (port,) = free_ports(1)
    arguments = ["--model", str(small_model), "--served-model-name", "small", "--port", str(port)]
    arguments += ["--host", "127.0.0.1", "--max-model-len", "512", "--enforce-eager", "--dtype", "float32"]
    arguments += ["--num-gpu-blocks-override", "256", "--max-num-seqs", "64"]
    arguments += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    log = tmp_path_factory.mktemp("server") / "log"
    command = [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server", *arguments]
    url = f"http://127.0.0.1:{port}"
    with running(command, {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}, log, [url]):
        yield url
        assert "EngineDeadError" not in log.read_text()


def post(url, path="/v1/chat/completions", **body):
    return httpx.post(f"{url}{path}", json={"model": "small", "max_tokens": 80} | body, timeout=120)


def json_schema(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


CLIENTS = [
    ({"response_format": json_schema(SCHEMA)}, lambda text: json.loads(text)["b"] in ("x", "y")),
    ({"response_format": {"type": "json_object"}}, lambda text: isinstance(json.loads(text), dict)),
    ({"structured_outputs": {"regex": LETTERS}, "logprobs": True, "top_logprobs": 3}, re.compile(LETTERS).fullmatch),
    ({"structured_outputs": {"choice": ["red", "green"]}, "n": 2}, lambda text: text in ("red", "green")),
    ({"structured_outputs": {"grammar": 'root ::= "a"{3,9}'}, "presence_penalty": 1}, re.compile("a{3,9}").fullmatch),
    ({"structured_outputs": {"regex": LETTERS}, "temperature": 0, "min_tokens": 14}, re.compile(LETTERS).fullmatch),
    ({"seed": 4, "top_p": 0.9, "top_k": 20}, lambda text: True),
    ({"temperature": 0, "logit_bias": {"40": 5}}, lambda text: True),
]


async def ask(client, url, body, is_stream):
    """The texts and finish reasons of one request."""
    body = {"model": "small", "messages": MESSAGES, "max_tokens": 80, "stream": is_stream} | body
    if not is_stream:
        response = await client.post(f"{url}/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        choices = response.json()["choices"]
        return [(choice["message"]["content"], choice["finish_reason"]) for choice in choices]
    texts, reasons = {}, {}
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    index = choice["index"]
                    texts[index] = texts.get(index, "") + (choice["delta"].get("content") or "")
                    reasons[index] = choice["finish_reason"] or reasons.get(index)
    return [(texts[index], reasons[index]) for index in sorted(texts)]


def test_64_clients_at_once_get_what_they_asked_for(server):
    async def run():
        async with httpx.AsyncClient(timeout=240, limits=httpx.Limits(max_connections=64)) as client:
            cases = [(*CLIENTS[i % len(CLIENTS)], i % 3 == 0) for i in range(64)]
            answers = await asyncio.gather(*(ask(client, server, body, is_stream) for body, _, is_stream in cases))
        for (body, check, _), answer in zip(cases, answers, strict=True):
            assert len(answer) == body.get("n", 1)
            for text, reason in answer:
                assert reason == "length" or (reason == "stop" and check(text)), (body, text, reason)
        return [reason for answer in answers for _, reason in answer]

    assert asyncio.run(run()).count("stop") > 32


@pytest.mark.parametrize(
    "body",
    [
        {"structured_outputs": {"regex": "[a-"}},
        {"structured_outputs": {"regex": r"(a)\1"}},
        {"structured_outputs": {"grammar": "not a grammar"}},
        {"structured_outputs": {"json": "{"}},
        {"structured_outputs": {"choice": []}},
        {"structured_outputs": {"structural_tag": "{"}},
        {"response_format": json_schema({"type": "strin"})},
        {"response_format": json_schema({"$ref": "#/$defs/missing"})},
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
    ],
    ids=str,
)
def test_a_bad_constraint_is_answered_with_400(server, body):
    response = post(server, messages=MESSAGES, **body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "BadRequestError"


def test_a_dead_end_is_answered_with_an_error_and_the_server_goes_on(server):
    body = {"structured_outputs": {"regex": "abc[xy]"}, "allowed_token_ids": [67, 68, 69]}
    response = post(server, "/v1/completions", prompt="hello", **body)
    assert response.status_code == 500
    assert "-1" not in response.text
    response = post(server, "/v1/completions", prompt="hello", structured_outputs={"choice": ["red"]})
    assert response.json()["choices"][0]["text"] == "red"


def test_client_example_prints_an_order_and_why_a_constraint_is_refused(server):
    command = [sys.executable, "-P", str(ROOT / "examples" / "vllm_client.py"), server]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    order, end = json.JSONDecoder().raw_decode(run.stdout)
    assert order.keys() == {"item", "cups"}
    assert order["item"] in ("tea", "coffee")
    assert order["cups"] in range(1, 10)
    assert "a ( is not closed" in run.stdout[end:]


@pytest.fixture
def chat(server):
    with chat_client(server) as chat:
        yield chat


class TestChat(ChatTests):
    """The tests that the server of examples/ passes, too."""

    ends_of_named_call = ("tool_calls", "stop")


def num_requests(url):
    lines = httpx.get(f"{url}/metrics", timeout=10).text.splitlines()
    gauges = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(gauges))


def test_clients_that_leave_while_the_grammar_compiles_and_while_it_runs_leave_nothing(server):
    endless = {"structured_outputs": {"regex": "[a-z ]{400,}"}, "max_tokens": 450}

    async def leave(client, body, seconds):
        try:
            await asyncio.wait_for(ask(client, server, body, is_stream=True), seconds)
        except asyncio.TimeoutError:
            return True
        return False

    async def run():
        async with httpx.AsyncClient(timeout=60) as client:
            slow = [{"response_format": json_schema({"enum": [*SLOW_SCHEMA["enum"], str(i)]})} for i in range(4)]
            return await asyncio.gather(
                *(leave(client, body, 0.05) for body in slow), *(leave(client, endless, 0.3) for _ in range(4))
            )

    assert any(asyncio.run(run()))
    deadline = time.monotonic() + 60
    while num_requests(server) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert num_requests(server) == 0
    response = post(server, messages=MESSAGES, structured_outputs={"choice": ["red"]})
    assert response.json()["choices"][0]["message"]["content"] == "red"
