"""Schemas whose values exceed a limit are refused before a text begins."""

import random

import pytest

from structout import GrammarLimitError, StructuredOutputsParams, check_params
from structout.grammar.native.extension import core
from support.json_engine import JsonEngine
from support.large_schemas import COMBINATIONS, CONDITIONS, multiples_to_contain

ENGINE = JsonEngine(declared=True)
SECONDS = 0.1  # of CPU time, for what would take minutes

PLACES = {
    "#": lambda schema: schema,
    "#/properties/a/items": lambda schema: {"type": "object", "properties": {"a": {"items": schema}}},
    "#/$defs/node": lambda schema: {
        "anyOf": [{"type": "integer"}, {"type": "object", "properties": {"n": {"$ref": "#/$defs/node"}}}],
        "$defs": {"node": schema},
    },
    "#/additionalProperties/additionalProperties": lambda schema: {
        "type": "object",
        "additionalProperties": {"additionalProperties": schema, "type": "object"},
    },
}


@pytest.mark.parametrize("family", COMBINATIONS)
@pytest.mark.parametrize("place", PLACES)
def test_schema_is_refused_where_a_value_asks_for_too_many_combinations(family, place):
    with pytest.raises(core().LimitError) as refused:
        ENGINE.compile(PLACES[place](family(20)), SECONDS)
    limit, _, _, pointer = refused.value.args
    assert limit in {"schema_verdicts", "cpu_milliseconds"}
    assert pointer in {place, place.removeprefix("#")}


@pytest.mark.parametrize("family", COMBINATIONS)
def test_few_combinations_are_served(family):
    assert draw(ENGINE.compile(family(4)), seed=0)


@pytest.mark.parametrize("family", CONDITIONS)
def test_text_that_has_begun_meets_no_limit(family):
    index = ENGINE.compile(family(64))
    assert all(draw(index, seed) for seed in range(5))


def test_verdicts_that_are_hard_to_find_refuse_nothing():
    """What of these branches one object has to its name is for its text to say."""

    def branch(i):
        props = {key: {"enum": [i % 7, key]} for key in ("severity", f"a{i % 5}", f"b{i % 6}", f"c{i}")}
        arguments = {"type": "object", "properties": props, "additionalProperties": False}
        properties = {"type": {"enum": [f"T{i}"]}, "props": arguments}
        return {"type": "object", "properties": properties, "additionalProperties": False}

    assert draw(ENGINE.compile({"type": "array", "items": {"anyOf": [branch(i) for i in range(70)]}}), seed=1)


def test_check_names_limit_and_pointer():
    params = StructuredOutputsParams(json={"type": "object", "properties": {"x": multiples_to_contain(10)}})
    with pytest.raises(GrammarLimitError) as refused:
        check_params(params)
    assert (refused.value.limit, refused.value.pointer) == ("schema_verdicts", "#/properties/x")


def draw(index, seed, length=80):
    """A random text of some bytes, or the whole text if it ends."""
    rng = random.Random(seed)
    walk = ENGINE.walk(index)
    text = bytearray()
    while len(text) < length:
        byte = int(rng.choice(walk.allowed()))
        if byte == ENGINE.stop:
            break
        assert walk.matcher.accept([byte]), walk.matcher.error
        text.append(byte)
    return bytes(text)
