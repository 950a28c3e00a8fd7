"""Schemas that few texts satisfy, against ``jsonschema`` and all of these texts.

Each schema restricts its values to a small universe, all texts of which are judged.
Along some of those that are valid, the mask must allow exactly the bytes with which a
valid text goes on, so no text gets stuck.

The same schema is also compiled over a vocabulary that lacks bytes and has parts of
valid texts as tokens. There every token of a mask must lead to what tokens can spell to
the end of a valid text. The converse holds where the letters of strings are tokens; as
strings have no other bytes, some such tokens are left out elsewhere, and counted.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import jsonschema

from soak.hunt import Hunter, Tally
from support.json_engine import JsonEngine, refusal_of

NUM_WALKS = 3
SPACES = set(b" \t\n\r")
SCALARS: list[Any] = [None, True, "a", "b"]
LEAVES: list[Any] = [None, "a"]
KEYS, FEW_KEYS = ("a", "ab", "b"), ("a", "b")  # the first begins another
PATTERNS = ["^a", "^[^a]", "b$", "^b", "^a*$", "^[^b]$", "^.$"]

Schema = dict[str, Any]
Draw = Callable[[], Any]


def _objects(keys: Sequence[str], values: list[Any]) -> list[Any]:
    """All objects, once for each order of their keys."""
    return [
        dict(zip(order, chosen, strict=True))
        for size in range(len(keys) + 1)
        for order in itertools.permutations(keys, size)
        for chosen in itertools.product(values, repeat=size)
    ]


def _arrays(items: list[Any], max_items: int) -> list[Any]:
    return [list(each) for size in range(max_items + 1) for each in itertools.product(items, repeat=size)]


def _trees(depth: int) -> list[Any]:
    if depth == 0:
        return LEAVES
    below = _trees(depth - 1)
    return [*LEAVES, *_arrays(below, 2), *_objects("a", below)]


UNIVERSES = {
    "objects": _objects(KEYS, SCALARS),
    "arrays": _arrays(SCALARS, 3),
    "arrays of objects": _arrays(_objects(FEW_KEYS, ["a", "b"]), 2),
    "objects of arrays": _objects(FEW_KEYS, _arrays(LEAVES, 2)),
    "trees": _trees(2),
}
_TREE = {
    "anyOf": [
        {"enum": LEAVES},
        {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/tree"}},
        {"type": "object", "propertyNames": {"enum": ["a"]}, "additionalProperties": {"$ref": "#/$defs/tree"}},
    ]
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
        parts = [self._whole(), *self._some(lambda: self._node(2))]
        self.value: Schema = {"allOf": parts}
        if self._name == "trees":
            self.value["$defs"] = {"tree": _TREE, "drawn": self._node(2)}

    def _some(self, draw: Draw) -> list[Any]:
        return [draw() for _ in range(self._rng.randint(1, 3))]

    def _whole(self) -> Schema:
        """The schema of the universe."""
        if self._name == "objects":
            return self._all_objects(KEYS, {"enum": SCALARS})
        if self._name == "objects of arrays":
            return self._all_objects(FEW_KEYS, {"type": "array", "maxItems": 2, "items": {"enum": LEAVES}})
        if self._name == "trees":
            bound: Schema = {"enum": LEAVES}
            for _ in range(2):
                bound = {"items": bound, "additionalProperties": bound}
            return {"$ref": "#/$defs/tree", "allOf": [bound]}
        items = {"enum": SCALARS} if self._name == "arrays" else self._all_objects(FEW_KEYS, {"enum": ["a", "b"]})
        return {"type": "array", "maxItems": 3 if self._name == "arrays" else 2, "items": items}

    def _all_objects(self, keys: Sequence[str], values: Schema) -> Schema:
        """Keys have names, or are what several sets of keys leave."""
        named = {"propertyNames": {"enum": list(keys)}}
        sets = [{"maxLength": max(map(len, keys))}, {"pattern": f"^(?:{'|'.join(keys)})+$"}, {"not": {"const": "aa"}}]
        sets += [{"not": {"const": "bb"}}, {"not": {"const": "ba"}}]
        by_sets = {"propertyNames": {"allOf": sets}}
        by_each = {"allOf": [{"propertyNames": each} for each in sets]}
        others = {"patternProperties": {f"^(?!(?:{'|'.join(keys)})$)": False}}
        values_of_all = {"type": "object", "additionalProperties": values}
        return {"allOf": [self._rng.choice([named, by_sets, by_each, others]), values_of_all]}

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
        if self._name == "objects of arrays":
            return self._of_objects(FEW_KEYS, lambda: self._of_arrays(self._scalar))
        if self._name == "trees":
            again: Schema = {"$ref": "#/$defs/drawn"}
            return self._of_either(lambda: self._rng.choice([again, {"not": again}, self._scalar()]))
        letters: list[Any] = [{"const": "a"}, {"const": "b"}, True]
        return self._of_arrays(lambda: self._of_objects(FEW_KEYS, lambda: self._rng.choice(letters)))

    def _of_either(self, value: Draw) -> Schema:
        return self._of_arrays(value) if self._rng.random() < 0.6 else self._of_objects(FEW_KEYS, value)

    def _scalar(self) -> Any:
        constant = {"const": self._rng.choice(SCALARS)}
        return self._rng.choice([True, False, constant, constant, {"not": constant}, {"type": "string"}])

    def _of_objects(self, keys: Sequence[str], value: Draw) -> Schema:
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
        if self._name in ("objects of arrays", "trees"):
            drawn.pop()  # docs/volumes.md tells what is open there
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
    problem = _problem_of_masks(engine, index, accepted, rng, tally)
    return problem or _problem_of_tokens(schema.value, valid, accepted, is_declared, rng, tally)


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


def _problem_of_tokens(
    schema: Schema, valid: set[bytes], accepted: set[bytes], is_declared: bool, rng: random.Random, tally: Tally
) -> str | None:
    """Compile a schema over a vocabulary that lacks bytes, and follow random tokens.

    There, keys of a pattern may have no names, and so no declared order.
    """
    texts = sorted(accepted)
    letters = sorted(set(b"".join(texts)))
    lacking = rng.sample(letters, min(rng.choice([1, 1, 2, 4]), len(letters)))
    tokens = {bytes([byte]) for byte in letters if byte not in lacking}
    for text in rng.choices(texts, k=rng.choice([0, 5, 20])):
        begin = rng.randrange(len(text))
        tokens.add(text[begin : begin + rng.choice([2, 3, 5, 9])])
    vocabulary = sorted(tokens)
    engine = JsonEngine([*vocabulary, b""], declared=is_declared)
    follow = _tokens_that_follow(sorted(valid), vocabulary)
    is_exact = accepted == valid and not set(lacking) & set("".join(KEYS).encode())
    try:
        index = engine.compile(schema)
    except ValueError as error:
        kind = refusal_of(error)
        tally.executions[f"schemas refused where bytes are lacking: {kind}"] += 1
        if kind != "impossible" or not follow[b""]:
            return None
        tally.executions["schemas refused although tokens spell a text"] += 1
        is_wrong = is_exact or any(all(bytes([byte]) in tokens for byte in text) for text in texts)
        return f"tokens spell a text, but the schema is refused over {vocabulary}" if is_wrong else None
    if not follow[b""]:
        return f"no tokens spell a text, but the schema is served over {vocabulary}"
    tally.executions["vocabularies that lack bytes"] += 1
    for _ in range(NUM_WALKS):
        walk, text = engine.walk(index), b""
        while True:
            allowed = {int(token) for token in walk.allowed()}
            tally.executions["masks where bytes are lacking"] += 1
            tally.executions["tokens of them left out"] += len(follow[text] - allowed)
            tally.executions["tokens of them allowed"] += len(allowed)
            if not allowed <= follow[text] or not allowed:
                wrong = {engine.token_bytes[token] for token in allowed - follow[text]}
                return f"after {text!r} the tokens {wrong} lead nowhere, of {len(allowed)} over {vocabulary}"
            if is_exact and allowed != follow[text]:
                missing = {engine.token_bytes[token] for token in follow[text] - allowed}
                return f"after {text!r} the tokens {missing} are forbidden over {vocabulary}"
            token = rng.choice(sorted(allowed))
            if token == engine.stop:
                break
            if not walk.matcher.accept([token]):
                return f"after {text!r} {vocabulary[token]!r} is allowed, but not accepted over {vocabulary}"
            text += vocabulary[token]
    return None


def _tokens_that_follow(texts: list[bytes], vocabulary: list[bytes]) -> defaultdict[bytes, set[int]]:
    """After each part of a text: the tokens with which others spell it to its end, and
    the stop token."""
    follow: defaultdict[bytes, set[int]] = defaultdict(set)
    for text in texts:
        has_end = [False] * len(text) + [True]
        follow[text].add(len(vocabulary))
        for begin in reversed(range(len(text))):
            for token, part in enumerate(vocabulary):
                if text.startswith(part, begin) and has_end[begin + len(part)]:
                    has_end[begin] = True
                    follow[text[:begin]].add(token)
    return follow


def _has_equal_items(text: bytes) -> bool:
    value = json.loads(text)
    return isinstance(value, list) and len({_sorted(_text(item)) for item in value}) < len(value)


def _text(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _sorted(text: bytes) -> bytes:
    """The text of the same value with its keys in order."""
    return json.dumps(json.loads(text), sort_keys=True).encode()


make = Universes
