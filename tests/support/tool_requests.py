"""Requests with tools to vLLM's HTTP server, as its clients send and read them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx
import jsonschema

from support.tool_calls import as_openai_tools, check_call

# What begins a call in the text of each of vLLM's tool parsers, and what begins the
# section of all calls.
BEGINS = {
    "hermes": ("<tool_call>", "<tool_call>"),
    "qwen3_coder": ("<tool_call>", "<tool_call>"),
    "glm47": ("<tool_call>", "<tool_call>"),
    "deepseek_v31": ("<｜tool▁call▁begin｜>", "<｜tool▁calls▁begin｜>"),
    "kimi_k2": ("<|tool_call_begin|>", "<|tool_calls_section_begin|>"),
    "minimax_m2": ("<invoke name=", "<minimax:tool_call>"),
}
MAX_TOKENS = 1000
# The model is random: without these its texts would hardly have an end.
_CLOSING = {'"': 4.0, "}": 3.0, "]": 3.0, "<": 3.0, "<|end|>": 9.0}


@dataclass
class Answer:
    """What a client gets.

    Attributes:
        status: of HTTP.
        finish_reason: None for an error.
        content: the text beside calls and reasoning.
        reasoning: the reasoning.
        calls: the names of the called tools with their arguments as they came.
        token_ids: the tokens of the answer.
        error: the body of an error.
    """

    status: int = 200
    finish_reason: str | None = None
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    error: str = ""


def tool_request(
    tokenizer: Any, parser: str, tools: dict[str, Any], choice: Any, seed: int, *, thinks: bool = False
) -> dict[str, Any]:
    """The body of a request whose text the random model soon ends.

    Args:
        tokenizer: the model's.
        parser: vLLM's tool parser.
        tools: parameters by name; all are strict.
        choice: "auto", "required" or the name of a tool.
        seed: of the draws.
        thinks: whether the answer begins with a reasoning.
    """
    given = as_openai_tools(tools)
    for tool in given:
        tool["function"]["strict"] = True
    biases = _CLOSING | {"</parameter>": 9.0, "</arg_value>": 9.0}
    if choice == "auto":
        biases |= dict.fromkeys(tokenizer.tokenize(BEGINS[parser][1]), 10.0)
    if thinks:
        biases["</think>"] = 12.0
    return {
        "model": "small",
        "messages": [{"role": "user", "content": "Go on"}],
        "tools": given,
        "tool_choice": choice if choice in ("auto", "required") else {"type": "function", "function": {"name": choice}},
        "max_tokens": MAX_TOKENS,
        "temperature": 1.0,
        "seed": seed,
        "logit_bias": {str(tokenizer.convert_tokens_to_ids(token)): bias for token, bias in biases.items()},
        "chat_template_kwargs": {"enable_thinking": thinks},
        "return_token_ids": True,
    }


async def ask(client: httpx.AsyncClient, url: str, body: dict[str, Any], *, is_stream: bool = False) -> Answer:
    """Send a request and read its answer, in one piece or as a stream."""
    address = f"{url}/v1/chat/completions"
    if is_stream:
        return await _read_stream(client, address, body | {"stream": True})
    response = await client.post(address, json=body)
    if response.status_code != 200:
        return Answer(response.status_code, error=response.text)
    choice = response.json()["choices"][0]
    message = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or []]
    return Answer(
        200,
        choice["finish_reason"],
        message.get("content") or "",
        message.get("reasoning") or "",
        calls,
        choice["token_ids"],
    )


async def _read_stream(client: httpx.AsyncClient, address: str, body: dict[str, Any]) -> Answer:
    answer = Answer()
    calls: dict[int, list[str]] = {}
    async with client.stream("POST", address, json=body) as response:
        if response.status_code != 200:
            return Answer(response.status_code, error=(await response.aread()).decode())
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                return Answer(event["error"].get("code", 500), error=line)
            for choice in event["choices"]:
                answer.finish_reason = choice["finish_reason"] or answer.finish_reason
                answer.token_ids += choice.get("token_ids") or []
                delta = choice["delta"]
                answer.content += delta.get("content") or ""
                answer.reasoning += delta.get("reasoning") or ""
                for call in delta.get("tool_calls") or []:
                    parts = calls.setdefault(call["index"], ["", ""])
                    function = call.get("function") or {}
                    parts[0] += function.get("name") or ""
                    parts[1] += function.get("arguments") or ""
    answer.calls = [(name, arguments) for _, (name, arguments) in sorted(calls.items())]
    return answer


def problems_of(answer: Answer, parser: str, tools: dict[str, Any], tokenizer: Any) -> list[str]:
    """What is wrong with the calls of an answer that has ended: calls that are invalid
    against their schemas, and those that its text has and the client did not get."""
    problems = []
    for name, written in answer.calls:
        try:
            check_call(json.loads(written), tools[name])
        except (ValueError, KeyError, jsonschema.ValidationError) as error:
            problems.append(f"invalid call of {name}, {written}: {type(error).__name__} {str(error).splitlines()[0]}")
    text = tokenizer.decode(answer.token_ids)
    written_calls = text.count(BEGINS[parser][0])
    if written_calls != len(answer.calls):
        problems.append(f"{written_calls} calls in the text, {len(answer.calls)} read: {text}")
    return problems
