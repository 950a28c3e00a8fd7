"""Whether JSON Schema on the engine does what it promises, over random schemas. Each
function returns counts and what is wrong."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from structout.grammar.native.extension import core
from support import mask_walks
from support.engine_schemas import EngineSchema, arrays_in, has_equal_items, has_longer_number
from support.json_engine import JsonEngine, refusal_of
from support.json_texts import texts_named_in, with_short_numbers
from support.mask_walks import NOT_ENDED
from support.soundness import Findings

STYLES = ("uniform", "longest", "shortest", "rare")

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


class Walker(mask_walks.Walker):
    """Draws texts from the masks of schemas, and checks the masks on the way.

    Args:
        engine: of the schemas.
        num_checked: as in :class:`.mask_walks.Walker`.
    """

    def __init__(self, engine: JsonEngine, num_checked: int):
        super().__init__(engine.token_bytes, engine.stop, num_checked, num_trials=30)
        self._engine = engine

    def draw(
        self, index: Any, style: str, rng: random.Random, max_tokens: int, hints: Sequence[bytes] = ()
    ) -> tuple[bytes, str | None]:
        """Draw a text as ``draw_from`` does."""
        return self.draw_from(self._engine.walk(index), style, rng, max_tokens, hints)


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
