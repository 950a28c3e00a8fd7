"""SGLang's grammar object over a structout grammar."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.constrained.base_grammar_backend import (
    BaseGrammarObject,
    GrammarRow,
    GrammarStats,
    InvalidGrammarObject,
)

from structout.grammar.interface import CompiledConstraint, StructuredOutputBackend, StructuredOutputGrammar
from structout.ops.apply_bitmask import apply_bitmask
from structout.ops.token_bitmask import allocate_token_bitmask


class RefusedGrammar(InvalidGrammarObject):  # type: ignore[misc]  # mypy does not read SGLang
    """A constraint that structout refuses. SGLang answers the request with the message.

    Attributes:
        memory_bytes: what a cache entry takes; None if the failure says nothing about
            the constraint, and must not be cached.
    """

    def __init__(self, message: str, *, is_permanent: bool):
        super().__init__(message)
        self.memory_bytes = 4 * len(message) if is_permanent else None


class StructoutGrammar(BaseGrammarObject):  # type: ignore[misc]  # mypy does not read SGLang
    """The position of one request in its constraint. SGLang gives each request a copy.

    Args:
        compiled: the constraint.
        backend: the engine that compiled it.
        stats: SGLang's statistics of the compilation.
    """

    def __init__(self, compiled: CompiledConstraint, backend: StructuredOutputBackend, stats: GrammarStats):
        super().__init__()
        self.grammar_stats = stats
        self._compiled = compiled
        self._backend = backend
        self._position = compiled.grammar.copy()

    @property
    def memory_bytes(self) -> int:
        """Memory of what was compiled, which all copies share."""
        return self._compiled.memory_bytes

    @property
    def num_tokens(self) -> int:
        """Number of accepted tokens, all of which can be rolled back."""
        return self._position.num_tokens

    def copy(self) -> "StructoutGrammar":
        """Return a new grammar at the start, which shares what was compiled."""
        stats = dataclasses.replace(self.grammar_stats, is_cache_hit=True, tree_traversal_time=[])
        return StructoutGrammar(self._compiled, self._backend, stats)

    def accept_token(self, token: int) -> None:
        """Advance by one token. After the end, every token is accepted.

        Raises:
            ValueError: the token is not allowed. SGLang then aborts the request.
        """
        if not self._position.accept_tokens("", [token]):
            reason = f": {self._position.error_reason}" if self._position.error_reason else ""
            raise ValueError(f"the constraint does not allow token {token} after {self.num_tokens} tokens{reason}")
        self.current_token = token

    def rollback(self, k: int) -> None:
        """Undo the last ``k`` accepted tokens. Raises ValueError if there are fewer."""
        if not 0 <= k <= self.num_tokens:
            raise ValueError(f"cannot roll back {k} tokens, {self.num_tokens} were accepted")
        self._position.rollback(k)

    def is_terminated(self) -> bool:
        return self._position.is_terminated()

    def allocate_vocab_mask(self, vocab_size: int, batch_size: int, device: Any) -> torch.Tensor:
        """A CPU bitmask of the grammar's own vocabulary, pinned where CUDA is, that
        allows all tokens."""
        return allocate_token_bitmask(batch_size, self._backend.vocabulary.size)

    def fill_vocab_mask(self, vocab_mask: torch.Tensor, idx: int) -> None:
        if self.is_terminated():
            vocab_mask[idx] = -1
        else:
            self._position.fill_bitmask(vocab_mask, idx)

    @staticmethod
    def fill_vocab_mask_batched(entries: Sequence[GrammarRow], vocab_mask: torch.Tensor) -> None:
        """Fill the rows of all entries, with one call for each engine.

        Entries may be of other classes, such as SGLang's wrapper for reasoning.
        """
        batches: dict[StructuredOutputBackend, tuple[list[StructuredOutputGrammar], list[int]]] = {}
        for row, grammar in entries:
            if isinstance(grammar, StructoutGrammar) and not grammar.is_terminated():
                grammars, rows = batches.setdefault(grammar._backend, ([], []))
                grammars.append(grammar._position)
                rows.append(row)
            else:
                grammar.fill_vocab_mask(vocab_mask, row)
        for backend, (grammars, rows) in batches.items():
            backend.fill_bitmask_batch(grammars, vocab_mask, rows)

    @staticmethod
    def reset_vocab_mask(vocab_mask: torch.Tensor) -> None:
        vocab_mask.fill_(-1)

    @staticmethod
    def move_vocab_mask(vocab_mask: torch.Tensor, device: Any) -> torch.Tensor:
        return vocab_mask.to(device, non_blocking=True)

    @staticmethod
    def apply_vocab_mask(logits: torch.Tensor, vocab_mask: torch.Tensor) -> None:
        """Set the logits of disallowed tokens to -inf, in place. Columns that the mask
        does not cover are disallowed."""
        apply_bitmask(logits, vocab_mask)

    def try_jump_forward(self, tokenizer: Any) -> tuple[list[int], str] | None:
        """The text that every allowed continuation starts with, or None."""
        text = self._position.find_jump_forward_string()
        return ([], text) if text else None

    def jump_forward_str_state(self, helper: tuple[list[int], str]) -> tuple[str, int]:
        """The text that ``try_jump_forward`` found, and SGLang's number for "no
        state"."""
        return helper[1], -1

    def jump_and_retokenize(self, old_output_ids: list[int], new_output_ids: list[int], next_state: int) -> None:
        """Replace the tokens of the output by others, after a jump.

        Raises:
            ValueError: the new tokens are not allowed. The position does not change.
        """
        num_common = 0
        for old, new in zip(old_output_ids, new_output_ids, strict=False):
            if old != new:
                break
            num_common += 1
        replaced = list(old_output_ids[num_common:])
        self.rollback(len(replaced))
        if not self._position.accept_tokens("", list(new_output_ids[num_common:])):
            self._position.accept_tokens("", replaced)
            raise ValueError(f"the constraint does not allow the tokens after a jump: {new_output_ids[num_common:]}")

    def __repr__(self) -> str:
        return f"StructoutGrammar(backend={self._compiled.backend_name!r}, num_tokens={self.num_tokens})"
