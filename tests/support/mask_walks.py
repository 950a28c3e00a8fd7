"""Texts drawn from masks, as a model without sense would write them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from structout.grammar.interface import StructuredOutputGrammar
from structout.grammar.vocabulary import Vocabulary
from support.grammar_walks import mask_of

STYLES = ("uniform", "longest", "rare")
NOT_ENDED = "not ended"  # a text for which random trials find no end
DEAD_END = "dead end"
_CLOSING = b'"]}'
_SPACES = b" \t\r\n"
_MAX_CLOSING_TOKENS = 300


class Walker:
    """Draws texts from masks, and checks the masks on the way.

    Args:
        token_bytes: the bytes of each token.
        stop: the token that ends a text.
        num_checked: at each step, of how many tokens that the mask allows, and of how
            many others, it is asked too whether they are accepted. All if there are
            fewer. With 0 no mask is checked.
        num_trials: how often it is tried to end a text.
    """

    def __init__(self, token_bytes: Sequence[bytes], stop: int, num_checked: int, num_trials: int):
        self._token_bytes = token_bytes
        self._stop = stop
        self._num_checked = num_checked
        self._num_trials = num_trials
        self._lengths = np.array([len(token) for token in token_bytes])
        self._is_rare = np.array([not token.isascii() for token in token_bytes])
        self._ranks = np.array([closing_rank(token) for token in token_bytes])

    def draw_from(
        self, walk: Any, style: str, rng: random.Random, max_tokens: int, hints: Sequence[bytes] = ()
    ) -> tuple[bytes, str | None]:
        """Draw a text, which is brought to an end after ``max_tokens``. The position is
        the same before and after, if nothing is wrong.

        Args:
            walk: a text with the methods of :class:`.json_engine.EngineWalk`.
            style: how the next token is drawn of those that the mask allows: "uniform";
                "longest" or "shortest", one of these; or "rare", if possible one with a
                character that is not ASCII.
            hints: what may be needed before the text can end, such as a required key or
                the end of a pattern. The first ones are tried first.

        Returns:
            The text, and what is wrong with its masks.
        """
        text = b""
        masks = []
        for num_tokens in range(max_tokens + 1):
            allowed = walk.allowed()
            masks.append(allowed)
            problem = self._mask_problem(walk, allowed, rng) if self._num_checked else None
            if problem is not None:
                return text, problem
            tokens = allowed[allowed != self._stop]
            may_stop = len(tokens) < len(allowed) and (not len(tokens) or rng.random() < 0.2)
            if may_stop or num_tokens == max_tokens or not len(allowed):
                break
            token = self._chosen(tokens, style, rng)
            if not walk.accept(token):
                return text, self._mismatch(token)
            text += self._token_bytes[token]
        ending, problem = self._ending(walk, rng, hints)
        if problem is not None:
            walk.rollback(len(masks) - 1)
            return text + ending, problem
        for num_tokens, allowed in reversed([*enumerate(masks)]):
            if self._num_checked and not np.array_equal(walk.allowed(), allowed):
                return text, "another mask after a rollback"
            walk.rollback(1 if num_tokens else 0)
        return text + ending, None

    def _ending(self, walk: Any, rng: random.Random, hints: Sequence[bytes]) -> tuple[bytes, str | None]:
        """Find bytes that end the text by some random trials. The text does not
        change."""
        ending = b""
        for _ in range(self._num_trials):
            ending = b""
            steps = 0
            try:
                while steps < _MAX_CLOSING_TOKENS:
                    allowed = walk.allowed()
                    if self._stop in allowed:
                        return ending, None
                    if not len(allowed):
                        return ending, DEAD_END
                    taken = ((hint, num) for hint in tried_hints(hints, rng) if (num := walk.accept_hint(hint)))
                    hint, num_steps = next(taken, (b"", 0))
                    if num_steps:
                        steps += num_steps
                        ending += hint
                        continue
                    ranks = self._ranks[allowed]
                    best = ranks.min() if rng.random() < 0.8 else rng.choice(ranks.tolist())
                    token = rng.choice(allowed[ranks == best].tolist())
                    if not walk.accept(token):
                        return ending, self._mismatch(token)
                    steps += 1
                    ending += self._token_bytes[token]
            finally:
                walk.rollback(steps)
        return ending, NOT_ENDED

    def _mask_problem(self, walk: Any, allowed: np.ndarray, rng: random.Random) -> str | None:
        for token in self._sample(allowed, rng):
            if not walk.accepts(token):
                return self._mismatch(token)
        forbidden = np.setdiff1d(np.arange(len(self._lengths)), allowed)
        for token in self._sample(forbidden, rng):
            if walk.accepts(token):
                return f"the mask forbids {self._token_bytes[token]!r}, which is accepted"
        return None

    def _mismatch(self, token: int) -> str:
        return f"the mask allows {self._token_bytes[token]!r} ({token}), which is not accepted"

    def _sample(self, tokens: np.ndarray, rng: random.Random) -> list[int]:
        if len(tokens) <= self._num_checked:
            return tokens.tolist()
        return [int(tokens[rng.randrange(len(tokens))]) for _ in range(self._num_checked)]

    def _chosen(self, allowed: np.ndarray, style: str, rng: random.Random) -> int:
        lengths = self._lengths[allowed]
        if style == "longest":
            allowed = allowed[lengths == lengths.max()]
        elif style == "shortest":
            allowed = allowed[lengths == lengths.min()]
        elif style == "rare" and rng.random() < 0.7 and self._is_rare[allowed].any():
            allowed = allowed[self._is_rare[allowed]]
        return int(allowed[rng.randrange(len(allowed))])


class MaskWalker(Walker):
    """Draws texts from the masks of grammars.

    Args:
        vocabulary: of the grammars. A text ends with its first stop token.
    """

    def __init__(self, vocabulary: Vocabulary):
        super().__init__(vocabulary.token_bytes, vocabulary.stop_token_ids[0], num_checked=0, num_trials=300)
        self._id_of_byte = {token[0]: i for i, token in enumerate(vocabulary.token_bytes) if len(token) == 1}

    def draw(
        self,
        grammar: StructuredOutputGrammar,
        style: str,
        rng: random.Random,
        max_tokens: int,
        hints: Sequence[bytes] = (),
    ) -> bytes | None:
        """Draw a text as ``draw_from`` does. None if it cannot be brought to an end."""
        walk = _GrammarPosition(grammar, self._id_of_byte)
        text, problem = self.draw_from(walk, style, rng, max_tokens, hints)
        assert problem in (None, NOT_ENDED, DEAD_END), problem
        return text if problem is None else None


class _GrammarPosition:
    def __init__(self, grammar: StructuredOutputGrammar, id_of_byte: dict[int, int]):
        self._grammar = grammar
        self._id_of_byte = id_of_byte
        self.rollback = grammar.rollback

    def allowed(self) -> np.ndarray:
        mask = mask_of(self._grammar).view(np.uint8)
        return np.flatnonzero(np.unpackbits(mask, bitorder="little", count=self._grammar.vocab_size))

    def accept(self, token: int) -> bool:
        return self._grammar.accept_tokens("", [token])

    def accept_hint(self, data: bytes) -> int:
        tokens = [self._id_of_byte[byte] for byte in data]
        return len(tokens) if self._grammar.accept_tokens("", tokens) else 0


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
