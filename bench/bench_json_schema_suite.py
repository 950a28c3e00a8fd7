"""Counts the tests of the official JSON Schema test suite that structout, its own
engine, xgrammar and llguidance get wrong, in drafts 7 and 2020-12.

    python bench/bench_json_schema_suite.py [FOLDER] [--optional] [--quick]

FOLDER is a checkout of https://github.com/json-schema-org/JSON-Schema-Test-Suite.
Without it nothing is measured. Instances are serialized by json.dumps. What structout's
own engine refuses because of the order of keys alone is counted apart. Exits with
status 1 if structout or its engine accepts an invalid instance.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import harness
import torch
from engines_alone import Engine, Refused, engines, fsm_engines
from large_tokenizer import trained_tokenizer

DRAFTS = {
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}


def judge(engine: Engine, files: list[Path], draft: str, tokenizer: Any) -> dict[str, Any]:
    """Count schemas and instances. ``refused_by`` counts refused schemas by reason,
    ``valid_refused_by`` valid instances by the keyword that their file is named
    after."""
    names = ("schemas served", "schemas refused", "invalid accepted", "valid refused", "valid refused, order")
    count = Counter(dict.fromkeys(names, 0))
    reasons: Counter[str] = Counter()
    keywords: Counter[str] = Counter()
    wrong = []
    for file in files:
        for case in json.loads(file.read_text()):
            schema = case["schema"]
            schema = {"$schema": DRAFTS[draft]} | schema if isinstance(schema, dict) else schema
            try:
                matcher = engine.compile(schema)
            except Refused as refused:
                count["schemas refused"] += 1
                reasons[refused.reason] += 1
                continue
            count["schemas served"] += 1
            for test in case["tests"]:
                text = json.dumps(test["data"], ensure_ascii=False)
                tokens = tokenizer.encode(text, add_special_tokens=False)
                is_accepted = accepts(engine, matcher, tokens)
                verdict = f"{'valid' if test['valid'] else 'invalid'} {'accepted' if is_accepted else 'refused'}"
                if verdict == "valid refused":
                    any_order = engine.any_order
                    if any_order is not None and accepts(any_order, any_order.compile(schema), tokens):
                        verdict += ", order"
                    else:
                        keywords[file.stem] += 1
                elif verdict == "invalid accepted":
                    wrong.append(f"{file.stem}: {case['description']}: {json.dumps(schema)} accepts {text}")
                count[verdict] += 1
            engine.finish(matcher)
    if engine.name.startswith("structout"):
        print(*wrong, sep="\n")
    return {**count, "refused_by": dict(reasons.most_common()), "valid_refused_by": dict(keywords.most_common())}


def accepts(engine: Engine, matcher: Any, tokens: list[int]) -> bool:
    try:
        return engine.accepts(matcher, tokens)
    except Refused:  # by a limit that it reached in the text
        return False


def main() -> int:
    parser = harness.argument_parser(
        "count wrong verdicts on the official test suite", quick="structout and its engine alone"
    )
    parser.add_argument("suite", type=Path, nargs="?", metavar="FOLDER", help="a checkout of JSON-Schema-Test-Suite")
    parser.add_argument("--optional", action="store_true", help="the optional tests instead, formats left out")
    arguments = parser.parse_args()
    if arguments.suite is None:
        print("no checkout of JSON-Schema-Test-Suite was given: nothing was measured")
        return 0
    tokenizer = trained_tokenizer(2000, 1_000_000)
    results = harness.ResultsFile("json_schema_suite", torch.device("cpu"), arguments)
    num_wrong = 0
    peers = engines(tokenizer, len(tokenizer))
    for engine in [*peers[: 1 if arguments.quick else None], *fsm_engines(tokenizer, len(tokenizer))]:
        for draft in DRAFTS:
            folder = arguments.suite / "tests" / draft
            files = sorted((folder / "optional" if arguments.optional else folder).glob("*.json"))
            row = {"engine": engine.name, "draft": draft, **judge(engine, files, draft, tokenizer)}
            num_wrong += row["invalid accepted"] if engine.name.startswith("structout") else 0
            results.add(row)
            print(row, flush=True)
    results.close()
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
