"""What the engine's grammars share, whatever they were compiled into."""

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch

from structout.grammar.forced_tokens import NUM_CONTEXT_TOKENS, CanonicalTokenizer
from structout.grammar.interface import PrefixGrammar, StructuredOutputGrammar, check_mask_buffer
from structout.grammar.native.extension import core
from structout.masks.pool import DistinctMasks

_Grammar = TypeVar("_Grammar", bound="NativeGrammar")


class NativeGrammar(PrefixGrammar):
    """The position of one request in a constraint, which a matcher of the C++ core
    keeps. Grammars of all subclasses take part in the same batched calls.

    Args:
        matcher: a ``Matcher`` of the core.
        vocab_size: V, the number of tokens that a mask covers.
        stop_token_ids: tokens that end the text.
        canonical_tokenizer: needed for ``compute_ff_tokens``.
    """

    batch_kind: ClassVar[str] = "native"

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

    @classmethod
    def accept_batch(cls, grammars: Sequence[StructuredOutputGrammar], tokens: Sequence[Iterable[int]]) -> list[bool]:
        """Accept tokens as the interface specifies. Tokens that are no iterable are
        refused."""
        matchers = [grammar.matcher for grammar in cast(Sequence[NativeGrammar], grammars)]
        accepted: list[bool] = core().accept_batch(matchers, tokens)
        return accepted

    @classmethod
    def plan_step(
        cls, grammars: Sequence[StructuredOutputGrammar], draft_tokens: Sequence[Sequence[int] | None] | None
    ) -> "NativeStep":
        """Plan rows as the interface specifies."""
        own_grammars = cast(Sequence[NativeGrammar], grammars)
        native = core().Step([grammar.matcher for grammar in own_grammars], draft_tokens)
        return NativeStep(native, own_grammars[0]._vocab_size)

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        accepted: bool = self.matcher.accept(tokens)
        return accepted

    def rollback(self, num_tokens: int) -> None:
        self.matcher.rollback(num_tokens)

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        address, row_bytes = mask_memory(bitmask, self._vocab_size, [batch_index])
        core().fill_batch([self.matcher], address, row_bytes, [batch_index])

    def fill_bitmask_drafts(self, bitmask: torch.Tensor, first_row: int, draft_tokens: Sequence[int]) -> int:
        address, row_bytes = mask_memory(bitmask, self._vocab_size, [first_row, first_row + len(draft_tokens)])
        return core().fill_drafts_batch([self.matcher], address, row_bytes, [first_row], [draft_tokens])[0]

    def is_terminated(self) -> bool:
        return self.matcher.is_terminated

    def reset(self) -> None:
        self.rollback(self.num_tokens)

    def fork(self: _Grammar) -> _Grammar:
        fork = copy(self)
        fork.matcher = self.matcher.copy()
        return fork

    @property
    def error_reason(self) -> str:  # type: ignore[override]
        error: str = self.matcher.error
        return f"the constraint takes too much work: {error}" if error else ""

    @property
    def num_tokens(self) -> int:
        return self.matcher.num_tokens

    def forced_bytes(self) -> bytes:
        return b"" if self.is_terminated() else self.matcher.forced()

    def compute_ff_tokens(self) -> list[int]:
        """Return forced tokens as the interface specifies.

        Raises:
            RuntimeError: the backend has no tokenizer.
        """
        if self._canonical_tokenizer is None:
            raise RuntimeError("compute_ff_tokens needs the tokenizer: pass canonical_tokenizer to FsmBackend")
        return self._canonical_tokenizer.ff_tokens(self, self.matcher.recent_tokens(NUM_CONTEXT_TOKENS))

    def accept_bytes(self, data: bytes) -> bool:
        """Advance by ``data`` as one step. If it is not allowed, do nothing and return
        False."""
        return self.matcher.accept_bytes(data)

    def undo_bytes(self) -> None:
        """Undo the last step, which ``accept_bytes`` made."""
        self.matcher.undo_bytes()

    def _accept_prefix(self, tokens: list[int]) -> int:
        accepted: int = self.matcher.accept_prefix(tokens)
        return accepted


class NativeStep:
    """A StepPlan of the engine. It keeps Python's global lock unless a mask has to be
    computed."""

    def __init__(self, native: Any, vocab_size: int):
        self._native = native
        self._vocab_size = vocab_size
        self.row_indptr: npt.NDArray[np.int32] = native.row_indptr
        self.num_allowed: npt.NDArray[np.int32] = native.num_allowed

    @property
    def num_rows(self) -> int:
        return self._native.num_rows

    def distinct_masks(self) -> DistinctMasks:
        return DistinctMasks(*self._native.distinct_masks())

    def fill(self, bitmask: torch.Tensor, rows: Sequence[int] | None = None) -> list[int]:
        address, row_bytes = mask_memory(bitmask, self._vocab_size, [])
        return self._native.fill(rows, address, row_bytes, len(bitmask))

    def fill_within(self, bitmask: torch.Tensor, work: int) -> tuple[list[int], list[int], int]:
        address, row_bytes = mask_memory(bitmask, self._vocab_size, [])
        return self._native.fill_within(work, address, row_bytes, len(bitmask))

    def finish(self, bitmask: torch.Tensor, index: int, work: int) -> int | None:
        """Fill the rows of a grammar as the interface specifies, without the global
        lock."""
        address, row_bytes = mask_memory(bitmask, self._vocab_size, [])
        return self._native.finish(index, work, address, row_bytes, len(bitmask))


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
    return bitmask.data_ptr(), bitmask.stride(0) * bitmask.element_size()
