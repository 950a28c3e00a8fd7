"""Walks of texts that a device follows, compared with the engine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch

from structout import DeviceStacks, allocate_token_bitmask
from structout.grammar.interface import StructuredOutputGrammar
from structout.grammar.vocabulary import Vocabulary
from structout.ops.stack_tables import ASKED_STACK, DEAD_STACK, FINISHED_STACK


class DeviceWalk:
    """Texts on a device beside the engine's own."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        grammars: list[StructuredOutputGrammar],
        device: str,
        rng: random.Random,
        **options: Any,
    ):
        self.vocabulary, self.grammars, self.rng = vocabulary, grammars, rng
        self.stacks = DeviceStacks(vocabulary, device, len(grammars), **options)
        for row, grammar in enumerate(grammars):
            self.stacks.start(row, grammar.stack_tables())
        self.num_asked = self.num_rows = 0

    def masks(self) -> torch.Tensor:
        """The masks of all texts by the engine, compared with those of the tables."""
        masks = allocate_token_bitmask(len(self.grammars), self.vocabulary.size, pin_memory=False)
        for row, grammar in enumerate(self.grammars):
            grammar._fill(masks, row)
        rows = self.stacks.rows().tolist()
        self.num_asked += int((self.stacks.stacks[:, 0] == ASKED_STACK).sum())
        self.num_rows += len(rows)
        for row, grammar in enumerate(self.grammars):
            assert (rows[row] == -1) == grammar.is_terminated()
            if rows[row] != -1:
                assert torch.equal(self.stacks.masks[rows[row]].cpu(), masks[row]), self.where(row)
        return masks

    def where(self, row: int) -> tuple[bytes, list[int]]:
        tokens = self.grammars[row].matcher.recent_tokens(1000)
        return b"".join(self.vocabulary.token_bytes[token] for token in tokens), self.stacks.stacks[row].tolist()

    def draw(self, mask: torch.Tensor) -> int:
        allowed = [token for token in range(self.vocabulary.size) if int(mask[token >> 5]) >> (token & 31) & 1]
        return self.rng.choice(allowed)

    def step(self) -> None:
        """Advance all texts by an allowed token, once they have refused another."""
        masks = self.masks()
        wrong = [self.rng.randrange(self.vocabulary.size) for _ in self.grammars]
        drafts = [[token] for token in wrong]
        before = self.stacks.stacks.clone()
        num_legal = [len(g.validate_tokens(d)) for g, d in zip(self.grammars, drafts, strict=True)]
        refused = torch.tensor([n == 0 for n in num_legal])
        self.stacks.advance(torch.tensor(wrong), refused)
        assert (self.stacks.stacks[refused, 0] == DEAD_STACK).all()
        assert torch.equal(self.stacks.stacks[~refused], before[~refused])
        for row in refused.nonzero().flatten().tolist():
            self.stacks.rollback(row, 1)
        tokens = [0 if g.is_terminated() else self.draw(mask) for g, mask in zip(self.grammars, masks, strict=True)]
        self.stacks.advance(torch.tensor(tokens))
        for grammar, token in zip(self.grammars, tokens, strict=True):
            assert grammar.accept_tokens("", [token])

    def check_ends(self) -> None:
        tops = self.stacks.stacks[:, 0].tolist()
        for top, grammar in zip(tops, self.grammars, strict=True):
            assert (top == FINISHED_STACK) == grammar.is_terminated()

    def check_drafts(self) -> None:
        """Compare the masks along random drafts, and advance all texts by those that
        are allowed and a token more."""
        drafts: list[int] = []
        ends, num_accepted = [0], []
        expected = allocate_token_bitmask(8 * len(self.grammars), self.vocabulary.size, pin_memory=False)
        for grammar in self.grammars:
            last = self.rng.choice([[], [self.rng.randrange(self.vocabulary.size)], [-1]])
            tokens = [*self._allowed_prefix(grammar), *last]
            num_accepted.append(grammar.fill_bitmask_drafts(expected, ends[-1], tokens))
            drafts += [*tokens, 0]
            ends.append(len(drafts))
        rows = self.stacks.draft_rows(torch.tensor(drafts), torch.tensor(ends)).tolist()
        for row, want in zip(rows, expected, strict=False):
            assert torch.equal(self.stacks.masks[row] if row != -1 else torch.full_like(want, -1), want)
        last_rows = [ends[i] + count for i, count in enumerate(num_accepted)]
        for row in last_rows:
            drafts[row] = 0 if rows[row] == -1 else self.draw(expected[row])
        self.stacks.advance_verified(torch.tensor(ends), torch.tensor(drafts), torch.tensor(num_accepted))
        for i, grammar in enumerate(self.grammars):
            grammar.accept_tokens("", drafts[ends[i] : last_rows[i] + 1])
        live = torch.tensor([not grammar.is_terminated() for grammar in self.grammars])
        assert (self.stacks.stacks[live, 0] != DEAD_STACK).all()
        self.masks()

    def _allowed_prefix(self, grammar: StructuredOutputGrammar) -> Iterator[int]:
        count, mask = self.rng.randrange(5), allocate_token_bitmask(1, self.vocabulary.size, pin_memory=False)
        taken = 0
        while taken < count and not grammar.is_terminated():
            grammar.fill_bitmask(mask, 0)
            token = self.draw(mask[0])
            yield token
            grammar.accept_tokens("", [token])
            taken += 1
        grammar.rollback(taken)
