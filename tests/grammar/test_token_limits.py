"""Texts under a limit on their tokens: each ends in time."""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass, field

import pytest

from structout import StructuredOutputsConfig, StructuredOutputsParams
from structout.grammar.registry import BackendSet
from structout.grammar.vocabulary import Vocabulary
from support.grammar_walks import allowed, mask_of
from support.random_grammars import random_lexed_grammar, random_scannerless_grammar
from support.random_patterns import random_pattern
from support.random_schemas import RandomSchema
from support.random_tags import random_format, random_tag_of_schemas, random_vocabulary
from support.soundness import compile_or_none

LONGER_TOKENS = """{" ": ":" " "} ", "," }} ]} [] {} [{" "}] ":{" [[ ]] abc ab aa aaaa the null true false 123 00
\\" \\u \\ud8 é 東 -1 0. 1e , :""".split()
TOKENS = [
    *(bytes([byte]) for byte in range(256)),
    *(token.encode() for token in LONGER_TOKENS if len(token.encode()) > 1),
    *("🦊".encode()[:3], "東".encode()[:2], b"  ", b"\n  ", b", ", b'": "', b'", "', b" the", b"a b"),
]
VOCABULARY = Vocabulary((*TOKENS, b""), stop_token_ids=(len(TOKENS),))
NUM_WALKS = int(os.environ.get("STRUCTOUT_LIMITED_WALKS", "600"))  # of each kind


class EngineLimitError(Exception):
    """Nothing is allowed since the engine has met one of its limits on work."""


@dataclass
class Walked:
    """Walks within limits.

    Attributes:
        count: of them all.
        late: those that did not end in time.
        failed: those that met a limit of the engine, as very ambiguous grammars do.
        unknown: constraints without a known end.
    """

    count: int = 0
    late: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def text_within(grammar, max_tokens: int, rng: random.Random, vocabulary: Vocabulary = VOCABULARY) -> list[int] | None:
    """Draw a text from masks that know the limit. None if it has not ended then.

    Raises:
        EngineLimitError: a mask took too much work.
    """
    grammar = grammar.fork()
    grammar.matcher.end_within(max_tokens)
    tokens: list[int] = []
    while len(tokens) < max_tokens and not grammar.is_terminated():
        choices = allowed(mask_of(grammar))
        if grammar.matcher.error:
            raise EngineLimitError(grammar.matcher.error)
        if len(choices) == 0:
            return None
        tokens.append(int(rng.choice(choices)))
        assert grammar.accept_tokens("", tokens[-1:])
    return tokens if grammar.is_terminated() else None


def random_constraint(kind: str, rng: random.Random) -> tuple[StructuredOutputsParams, Vocabulary]:
    match kind:
        case "schemas":
            return StructuredOutputsParams(json=RandomSchema(rng).text), VOCABULARY
        case "patterns":
            return StructuredOutputsParams(regex=random_pattern(rng).text), VOCABULARY
        case "grammars":
            grammar = random_scannerless_grammar(rng)
            return StructuredOutputsParams(grammar=grammar.gbnf()), vocabulary_of(grammar.tokens(rng))
        case "lexed grammars":
            grammar = random_lexed_grammar(rng)
            return StructuredOutputsParams(grammar=grammar.lark()), vocabulary_of(grammar.tokens(rng))
        case "tags":
            tag = {"type": "structural_tag", "format": random_format(rng, 3)}
            return StructuredOutputsParams(structural_tag=json.dumps(tag)), random_vocabulary(rng)
        case _:
            tag, texts = random_tag_of_schemas(rng)
            longer = [text[i : i + 6] for text in texts for i in range(0, len(text), 5)]
            vocabulary = vocabulary_of([*TOKENS, *sorted({each for each in longer if each} - {*TOKENS})])
            return StructuredOutputsParams(structural_tag=json.dumps(tag)), vocabulary


def vocabulary_of(tokens: list[bytes]) -> Vocabulary:
    return Vocabulary((*tokens, b""), stop_token_ids=(len(tokens),))


def walks(kind: str, seed: str, num_walks: int = NUM_WALKS) -> Walked:
    """Walk within limits at and above the least, through random constraints."""
    rng = random.Random(seed)
    walked = Walked()
    while walked.count < num_walks:
        params, vocabulary = random_constraint(kind, rng)
        config = StructuredOutputsConfig(key_order=rng.choice(["declared", "any"]))
        compiled = compile_or_none(BackendSet(vocabulary, config), params)
        if compiled is None:
            continue
        needed = compiled.grammar.matcher.num_needed
        if needed is None:
            walked.unknown.append(repr(params))
            walked.count += 1
            continue
        for _ in range(6):
            limit = needed + rng.choice([0, 0, 1, 2, 4, 8, 16, 40])
            walked.count += 1
            try:
                if text_within(compiled.grammar, limit, rng, vocabulary) is None:
                    walked.late.append(f"{limit}, at least {needed}: {params}")
            except EngineLimitError as error:
                walked.failed.append(f"{error}: {params}")
    return walked


KINDS = ["schemas", "patterns", "grammars", "lexed grammars", "tags", "tags of schemas"]


@pytest.mark.parametrize("kind", KINDS)
def test_texts_of_random_constraints_end_within_their_limits(kind):
    walked = walks(kind, kind)
    assert not walked.late, f"{len(walked.late)} of {walked.count}, such as {walked.late[0]}"
    assert len(walked.unknown) * 100 <= walked.count, walked.unknown[0]
    assert len(walked.failed) * 100 <= walked.count, walked.failed[0]


@pytest.mark.parametrize("kind", KINDS)
def test_was_narrowed_is_true_once_a_mask_has_lost_a_token(kind):
    rng = random.Random(kind)
    outcomes = set()
    for _ in range(60):
        params, vocabulary = random_constraint(kind, rng)
        compiled = compile_or_none(BackendSet(vocabulary, StructuredOutputsConfig()), params)
        if compiled is None or compiled.grammar.matcher.num_needed is None:
            continue
        free, limited = compiled.grammar.fork(), compiled.grammar.fork()
        max_tokens = limited.matcher.num_needed + rng.choice([2, 8, 40, 120])
        limited.matcher.end_within(max_tokens)
        has_lost = False
        for _ in range(max_tokens):
            choices = allowed(mask_of(limited))
            has_lost = has_lost or len(choices) < len(allowed(mask_of(free)))
            assert limited.matcher.was_narrowed == has_lost, params
            if len(choices) == 0 or limited.is_terminated():
                break
            tokens = [int(rng.choice(choices))]
            assert free.accept_tokens("", tokens)
            assert limited.accept_tokens("", tokens)
        outcomes.add(has_lost)
    assert outcomes == {False, True}


STRING = {"type": "string"}
# Schemas in which an end depends on what has come: on the text of a string or a key, on
# keys that a token completes together with the beginning of their value, and on items.
DEPENDENT_ENDS = {
    "text of a string": {
        "type": "object",
        "properties": {"a": STRING, "b": {"type": "string", "minLength": 9}},
        "required": ["a"],
        "if": {"properties": {"a": {"pattern": "^[^a]"}}},
        "then": {"required": ["b"]},
    },
    "text of a key": {
        "type": "object",
        "patternProperties": {"^[^a]": {"enum": [[7, True, "abc", 123]]}, "^a": {"type": "integer"}},
        "minProperties": 1,
    },
    "name in front of a value": {
        "type": "object",
        "properties": {"a": {"const": "b"}, "bar": {"type": "null"}},
        "required": ["a"],
        "additionalProperties": False,
        "minProperties": 2,
    },
    "free keys": {"type": "object", "required": ["abc"], "minProperties": 3},
    "free key, then a name": {"type": "object", "properties": {"abc": STRING}, "minProperties": 2},
    "free key in front of a value": {
        "type": "object",
        "properties": {"ab": {"const": "A"}},
        "additionalProperties": {"type": "integer"},
        "minProperties": 3,
        "maxProperties": 3,
    },
    "items": {
        "type": "array",
        "prefixItems": [{"properties": {"A": {"type": "string", "format": "date-time"}}, "required": ["A"]}],
        "items": {"enum": ["a", "b"]},
        "minItems": 2,
        "uniqueItems": True,
    },
}


@pytest.mark.parametrize("key_order", ["declared", "any"])
@pytest.mark.parametrize("name", DEPENDENT_ENDS)
def test_text_ends_within_its_limit_where_the_end_depends_on_what_has_come(name, key_order):
    backends = BackendSet(VOCABULARY, StructuredOutputsConfig(key_order=key_order))
    grammar = compile_or_none(backends, StructuredOutputsParams(json=DEPENDENT_ENDS[name])).grammar
    rng = random.Random(name)
    for extra in [0, 1, 2, 4, 8, 16, 40] * 30:
        assert text_within(grammar, grammar.matcher.num_needed + extra, rng) is not None, extra


# Strings whose characters are counted, also more of them than there are endings for.
COUNTED = {
    "at most": {"maxLength": 30},
    "at least": {"minLength": 9, "maxLength": 20},
    "exactly": {"minLength": 12, "maxLength": 12},
    "many": {"minLength": 700},
    "many of a pattern": {"minLength": 400, "pattern": "^(abc|東abab)*$"},
    "pattern that ends late": {"maxLength": 40, "pattern": "東the\n0$"},
}


@pytest.mark.parametrize("style", ["qwen_xml", "minimax_m3_xml", "gemma"])
@pytest.mark.parametrize("name", COUNTED)
def test_counted_strings_between_tags_end_within_their_limits(name, style):
    schema = {"type": "object", "properties": {"s": STRING | COUNTED[name]}, "required": ["s"]}
    content = {"type": "json_schema", "json_schema": schema, "style": style}
    tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<f>", "content": content, "end": "</f>"}}
    params = StructuredOutputsParams(structural_tag=tag)
    grammar = compile_or_none(BackendSet(VOCABULARY, StructuredOutputsConfig()), params).grammar
    needed, rng = grammar.matcher.num_needed, random.Random(name)
    for extra in [0, 1, 2, 4, 8, 16, 40] * (1 if needed > 100 else 10):
        assert text_within(grammar, needed + extra, rng) is not None, extra


# In a string that no token can end yet, a mask needs no look at tokens if the fewest
# that are left of its ending fit: 64 letters may be one, and 63 seventeen.
LONG_STRINGS = {
    "alone": STRING | {"minLength": 130},
    "with a maximum": STRING | {"minLength": 24, "maxLength": 26},
    "in front of another": {
        "type": "object",
        "properties": {"a": STRING | {"minLength": 3}, "c": STRING | {"pattern": "^(bc){40}$"}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "that differ": {"type": "array", "items": STRING | {"minLength": 14}, "minItems": 2, "uniqueItems": True},
    "that decide": {"if": STRING | {"minLength": 40}, "then": STRING, "else": {"minItems": 3, "type": "array"}},
}


@pytest.mark.parametrize("name", LONG_STRINGS)
def test_no_token_in_a_long_string_makes_its_end_too_late(name):
    longer = [b"a" * 64, b'a"', b'b"}', b'a","c":"', b"\\ud83e\\udd", b"a\\u00"]
    vocabulary = vocabulary_of([*TOKENS, *longer])
    params = StructuredOutputsParams(json=LONG_STRINGS[name])
    least = compile_or_none(BackendSet(vocabulary, StructuredOutputsConfig()), params).grammar
    for extra in range(28):
        grammar, rng = least.fork(), random.Random(f"{name} {extra}")
        left = least.matcher.num_needed + extra
        grammar.matcher.end_within(left, extra % 2 == 0)
        while not grammar.is_terminated():
            choices = [*map(int, allowed(mask_of(grammar)))]
            for token in choices:
                assert grammar.accept_tokens("", [token])
                assert grammar.matcher.num_needed < left, (extra, token)
                grammar.rollback(1)
            assert grammar.accept_tokens("", [int(rng.choice([*choices, *choices[-9:] * 20]))])
            left -= 1


# Grammars with a lexer, and tokens. In the first a lexeme that has begun needs more; in
# the second a text meets several searches for its end.
LEXED = {
    "begun lexeme": (
        'start: "((" start | start ") " r1 | " "\nr1: " )" | ("()")*',
        ["(( ", "()", ") ", ") (", ") )  )", "))", " )", " ) ", "  ", " ()(", " ())"],
    ),
    "several searches": (
        'start: r3 r3 | T1 T0\nr1: T2 (r3){0,2} | T1 r3 | ("\\n")* "," T2\nr3: T2 | (r1){2} r3 | T2 (/[\\n,]/)*\n'
        'T0: (",")+ ",\\n\\n"\nT1: ("\\n"){1,3} & /[\\n,]/ | ",,\\n"\nT2: ",,\\n"',
        [
            token.replace("n", "\n")
            for token in "nn nnn nnn, nnn,,, nn,, n, n,n n,nn n,n, n,, n,,n n,,n,n n,,,, ,n ,nn ,nn, ,n,n, ,,n".split()
        ],
    ),
}


@pytest.mark.parametrize("name", LEXED)
def test_texts_of_grammars_with_a_lexer_end_within_their_limits(name):
    lark, longer = LEXED[name]
    vocabulary = vocabulary_of([*(character.encode() for character in "(), \n"), *map(str.encode, longer)])
    for seed in range(30):
        compiled = compile_or_none(
            BackendSet(vocabulary, StructuredOutputsConfig()), StructuredOutputsParams(grammar=lark)
        )
        rng = random.Random(seed)
        for _ in range(6):
            limit = compiled.grammar.matcher.num_needed + rng.choice([0, 0, 1, 2, 4])
            assert text_within(compiled.grammar, limit, rng, vocabulary) is not None, (seed, limit)


def least_by_search(grammar, vocabulary: Vocabulary, most: int) -> int:
    """The least number of tokens to the end, the stop token included, by a
    breadth-first search over configurations."""
    level, seen = [grammar], {grammar.matcher.state}
    for num_tokens in range(1, most + 1):
        following = []
        for each in level:
            for token in allowed(mask_of(each)):
                if token in vocabulary.stop_token_ids:
                    return num_tokens
                after = each.fork()
                assert after.accept_tokens("", [token])
                if after.matcher.state not in seen:
                    seen.add(after.matcher.state)
                    following.append(after)
        level = following
    return most + 1


@pytest.mark.parametrize(("kind", "least_share"), [("patterns", 1.0), ("grammars", 0.95), ("lexed grammars", 0.9)])
def test_least_numbers_of_tokens_are_those_of_a_search(kind, least_share):
    rng = random.Random(kind)
    num_equal = count = 0
    while count < 200:
        params, vocabulary = random_constraint(kind, rng)
        compiled = compile_or_none(BackendSet(vocabulary, StructuredOutputsConfig()), params)
        if compiled is None or (needed := compiled.grammar.matcher.num_needed) is None or needed > 7:
            continue
        least = least_by_search(compiled.grammar.fork(), vocabulary, needed)
        assert least <= needed, params
        num_equal += least == needed
        count += 1
    assert num_equal >= least_share * count, f"{num_equal} of {count}"
