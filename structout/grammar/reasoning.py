"""Constraints that start after the tokens that end a model's reasoning."""

from collections.abc import Sequence

import torch

from structout.grammar.interface import StructuredOutputGrammar
from structout.grammar.vocabulary import token_id


class ReasoningGrammar(StructuredOutputGrammar):
    """A grammar that applies after certain tokens. Before them, every token is allowed.
    For engines that know no reasoning themselves.

    Args:
        grammar: the grammar at its start.
        end_of_reasoning: token ids, at least one, such as those of ``</think>``. The
            grammar applies to the tokens after the first uninterrupted occurrence.
        vocab_size: number of token ids.
    """

    def __init__(self, grammar: StructuredOutputGrammar, end_of_reasoning: Sequence[int], vocab_size: int):
        self.grammar = grammar
        self._end_of_reasoning = list(end_of_reasoning)
        self._vocab_size = vocab_size
        self._free_tokens: list[int] = []  # up to the end of the reasoning, which is included

    @property
    def is_open(self) -> bool:
        """True after the reasoning: the grammar applies to the next token."""
        return self._free_tokens[-len(self._end_of_reasoning) :] == self._end_of_reasoning

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        free, constrained, _ = self._split(tokens)
        ids = [token for token in free if token is not None]
        if len(ids) < len(free) or not self.grammar.accept_tokens(request_id, constrained):
            return False
        self._free_tokens += ids
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        free, constrained, _ = self._split(tokens)
        if None in free:
            return tokens[: free.index(None)]
        return tokens[: len(free)] + self.grammar.validate_tokens(constrained)

    def rollback(self, num_tokens: int) -> None:
        constrained = min(num_tokens, self.grammar.num_tokens)
        self.grammar.rollback(constrained)
        if num_tokens > constrained:
            del self._free_tokens[constrained - num_tokens :]

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        if self.is_open:
            self.grammar.fill_bitmask(bitmask, batch_index)
        else:
            bitmask[batch_index] = -1

    def fill_bitmask_drafts(self, bitmask: torch.Tensor, first_row: int, draft_tokens: Sequence[int]) -> int:
        free, constrained, opens = self._split(draft_tokens)
        num_free = free.index(None) if None in free else len(free)
        if num_free < len(free) or not opens:
            bitmask[first_row : first_row + len(draft_tokens) + 1] = -1
            return num_free
        bitmask[first_row : first_row + num_free] = -1
        return num_free + self.grammar.fill_bitmask_drafts(bitmask, first_row + num_free, constrained)

    def is_terminated(self) -> bool:
        return self.grammar.is_terminated()

    def is_unconstrained(self) -> bool:
        return not self.is_open or self.grammar.is_unconstrained()

    @property
    def error_reason(self) -> str:  # type: ignore[override]
        return self.grammar.error_reason

    @property
    def num_tokens(self) -> int:
        return len(self._free_tokens) + self.grammar.num_tokens

    @property
    def memory_bytes(self) -> int:
        return self.grammar.memory_bytes

    def forced_bytes(self) -> bytes:
        return self.grammar.forced_bytes() if self.is_open else b""

    def compute_ff_tokens(self) -> list[int]:
        return self.grammar.compute_ff_tokens() if self.is_open else []

    def reset(self) -> None:
        self.grammar.reset()
        self._free_tokens.clear()

    def copy(self, stop_token_ids: Sequence[int] | None = None) -> "ReasoningGrammar":
        return ReasoningGrammar(self.grammar.copy(stop_token_ids), self._end_of_reasoning, self._vocab_size)

    def fork(self) -> "ReasoningGrammar":
        fork = ReasoningGrammar(self.grammar.fork(), self._end_of_reasoning, self._vocab_size)
        fork._free_tokens = self._free_tokens.copy()
        return fork

    def _split(self, tokens: Sequence[int]) -> tuple[list[int | None], list[int], bool]:
        """Split tokens at the end of the reasoning.

        Returns:
            The tokens up to there (None for an invalid id), the tokens after it, and
            whether the grammar applies after all of them.
        """
        if self.is_open:
            return [], list(tokens), True
        free: list[int | None] = []
        num_before = max(0, len(self._free_tokens) - len(self._end_of_reasoning) + 1)
        seen: list[int | None] = [*self._free_tokens[num_before:]]
        for i, token in enumerate(tokens):
            free.append(token_id(token, self._vocab_size))
            seen.append(free[-1])
            if seen[-len(self._end_of_reasoning) :] == self._end_of_reasoning:
                return free, list(tokens[i + 1 :]), True
        return free, [], False
