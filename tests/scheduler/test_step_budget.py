"""No step works longer on one request than its share, whatever the schema: in steps of
the engine's work, the same on every machine."""

import json

import pytest

from structout import StructuredOutputManager, StructuredOutputsConfig, StructuredOutputsParams
from structout.scheduler.decoding_step import STEP_WORK
from support import large_schemas
from support.managers import TOKENIZER, V, ids_of

SHARE = STEP_WORK // 32 + STEP_WORK // 4  # of one request in the masks of a step: about a millisecond
UNIQUE = {"type": "array", "uniqueItems": True}
SMALL_OBJECT = '{"id": 17, "name": "item 17", "tags": ["a", 3]}'
LONG = "some words of a text " * 1_000
CHEAP = [f"cheap{i}" for i in range(4)]


def small_objects(count):
    return {"enum": [{"id": i, "name": f"item {i}"} for i in range(count)]}


# A schema, a text of it, and whether one of its masks must take more than a share.
HOSTILE = {
    "clauses": (large_schemas.clauses(210), '{"k1": 1, "k2": 2', True),
    "unique integers": (UNIQUE | {"items": {"type": "integer"}}, json.dumps([*range(2_000)])[:-1], False),
    "unique string": (UNIQUE | {"items": {"type": "string"}}, f'["{LONG}a", "{LONG}b", "', False),
    "enum of 300": (large_schemas.listed_objects(300), SMALL_OBJECT, False),
    "enum of 5,000": (small_objects(5_000), '{"id": 17, "name": "item 17"}', True),
    "oneOf of 35": (large_schemas.overlapping_branches(35), '{"p0": "x", "n": 1}', True),
    "oneOf of 100": (large_schemas.overlapping_branches(100), '{"p0": "x", "n": 1}', True),
    "oneOf of ranges": (large_schemas.overlapping_ranges(40), '{"k1": 1, "k', True),
    "chain of 200": (large_schemas.chain_of_dependencies(200), '{"k190": 1, "k', True),
    "250 tools": (large_schemas.tool_calls(250), '[{"name": "tool_17", "arguments": {"a17_0": "x"}}, {"', False),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_step_works_no_longer_on_a_request_than_its_share(name):
    schema, text, is_expensive = HOSTILE[name]
    tokens = ids_of(text)
    stride = max(1, len(tokens) // 100)  # long texts have a mask every so many tokens
    config = StructuredOutputsConfig(key_order="any")
    with StructuredOutputManager(TOKENIZER, V, config) as manager:
        manager.add_request("hostile", StructuredOutputsParams(json=schema))
        for i, cheap in enumerate(CHEAP):
            manager.add_request(cheap, StructuredOutputsParams(json={"type": "object", "title": str(i)}))
        manager.wait_all(timeout=60)
        hostile = manager._requests["hostile"]
        index = hostile.grammar.index.native
        work_left = hostile.work_left
        for first in range(0, len(tokens), stride):
            batch = manager.grammar_bitmask(["hostile", *CHEAP])
            assert manager._steps.work <= SHARE
            assert not batch.errors
            assert batch.bitmask.any(axis=1).all()
            before = index.work
            assert manager.accept_tokens("hostile", tokens[first : first + stride])
            assert index.work - before <= SHARE
        assert hostile.work_left < work_left or not is_expensive
