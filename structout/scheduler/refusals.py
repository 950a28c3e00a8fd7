"""Explains why a request refuses a token."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from structout.grammar.interface import StructuredOutputGrammar
from structout.grammar.vocabulary import Vocabulary
from structout.masks.bitmask import allocate_token_bitmask, unpack_bitmask

_NUM_SAMPLES = 8


@dataclass(frozen=True)
class AllowedToken:
    """A token that a request allows.

    Attributes:
        token_id: its id.
        text: its text; empty for special tokens, stop tokens among them. Bytes that are
            no text by themselves are shown as ``\\xHH``.
    """

    token_id: int
    text: str


@dataclass(frozen=True)
class Refusal:
    """The first of several tokens that a request does not allow.

    Attributes:
        index: its index among the tokens.
        token: the refused token, as the caller passed it.
        text: its text, as in :class:`AllowedToken`; empty if it is no token.
        num_allowed: how many tokens the request allows in its place.
        samples: up to eight of them, spread evenly over their ids.
    """

    index: int
    token: object
    text: str
    num_allowed: int
    samples: tuple[AllowedToken, ...]

    def __str__(self) -> str:
        samples = ", ".join(repr(sample.text) for sample in self.samples)
        more = ", ..." if self.num_allowed > len(self.samples) else ""
        allowed = f"{self.num_allowed:,} tokens are allowed: {samples}{more}" if self.samples else "no token is allowed"
        return f"token {self.token!r} ({self.text!r}) at index {self.index} is not allowed; {allowed}"


def explain_refusal(
    grammar: StructuredOutputGrammar, vocabulary: Vocabulary, token_ids: Sequence[int]
) -> Refusal | None:
    """Find the first token that the grammar does not allow. The grammar does not
    advance.

    Returns:
        None if all tokens are allowed.
    """
    tokens = list(token_ids)
    index = len(grammar.validate_tokens(tokens))
    if index == len(tokens):
        return None
    num_before = grammar.num_tokens
    grammar.accept_tokens("", tokens[:index])
    try:
        allowed = _allowed_tokens(grammar, vocabulary)
    finally:
        grammar.rollback(grammar.num_tokens - num_before)
    places = np.linspace(0, len(allowed) - 1, min(_NUM_SAMPLES, len(allowed))).astype(int)
    samples = tuple(AllowedToken(token, _text(vocabulary, token)) for token in allowed[places].tolist())
    return Refusal(index, tokens[index], _text(vocabulary, tokens[index]), len(allowed), samples)


def _allowed_tokens(grammar: StructuredOutputGrammar, vocabulary: Vocabulary) -> np.ndarray:
    if grammar.is_unconstrained():
        return np.arange(vocabulary.size)
    mask = allocate_token_bitmask(1, vocabulary.size, pin_memory=False)
    grammar.fill_bitmask(mask, 0)
    return np.flatnonzero(unpack_bitmask(mask, vocabulary.size)[0].numpy())


def _text(vocabulary: Vocabulary, token: object) -> str:
    if not isinstance(token, int) or not 0 <= token < len(vocabulary.token_bytes):
        return ""
    return vocabulary.token_bytes[token].decode(errors="backslashreplace")
