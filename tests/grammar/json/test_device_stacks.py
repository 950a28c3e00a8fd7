"""DeviceStacks has the masks and the ends of the engine's own texts, whatever the
constraint, drafts included."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from structout import DeviceStacks, Vocabulary
from structout.errors import GrammarError
from structout.grammar.native.automaton import Automaton
from structout.grammar.native.extension import core
from structout.grammar.native.json_schema import JsonSchemaGrammar, SchemaIndex, TextForm
from structout.grammar.native.matcher import FsmGrammar
from structout.grammar.native.token_index import TokenIndex, vocabulary_trie
from support.device_walks import DeviceWalk
from support.devices import DEVICES
from support.engine_schemas import EngineSchema
from support.object_schemas import ObjectSchema

# Tokens that close values, end keys and begin others, or do all of these at once.
TOKENS = (
    b'", ', b'": ', b'"}', b"}}", b'"]', b'], "', b'{"', b'[{"', b"true", b"false", b"null", b"12", b"1.", b"abc",
    b'":1,"', b'a":', b'b":1}', b'"a"', b'"b":', b'":1}', b'""', b'"":', b"1,2", b"[1,1]", b'":"","', b'a":1,"b":2}',
    b',"c":', b'"}, {"', b"}]", b"}}}", b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", b"\n",
)  # fmt: skip
VOCABULARY = Vocabulary((*(bytes([byte]) for byte in range(256)), *TOKENS, b""), (256 + len(TOKENS),))
STOP = VOCABULARY.stop_token_ids[0]

INTEGER, ANY = {"type": "integer"}, {}
ABC = {"a": INTEGER, "b": {"type": "string"}, "c": {"type": "boolean"}}
SCHEMAS = [
    {"type": "object", "properties": ABC, "required": ["b"], "additionalProperties": False},
    {"type": "object", "properties": ABC, "required": ["c", "a"]},
    {"type": "object", "properties": ABC, "minProperties": 2, "additionalProperties": False},
    {"type": "object", "properties": {**ABC, "ab": ANY}, "required": ["a", "c"], "maxProperties": 3},
    {"type": "object"},
    {"type": "array", "items": INTEGER},
    ANY,
    {"type": "array", "uniqueItems": True, "items": {"enum": [1, 2, 12]}},
    {"type": "array", "uniqueItems": True, "maxItems": 3},
    {"type": "array", "contains": {"const": 1}, "uniqueItems": True, "items": {"enum": [1, 2]}, "minContains": 1},
    {"properties": {"a": {"$ref": "#"}, "b": {"type": "array", "items": {"$ref": "#"}}}, "additionalProperties": False,
     "type": "object"},
    {"anyOf": [{"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
               {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]}]},
    {"oneOf": [INTEGER, {"type": "string", "maxLength": 5}]},
    {"type": "object", "propertyNames": {"pattern": "^a|b"}, "additionalProperties": INTEGER, "maxProperties": 2},
    {"type": "object", "properties": {f"k{i}": INTEGER for i in range(70)}, "additionalProperties": False},
    {"type": "object", "patternProperties": {"^a": INTEGER, "b$": {"enum": [12, 7]}}, "additionalProperties": False},
]  # fmt: skip


def schema_grammar(schema: Any, key_order: str) -> JsonSchemaGrammar:
    index = SchemaIndex(json.dumps(schema, default=float), VOCABULARY, TextForm(key_order=key_order))
    return JsonSchemaGrammar(index, VOCABULARY.size, VOCABULARY.stop_token_ids, None)


@pytest.mark.parametrize("key_order", ["declared", "any"])
def test_masks_and_places_are_those_of_the_engine(key_order, num_cases):
    rng = random.Random(7)
    for _ in range(num_cases(2, long=60)):
        walk = DeviceWalk(VOCABULARY, [schema_grammar(schema, key_order) for schema in SCHEMAS], "cpu", rng)
        for _ in range(40):
            walk.step()
        walk.check_ends()
        assert 0 < walk.num_asked < walk.num_rows  # used keys and items are the engine's


def random_schemas(rng: random.Random, count: int) -> Iterator[Any]:
    for i in itertools.count():
        kind = EngineSchema if i % 2 else ObjectSchema
        yield kind(rng).schema
        if i + 1 == count:
            return


@pytest.mark.parametrize("key_order", ["declared", "any"])
def test_masks_of_random_schemas_are_those_of_the_engine(key_order, num_cases):
    rng, grammars = random.Random(11), []
    for schema in random_schemas(rng, num_cases(30, long=2000)):
        try:
            grammars.append(schema_grammar(schema, key_order))
        except GrammarError:
            continue
    assert len(grammars) > 15
    for batch in (grammars[i : i + 50] for i in range(0, len(grammars), 50)):
        walk = DeviceWalk(VOCABULARY, batch, "cpu", rng)
        for _ in range(25):
            walk.step()
        walk.check_ends()


def test_texts_that_are_too_deep_are_the_engines_own_until_they_are_not():
    rng = random.Random(3)
    grammars = [schema_grammar({"type": "array", "items": {"$ref": "#"}}, "declared") for _ in range(3)]
    walk = DeviceWalk(VOCABULARY, grammars, "cpu", rng, max_depth=4)
    for text in (b"[", b"[", b"[", b"[", b"[", b"]", b"]", b"]"):
        token = VOCABULARY.token_bytes.index(text)
        walk.masks()
        walk.stacks.advance(torch.tensor([token] * 3))
        assert all(grammar.accept_tokens("", [token]) for grammar in walk.grammars)
    assert walk.num_asked > 0
    assert (walk.stacks.stacks[:, 0] >= 0).all()
    walk.masks()


def test_a_mask_that_looks_deeper_leaves_no_other_text_without_one():
    """The masks of both texts have the same state on top; that of the second looks at
    more frames, so the key of the first grows after its mask was found."""
    schema = {"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": False}
    grammar = schema_grammar(schema, "declared")
    grammars = [grammar, grammar.copy()]
    key = [b'{"', b"a", b'": ']
    for each, num_keys in zip(grammars, (1, 3), strict=True):
        assert each.accept_tokens("", [VOCABULARY.token_bytes.index(text) for text in [*key * num_keys, b"{"]])
    walk = DeviceWalk(VOCABULARY, grammars, "cpu", random.Random(1))
    assert (walk.stacks.rows() >= 0).all()  # before the engine has looked at either
    walk.masks()


def test_masks_beyond_the_slots_are_filled_by_the_engine():
    rng = random.Random(5)
    walk = DeviceWalk(VOCABULARY, [schema_grammar(schema, "any") for schema in SCHEMAS], "cpu", rng, max_masks=3)
    for _ in range(10):
        walk.step()


@pytest.mark.parametrize("key_order", ["declared", "any"])
def test_rows_of_drafts_are_those_of_the_engine(key_order, num_cases):
    """And verified drafts advance the texts as single tokens do."""
    rng = random.Random(9)
    for _ in range(num_cases(1, long=30)):
        walk = DeviceWalk(
            VOCABULARY, [schema_grammar(schema, key_order) for schema in SCHEMAS], "cpu", rng, max_rows=8 * len(SCHEMAS)
        )
        for _ in range(12):
            walk.check_drafts()


def test_automata_and_schemas_share_the_tables_and_texts_may_begin_anywhere():
    index = TokenIndex(Automaton.from_regex("a{2,3}|[0-9]*1"), VOCABULARY)
    automaton = FsmGrammar(index, VOCABULARY.size, VOCABULARY.stop_token_ids, None)
    schemas = [schema_grammar(SCHEMAS[0], "any") for _ in range(2)]
    schemas[1].accept_tokens("", [VOCABULARY.token_bytes.index(text) for text in (b'{"', b"b", b'": ', b'"')])
    walk = DeviceWalk(VOCABULARY, [automaton, *schemas], "cpu", random.Random(2))
    assert walk.where(2)[0] == b'{"b": "'
    for _ in range(8):
        walk.step()
    walk.check_ends()


@pytest.mark.parametrize("key_order", ["declared", "any"])
def test_texts_fork_roll_back_and_make_room(key_order, num_cases):
    rng = random.Random(11)
    for _ in range(num_cases(2, long=30)):
        walk = DeviceWalk(VOCABULARY, [schema_grammar(schema, key_order) for schema in SCHEMAS], "cpu", rng)
        for _ in range(30):
            walk.step()
            row, other = rng.sample(range(len(SCHEMAS)), 2)
            match rng.randrange(4):
                case 0:
                    walk.stacks.fork(row, other)
                    walk.grammars[other] = walk.grammars[row].fork()
                case 1:
                    num_tokens = rng.randint(0, walk.grammars[row].num_tokens)
                    walk.stacks.rollback(row, num_tokens)
                    walk.grammars[row].rollback(num_tokens)
                case 2:
                    walk.stacks.release(row)
                    assert walk.stacks.rows()[row] == -1
                    walk.grammars[row] = schema_grammar(SCHEMAS[other], key_order)
                    walk.stacks.start(row, walk.grammars[row].stack_tables())
        walk.check_ends()


def test_tokens_are_kept_only_for_texts_that_need_them():
    stacks = DeviceStacks(VOCABULARY, "cpu", 2)
    grammar = schema_grammar(SCHEMAS[0], "declared")
    stacks.start(0, grammar.stack_tables())
    bracket = torch.tensor([VOCABULARY.token_bytes.index(b"{"), -1])
    stacks.advance(bracket)
    stacks.start(1, grammar.stack_tables())
    for _ in range(3):
        stacks.advance(torch.tensor([-1, -1]), torch.tensor([False, False]))
    assert len(stacks._steps) == 4
    stacks.release(0)
    assert len(stacks._steps) == 3
    stacks.rollback(1, 0)
    with pytest.raises(ValueError, match=r"num_tokens must be in 0..0, the tokens of row 1, got 1"):
        stacks.rollback(1, 1)
    with pytest.raises(ValueError, match=r"row 0 has no text: start\(\) puts one there"):
        stacks.fork(0, 1)
    stacks.release(1)
    assert stacks._steps == []


def test_equal_constraints_share_their_tables_and_masks():
    grammar = schema_grammar(SCHEMAS[0], "declared")
    stacks = DeviceStacks(VOCABULARY, "cpu", 2)
    stacks.start(0, grammar.stack_tables())
    table_bytes = stacks.table_bytes
    stacks.start(1, grammar.copy().stack_tables())
    assert stacks.table_bytes == table_bytes
    assert stacks.rows().tolist() == [0, 0]


def test_a_constraint_of_another_vocabulary_is_refused():
    other = Vocabulary((b"a", b""), (1,))
    index = TokenIndex(Automaton.from_regex("a*"), other)
    grammar = FsmGrammar(index, other.size, other.stop_token_ids, None)
    with pytest.raises(ValueError, match="the language is of another vocabulary than the tables"):
        DeviceStacks(VOCABULARY, "cpu", 1).start(0, grammar.stack_tables())


def test_the_states_of_closed_schemas_are_built_within_a_budget():
    tables = core().StackTables(vocabulary_trie(VOCABULARY), max_mask_bytes=1 << 20)
    grammar = schema_grammar(SCHEMAS[0], "any")
    language = tables.add(grammar.stack_tables().language, VOCABULARY.stop_token_ids)
    assert not tables.build(language, max_states=10, seconds=10)
    assert tables.build(language, max_states=1000, seconds=10)
    assert tables.num_states < 200


@pytest.mark.parametrize("device", [device for device in DEVICES if device != "cpu"])
def test_texts_on_a_device(device):
    walk = DeviceWalk(VOCABULARY, [schema_grammar(schema, "any") for schema in SCHEMAS], device, random.Random(4))
    for _ in range(10):
        masks = walk.masks()
        tokens = [0 if g.is_terminated() else walk.draw(m) for g, m in zip(walk.grammars, masks, strict=True)]
        walk.stacks.advance(torch.tensor(tokens, device=device))
        for grammar, token in zip(walk.grammars, tokens, strict=True):
            assert grammar.accept_tokens("", [token])
