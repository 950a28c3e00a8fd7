"""Counts the schemas and instances that structout, its own engine, xgrammar and
llguidance accept or refuse, and times their schemas and masks.

    python bench/bench_verdicts.py [--maskbench PATH | --schemastore PATH] [--every N]
    [--all ENGINE ...] [--engines ENGINE ...] [--quick]

PATH is a file of schemas with their "tests", one a line, or MaskBench's folder of data;
or a checkout of SchemaStore (see schema_store.py).
Instances are serialized by json.dumps and fed as the tokenizer's tokens. An accepted
invalid instance breaks the guarantee; a refused schema or valid instance restricts the
model needlessly. A valid instance that is accepted in another form is counted apart:
with its keys in another order, 1 instead of 1.0, and at most 17 digits. Models that are
masked write the right form. structout is asked with keys in any order; for others the
keys are put in the order of the schema. An accepted instance that violates no keyword
but a format is counted apart too. A schema passes if each instance gets the right
verdict.

The time to ready is CPU time, to the first mask. Masks are timed on the way through
valid instances: cold on the first way of a compiled schema, warm on the second. Takes
minutes, most of them in xgrammar.
"""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import jsonschema
import numpy as np
import torch
from engines_alone import Engine, Refused, Walk, engines, fsm_engines, read_cases
from large_tokenizer import VOCAB_SIZE, large_tokenizer, trained_tokenizer
from schema_store import read_schema_store
from text_form import is_accepted_in_its_form, tokens_of

SCHEMAS = ("schemas taken", "schemas refused")
PASSING = ("schemas passing", "schemas passing, but for form")
QUANTILES = (("p50", 50), ("p99", 99))
OUTCOMES = (
    *("valid accepted", "valid refused", "valid refused, form"),
    *("invalid accepted", "invalid accepted, format", "invalid refused"),
)


def verdicts(engine: Engine, cases: list[dict[str, Any]], tokenizer: Any) -> dict[str, Any]:
    count = Counter(dict.fromkeys((*SCHEMAS, *PASSING, *OUTCOMES), 0))
    reasons: Counter[str] = Counter()
    ready_ms = []
    times, sizes = StepTimes(), []
    for case in cases:
        start = time.process_time()
        try:
            matcher = engine.compile(case["schema"], case.get("schemas"))
        except Refused as refused:
            count["schemas refused"] += 1
            reasons[refused.reason] += 1
            continue
        engine.fill_first_mask(matcher)
        ready_ms.append((time.process_time() - start) * 1e3)
        count["schemas taken"] += 1
        seen = Counter(verdict(engine, matcher, test, case, tokenizer, times, reasons) for test in case["tests"])
        count += seen
        is_passing = seen.keys() <= {"valid accepted", "invalid refused", "valid refused, form"}
        count["schemas passing, but for form"] += is_passing
        count["schemas passing"] += is_passing and not seen["valid refused, form"]
        size = engine.memory_bytes(matcher)
        sizes += [] if size is None else [size]
        engine.finish(matcher)
    row = {"engine": engine.name, **{name: count[name] for name in (*SCHEMAS, *PASSING, *OUTCOMES)}}
    row |= {"refused_by": dict(reasons.most_common()), **percentiles("ms", ready_ms)}
    return row | times.row() | percentiles("bytes", sizes)


class StepTimes:
    """Times of the steps of texts, in microseconds."""

    def __init__(self) -> None:
        self.cold: list[float] = []
        self.warm: list[float] = []
        self.accept: list[float] = []

    def follow(self, walk: Walk, tokens: list[int], masks: list[float]) -> bool:
        """Follow a text, and return whether it is accepted."""
        for token in tokens:
            start = time.perf_counter()
            walk.fill()
            filled = time.perf_counter()
            is_accepted = walk.accept(token)
            self.accept.append((time.perf_counter() - filled) * 1e6)
            masks.append((filled - start) * 1e6)
            if not is_accepted:
                return False
        return True

    def row(self) -> dict[str, float]:
        return (
            percentiles("cold_us", self.cold)
            | percentiles("warm_us", self.warm)
            | percentiles("accept_us", self.accept)
        )


def percentiles(unit: str, values: Sequence[float]) -> dict[str, float]:
    """p50 and p99, nothing without values."""
    return {f"{name}_{unit}": round(float(np.percentile(values, at)), 3) for name, at in QUANTILES if values}


def verdict(
    engine: Engine,
    matcher: Any,
    test: dict[str, Any],
    case: dict[str, Any],
    tokenizer: Any,
    times: StepTimes,
    reasons: Counter[str],
) -> str:
    """One of ``OUTCOMES``. The steps of a valid instance are timed."""
    tokens = [*tokens_of(test["data"], tokenizer), tokenizer.eos_token_id]
    walk = engine.walk(matcher) if test["valid"] else None
    try:
        if walk is None:
            is_accepted = engine.accepts(matcher, tokens[:-1])
        elif is_accepted := times.follow(walk, tokens, times.cold):
            again = engine.walk(matcher)
            assert again is not None
            times.follow(again, tokens, times.warm)
    except Refused as refused:  # by a limit that it reached in the text
        reasons[refused.reason] += 1
        is_accepted = False
    outcome = f"{'valid' if test['valid'] else 'invalid'} {'accepted' if is_accepted else 'refused'}"
    schema, schemas = case["schema"], case.get("schemas")
    if outcome == "valid refused" and is_accepted_in_its_form(
        engine, matcher, test["data"], schema, tokenizer, schemas
    ):
        outcome += ", form"
    if outcome == "invalid accepted" and not schemas and is_valid_without_formats(test["data"], schema):
        outcome += ", format"
    return outcome


def is_valid_without_formats(instance: Any, schema: Any) -> bool:
    """Whether an instance violates nothing but a ``format``, which may be an
    annotation."""
    return bool(jsonschema.validators.validator_for(schema)(schema).is_valid(instance))


def main() -> None:
    parser = harness.argument_parser("count accepted and refused schemas and instances", quick="a small vocabulary")
    parser.add_argument("--maskbench", type=Path, metavar="PATH", help="default: the schemas of our tests")
    parser.add_argument("--schemastore", type=Path, metavar="PATH", help="a checkout of SchemaStore, instead")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take every N-th schema")
    parser.add_argument("--all", nargs="*", default=[], metavar="ENGINE", help="engines that take all schemas as well")
    parser.add_argument("--engines", nargs="*", metavar="ENGINE", help="engines to measure, by name; default: all")
    arguments = parser.parse_args()
    tokenizer = trained_tokenizer(2000, 1_000_000) if arguments.quick else large_tokenizer()
    vocab_size = len(tokenizer) if arguments.quick else VOCAB_SIZE

    path = arguments.schemastore or arguments.maskbench
    cases = read_schema_store(path) if arguments.schemastore else read_cases(path)
    # MaskBench keeps its schemas in maskbench/data.
    cases_name = (path.parent if path.name == "data" else path).name if path else "tests/corpus/schemas.jsonl"
    name = "verdicts"
    if arguments.schemastore:
        name, cases_name = "schemastore", "SchemaStore"
    described = {"cases": cases_name, "vocabulary": tokenizer.name_or_path}
    results = harness.ResultsFile(name, torch.device("cpu"), arguments)
    for engine in [*engines(tokenizer, vocab_size), *fsm_engines(tokenizer, vocab_size)]:
        if arguments.engines is not None and engine.name not in arguments.engines:
            continue
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
