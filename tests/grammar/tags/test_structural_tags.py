"""Structural tags on structout's own engine: what their texts are."""

import json
import random
import re

import pytest

from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.native.automaton import DEFAULT_LIMITS
from structout.grammar.native.compiled_grammar import CompiledGrammar
from structout.grammar.native.grammar_context import GrammarContext
from structout.grammar.native.grammars import ContextFreeGrammar
from structout.grammar.native.structural_tags import structural_tag_rules
from structout.grammar.vocabulary import Vocabulary
from structout.ops.token_bitmask import allocate_token_bitmask, unpack_bitmask
from support.random_tags import BYTES, no_schema, random_format, random_vocabulary, rules_of, tag


@pytest.mark.parametrize("seed", range(20))
def test_masks_along_texts_of_tags_are_those_of_their_automaton(seed):
    rng = random.Random(1_000 + seed)
    vocabulary = random_vocabulary(rng)
    mask = allocate_token_bitmask(1, vocabulary.size, pin_memory=False)
    num_compared = 0
    while num_compared < 40:
        rules = rules_of(random_format(rng, 2))
        automaton, index = rules.automaton(), CompiledGrammar(rules, vocabulary)
        if automaton.is_empty or index.is_empty:
            assert automaton.is_empty or not reaches_an_end(automaton, vocabulary, 0)
            continue
        grammar = ContextFreeGrammar(index, vocabulary.size, vocabulary.stop_token_ids, None)
        state = 0
        for _ in range(20):
            after = [walked(automaton, state, token) for token in vocabulary.token_bytes[:-1]]
            expected = [reaches_an_end(automaton, vocabulary, each) for each in after]
            grammar.fill_bitmask(mask, 0)
            bits = unpack_bitmask(mask, vocabulary.size)[0].tolist()
            assert bits == [*expected, automaton.accepts(state)]
            num_compared += 1
            allowed = [token for token, is_allowed in enumerate(expected) if is_allowed]
            if not allowed:
                break
            token = rng.choice(allowed)
            assert grammar.accept_tokens("", [token])
            state = after[token]


def walked(automaton, state, token):
    for byte in token:
        state = automaton.next(state, byte) if state >= 0 else -1
    return state


def reaches_an_end(automaton, vocabulary, state):
    """Whether tokens lead from a state to the end of a text."""
    seen, todo = {state}, [state]
    for each in todo:
        if each < 0:
            continue
        if automaton.accepts(each):
            return True
        new = {walked(automaton, each, token) for token in vocabulary.token_bytes[:-1]} - seen
        seen |= new
        todo += new
    return False


def test_free_text_is_any_utf8_without_the_triggers():
    part = {"type": "triggered_tags", "triggers": ["<é", "日本"], "tags": [tag("<é", {"type": "any_text"}, "¶")]}
    index = CompiledGrammar(rules_of(part), BYTES)
    for text in ("", "a\0\U0010ffff\ud7ff\ue000", "<", "<è", "<éx¶", "<é¶<é日¶é", "日", "日月"):
        assert index.matches(text), text
    for text in ("<é", "<éx", "<é¶<é", "日本", "a日本x"):
        assert not index.matches(text), text
    for data in (b"\xff", b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"<\xc3", b"a\x80"):
        assert not index.matches(data), data


@pytest.mark.parametrize(
    ("part", "pointer", "message"),
    [
        ({"type": "tags"}, "#/format", "there is no format tags"),
        ({"type": "any_text", "exclude": ["a"]}, "#/format", "any_text has no field exclude"),
        ({"type": "sequence", "elements": ["a"]}, "#/format/elements/0", "expected an object, got 'a'"),
        ({"type": "tag", "begin": "a", "content": {"type": "any_text"}}, "#/format", "tag needs end"),
        ({"type": "or", "elements": []}, "#/format/elements", "or needs an element"),
        ({"type": "any_text", "max_tokens": 3}, "#/format/max_tokens", "max_tokens is not supported"),
        ({"type": "regex", "pattern": "a("}, "#/format/pattern", "does not parse"),
        ({"type": "regex", "pattern": "(?!)"}, "#/format/pattern", "allows no text"),
        ({"type": "grammar", "grammar": "root ::= a"}, "#/format/grammar", "uses a, which it does not define"),
        (
            {"type": "triggered_tags", "triggers": ["x"], "tags": [tag("<a", {"type": "any_text"}, ">")]},
            "#/format/triggers",
            "no trigger begins the tag '<a'",
        ),
    ],
)
def test_what_is_wrong_with_a_tag_is_named_with_its_place(part, pointer, message):
    with pytest.raises(GrammarError, match=re.escape(message)) as caught:
        rules_of(part)
    assert caught.value.pointer == pointer
    assert str(caught.value).startswith(f"{pointer}: ")


def test_grammars_in_tags_may_be_recursive_and_do_not_see_each_others_rules():
    grammars = ['root ::= "(" root ")" | x\nx ::= "a"', 'root ::= "[" root "]" | x\nx ::= "b"', "start: /c+/"]
    parts = [{"type": "grammar", "grammar": grammar} for grammar in grammars]
    index = CompiledGrammar(rules_of({"type": "sequence", "elements": parts}), BYTES)
    assert index.matches("((a))[b]cc")
    assert index.matches("abc")
    for text in ("((a)[b]c", "(b)[a]c", "ab"):
        assert not index.matches(text)


PROGRAM = """start: (NAME "=" value ";")*
value: NAME | "[" [value ("," value)*] "]" | %json {"type": "object", "additionalProperties": {"type": "integer"}}
NAME: /[a-z]+/
%ignore / +/"""


def test_lark_grammar_in_a_tag_may_be_recursive_ignore_something_and_have_schemas_inside():
    part = {"type": "grammar", "grammar": PROGRAM}
    index = CompiledGrammar(rules_of({"type": "plus", "content": tag("<t>", part, "</t>")}), BYTES)
    for text in ("<t></t>", "<t>a = [b, [c]];</t>", '<t>a = {"b": 1}; c = [ [], {} ];</t><t>d=e;</t>'):
        assert index.matches(text), text
    for text in ("<t> a=b;</t>", "<t>a=[b;</t>", '<t>a={"b": "c"};</t>', "<t>a=b</t>", "<t>ab</t>"):
        assert not index.matches(text), text
    grammar = ContextFreeGrammar(index, BYTES.size, BYTES.stop_token_ids, None)
    assert grammar.accept_bytes(b"<t>a = [")
    assert grammar.shortest_end() == b"];</t>"


@pytest.mark.parametrize(
    ("grammar", "kind", "message"),
    [
        ('start: "(" start ")"', "impossible", "the grammar inside allows no text"),
        ('start: a | "(" start ")"\na[capture]: "a"', "unsupported", "captures are not supported"),
        ('start: a | "(" start ")"\na[max_tokens=2]: /a+/', "unsupported", "max_tokens is not supported"),
        ('start: <[97]> | "(" start ")"', "unsupported", "tokens are not supported"),
    ],
)
def test_lark_grammar_that_has_no_place_in_a_tag_is_refused_with_the_reason(grammar, kind, message):
    with pytest.raises(GrammarError, match=message) as caught:
        rules_of({"type": "grammar", "grammar": grammar})
    assert caught.value.kind is GrammarErrorKind(kind)
    assert caught.value.pointer == "#/format/grammar"


LINES = """start: line+ "end"
line: "+" /.*/ LF
%import common.LF"""
SUM = """start: sum
sum: TEXT | "(" sum ")" | sum OP sum
TEXT: /"[^"]*"/
OP: "<" | "é" | "\\u001f" | ~/[^|]*/ & /.x/
%ignore /\\n/"""


def in_json_string(grammar, excluded=(), **options):
    part = {"type": "grammar", "grammar": grammar, "excludes": [*excluded], "in_json_string": True} | options
    quote = {"type": "const_string", "value": '"'}
    return CompiledGrammar(rules_of({"type": "sequence", "elements": [quote, part, quote]}), BYTES)


@pytest.mark.parametrize(
    ("grammar", "values", "others"),
    [
        (LINES, ['+a "b" \\ \t é日\x00\x7f\n+\nend'], ["+a", "+a\nend\n", "+a\n+b"]),
        (SUM, ['("a\n")é\n"b</x"', '"a"\x1f"\\"', '"a"|x"b"'], ['(""', '"a"ax"b"', '"a" "b"']),
    ],
)
def test_a_lark_grammar_in_a_json_string_has_its_texts_as_values_in_canonical_spelling(grammar, values, others):
    index = in_json_string(grammar)
    for value in values:
        written = json.dumps(value, ensure_ascii=False)
        assert index.matches(written), value
        assert not index.matches(written.replace('\\"', "\\u0022")), value
    for value in others:
        assert not index.matches(json.dumps(value, ensure_ascii=False)), value


def test_a_lark_grammar_is_kept_free_of_texts_by_escapes_if_it_has_recursion():
    index = in_json_string(LINES, ["</x>", '"b'])
    assert index.matches('"+</x\\"a\\nend"')
    for text in ("</x>", '\\"b'):
        assert not index.matches(f'"+{text}\\nend"')
    index = in_json_string(SUM, ["</x>"])
    assert index.matches(r'"(\"a\u003c/x>\")\u003c\"b\""')
    assert not index.matches(r'"\"</x\""')
    assert not index.matches(r'"\"a\"<\"b\""')


@pytest.mark.parametrize(
    ("grammar", "options", "message"),
    [
        (SUM, {"in_json_string": False}, "cannot be kept free of '</x>'"),
        (SUM, {"excludes": ["x"]}, "cannot be kept free of 'x'"),
        (LINES.replace(".*", "<.x>"), {"excludes": ["<"]}, "the grammar inside allows no text"),
        ('root ::= "a"', {}, "excludes and in_json_string are for Lark grammars"),
        ('start: "(" start ")" | <[97]>', {"excludes": []}, "<.97.> in a JSON string is not supported"),
        ('start: "(" start ")" | %json {}', {"excludes": []}, "%json in a JSON string is not supported"),
        (
            'start: "(" start ")" | %lark { start: "a"\n%ignore " " }',
            {"excludes": []},
            "%lark beside %ignore in a JSON",
        ),
    ],
)
def test_grammars_that_cannot_stand_in_a_json_string_are_refused_with_the_reason(grammar, options, message):
    with pytest.raises(GrammarError, match=message) as caught:
        in_json_string(grammar, **({"excluded": ["</x>"]} | options))
    assert caught.value.pointer == "#/format/elements/1/grammar"


def test_max_chars_counts_characters_and_not_bytes():
    index = CompiledGrammar(rules_of(tag("<", {"type": "any_text", "max_chars": 3}, ">")), BYTES)
    assert index.matches("<日日日>")
    assert index.matches("<>")
    assert not index.matches("<abcd>")
    assert not index.matches("<a>b>")


# A vocabulary with special tokens, which no text spells, and added ones, which have a
# text: their ids follow the bytes.
MARKED = Vocabulary(
    (*BYTES.token_bytes, b"", b"", b"", b"<f>", b"</f>"),
    stop_token_ids=(256,),
    special_tokens=(("<|call|>", 257), ("<|end|>", 258), ("<|think|>", 259), ("<f>", 260), ("</f>", 261)),
)


def accepts(part, *tokens, stop_token_ids=(256,), **options):
    """Whether tokens, given as texts and ids, are a whole text of a format."""
    given = {"format": part, **options}
    rules = structural_tag_rules(given, DEFAULT_LIMITS, no_schema, GrammarContext(MARKED), stop_token_ids)
    grammar = ContextFreeGrammar(CompiledGrammar(rules, MARKED), MARKED.size, stop_token_ids, None)
    ids = [i for token in tokens for i in ([token] if isinstance(token, int) else token.encode())]
    return grammar.accept_tokens("", [*ids, stop_token_ids[0]])


DIGITS = {"type": "regex", "pattern": "[0-9]+"}


def test_a_marker_with_the_name_of_a_special_token_is_this_token():
    call = tag("<|call|>f:", DIGITS, "<|end|>")
    part = {"type": "triggered_tags", "triggers": ["<|call|>"], "tags": [call]}
    assert accepts(part, "a", 257, "f:12", 258, "b")
    assert accepts(part, "a<|cal")
    assert accepts(part, 257, "f:1", 258, 257, "f:2", 258)
    assert not accepts(part, "a<|call|>f:12<|end|>")  # a reader of the text would see a call
    assert not accepts(part, "a", 257, "g")
    assert not accepts(part, 257, "f:12<|end|>")
    assert not accepts(part, "a", 259)
    thought = tag("<|think|>", {"type": "any_text"}, ["<|end|>", "</t>"])
    assert accepts(thought, 259, "a<b", 258)
    assert accepts(thought, 259, "a", "</t>")
    assert not accepts(thought, 259, "a<|end|>", 258)


def test_a_marker_may_be_its_token_its_text_or_either():
    special = {"type": "triggered_tags", "triggers": ["<|call|>"], "tags": [tag("<|call|>f:", DIGITS, "<|end|>")]}
    added = {"type": "triggered_tags", "triggers": ["<f>"], "tags": [tag("<f>", {"type": "any_text"}, "</f>")]}
    as_tokens = ("a", 257, "f:1", 258, "b")
    as_text = ("a<|call|>f:1<|end|>b",)
    mixed = ("a", 257, "f:1<|end|>b")
    assert [accepts(special, *text) for text in (as_tokens, as_text, mixed)] == [True, False, False]
    assert [accepts(special, *text, markers="added") for text in (as_tokens, as_text, mixed)] == [True, False, False]
    assert [accepts(special, *text, markers="text") for text in (as_tokens, as_text, mixed)] == [False, True, False]
    assert [accepts(special, *text, markers="either") for text in (as_tokens, as_text, mixed)] == [True, True, True]
    for markers in ("special", "added", "text", "either"):
        assert not accepts(special, "a<|call|>g", markers=markers)
        assert not accepts(special, 257, "g", markers=markers)
    as_tokens = ("a", 260, "x<y", 261, "b", 260, 261)
    as_text = ("a<f>x<y</f>b<f></f>",)
    mixed = ("a", 260, "x<y</f>b<f>", 261)
    for markers in ("special", "text", "either"):
        assert all(accepts(added, *text, markers=markers) for text in (as_tokens, as_text, mixed))
    assert [accepts(added, *text, markers="added") for text in (as_tokens, as_text, mixed)] == [True, False, False]
    with pytest.raises(GrammarError, match="markers must be one of special, added, text, either, got 'x'"):
        accepts(added, markers="x")


def test_a_dispatch_takes_its_patterns_in_either_spelling():
    part = {"type": "dispatch", "rules": [["<|call|>", DIGITS], ["<f>", DIGITS]]}
    as_tokens, as_text = ("a", 257, "1b", 260, "2"), ("a<|call|>1b<f>2",)
    for markers, expected in {"added": [True, False], "text": [False, True], "either": [True, True]}.items():
        assert [accepts(part, *text, markers=markers) for text in (as_tokens, as_text)] == expected, markers
    assert accepts(part, *as_tokens)
    assert not accepts(part, *as_text)


def test_a_marker_that_is_a_stop_token_is_left_to_the_end_of_the_text():
    part = tag("<|call|>", DIGITS, "<|end|>")
    assert accepts(part, 257, "12", stop_token_ids=(258, 256))
    assert not accepts(part, 257, stop_token_ids=(258, 256))


def test_formats_of_tokens_take_names_ids_and_texts():
    token = {"type": "token", "token": "<|call|>"}
    assert accepts({"type": "sequence", "elements": [token, {"type": "token", "token": ord("x")}]}, 257, "x")
    assert not accepts(token, 258)
    other = {"type": "exclude_token", "exclude_tokens": ["<|call|>", "x"]}
    assert [accepts(other, *tokens) for tokens in ((258,), ("y",), (257,), ("x",), ())] == [
        True,
        True,
        False,
        False,
        False,
    ]
    some = {"type": "any_tokens", "exclude_tokens": [259], "max_tokens": 2}
    assert [accepts(some, *tokens) for tokens in ((), (257, "x"), ("xyz",), (259,))] == [True, True, False, False]
    call = {"type": "tag", "begin": token, "content": DIGITS, "end": {"type": "token", "token": 258}}
    part = {"type": "token_triggered_tags", "trigger_tokens": ["<|call|>"], "tags": [call], "exclude_tokens": [259]}
    assert accepts(part, "a", 257, "1", 258, "b", 257, "2", 258)
    assert accepts(part, "a", 258)
    for tokens in (("a", 257, "x"), ("a", 259), (257, "1")):
        assert not accepts(part, *tokens)
    assert accepts(part | {"at_least_one": True}, 257, "1", 258, "a")
    assert not accepts(part | {"at_least_one": True}, "a", 257, "1", 258)
    assert not accepts(part | {"stop_after_first": True}, 257, "1", 258, "a")
    dispatch = {"type": "token_dispatch", "rules": [["<|call|>", DIGITS]], "exclude_tokens": [259]}
    assert accepts(dispatch, "a", 257, "1", "b", 257, "2")
    assert not accepts(dispatch, 257, "b")
    with pytest.raises(GrammarError, match=re.escape("has no special token <|no|>; it has <|call|>")):
        accepts({"type": "token", "token": "<|no|>"}, 1)
