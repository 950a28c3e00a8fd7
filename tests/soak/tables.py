"""Texts that stack tables follow, against the engine, over small hostile vocabularies.

Several constraints share the tables, and are followed side by side. In each state along
random texts the masks are equal, both refuse the same tokens, and texts end together.
Some are rolled back on their way.
"""

from __future__ import annotations

import random

import torch

from soak.hunt import Hunter, Tally
from soak.masks import FORMS, MAKERS, hostile_vocabulary
from structout import DeviceStacks
from structout.errors import GrammarError, GrammarLimitError
from structout.grammar.interface import StructuredOutputGrammar
from structout.grammar.native.backend import FsmBackend
from structout.grammar.vocabulary import Vocabulary
from structout.masks.bitmask import allocate_token_bitmask
from structout.ops.stack_tables import ASKED_STACK, DEAD_STACK, FINISHED_STACK

NUM_VOCABULARIES, NUM_CONSTRAINTS, NUM_STEPS = 3, 4, 25


class Text:
    """A row of the tables, and the same text by the engine."""

    def __init__(self, row: int, spec: str, grammar: StructuredOutputGrammar, stacks: DeviceStacks):
        self.row, self.spec, self.grammar, self.stacks = row, spec, grammar, stacks
        self.tokens: list[int] = []
        self._mask = allocate_token_bitmask(1, grammar.vocab_size, pin_memory=False)

    def problem(self, row: int) -> str | None:
        """What is wrong with the row of its mask."""
        if (row == -1) != self.grammar.is_terminated():
            return "one of them has ended"
        if row == -1:
            return None
        self.grammar.fill_bitmask(self._mask, 0)
        self.check_limits()
        return None if torch.equal(self.stacks.masks[row], self._mask[0]) else "the masks differ"

    def allowed(self) -> list[int]:
        """The tokens of the last mask."""
        return [token for token in range(self.grammar.vocab_size) if int(self._mask[0, token >> 5]) >> (token & 31) & 1]

    def check_limits(self) -> None:
        if self.grammar.error_reason:
            raise GrammarLimitError(self.grammar.error_reason)

    def advance(self, token: int) -> str | None:
        """Let both read a token, and compare what becomes of the text."""
        is_accepted = self.grammar.accept_tokens("", [token])
        self.check_limits()
        self._read(token)
        top = int(self.stacks.stacks[self.row, 0])
        if is_accepted != (top != DEAD_STACK):
            return f"accept says {is_accepted} of token {token}"
        if is_accepted:
            self.tokens.append(token)
            return None if self.grammar.is_terminated() == (top == FINISHED_STACK) else "one of them has ended"
        num_more = token % 3  # what comes after a refused token changes nothing
        for more in range(num_more):
            self._read(more)
        is_dead = int(self.stacks.stacks[self.row, 0]) == DEAD_STACK
        self.stacks.rollback(self.row, num_more)
        is_dead &= int(self.stacks.stacks[self.row, 0]) == DEAD_STACK
        self.stacks.rollback(self.row, 1)
        return None if is_dead else f"a text that has refused token {token} goes on"

    def rollback(self, count: int) -> None:
        self.stacks.rollback(self.row, count)
        self.grammar.rollback(count)
        del self.tokens[len(self.tokens) - count :]

    def _read(self, token: int) -> None:
        tokens = torch.zeros(len(self.stacks.stacks), dtype=torch.int64)
        is_active = torch.zeros(len(self.stacks.stacks), dtype=torch.bool)
        tokens[self.row], is_active[self.row] = token, True
        self.stacks.advance(tokens, is_active)


class Tables(Hunter):
    def hunt(self, seed: int, tally: Tally) -> None:
        rng = random.Random(f"soak tables {seed}")
        for _ in range(NUM_VOCABULARIES):
            made = [rng.choice(MAKERS)(rng) for _ in range(NUM_CONSTRAINTS)]
            texts = [text for _, _, texts in made for text in texts if text]
            vocabulary = hostile_vocabulary(rng, texts or [b"x"])
            backend = FsmBackend(vocabulary, form=rng.choice(FORMS))
            stacks = DeviceStacks(vocabulary, "cpu", NUM_CONSTRAINTS, max_masks=rng.choice([2, 1024]))
            started = []
            for row, (kind, spec, _) in enumerate(made):
                try:
                    grammar = backend.compile_grammar(kind, spec)
                except GrammarError as error:
                    tally.executions[f"constraints refused: {error.kind.value}"] += 1
                    continue
                tables = grammar.stack_tables()
                if tables is None:
                    tally.executions["constraints without tables"] += 1
                    continue
                stacks.start(row, tables)
                tally.executions["constraints"] += 1
                started.append(Text(row, spec, grammar, stacks))
            try:
                self._follow(started, vocabulary, rng, tally)
            except GrammarLimitError:
                tally.executions["batches that met a limit"] += 1

    def _follow(self, texts: list[Text], vocabulary: Vocabulary, rng: random.Random, tally: Tally) -> None:
        for _ in range(NUM_STEPS if texts else 0):
            stacks = texts[0].stacks
            rows = stacks.rows().tolist()
            tops = stacks.stacks[:, 0].tolist()
            for text in texts:
                tally.executions["states"] += 1
                tally.executions["states that the engine follows"] += tops[text.row] == ASKED_STACK
                problem = text.problem(rows[text.row])
                if problem is None and not text.grammar.is_terminated():
                    problem = self._step(text, vocabulary, rng)
                if problem is not None:
                    tally.findings.append(f"{problem}: {text.spec} after {text.tokens} over {vocabulary}"[:3000])
                    return

    def _step(self, text: Text, vocabulary: Vocabulary, rng: random.Random) -> str | None:
        if rng.random() < 0.1:
            text.rollback(rng.randint(0, len(text.tokens)))
            return None
        choices = text.allowed() if rng.random() < 0.7 else range(vocabulary.size)
        return text.advance(rng.choice(choices)) if choices else None


def make() -> Hunter:
    return Tables()
