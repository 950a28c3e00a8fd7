"""Items and keys that must differ: what has been used does not lead to a dead end."""

from __future__ import annotations

import itertools
import json

import pytest

from structout.grammar.native.extension import core
from support.json_engine import BYTE_TOKENS, JsonEngine, refusal_of
from support.used_values import check_walks

ENGINE = JsonEngine()
SPACES = {b" ", b"\n", b"\r", b"\t"}
UNIQUE = {"type": "array", "uniqueItems": True}
NAMED = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "active": {"type": "boolean"}},
    "required": ["name", "active"],
    "additionalProperties": False,
}
BOOLEANS = {
    "type": "object",
    "properties": {name: {"type": "boolean"} for name in "abcde"},
    "required": list("abcde"),
    "additionalProperties": False,
}
BOTH = '[{"name":"a","active":true},{"name":"a","active":false},'
CHAR = {"type": "array", "items": {"type": "string", "maxLength": 1}, "minItems": 1, "maxItems": 1}
LIMITED = {"type": "object", "propertyNames": {"pattern": "^[0-9]$"}, "allOf": [{"propertyNames": {"maxLength": 1}}]}
# A schema, a text, a byte that must not follow, and one that may.
DEAD_ENDS = {
    "object of a used name": (UNIQUE | {"items": NAMED}, BOTH + '{"name":"a', b'"', b"b"),
    "character of a used array": (UNIQUE | {"items": CHAR}, '[[" "],["', b" ", b"a"),
    "300 integers": (
        UNIQUE | {"items": {"type": "integer", "minimum": 0, "maximum": 299}},
        f"[{','.join(map(str, range(300)))}",
        b",",
        b"]",
    ),
    "1,000 keys": (
        {"type": "object", "propertyNames": {"pattern": "^[0-9]{3}$"}},
        "{" + ",".join(f'"{i:03}":true' for i in range(1000)),
        b",",
        b"}",
    ),
    "one key": (
        {"type": "object", "patternProperties": {"^(?!a)": False}, "propertyNames": {"maxLength": 1}},
        '{"a": true',
        b",",
        b"}",
    ),
    "more items than values": (
        UNIQUE | {"items": {"enum": ["a", "b", "c"]}, "anyOf": [{"minItems": 4}, {"maxItems": 1}]},
        '["b"',
        b",",
        b"]",
    ),
    "values of a later item": (
        UNIQUE | {"prefixItems": [{"enum": [1, 2]}, {"enum": [1, 2, 3]}, {"enum": [1, 2]}], "contains": {"const": 7}},
        "[1, ",
        b"2",
        b"3",
    ),
}
DEAD_ENDS["28 of 27 keys, in one of two branches"] = (
    {
        "type": "object",
        "propertyNames": {"pattern": "^[a-z]{1,2}$"},
        "patternProperties": {"^(?!a)": False},
        "anyOf": [{"minProperties": 28}, {"maxProperties": 1}],
    },
    '{"a": true',
    b",",
    b"}",
)
DEAD_ENDS["28 of 27 keys that a branch allows"] = (
    {
        "type": "object",
        "propertyNames": {"pattern": "^[a-z]{1,2}$"},
        "anyOf": [{"minProperties": 28, "patternProperties": {"^(?!a)": False}}, {"maxProperties": 1}],
    },
    '{"a": true',
    b",",
    b"}",
)
DEAD_ENDS["a value that satisfies what is needed no more"] = (
    UNIQUE
    | {
        "prefixItems": [True, {"anyOf": [{"type": "string"}, {"enum": [1, 2]}]}, {"enum": [1, 5]}],
        "items": False,
        "contains": {"enum": [1, 2]},
        "minContains": 2,
    },
    "[1, ",
    b'"',
    b"2",
)
DEAD_ENDS["all arrays of different letters"] = (
    UNIQUE | {"items": UNIQUE | {"items": {"enum": ["a", "b"]}}},
    '[[], ["a"], ["b"], ["a", "b"], ["b"',
    b"]",
    b",",
)
REFUSED = {
    "contains": UNIQUE | {"contains": {"enum": [1, 2]}, "minContains": 2, "items": {"not": {"const": 1}}},
    "33 of 32 objects": UNIQUE | {"items": BOOLEANS, "minItems": 33},
    "11 of 10 keys": LIMITED | {"minProperties": 11},
}


def allowed_after(schema, text):
    walk = ENGINE.walk(ENGINE.compile(schema))
    assert walk.matcher.accept_bytes(text.encode())
    return {BYTE_TOKENS[token] for token in walk.allowed()}


@pytest.mark.parametrize("name", DEAD_ENDS)
def test_byte_after_which_only_used_values_follow_is_not_allowed(name):
    schema, text, dead, live = DEAD_ENDS[name]
    allowed = allowed_after(schema, text)
    assert dead not in allowed
    assert live in allowed


@pytest.mark.parametrize(
    ("alphabet", "schema", "end", "written"),
    [
        ("[],", UNIQUE | {"items": {"type": "string", "maxLength": 5}}, "]", '"{}"'),
        (
            "{}:,",
            {"type": "object", "propertyNames": {"maxLength": 5}, "additionalProperties": {"maxProperties": 0}},
            "}",
            '"{}":{{}}',
        ),
    ],
    ids=["items", "keys"],
)
def test_strings_of_a_vocabulary_that_spells_few_characters_are_counted(alphabet, schema, end, written):
    """An alphabet of three characters spells 364 strings of at most five."""
    engine = JsonEngine([*(byte.encode() for byte in alphabet + '"'), b""])
    walk = engine.walk(engine.compile(schema))
    strings = ["".join(each) for length in range(6) for each in itertools.product(alphabet, repeat=length)]
    texts = [written.format(string) for string in strings]
    assert walk.matcher.accept_bytes((alphabet[0] + ",".join(texts[:-1])).encode())
    assert {engine.token_bytes[token] for token in walk.allowed()} == {b",", end.encode()}
    assert walk.matcher.accept_bytes(("," + texts[-1]).encode())
    assert {engine.token_bytes[token] for token in walk.allowed()} == {end.encode()}


def test_strings_of_any_length_are_many_even_of_few_characters():
    engine = JsonEngine([b"[", b"]", b",", b'"', b""])
    walk = engine.walk(engine.compile(UNIQUE | {"items": {"type": "string"}}))
    assert walk.matcher.accept_bytes(("[" + ",".join(f'"{"," * i}"' for i in range(50))).encode())
    assert {engine.token_bytes[token] for token in walk.allowed()} == {b",", b"]"}


@pytest.mark.parametrize("name", REFUSED)
def test_schema_that_needs_more_values_than_there_are_is_refused(name):
    with pytest.raises(core().SchemaError) as error:
        ENGINE.compile(REFUSED[name])
    assert refusal_of(error.value) in ("impossible", "unsupported")


TOO_MANY = UNIQUE | {"items": BOOLEANS, "minItems": 33}
SERVED_WITHOUT_ARRAYS = {
    "null instead": ({"anyOf": [{"type": "null"}, TOO_MANY]}, {b"n"}),
    "null by type": (TOO_MANY | {"type": ["array", "null"]}, {b"n"}),
    "in an object": (
        {"type": "object", "properties": {"a": TOO_MANY, "b": True}, "required": ["b"], "additionalProperties": False},
        {b"{"},
    ),
    "in an array": ({"type": "array", "items": UNIQUE | {"items": TOO_MANY, "minItems": 2}}, {b"["}),
}


@pytest.mark.parametrize("name", SERVED_WITHOUT_ARRAYS)
def test_schema_with_an_array_that_has_too_few_values_is_served_without_it(name):
    schema, first = SERVED_WITHOUT_ARRAYS[name]
    assert allowed_after(schema, "") == first
    if first == {b"{"}:
        assert allowed_after(schema, '{"') == {b"b"}
    if first == {b"["}:
        assert allowed_after(schema, "[") - SPACES == {b"]"}


def test_schema_that_needs_as_many_values_as_there_are_is_served():
    assert allowed_after(UNIQUE | {"items": BOOLEANS, "minItems": 32}, "[") - SPACES == {b"{"}
    assert allowed_after(LIMITED | {"minProperties": 10}, "{") - SPACES == {b'"'}


OPEN_OBJECT = {
    "type": "object",
    "properties": {
        "a": {"enum": ["x", "y", 3]},
        "abc": {"type": "null"},
        "0": {"exclusiveMaximum": 2, "type": "integer"},
    },
    "required": ["a"],
}
# In the first no item can be what `contains` counts. In the second free keys may come,
# but not before those that are required.
SEARCHED = [
    (UNIQUE | {"items": OPEN_OBJECT, "contains": {"const": ""}, "minContains": 0, "maxContains": 3}, '[{"a":"x"},{"'),
    (
        UNIQUE
        | {"prefixItems": [OPEN_OBJECT], "items": {"anyOf": [OPEN_OBJECT, {"enum": ["", "b"]}]}, "minItems": 2}
        | {"contains": {"const": ""}, "minContains": 0, "maxContains": 1},
        '[{"a":"x"},{"a":"x","',
    ),
    (UNIQUE | {"items": {"type": "integer", "multipleOf": 864}, "maxItems": 3}, "[1728,8640,"),
    (UNIQUE | {"items": {"type": "number", "multipleOf": 1001, "minimum": -2, "maximum": 2**64}}, "[1001,2002,3003"),
    (
        UNIQUE | {"items": NAMED | {"properties": {"name": {"multipleOf": 864}, "active": {}}}},
        '[{"name":1728,"active":1',
    ),
]


@pytest.mark.parametrize("engine", [ENGINE, JsonEngine(declared=True)], ids=["any", "declared"])
@pytest.mark.parametrize(("schema", "text"), SEARCHED)
def test_array_of_different_items_takes_milliseconds_for_its_first_masks(engine, schema, text):
    index = engine.compile(schema)
    walk = engine.walk(index)
    steps = [index.work]
    for byte in text.encode():
        before = index.work
        assert byte in walk.allowed()
        assert walk.matcher.accept([byte])
        steps.append(index.work - before)
    assert max(steps) < 150_000, steps  # three to five milliseconds


ONE_KEY = {"type": "object", "minProperties": 1, "maxProperties": 1, "properties": {"p": {"type": "string"}}}


@pytest.mark.parametrize("engine", [ENGINE, JsonEngine(declared=True)], ids=["any", "declared"])
@pytest.mark.parametrize(
    ("item", "is_possible"),
    [
        (ONE_KEY, True),  # free keys, whose names are many
        (ONE_KEY | {"additionalProperties": False}, True),
        (ONE_KEY | {"required": ["p"]}, True),
        (ONE_KEY | {"required": ["q"], "properties": {"p": {}, "q": {"const": 1}}}, False),
        (ONE_KEY | {"properties": {"p": {"const": 1}}, "additionalProperties": False}, False),
    ],
)
def test_objects_with_room_for_a_key_are_many_if_it_or_its_values_are(engine, item, is_possible):
    schema = UNIQUE | {"prefixItems": [{"type": "boolean"}], "items": {"anyOf": [{"enum": ["a", "b"]}, item]}}
    if is_possible:
        assert engine.compile(schema).matches(b'[true,"a","b",{"p":"x"},{"p":"y"}]')
    else:
        with pytest.raises(core().SchemaError, match="items may use up the values"):
            engine.compile(schema)


@pytest.mark.parametrize(
    "items", [{"multipleOf": 997, "minimum": 10**12}, {"multipleOf": 9973}, {"multipleOf": 20011, "minimum": 1000}]
)
def test_there_are_two_multiples_of_a_step_with_many_remainders(items):
    index = ENGINE.compile(UNIQUE | {"items": {"type": "integer", **items}, "minItems": 2})
    assert ENGINE.walk(index).matcher.accept_bytes(b"[")
    assert index.work < 4_000_000


LEFT = {"type": "object", "patternProperties": {"^$|^[^ab]|^[\\s\\S]{2}": False}}  # the keys "a" and "b" are left
ONE_LETTER = [{"propertyNames": {"pattern": "^a*$"}}, {"propertyNames": {"maxLength": 1}}]
NOT_ALL_TRUE = {"not": {"additionalProperties": {"const": True}}}


@pytest.mark.parametrize("engine", [ENGINE, JsonEngine(declared=True)], ids=["any", "declared"])
@pytest.mark.parametrize(
    ("schema", "text", "following"),
    [
        (LEFT | {"additionalProperties": {"type": "boolean"}, "allOf": [NOT_ALL_TRUE]}, '{"a":true,"b":', "f"),
        ({"type": "object", "additionalProperties": {"type": "boolean"}, "allOf": [*ONE_LETTER, NOT_ALL_TRUE]},
         '{"":true,"a":', "f"),
        (LEFT | {"additionalProperties": {"type": "null"}, "minProperties": 2}, '{"a":null', ","),
        (UNIQUE | {"items": LEFT | {"additionalProperties": {"enum": ["a", "b"]}}}, '[{"a":"a","', "b"),
        (UNIQUE | {"items": LEFT | {"additionalProperties": {"enum": ["a", "b"]}}},
         '[{"a":"a","b":"a"},{"a":"a","b":"', "b"),
        (UNIQUE | {"items": LEFT | {"additionalProperties": {"const": 1}}, "maxItems": 4},
         '[{"a":1},{"b":1},{"a":1,"b":1},{', "}"),
    ],
)  # fmt: skip
def test_few_keys_that_sets_of_keys_leave_may_be_used_up(engine, schema, text, following):
    walk = engine.walk(engine.compile(schema))
    assert walk.matcher.accept_bytes(text.encode())
    assert {BYTE_TOKENS[token] for token in walk.allowed()} - SPACES == {following.encode()}


@pytest.mark.parametrize(
    "keywords",
    [
        {"items": {"type": "boolean"}, "if": {"uniqueItems": True}, "then": {"minItems": 3}},
        {"items": {"enum": ["b", False]}, "not": {"uniqueItems": True, "maxItems": 2}, "contains": {"const": "b"}},
    ],
)
def test_array_that_must_repeat_an_item_is_impossible(keywords):
    """Equal items are never written where a schema speaks of uniqueItems."""
    with pytest.raises(core().SchemaError, match="no value satisfies"):
        ENGINE.compile({"type": "array", "maxItems": 3, **keywords})


# With 8,000 objects in any order the search for an unused one reads over 65,536 bytes.
@pytest.mark.parametrize(("is_declared", "count"), [(True, 4_000), (False, 500)])
def test_thousands_of_used_objects_are_exact_and_cheap(is_declared, count):
    names = [f"n{i}" for i in range(count)]
    properties = {"name": {"enum": names}, "active": {"type": "boolean"}}
    item = {"type": "object", "properties": properties, "required": ["name", "active"], "additionalProperties": False}
    engine = JsonEngine(declared=is_declared)
    index = engine.compile(UNIQUE | {"items": item}, 60)
    walk = engine.walk(index)
    used = [{"name": name, "active": active} for name in names for active in (True, False)]
    text = json.dumps(used[:-1], separators=(",", ":"))[:-1].encode()
    assert walk.matcher.accept_bytes(text)
    steps = []
    for byte in b',{"name":"n' + str(count - 1).encode() + b'","active":false}':
        before = index.work
        assert byte in walk.allowed()
        assert walk.matcher.accept([byte])
        steps.append(index.work - before)
    assert {BYTE_TOKENS[token] for token in walk.allowed()} - SPACES == {b"]"}
    assert max(steps) < 30_000  # a millisecond


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'[{"y":"a","c":0', {b',"z":'}),
        (b'[{"c":"a","y":"b', {b'","c', b'","z":'}),  # "cc" may follow
        (b'[[{"c":"a","y":"b', {b'","c', b'","z":'}),
    ],
)
def test_token_that_repeats_a_key_is_not_allowed_in_an_item_that_is_new(text, expected):
    """A string makes the item differ from all before it, but not the keys within."""
    tokens = [b',"c":', b'","c":', b'","c', b',"z":', b'","z":']
    engine = JsonEngine([*BYTE_TOKENS[:-1], *tokens, b""])
    walk = engine.walk(engine.compile(UNIQUE))
    assert walk.matcher.accept_bytes(text)
    assert {engine.token_bytes[token] for token in walk.allowed() if 256 <= token < engine.stop} == expected


def test_masks_of_random_schemas_are_those_of_their_texts(num_cases):
    for seed in range(4, num_cases(6, long=40, full=2_000)):  # some of the first take ten seconds
        found = check_walks(ENGINE, JsonEngine(declared=True), seed, num_schemas=50, num_walks=10)
        assert not found.wrong, (seed, found.wrong[0])
        assert found.counts["walks"] > 100
