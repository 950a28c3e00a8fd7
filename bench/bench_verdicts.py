"""Counts the schemas and instances that structout, xgrammar and llguidance accept or
refuse.

    python bench/bench_verdicts.py [--maskbench maskbench_sample.jsonl] [--quick]

Each line of the file has a "schema" and its "tests", each with "valid" and "data".
Instances are serialized by json.dumps and fed as the tokenizer's tokens. An accepted
invalid instance breaks the guarantee; a refused schema or valid instance restricts the
model needlessly. Takes minutes, most of them in xgrammar.
"""

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from engines_alone import Engine, Refused, engines, read_cases
from harness import write_results
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
    parser = argparse.ArgumentParser(description="count accepted and refused schemas and instances")
    parser.add_argument("--maskbench", type=Path, metavar="FILE", help="default: the schemas of our tests")
    parser.add_argument("--quick", action="store_true", help="a small vocabulary; writes nothing")
    arguments = parser.parse_args()
    tokenizer = trained_tokenizer(2000, 1_000_000) if arguments.quick else large_tokenizer()
    vocab_size = len(tokenizer) if arguments.quick else VOCAB_SIZE

    cases = read_cases(arguments.maskbench)
    rows = []
    for engine in engines(tokenizer, vocab_size):
        rows.append(verdicts(engine, cases, tokenizer))
        print(rows[-1], flush=True)
    if not arguments.quick:
        name = arguments.maskbench.name if arguments.maskbench else "tests/data/schemas.jsonl"
        rows = [{"cases": name, "vocabulary": tokenizer.name_or_path, **row} for row in rows]
        print(write_results("verdicts", torch.device("cpu"), rows))


if __name__ == "__main__":
    main()
