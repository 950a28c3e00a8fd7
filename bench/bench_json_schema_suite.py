"""Counts the tests of the official JSON Schema test suite that structout, its own
engine, xgrammar and llguidance get wrong, in each draft.

    python bench/bench_json_schema_suite.py [FOLDER] [--wrong] [--quick]

FOLDER is a checkout of https://github.com/json-schema-org/JSON-Schema-Test-Suite.
Without it nothing is measured. Its remotes are given as further schemas. Instances are
serialized by json.dumps. Formats count as asserted, so tests that take a format or an
encoding as an annotation are counted apart, and so is what is refused for its form
alone: the order of keys and the spelling of numbers. Exits with status 1 if structout
or its engine accepts any other invalid instance.
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
from text_form import is_accepted_in_its_form

DRAFTS = {
    "draft3": "http://json-schema.org/draft-03/schema#",
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
PARTS = {"required": "", "optional": "optional", "formats": "optional/format"}
REMOTE_URI = "http://localhost:1234/"

# Files whose tests ask that a keyword is an annotation, or that a mere annotation of
# later drafts is asserted.
ANNOTATIONS = {"required": ("format",), "optional": ("content",), "formats": ()}

COUNTS = ("tests", "right", "refused", "valid refused", "invalid accepted")
APART = ("valid refused, form", "valid refused, annotation", "invalid accepted, annotation")


def judge(
    engine: Engine, files: list[Path], draft: str, part: str, remotes: dict[str, Any], tokenizer: Any
) -> dict[str, Any]:
    """Count tests. Those of a refused schema count as ``refused``, unless it is refused
    because no text satisfies it. ``refused_by`` counts such schemas by reason,
    ``wrong`` names all tests that are not right."""
    count = Counter(dict.fromkeys((*COUNTS, "schemas refused", *APART), 0))
    reasons: Counter[str] = Counter()
    wrong = []
    for file in files:
        for case in json.loads(file.read_text()):
            schema, tests = case["schema"], case["tests"]
            schema = {"$schema": DRAFTS[draft]} | schema if isinstance(schema, dict) else schema
            count["tests"] += len(tests)
            matcher = None
            try:
                matcher = engine.compile(schema, remotes)
            except Refused as refused:
                if not refused.is_impossible:
                    count["schemas refused"] += 1
                    count["refused"] += len(tests)
                    reasons[refused.reason] += 1
                    wrong.append(f"{file.stem}: {case['description']}: {len(tests)} tests refused: {refused}")
                    continue
            for test in tests:
                text = json.dumps(test["data"], ensure_ascii=False)
                tokens = tokenizer.encode(text, add_special_tokens=False)
                is_accepted = matcher is not None and accepts(engine, matcher, tokens)
                if is_accepted == test["valid"]:
                    count["right"] += 1
                    continue
                verdict = "invalid accepted" if is_accepted else "valid refused"
                if file.stem in ANNOTATIONS[part]:
                    verdict += ", annotation"
                elif (
                    matcher is not None
                    and not is_accepted
                    and is_accepted_in_its_form(engine, matcher, test["data"], schema, tokenizer, remotes)
                ):
                    verdict += ", form"
                count[verdict] += 1
                wrong.append(f"{file.stem}: {case['description']}: {test['description']}: {verdict}")
            if matcher is not None:
                engine.finish(matcher)
    return {**count, "refused_by": dict(reasons.most_common()), "wrong": wrong}


def accepts(engine: Engine, matcher: Any, tokens: list[int]) -> bool:
    try:
        return engine.accepts(matcher, tokens)
    except Refused:  # by a limit that it reached in the text
        return False


def read_remotes(suite: Path) -> dict[str, Any]:
    """The documents that tests refer to, by their URIs."""
    folder = suite / "remotes"
    files = (file.relative_to(folder) for file in sorted(folder.rglob("*.json")))
    return {
        f"{REMOTE_URI}{file.as_posix()}": json.loads((folder / file).read_text())
        for file in files
        if len(file.parts) == 1 or not file.parts[0].startswith("v")  # of no published draft
    }


def main() -> int:
    parser = harness.argument_parser(
        "count wrong verdicts on the official test suite", quick="structout and its engine alone"
    )
    parser.add_argument("suite", type=Path, nargs="?", metavar="FOLDER", help="a checkout of JSON-Schema-Test-Suite")
    parser.add_argument("--wrong", action="store_true", help="print each test that structout's engine gets wrong")
    arguments = parser.parse_args()
    if arguments.suite is None:
        print("no checkout of JSON-Schema-Test-Suite was given: nothing was measured")
        return 0
    tokenizer = trained_tokenizer(2000, 1_000_000)
    remotes = read_remotes(arguments.suite)
    results = harness.ResultsFile("json_schema_suite", torch.device("cpu"), arguments)
    num_wrong = 0
    peers = engines(tokenizer, len(tokenizer))
    for engine in [*peers[: 1 if arguments.quick else None], *fsm_engines(tokenizer, len(tokenizer))]:
        is_own = engine.name.startswith("structout")
        for draft in DRAFTS:
            for part, folder in PARTS.items():
                files = sorted((arguments.suite / "tests" / draft / folder).glob("*.json"))
                row = judge(engine, files, draft, part, remotes, tokenizer)
                wrong = row.pop("wrong")
                num_wrong += row["invalid accepted"] if is_own else 0
                row = {"engine": engine.name, "draft": draft, "part": part, **row}
                results.add(row)
                print(row, *(wrong if is_own and arguments.wrong else ()), sep="\n  ", flush=True)
    results.close()
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
