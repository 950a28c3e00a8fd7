"""Schemas whose items or keys run out, and walks through them."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema

from support.json_engine import BYTE_TOKENS, JsonEngine, refusal_of
from support.soundness import Findings

SCALARS = [1, 2, 13, "a", "b", "ab", None, True]
INNER = ["a", "b", "ab", None, True, False]  # whose spelling is the only one
SPACES = b" \n\t\r"
MAX_TEXTS = 3_000
MAX_BYTES = 400  # of a walk that goes on as long as it may


class FiniteSchema:
    """A schema with few values, all of whose texts are known.

    Attributes:
        schema: drawn at random.
        texts: its texts, without spaces.
    """

    def __init__(self, rng: random.Random):
        draw = rng.choice([_array, _array, _array_of_objects, _array_of_arrays, _object, _object])
        self.schema, values = draw(rng)
        validator = jsonschema.Draft202012Validator(self.schema)
        self.texts = {
            text.encode()
            for value in itertools.islice(values, MAX_TEXTS)
            if validator.is_valid(value)
            for text in spellings(value)
        }


def spellings(value: Any) -> Iterator[str]:
    """The texts of a value, with keys in any order."""
    if isinstance(value, list):
        for parts in itertools.product(*(list(spellings(item)) for item in value)):
            yield f"[{','.join(parts)}]"
    elif isinstance(value, dict):
        for members in itertools.permutations(value.items()):
            for parts in itertools.product(*(list(spellings(member)) for _, member in members)):
                names = [json.dumps(name) for name, _ in members]
                yield "{" + ",".join(f"{name}:{part}" for name, part in zip(names, parts, strict=True)) + "}"
    else:
        yield json.dumps(value)


def _bounds(rng: random.Random, universe: list[Any]) -> dict[str, Any]:
    bounds: dict[str, Any] = {}
    if rng.random() < 0.5:
        bounds["minItems"] = rng.randint(0, 4)
    if rng.random() < 0.3:
        bounds["maxItems"] = rng.randint(0, 4)
    if rng.random() < 0.4:
        bounds["contains"] = _values(rng, universe)
        if rng.random() < 0.4:
            bounds["minContains"] = rng.randint(0, 2)
        if rng.random() < 0.3:
            bounds["maxContains"] = rng.randint(1, 2)
    return bounds


def _array_of_arrays(rng: random.Random) -> tuple[dict[str, Any], Iterator[Any]]:
    universe = rng.sample(INNER, rng.randint(1, 3))
    inner: dict[str, Any] = {"type": "array", "items": {"enum": universe}, "maxItems": rng.randint(1, 2)}
    if rng.random() < 0.7:
        inner["uniqueItems"] = True
    if rng.random() < 0.3:
        inner["minItems"] = 1
    if rng.random() < 0.3:
        inner["contains"] = _values(rng, universe)
    rows = [list(row) for count in range(3) for row in itertools.product(universe, repeat=count)]
    valid = [row for row in rows if jsonschema.Draft202012Validator(inner).is_valid(row)]
    rng.shuffle(valid)
    schema: dict[str, Any] = {"type": "array", "uniqueItems": True, "items": inner}
    if len(valid) > 4:
        schema["maxItems"] = rng.randint(1, 2)
    if rng.random() < 0.4:
        schema["minItems"] = rng.randint(0, 3)
    return schema, _different(valid, schema.get("maxItems", 4))


def _values(rng: random.Random, universe: list[Any]) -> dict[str, Any]:
    return {"enum": rng.sample(universe, rng.randint(1, len(universe)))}


def _different(universe: list[Any], most: int = 4) -> Iterator[list[Any]]:
    for count in range(min(len(universe), most) + 1):
        for items in itertools.permutations(universe, count):
            yield list(items)


def _array(rng: random.Random) -> tuple[dict[str, Any], Iterator[Any]]:
    universe = rng.sample(SCALARS, rng.randint(1, 4))
    schema = {"type": "array", "uniqueItems": True, "items": {"enum": universe}} | _bounds(rng, universe)
    if rng.random() < 0.4:
        schema["prefixItems"] = [_values(rng, universe) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.3:
        schema["anyOf"] = [_bounds(rng, universe) for _ in range(2)]
    return schema, _different(universe)


def _array_of_objects(rng: random.Random) -> tuple[dict[str, Any], Iterator[Any]]:
    names = rng.sample(["a", "b", "ab"], rng.randint(1, 2))
    item = {
        "type": "object",
        "properties": {name: {"enum": rng.sample(INNER, rng.randint(1, 2))} for name in names},
        "required": [name for name in names if rng.random() < 0.7],
        "additionalProperties": False,
    }
    choices = [
        [{}] + [{name: value} for value in item["properties"][name]["enum"]]  # type: ignore[index]
        for name in names
    ]
    objects = [{key: value for part in parts for key, value in part.items()} for parts in itertools.product(*choices)]
    valid = [value for value in objects if jsonschema.Draft202012Validator(item).is_valid(value)][:4]
    if len(valid) < len(objects) and len(valid) == 4:
        item = {"enum": valid}
    schema: dict[str, Any] = {"type": "array", "uniqueItems": True, "items": item}
    if rng.random() < 0.5:
        schema["minItems"] = rng.randint(0, 4)
    if rng.random() < 0.3:
        schema["maxItems"] = rng.randint(1, 3)
    return schema, _different(valid)


def _object(rng: random.Random) -> tuple[dict[str, Any], Iterator[Any]]:
    keys = rng.sample(["a", "b", "ab", "ba", ""], rng.randint(1, 4))
    schema: dict[str, Any] = {"type": "object", "additionalProperties": {"const": True}}
    schema["propertyNames"] = {"pattern": f"^(?:{'|'.join(keys)})$"}
    if rng.random() < 0.3:
        schema["properties"] = {rng.choice(keys): {"type": "boolean"}}
    if rng.random() < 0.3:
        schema["patternProperties"] = {"^b": {"const": False}} if rng.random() < 0.5 else {"^(?!a)": False}
        schema["additionalProperties"] = {"type": "boolean"}
    if rng.random() < 0.4:
        schema["minProperties"] = rng.randint(0, 4)
    if rng.random() < 0.3:
        schema["maxProperties"] = rng.randint(0, 3)
    if rng.random() < 0.4:
        schema["anyOf"] = [_sizes(rng, keys) for _ in range(2)]
    values = ({key: value for key, value in zip(keys, chosen, strict=True) if value is not None}
              for chosen in itertools.product([None, True, False], repeat=len(keys)))  # fmt: skip
    return schema, values


def _sizes(rng: random.Random, keys: list[str]) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    if rng.random() < 0.6:
        sizes["minProperties"] = rng.randint(0, 4)
    if rng.random() < 0.4:
        sizes["maxProperties"] = rng.randint(0, 3)
    if rng.random() < 0.2:
        sizes["required"] = [rng.choice(keys)]
    if rng.random() < 0.2:
        sizes["additionalProperties"] = {"const": rng.choice([True, False])}
    return sizes


def infinite_schema(rng: random.Random) -> dict[str, Any]:
    """Draw a schema with any number of values, in which a value that has begun may be
    used up."""
    few = {"enum": rng.sample(SCALARS, rng.randint(1, 3))}
    open_string: dict[str, Any] = rng.choice([{"type": "string"}, {"type": "string", "pattern": "^[ab]*$"}])
    item: dict[str, Any] = {
        "type": "object",
        "properties": {"n": rng.choice([open_string, {"type": "integer", "minimum": 0}]), "k": few},
        "required": ["n", "k"] if rng.random() < 0.7 else ["n"],
        "additionalProperties": False,
    }
    if rng.random() < 0.3:
        item = {"type": "array", "prefixItems": [open_string, few], "minItems": 2, "maxItems": 2}
    if rng.random() < 0.3:
        item = {"type": "array", "uniqueItems": True, "items": few}
    schema: dict[str, Any] = {"type": "array", "uniqueItems": True, "items": item}
    if rng.random() < 0.3:
        schema["items"] = {"anyOf": [item, few]}
    if rng.random() < 0.3:
        schema["minItems"] = rng.randint(2, 4)
    if rng.random() < 0.4:
        schema |= {"items": {"anyOf": [few, open_string]}} | _bounds(rng, SCALARS[:5])
        if rng.random() < 0.5:
            schema["prefixItems"] = [rng.choice([_values(rng, SCALARS[:5]), open_string]) for _ in range(2)]
        if rng.random() < 0.3:
            schema["contains"] = rng.choice([{"type": "string"}, {"type": "string", "pattern": "^a"}])
    return schema


def check_finite_walk(engine: JsonEngine, drawn: FiniteSchema, index: Any, rng: random.Random) -> str | None:
    """Walk through a finite schema. Its masks must be those of its texts.

    Returns:
        What is wrong.
    """
    walk = engine.walk(index)
    text = b""
    left = list(drawn.texts)
    while True:
        allowed = {bytes(BYTE_TOKENS[token]) for token in walk.allowed()}
        expected = {each[len(text) : len(text) + 1] for each in left}
        if allowed - {bytes([space]) for space in SPACES} != expected:
            return f"after {text!r} the mask has {sorted(allowed)}, and the texts {sorted(expected)}"
        going_on = sorted(expected - {b""})
        if not going_on or (b"" in expected and rng.random() < 0.3):
            return None
        byte = rng.choice(going_on)
        walk.matcher.accept([byte[0]])
        text += byte
        left = [each for each in left if each.startswith(text)]


def check_infinite_walk(engine: JsonEngine, schema: dict[str, Any], index: Any, rng: random.Random) -> str | None:
    """Walk with few different characters, so that values come again."""
    walk = engine.walk(index)
    text = b""
    preferred = b'"{}[],:ab01nktruel'
    while True:
        allowed = [BYTE_TOKENS[token] for token in walk.allowed()]
        if not allowed:
            return f"nothing may follow {text!r}"
        if b"" in allowed and (rng.random() < 0.1 or len(text) > MAX_BYTES):
            break
        if len(text) > 10 * MAX_BYTES:
            return None  # it may stay inside of a string for as long as this goes
        bytes_ = [byte for byte in allowed if byte and byte in preferred] or [byte for byte in allowed if byte]
        ends = [byte for byte in bytes_ if byte in b'"]}:,0']
        if not bytes_:
            break
        byte = rng.choice(ends if ends and (len(text) > MAX_BYTES or rng.random() < 0.3) else bytes_)
        if len(text) > MAX_BYTES and b"]" in bytes_:
            byte = b"]"
        if not walk.matcher.accept([byte[0]]):
            return f"the mask allows {byte!r} after {text!r}, which is not accepted"
        text += byte
    if not jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)):
        return f"{text!r} is not valid"
    return None


def check_walks(any_order: JsonEngine, declared: JsonEngine, seed: int, num_schemas: int, num_walks: int) -> Findings:
    """Walk through random schemas. Half of them are finite, with keys in any order; the
    others have keys in the declared order for every other seed."""
    rng = random.Random(f"used values {seed}")
    found = Findings()
    for number in range(num_schemas):
        drawn = FiniteSchema(rng) if number % 2 == 0 else None
        schema = drawn.schema if drawn is not None else infinite_schema(rng)
        engine = declared if drawn is None and seed % 2 == 1 else any_order
        try:
            index = engine.compile(schema)
        except ValueError as error:
            refusal = refusal_of(error)
            found.counts[f"refused: {refusal}"] += 1
            if refusal == "limit" or (drawn is not None and drawn.texts and refusal == "impossible"):
                found.wrong.append(f"{json.dumps(schema)}: refused: {error}")
            continue
        if drawn is not None and not drawn.texts:
            found.wrong.append(f"{json.dumps(schema)}: has no text, and is served")
            continue
        for _ in range(num_walks):
            found.counts["walks"] += 1
            if drawn is not None:
                problem = check_finite_walk(engine, drawn, index, rng)
            else:
                problem = check_infinite_walk(engine, schema, index, rng)
            if problem is not None:
                found.wrong.append(f"{json.dumps(schema)}: {problem}")
                break
    return found
