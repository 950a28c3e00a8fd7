"""Measures how well a real model calls tools, with and without the constraint.

    python bench/bench_tool_calls.py [--quick]

SmolLM2-135M-Instruct answers requests of value_items.py greedily. Its chat template
writes no calls, so they have hermes' form, in which the system message describes the
tools and four earlier turns call them. A call is valid if it names a tool and its
arguments satisfy the tool's schema; a request has one right call.
"""

import dataclasses
import json
import time
import warnings
from typing import Any

import harness
import jsonschema
import torch
from value_items import SETS, TOOLS, Chat, record

from structout import StructuredOutputsParams
from structout.cli.demo_model import load_demo_model
from structout.constraints.tools.definitions import ToolCall
from structout.integrations.transformers import generate
from structout.integrations.transformers.prompts import description_of

NUM_REQUESTS = 200
BATCH = 25
MAX_NEW_TOKENS = 96
CHOICES = ("required", "auto", "no constraint")


def params_of(tokenizer: Any, choice: str) -> StructuredOutputsParams:
    """At most one call of the tools, in the notation of the model."""
    tools = [
        {"name": name, "description": what, "parameters": record(**arguments)}
        for name, (what, arguments) in TOOLS.items()
    ]
    tool_choice = "required" if choice == "required" else "auto"
    params = StructuredOutputsParams(tools=tools, tool_choice=tool_choice, parallel_tool_calls=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the notice that the format is hermes
        return params.for_tokenizer(tokenizer)


def prompt_of(tokenizer: Any, params: StructuredOutputsParams, chat: Chat) -> str:
    """A chat whose earlier answers are calls."""
    turns = [{"role": "system", "content": description_of(params)}]
    for turn in chat[1:]:
        if turn["role"] == "assistant":
            answer = json.loads(turn["content"])
            turn = turn | {"content": params.call_format.write(answer["tool"], answer["arguments"])}
        turns.append(turn)
    text: str = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    return text


def first_call(params: StructuredOutputsParams, text: str) -> ToolCall | None:
    """The first call in a text. None if there is none that is complete."""
    try:
        return next(iter(params.parse_tool_calls(text)), None)
    except ValueError:
        return None


def main() -> None:
    arguments = harness.argument_parser("calls of tools", quick="one request").parse_args()
    torch.set_num_threads(1)
    results = harness.ResultsFile("tool_calls", torch.device("cpu"), arguments)
    model, tokenizer, directory = load_demo_model()
    kind = dataclasses.replace(SETS["tools"][0], count=1 if arguments.quick else NUM_REQUESTS)
    items = kind.items()
    for choice in CHOICES:
        params = params_of(tokenizer, choice)
        chats = [prompt_of(tokenizer, params, chat) for chat, _ in items]
        given = None if choice == "no constraint" else params
        texts, start = [], time.process_time()
        for first in range(0, len(chats), BATCH):
            batch = chats[first : first + BATCH]
            options = {"params": [given] * len(batch), "max_new_tokens": MAX_NEW_TOKENS, "do_sample": False}
            texts += generate(model, tokenizer, batch, **options).texts
        seconds = time.process_time() - start
        called = [first_call(params, text) for text in texts]
        valid = [
            call is not None and jsonschema.Draft202012Validator(call.tool.parameters).is_valid(call.arguments)
            for call in called
        ]
        right = [(answer["tool"], answer["arguments"]) for _, answer in items]
        names = [call is not None and call.name == name for call, (name, _) in zip(called, right, strict=True)]
        whole = [
            is_named and call.arguments == given
            for is_named, call, (_, given) in zip(names, called, right, strict=True)
        ]
        row = {"tool_choice": choice, "model": directory.name, "requests": len(items), "calls": sum(map(bool, called))}
        row |= {"valid": sum(valid), "right_tool": sum(names), "right_call": sum(whole)}
        results.add(row | {"max_new_tokens": MAX_NEW_TOKENS, "cpu_seconds": round(seconds, 1)})
        print(row, f"{seconds:.0f} s", *texts[:3], sep="\n", flush=True)
    results.close()


if __name__ == "__main__":
    main()
