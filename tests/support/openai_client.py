"""What OpenAI's client asks a server for: the same tests for the server of examples/
and for vLLM's with the plugin."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

SCHEMA = {
    "type": "object",
    "properties": {"item": {"enum": ["apple", "pear"]}, "quantity": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["item", "quantity"],
    "additionalProperties": False,
}
_FUNCTIONS = [
    {"name": "order", "description": "Order fruit.", "parameters": SCHEMA},
    {"name": "wait", "parameters": {"type": "object", "additionalProperties": False}},
]
# vLLM lets the arguments of a tool that is not strict be any JSON.
TOOLS = [{"type": "function", "function": function | {"strict": True}} for function in _FUNCTIONS]
NAMED = {"type": "function", "function": {"name": "order"}}
MESSAGES = [{"role": "user", "content": "One pear, please."}]


class Order(BaseModel, extra="forbid"):
    item: Literal["apple", "pear"]
    quantity: int = Field(ge=1, le=99)


@contextmanager
def chat_client(url: str) -> Iterator[Callable[..., Any]]:
    """``client.chat.completions`` of a server, with its one model and messages.

    Args:
        url: of the server, without ``/v1``.

    Returns:
        A function that calls ``method`` with ``options``.
    """
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        (model,) = client.models.list()

        def chat(method: str = "create", **options: Any) -> Any:
            call = getattr(client.chat.completions, method)
            return call(**({"model": model.id, "messages": MESSAGES} | options))

        yield chat


class ChatTests:
    """Tests of a fixture ``chat``, which :func:`chat_client` makes.

    Attributes:
        ends_of_named_call: the finish reasons of a call of the tool that a request
            names. OpenAI's own servers say "stop".
    """

    ends_of_named_call: ClassVar[tuple[str, ...]] = ("tool_calls",)

    def test_chat_reads_an_answer_into_the_class_of_its_response_format(self, chat):
        answer = chat("parse", response_format=Order)
        assert isinstance(answer.choices[0].message.parsed, Order)
        assert answer.choices[0].finish_reason == "stop"
        usage = answer.usage
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        assert min(usage.prompt_tokens, usage.completion_tokens) > 5

    def test_chat_with_other_constraints_and_none(self, chat):
        for options, pattern in (
            ({"extra_body": {"structured_outputs": {"regex": "[a-z]{7}"}}}, "[a-z]{7}"),
            ({"response_format": {"type": "json_object"}, "max_completion_tokens": 3}, r"\{.*"),
            ({"response_format": {"type": "text"}, "max_tokens": 4}, "(?s).*"),
        ):
            choice = chat(**options).choices[0]
            assert re.fullmatch(pattern, choice.message.content)
            assert choice.finish_reason in ("stop", "length")

    def test_chat_streams_the_text_and_its_usage(self, chat):
        options = {"response_format": {"type": "json_schema", "json_schema": {"name": "o", "schema": SCHEMA}}}
        *chunks, last = chat(stream=True, stream_options={"include_usage": True}, **options)
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks]
        jsonschema.validate(json.loads("".join(pieces)), SCHEMA)
        assert chunks[0].choices[0].delta.role == "assistant"
        assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
        assert (last.choices, last.usage.completion_tokens > 5) == ([], True)
        assert len(chunks) > 5

    @pytest.mark.parametrize("choice", ["required", "named"])
    def test_chat_calls_tools_with_valid_arguments(self, chat, choice):
        tool_choice = NAMED if choice == "named" else choice
        answer = chat(tools=TOOLS, tool_choice=tool_choice, parallel_tool_calls=False, max_tokens=400)
        ends = self.ends_of_named_call if choice == "named" else ("tool_calls",)
        assert answer.choices[0].finish_reason in ends
        (call,) = answer.choices[0].message.tool_calls
        if call.function.name == "order":
            jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
        else:
            assert (call.function.name, call.function.arguments, choice) == ("wait", "{}", "required")
        results = [answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "done"}]
        assert chat(messages=[*MESSAGES, *results], max_tokens=2).choices[0].message.content is not None

    def test_chat_streams_calls_that_the_client_puts_together(self, chat):
        chunks = list(chat(tools=TOOLS, tool_choice=NAMED, stream=True, max_tokens=400))
        calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
        assert {call.index for call in calls} == {0}
        jsonschema.validate(json.loads("".join(call.function.arguments or "" for call in calls)), SCHEMA)
        assert not any(chunk.choices[0].delta.content for chunk in chunks)
        assert chunks[-1].choices[0].finish_reason in self.ends_of_named_call

    def test_chat_without_a_choice_of_tools_writes_text(self, chat):
        message = chat(tools=TOOLS, tool_choice="none", max_tokens=3).choices[0].message
        assert message.content is not None
        assert message.tool_calls is None

    @pytest.mark.parametrize(
        "options",
        [
            {"extra_body": {"structured_outputs": {"regex": "(yes|no"}}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "o", "schema": {"type": "strin"}}}},
        ],
        ids=["regex", "json"],
    )
    def test_chat_answers_a_bad_constraint_with_400(self, chat, options):
        with pytest.raises(openai.BadRequestError, match=r"is not closed|strin"):
            chat(**options)
