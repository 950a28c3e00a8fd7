"""Masks of random grammars against a judge that decides slowly and plainly.

Half of the grammars are in GBNF, half in Lark with terminals that overlap. The judge of
``support.grammar_judge`` shares no parser with the engine; the tests compare it with
xgrammar and llguidance.
"""

from __future__ import annotations

import random

from soak.hunt import Hunter, Tally
from support.judged_masks import check_masks, has_empty_terminal, with_another_character
from support.random_grammars import random_lexed_grammar, random_scannerless_grammar


class Grammars(Hunter):
    def hunt(self, seed: int, tally: Tally) -> None:
        rng = random.Random(f"soak grammars {seed}")
        if seed % 2 == 0:
            grammar = random_scannerless_grammar(rng)
            checked = check_masks(grammar.scannerless(), grammar.tokens(rng), grammar.gbnf(), rng, num_steps=8)
        else:
            grammar = random_lexed_grammar(rng)
            if rng.random() < 0.5:  # otherwise there are characters that no token has
                grammar = with_another_character(grammar)
            if grammar.ignored is not None and has_empty_terminal(grammar):
                return  # what is ignored may follow an empty terminal at the beginning, in llguidance only
            checked = check_masks(grammar.lexed(), grammar.tokens(rng), grammar.lark(), rng, num_steps=6)
        tally.executions["grammars"] += 1
        tally.executions["masks compared with the judge"] += checked.states
        tally.executions["tokens in these masks"] += checked.tokens
        tally.executions["tokens that the judge could not decide"] += checked.undecided
        tally.executions["grammars that met a limit"] += checked.is_over_limit

    def finish(self, tally: Tally) -> None:
        done = tally.executions
        if done["grammars that met a limit"] > 0.01 * done["grammars"] + 3:
            tally.findings.append(f"too many grammars met a limit: {done}")


make = Grammars
