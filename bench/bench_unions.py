"""Measures the time from a union of tools to its first mask, beside xgrammar and
llguidance alone.

    python bench/bench_unions.py [--quick]

Each tool is an object with a constant name and arguments of its own, as function calls
are described; one of N tools must be called. CPU time, first mask included; the median
of three new unions.
"""

import statistics
import time
from typing import Any

import harness
import torch
from engines_alone import Engine, Refused, engines, fsm_engines
from large_tokenizer import VOCAB_SIZE, large_tokenizer, trained_tokenizer

NUM_TOOLS = (10, 30, 100, 200)
NUM_UNIONS = 3


def union(keyword: str, num_tools: int, mark: object) -> dict[str, Any]:
    """Unions of different marks have no schema in common that a cache could have."""
    return {keyword: [tool(f"tool_{mark}_{number}") for number in range(num_tools)]}


def tool(name: str) -> dict[str, Any]:
    arguments = {f"{name}_query": {"type": "string"}, "limit": {"type": "integer"}}
    return _closed({"name": {"const": name}, "arguments": _closed(arguments, required=[f"{name}_query"])})


def _closed(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def seconds_to_ready(engine: Engine, schema: dict[str, Any]) -> float | None:
    """CPU seconds. None if the engine refuses the schema."""
    start = time.process_time()
    try:
        matcher = engine.compile(schema)
        engine.fill_first_mask(matcher)
    except Refused:
        return None
    seconds = time.process_time() - start
    engine.finish(matcher)
    return seconds


def main() -> None:
    arguments = harness.argument_parser("time to ready for unions of tools", quick="a small vocabulary").parse_args()
    tokenizer = trained_tokenizer(2000, 1_000_000) if arguments.quick else large_tokenizer()
    vocab_size = len(tokenizer) if arguments.quick else VOCAB_SIZE
    results = harness.ResultsFile("unions", torch.device("cpu"), arguments)
    fsm, _ = fsm_engines(tokenizer, vocab_size)
    peers = [fsm, *engines(tokenizer, vocab_size)]
    for engine in peers:
        seconds_to_ready(engine, union("anyOf", 2, mark=0))
    for keyword in ("anyOf", "oneOf"):
        for num_tools in NUM_TOOLS[:2] if arguments.quick else NUM_TOOLS:
            row: dict[str, Any] = {"union": keyword, "tools": num_tools, "ready_ms": {}}
            for engine in peers:
                taken = [
                    seconds_to_ready(engine, union(keyword, num_tools, version + 1)) for version in range(NUM_UNIONS)
                ]
                served = [seconds * 1e3 for seconds in taken if seconds is not None]
                row["ready_ms"][engine.name] = statistics.median(served) if len(served) == NUM_UNIONS else None
            results.add({"vocabulary": tokenizer.name_or_path} | row)
            times = "  ".join(
                f"{name} {'refused' if ms is None else f'{ms:.1f} ms'}" for name, ms in row["ready_ms"].items()
            )
            print(f"{keyword} of {num_tools:3} tools  {times}")
    results.close()


if __name__ == "__main__":
    main()
