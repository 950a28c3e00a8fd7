"""The position of one request in a grammar of another engine."""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from structout.constraints.params import Constraint
from structout.constraints.schema_walks import has_nul
from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.interface import StructuredOutputGrammar, check_mask_buffer
from structout.grammar.vocabulary import Vocabulary, token_id


def refuse_nul(constraint: Constraint) -> None:
    """Raise ``GrammarError`` for a schema with U+0000: native compilers take C
    strings."""
    if has_nul(constraint.value, constraint.spec):
        raise GrammarError("the engine takes no NUL character in a schema", kind=GrammarErrorKind.UNSUPPORTED)


class OptionalGrammar(StructuredOutputGrammar):
    """The base class of grammars of other engines. It handles stop tokens, which the
    engine never sees, the tokens of the text, and forced tokens.

    Args:
        vocabulary: the token ids of the model.
        stop_token_ids: tokens that end the text.
        canonical_tokenizer: needed for ``compute_ff_tokens``.
    """

    def __init__(
        self, vocabulary: Vocabulary, stop_token_ids: Sequence[int], canonical_tokenizer: CanonicalTokenizer | None
    ):
        self._vocabulary = vocabulary
        self._stop_token_ids = tuple(sorted(set(stop_token_ids)))
        self._canonical_tokenizer = canonical_tokenizer
        self._text: list[int] = []
        self._num_stopped = 0  # the stop token and those after it
        self._steps_of_bytes: list[int] = []  # the numbers of tokens that undo_bytes() takes back

    @abstractmethod
    def _advance(self, token: int) -> bool:
        """Advance the engine by a token with text. If it is not allowed, do nothing and
        return False."""

    @abstractmethod
    def _undo(self, num_tokens: int) -> None:
        """Take back the last tokens that the engine has accepted."""

    @abstractmethod
    def _fill_text(self, bitmask: torch.Tensor, row: int) -> None:
        """Write the mask of the tokens with text. Bits of stop tokens do not matter."""

    @abstractmethod
    def _may_end(self) -> bool:
        """True if the text is complete."""

    @abstractmethod
    def _forced_bytes(self) -> bytes:
        """The result of ``forced_bytes`` for a text that has not ended."""

    @abstractmethod
    def _at_start(self, stop_token_ids: Sequence[int]) -> "OptionalGrammar":
        """A grammar at the start of the same constraint."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        num_accepted = self._accept_prefix(tokens)
        if num_accepted < len(tokens):
            self.rollback(num_accepted)
        return num_accepted == len(tokens)

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        num_before = self.num_tokens
        try:
            return tokens[: self._accept_prefix(tokens)]
        finally:  # also where KeyboardInterrupt comes in place of the result
            self.rollback(self.num_tokens - num_before)

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens <= self.num_tokens:
            raise ValueError(f"cannot roll back {num_tokens} of {self.num_tokens} tokens")
        num_stopped = min(num_tokens, self._num_stopped)
        self._num_stopped -= num_stopped
        if num_tokens > num_stopped:
            self._undo(num_tokens - num_stopped)
            del self._text[num_stopped - num_tokens :]

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        check_mask_buffer(bitmask, self._vocabulary.size)
        if not 0 <= batch_index < len(bitmask):
            raise IndexError(f"rows must be in [0, {len(bitmask)}), got {batch_index}")
        self._fill_text(bitmask, batch_index)
        words = bitmask[batch_index].numpy().view(np.uint32)
        may_end = self._may_end()
        for stop in {*self._vocabulary.stop_token_ids, *self._stop_token_ids}:
            bit = np.uint32(1 << (stop & 31))
            is_allowed = may_end and stop in self._stop_token_ids
            words[stop >> 5] = words[stop >> 5] | bit if is_allowed else words[stop >> 5] & ~bit

    def is_terminated(self) -> bool:
        return self._num_stopped > 0

    def reset(self) -> None:
        self.rollback(self.num_tokens)

    @property
    def num_tokens(self) -> int:
        return len(self._text) + self._num_stopped

    def copy(self, stop_token_ids: Sequence[int] | None = None) -> "OptionalGrammar":
        return self._at_start(self._stop_token_ids if stop_token_ids is None else stop_token_ids)

    def fork(self) -> "OptionalGrammar":
        """Return a new grammar at this position. It reads the text again."""
        fork = self.copy()
        for token in self._text:
            fork._advance(token)
        fork._text, fork._num_stopped = self._text.copy(), self._num_stopped
        return fork

    def forced_bytes(self) -> bytes:
        return b"" if self.is_terminated() else self._forced_bytes()

    def compute_ff_tokens(self) -> list[int]:
        """Return forced tokens as the interface specifies.

        Raises:
            RuntimeError: the backend has no tokenizer.
        """
        if self._canonical_tokenizer is None:
            raise RuntimeError("compute_ff_tokens needs the tokenizer: pass canonical_tokenizer to the backend")
        tokens = self._canonical_tokenizer.ff_tokens(self, self._text)
        return tokens if set(self._stop_token_ids).isdisjoint(tokens) else []

    def accept_bytes(self, data: bytes) -> bool:
        """Advance by ``data``, as the tokens of single bytes. If it is not allowed, do
        nothing and return False."""
        tokens = [self._vocabulary.token_of_byte(byte) for byte in data]
        if None in tokens or not self.accept_tokens("", [token for token in tokens if token is not None]):
            return False
        self._steps_of_bytes.append(len(data))
        return True

    def undo_bytes(self) -> None:
        """Undo what the last ``accept_bytes`` did that is not undone."""
        self.rollback(self._steps_of_bytes.pop())

    def _accept_prefix(self, tokens: Sequence[int]) -> int:
        """Accept the tokens before the first that is not allowed, and return their
        number."""
        for i, token in enumerate(tokens):
            if self._num_stopped:
                self._num_stopped += len(tokens) - i
                return len(tokens)
            known = token_id(token, self._vocabulary.size)
            if known is None:
                return i
            if known in self._stop_token_ids:
                if not self._may_end():
                    return i
                self._num_stopped = 1
            elif self._vocabulary.token_bytes[known] and self._advance(known):
                self._text.append(known)
            else:
                return i
        return len(tokens)
