"""Texts under a limit on their tokens: each ends in time."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field

import pytest

from structout import StructuredOutputsConfig, StructuredOutputsParams
from structout.grammar.registry import BackendSet
from structout.grammar.vocabulary import Vocabulary
from support.grammar_walks import allowed, mask_of
from support.random_patterns import random_pattern
from support.random_schemas import RandomSchema
from support.soundness import compile_or_none

LONGER_TOKENS = """{" ": ":" " "} ", "," }} ]} [] {} [{" "}] ":{" [[ ]] abc ab aa aaaa the null true false 123 00
\\" \\u \\ud8 é 東 -1 0. 1e , :""".split()
TOKENS = [
    *(bytes([byte]) for byte in range(256)),
    *(token.encode() for token in LONGER_TOKENS if len(token.encode()) > 1),
    *("🦊".encode()[:3], "東".encode()[:2], b"  ", b"\n  ", b", ", b'": "', b'", "', b" the", b"a b"),
]
VOCABULARY = Vocabulary((*TOKENS, b""), stop_token_ids=(len(TOKENS),))
NUM_WALKS = int(os.environ.get("STRUCTOUT_LIMITED_WALKS", "600"))  # of each kind


@dataclass
class Walked:
    """Walks within limits.

    Attributes:
        count: of them all.
        late: those that did not end in time.
        unknown: constraints without a known end.
    """

    count: int = 0
    late: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def text_within(grammar, max_tokens: int, rng: random.Random, vocabulary: Vocabulary = VOCABULARY) -> list[int] | None:
    """Draw a text from masks that know the limit. None if it has not ended then."""
    grammar = grammar.fork()
    grammar.matcher.end_within(max_tokens)
    tokens: list[int] = []
    while len(tokens) < max_tokens and not grammar.is_terminated():
        choices = allowed(mask_of(grammar, vocabulary))
        if len(choices) == 0:
            return None
        tokens.append(int(rng.choice(choices)))
        assert grammar.accept_tokens("", tokens[-1:])
    return tokens if grammar.is_terminated() else None


def walks(params_of, seed: str, num_walks: int = NUM_WALKS) -> Walked:
    """Walk within limits at and above the least, through random constraints."""
    rng = random.Random(seed)
    orders = ("declared", "any")
    backends = {order: BackendSet(VOCABULARY, StructuredOutputsConfig(key_order=order)) for order in orders}
    walked = Walked()
    while walked.count < num_walks:
        params = params_of(rng)
        compiled = compile_or_none(backends[rng.choice(orders)], params)
        if compiled is None:
            continue
        needed = compiled.grammar.matcher.num_needed
        if needed is None:
            walked.unknown.append(repr(params))
            walked.count += 1
            continue
        for _ in range(6):
            limit = needed + rng.choice([0, 0, 1, 2, 4, 8, 16, 40])
            walked.count += 1
            if text_within(compiled.grammar, limit, rng) is None:
                walked.late.append(f"{limit}, at least {needed}: {params}")
    return walked


def random_params(kind: str, rng: random.Random) -> StructuredOutputsParams:
    if kind == "schemas":
        return StructuredOutputsParams(json=RandomSchema(rng).text)
    return StructuredOutputsParams(regex=random_pattern(rng).text)


@pytest.mark.parametrize("kind", ["schemas", "patterns"])
def test_texts_of_random_constraints_end_within_their_limits(kind):
    walked = walks(lambda rng: random_params(kind, rng), kind)
    assert not walked.late, f"{len(walked.late)} of {walked.count}, such as {walked.late[0]}"
    assert len(walked.unknown) * 100 <= walked.count, walked.unknown[0]
