"""The base class of grammars of structout's own engine."""

from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import Any, TypeVar, cast

import torch

from structout.grammar.forced_tokens import NUM_CONTEXT_TOKENS, CanonicalTokenizer
from structout.grammar.interface import StructuredOutputGrammar, check_mask_buffer
from structout.grammar.native.extension import core
from structout.masks.bitmask import row_memory

_Grammar = TypeVar("_Grammar", bound="NativeGrammar")

_MAX_WORK = 1 << 62  # no bound but the limits of the constraint


class NativeGrammar(StructuredOutputGrammar):
    """The position of one request in a constraint, which a matcher of the C++ core
    keeps.

    Args:
        matcher: a ``Matcher`` of the core.
        vocab_size: V, the number of tokens that a mask covers.
        stop_token_ids: tokens that end the text.
        canonical_tokenizer: needed for ``compute_ff_tokens``.
    """

    def __init__(
        self,
        matcher: Any,
        vocab_size: int,
        stop_token_ids: Sequence[int],
        canonical_tokenizer: CanonicalTokenizer | None,
    ):
        self.matcher = matcher
        self._vocab_size = vocab_size
        self._stop_token_ids = tuple(stop_token_ids)
        self._canonical_tokenizer = canonical_tokenizer
        self._end_of_reasoning: tuple[int, ...] = ()

    @abstractmethod
    def _at_start(self, stop_token_ids: Sequence[int]) -> "NativeGrammar":
        """A grammar at the start of the same constraint."""

    @property
    def vocab_size(self) -> int:
        """V, the number of tokens that a mask covers."""
        return self._vocab_size

    def begin_after(self, end_of_reasoning: Sequence[int]) -> None:
        self._end_of_reasoning = tuple(end_of_reasoning)
        self.matcher.begin_after(self._end_of_reasoning)

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        accepted: bool = self.matcher.accept(tokens)
        return accepted

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        return tokens[: self.matcher.num_allowed(tokens)]

    def rollback(self, num_tokens: int) -> None:
        self.matcher.rollback(num_tokens)

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        address, row_bytes = mask_memory(bitmask, self._vocab_size, [batch_index])
        core().fill_batch([self.matcher], address, row_bytes, [batch_index])

    def fill_bitmask_drafts(self, bitmask: torch.Tensor, first_row: int, draft_tokens: Sequence[int]) -> int:
        return self._fill_drafted(bitmask, first_row, len(draft_tokens) + 1, draft_tokens, None)

    def fill_bitmask_tree(
        self,
        bitmask: torch.Tensor,
        first_row: int,
        draft_tokens: Sequence[int],
        next_token: Sequence[int],
        next_sibling: Sequence[int],
    ) -> int:
        """Fill rows as the interface specifies, in one native call."""
        return self._fill_drafted(bitmask, first_row, len(draft_tokens), draft_tokens, (next_token, next_sibling))

    def _fill_drafted(
        self,
        bitmask: torch.Tensor,
        first_row: int,
        num_rows: int,
        draft_tokens: Sequence[int],
        tree: tuple[Sequence[int], Sequence[int]] | None,
    ) -> int:
        mask_memory(bitmask, self._vocab_size, [first_row, first_row + num_rows - 1])
        rows = bitmask[first_row : first_row + num_rows]
        if self.is_terminated():  # a step gives it no rows
            rows.fill_(-1)
            return 0
        step = core().Step({0: self.matcher}, [0], {0: draft_tokens}, None, {0: tree} if tree is not None else None)
        masks = core().MaskBuffer(*mask_memory(rows, self._vocab_size, []), num_rows)
        step.run(_MAX_WORK, masks)
        for _, problem in step.problems:
            raise ValueError(problem)
        if step.unfinished:  # another thread computes what it needs
            step.finish(0, _MAX_WORK, masks)
        return int(step.num_allowed[0])

    def is_terminated(self) -> bool:
        return self.matcher.is_terminated

    def is_unconstrained(self) -> bool:
        return self.matcher.is_unconstrained

    def reset(self) -> None:
        self.rollback(self.num_tokens)

    def copy(self: _Grammar, stop_token_ids: Sequence[int] | None = None) -> _Grammar:
        at_start = self._at_start(self._stop_token_ids if stop_token_ids is None else stop_token_ids)
        if self._end_of_reasoning:
            at_start.begin_after(self._end_of_reasoning)
        return cast(_Grammar, at_start)

    def fork(self: _Grammar) -> _Grammar:
        fork = copy(self)
        fork.matcher = self.matcher.copy()
        return fork

    @property
    def error_reason(self) -> str:
        error: str = self.matcher.error
        return f"the constraint takes too much work: {error}" if error else ""

    @property
    def num_tokens(self) -> int:
        return self.matcher.num_tokens

    @property
    def num_needed(self) -> int | None:
        return self.matcher.num_needed

    def end_within(self, max_tokens: int, *, is_fair: bool) -> None:
        self.matcher.end_within(max_tokens, is_fair)

    @property
    def was_narrowed(self) -> bool:
        return self.matcher.was_narrowed

    def forced_bytes(self) -> bytes:
        return b"" if self.is_terminated() else self.matcher.forced()

    def compute_ff_tokens(self) -> list[int]:
        """Return forced tokens as the interface specifies.

        Raises:
            RuntimeError: the backend has no tokenizer.
        """
        if self._canonical_tokenizer is None:
            raise RuntimeError("compute_ff_tokens needs the tokenizer: pass canonical_tokenizer to NativeBackend")
        if self.is_unconstrained():
            return []
        return self._canonical_tokenizer.ff_tokens(self, self.matcher.recent_tokens(NUM_CONTEXT_TOKENS))

    def accept_bytes(self, data: bytes) -> bool:
        """Advance by ``data`` as one step. If it is not allowed, do nothing and return
        False."""
        return self.matcher.accept_bytes(data)

    def undo_bytes(self) -> None:
        """Undo the last step, which ``accept_bytes`` made."""
        self.matcher.undo_bytes()


def mask_memory(bitmask: torch.Tensor, vocab_size: int, rows: Sequence[int]) -> tuple[int, int]:
    """Check memory that the core writes to. It checks nothing itself.

    Returns:
        the address of the first row, and the bytes from one row to the next.

    Raises:
        ValueError: not an int32 CPU buffer of the vocabulary's width.
        IndexError: one of ``rows`` is not in it.
    """
    check_mask_buffer(bitmask, vocab_size)
    if rows and not 0 <= min(rows) <= max(rows) < len(bitmask):
        raise IndexError(f"rows must be in [0, {len(bitmask)}), got {min(rows)} ... {max(rows)}")
    return row_memory(bitmask)
