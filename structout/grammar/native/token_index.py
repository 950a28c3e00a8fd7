"""Automata over the tokens of a vocabulary."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from structout.grammar.interface import DeviceTables, StructuredOutputGrammar
from structout.grammar.native.automaton import Automaton
from structout.grammar.native.extension import core, grammar_errors
from structout.grammar.vocabulary import Vocabulary

_MAX_TABLE_BYTES = 256 << 20


class TokenIndex:
    """An automaton whose steps are tokens. Threads may share it.

    Its states are those of ``automaton``. State 0 is the start. A token is allowed if
    its bytes lead to a state from which tokens lead to the end of a text.

    Masks are computed when they are first needed. States with equal masks share one,
    which is stored as a list of the allowed tokens, a list of the others, or a row.

    Args:
        automaton: the language. It must accept some text.
        vocabulary: the token ids of the model.
    """

    def __init__(self, automaton: Automaton, vocabulary: Vocabulary):
        self._set_native(core().TokenIndex(automaton.native, vocabulary.trie))

    def _set_native(self, native: Any) -> None:
        self.native = native
        if native.num_states == 0:
            raise ValueError("the automaton accepts no text")

    @property
    def automaton(self) -> Automaton:
        """The automaton over bytes."""
        return Automaton(self.native.automaton)

    @property
    def num_states(self) -> int:
        return self.native.num_states

    @property
    def num_masks(self) -> int:
        """The number of different masks that were computed so far."""
        return self.native.num_masks

    @property
    def memory_bytes(self) -> int:
        """Memory of the automaton and of the masks computed so far, without the trie of
        the vocabulary."""
        return self.native.memory_bytes

    def mask(self, state: int) -> npt.NDArray[np.int32]:
        """The bitmask of the tokens that may follow, int32 ``[ceil(vocab_size / 32)]``.

        Without stop tokens: they may follow where ``accepts`` says so.
        """
        return self.native.mask(state)

    def mask_slot(self, state: int) -> int:
        """The number of the state's mask among the different ones, from 0 in the order
        in which they were first computed. States with equal masks have equal slots.

        -1 if the masks take too much memory, so that this one is not kept.
        """
        return self.native.mask_slot(state)

    def next(self, state: int, token: int) -> int:
        """The state after a token. -1 if it is not allowed."""
        return self.native.next(state, token)

    def accepts(self, state: int) -> bool:
        """True if the text may end in the state."""
        return self.native.accepts(state)

    def is_live(self, state: int) -> bool:
        """True if tokens lead from the state to the end of a text. An allowed token
        leads to such states only."""
        return self.native.is_live(state)

    def forced(self, state: int) -> bytes:
        """The bytes with which every continuation starts."""
        return self.native.forced(state)

    def compute_masks(self) -> None:
        """Compute all masks now."""
        self.native.compute_masks()

    def token_classes(self, max_bytes: int = _MAX_TABLE_BYTES) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Compute dense tables of all steps, for devices.

        Two tokens are in one class if they lead to the same state from every state.

        Args:
            max_bytes: the largest size of the tables.

        Returns:
            the class of each token, int32 ``[vocab_size]``, and the state after each
            class, int32 ``[num_states, num_classes]``, -1 where it is not allowed. No
            token of class 0 is ever allowed.

        Raises:
            GrammarLimitError: the tables would be larger.
        """
        with grammar_errors():
            return self.native.token_classes(max_bytes)

    def byte_tables(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Copy the automaton into dense tables, for devices.

        Returns:
            the state after each byte, int32 ``[num_states, 256]``, -1 if there is none;
            and bool ``[num_states]`` twice: what ``accepts`` and ``is_live`` return.
        """
        return self.native.byte_tables()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the automaton to a file, with a version, a checksum and a fingerprint
        of the vocabulary. Equal indices make equal files."""
        Path(path).write_bytes(self.native.serialize())

    @classmethod
    def load(cls, path: str | os.PathLike[str], vocabulary: Vocabulary) -> "TokenIndex":
        """Read what ``save`` has written.

        Raises:
            ValueError: the file is damaged, or was made for another vocabulary.
        """
        index = cls.__new__(cls)
        index._set_native(core().TokenIndex.deserialize(Path(path).read_bytes(), vocabulary.trie))
        return index


class FsmGrammar(StructuredOutputGrammar):
    """The position of one request in a regular language, whose index is a
    :class:`TokenIndex`."""

    _matcher_class = "IndexMatcher"

    def state_id(self) -> int:
        """The state of ``index`` after the text so far."""
        return self.matcher.state

    def device_tables(self) -> DeviceTables | None:
        if self.matcher.is_reasoning:
            return None
        return DeviceTables(self.index, self._stop_token_ids, None if self.is_terminated() else self.state_id())
