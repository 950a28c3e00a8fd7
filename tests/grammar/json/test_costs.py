"""What large schemas cost the engine, in steps of work: the same on every machine."""

import json
import time

import jsonschema
import pytest

from support.json_engine import JsonEngine
from support.large_schemas import (
    CONDITIONS,
    chain_of_dependencies,
    clauses,
    listed_objects,
    nested_objects,
    objects_with_keys_of_their_own,
    overlapping_branches,
)

ENGINE = JsonEngine()
LIMIT = 60  # seconds: the tests count work


def work_until_first_key(schema, engine=ENGINE):
    index = engine.compile(schema, LIMIT)
    walk = engine.walk(index)
    for byte in b'["' if schema.get("type") == "array" else b'{"':
        assert len(walk.allowed()) > 0
        assert walk.matcher.accept([byte])
    assert len(walk.allowed()) > 0
    assert walk.matcher.error == ""
    return index.work


# About 30,000 steps take a millisecond.
@pytest.mark.parametrize(
    ("family", "count", "most"),
    [
        (listed_objects, 5_000, 250_000),
        (objects_with_keys_of_their_own, 5_000, 250_000),
        (nested_objects, 5_000, 250_000),
        (overlapping_branches, 100, 1_600_000),
        (chain_of_dependencies, 200, 4_000_000),
        (clauses, 210, 400_000),
    ],
)
def test_large_schema_reaches_its_first_key_with_little_work(family, count, most):
    work = work_until_first_key(family(count))
    assert work <= most
    assert work > most / 10, work  # or the limit says nothing


@pytest.mark.parametrize("family", [listed_objects, objects_with_keys_of_their_own, nested_objects])
def test_work_of_a_list_of_objects_grows_with_its_length(family):
    assert work_until_first_key(family(4_000)) <= 2.5 * work_until_first_key(family(2_000))


@pytest.mark.parametrize("family", CONDITIONS)
@pytest.mark.parametrize("declared", [False, True])
def test_work_of_conditions_grows_with_the_square_of_their_number(family, declared):
    engine = JsonEngine(declared=declared)
    assert work_until_first_key(family(64), engine) <= 20 * work_until_first_key(family(16), engine)


DOCUMENTS = [
    *({"kind": kind, "value": value} for kind in ("K0", "K3", "none") for value in (0, 3, 4)),
    *({"data": data} for data in ({}, {"a1": 1}, {"a1": "x"}, {"a1": "x", "a2": "y"})),
    *({"data": {"a1": value}, "kind": kind} for value in (1, "x") for kind in ("K1", "K2", "none")),
    *({"kind": "K1", "child": child} for child in (5, {}, {"kind": "none"}, {"kind": "K2", "child": {"kind": "K0"}})),
    *({key: value} for key in ("k1", "ak3b", "k1k2", "k1k3", "other") for value in (1, "x")),
    *({"a1": 1, "z": z, "a2": 2} for z in (0, 1, 2, "x")),
    *({f"a{i}": value for i in range(count)} for count in (1, 3, 5) for value in (1, "x")),
    *({"a1": a, "b1": b} for a in (1, "x") for b in (1, "x")),
    *([f"i{i}" for i in range(count)] for count in (4, 5, 6)),
    *({"kind": kind, "a1": "x", "marker": "y"} for kind in ("K1", "K2")),
    *({key: labels} for key in ("marker", "prefix", "other") for labels in ([], ["x"], [1])),
    {},
]  # fmt: skip


@pytest.mark.parametrize("family", CONDITIONS)
def test_conditions_are_those_of_jsonschema(family):
    schema = family(5)
    judge = jsonschema.Draft202012Validator(schema)
    valid = [judge.is_valid(document) for document in DOCUMENTS]
    assert {True, False} == set(valid)
    index = ENGINE.compile(schema)
    assert [index.matches(json.dumps(document).encode()) for document in DOCUMENTS] == valid


def test_token_costs_the_same_however_deep_it_stands():
    walk = ENGINE.walk(ENGINE.compile({}))
    start = time.process_time()
    assert walk.matcher.accept([*b"[" * 20_000, *b"]" * 20_000])
    assert time.process_time() - start < 1  # 0.02; 6 where each token looks at the whole stack


def test_shortest_end_of_a_string_with_both_bounds_is_found_in_linear_time():
    walk = ENGINE.walk(ENGINE.compile({"type": "string", "minLength": 400, "maxLength": 800}))
    start = time.thread_time()
    assert walk.matcher.num_needed == 400 + 2 + 1
    assert time.thread_time() - start < 1  # 0.02; 2, and no end is found, where each length searches its own


def test_work_of_an_enum_value_is_that_of_its_own_part():
    """After the value of a key only the objects that have it count."""
    index = ENGINE.compile(listed_objects(5_000), LIMIT)
    walk = ENGINE.walk(index)
    text = b'{"id":17,"name":"item 17","tags":["a",3]}'
    for byte in text[:9]:
        walk.allowed()
        assert walk.matcher.accept([byte])
    before = index.work
    for byte in text[9:]:
        walk.allowed()
        assert walk.matcher.accept([byte])
    assert index.work - before < 5_000


def test_limit_that_is_far_away_costs_no_look_at_long_tokens():
    """A string of which 130 characters are left asks nothing of a token of 100."""
    tokens = [bytes([byte]) for byte in range(256)] + [b"x" * length for length in range(2, 200)] + [b""]
    engine = JsonEngine(tokens)
    index = engine.compile({"type": "string", "maxLength": 150}, LIMIT)
    walk = engine.walk(index)
    walk.allowed()
    for token in (*b'"a', 256 + 18):  # the last one has 20 characters
        assert walk.matcher.accept([token])
        before = index.work
        allowed = walk.allowed()
    assert len(tokens[max(allowed)]) == 129
    assert index.work - before < 40


def test_prefixes_of_names_are_ends_of_free_keys_without_a_look_at_what_follows():
    """A free key ends after "na" as after any other text, so tokens that end it there
    are known from keys without names."""
    names = ["name", "nature", "nation", "native", "nanny"]
    ends = [b'":', b'": ', b'": "', b'": {', b'": [', b'":"', b'": {"', b'": ["', b'": true', b'": null']
    tokens = [bytes([byte]) for byte in range(256)] + ends
    tokens += [name[:length].encode() + end for name in names for length in range(1, len(name)) for end in ends]
    tokens = [*dict.fromkeys(tokens), b""]
    engine = JsonEngine(tokens)
    index = engine.compile({"type": "object", "properties": {name: {} for name in names}}, LIMIT)
    walk = engine.walk(index)
    for token in b'{"':
        walk.allowed()
        assert walk.matcher.accept([token])
    before = index.work
    allowed = {tokens[token] for token in walk.allowed()}
    assert {b'na":', b'natur": ["', b'": {"'} <= allowed
    assert index.work - before < 120
