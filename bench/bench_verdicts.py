"""Counts the schemas and instances that structout, xgrammar and llguidance accept or
refuse.

    python bench/bench_verdicts.py [--maskbench maskbench_sample.jsonl] [--quick]

Each line of the file has a "schema" and its "tests", each with "valid" and "data".
Instances are serialized by json.dumps and fed as the tokenizer's tokens. An accepted
invalid instance breaks the guarantee; a refused schema or valid instance restricts the
model needlessly. Takes minutes, most of them in xgrammar.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import harness
import torch
from engines_alone import Engine, Refused, engines, read_cases
from large_tokenizer import VOCAB_SIZE, large_tokenizer, trained_tokenizer

OUTCOMES = ("valid accepted", "valid refused", "invalid accepted", "invalid refused")


def verdicts(engine: Engine, cases: list[dict[str, Any]], tokenizer: Any) -> dict[str, Any]:
    count = Counter(dict.fromkeys(("schemas taken", "schemas refused", *OUTCOMES), 0))
    for case in cases:
        try:
            matcher = engine.compile(case["schema"])
        except Refused:
            count["schemas refused"] += 1
            continue
        count["schemas taken"] += 1
        for test in case["tests"]:
            tokens = tokenizer.encode(json.dumps(test["data"], ensure_ascii=False), add_special_tokens=False)
            verdict = "accepted" if engine.accepts(matcher, tokens) else "refused"
            count[f"{'valid' if test['valid'] else 'invalid'} {verdict}"] += 1
    return {"engine": engine.name, **count}


def main() -> None:
    parser = harness.argument_parser("count accepted and refused schemas and instances", quick="a small vocabulary")
    parser.add_argument("--maskbench", type=Path, metavar="FILE", help="default: the schemas of our tests")
    arguments = parser.parse_args()
    tokenizer = trained_tokenizer(2000, 1_000_000) if arguments.quick else large_tokenizer()
    vocab_size = len(tokenizer) if arguments.quick else VOCAB_SIZE

    cases = read_cases(arguments.maskbench)
    cases_name = arguments.maskbench.name if arguments.maskbench else "tests/data/schemas.jsonl"
    results = harness.ResultsFile("verdicts", torch.device("cpu"), arguments)
    for engine in engines(tokenizer, vocab_size):
        row = {"cases": cases_name, "vocabulary": tokenizer.name_or_path, **verdicts(engine, cases, tokenizer)}
        results.add(row)
        print(row, flush=True)
    results.close()


if __name__ == "__main__":
    main()
