"""Measures the time from a schema to its first mask, beside xgrammar and llguidance
alone.

    python bench/bench_ready.py [--maskbench maskbench_sample.jsonl] [--every N]
    [--quick]

structout's time starts at add_request. It includes one mask, because llguidance defers
work until then. All engines compile a schema before the next one follows, so that each
finds the processor's caches full of the others' data; then each compiles all of them
alone. xgrammar and llguidance run on one thread, without caches. Takes minutes, most of
them in xgrammar.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from engines_alone import Engine, Refused, engines, read_cases
from large_tokenizer import VOCAB_SIZE, large_tokenizer, trained_tokenizer

TARGET_MS = {"p50": 5, "p99": 250, "max": 1000}


def seconds_to_ready(engine: Engine, schema: Any) -> float | None:
    """Return None if the engine refuses the schema."""
    start = time.perf_counter()
    try:
        matcher = engine.compile(schema)
    except Refused:
        return None
    engine.fill_first_mask(matcher)
    return time.perf_counter() - start


def milliseconds_to_ready(peers: Sequence[Engine], cases: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the times by engine, of the schemas that it takes."""
    times: dict[str, list[float]] = {engine.name: [] for engine in peers}
    for engine in peers:
        seconds_to_ready(engine, {"type": "integer"})
    for case in cases:
        for engine in peers:
            seconds = seconds_to_ready(engine, case["schema"])
            if seconds is not None:
                times[engine.name].append(seconds * 1e3)
    return times


def main() -> None:
    parser = harness.argument_parser("time to ready beside xgrammar's and llguidance's", quick="a small vocabulary")
    parser.add_argument("--maskbench", type=Path, metavar="FILE", help="default: the schemas of our tests")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take every N-th schema of the file")
    arguments = parser.parse_args()
    tokenizer = trained_tokenizer(2000, 1_000_000) if arguments.quick else large_tokenizer()
    vocab_size = len(tokenizer) if arguments.quick else VOCAB_SIZE

    cases = read_cases(arguments.maskbench)[:: arguments.every]
    times = milliseconds_to_ready(engines(tokenizer, vocab_size), cases)
    for engine in engines(tokenizer, vocab_size):
        if engine.name != "xgrammar":  # its times are hundreds of times what caches take
            times[f"{engine.name}, alone"] = milliseconds_to_ready([engine], cases)[engine.name]

    cases_name = arguments.maskbench.name if arguments.maskbench else "tests/corpus/schemas.jsonl"
    described = {"cases": cases_name, "every": arguments.every, "vocabulary": tokenizer.name_or_path}
    results = harness.ResultsFile("ready", torch.device("cpu"), arguments)
    for name, taken in times.items():
        p50, p99 = statistics.median(taken), float(np.percentile(taken, 99))
        slow = sum(ms > TARGET_MS["max"] for ms in taken) / len(taken)
        row = {"engine": name, "schemas": len(taken), "p50_ms": p50, "p99_ms": p99, "max_ms": max(taken)}
        results.add(described | row | {"above_1_s": slow})
        summary = f"p50 {p50:8.2f} ms  p99 {p99:9.2f}  max {max(taken):9.2f}  {slow:.1%} above 1 s"
        print(f"{name:18} {len(taken):4} schemas  {summary}")
    results.close()


if __name__ == "__main__":
    main()
