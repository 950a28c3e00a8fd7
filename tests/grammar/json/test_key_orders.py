"""The declared order of keys where branches contradict one another: the keys follow the
order of a branch that the object satisfies."""

import functools
import graphlib
import itertools
import json
import random
import time
from typing import Annotated, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field, TypeAdapter

from structout.grammar.native.extension import core
from support.json_engine import BYTE_TOKENS, JsonEngine, refusal_of
from support.json_engine_checks import Walker
from support.mask_walks import NOT_ENDED

ENGINE = JsonEngine(declared=True)
NAMES = "abcd"
VALUES = [
    dict(zip(keys, values, strict=True))
    for count in range(len(NAMES) + 1)
    for keys in itertools.permutations(NAMES, count)
    for values in itertools.product([1, 2], repeat=count)
]


def names(*keys, **others):
    properties = {key: {"type": "integer"} for key in keys}
    closed = {"type": "object", "properties": properties, "required": list(keys), "additionalProperties": False}
    return closed | others


def kind(value, *keys):
    """A closed object in the order of ``keys``, with a constant ``k``."""
    schema = names(*keys)
    schema["properties"]["k"] = {"const": value}
    return schema


AB, BA, XY, YX = names("a", "b"), names("b", "a"), names("x", "y"), names("y", "x")
OPEN = {"additionalProperties": True}
PAT = {"patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False}
KINDS = [kind(1, *"kxy"), kind(2, *"yxk")]
OF_KINDS = (['{"k":1,"x":1,"y":1}', '{"y":1,"x":1,"k":2}'], ['{"k":2,"x":1,"y":1}', '{"y":1,"x":1,"k":1}'])


class First(BaseModel):
    k: Literal[1]
    x: int
    y: int


class Second(BaseModel):
    y: int
    x: int
    k: Literal[2]


def texts(*all_keys):
    return [json.dumps(dict.fromkeys(keys, 1), separators=(",", ":")) for keys in all_keys]


def in_list(cases):
    return tuple([f"[{text}]" for text in some] for some in cases)


CASES = {
    "anyOf": ({"anyOf": [AB, BA]}, texts("ab", "ba"), []),
    "a key beside contradicted ones": (
        {"anyOf": [names("a", "b", "x"), names("b", "a", "y")]},
        texts("abx", "bay"),
        texts("bax", "aby", "axb"),
    ),
    "references": (
        {"$defs": {"p": AB, "q": BA}, "anyOf": [{"$ref": "#/$defs/p"}, {"$ref": "#/$defs/q"}]},
        texts("ab", "ba"),
        [],
    ),
    "nested anyOf": ({"anyOf": [AB, {"anyOf": [BA, names("c", "b")]}]}, texts("ab", "ba", "cb"), texts("bc")),
    "allOf": ({"allOf": [{"anyOf": [AB, BA]}]}, texts("ab", "ba"), []),
    "keys in front of a union": (
        {
            "properties": {"z": {}},
            "required": ["z"],
            "anyOf": [names("a", "b", additionalProperties=True), names("b", "a", additionalProperties=True)],
        },
        texts("zab", "zba"),
        texts("abz", "azb"),
    ),
    "optional keys": ({"anyOf": [AB | {"required": []}, BA | {"required": []}]}, texts("ab", "ba", "a", "b", ""), []),
    "oneOf": ({"oneOf": KINDS}, *OF_KINDS),
    "oneOf in a list": ({"type": "array", "items": {"oneOf": KINDS}}, *in_list(OF_KINDS)),
    "two unions": (
        {"allOf": [{"anyOf": [AB | OPEN, BA | OPEN]}, {"anyOf": [XY | OPEN, YX | OPEN]}]},
        texts("abxy", "bayx", "abyx", "baxy"),
        texts("xaby", "xyab"),
    ),
    "branches inside of alternatives": (
        {"anyOf": [{"properties": {"v": AB, "k": {"const": 1}}}, {"properties": {"v": BA, "k": {"const": 2}}}]},
        ['{"v":{"a":1,"b":1},"k":1}', '{"v":{"b":1,"a":1},"k":2}'],
        ['{"v":{"a":1},"k":1}', '{"v":{"a":1,"b":1,"a":1},"k":1}'],
    ),
    "keys of two kinds": (
        {"anyOf": [PAT | {"properties": {"a": {}, "b": {}}}, PAT | {"properties": {"b": {}, "a": {}}}]},
        texts("ab", "ba", ["a", "b", "x-1"], ["b", "x-1"], ["x-1", "x-2"]),
        texts(["a", "x-1", "b"], ["x-1", "a"]),
    ),
    "lists of themselves that differ": (
        {"anyOf": [AB, BA, {"type": "array", "uniqueItems": True, "items": {"$ref": "#/anyOf/2"}}]},
        texts("ab"),
        texts("ba"),
    ),
    "items that differ beside the union": (
        {"properties": {"u": {"uniqueItems": True, "items": {"type": "string"}}, "v": {"anyOf": [AB, BA]}}},
        ['{"u":["a"],"v":{"a":1,"b":1}}', '{"v":{"b":1,"a":1}}'],
        ['{"u":["a","a"]}'],
    ),
    "properties of other types": (
        {"anyOf": [kind(1, "k", "a"), kind("s", "a", "k")]},
        ['{"k":1,"a":1}', '{"a":1,"k":"s"}'],
        ['{"a":1,"k":1}', '{"k":"s","a":1}'],
    ),
    "a branch that no object satisfies": (
        {"anyOf": [AB | {"minProperties": 3}, BA]},
        texts("ba"),
        texts("ab"),
    ),
    "formats in branches": (
        {
            "oneOf": [
                {"properties": {"k": {"const": 1}, "t": {"format": "date"}}, "required": ["k"]},
                {"properties": {"t": {"format": "date"}, "k": {"const": 2}}, "required": ["k", "t"]},
            ]
        },
        ['{"k":1,"t":"2020-01-01"}', '{"t":"2020-01-01","k":2}'],
        ['{"t":"2020-01-01","k":1}', '{"k":2,"t":"2020-01-01"}'],
    ),
    "a union of classes": (TypeAdapter(First | Second).json_schema(), *OF_KINDS),
    "a list of a union with a discriminator": (
        TypeAdapter(list[Annotated[First | Second, Field(discriminator="k")]]).json_schema(),
        *in_list(OF_KINDS),
    ),
    # One order for all.
    "an own order against that of a branch": (
        {"properties": {"a": {}, "b": {}}, "anyOf": [BA]},
        texts("ab"),
        texts("ba"),
    ),
    "if": (
        {"if": {"properties": {"k": {"const": 1}}}, "then": names("k", "x", "y"), "else": names("k", "y", "x")},
        ['{"k":1,"x":1,"y":1}', '{"k":2,"x":1,"y":1}'],
        ['{"k":2,"y":1,"x":1}', '{"k":1,"y":1,"x":1}'],
    ),
    "constants of an enum": ({"enum": [{"a": 1, "b": 1}, {"b": 1, "a": 1, "c": 1}]}, texts("ab", "abc"), texts("ba")),
    "items that differ": (
        {"type": "array", "uniqueItems": True, "items": {"anyOf": [AB, BA]}},
        ['[{"a":1,"b":1},{"a":2,"b":1}]'],
        ['[{"b":1,"a":1}]'],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_text_is_accepted_in_the_order_of_its_branch(name):
    schema, accepted, refused = CASES[name]
    index = ENGINE.compile(schema)
    for text in accepted + refused:
        assert index.matches(text.encode()) is (text in accepted), text


# -- random unions ---------------------------------------------------------------------


def random_branch(rng, depth):
    if depth < 2 and rng.random() < 0.25:
        return random_union(rng, depth + 1)
    keys = rng.sample(NAMES, rng.randint(1, 4))
    kinds = [{"const": 1}, {"enum": [1, 2]}, {"const": 2}, True]
    branch = {"type": "object", "properties": {key: rng.choice(kinds) for key in keys}}
    if rng.random() < 0.7:
        branch["required"] = rng.sample(keys, rng.randint(0, len(keys)))
    if rng.random() < 0.6:
        branch["additionalProperties"] = False
    if rng.random() < 0.3:
        branch[rng.choice(["minProperties", "maxProperties"])] = rng.randint(1, 3)
    return branch


def random_union(rng, depth=0):
    if rng.random() < 0.8:
        union = {rng.choice(["anyOf", "oneOf"]): [random_branch(rng, depth) for _ in range(rng.randint(2, 3))]}
    else:
        key = rng.choice(NAMES)
        condition = {"properties": {key: {"const": 1}}} | ({"required": [key]} if rng.random() < 0.5 else {})
        union = {"if": condition, "then": random_branch(rng, depth)}
        if rng.random() < 0.7:
            union["else"] = random_branch(rng, depth)
    if rng.random() < 0.25:
        union |= {"properties": {key: True for key in rng.sample(NAMES, 2)}}
    if rng.random() < 0.15:
        union = {"allOf": [union, random_branch(rng, 1)]}
    return union


@functools.cache
def judge(text):
    return jsonschema.Draft202012Validator(json.loads(text))


def is_valid(schema, value):
    return schema is True or judge(json.dumps(schema)).is_valid(value)


def lists_of_branches(schema, value):
    """The lists of properties of one branch of each union, for each choice of branches
    that a value satisfies."""
    if schema is True:
        return [[]]
    own = [[list(schema["properties"])]] if "properties" in schema else []
    parts = [own] if own else []
    parts += [lists_of_branches(each, value) for each in schema.get("allOf", [])]
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            branches = [each for each in schema[keyword] if is_valid(each, value)]
            parts.append([lists for branch in branches for lists in lists_of_branches(branch, value)])
    return [[names for lists in choice for names in lists] for choice in itertools.product(*parts)]


def is_consistent(lists):
    sorter = graphlib.TopologicalSorter()
    for ordered in lists:
        for before, after in itertools.pairwise(ordered):
            sorter.add(after, before)
    try:
        sorter.prepare()
    except graphlib.CycleError:
        return False
    return True


def follows(value, lists):
    return all([key for key in value if key in each] == [key for key in each if key in value] for each in lists)


def test_text_is_accepted_if_it_is_valid_and_follows_the_order_of_its_branches(num_cases):
    rng = random.Random("key orders")
    walker = Walker(ENGINE, num_checked=len(BYTE_TOKENS))
    hints = [f'"{name}":{value}'.encode() for name in NAMES for value in (1, 2)]
    num_reordered = num_texts = 0
    for _ in range(num_cases(12, long=300)):
        schema = random_union(rng)
        valid = [value for value in VALUES if is_valid(schema, value)]
        try:
            index = ENGINE.compile(schema)
        except core().SchemaError as error:
            index, refusal = None, refusal_of(error)
        if index is None:
            assert not valid, schema
            assert refusal == "impossible", schema
            continue
        num_accepted = {}
        for value in VALUES:
            is_accepted = index.matches(json.dumps(value, separators=(",", ":")).encode())
            if value not in valid:
                assert not is_accepted, (schema, value)
                continue
            same = frozenset(value.items())
            num_accepted[same] = num_accepted.get(same, 0) + is_accepted
            if '"if"' in json.dumps(schema):  # all branches order the keys
                continue
            choices = lists_of_branches(schema, value)
            has_order = any(follows(value, lists) for lists in choices)
            if all(map(is_consistent, choices)):
                assert has_order or not is_accepted, (schema, value)
            is_ordered = any(
                is_consistent(lists) and follows(value, lists) and any(value.keys() <= set(each) for each in lists)
                for lists in choices
            )
            assert is_accepted or not is_ordered, (schema, value)
        assert all(num_accepted.values()), schema  # each value has a text
        num_reordered += sum(count > 1 for count in num_accepted.values())
        for max_tokens in (0, 10, 25):
            text, problem = walker.draw(index, "uniform", rng, max_tokens, hints)
            assert problem in (None, NOT_ENDED), (schema, text)
            assert problem is not None or is_valid(schema, json.loads(text)), (schema, text)
            num_texts += problem is None
    assert num_reordered > 0
    assert num_texts > 0


# -- states ----------------------------------------------------------------------------


def shuffled(seed, num_keys, *, is_kind_first):
    keys = [f"key_{i}" for i in range(num_keys)]
    random.Random(seed).shuffle(keys)
    return kind(seed, *(["k", *keys] if is_kind_first else [*keys, "k"]))


@pytest.mark.parametrize("is_kind_first", [True, False])
def test_union_of_64_shuffled_branches_is_ready_in_time(is_kind_first):
    branches = [shuffled(seed, 8, is_kind_first=is_kind_first) for seed in range(64)]
    start = time.thread_time()
    index = ENGINE.compile({"oneOf": branches})
    values = [{key: seed if key == "k" else 1 for key in branch["properties"]} for seed, branch in enumerate(branches)]
    for value in values:
        assert index.matches(json.dumps(value, separators=(",", ":")).encode())
    assert time.thread_time() - start < 3
    assert index.num_states < 64 * 100


def test_texts_of_two_orders_of_40_optional_keys_soon_make_no_new_states():
    orders = [[f"key_{i}" for i in range(40)]]
    orders.append([*orders[0][1::-1], *orders[0][2:]])
    index = ENGINE.compile({"anyOf": [names(*order, required=[]) for order in orders]})
    rng = random.Random(1)

    def read_some(count):
        for _ in range(count):
            keys = [key for key in rng.choice(orders) if rng.random() < 0.5]
            assert index.matches(json.dumps(dict.fromkeys(keys, 1), separators=(",", ":")).encode())

    read_some(400)
    num_states = index.num_states
    assert num_states < 4000
    read_some(200)
    assert index.num_states < 1.15 * num_states
