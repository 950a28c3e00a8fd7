"""Objects under traffic: whichever keys have come, states are few; states that texts
have made are given back; a limit fails the text that needs too much, and no other."""

import itertools
import random

import numpy as np
import pytest

from structout.grammar.native.automaton import AutomatonLimits
from support.json_engine import BYTE_TOKENS, JsonEngine

PARTS = [b'", "', b'": "', b'","', b'":', b"prop", b"property_"]
ENGINES = {
    "any": JsonEngine([*BYTE_TOKENS[:-1], *PARTS, b""]),
    "declared": JsonEngine([*BYTE_TOKENS[:-1], *PARTS, b""], declared=True),
}
orders = pytest.mark.parametrize("order", ENGINES)


def object_of(num_names, **keywords):
    names = [f"property_{i}" for i in range(num_names)]
    return {"type": "object", "properties": {name: {"type": "boolean"} for name in names}, **keywords}


def text_of(names):
    return ("{" + ",".join(f'"{name}":true' for name in names) + "}").encode()


def drawn_names(schema, order, rng):
    """Some of the names, and all that are required, in an order that is allowed."""
    names = [name for name in schema["properties"] if rng.random() < 0.5 or name in schema.get("required", ())]
    if order == "any":
        rng.shuffle(names)
    return names


def read_whole(engine, index, text, *cuts):
    """Read a text with a mask at each cut, and check that it may end."""
    walk = engine.walk(index)
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        walk.allowed()
        assert walk.matcher.accept_bytes(text[begin:end]), text[:end]
    assert engine.stop in walk.allowed()


# -- states ----------------------------------------------------------------------------


@orders
@pytest.mark.parametrize(
    "keywords",
    [
        {"additionalProperties": False},
        {"required": ["property_7", "property_70"]},
        {"minProperties": 1, "dependentRequired": {"property_79": ["property_3"]}, "required": ["property_3"]},
    ],
    ids=["closed", "required", "dependent"],
)
def test_texts_with_any_of_80_keys_soon_make_no_new_states(order, keywords):
    engine = ENGINES[order]
    schema = object_of(80, **keywords)
    index = engine.compile(schema)
    rng = random.Random(order)

    def read_some(count):
        for _ in range(count):
            text = text_of(drawn_names(schema, order, rng))
            read_whole(engine, index, text, rng.randrange(len(text)))

    read_some(300)
    num_states = index.num_states
    assert num_states < 4000
    read_some(200)
    assert index.num_states < 1.05 * num_states
    assert index.memory_bytes < 2 << 20


@orders
def test_text_with_all_of_1000_keys_is_read(order):
    engine = ENGINES[order]
    schema = object_of(1000, required=["property_999"], additionalProperties=False)
    names = list(schema["properties"])
    if order == "any":
        random.Random(0).shuffle(names)
    text = text_of(names)
    read_whole(engine, engine.compile(schema), text, 2000, 10_000)


# -- states that are given back --------------------------------------------------------

# The formula weighs all keys against each other, so that each set of them is a state.
WEIGHED = object_of(40, anyOf=[object_of(30, maxProperties=38), object_of(35, maxProperties=36)])


def compile_with(engine, schema, max_growth=8 << 20, **limits):
    native = AutomatonLimits().native
    for name, value in limits.items():
        setattr(native, name, value)
    return engine.compile(schema, limits=native, max_growth=max_growth)


def test_memory_of_states_stays_flat_where_each_text_makes_new_ones():
    engine = ENGINES["any"]
    index = compile_with(engine, WEIGHED, max_growth=1 << 20)
    rng = random.Random(1)
    sizes = []
    for _ in range(30):
        text = text_of(drawn_names(WEIGHED, "any", rng))
        read_whole(engine, index, text, rng.randrange(len(text)))
        sizes.append(index.memory_bytes)
    assert max(sizes) < 4 << 20
    assert sum(later < earlier for earlier, later in itertools.pairwise(sizes)) >= 2  # were given back


def test_text_goes_on_where_states_were_given_back_meanwhile():
    engine = ENGINES["any"]
    index = compile_with(engine, WEIGHED, max_growth=1 << 19)
    rng = random.Random(2)
    text = text_of(drawn_names(WEIGHED, "any", rng))
    walk = engine.walk(index)
    for at in range(0, 90, 9):
        read_whole(engine, index, text_of(drawn_names(WEIGHED, "any", rng)))
        alone = engine.walk(engine.compile(WEIGHED))
        assert at == 0 or alone.matcher.accept_bytes(text[:at])
        assert np.array_equal(walk.allowed(), alone.allowed())
        assert walk.matcher.accept_bytes(text[at : at + 9])


def test_limit_of_states_fails_no_text_because_of_others():
    engine = ENGINES["any"]
    rng = random.Random(3)
    texts = [text_of(drawn_names(WEIGHED, "any", rng)) for _ in range(8)]
    alone = compile_with(engine, WEIGHED)
    read_whole(engine, alone, max(texts, key=len))
    limit = 2 * alone.num_states
    index = compile_with(engine, WEIGHED, schema_states=limit)
    walks = [engine.walk(index) for _ in texts]
    for at in range(0, max(map(len, texts)), 7):
        for walk, text in zip(walks, texts, strict=True):
            assert at >= len(text) or walk.matcher.accept_bytes(text[at : at + 7])
    for walk in walks:
        assert engine.stop in walk.allowed()
        walk.matcher.rollback(1)
        assert engine.stop not in walk.allowed()


def test_limit_of_states_fails_the_text_that_needs_too_much():
    engine = ENGINES["any"]
    index = compile_with(engine, WEIGHED, schema_states=400)
    names = list(WEIGHED["properties"])
    walk = engine.walk(index)
    assert not walk.matcher.accept_bytes(text_of(names[:36]))
    assert "schema_states is limited to 400" in walk.matcher.error
    other = engine.walk(index)
    assert other.matcher.accept_bytes(text_of(names[:3]))
    assert engine.stop in other.allowed()
