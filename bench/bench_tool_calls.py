"""Measures how well a real model calls tools, with and without the constraint.

    python bench/bench_tool_calls.py [--quick]

SmolLM2-135M-Instruct answers requests of value_items.py greedily. Its chat template
writes no calls, so they have hermes' form, in which the system message describes the
tools and four earlier turns call them. A call is valid if it names a tool and its
arguments satisfy the tool's schema; a request has one right call.
"""

import copy
import dataclasses
import itertools
import json
import time
import warnings
from collections.abc import Iterator
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


class Prompts:
    """Prompts that begin alike. The model reads what they share once.

    Args:
        model: the model.
        prompts: the tokens of each.
    """

    def __init__(self, model: Any, prompts: list[list[int]]):
        num_shared = sum(
            1 for _ in itertools.takewhile(lambda column: len({*column}) == 1, zip(*prompts, strict=False))
        )
        with torch.inference_mode():
            self._cache = model(input_ids=torch.tensor([prompts[0][:num_shared]]), use_cache=True).past_key_values
        by_length = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        groups = [list(group) for _, group in itertools.groupby(by_length, key=lambda i: len(prompts[i]))]
        self._batches = [group[at : at + BATCH] for group in groups for at in range(0, len(group), BATCH)]
        self._prompts = prompts

    def batches(self) -> Iterator[tuple[list[int], list[list[int]], Any]]:
        """Prompts of one length: their numbers, their tokens and the cache of what they
        share."""
        for numbers in self._batches:
            cache = copy.deepcopy(self._cache)
            cache.batch_repeat_interleave(len(numbers))
            yield numbers, [self._prompts[i] for i in numbers], cache


def main() -> None:
    arguments = harness.argument_parser("calls of tools", quick="two requests").parse_args()
    torch.set_num_threads(1)
    results = harness.ResultsFile("tool_calls", torch.device("cpu"), arguments)
    model, tokenizer, directory = load_demo_model()
    items = dataclasses.replace(SETS["tools"][0], count=2 if arguments.quick else NUM_REQUESTS).items()
    params = params_of(tokenizer, "auto")
    texts = [prompt_of(tokenizer, params, chat) for chat, _ in items]
    prompts = Prompts(model, [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts])
    for choice in CHOICES:
        params = params_of(tokenizer, choice)
        given = None if choice == "no constraint" else params
        called: list[ToolCall | None] = [None] * len(items)
        start = time.process_time()
        for numbers, batch, cache in prompts.batches():
            options = {"max_new_tokens": MAX_NEW_TOKENS, "do_sample": False, "past_key_values": cache}
            found = generate(model, tokenizer, batch, params=[given] * len(batch), **options)
            for number, text in zip(numbers, found.texts, strict=True):
                called[number] = first_call(params, text)
        seconds = time.process_time() - start
        valid, right_tool, right_call = 0, 0, 0
        for call, (_, answer) in zip(called, items, strict=True):
            if call is not None and jsonschema.Draft202012Validator(call.tool.parameters).is_valid(call.arguments):
                valid += 1
                right_tool += call.name == answer["tool"]
                right_call += (call.name, call.arguments) == (answer["tool"], answer["arguments"])
        row = {"tool_choice": choice, "model": directory.name, "requests": len(items), "valid": valid}
        row |= {"right_tool": right_tool, "right_call": right_call, "max_new_tokens": MAX_NEW_TOKENS}
        results.add(row | {"cpu_seconds": round(seconds, 1)})
        print(f"{choice:<14}{valid:4} valid, {right_tool:4} right tools, {right_call:4} right calls", flush=True)
    results.close()


if __name__ == "__main__":
    main()
