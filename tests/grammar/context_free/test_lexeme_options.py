"""Lark grammars whose lexemes end in other ways than by maximal munch: after so many
tokens, in front of a stop; and the captures of whole texts."""

import random

import numpy as np
import pytest

from structout import StructuredOutputManager, StructuredOutputsParams, allocate_token_bitmask
from structout.errors import GrammarError, GrammarLimitError
from structout.grammar.native.compiled_grammar import CompiledGrammar
from structout.grammar.native.grammar_context import GrammarContext
from structout.grammar.native.grammars import compile_grammar, parse_grammar
from support.grammar_cases import byte_tokenizer, byte_vocabulary, program_vocabulary
from support.grammar_walks import allowed, mask_of, started, walk

LIMITED = {
    "text that only a limit ends": 'start: (x "!")+\nx[max_tokens=3]: /(.|\\n)*/',
    "words beside a name": 'start: (x | NAME) ";" start | "."\nx[max_tokens=2]: /[a-z ]+/\nNAME: /[a-z]+/',
    "a suffix": 'start: x "!"\nx[max_tokens=2, suffix="end"]: /[a-z]*/',
    "a stop": 'start: (x "end" "\\n")+\nx[stop="end"]: /.*/',
    "a stop that is not read again": 'start: (x NAME)+\nx[stop=";;"]: /[a-z]*/\nNAME: /[a-z]+/',
    "ignored once": '%llguidance {"ignore_once": true}\nstart: "(" start ")" | /[a-z]+/\n%ignore /[ \\t]{1,3}/',
    "beside JSON": 'start: "[" %json {"type": "integer"} x "]"\nx[max_tokens=2]: /[a-z]*/',
}


def index_of(grammar, vocabulary):
    """The grammar as one with a lexer, even if it is regular."""
    return CompiledGrammar(parse_grammar(grammar, context=GrammarContext(vocabulary)), vocabulary)


@pytest.mark.parametrize("name", LIMITED)
def test_mask_is_that_of_a_walk_and_no_text_gets_stuck(name, num_cases):
    vocabulary, rng = program_vocabulary(), random.Random(name)
    index = index_of(LIMITED[name], vocabulary)
    stop = vocabulary.stop_token_ids[0]
    for _ in range(num_cases(4, long=100)):
        grammar = started(index, vocabulary)
        for mask in walk(grammar, vocabulary, rng, 25):
            assert mask.any()
            walked = np.array(grammar.matcher.walked_row(), dtype=np.uint32)
            walked[stop >> 5] |= mask[stop >> 5] & np.uint32(1 << (stop & 31))
            assert np.array_equal(mask, walked)


@pytest.mark.parametrize("name", LIMITED)
def test_rows_of_drafts_are_the_masks_after_the_tokens(name):
    vocabulary, rng = program_vocabulary(), random.Random(name)
    grammar = started(index_of(LIMITED[name], vocabulary), vocabulary)
    for _ in range(6):
        fork, drafts, masks = grammar.fork(), [], [mask_of(grammar)]
        for mask in walk(fork, vocabulary, rng, 4):
            masks.append(mask)
        drafts = fork.matcher.recent_tokens(fork.num_tokens - grammar.num_tokens)
        masks = masks[1 : len(drafts) + 1]
        rows = allocate_token_bitmask(len(drafts) + 1, vocabulary.size, pin_memory=False)
        assert grammar.fill_bitmask_drafts(rows, 0, drafts) == len(drafts)
        for row, mask in zip(rows.numpy().view(np.uint32), masks, strict=False):
            assert np.array_equal(row, mask)
        if not drafts or not grammar.accept_tokens("r", drafts[:1]):
            return


def test_tokens_are_counted_again_after_a_rollback():
    grammar = started(compile_grammar('start: x "!"\nx[max_tokens=3]: /[a-z!]*/', byte_vocabulary()), byte_vocabulary())
    for text in (b"ab", b"a!", b"zz"):
        assert grammar.accept_tokens("r", [*text])
        assert set(allowed(mask_of(grammar))) >= {*b"az!"}
        assert grammar.accept_tokens("r", [*b"c"])
        assert allowed(mask_of(grammar)) == [*b"!"]
        grammar.rollback(3)


def test_parameter_that_takes_too_many_values_is_a_limit():
    with pytest.raises(GrammarLimitError, match="rule_parameters is limited to 20,000"):
        compile_grammar('start: p::0\np::_: "x" p::incr(_) | "y"', byte_vocabulary())


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        ('start: p::0\np::_: "x" %if lt(_)', "expected , in lt"),
        ('start: p::0\np::_: "x" %if bit_set(99)', "no bit 99"),
        ('start: p::0\np::_: "x" %if lt([3:1], 2)', "bits in their order"),
        ('start: p::_\np::_: "x"', "has no parameter"),
        ("start: x\nx[max_tokens=1.5]: /a/", "max_tokens must be an integer"),
        ("start: x\nx[stop=/a/]: /b/", "instead of suffix="),
        ("start: x\nx[stop_capture]: /b/", "expected = after stop_capture"),
        ("start: X\nX[lazy]: /b/", "attributes are for rules"),
    ],
)
def test_malformed_option_is_refused_with_its_place(grammar, problem):
    with pytest.raises(GrammarError, match=problem) as caught:
        compile_grammar(grammar, byte_vocabulary())
    assert "line " in str(caught.value)


# -- captures --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grammar", "text", "captures"),
    [
        (
            'start: item ("," item)*\nitem[capture]: "(" start ")" | WORD\nWORD: /[a-z]+/\n%ignore " "',
            "a, (b ,c )",
            [("item", "a"), ("item", "b"), ("item", "c"), ("item", "(b ,c )")],
        ),
        (
            'start: "f(" v ")"\nv[capture]: %json {"type": "array", "items": {"type": "integer"}}',
            "f([1, 23])",
            [("v", "[1, 23]")],
        ),
        ('start: x ";" y\nx[capture, stop=";"]: /[a-z]*/\ny[capture]: /.*/', "ab;c;d", [("x", "ab"), ("y", "c;d")]),
        ('start: x "z"\nx[capture, stop=";", stop_capture="s"]: /[a-z]*/', "ab;z", [("s", ";"), ("x", "ab")]),
        ('start: x y\nx[capture, max_tokens=2]: /(.|\\n)*/\ny[capture]: "c" /.*/', "abcc", [("x", "ab"), ("y", "cc")]),
        ('start: p::0\np::_[capture]: "x" p::incr(_) %if lt(_, 1)\n | "y"', "xy", [("p", "y"), ("p", "xy")]),
        ('root ::= e\ne ::= e "+" t | t\nt[capture] ::= [0-9]+', "1+22", [("t", "1"), ("t", "22")]),
    ],
)
def test_captures_are_the_texts_of_rules_in_the_order_of_their_ends(grammar, text, captures):
    matched = started(compile_grammar(grammar, byte_vocabulary()), byte_vocabulary())
    assert matched.accept_tokens("r", [*text.encode()])
    assert matched.captures() == [(name, captured.encode()) for name, captured in captures]


def test_captures_of_a_text_with_special_tokens_and_of_one_that_is_not_complete():
    grammar = started(
        compile_grammar('start: <think> x </think> "."\nx[capture]: /[^.]*/', byte_vocabulary()), byte_vocabulary()
    )
    think, end = 258, 259
    assert grammar.accept_tokens("r", [think, *b"ab"])
    assert grammar.captures() == []
    assert grammar.accept_tokens("r", [end, *b"."])
    assert grammar.captures() == [("x", b"ab")]


def test_manager_tells_captures_of_a_request():
    manager = StructuredOutputManager(byte_tokenizer(), vocab_size=260)
    try:
        manager.add_request("a", StructuredOutputsParams(grammar='start: x "!"\nx[capture]: /[a-z]+/'))
        manager.add_request("b", StructuredOutputsParams(regex="[a-z]+"))
        for request_id in ("a", "b"):
            manager.wait_ready(request_id, 30)
        assert manager.accept_tokens("a", [*b"abc!", 256])
        assert manager.accept_tokens("b", [*b"abc"])
        assert manager.captures("a") == [("x", b"abc")]
        assert manager.captures("b") == []
    finally:
        manager.close()


# -- tokens in two readings ------------------------------------------------------------


def test_token_that_is_read_by_its_id_and_by_its_bytes_leaves_both_ways_open():
    vocabulary = byte_vocabulary()
    grammar = started(compile_grammar('start: <[97]> "b" | "a" "c"', vocabulary), vocabulary)
    assert grammar.accept_tokens("r", [97])
    assert allowed(mask_of(grammar)) == [*b"bc"]
    rows = allocate_token_bitmask(2, vocabulary.size, pin_memory=False)
    grammar.reset()
    assert grammar.fill_bitmask_drafts(rows, 0, [97]) == 1
    assert allowed(rows.numpy()[1]) == [*b"bc"]


def test_limit_that_a_short_terminal_never_reaches_makes_no_text_possible():
    """After ``a`` the other terminal takes the ``b`` that should follow."""
    grammar = 'start: x "b" | OTHER "d"\nx[max_tokens=3]: "a"\nOTHER: "ab"'
    matched = started(compile_grammar(grammar, byte_vocabulary()), byte_vocabulary())
    assert matched.accept_tokens("r", [*b"ab"])
    assert allowed(mask_of(matched)) == [*b"d"]
