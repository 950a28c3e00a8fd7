"""Measures the time from a schema with long lists to the mask of its first key, item
or character, beside xgrammar and llguidance alone.

    python bench/bench_schema_costs.py [--quick]

Enums, oneOf of overlapping objects, chains of dependentRequired, clauses of anyOf,
unions of tools, and 4, 16 and 64 conditions of a kind. CPU time of compilation and of
the masks before and after ``{``, ``[`` or ``"``; the median of three new schemas.
"""

import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import harness
import torch
from bench_unions import union
from engines_alone import Engine, Refused, engines, fsm_engines
from large_tokenizer import VOCAB_SIZE, large_tokenizer, trained_tokenizer

from support import large_schemas

NUM_SCHEMAS = 3


def strings(count: int, mark: str) -> dict[str, Any]:
    return {"type": "string", "enum": [f"value {mark}{i}" for i in range(count)]}


def tools(count: int, mark: str) -> dict[str, Any]:
    return union("anyOf", count, mark)


FAMILIES = (
    ("enum of objects", large_schemas.listed_objects, (300, 5000)),
    ("enum of strings", strings, (5_000, 100_000)),
    ("oneOf, overlapping", large_schemas.overlapping_branches, (35, 100)),
    ("dependentRequired", large_schemas.chain_of_dependencies, (200,)),
    ("anyOf over 60 keys", large_schemas.clauses, (210,)),
    ("anyOf of tools", tools, (250,)),
    *((family.__name__.replace("_", " "), family, (4, 16, 64)) for family in large_schemas.CONDITIONS),
)


def seconds_to_first_key(engine: Engine, schema: dict[str, Any], openings: Mapping[str, int]) -> float | None:
    """CPU seconds. None if the engine refuses the schema or has no steps."""
    start = time.process_time()
    try:
        matcher = engine.compile(schema)
        walk = engine.walk(matcher)
        if walk is None:
            return None
        walk.fill()
        if not walk.accept(openings[schema.get("type", "object")]):
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
    begins = {"object": "{", "array": "[", "string": '"'}
    openings = {type_: tokenizer.convert_tokens_to_ids(begin) for type_, begin in begins.items()}
    results = harness.ResultsFile("schema_costs", torch.device("cpu"), parsed)
    fsm, _ = fsm_engines(tokenizer, vocab_size)
    peers = [fsm, *(engine for engine in engines(tokenizer, vocab_size) if engine.name != "structout")]
    for engine in peers:
        seconds_to_first_key(engine, tools(2, "first"), openings)
    for name, family, counts in FAMILIES:
        for count in counts[:1] if parsed.quick else counts:
            row: dict[str, Any] = {"schema": name, "length": count, "ready_ms": {}}
            for engine in peers:
                taken = [
                    seconds_to_first_key(engine, family(count, f"{version}_"), openings)
                    for version in range(NUM_SCHEMAS)
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
