"""Compares masks of other engines with those of structout's own, and explains the
differences whose cause is known."""

import functools
import itertools
import random
import re
import statistics
import time
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from engines_alone import Refused
from grammar_engines import GrammarEngine, Own, Steps, allowed_tokens

from structout.grammar.vocabulary import Vocabulary

NUM_TRIALS, MAX_TRIAL_BYTES, MAX_TRIED_TOKENS = 15, 40, 8
END = b"<end>"  # a stop token, in lists of differing ones
_CLOSING = b"\n)]}\"';>,:=|"


def compared(
    own: Own,
    peers: Sequence[GrammarEngine],
    grammar: str,
    texts: Sequence[Sequence[int]],
    vocabulary: Vocabulary,
    seconds: float,
) -> dict[str, Any]:
    """Masks of all engines along texts. Raises ``Refused`` if the own engine does."""
    compiled = own.compile(grammar)
    running: dict[str, Comparison] = {}
    refused: dict[str, Any] = {}
    for peer in peers:
        try:
            running[peer.name] = Comparison(peer, grammar, own, compiled, vocabulary)
        except Refused as error:
            refused[peer.name] = {"refused": first_line(error)}
    deadline = time.perf_counter() + seconds
    for tokens in texts:
        ours = own.start(compiled)
        going = list(running.values())
        for comparison in going:
            comparison.start()
        for position in range(len(tokens) + 1):
            trials = sum(comparison.trial_seconds for comparison in running.values())
            if time.perf_counter() > deadline + trials or not going:
                break
            ours.fill()
            going = [comparison for comparison in going if comparison.fill()]
            differences = [difference(ours, comparison.steps, vocabulary) for comparison in going]
            for comparison, found in zip(going, differences, strict=True):
                comparison.count(tokens[:position], found, is_alone=differences.count(None) > 0)
            if position < len(tokens) and ours.accept(tokens[position]):
                going = [comparison for comparison in going if comparison.accept(tokens[position])]
            else:
                break
    return refused | {name: comparison.row() for name, comparison in running.items()}


class Comparison:
    """Masks of another engine beside those of structout's own."""

    def __init__(self, peer: GrammarEngine, grammar: str, own: Own, own_compiled: Any, vocabulary: Vocabulary):
        self._peer, self._compiled, self._vocabulary = peer, peer.compile(grammar), vocabulary
        self._is_gbnf = "::=" in grammar
        self._own, self._own_compiled = own, own_compiled
        self._counts = {"masks": 0, "equal": 0, "explained": 0, "unexplained": 0, "gave_up": 0, "refused_tokens": 0}
        self._reasons: dict[str, list[Any]] = {}
        self._us: list[float] = []
        self._dead: dict[tuple[int, bytes], bool] = {}
        self._ids = {token: i for i, token in enumerate(vocabulary.token_bytes) if token}
        self.trial_seconds = 0.0

    def start(self) -> None:
        """Start a text."""
        self.steps = self._peer.start(self._compiled)

    def fill(self) -> bool:
        """Compute the mask. Return whether the engine did not give up."""
        start = time.perf_counter()
        try:
            self.steps.fill()
        except Refused as error:
            self._counts["gave_up"] += 1
            self._reasons.setdefault(f"gives up: {first_line(error)[:80]}", [])
            return False
        self._us.append(1e6 * (time.perf_counter() - start))
        return True

    def accept(self, token: int) -> bool:
        is_accepted = self.steps.accept(token)
        self._counts["refused_tokens"] += not is_accepted
        return is_accepted

    def count(self, before: Sequence[int], found: tuple[list[bytes], list[bytes]] | None, *, is_alone: bool) -> None:
        """Count a mask.

        Args:
            before: the tokens of the text.
            found: the tokens that the engine lacks, and those that it adds.
            is_alone: whether the mask of a third engine is structout's.
        """
        self._counts["masks"] += 1
        if found is None:
            self._counts["equal"] += 1
            return
        reason = self._explanation(before, *found, is_alone=is_alone)
        self._counts["explained" if reason else "unexplained"] += 1
        examples = self._reasons.setdefault(reason or "unexplained", [])
        if len(examples) < 3:
            examples.append(example(before, *found, self._vocabulary))

    def row(self) -> dict[str, Any]:
        return self._counts | {
            "reasons": self._reasons,
            "us": middle(self._us),
            "us_max": round(max(self._us, default=0)),
        }

    def _explanation(
        self, before: Sequence[int], lacks: Sequence[bytes], adds: Sequence[bytes], *, is_alone: bool
    ) -> str | None:
        found = [self._why_lacks(before, lacks)] if lacks else []
        found += [self._why_adds(before, adds)] if adds else []
        reasons = [reason for reason in found if reason is not None]
        if len(reasons) == len(found):
            return "; ".join(reasons)
        if self._peer.name == "llguidance" and self._is_gbnf and is_alone:
            return "llguidance reads GBNF with a greedy lexer; the mask of xgrammar, which has none, is structout's"
        return None

    def _why_lacks(self, before: Sequence[int], tokens: Sequence[bytes]) -> str | None:
        if all(has_new_character(token) for token in tokens):
            return "lacks characters of a newer Unicode"
        if self._peer.name == "llguidance" and all(b"\x7f" in token for token in tokens):
            return "lacks the character 7F in JSON strings, which RFC 8259 allows"
        if self._contradicts_itself(before, tokens):
            return "lacks tokens whose bytes it accepts one by one, after the same text"
        return None

    def _why_adds(self, before: Sequence[int], tokens: Sequence[bytes]) -> str | None:
        if self._peer.name == "xgrammar" and all(0x80 <= token[0] < 0xC0 for token in tokens):
            return "lets a character begin in its middle"
        if self._only_adds_spaces(before, tokens):
            return "allows more white space in JSON: structout reads the added tokens with less of it"
        if self._is_dead(before, tokens):
            return "goes where no text ends: none of many trials does, though they do without the added tokens"
        return None

    def _contradicts_itself(self, before: Sequence[int], lacks: Sequence[bytes]) -> bool:
        """Whether the engine accepts the bytes of some of the tokens that it lacks: the
        shortest ones, and others."""
        tokens = sorted((token for token in lacks if token != END), key=len)
        tried = [*tokens[:3], *random.Random(0).sample(tokens, min(5, len(tokens)))]
        start = time.perf_counter()
        accepts = all(reads(self._peer, self._compiled, before, token, self._vocabulary) for token in tried)
        self.trial_seconds += time.perf_counter() - start
        return accepts and bool(tried)

    def _only_adds_spaces(self, before: Sequence[int], adds: Sequence[bytes]) -> bool:
        """Whether structout reads all of the tokens once their runs of white space are
        a single space or line end, or nothing after one that the text ends with."""
        text_end = self._vocabulary.token_bytes[before[-1]][-1:] if before else b""
        begun = text_end if text_end.isspace() else b""
        shorter = [re.sub(rb"([ \t\r\n])[ \t\r\n]+", rb"\1", begun + token)[len(begun) :] for token in adds]
        return all(
            len(cut) < len(token) and reads(self._own, self._own_compiled, before, cut, self._vocabulary)
            for cut, token in zip(shorter, adds, strict=True)
        )

    def _is_dead(self, before: Sequence[int], adds: Sequence[bytes]) -> bool:
        """Whether texts seem to come to no end after the added tokens: after the
        shortest of those that begin alike, tried once for each mask of the engine."""
        mask = hash(self.steps.row.numpy().tobytes())
        start = time.perf_counter()
        if (mask, b"") not in self._dead:
            self._dead[mask, b""] = finds_end(self._peer, self._compiled, before, self._vocabulary, frozenset(adds))
        is_dead = self._dead[mask, b""]
        alike = {token[:2]: token for token in sorted(adds, key=len, reverse=True)}
        for begin, token in sorted(alike.items(), key=lambda item: len(item[1]))[:MAX_TRIED_TOKENS]:
            if not is_dead or token not in self._ids:
                is_dead = False
                break
            if (mask, begin) not in self._dead:
                text = [*before, self._ids[token]]
                self._dead[mask, begin] = not finds_end(self._peer, self._compiled, text, self._vocabulary)
            is_dead = self._dead[mask, begin]
        self.trial_seconds += time.perf_counter() - start
        return is_dead and bool(alike)


@functools.cache
def has_new_character(token: bytes) -> bool:
    """Whether a token has characters that Python's Unicode does not know, or is the
    beginning of one. structout's is newer than those of other engines."""
    if token.isascii():
        return False
    text = token.decode(errors="replace")
    begun = re.search(rb"[\xc0-\xff][\x80-\xbf]*\Z", token)
    if begun and text.endswith("\ufffd"):
        last = [begun[0] + bytes(rest) for rest in itertools.product(range(0x80, 0xC0), repeat=4 - len(begun[0]))]
        text += "".join(form.decode(errors="ignore") for form in last)
    return any(unicodedata.category(character) == "Cn" for character in text)


def reads(engine: GrammarEngine, compiled: Any, before: Sequence[int], text: bytes, vocabulary: Vocabulary) -> bool:
    """Whether an engine accepts the bytes of a text one by one, after other tokens."""
    single = single_bytes(vocabulary)
    steps = engine.start(compiled)
    return all(steps.accept(token) for token in before) and all(
        byte in single and steps.accept(single[byte]) for byte in text
    )


@functools.cache
def single_bytes(vocabulary: Vocabulary) -> dict[int, int]:
    """The tokens of one byte, by their bytes."""
    return {token[0]: i for i, token in enumerate(vocabulary.token_bytes) if len(token) == 1}


def finds_end(
    peer: GrammarEngine,
    compiled: Any,
    tokens: Sequence[int],
    vocabulary: Vocabulary,
    without: frozenset[bytes] = frozenset(),
) -> bool:
    """Whether one of some random continuations, byte by byte, comes to an end.

    Args:
        without: what the first token of a continuation does not begin with.
    """
    rng = random.Random(0)
    single = single_bytes(vocabulary)
    for _ in range(NUM_TRIALS):
        steps = peer.start(compiled)
        if not all(steps.accept(token) for token in tokens):
            return False
        for number in range(MAX_TRIAL_BYTES):
            try:
                steps.fill()
            except Refused:
                break
            row = steps.row[0].numpy().view(np.uint32).tolist()
            if any(row[stop >> 5] >> (stop & 31) & 1 for stop in vocabulary.stop_token_ids):
                return True
            allowed = [b for b, i in single.items() if row[i >> 5] >> (i & 31) & 1 and b < 0x80]
            if number == 0:
                allowed = [byte for byte in allowed if bytes([byte]) not in without]
            closing = [byte for byte in allowed if byte in _CLOSING]
            if not allowed or not steps.accept(
                single[rng.choice(closing if closing and rng.random() < 0.6 else allowed)]
            ):
                break
    return False


def first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")[:200]


def difference(ours: Steps, theirs: Steps, vocabulary: Vocabulary) -> tuple[list[bytes], list[bytes]] | None:
    """The tokens that the other engine lacks, and those that it adds."""
    if torch.equal(ours.row, theirs.row):
        return None
    own, other = (allowed_tokens(steps.row, vocabulary.size) for steps in (ours, theirs))
    if (own == other).all():
        return None
    lacks, adds = np.flatnonzero(own & ~other).tolist(), np.flatnonzero(other & ~own).tolist()
    texts = vocabulary.token_bytes
    return [texts[i] or END for i in lacks], [texts[i] or END for i in adds]


def example(before: Sequence[int], lacks: list[bytes], adds: list[bytes], vocabulary: Vocabulary) -> dict[str, Any]:
    def shown(tokens: list[bytes]) -> list[str]:
        return [token.decode(errors="backslashreplace") for token in tokens[:6]]

    text = vocabulary.text_of(before[-20:])
    return {"text": text, "lacks": [len(lacks), *shown(lacks)], "adds": [len(adds), *shown(adds)]}


def middle(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 2) if values else None


def last(values: Sequence[float]) -> float | None:
    """The 99th percentile."""
    return round(float(np.percentile(values, 99)), 1) if values else None
