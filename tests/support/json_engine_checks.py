"""Whether JSON Schema on the engine does what it promises, over random schemas. Each
function returns counts and what is wrong."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from structout.grammar.native.extension import core
from support.engine_schemas import EngineSchema, arrays_in, has_equal_items, has_longer_number
from support.json_engine import EngineWalk, JsonEngine, refusal_of
from support.json_texts import texts_named_in, with_short_numbers
from support.mask_walks import closing_rank, tried_hints
from support.soundness import Findings

NOT_ENDED = "not ended"  # a text for which random trials find no end
STYLES = ("uniform", "longest", "shortest", "rare")
CLOSING_TRIALS = 30
MAX_CLOSING_TOKENS = 200

# What the form of texts excludes: valid texts that are refused.
EQUAL_ITEMS = "valid refused: equal items"  # where the schema speaks of uniqueItems, but does not ask for it
LONGER_NUMBERS = "valid refused: longer numbers"  # such as 1.0 for an integer, and more than 17 digits


def check_texts(engine: JsonEngine, seed: int, num_schemas: int, num_texts: int) -> Findings:
    """Judge compact texts near the instances of random schemas, in both directions.

    A text with repeated keys is never drawn. ``EQUAL_ITEMS`` and
    ``LONGER_NUMBERS`` count what else the form of texts excludes.
    """
    rng = random.Random(f"engine {seed}")
    found = Findings()
    for _ in range(num_schemas):
        drawn = EngineSchema(rng)
        texts = list(drawn.compact_texts(num_texts))
        try:
            index = engine.compile(drawn.text)
        except ValueError as error:
            refusal = refusal_of(error)
            found.counts[f"schemas refused: {refusal}"] += 1
            if refusal == "malformed" and "refers to itself" not in error.args[0]:
                found.wrong.append(f"seed {seed}: {error.args} for {drawn.text}")
            if refusal == "impossible":
                for text in texts:
                    count_verdict(found, seed, drawn, text)
            continue
        found.counts["schemas served"] += 1
        for text in texts:
            try:
                count_verdict(found, seed, drawn, text, index)
            except (core().LimitError, core().SchemaError):
                found.counts["limits while reading"] += 1
                break
    return found


def count_verdict(found: Findings, seed: int, drawn: EngineSchema, text: str, index: Any = None) -> None:
    """Count the verdict on a text. ``index``: None for a schema that allows no text."""
    is_valid = drawn.is_valid(text)
    if is_valid is None:
        return
    is_accepted = index is not None and index.matches(text.encode())
    verdict = f"{'valid' if is_valid else 'invalid'} {'accepted' if is_accepted else 'refused'}"
    if verdict == "valid refused" and '"uniqueItems": true' in drawn.text:
        arrays = list(arrays_in(json.loads(text, parse_float=Decimal, parse_int=Decimal)))
        if any(map(has_longer_number, arrays)):
            verdict = LONGER_NUMBERS
        elif any(map(has_equal_items, arrays)):
            verdict = EQUAL_ITEMS
    if verdict == "valid refused" and index is not None:
        respelled = with_short_numbers(text)
        has_exponent = respelled is not None and re.search(r"\de[+-]", respelled) is not None
        may_be_plain_only = has_exponent and re.search('"integer"|"multipleOf"', drawn.text)
        if respelled is None or may_be_plain_only or (respelled != text and index.matches(respelled.encode())):
            verdict = LONGER_NUMBERS
    found.counts[verdict] += 1
    if verdict in ("invalid accepted", "valid refused"):
        found.wrong.append(f"seed {seed}: {verdict}: {drawn.text} {text}")


class Walker:
    """Draws texts from masks, and checks the masks on the way.

    Args:
        engine: of the grammars.
        num_checked: at each step, of how many tokens that the mask forbids ``accepts``
            is asked too. All if there are fewer.
    """

    def __init__(self, engine: JsonEngine, num_checked: int):
        self._engine = engine
        self._num_checked = num_checked
        self._lengths = np.array([len(token) for token in engine.token_bytes])
        self._is_rare = np.array([not token.isascii() for token in engine.token_bytes])
        self._ranks = np.array([closing_rank(token) for token in engine.token_bytes])

    def draw(
        self, index: Any, style: str, rng: random.Random, max_tokens: int, hints: Sequence[bytes] = ()
    ) -> tuple[bytes, str | None]:
        """Draw a text, which is brought to an end after ``max_tokens``.

        Args:
            hints: what may be needed before the text can end, such as a required key.
                The first ones are tried first.
            style: of "uniform", "longest", "shortest" and "rare", how the next token is
                drawn of those that the mask allows.

        Returns:
            The text, and what is wrong with its masks.
        """
        walk = self._engine.walk(index)
        text = b""
        masks = []
        for _ in range(max_tokens + 1):
            allowed = walk.allowed()
            masks.append(allowed)
            problem = self._mask_problem(walk, allowed, rng)
            if problem is not None:
                return text, problem
            tokens = allowed[allowed != self._engine.stop]
            may_stop = len(tokens) < len(allowed) and (not len(tokens) or rng.random() < 0.2)
            if may_stop or len(masks) > max_tokens or not len(allowed):
                break
            token = self._chosen(tokens, style, rng)
            if not walk.matcher.accept([token]):
                return text, self._mismatch(token)
            text += self._engine.token_bytes[token]
        ending, problem = self._ending(walk, rng, hints)
        if problem is not None:
            return text + ending, problem
        for allowed in reversed(masks):
            if not np.array_equal(walk.allowed(), allowed):
                return text, "another mask after a rollback"
            if walk.matcher.num_tokens:
                walk.matcher.rollback(1)
        return text + ending, None

    def _ending(self, walk: EngineWalk, rng: random.Random, hints: Sequence[bytes]) -> tuple[bytes, str | None]:
        """Find bytes that end the text by some random trials. The text does not
        change."""
        ending = b""
        for _ in range(CLOSING_TRIALS):
            ending = b""
            steps = 0
            try:
                while steps < MAX_CLOSING_TOKENS:
                    allowed = walk.allowed()
                    if self._engine.stop in allowed:
                        return ending, None
                    if not len(allowed):
                        return ending, "dead end"
                    steps += 1
                    hint = next((hint for hint in tried_hints(hints, rng) if walk.matcher.accept_bytes(hint)), None)
                    if hint is not None:
                        ending += hint
                        continue
                    ranks = self._ranks[allowed]
                    best = ranks.min() if rng.random() < 0.8 else rng.choice(ranks.tolist())
                    token = rng.choice(allowed[ranks == best].tolist())
                    if not walk.matcher.accept([token]):
                        steps -= 1
                        return ending, self._mismatch(token)
                    ending += self._engine.token_bytes[token]
            finally:
                walk.matcher.rollback(steps)
        return ending, NOT_ENDED

    def _mask_problem(self, walk: EngineWalk, allowed: np.ndarray, rng: random.Random) -> str | None:
        for token in self._sample(allowed, rng):
            if not walk.accepts(token):
                return self._mismatch(token)
        forbidden = np.setdiff1d(np.arange(len(self._lengths)), allowed)
        for token in self._sample(forbidden, rng):
            if walk.accepts(token):
                return f"the mask forbids {self._engine.token_bytes[token]!r}, which is accepted"
        return None

    def _mismatch(self, token: int) -> str:
        return f"the mask allows {self._engine.token_bytes[token]!r} ({token}), which is not accepted"

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


def check_walks(engine: JsonEngine, num_checked: int, seed: int, num_schemas: int, num_texts: int) -> Findings:
    """Judge texts that are drawn from the masks of random schemas. Each must end.

    Args:
        num_checked: see ``Walker``.
    """
    rng = random.Random(f"engine walks {seed}")
    walker = Walker(engine, num_checked)
    found = Findings()
    for _ in range(num_schemas):
        drawn = EngineSchema(rng)
        try:
            index = engine.compile(drawn.text)
        except ValueError as error:
            found.counts[f"schemas refused: {refusal_of(error)}"] += 1
            continue
        found.counts["schemas served"] += 1
        hints = texts_named_in(drawn.schema, rng) + drawn.instances_of_parts()
        for _ in range(num_texts):
            style = rng.choice(STYLES)
            try:
                text, problem = walker.draw(index, style, rng, rng.choice([0, 3, 10, 40]), hints)
            except (core().LimitError, core().SchemaError):
                found.counts["limits while reading"] += 1
                break
            if problem == NOT_ENDED:
                found.counts[NOT_ENDED] += 1
                continue
            problem = problem or _text_problem(text, drawn)
            found.counts[f"texts, {style}"] += 1
            if problem is not None:
                found.wrong.append(f"seed {seed}: {problem}: {drawn.text} {text!r}")
    return found


def _text_problem(text: bytes, drawn: EngineSchema) -> str | None:
    try:
        json.loads(text.decode(), object_pairs_hook=_without_repeated_keys, parse_constant=_refuse)
    except (UnicodeDecodeError, ValueError) as error:
        return f"no JSON ({error})"
    return "invalid" if drawn.is_valid(text.decode()) is False else None


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key is repeated")
    return dict(pairs)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
