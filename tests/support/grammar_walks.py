"""Texts that follow the masks of structout's own grammars."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from structout.grammar.interface import StructuredOutputGrammar
from structout.grammar.native.compiled_grammar import CompiledGrammar
from structout.grammar.native.grammars import ContextFreeGrammar
from structout.grammar.vocabulary import Vocabulary

BYTES = Vocabulary((*(bytes([byte]) for byte in range(256)), b""), stop_token_ids=(256,))
Mask = Any  # a row of np.uint32


def started(index: CompiledGrammar, vocabulary: Vocabulary = BYTES) -> ContextFreeGrammar:
    """The position of the empty text."""
    return ContextFreeGrammar(index, vocabulary.size, vocabulary.stop_token_ids, None)


def mask_of(grammar: StructuredOutputGrammar) -> Mask:
    """The mask of the next token."""
    return grammar.mask().view(np.uint32)


def allowed(mask: Mask) -> list[int]:
    """The tokens of a mask, in their order."""
    return np.flatnonzero(np.unpackbits(np.asarray(mask).view(np.uint8), bitorder="little")).tolist()


def walk(grammar: ContextFreeGrammar, vocabulary: Vocabulary, rng: random.Random, num_steps: int) -> Iterator[Mask]:
    """Accept random tokens. Yields the mask in front of each."""
    for _ in range(num_steps):
        mask = mask_of(grammar)
        yield mask
        tokens = [token for token in allowed(mask) if token not in vocabulary.stop_token_ids]
        if not tokens:
            return
        short = [token for token in tokens if len(vocabulary.token_bytes[token]) <= 2]
        token = rng.choice(short if short and rng.random() < 0.5 else tokens)
        assert grammar.accept_tokens("r", [token])
