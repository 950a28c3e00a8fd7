"""Measures compute_ff_tokens beside llguidance: the share of forced tokens, and the
time for each.

    python bench/bench_jump_forward.py [--maskbench maskbench_sample.jsonl] [--quick]

Each line of the file has a "schema" and its "tests", each with "valid" and "data". All
engines follow the tokenizer's own tokens of each valid instance that they all accept.
Each jump is compared with those tokens before its time counts. Schemas that xgrammar
compiles for seconds are left out. xgrammar allows no properties that a schema does not
name; llguidance does, and so leaves more choices. "first" is the first pass over a
text; in "again" the engines have seen its words.
"""

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import harness
import llguidance.hf
import torch
from engines_alone import read_cases
from large_tokenizer import VOCAB_SIZE, large_tokenizer, trained_tokenizer
from llguidance import LLMatcher

from structout.constraints.params import StructuredOutputOptions
from structout.errors import GrammarError
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.interface import StructuredOutputBackend
from structout.grammar.optional.llguidance import LlguidanceBackend
from structout.grammar.optional.xgrammar import XgrammarBackend
from structout.grammar.vocabulary import Vocabulary

SLOW_IN_XGRAMMAR = ('"maxLength"', '"pattern"', '"maxItems"')
WHITESPACE: dict[str, dict[str, Any]] = {"flexible": {"indent": 2}, "compact": {}}
Start = Callable[[str], "Follower | None"]  # from a schema


@dataclass(frozen=True)
class Follower:
    """One engine at its position in a text."""

    compute_ff_tokens: Callable[[], list[int]]
    accept: Callable[[int], bool]


@dataclass
class Measured:
    """Measurements of one engine.

    Attributes:
        seconds: time per forced token, one sample per jump, for "first" and "again".
        seconds_in_vain: time of calls that force nothing.
    """

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    seconds_in_vain: list[float] = field(default_factory=list)
    num_forced: int = 0

    def row(self, num_tokens: int) -> dict[str, Any]:
        def median_us(samples: list[float]) -> float:
            return round(statistics.median(samples) * 1e6, 2)

        return {
            "jumps": len(self.seconds["first"]),
            "forced_share": round(self.num_forced / num_tokens, 4),
            "us_per_forced_token": {when: median_us(samples) for when, samples in self.seconds.items()},
            "us_in_vain": median_us(self.seconds_in_vain),
        }


def engines(tokenizer: Any, vocab_size: int, any_whitespace: bool) -> dict[str, Start]:
    vocabulary = Vocabulary.from_tokenizer(tokenizer, vocab_size)
    canonical = CanonicalTokenizer(tokenizer, vocabulary)
    backends = {
        "structout over xgrammar": XgrammarBackend(
            vocabulary, canonical_tokenizer=canonical, any_whitespace=any_whitespace
        ),
        "structout over llguidance": LlguidanceBackend(
            vocabulary, canonical_tokenizer=canonical, any_whitespace=any_whitespace
        ),
    }
    starts = {name: partial(follow_structout, backend) for name, backend in backends.items()}
    llguidance_tokenizer = llguidance.hf.from_tokenizer(tokenizer, n_vocab=vocab_size)
    return {**starts, "llguidance": partial(follow_llguidance, llguidance_tokenizer, any_whitespace)}


def follow_structout(backend: StructuredOutputBackend, schema: str) -> Follower | None:
    try:
        grammar = backend.compile_grammar(StructuredOutputOptions.JSON, schema)
    except GrammarError:
        return None
    return Follower(grammar.compute_ff_tokens, lambda token: grammar.accept_tokens("", [token]))


def follow_llguidance(tokenizer: Any, any_whitespace: bool, schema: str) -> Follower | None:
    compact = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    grammar = LLMatcher.grammar_from_json_schema(schema, overrides=None if any_whitespace else compact)
    matcher = LLMatcher(tokenizer, grammar)
    if matcher.is_error():
        return None
    return Follower(matcher.compute_ff_tokens, lambda token: matcher.try_consume_tokens([token]) == 1)


def instances(path: Path | None, style: dict[str, Any], limit: int) -> Iterator[tuple[str, str]]:
    """Yield pairs of a schema and a valid text."""
    for example in read_cases(path)[:limit]:
        schema = json.dumps(example["schema"])
        if not any(keyword in schema for keyword in SLOW_IN_XGRAMMAR):
            for test in example["tests"]:
                if test["valid"]:
                    yield schema, json.dumps(test["data"], ensure_ascii=False, **style)


def walk(follower: Follower, tokens: list[int], measured: Measured | None, when: str) -> bool:
    """Follow ``tokens`` to their end. Returns False if the engine refuses one."""
    free_from = 0
    for position, token in enumerate(tokens):
        if position >= free_from and measured is not None:
            start = time.perf_counter()
            forced = follower.compute_ff_tokens()
            seconds = time.perf_counter() - start
            free_from = position + len(forced)
            if forced != tokens[position:free_from]:
                raise AssertionError(f"forced {forced}, the tokenizer writes {tokens[position:free_from]}")
            if forced:
                measured.seconds[when].append(seconds / len(forced))
                measured.num_forced += len(forced) if when == "first" else 0
            elif when == "again":
                measured.seconds_in_vain.append(seconds)
        if not follower.accept(token):
            return False
    return True


def measure(path: Path | None, tokenizer: Any, vocab_size: int, whitespace: str, limit: int) -> list[dict[str, Any]]:
    starts = engines(tokenizer, vocab_size, whitespace == "flexible")
    measured = {name: Measured() for name in starts}
    num_instances = num_tokens = 0
    for schema, text in instances(path, WHITESPACE[whitespace], limit):
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        trials = [start(schema) for start in starts.values()]
        if not all(trial is not None and walk(trial, tokens, None, "") for trial in trials):
            continue
        num_instances += 1
        num_tokens += len(tokens)
        for when in ("first", "again"):
            for name, start in starts.items():
                follower = start(schema)
                if follower is None or not walk(follower, tokens, measured[name], when):
                    raise AssertionError(f"{name} refuses what it has accepted before")
    common = {"whitespace": whitespace, "vocabulary": tokenizer.name_or_path, "instances": num_instances}
    return [{**common, "tokens": num_tokens, "engine": name, **m.row(num_tokens)} for name, m in measured.items()]


def main() -> None:
    parser = harness.argument_parser(
        "compute_ff_tokens beside llguidance's", quick="a small vocabulary and few schemas"
    )
    parser.add_argument("--maskbench", type=Path, metavar="FILE", help="default: the schemas of our tests")
    arguments = parser.parse_args()
    tokenizer = trained_tokenizer(2000, 1_000_000) if arguments.quick else large_tokenizer()
    vocab_size = len(tokenizer) if arguments.quick else VOCAB_SIZE
    results = harness.ResultsFile("jump_forward", torch.device("cpu"), arguments)
    rows: list[dict[str, Any]] = []
    for whitespace in WHITESPACE:
        rows += measure(arguments.maskbench, tokenizer, vocab_size, whitespace, 30 if arguments.quick else 10**6)
    for row in rows:
        results.add(row)
        times = "  ".join(f"{when} {us:5.2f} us" for when, us in row["us_per_forced_token"].items())
        share = f"{row['forced_share']:.1%} of {row['tokens']:,} tokens forced"
        print(f"{row['whitespace']:<9}{row['engine']:<27}{share}, each: {times}, in vain {row['us_in_vain']:.2f} us")
    results.close()


if __name__ == "__main__":
    main()
