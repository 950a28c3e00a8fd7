"""JSON schemas that are closed into automata, which a device can follow."""

import json
import random
from typing import Any

import pytest

from structout.grammar.native.json_schema import CompiledSchema, JsonSchemaGrammar, TextForm
from structout.grammar.native.token_index import TokenIndex
from structout.grammar.vocabulary import Vocabulary
from support.grammar_walks import allowed, mask_of

TOKENS = [*(bytes([byte]) for byte in range(256)), b'"a', b'": ', b'", "', b"],", b"12", b"yy", b'{"b', b"<stop>"]
STOP = len(TOKENS) - 1
VOCABULARY = Vocabulary(tuple(TOKENS), (STOP,))

CLOSED_SCHEMAS: list[dict[str, Any]] = [
    {"enum": ["red", "green", 1.5, None, [1, {"a": False}]]},
    {"type": "array", "items": {"type": "integer", "minimum": -12, "maximum": 345}, "maxItems": 4},
    {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"enum": ["x", "yy"]},
            "c": {"type": "string", "pattern": "^[ab]+$"},
        },
        "required": ["b"],
        "additionalProperties": False,
        "if": {"required": ["a"]},
        "then": {"properties": {"b": {"const": "x"}}},
    },
    {
        "oneOf": [
            {"type": "string", "maxLength": 3},
            {"type": "string", "format": "date"},
            {"type": "number", "multipleOf": 0.25},
        ]
    },
]
"""Without recursion, free keys and uniqueItems."""
OPEN_SCHEMAS: list[dict[str, Any]] = [
    {},
    {"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
]


@pytest.mark.parametrize("key_order", ["any", "declared"])
@pytest.mark.parametrize("schema", CLOSED_SCHEMAS, ids=[next(iter(schema)) for schema in CLOSED_SCHEMAS])
def test_closed_schema_has_the_masks_of_the_open_one(schema, key_order):
    index = CompiledSchema(json.dumps(schema), VOCABULARY, TextForm(key_order=key_order))
    closed = index.closed
    assert closed is not None
    draw = random.Random(0)
    assert sum(_compare_along_a_text(index, closed, draw) for _ in range(6)) > 30


def _compare_along_a_text(index: CompiledSchema, closed: TokenIndex, draw: random.Random) -> int:
    """Returns the number of masks that were compared."""
    grammar = JsonSchemaGrammar(index, VOCABULARY.size, [STOP], None)
    state = 0
    num_masks = 0
    while num_masks < 60:
        num_masks += 1
        tokens = allowed(mask_of(grammar))
        text_tokens = [token for token in tokens if token != STOP]
        assert text_tokens == [token for token in range(STOP) if closed.next(state, token) >= 0]
        assert closed.accepts(state) == (STOP in tokens)
        tables = grammar.device_tables()
        assert tables is not None
        assert tables.state == state
        if not text_tokens:
            break
        token = draw.choice(text_tokens)
        assert grammar.accept_tokens("", [token])
        state = closed.next(state, token)
    return num_masks


@pytest.mark.parametrize("schema", OPEN_SCHEMAS, ids=["anything", "recursion", "free keys", "uniqueItems"])
def test_schema_that_is_not_regular_has_no_closed_form(schema):
    index = CompiledSchema(json.dumps(schema), VOCABULARY)
    assert index.closed is None
