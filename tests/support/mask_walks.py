"""Texts drawn from masks, as a model without sense would write them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from structout.grammar.interface import StructuredOutputGrammar
from structout.grammar.vocabulary import Vocabulary
from structout.masks.bitmask import allocate_token_bitmask

STYLES = ("uniform", "longest", "rare")
_CLOSING = b'"]}'
_SPACES = b" \t\r\n"
_MAX_CLOSING_TOKENS = 300
_CLOSING_TRIALS = 300


class MaskWalker:
    """Draws texts from the masks of grammars.

    Args:
        vocabulary: of the grammars. A text ends with its first stop token.
    """

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self._stop = vocabulary.stop_token_ids[0]
        self._mask = allocate_token_bitmask(1, vocabulary.size, pin_memory=False)
        self._lengths = np.array([len(token) for token in vocabulary.token_bytes])
        self._is_rare = np.array([not token.isascii() for token in vocabulary.token_bytes])
        self._id_of_byte = {token[0]: i for i, token in enumerate(vocabulary.token_bytes) if len(token) == 1}
        self._ranks = np.array([closing_rank(token) for token in vocabulary.token_bytes])

    def draw(
        self,
        grammar: StructuredOutputGrammar,
        style: str,
        rng: random.Random,
        max_tokens: int,
        hints: Sequence[bytes] = (),
    ) -> bytes | None:
        """Draw a text, which is brought to an end after ``max_tokens``. None if it
        cannot be. The grammar is at its start before and after.

        Args:
            style: how the next token is drawn of those that the mask allows: "uniform";
                "longest", one of the longest; or "rare", if possible one with a
                character that is not ASCII.
            hints: what may be needed before the text can end, such as a required key or
                the end of a pattern. The first ones are tried first.
        """
        written: list[int] = []
        while len(written) < max_tokens:
            allowed = self._allowed(grammar)
            can_stop = self._stop in allowed
            texts = allowed[allowed != self._stop]
            if can_stop and (not len(texts) or rng.random() < 0.3):
                break
            if not len(texts):
                return None
            token = self._chosen(texts, style, rng)
            assert grammar.accept_tokens("", [token]), "a mask allows a token that is not accepted"
            written.append(token)
        ending = self._ending(grammar, rng, hints)
        grammar.rollback(len(written))
        if ending is None:
            return None
        return b"".join(self._vocabulary.token_bytes[token] for token in [*written, *ending])

    def _chosen(self, texts: np.ndarray, style: str, rng: random.Random) -> int:
        if style == "longest":
            lengths = self._lengths[texts]
            texts = texts[lengths == lengths.max()]
        elif style == "rare" and rng.random() < 0.7 and self._is_rare[texts].any():
            texts = texts[self._is_rare[texts]]
        return int(texts[rng.randrange(len(texts))])

    def _ending(self, grammar: StructuredOutputGrammar, rng: random.Random, hints: Sequence[bytes]) -> list[int] | None:
        """Tokens that end the text, or None if none of many random trials does. The
        grammar does not change."""
        for _ in range(_CLOSING_TRIALS):
            written: list[int] = []
            try:
                while len(written) < _MAX_CLOSING_TOKENS:
                    allowed = self._allowed(grammar)
                    if self._stop in allowed:
                        return written
                    if not len(allowed):
                        break
                    tried = ([self._id_of_byte[byte] for byte in hint] for hint in tried_hints(hints, rng))
                    hint = next((tokens for tokens in tried if grammar.accept_tokens("", tokens)), None)
                    if hint is not None:
                        written += hint
                        continue
                    ranks = self._ranks[allowed]
                    best = ranks.min() if rng.random() < 0.8 else rng.choice(np.unique(ranks).tolist())
                    candidates = allowed[ranks == best]
                    token = int(candidates[rng.randrange(len(candidates))])
                    assert grammar.accept_tokens("", [token]), "a mask allows a token that is not accepted"
                    written.append(token)
            finally:
                grammar.rollback(len(written))
        return None

    def _allowed(self, grammar: StructuredOutputGrammar) -> np.ndarray:
        grammar.fill_bitmask(self._mask, 0)
        bits = np.unpackbits(self._mask[0].numpy().view(np.uint8), bitorder="little", count=self._vocabulary.size)
        return np.flatnonzero(bits)


def tried_hints(hints: Sequence[bytes], rng: random.Random) -> Sequence[bytes]:
    """The hints to try at one step: all in random order, all as they are, or none."""
    kind = rng.randrange(3)
    if kind == 0:
        return rng.sample(hints, len(hints))
    return hints if kind == 1 else ()


def closing_rank(token: bytes) -> int:
    """How early a token is tried to end a text, the lowest first."""
    if not token:
        return 9
    if all(byte in _CLOSING for byte in token):
        return 0
    if all(byte in _SPACES for byte in token):
        return 8
    if len(token) > 1:
        return 7
    order = (b":,", b"0123456789.", b"nul", b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    return next((rank for rank, members in enumerate(order, 1) if token in members), 6)
