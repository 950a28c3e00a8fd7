"""Random schemas that use every keyword often, and texts near their instances."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from support.json_texts import compact, has_exponent
from support.random_schemas import RandomSchema


class EngineSchema(RandomSchema):
    """A schema with any keyword of its draft, as often as the others.

    Args:
        rng: source of randomness.
        has_formats: whether ``format`` occurs.
    """

    def __init__(self, rng: random.Random, *, has_formats: bool = False):
        self._has_formats = has_formats
        super().__init__(rng)

    def compact_texts(self, count: int) -> Iterator[str]:
        """Draw texts without spaces and exponents, with keys in random order: of
        instances, of values near them and of any values. A few are cut short or have a
        byte too many."""
        rng = self._rng
        for _ in range(count):
            value = self._any_value(2) if rng.random() < 0.1 else self._instance(self.schema, 4)
            for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
                value = self._mutated(value)
            text = compact(value, rng)
            kind = rng.random()
            if kind < 0.03:
                text = text[: rng.randrange(len(text))]
            elif kind < 0.05:
                text += rng.choice('"]},0')
            yield text

    def instances_of_parts(self) -> list[bytes]:
        """Draw texts that may be needed to end a text: values near the instances of
        each part of the schema, and the contents of strings that match its patterns."""
        rng = self._rng
        texts = []
        pending = [self.schema]
        while pending:
            part = pending.pop()
            if isinstance(part, dict) and "type" in part:
                texts += [compact(self._instance(part, 2), rng) for _ in range(3)]
            pending += part.values() if isinstance(part, dict) else part if isinstance(part, list) else []
        for pattern in self._patterns.values():
            texts += [compact(pattern.sample(rng), rng)[1:-1] for _ in range(4)]
        return [text.encode() for text in dict.fromkeys(texts) if text]

    def _string_keywords(self) -> Iterator[tuple[str, Any]]:
        yield from ((key, value) for key, value in super()._string_keywords() if key != "format" or self._has_formats)

    def _combined(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        if rng.random() < 0.3:
            branches = {name: self._node(depth - 1) for name in ("then", "else") if rng.random() < 0.8}
            return {"if": self._node(depth - 1), **branches} if rng.random() < 0.5 else {"not": self._refutable(depth)}
        return super()._combined(depth)

    def _array_keywords(self, depth: int) -> Iterator[tuple[str, Any]]:
        rng = self._rng
        child = max(0, depth - 1)
        node: dict[str, Any] = dict(super()._array_keywords(depth))
        if rng.random() < 0.2:
            node["uniqueItems"] = True
        if rng.random() < 0.2:
            node["contains"] = self._node(child)
            node |= self._bounds("minContains", "maxContains", 3)
        if self._has_unevaluated and rng.random() < 0.1:
            node["unevaluatedItems"] = rng.choice([False, self._node(child)])
        if rng.random() < 0.15:
            node["prefixItems"] = [self._node(child) for _ in range(rng.randint(1, 3))]
        yield from node.items()

    def _object_keywords(self, depth: int) -> Iterator[tuple[str, Any]]:
        rng = self._rng
        child = max(0, depth - 1)
        node: dict[str, Any] = dict(super()._object_keywords(depth))
        if rng.random() < 0.12:
            node["patternProperties"] = {self._pattern(): self._node(child) for _ in range(rng.randint(1, 2))}
        if rng.random() < 0.1:
            node["propertyNames"] = rng.choice([{"pattern": self._pattern()}, {"enum": self._names[:3]}, self._node(0)])
        if rng.random() < 0.15:
            node |= self._bounds("minProperties", "maxProperties", 4)
        if rng.random() < 0.1:
            needs = self._node(child) if rng.random() < 0.5 else rng.sample(self._names, 2)
            if self._is_old:
                node["dependencies"] = {rng.choice(self._names): needs}
            else:
                keyword = "dependentRequired" if isinstance(needs, list) else "dependentSchemas"
                node[keyword] = {rng.choice(self._names): needs}
        if self._has_unevaluated and rng.random() < 0.1:
            node["unevaluatedProperties"] = rng.choice([False, self._node(child)])
        yield from node.items()


def arrays_in(value: Any) -> Iterator[list[Any]]:
    """The arrays in a value."""
    if isinstance(value, dict | list):
        if isinstance(value, list):
            yield value
        for part in value.values() if isinstance(value, dict) else value:
            yield from arrays_in(part)


def has_equal_items(array: list[Any]) -> bool:
    """Whether two items of an array are equal."""
    return len({_canonical(item) for item in array}) < len(array)


def has_longer_number(array: list[Any]) -> bool:
    """Whether an item of an array is a number that has a shorter spelling, or one with
    an exponent."""
    return any(isinstance(item, Decimal) and (f"{item:f}" != _canonical(item) or has_exponent(item)) for item in array)


def _canonical(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{_canonical(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_canonical, value)) + "]"
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return f"{Decimal(value).normalize() + 0:f}"
    return json.dumps(value)
