"""vLLM's HTTP server with many clients at once."""

import asyncio
import re
import time

import pytest

pytest.importorskip("vllm")

import httpx

from support.openai_client import ChatTests, chat_client
from support.vllm_clients import CLIENTS, MESSAGES, REFUSED, ask, json_schema, num_requests, serving

SLOW_SCHEMA = {"enum": [f"value {i} {i * 7919 % 10007}" for i in range(4000)]}


@pytest.fixture(scope="module")
def server(small_model, tmp_path_factory):
    """The address of a server, which runs without errors until it is told to stop."""
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(small_model, log) as (url, _):
        yield url
        assert "EngineDeadError" not in log.read_text()


def post(url, path="/v1/chat/completions", **body):
    return httpx.post(f"{url}{path}", json={"model": "small", "max_tokens": 80} | body, timeout=120)


@pytest.mark.parametrize("body", REFUSED, ids=str)
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


def test_two_engines_that_keep_states_in_their_workers_draw_what_one_draws(server, small_model, tmp_path):
    bodies = [
        body | {"seed": seed, "temperature": float(seed % 2 or body.get("n", 1) > 1)}
        for seed, (body, _) in enumerate(4 * CLIENTS)
    ]

    async def answers(url):
        async with httpx.AsyncClient(timeout=120) as client:
            return await asyncio.gather(*(ask(client, url, body, is_stream=False) for body in bodies))

    log = tmp_path / "log"
    with serving(small_model, log, "--data-parallel-size", "2", keeps_states=True) as (url, _):
        assert asyncio.run(answers(url)) == asyncio.run(answers(server))
    assert {f"EngineCore_DP{rank}" for rank in range(2)} <= set(re.findall(r"EngineCore_DP\d", log.read_text()))


@pytest.fixture
def chat(server):
    with chat_client(server) as chat:
        yield chat


class TestChat(ChatTests):
    """The tests that the server of examples/ passes, too."""

    ends_of_named_call = ("tool_calls", "stop")


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
