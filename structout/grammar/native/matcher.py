"""The position of a request in a token index."""

from collections.abc import Sequence

from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.interface import DeviceTables
from structout.grammar.native.extension import core
from structout.grammar.native.native_grammar import NativeGrammar
from structout.grammar.native.token_index import TokenIndex


class FsmGrammar(NativeGrammar):
    """The position of one request in a regular language.

    Args:
        index: what the constraint was compiled into.
        vocab_size: V, the number of tokens that a mask covers.
        stop_token_ids: tokens that end the text.
        canonical_tokenizer: needed for ``compute_ff_tokens``.
    """

    def __init__(
        self,
        index: TokenIndex,
        vocab_size: int,
        stop_token_ids: Sequence[int],
        canonical_tokenizer: CanonicalTokenizer | None,
    ):
        matcher = core().IndexMatcher(index.native, sorted(set(stop_token_ids)))
        super().__init__(matcher, vocab_size, stop_token_ids, canonical_tokenizer)
        self._index = index

    @property
    def index(self) -> TokenIndex:
        """The automaton that all copies and forks share."""
        return self._index

    def state_id(self) -> int:
        """The state of ``index`` after the text so far."""
        return self.matcher.state

    def _at_start(self, stop_token_ids: Sequence[int]) -> "FsmGrammar":
        return FsmGrammar(self._index, self._vocab_size, stop_token_ids, self._canonical_tokenizer)

    @property
    def memory_bytes(self) -> int:
        return self._index.memory_bytes

    def device_tables(self) -> DeviceTables | None:
        if self.matcher.is_reasoning:
            return None
        return DeviceTables(self._index, self._stop_token_ids, None if self.is_terminated() else self.state_id())
