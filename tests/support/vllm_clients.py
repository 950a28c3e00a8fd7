"""Clients of vLLM's HTTP server: requests of many kinds, and their answers."""

import json
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from support.server_processes import free_ports, running

MESSAGES = [{"role": "user", "content": "The quick brown fox"}]
LETTERS = "[a-f]{12,30}!"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """A ``response_format``."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


# What a request asks for, and what is true of its texts that have ended by themselves.
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

# Constraints that are answered with 400.
REFUSED: list[dict[str, Any]] = [
    {"structured_outputs": {"regex": "[a-"}},
    {"structured_outputs": {"regex": r"(a)\1"}},
    {"structured_outputs": {"grammar": "not a grammar"}},
    {"structured_outputs": {"json": "{"}},
    {"structured_outputs": {"choice": []}},
    {"structured_outputs": {"structural_tag": "{"}},
    {"response_format": json_schema({"type": "strin"})},
    {"response_format": json_schema({"$ref": "#/$defs/missing"})},
    {"structured_outputs": {"regex": "a", "choice": ["a"]}},
    {"structured_outputs": {"regex": "[a-z]{300}"}, "max_tokens": 9},
]


@contextmanager
def serving(model: Path, log: Path, *options: str, keeps_states: bool = False) -> Iterator[tuple[str, int]]:
    """Run vLLM's server of a model, which it calls "small". Gives its address and
    process.

    Args:
        model: the model's folder.
        log: the file that gets the server's output.
        options: more of the server's.
        keeps_states: whether the workers are to keep the states of grammars.
    """
    (port,) = free_ports(1)
    arguments = ["--model", str(model), "--served-model-name", "small", "--port", str(port)]
    arguments += ["--host", "127.0.0.1", "--max-model-len", "512", "--enforce-eager", "--dtype", "float32"]
    arguments += ["--num-gpu-blocks-override", "256", "--max-num-seqs", "64"]
    arguments += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    command = [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server", *arguments, *options]
    url = f"http://127.0.0.1:{port}"
    settings = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    settings |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "STRUCTOUT_VLLM_WORKER_STATES": str(int(keeps_states))}
    settings |= {"VLLM_CPU_SIM_MULTI_NUMA": "0"}  # since 0.33 engines would need a node of memory each
    with running(command, settings, log, [url]) as pid:
        yield url, pid


def chat(body: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The body of a chat request."""
    return {"model": "small", "messages": MESSAGES, "max_tokens": 80} | more | body


async def ask(client: httpx.AsyncClient, url: str, body: dict[str, Any], is_stream: bool) -> list[tuple[str, str]]:
    """The texts and finish reasons of one request."""
    body = chat(body, stream=is_stream)
    if not is_stream:
        response = await client.post(f"{url}/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        choices = response.json()["choices"]
        return [(choice["message"]["content"], choice["finish_reason"]) for choice in choices]
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        async for data in _events(response):
            if data != b"[DONE]":
                for choice in json.loads(data)["choices"]:
                    index = choice["index"]
                    texts[index] = texts.get(index, "") + (choice["delta"].get("content") or "")
                    reasons[index] = choice["finish_reason"] or reasons.get(index)
    return [(texts[index], reasons[index]) for index in sorted(texts)]


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    """The data of server-sent events. ``aiter_lines`` also ends lines at U+2028."""
    rest = b""
    async for part in response.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                yield line.removeprefix(b"data: ")


def num_requests(url: str) -> float:
    """The requests that run or wait in the server."""
    lines = httpx.get(f"{url}/metrics", timeout=10).text.splitlines()
    gauges = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(gauges))
