"""Counts the schemas and instances that structout, xgrammar and llguidance accept or
refuse, and times their schemas.

    python bench/bench_verdicts.py [--maskbench PATH] [--every N] [--all ENGINE ...]
    [--quick]

PATH is a file of schemas with their "tests", one a line, or MaskBench's folder of data.
Instances are serialized by json.dumps and fed as the tokenizer's tokens. An accepted
invalid instance breaks the guarantee; a refused schema or valid instance restricts the
model needlessly. A valid instance that is accepted once its keys stand in the order of
the schema is counted apart: models that are masked write them in that order. So is an
accepted instance that violates nothing but a format.

The time to ready is CPU time, to the first mask. Takes minutes, most of them in
xgrammar.
"""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import harness
import jsonschema
import numpy as np
import torch
from engines_alone import Engine, Refused, engines, read_cases
from large_tokenizer import VOCAB_SIZE, large_tokenizer, trained_tokenizer

OUTCOMES = (
    *("valid accepted", "valid refused", "valid refused, order"),
    *("invalid accepted", "invalid accepted, format", "invalid refused"),
)


def verdicts(engine: Engine, cases: list[dict[str, Any]], tokenizer: Any) -> dict[str, Any]:
    count = Counter(dict.fromkeys(("schemas taken", "schemas refused", *OUTCOMES), 0))
    reasons: Counter[str] = Counter()
    ready_ms = []
    for case in cases:
        start = time.process_time()
        try:
            matcher = engine.compile(case["schema"])
        except Refused as refused:
            count["schemas refused"] += 1
            reasons[refused.reason] += 1
            continue
        engine.fill_first_mask(matcher)
        ready_ms.append((time.process_time() - start) * 1e3)
        count["schemas taken"] += 1
        for test in case["tests"]:
            is_accepted = accepts(engine, matcher, test["data"], tokenizer)
            verdict = f"{'valid' if test['valid'] else 'invalid'} {'accepted' if is_accepted else 'refused'}"
            if verdict == "valid refused" and accepts(
                engine, matcher, ordered(test["data"], case["schema"]), tokenizer
            ):
                verdict += ", order"
            if verdict == "invalid accepted" and is_valid_without_formats(test["data"], case["schema"]):
                verdict += ", format"
            count[verdict] += 1
        engine.finish(matcher)
    p50, p99 = np.percentile(ready_ms, (50, 99)).tolist()
    return {"engine": engine.name, **count, "refused_by": dict(reasons.most_common()), "p50_ms": p50, "p99_ms": p99}


def accepts(engine: Engine, matcher: Any, instance: Any, tokenizer: Any) -> bool:
    tokens = tokenizer.encode(json.dumps(instance, ensure_ascii=False), add_special_tokens=False)
    return engine.accepts(matcher, tokens)


def is_valid_without_formats(instance: Any, schema: Any) -> bool:
    """Whether an instance violates nothing but a ``format``, which may be an
    annotation."""
    return bool(jsonschema.validators.validator_for(schema)(schema).is_valid(instance))


def ordered(instance: Any, schema: Any) -> Any:
    """``instance`` with the keys of each object in the order of those properties in the
    schema that name most of them."""
    known = list(_property_lists(schema))

    def sort(value: Any) -> Any:
        if isinstance(value, list):
            return [sort(part) for part in value]
        if not isinstance(value, dict):
            return value
        names = max(known, key=lambda names: len(value.keys() & set(names)), default=[])
        keys = [name for name in names if name in value]
        return {key: sort(value[key]) for key in (*keys, *(key for key in value if key not in keys))}

    return sort(instance)


def _property_lists(schema: Any) -> list[list[str]]:
    found, pending = [], [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            if isinstance(part.get("properties"), dict):
                found.append(list(part["properties"]))
            pending += part.values()
        elif isinstance(part, list):
            pending += part
    return found


def main() -> None:
    parser = harness.argument_parser("count accepted and refused schemas and instances", quick="a small vocabulary")
    parser.add_argument("--maskbench", type=Path, metavar="PATH", help="default: the schemas of our tests")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take every N-th schema")
    parser.add_argument("--all", nargs="*", default=[], metavar="ENGINE", help="engines that take all schemas as well")
    arguments = parser.parse_args()
    tokenizer = trained_tokenizer(2000, 1_000_000) if arguments.quick else large_tokenizer()
    vocab_size = len(tokenizer) if arguments.quick else VOCAB_SIZE

    cases = read_cases(arguments.maskbench)
    cases_name = arguments.maskbench.name if arguments.maskbench else "tests/data/schemas.jsonl"
    described = {"cases": cases_name, "vocabulary": tokenizer.name_or_path}
    results = harness.ResultsFile("verdicts", torch.device("cpu"), arguments)
    for engine in engines(tokenizer, vocab_size):
        row = described | {"every": arguments.every} | verdicts(engine, cases[:: arguments.every], tokenizer)
        results.add(row)
        print(row, flush=True)
        if engine.name in arguments.all:
            row = described | {"every": 1} | verdicts(engine, cases, tokenizer)
            results.add(row)
            print(row, flush=True)
    results.close()


if __name__ == "__main__":
    main()
