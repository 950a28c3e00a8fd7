"""``additional_properties="closed"``: objects have the keys that their schemas name."""

import itertools
import json
import random
import re
from decimal import Decimal

import jsonschema
import pytest

from structout.grammar.native.extension import core
from structout.grammar.native.json_schema import CompiledSchema, TextForm
from structout.grammar.vocabulary import BYTES
from support.json_engine import BYTE_TOKENS, JsonEngine
from support.json_engine_checks import STYLES, Walker

OPEN, CLOSED = JsonEngine(), JsonEngine(closes_objects=True)
A = {"type": "object", "properties": {"a": {}}}
B = {"type": "object", "properties": {"b": {}}, "required": ["b"]}


CASES = {
    "an object": (A, [{}, {"a": 1}], [{"b": 1}, {"a": 1, "b": 1}]),
    "an object without keys": ({"type": "object", "properties": {}}, [{}], [{"a": 1}]),
    "any object": ({"type": "object"}, [{"a": 1}], []),
    "any value": (True, [{"a": 1}], []),
    "a map": ({"additionalProperties": A}, [{"x": {"a": 1}}], [{"x": {"b": 1}}]),
    "an open object": (A | {"additionalProperties": True}, [{"b": 1}], []),
    "an object that says it for unevaluated keys": (A | {"unevaluatedProperties": True}, [{"b": 1}], []),
    "patterns": ({"patternProperties": {"^p": A}}, [{"p": {"a": 1}}], [{"q": 1}, {"p": {"b": 1}}]),
    "items": ({"prefixItems": [A], "items": B}, [[{"a": 1}, {"b": 1}]], [[{"b": 1}], [{}, {"a": 1, "b": 1}]]),
    "allOf": ({"allOf": [A, B]}, [{"a": 1, "b": 1}, {"b": 1}], [{"b": 1, "c": 1}]),
    "keys beside a reference": (
        {"$ref": "#/$defs/b", "properties": {"a": {}}, "$defs": {"b": B}},
        [{"a": 1, "b": 1}],
        [{"b": 1, "c": 1}],
    ),
    "alternatives": ({"anyOf": [A, B]}, [{"a": 1}, {"b": 1}], [{"a": 1, "b": 1}, {"c": 1}]),
    "alternatives of which one is open": ({"anyOf": [B, {"type": "object"}]}, [{"c": 1}], []),
    "alternatives that add keys": (
        {"properties": {"id": {}}, "anyOf": [A | {"required": ["a"]}, B]},
        [{"id": 1, "a": 1}, {"id": 1, "b": 1}, {"a": 1, "b": 1}],
        [{"id": 1, "a": 1, "c": 1}, {"b": 1, "c": 1}],
    ),
    "a condition": (
        {"properties": {"k": {}}, "if": {"properties": {"k": {"const": 1}}, "required": ["k"]}, "then": A, "else": B},
        [{"k": 1, "a": 1}, {"k": 2, "b": 1}],
        [{"k": 1, "b": 1}, {"k": 2, "a": 1, "b": 1}],
    ),
    "a dependent schema": (
        A | {"dependentSchemas": {"a": {"properties": {"b": {}}}}},
        [{"a": 1, "b": 1}],
        [{"b": 1}],
    ),
    "a dependent schema of draft 7": (
        A | {"$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"a": {"properties": {"b": {}}}}},
        [{"a": 1, "b": 1}],
        [{"b": 1}],
    ),
    "draft 3": (
        A | {"$schema": "http://json-schema.org/draft-03/schema#", "extends": {"properties": {"b": {}}}},
        [{"a": 1, "b": 1}],
        [{"c": 1}],
    ),
    "a required key without a schema": (A | {"required": ["b"]}, [{"b": 1}], [{"b": 1, "c": 1}]),
    "a key that another one requires": (
        A | {"dependentRequired": {"a": ["b"]}},
        [{"a": 1, "b": 1}],
        [{"b": 1}],
    ),
    "two schemas of one value": (
        {
            "properties": {"x": A | {"required": ["a"]}, "y": {}},
            "if": {"properties": {"x": {"properties": {"a": {"const": 1}}}}},
            "then": {"required": ["y"], "properties": {"x": B}},
        },
        [{"x": {"a": 1, "b": 2}, "y": 1}, {"x": {"a": 2}}],
        [{"x": {"a": 1, "b": 2, "c": 3}, "y": 1}, {"x": {"a": 2, "c": 1}}],
    ),
    "a test": ({"type": "array", "contains": A, "not": {"contains": B}}, [[{"x": 1}]], []),
    "recursion": (
        {"properties": {"next": {"$ref": "#"}}},
        [{"next": {"next": {}}}],
        [{"next": {"next": {"a": 1}}}],
    ),
    "too few keys for minProperties": (A | {"minProperties": 2}, [{"b": 1, "c": 1}], []),
    "too few closed items": (
        {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "null"}}}}
        | {"uniqueItems": True, "minItems": 3},
        [[{}, {"a": None}, {"b": 1}]],
        [],
    ),
    "alternatives that nothing tells apart": (
        {"oneOf": [{"properties": {"a": {"type": "null"}}}, {"properties": {"b": {"type": "null"}}}]},
        [{"a": 1}],
        [],
    ),
}


@pytest.mark.parametrize(("schema", "valid", "open_only"), CASES.values(), ids=CASES)
def test_objects_have_the_keys_that_their_schemas_name(schema, valid, open_only):
    closed, as_written = CLOSED.compile(schema), OPEN.compile(schema)
    for value in valid:
        assert closed.matches(json.dumps(value).encode()), value
    for value in open_only:
        assert not closed.matches(json.dumps(value).encode()), value
    for value in (*valid, *open_only):
        assert as_written.matches(json.dumps(value).encode()), value


def test_a_closed_object_is_the_one_without_additional_properties():
    inside = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}
    schema = {"type": "object", "properties": {"a": inside, "c": {"type": "array", "items": inside}}}
    written = json.loads(json.dumps(schema).replace('"object"', '"object", "additionalProperties": false'))
    closed = CompiledSchema(json.dumps(schema), BYTES, TextForm(additional_properties="closed"))
    assert closed.closed.num_states == CompiledSchema(json.dumps(written), BYTES).closed.num_states


def test_many_alternatives_beside_keys_may_be_closed_by_themselves():
    branches = [{"properties": {f"a{i}": {}}, "required": [f"a{i}"], "additionalProperties": False} for i in range(9)]
    index = CLOSED.compile({"anyOf": branches, "properties": {f"a{i}": {} for i in range(9)}})
    assert index.matches(b'{"a8": 1}')
    assert not index.matches(b'{"a8": 1, "b": 1}')


def test_many_alternatives_are_ready_in_time():
    def alternative(number):
        names = {f"{name}{number}": {"type": "string"} for name in "abc"}
        return {"type": "object", "properties": {"kind": {"const": number}, **names}}

    index = CLOSED.compile({"oneOf": [alternative(number) for number in range(40)]})
    assert index.matches(b'{"kind": 7, "a7": "x"}')
    assert not index.matches(b'{"kind": 7, "a8": "x"}')


# -- against a reading of the definition ---------------------------------------------


def random_schema(rng, depth=3):
    schema = {}
    if rng.random() < 0.6:
        schema["properties"] = {name: random_schema(rng, depth - 2) for name in rng.sample("ab", rng.randrange(3))}
    if rng.random() < 0.2:
        schema["required"] = [rng.choice("abc")]
    if rng.random() < 0.15:
        schema["patternProperties"] = {rng.choice(["a", "[bc]"]): random_schema(rng, depth - 2)}
    if rng.random() < 0.15:
        schema["additionalProperties"] = rng.choice([True, False, {"type": "integer"}, random_schema(rng, depth - 2)])
    if rng.random() < 0.1:
        schema["type"] = rng.choice(["object", "integer", ["object", "integer"]])
    if rng.random() < 0.05:
        schema["minProperties"] = rng.randrange(3)
    if depth > 0 and rng.random() < 0.5:
        keyword = rng.choice(["allOf", "anyOf", "anyOf", "oneOf", "if", "not", "dependentSchemas", "$ref"])
        if keyword in ("allOf", "anyOf", "oneOf"):
            schema[keyword] = [random_schema(rng, depth - 1) for _ in range(2)]
        elif keyword == "if":
            schema |= {name: random_schema(rng, depth - 1) for name in ("if", "then", "else")}
        elif keyword == "not":
            schema["not"] = {"required": [rng.choice("abc")]}
        elif keyword == "dependentSchemas":
            schema[keyword] = {rng.choice("ab"): random_schema(rng, depth - 1)}
        else:
            schema["$ref"] = "#/$defs/d"
    return rng.choice([True, {"type": "integer"}]) if depth <= 0 and rng.random() < 0.5 else schema


class Reading:
    """The definition of closed objects, for values that satisfy the schema."""

    def __init__(self, root):
        self._root = root

    def is_valid(self, schema, value):
        return jsonschema.Draft202012Validator({"$defs": self._root.get("$defs", {}), "allOf": [schema]}).is_valid(
            value
        )

    def in_place(self, schema):
        """The schemas that may apply to the same value, each with those that must hold
        for it to count."""
        if not isinstance(schema, dict):
            return
        yield schema, []
        test = schema.get("if", True)
        parts = [(part, []) for part in schema.get("allOf", ())]
        parts += [(part, [part]) for keyword in ("anyOf", "oneOf") for part in schema.get(keyword, ())]
        parts += [(part, [{"required": [name]}]) for name, part in schema.get("dependentSchemas", {}).items()]
        if "if" in schema:
            parts += [(test, [test]), (schema["then"], [test]), (schema["else"], [{"not": test}])]
        if "$ref" in schema:
            parts.append((self._root["$defs"]["d"], []))
        for part, conditions in parts:
            for inner, more in self.in_place(part):
                yield inner, conditions + more

    def speaks(self, schema):
        """Whether a schema says something about keys."""
        if not isinstance(schema, dict):
            return False
        if "$ref" in schema and self.speaks(self._root["$defs"]["d"]):
            return True
        parts = [part for keyword in ("allOf", "anyOf", "oneOf") for part in schema.get(keyword, ())]
        return any(map(self.speaks, parts)) or not schema.keys().isdisjoint(
            ("properties", "patternProperties", "additionalProperties", "required", "if", "not", "dependentSchemas")
        )

    def is_closed(self, sources, value):
        """Whether the objects in a value have no other keys than those of the schemas
        that speak of it. Each comes with whether the value must satisfy it."""
        distinct = {}
        for schema, is_certain in sources:
            if self.speaks(schema):
                resolved = self._root["$defs"]["d"] if schema.keys() == {"$ref"} else schema
                distinct[json.dumps(resolved), is_certain] = resolved
        if not isinstance(value, dict):
            return True
        alone = [schema for (_, is_certain), schema in distinct.items() if is_certain and len(distinct) == 1]
        for keyword in ("anyOf", "oneOf"):
            if alone and keyword in alone[0] and alone[0].keys() <= {keyword, "type", "$defs"}:
                branches = [branch for branch in alone[0][keyword] if self.is_valid(branch, value)]
                return any(self.is_closed([(branch, True)], value) for branch in branches)
        parts = [
            (part, conditions if is_certain else [schema, *conditions])
            for (_, is_certain), schema in distinct.items()
            for part, conditions in self.in_place(schema)
        ]
        names_keys = any("properties" in part or "patternProperties" in part for part, _ in parts)
        holding = [part for part, conditions in parts if all(self.is_valid(each, value) for each in conditions)]
        for key, inner in value.items():
            if names_keys and not any(self.names(part, key) for part in holding):
                return False
            found = [(source, not conditions) for part, conditions in parts for source in self.values(part, key)]
            if not self.is_closed(found, inner):
                return False
        return True

    @staticmethod
    def names(part, key):
        patterns = part.get("patternProperties", ())
        is_named = key in part.get("properties", ()) or key in part.get("required", ())
        return is_named or "additionalProperties" in part or any(re.search(pattern, key) for pattern in patterns)

    @staticmethod
    def values(part, key):
        patterns = part.get("patternProperties", {}).items()
        named = [schema for name, schema in part.get("properties", {}).items() if name == key]
        named += [schema for pattern, schema in patterns if re.search(pattern, key)]
        return named or [part["additionalProperties"]] if "additionalProperties" in part else named


def rounded(number):
    """An integer if the number is one, and else a fraction."""
    number = Decimal(number)
    return int(number) if number == number.to_integral_value() else 0.5


def objects():
    inner = [1, {}, *({name: 1} for name in "abc"), {"a": 1, "b": 1}, {"b": {"c": 1}}]
    yield from (1, {})
    for names in itertools.chain("abc", ["ab", "bc", "ac"]):
        for values in itertools.product(inner, repeat=len(names)):
            yield dict(zip(names, values, strict=True))


def test_random_schemas_are_closed_as_defined(num_cases):
    rng = random.Random("closed")
    instances = [*objects()]
    walker = Walker(CLOSED, num_checked=len(BYTE_TOKENS))
    counts = {True: 0, False: 0, None: 0}
    for _ in range(num_cases(60, long=3000)):
        schema = random_schema(rng) | {"$defs": {"d": random_schema(rng, 1)}}
        if "$ref" in schema["$defs"]["d"]:  # to itself: no reading would end
            continue
        reading = Reading(schema)
        try:
            as_written = OPEN.compile(schema)
        except core().SchemaError:
            continue
        closed = CLOSED.compile(schema)  # a schema with a value keeps one
        valid = [value for value in instances if reading.is_valid(schema, value)]
        expected = {json.dumps(value).encode(): reading.is_closed([(schema, True)], value) for value in valid}
        is_left_open = not any(expected.values()) and (not expected or any(map(closed.matches, expected)))
        for value in instances:
            text = json.dumps(value).encode()
            assert as_written.matches(text) == (text in expected), (schema, text)
            is_allowed = text in expected and (is_left_open or expected[text])
            assert closed.matches(text) == is_allowed, (schema, text)
            counts[expected.get(text)] += 1
        text, problem = walker.draw(closed, rng.choice(STYLES), rng, 30, [b'"a"', b'"b"', b'"c"', b"1"])
        assert problem in (None, "not ended"), (schema, text, problem)
        if problem is None:
            assert as_written.matches(text), (schema, text)
            value = json.loads(text, parse_float=rounded)
            assert is_left_open or reading.is_closed([(schema, True)], value), (schema, text)
    assert min(counts.values()) > 500, counts
