"""Measures structural tags: how soon they are ready beyond their schemas, the masks
that they keep beyond those, and steps in free text.

    python bench/bench_tags.py [--quick]

CPU time, the least of five runs, each with a tag that no engine has seen. "Beyond" is
what a tag takes in addition to its schemas, each compiled alone.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import harness
import torch
from large_tokenizer import VOCAB_SIZE, large_tokenizer, trained_tokenizer

from structout import StructuredOutputsParams, allocate_token_bitmask
from structout.constraints.tools.call_formats import TOOL_FORMATS
from structout.constraints.tools.definitions import Tool
from structout.grammar.native.backend import NativeBackend
from structout.grammar.native.json_schema import CompiledSchema, JsonSchemaGrammar
from structout.grammar.vocabulary import Vocabulary

NUM_TOOLS = (1, 10, 50, 200)
CATALOG_SIZE = 250
NUM_TRIGGERS = (1, 10, 139)
NUM_RUNS = 5


def tools(count: int, version: int) -> list[Tool]:
    """No two versions have a schema in common, so no engine finds one in a cache."""
    return [_tool(f"tool_{version}_{number}") for number in range(count)]


def _tool(name: str) -> Tool:
    properties = {f"{name}_query": {"type": "string"}, "limit": {"type": "integer"}}
    required = [f"{name}_query"]
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return Tool(name, schema, "", None)


def catalog(count: int, version: int) -> list[Tool]:
    """Tools with long strings and descriptions, 400 bytes each."""
    given = []
    for number in range(count):
        name = f"tool_{version}_{number}"
        properties = {
            f"{name}_query": {"type": "string", "maxLength": 2_000 + number, "description": f"What {name} looks for."},
            "body_query": {"type": "string", "maxLength": 100_000, "description": f"The whole text for {name}."},
            "labels_query": {"type": "string", "minLength": 1, "maxLength": 500, "description": f"A label of {name}."},
            "limit": {"type": "integer", "minimum": 1, "description": f"The most results of {name}."},
        }
        schema = {"type": "object", "properties": properties, "required": [f"{name}_query"]}
        given.append(Tool(name, schema | {"additionalProperties": False}, "", None))
    return given


def triggered(count: int, version: int) -> dict[str, Any]:
    """As many tags, each after a trigger of its own."""
    begins = [f"<call_{version}_{number}>" for number in range(count)]
    tags = [
        {"type": "tag", "begin": b, "content": {"type": "regex", "pattern": "[0-9]+"}, "end": "</>"} for b in begins
    ]
    return {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": begins, "tags": tags}}


def cpu_seconds(work: Any) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


def measure_tools(
    backend: NativeBackend, vocabulary: Vocabulary, tool_format: str, make: Callable[[int], list[Tool]]
) -> dict[str, Any]:
    mask = allocate_token_bitmask(1, vocabulary.size, pin_memory=False)
    beyond, whole = [], []
    compiled: list[Any] = []
    for version in range(NUM_RUNS):
        given = make(version)
        tag = TOOL_FORMATS[tool_format].structural_tag(given, "auto")
        constraint = StructuredOutputsParams(structural_tag=tag).constraint()
        texts = [StructuredOutputsParams(json=tool.parameters).constraint().spec for tool in given]
        schemas = cpu_seconds(lambda texts=texts: [CompiledSchema(text, vocabulary) for text in texts])
        compiled.clear()
        ready = cpu_seconds(lambda c=constraint, to=compiled: to.append(backend.compile(c).grammar))
        ready += cpu_seconds(lambda g=compiled[0]: g.fill_bitmask(mask, 0))
        whole.append(ready)
        beyond.append(ready - schemas)
    num_masks, num_alone = _masks_of_calls(vocabulary, tool_format, given, compiled[0])
    return {
        "ready_ms": 1e3 * min(whole),
        "beyond_schemas_ms": 1e3 * min(beyond),
        "masks": num_masks,
        "masks_of_schemas": num_alone,
    }


def _masks_of_calls(vocabulary: Vocabulary, tool_format: str, given: list[Tool], grammar: Any) -> tuple[int, int]:
    """The masks that a call of each tool leaves, and those that its arguments alone
    leave as JSON."""
    num_alone = 0
    for tool in given:
        arguments = {name: "two words" if name.endswith("_query") else 12 for name in tool.parameters["properties"]}
        text = json.dumps(arguments)
        alone = CompiledSchema(json.dumps(tool.parameters), vocabulary)
        _follow(JsonSchemaGrammar(alone, vocabulary.size, vocabulary.stop_token_ids, None), text, vocabulary)
        num_alone += alone.num_masks
        written = (
            text
            if TOOL_FORMATS[tool_format].style == "json"
            else "".join(
                f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in arguments.items()
            ).removesuffix("\n")
        )
        form = TOOL_FORMATS[tool_format]
        _follow(grammar.copy(), f"Hello {form.begin(tool.name)}{written}{form.end} bye", vocabulary)
    return grammar.index.num_masks, num_alone


def _follow(grammar: Any, text: str, vocabulary: Vocabulary) -> None:
    """Fill the mask in front of each token of a text."""
    mask = allocate_token_bitmask(1, vocabulary.size, pin_memory=False)
    for token in vocabulary.spell(text) or []:
        grammar.fill_bitmask(mask, 0)
        assert grammar.accept_tokens("", [token]), text


def measure_triggers(backend: NativeBackend, vocabulary: Vocabulary, count: int) -> dict[str, Any]:
    mask = allocate_token_bitmask(1, vocabulary.size, pin_memory=False)
    seconds = []
    compiled: list[Any] = []
    for version in range(NUM_RUNS):
        constraint = StructuredOutputsParams(structural_tag=triggered(count, version)).constraint()
        compiled.clear()
        seconds.append(cpu_seconds(lambda c=constraint, to=compiled: to.append(backend.compile(c).grammar)))
    grammar = compiled[0]
    first = cpu_seconds(lambda: grammar.fill_bitmask(mask, 0))
    words = [token for token, text in enumerate(vocabulary.token_bytes) if text.isalpha()][:64]

    def steps() -> None:
        for token in words:
            grammar.accept_tokens("", [token])
            grammar.fill_bitmask(mask, 0)

    num_masks = grammar.index.num_masks
    hit = min(cpu_seconds(steps) for _ in range(NUM_RUNS)) / len(words)
    return {
        "ready_ms": 1e3 * min(seconds),
        "first_mask_ms": 1e3 * first,
        "step_us": 1e6 * hit,
        "new_masks": grammar.index.num_masks - num_masks,
    }


def _report(results: harness.ResultsFile, case: str, row: dict[str, Any]) -> None:
    results.add({"case": case, **row})
    print(f"{case:24}", "  ".join(f"{name} {value:.2f}" for name, value in row.items()))


def main() -> None:
    arguments = harness.argument_parser("structural tags", quick="a small vocabulary").parse_args()
    tokenizer = trained_tokenizer(2000, 1_000_000) if arguments.quick else large_tokenizer()
    vocab_size = len(tokenizer) if arguments.quick else VOCAB_SIZE
    results = harness.ResultsFile("tags", torch.device("cpu"), arguments)
    vocabulary = Vocabulary.from_tokenizer(tokenizer, vocab_size)
    backend = NativeBackend(vocabulary)
    for tool_format in ("hermes", "qwen_3_coder"):
        for count in NUM_TOOLS:
            row = measure_tools(backend, vocabulary, tool_format, partial(tools, count))
            _report(results, f"{count} tools, {tool_format}", row)
        row = measure_tools(backend, vocabulary, tool_format, partial(catalog, CATALOG_SIZE))
        _report(results, f"{CATALOG_SIZE} tools with long strings, {tool_format}", row)
    for count in NUM_TRIGGERS:
        _report(results, f"{count} triggers", measure_triggers(backend, vocabulary, count))
    results.close()


if __name__ == "__main__":
    main()
