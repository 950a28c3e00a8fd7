"""Verdicts of random regular expressions against JavaScript's own, in node.

Each pattern is asked twice: as the constraint ``regex``, which matches whole texts, and
as ``pattern`` of a JSON schema, which is found anywhere in a string. A pattern on which
node backtracks for too long is counted and left out.
"""

from __future__ import annotations

import json
import random

from soak.hunt import Hunter, Tally
from soak.node import Node
from structout.errors import GrammarError
from structout.grammar.native.automaton import Automaton
from support.json_engine import JsonEngine, refusal_of
from support.random_patterns import anchored, mutated, random_pattern

NUM_PATTERNS, NUM_TEXTS = 30, 12
_LONGEST_TEXT = 40


class Patterns(Hunter):
    def __init__(self) -> None:
        self._node = Node()
        self._engine = JsonEngine()

    def hunt(self, seed: int, tally: Tally) -> None:
        rng = random.Random(f"soak patterns {seed}")
        for _ in range(NUM_PATTERNS):
            pattern = anchored(random_pattern(rng), rng.random() < 0.3, rng.random() < 0.3)
            texts = [pattern.sample(rng) for _ in range(NUM_TEXTS)]
            for i, text in enumerate(texts):
                for _ in range(rng.choice([0, 1, 1, 2])):
                    text = mutated(text, rng)
                texts[i] = text[:_LONGEST_TEXT]
            answer = self._node.ask(pattern=pattern.text, texts=texts)
            if "error" in answer:
                tally.executions["patterns that node gave up"] += 1
                if "timed out" not in answer["error"]:
                    tally.findings.append(f"node refuses {pattern.text!r}: {answer['error']}")
                continue
            self._compare_whole(pattern.text, texts, answer["whole"], tally)
            self._compare_found(pattern.text, texts, answer["found"], tally)

    def _compare_whole(self, pattern: str, texts: list[str], expected: list[bool], tally: Tally) -> None:
        try:
            automaton = Automaton.from_regex(pattern)
        except GrammarError as error:
            tally.executions[f"patterns refused: {error.kind.value}"] += 1
            return
        tally.executions["patterns"] += 1
        for text, is_whole in zip(texts, expected, strict=True):
            tally.executions["pairs of a pattern and a text"] += 1
            if automaton.matches(text) != is_whole:
                tally.findings.append(f"node says {is_whole}: {pattern!r} matches {text!r}")

    def _compare_found(self, pattern: str, texts: list[str], expected: list[bool], tally: Tally) -> None:
        try:
            index = self._engine.compile({"type": "string", "pattern": pattern})
        except ValueError as error:
            tally.executions[f"patterns refused in schemas: {refusal_of(error)}"] += 1
            if refusal_of(error) == "impossible" and any(expected):
                tally.findings.append(f"node finds {pattern!r} in one of {texts!r}; the schema is impossible")
            return
        for text, is_found in zip(texts, expected, strict=True):
            tally.executions["pairs of a pattern in a schema and a string"] += 1
            if index.matches(json.dumps(text, ensure_ascii=False).encode()) != is_found:
                tally.findings.append(f"node says {is_found}: {pattern!r} is found in {text!r}")

    def close(self) -> None:
        self._node.close()


make = Patterns
