"""What large schemas cost the engine, in steps of work: the same on every machine."""

import pytest

from support.json_engine import JsonEngine
from support.large_schemas import (
    chain_of_dependencies,
    clauses,
    listed_objects,
    nested_objects,
    objects_with_keys_of_their_own,
    overlapping_branches,
)

ENGINE = JsonEngine()
LIMIT = 60  # seconds: the tests count work


def work_until_first_key(schema):
    index = ENGINE.compile(schema, LIMIT)
    walk = ENGINE.walk(index)
    for byte in b'{"':
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
