"""Measures the time from a schema with long lists to the mask of its first key, beside
xgrammar and llguidance alone.

    python bench/bench_schema_costs.py [--quick]

Enums of objects, oneOf of overlapping objects, chains of dependentRequired, clauses of
anyOf, and unions of tools. CPU time of compilation and of the masks before and after
``{``; the median of three new schemas.
"""

import itertools
import statistics
import time
from typing import Any

import harness
import torch
from bench_unions import union
from engines_alone import Engine, Refused, engines, fsm_engines
from large_tokenizer import VOCAB_SIZE, large_tokenizer, trained_tokenizer

NUM_SCHEMAS = 3


def listed_objects(count: int, version: int) -> dict[str, Any]:
    return {"enum": [{"id": i, "name": f"item {version} {i}", "tags": ["a", i % 7]} for i in range(count)]}


def overlapping_objects(count: int, version: int) -> dict[str, Any]:
    """Each requires a key of its own and allows the others."""
    return {
        "oneOf": [
            {
                "type": "object",
                "properties": {f"p{version}_{i}": {"type": "string"}, "n": {"type": "integer"}},
                "required": [f"p{version}_{i}"],
            }
            for i in range(count)
        ]
    }


def chain_of_dependencies(count: int, version: int) -> dict[str, Any]:
    names = [f"k{version}_{i}" for i in range(count + 1)]
    return {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in names},
        "dependentRequired": {name: [needed] for name, needed in itertools.pairwise(names)},
    }


def clauses(count: int, version: int, num_keys: int = 60) -> dict[str, Any]:
    """Of three keys each, of which one must or must not be there."""
    all_of = []
    for i in range(count):
        keys = [f"k{version}_{(i * factor + factor // 2) % num_keys}" for factor in (7, 11, 13)]
        required: list[dict[str, Any]] = [{"required": [key]} for key in keys]
        all_of.append({"anyOf": [required[0], {"not": required[1]}, required[2]]})
    properties = {f"k{version}_{i}": {"type": "integer"} for i in range(num_keys)}
    return {"type": "object", "properties": properties, "allOf": all_of}


def tools(count: int, version: int) -> dict[str, Any]:
    return union("anyOf", count, version)


FAMILIES = (
    ("enum of objects", listed_objects, (300, 5000)),
    ("oneOf, overlapping", overlapping_objects, (35, 100)),
    ("dependentRequired", chain_of_dependencies, (200,)),
    ("anyOf over 60 keys", clauses, (210,)),
    ("anyOf of tools", tools, (250,)),
)


def seconds_to_first_key(engine: Engine, schema: dict[str, Any], brace: int) -> float | None:
    """CPU seconds. None if the engine refuses the schema or has no steps."""
    start = time.process_time()
    try:
        matcher = engine.compile(schema)
        walk = engine.walk(matcher)
        if walk is None:
            return None
        walk.fill()
        if not walk.accept(brace):
            return None
        walk.fill()
    except Refused:
        return None
    seconds = time.process_time() - start
    engine.finish(matcher)
    return seconds


def main() -> None:
    arguments = harness.argument_parser("time to the first key of large schemas", quick="a small vocabulary")
    parsed = arguments.parse_args()
    tokenizer = trained_tokenizer(2000, 1_000_000) if parsed.quick else large_tokenizer()
    vocab_size = len(tokenizer) if parsed.quick else VOCAB_SIZE
    brace = tokenizer.convert_tokens_to_ids("{")
    results = harness.ResultsFile("schema_costs", torch.device("cpu"), parsed)
    fsm, _ = fsm_engines(tokenizer, vocab_size)
    peers = [fsm, *(engine for engine in engines(tokenizer, vocab_size) if engine.name != "structout")]
    for engine in peers:
        seconds_to_first_key(engine, tools(2, version=0), brace)
    for name, family, counts in FAMILIES:
        for count in counts[:1] if parsed.quick else counts:
            row: dict[str, Any] = {"schema": name, "length": count, "ready_ms": {}}
            for engine in peers:
                taken = [
                    seconds_to_first_key(engine, family(count, version + 1), brace) for version in range(NUM_SCHEMAS)
                ]
                served = [seconds * 1e3 for seconds in taken if seconds is not None]
                row["ready_ms"][engine.name] = statistics.median(served) if len(served) == NUM_SCHEMAS else None
            results.add({"vocabulary": tokenizer.name_or_path} | row)
            times = "  ".join(
                f"{peer} {'refused' if ms is None else f'{ms:.1f} ms'}" for peer, ms in row["ready_ms"].items()
            )
            print(f"{name} {count:5}  {times}", flush=True)
    results.close()


if __name__ == "__main__":
    main()
