"""Random structural tags against their definition, by trying every short text."""

from __future__ import annotations

import itertools
import random

from soak.hunt import Hunter, Tally
from structout.grammar.native.grammars import CompiledGrammar
from support.random_tags import BYTES, random_format, rules_of
from support.tag_texts import is_text_of

NUM_TAGS = 4
LETTERS, LONGEST = "ab<", 6
TEXTS = ["".join(letters) for length in range(LONGEST + 1) for letters in itertools.product(LETTERS, repeat=length)]


class Tags(Hunter):
    def hunt(self, seed: int, tally: Tally) -> None:
        rng = random.Random(f"soak tags {seed}")
        for _ in range(NUM_TAGS):
            part = random_format(rng, rng.choice([1, 2, 2, 3]))
            expected = [text for text in TEXTS if is_text_of({"format": part}, text)]
            rules = rules_of(part)
            engines = {"grammar": CompiledGrammar(rules, BYTES), "automaton": rules.automaton()}
            for name, engine in engines.items():
                if engine is None:  # too large for an automaton
                    tally.executions["tags without an automaton"] += 1
                    continue
                accepted = [text for text in TEXTS if engine.matches(text)]
                if accepted != expected:
                    wrong = sorted(set(accepted) ^ set(expected), key=lambda text: (len(text), text))[:5]
                    tally.findings.append(f"the {name} of {part} judges {wrong} otherwise than its definition")
            tally.executions["tags"] += 1
            tally.executions["pairs of a tag and a text"] += len(TEXTS)


make = Tags
