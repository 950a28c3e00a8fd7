"""Grammars of other engines: what such an engine must do, and the grammar around it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from structout.constraints.config import StructuredOutputsConfig
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.interface import StructuredOutputGrammar
from structout.grammar.native.extension import core
from structout.grammar.vocabulary import Vocabulary

DEFAULT_SLOW_SECONDS = StructuredOutputsConfig().slow_token_seconds


class ExternalText(ABC):
    """One text in another engine. Tokens that end it are never shown to the engine.

    Its methods are called by one thread at a time, which may be any. What they raise
    fails the request.
    """

    @abstractmethod
    def start(self) -> "ExternalText":
        """A new text of the same constraint."""

    @abstractmethod
    def accept(self, token: int) -> bool:
        """Advance by a token with text. If it is not allowed, do nothing and return
        False."""

    @abstractmethod
    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens that were accepted."""

    @abstractmethod
    def mask(self) -> npt.NDArray[np.int32]:
        """The mask of the tokens with text that may come next: int32
        ``[ceil(vocab_size / 32)]``, which the next call may overwrite.

        The bits of tokens that end the request's text do not matter.
        """

    @abstractmethod
    def may_end(self) -> bool:
        """True if the text is complete."""

    @abstractmethod
    def forced_bytes(self) -> bytes:
        """The bytes with which every continuation starts; empty if there is a
        choice."""

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """Memory of what was compiled, which all texts of the constraint share."""


class ExternalGrammar(StructuredOutputGrammar):
    """The position of one request in a constraint of another engine.

    A matcher of the core calls the engine's text. Stop tokens, reasoning, drafts and
    rollback are the core's.

    Args:
        text: a text at its start.
        vocabulary: the token ids of the model.
        stop_token_ids: tokens that end the text.
        canonical_tokenizer: needed for ``compute_ff_tokens``.
        slow_seconds: see ``StructuredOutputsConfig.slow_token_seconds``.
    """

    def __init__(
        self,
        text: ExternalText,
        vocabulary: Vocabulary,
        stop_token_ids: Sequence[int],
        canonical_tokenizer: CanonicalTokenizer | None = None,
        slow_seconds: float = DEFAULT_SLOW_SECONDS,
    ):
        self._vocabulary = vocabulary
        self._slow_seconds = slow_seconds
        super().__init__(text, vocabulary.size, stop_token_ids, canonical_tokenizer)

    def _new_matcher(self) -> Any:
        self._text = self.index.start()
        stops = sorted(set(self._stop_token_ids))
        return core().ExternalMatcher(self._vocabulary.trie, stops, self._text, self._slow_seconds)

    @property
    def error_reason(self) -> str:
        reason: str = self.matcher.error
        return reason

    def compute_ff_tokens(self) -> list[int]:
        tokens = super().compute_ff_tokens()
        return tokens if set(self._stop_token_ids).isdisjoint(tokens) else []
