"""Schemas that few texts satisfy, against ``jsonschema`` and all of these texts.

Each schema restricts its values to a small universe, all texts of which are judged.
Along some of those that are valid, the mask must allow exactly the bytes with which a
valid text goes on, so no text gets stuck.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import jsonschema

from soak.hunt import Hunter, Tally
from support.json_engine import JsonEngine, refusal_of

NUM_WALKS = 3
SPACES = set(b" \t\n\r")
SCALARS: list[Any] = [None, True, "a", "b"]
KEYS, FEW_KEYS = "abc", "ab"
PATTERNS = ["^[ab]", "^[^a]", "[bc]$", "^c", "^a*$", "^[^b]$"]

Schema = dict[str, Any]
Draw = Callable[[], Any]


def _objects(keys: str, values: list[Any]) -> list[Any]:
    """All objects, once for each order of their keys."""
    return [
        dict(zip(order, chosen, strict=True))
        for size in range(len(keys) + 1)
        for order in itertools.permutations(keys, size)
        for chosen in itertools.product(values, repeat=size)
    ]


def _arrays(items: list[Any], max_items: int) -> list[Any]:
    return [list(each) for size in range(max_items + 1) for each in itertools.product(items, repeat=size)]


UNIVERSES = {
    "objects": _objects(KEYS, SCALARS),
    "arrays": _arrays(SCALARS, 3),
    "arrays of objects": _arrays(_objects(FEW_KEYS, ["a", "b"]), 2),
}


class UniverseSchema:
    """A random schema whose values are some of a universe's.

    Attributes:
        universe: all values that the schema may have.
        value: the schema.
    """

    def __init__(self, rng: random.Random):
        self._rng = rng
        self._name = rng.choice(list(UNIVERSES))
        self.universe = UNIVERSES[self._name]
        self.value = {"allOf": [self._whole(), *self._some(lambda: self._node(2))]}

    def _some(self, draw: Draw) -> list[Any]:
        return [draw() for _ in range(self._rng.randint(1, 3))]

    def _whole(self) -> Schema:
        """The schema of the universe."""
        if self._name == "objects":
            return self._all_objects(KEYS, SCALARS)
        items = {"enum": SCALARS} if self._name == "arrays" else self._all_objects(FEW_KEYS, ["a", "b"])
        return {"type": "array", "maxItems": 3 if self._name == "arrays" else 2, "items": items}

    def _all_objects(self, keys: str, values: list[Any]) -> Schema:
        """Keys have names, or are what several sets of keys leave."""
        named = {"propertyNames": {"enum": list(keys)}}
        by_sets = {"propertyNames": {"allOf": [{"maxLength": 1}, {"pattern": f"^[{keys}]+$"}]}}
        by_two = {"allOf": [{"propertyNames": {"maxLength": 1}}, {"propertyNames": {"pattern": f"^[{keys}]+$"}}]}
        others = {"patternProperties": {f"^$|^[^{keys}]|^[\\s\\S]{{2}}": False}}
        values_of_all = {"type": "object", "additionalProperties": {"enum": values}}
        return {"allOf": [self._rng.choice([named, by_sets, by_two, others]), values_of_all]}

    def _node(self, depth: int) -> Schema:
        rng = self._rng
        if depth == 0 or rng.random() < 0.4:
            return self._keyword()
        operator = rng.choice(["not", "allOf", "anyOf", "oneOf", "if"])
        if operator == "not":
            return {"not": self._node(depth - 1)}
        if operator == "if":
            branches = rng.sample(["then", "else"], rng.randint(1, 2))
            return {keyword: self._node(depth - 1) for keyword in ("if", *branches)}
        return {operator: self._some(lambda: self._node(depth - 1))}

    def _keyword(self) -> Schema:
        if self._name == "objects":
            return self._of_objects(KEYS, self._scalar)
        if self._name == "arrays":
            return self._of_arrays(self._scalar)
        letters: list[Any] = [{"const": "a"}, {"const": "b"}, True]
        return self._of_arrays(lambda: self._of_objects(FEW_KEYS, lambda: self._rng.choice(letters)))

    def _scalar(self) -> Any:
        constant = {"const": self._rng.choice(SCALARS)}
        return self._rng.choice([True, False, constant, constant, {"not": constant}, {"type": "string"}])

    def _of_objects(self, keys: str, value: Draw) -> Schema:
        rng = self._rng
        key, pattern = rng.choice(keys), rng.choice(PATTERNS)
        drawn: list[Callable[[], Schema]] = [
            lambda: {"required": rng.sample(keys, 2)},
            lambda: {"properties": {key: value()}},
            lambda: {"patternProperties": {pattern: value(), rng.choice(PATTERNS): value()}},
            lambda: {"properties": {key: value()}, "additionalProperties": value()},
            lambda: {"patternProperties": {pattern: value()}, "additionalProperties": value()},
            lambda: {"properties": {key: value()}, "unevaluatedProperties": value()},
            lambda: {"propertyNames": {"pattern": pattern}},
            lambda: {"minProperties": rng.randint(1, 3)},
            lambda: {"maxProperties": rng.randint(0, 2)},
            lambda: {"dependentRequired": {key: [rng.choice(keys)]}},
        ]
        return rng.choice(drawn)()

    def _of_arrays(self, value: Draw) -> Schema:
        rng = self._rng
        drawn: list[Callable[[], Schema]] = [
            lambda: {"minItems": rng.randint(1, 3)},
            lambda: {"maxItems": rng.randint(0, 2)},
            lambda: {"prefixItems": self._some(value), "items": value()},
            lambda: {"items": value()},
            lambda: {"contains": value(), "minContains": rng.randint(0, 2)},
            lambda: {"contains": value(), "maxContains": rng.randint(1, 2)},
            lambda: {"uniqueItems": True},
        ]
        return rng.choice(drawn)()


class Universes(Hunter):
    def __init__(self) -> None:
        self._engines = [JsonEngine(), JsonEngine(declared=True)]

    def hunt(self, seed: int, tally: Tally) -> None:
        rng = random.Random(f"universe {seed}")
        schema, is_declared = UniverseSchema(rng), rng.random() < 0.5
        problem = problem_of(schema, self._engines[is_declared], is_declared, rng, tally)
        if problem is not None:
            order = "declared" if is_declared else "any"
            tally.findings.append(f"seed {seed}: {problem}: {json.dumps(schema.value)}, {order} key order")


def problem_of(
    schema: UniverseSchema, engine: JsonEngine, is_declared: bool, rng: random.Random, tally: Tally
) -> str | None:
    """Return what the engine does wrong with a schema; None if nothing."""
    valid = set(map(_text, filter(jsonschema.Draft202012Validator(schema.value).is_valid, schema.universe)))
    # Where a schema speaks of uniqueItems, texts with equal items need not be accepted.
    must_differ = "uniqueItems" in json.dumps(schema.value)
    expected = {text for text in valid if not (must_differ and _has_equal_items(text))}
    try:
        index = engine.compile(schema.value)
        accepted = {text for text in map(_text, schema.universe) if index.matches(text)}
    except ValueError as error:
        kind = refusal_of(error)
        tally.executions[f"schemas refused: {kind}"] += 1
        return f"{min(expected)!r} is valid, but the schema is refused" if kind == "impossible" and expected else None
    tally.executions["schemas"] += 1
    tally.executions["texts of their universes"] += len(schema.universe)
    if accepted - valid:
        return f"{min(accepted - valid)!r} is accepted, but not valid"
    # In the declared order one text of each object is enough.
    found = set(map(_sorted, accepted)) if is_declared else accepted
    missing = [text for text in expected if (_sorted(text) if is_declared else text) not in found]
    if missing:
        return f"{min(missing)!r} is valid, but refused"
    if not accepted:
        return "no text is accepted, but the schema is served"
    return _problem_of_masks(engine, index, accepted, rng, tally)


def _problem_of_masks(
    engine: JsonEngine, index: Any, accepted: set[bytes], rng: random.Random, tally: Tally
) -> str | None:
    follow = defaultdict(set)
    for text in accepted:
        for i, byte in enumerate(text):
            follow[text[:i]].add(byte)
        follow[text].add(engine.stop)
    for text in rng.sample(sorted(accepted), min(NUM_WALKS, len(accepted))):
        walk = engine.walk(index)
        for i in range(len(text) + 1):
            tally.executions["masks"] += 1
            allowed = {int(token) for token in walk.allowed()} - SPACES
            if allowed != follow[text[:i]]:
                return f"after {text[:i]!r} {allowed} are allowed instead of {follow[text[:i]]}"
            walk.matcher.accept_bytes(text[i : i + 1])
    return None


def _has_equal_items(text: bytes) -> bool:
    value = json.loads(text)
    return isinstance(value, list) and len({_sorted(_text(item)) for item in value}) < len(value)


def _text(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _sorted(text: bytes) -> bytes:
    """The text of the same value with its keys in order."""
    return json.dumps(json.loads(text), sort_keys=True).encode()


def make() -> Hunter:
    return Universes()
