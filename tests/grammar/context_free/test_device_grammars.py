"""DeviceStacks follows grammars and tags as the engine does: scannerless ones and those
with a lexer, with JSON schemas inside, and with tokens that are read by their ids."""

from __future__ import annotations

import itertools
import json
import random

import pytest
import torch

from structout import DeviceStacks, StructuredOutputsParams, Vocabulary
from structout.constraints.params import StructuredOutputOptions as Kind
from structout.constraints.tools.call_formats import TOOL_FORMATS
from structout.constraints.tools.definitions import Tool
from structout.errors import GrammarError
from structout.grammar.interface import StructuredOutputGrammar
from structout.grammar.native.backend import FsmBackend
from structout.grammar.native.extension import core
from structout.grammar.native.grammars import ContextFreeGrammar
from structout.grammar.native.token_index import vocabulary_trie
from structout.masks.bitmask import allocate_token_bitmask
from structout.ops.stack_tables import ASKED_STACK, DEAD_STACK
from support.device_walks import DeviceWalk
from support.random_tags import random_tag_of_schemas
from support.recursive_grammars import random_lexed_grammar, random_scannerless_grammar

# Tokens that lead into values, out of them, or both.
TEXTS = (
    b"</f>", b"<f>{", b'<f>{"a": ', b'"}</f>', b"}</f>", b"}</f>a<f>", b"1}</", b'{"', b'": ', b'", ', b'"}', b"[1",
    b"1]", b"]}", b"12", b"true", b"ab", b"((", b"))", b") + (", b"1 +", b"<call>", b"1]</f>", b'"b": "x"}</f>', b"<f",
)  # fmt: skip
END, CALL = 256 + len(TEXTS), 257 + len(TEXTS)
VOCABULARY = Vocabulary((*(bytes([byte]) for byte in range(256)), *TEXTS, b"", b""), (END,), (("<|call|>", CALL),))
BACKEND = FsmBackend(VOCABULARY)

CLOSED = '{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["b"], \
"additionalProperties": false}'
GRAMMARS = {
    "brackets": 'root ::= "[" (root ("," root)*)? "]" | "x"',
    "two languages of equal length": 'root ::= "a" root "b" | "ab"',
    "sums": 'start: expr\nexpr: NUM | expr "+" expr | "(" expr ")"\nNUM: /[0-9]+/\n%ignore / +/',
    "calls": f'start: (TEXT call)+\nTEXT: /[a-c]*/\ncall: "<f>" v "</f>"\nv: %json {CLOSED}',
    "a value of any kind": 'start: "=" v w?\nv: %json {}\nw: "<" v "}"',
    "numbers side by side": 'start: "v" v (";" v)*\nv: %json {"type": "integer"}',
    "a number before digits": 'start: "v" v /[0-9]{3}/\nv: %json {"type": "integer"}',
    "items that differ": 'start: v "</f>"\nv: %json {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": true}',
    "free keys": 'start: "<f>" v "</f>"\nv: %json {"type": "object", "additionalProperties": {"type": "integer"}}',
    "a token": f'start: (/[a-c]+/ <|call|> v)* "."\nv: %json {CLOSED}',
    "a token that has bytes": f'start: (/[a-c<>l]+/ <[{VOCABULARY.token_bytes.index(b"<call>")}]> "1")* "."',
}


def grammar_of(text: str) -> ContextFreeGrammar:
    grammar = BACKEND.compile_grammar(Kind.GRAMMAR, text)
    assert isinstance(grammar, ContextFreeGrammar)
    return grammar


def test_masks_and_places_are_those_of_the_engine(num_cases):
    rng, depths = random.Random(1), set()
    for _ in range(num_cases(3, long=100)):
        walk = DeviceWalk(VOCABULARY, [grammar_of(text) for text in GRAMMARS.values()], "cpu", rng)
        for _ in range(60):
            walk.step()
            depths |= {*walk.stacks.stacks[:, 1].tolist()}
        walk.check_ends()
    assert {0, 1, 2} <= depths  # values on top of grammars, and values inside of those


def random_constraints(rng: random.Random, count: int) -> list[StructuredOutputGrammar]:
    grammars: list[StructuredOutputGrammar] = []
    while len(grammars) < count:
        kind, spec = rng.choice(
            [
                (Kind.GRAMMAR, random_scannerless_grammar(rng).gbnf()),
                (Kind.GRAMMAR, random_lexed_grammar(rng).lark()),
                (Kind.STRUCTURAL_TAG, json.dumps(random_tag_of_schemas(rng)[0])),
            ]
        )
        try:
            grammars.append(BACKEND.compile_grammar(kind, spec))
        except GrammarError:
            continue
    return grammars


def test_masks_of_random_grammars_and_tags_are_those_of_the_engine(num_cases):
    rng = random.Random(2)
    for _ in range(num_cases(3, long=60)):
        walk = DeviceWalk(VOCABULARY, random_constraints(rng, 20), "cpu", rng)
        for _ in range(15):
            walk.step()
        walk.check_ends()


def test_rows_of_drafts_are_those_of_the_engine():
    rng = random.Random(3)
    grammars = [grammar_of(text) for text in GRAMMARS.values()]
    walk = DeviceWalk(VOCABULARY, grammars, "cpu", rng, max_rows=8 * len(grammars))
    for _ in range(10):
        walk.check_drafts()


def test_a_token_read_by_its_id_moves_a_text_without_the_engine():
    grammar = grammar_of(GRAMMARS["a token"])
    stacks = DeviceStacks(VOCABULARY, "cpu", 1)
    stacks.start(0, grammar.stack_tables())
    tops = []
    for token in (ord("a"), CALL, VOCABULARY.token_bytes.index(b'{"'), ord("b")):
        stacks.advance(torch.tensor([token]))
        tops.append(int(stacks.stacks[0, 0]))
    assert min(tops) >= 0
    assert stacks.stacks[0, 1] == 1  # the place in the grammar, below that in the value


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
@pytest.mark.parametrize("tool_choice", ["auto", "required"])
def test_tables_of_tool_calls_are_built_ahead(tool_format, tool_choice):
    schema = json.loads(CLOSED)
    tag = TOOL_FORMATS[tool_format].structural_tag([Tool("paint", schema, "", None)], tool_choice)
    grammar = BACKEND.compile(StructuredOutputsParams(structural_tag=tag).constraint()).grammar
    language = grammar.stack_tables().language
    tables = core().StackTables(vocabulary_trie(VOCABULARY), max_mask_bytes=0)
    assert tables.build(tables.add(language, [END]), max_states=2_000, seconds=60)
    walk = DeviceWalk(VOCABULARY, [grammar], "cpu", random.Random(4))
    for _ in range(30):
        walk.step()
    walk.check_ends()


def test_texts_are_the_engines_own_where_more_than_their_places_matters():
    """Until a value with used keys or different items has ended."""
    walk = DeviceWalk(VOCABULARY, [grammar_of(GRAMMARS["items that differ"])], "cpu", random.Random(5))
    is_asked = []
    for text in (b"[1", b",", b"2", b"]", b"<", b"/"):
        walk.masks()
        token = VOCABULARY.token_bytes.index(text)
        walk.stacks.advance(torch.tensor([token]))
        assert walk.grammars[0].accept_tokens("", [token])
        is_asked.append(bool(walk.stacks.stacks[0, 0] == ASKED_STACK))
    assert is_asked == [False, True, True, False, False, False]
    walk.masks()


@pytest.mark.parametrize(
    ("kind", "spec", "refused"),
    [(Kind.GRAMMAR, GRAMMARS["brackets"], b"]"), (Kind.JSON, CLOSED, b"x"), (Kind.REGEX, "a+b", b"b")],
    ids=["grammar", "schema", "automaton"],
)
def test_tokens_after_a_refused_one_or_after_the_end_change_nothing(kind, spec, refused):
    grammar = BACKEND.compile_grammar(kind, spec)
    stacks = DeviceStacks(VOCABULARY, "cpu", 3)
    for row in range(2):
        stacks.start(row, grammar.stack_tables())
    for token in (refused[0], END, 0, refused[0]):
        stacks.advance(torch.tensor([token, END, 0]))
    for row, top in ((0, DEAD_STACK), (1, DEAD_STACK)):
        stacks.rollback(row, 1)
        assert stacks.stacks[row, 0] == top
        stacks.fork(row, 2)
        stacks.rollback(2, 2)
        assert stacks.stacks[2, 0] == top
        stacks.rollback(2, 1)
        assert stacks.stacks[2, 0] >= 0
    first = stacks.rows()[2]
    mask = allocate_token_bitmask(1, VOCABULARY.size, pin_memory=False)
    grammar.fill_bitmask(mask, 0)
    assert torch.equal(stacks.masks[first], mask[0])


def test_a_long_text_with_a_place_for_each_depth_leaves_the_tables():
    """A value that may be other text as well is a place of its own with all its
    frames."""
    vocabulary = Vocabulary((*(bytes([byte]) for byte in range(256)), b"[" * 200, b""), (257,))
    grammar = FsmBackend(vocabulary).compile_grammar(Kind.GRAMMAR, "start: v | /[^a]*/\nv: %json {}")
    stacks = DeviceStacks(vocabulary, "cpu", 1)
    stacks.start(0, grammar.stack_tables())
    tops = []
    for _ in range(60):
        stacks.advance(torch.tensor([256]))
        assert grammar.accept_tokens("", [256])
        tops.append(int(stacks.stacks[0, 0]))
    assert tops[0] >= 0
    assert tops[-1] == ASKED_STACK
    mask = allocate_token_bitmask(1, vocabulary.size, pin_memory=False)
    grammar.fill_bitmask(mask, 0)
    assert torch.equal(stacks.masks[stacks.rows()[0]], mask[0])


def test_a_text_that_fills_the_states_of_the_tables_fails_alone():
    """Texts after it go on with states of their own."""
    vocabulary = Vocabulary((*(bytes([byte]) for byte in range(256)), b"[" * 1000, b""), (257,))
    grammar = FsmBackend(vocabulary).compile_grammar(Kind.GRAMMAR, GRAMMARS["brackets"])
    tables = core().StackTables(vocabulary_trie(vocabulary), max_mask_bytes=1 << 20)
    language = tables.add(grammar.stack_tables().language, [257])
    deep, other, later = (tables.text(language) for _ in range(3))
    with pytest.raises(core().LimitError, match="grammar_state_bytes"):
        all(map(deep.read, itertools.repeat(256)))
    for text, places in ((other, []), (later, [])):
        for token in b"[x":
            assert text.read(token)
            places.append(tables.place(language, text, 4)[0])
        assert places == [ASKED_STACK] * 2
        assert text.copy().read(ord("]"))
        assert not text.copy().read(ord("x"))
    assert grammar.accept_tokens("", [*b"[x"])
    mask = allocate_token_bitmask(1, vocabulary.size, pin_memory=False)
    grammar.fill_bitmask(mask, 0)
    assert torch.equal(torch.from_numpy(tables.mask(language, later)), mask[0])


@pytest.mark.parametrize(
    "text",
    [
        "start: a\na[max_tokens=3]: /[a-z]+/",
        "start: <[0-64]>",
        f"start: /a*/ <[{END}]>",
    ],
    ids=["counts tokens", "reads many tokens", "reads the token that ends texts"],
)
def test_grammars_that_tables_cannot_follow_have_none(text):
    assert grammar_of(text).stack_tables() is None


def test_a_text_that_reasons_has_no_tables_until_it_is_over():
    for kind, spec in ((Kind.GRAMMAR, GRAMMARS["sums"]), (Kind.JSON, CLOSED), (Kind.REGEX, "a*b")):
        grammar = BACKEND.compile_grammar(kind, spec)
        assert grammar.begin_after([CALL])
        assert grammar.stack_tables() is None
        assert grammar.device_tables() is None
        grammar.accept_tokens("", [ord("x"), CALL])
        assert grammar.stack_tables().token_ids == ()
