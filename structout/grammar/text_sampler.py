"""Draws short, readable texts from masks, as examples of what a constraint allows."""

import random
from collections.abc import Iterable
from functools import cached_property

import numpy as np
import numpy.typing as npt

from structout.grammar.interface import StructuredOutputGrammar
from structout.grammar.vocabulary import Vocabulary
from structout.masks.bitmask import allowed_tokens

_STOP_CHANCE = 0.5
_NAME_CHANCE = 0.9
_MAX_TRIALS = 20
_MAX_ENDING = 400  # tokens

_ENDING_CHANCE = 0.8  # that a text which has to end gets the kind of token that ends most

# The kinds of tokens, those that end a text first, and how often one is drawn.
_CLOSING, _QUOTE, _SEPARATOR, _DIGITS, _LETTERS, _OTHER, _RARE = range(7)
_WEIGHTS = (3.0, 3.0, 1.0, 1.0, 2.0, 0.2, 0.0)
_SPACES = b" \t\r\n"


def _kind(token: bytes) -> int:
    if not token.isascii() or not token.decode().isprintable() or not token.strip():
        return _RARE
    core = token.strip(b" ")
    if all(byte in b"]}" for byte in core):
        return _CLOSING
    if core == b'"':
        return _QUOTE
    if core in (b",", b":", b"[", b"{"):
        return _SEPARATOR
    if core.isdigit():
        return _DIGITS
    return _LETTERS if core.isalpha() else _OTHER


def _is_in_string(written: bytes) -> bool:
    """True if a JSON text seems to end inside of a string. An escaped backslash before
    a quote misleads it. Texts stay valid, since the masks decide about them."""
    return written.replace(b'\\"', b"").count(b'"') % 2 == 1


class TextSampler:
    """Draws texts of grammars over one vocabulary.

    Args:
        vocabulary: the token ids of the model.
        names: texts that are likely where a name of a JSON object starts, such as the
            properties of a schema.
        seed: equal seeds draw equal texts.
    """

    def __init__(self, vocabulary: Vocabulary, names: Iterable[str] = (), seed: int = 0):
        self._vocabulary = vocabulary
        self._names = list(names)
        self._random = random.Random(seed)  # noqa: S311 - examples, not secrets
        self._kinds = np.array([_kind(token) for token in vocabulary.token_bytes])

    def draw(self, grammar: StructuredOutputGrammar, max_tokens: int = 120) -> str | None:
        """Draw a complete text.

        Args:
            grammar: at its start, before and after.
            max_tokens: after so many tokens, the text is brought to its end.

        Returns:
            the text, or None if no end was found.
        """
        num_before = grammar.num_tokens
        for _ in range(_MAX_TRIALS):
            try:
                written = self._written(grammar, num_before + max_tokens)
            finally:
                grammar.rollback(grammar.num_tokens - num_before)
            if written is not None:
                return written.decode(errors="replace")
        return None

    def _written(self, grammar: StructuredOutputGrammar, max_tokens: int) -> bytes | None:
        """Write to the end, or return None if it is not reached soon."""
        written = b""
        while grammar.num_tokens < max_tokens + _MAX_ENDING:
            must_end = grammar.num_tokens >= max_tokens
            written += self._write_name(grammar, written)
            allowed, may_stop = self._allowed(grammar)
            if may_stop and (must_end or not len(allowed) or self._random.random() < _STOP_CHANCE):
                return written
            if not len(allowed):
                return None
            kinds = self._kinds[allowed]
            if _is_in_string(written):
                kinds = np.where((kinds == _CLOSING) | (kinds == _SEPARATOR), _OTHER, kinds)
            written += self._write(grammar, allowed[kinds == self._chosen(np.unique(kinds).tolist(), must_end)])
        return None

    def _chosen(self, kinds: list[int], must_end: bool) -> int:
        """Choose a kind of token. ``kinds`` are in increasing order."""
        if must_end and self._random.random() < _ENDING_CHANCE:
            return kinds[0]
        weights = [_WEIGHTS[kind] for kind in kinds]
        return self._random.choices(kinds, weights if any(weights) else None)[0]

    def _write(self, grammar: StructuredOutputGrammar, tokens: npt.NDArray[np.int64]) -> bytes:
        """Draw one of ``tokens``, which are allowed."""
        token = int(tokens[self._random.randrange(len(tokens))])
        if not grammar.accept_tokens("", [token]):
            raise AssertionError(f"a mask allows token {token}, which is not accepted")
        return self._vocabulary.token_bytes[token]

    def _write_name(self, grammar: StructuredOutputGrammar, written: bytes) -> bytes:
        """Write one of the names after the quote that starts it, if one is allowed."""
        before = written[:-1].rstrip(_SPACES)
        if not self._names or not written.endswith(b'"') or not before.endswith((b"{", b",")):
            return b""
        if self._random.random() >= _NAME_CHANCE:
            return b""
        for name in self._random.sample(self._names, len(self._names)):
            tokens = self._spellings[name]
            if tokens is not None and grammar.accept_tokens("", tokens):
                return name.encode()
        return b""

    @cached_property
    def _spellings(self) -> dict[str, list[int] | None]:
        return {name: self._vocabulary.spell(name) for name in self._names}

    def _allowed(self, grammar: StructuredOutputGrammar) -> tuple[npt.NDArray[np.int64], bool]:
        """The tokens that may follow, and whether the text may end."""
        bits = allowed_tokens(grammar.mask(), self._vocabulary.size)
        stops = list(self._vocabulary.stop_token_ids)
        may_stop = bool(bits[stops].any())
        bits[stops] = 0
        return np.flatnonzero(bits), may_stop
