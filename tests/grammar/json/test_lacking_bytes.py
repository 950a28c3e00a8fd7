"""Vocabularies that lack bytes as tokens of their own: strings do not have those bytes,
but names of the schema, words and brackets may, within longer tokens. A token is
allowed only where tokens lead on to the end."""

import json
import random
from collections import Counter

import pytest

from structout.constraints.params import StructuredOutputOptions as Kind
from structout.errors import GrammarError
from structout.grammar.native.backend import NativeBackend
from structout.grammar.native.extension import core
from structout.grammar.vocabulary import Vocabulary
from support.grammar_walks import allowed, mask_of
from support.json_engine import BYTE_TOKENS, JsonEngine

WHITESPACE = " \t\r\n"
ENGINE = JsonEngine()


def engine_without(lacking, *tokens):
    return JsonEngine([token for token in BYTE_TOKENS[:-1] if token not in lacking] + [*tokens, b""])


@pytest.mark.parametrize(
    ("schema", "text", "is_valid"),
    [
        ({"properties": {"k": {}}, "patternProperties": {"^k$": {"type": "null"}}}, '{"k":1}', False),
        ({"properties": {"k": {}}, "patternProperties": {"^k$": {"type": "null"}}}, '{"k":null}', True),
        ({"properties": {"k": {}}, "patternProperties": {"^[jk]$": {"type": "null"}}}, '{"k":1}', False),
        ({"required": ["k"], "additionalProperties": {"type": "null"}}, '{"k":1}', False),
        ({"required": ["k"], "propertyNames": {"pattern": "^[jk]$"}}, '{"k":1,"j":2}', True),
        ({"properties": {"k": {}, "kk": {}}, "propertyNames": {"pattern": "^[jk]$"}}, '{"k":1,"kk":2}', False),
        (
            {"properties": {"k": {}}, "patternProperties": {"^j$": {}}, "additionalProperties": False},
            '{"k":1,"j":2}',
            True,
        ),
    ],
)
def test_name_that_lacks_bytes_is_described_by_patterns(schema, text, is_valid):
    schema = {"type": "object", **schema}
    assert ENGINE.compile(schema).matches(text.encode()) == is_valid
    for start in range(text.index("k") + 1):
        engine = engine_without([b"k"], text[start : text.rindex("k") + 1].encode(), text[start:].encode())
        walk = engine.walk(engine.compile(schema))
        assert walk.matcher.accept_bytes(text[:start].encode())
        last = engine.stop - 1
        assert walk.accepts(last) == is_valid
        assert (last in walk.allowed()) == is_valid


NAMES = ["a", "j", "k", "kk"]
PATTERNS = ["^k$", "^[jk]$", "k", "^a", "^(a|kk)$", "^[^a]*$", "^.$"]
CHILDREN = [True, False, {"type": "null"}, {"const": 1}, {"type": "integer"}]


def drawn_object(rng):
    """A schema of objects, and the keys that it names."""
    properties = {name: rng.choice(CHILDREN[2:]) for name in rng.sample(NAMES, rng.randint(0, 2))}
    required = rng.sample(NAMES, rng.choice([0, 0, 1]))
    schema = {"type": "object", "properties": properties, "required": required}
    if rng.random() < 0.7:
        schema["patternProperties"] = {pattern: rng.choice(CHILDREN) for pattern in rng.sample(PATTERNS, 2)}
    if rng.random() < 0.5:
        schema["additionalProperties"] = rng.choice(CHILDREN)
    if rng.random() < 0.4:
        schema["propertyNames"] = rng.choice([{"pattern": rng.choice(PATTERNS)}, {"enum": rng.sample(NAMES, 2)}])
    if rng.random() < 0.2:
        schema["minProperties"] = rng.randint(1, 3)
    return schema, {*properties, *required}


def test_objects_are_the_valid_ones_whose_other_keys_lack_no_bytes(num_cases):
    rng = random.Random(22)
    keys = {letter: [f'"{name}"'.encode() for name in NAMES if letter in name] for letter in "ajk"}
    engines = {letter: engine_without([letter.encode()], *keys[letter]) for letter in "ajk"}
    counts = Counter()
    for _ in range(num_cases(1000, long=10000, full=100000)):
        schema, named = drawn_object(rng)
        lacking = rng.choice(list(engines))
        try:
            whole_index = ENGINE.compile(schema)
        except core().SchemaError:
            continue
        try:
            index = engines[lacking].compile(schema)
        except core().SchemaError:
            index = None
        for _ in range(10):
            keys = rng.sample(NAMES, rng.randint(0, 3))
            text = json.dumps({key: rng.choice([None, 1, 2]) for key in keys}, separators=(",", ":")).encode()
            can_be_written = all(key in named or lacking not in key for key in keys)
            is_valid = can_be_written and whole_index.matches(text)
            counts[is_valid] += 1
            assert (index is not None and index.matches(text)) == is_valid, (schema, lacking, text)
    assert min(counts.values()) > 1000, counts


ARRAYS = {"type": "array", "items": {"$ref": "#"}}
OBJECTS = {"type": "object", "properties": {"k": {"type": "null"}}, "additionalProperties": False}
TWO_BOOLEANS = {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "uniqueItems": True}


@pytest.mark.parametrize(
    ("schema", "lacking", "tokens", "text", "expected"),
    [
        ({"type": "boolean"}, "a", ["false"], "", ["false", "t"]),
        ({"type": "boolean"}, "al", ["fa", "se"], "", ["t"]),
        ({"type": "boolean"}, "al", ["fal", "se"], "", ["fal", "t"]),
        ({"enum": [[True, False], [True]]}, "a", [], "[true", ["]"]),
        ({"enum": [[True, False], [True]]}, "a", ["false"], "[true", [",", "]"]),
        ({"enum": [[True, False], [True]]}, "a", [",fals"], "[true", [",fals", "]"]),
        (TWO_BOOLEANS, "s", ["false"], "[", ["false", "t"]),
        (TWO_BOOLEANS, "s", [",false"], "[", ["t"]),
        (TWO_BOOLEANS, "s", ["[false"], "", ["[false"]),
        (ARRAYS, "]", ["]]"], "", ["["]),
        (ARRAYS, "]", ["]]"], "[", ["["]),
        (ARRAYS, "]", ["]]"], "[[", ["[", "]]"]),
        (ARRAYS, "]", ["]]"], "[[[]]", [","]),
        (ARRAYS, "]", ["[]", "[],"], "", ["[]"]),
        (OBJECTS, "k", [], "{", ["}"]),
        (OBJECTS, "k", ['k":n'], "{", ['"', "}"]),
        (OBJECTS, "k}", ['k":n', "{}"], "", ["{}"]),
        (OBJECTS, "k}", ['k":n', "l}"], "", ["{"]),
        (OBJECTS, "k}", ['k":n', "l}"], '{"k":nul', ["l}"]),
    ],
)
def test_mask_has_the_tokens_from_which_tokens_lead_to_the_end(schema, lacking, tokens, text, expected):
    engine = engine_without([byte.encode() for byte in lacking + WHITESPACE], *(token.encode() for token in tokens))
    walk = engine.walk(engine.compile(schema))
    assert walk.matcher.accept_bytes(text.encode())
    mask = walk.allowed()
    assert sorted(engine.token_bytes[token].decode() for token in mask) == sorted(expected)
    assert all(walk.accepts(token) == (token in mask) for token in range(engine.stop))


@pytest.mark.parametrize(
    ("schema", "lacking", "tokens"),
    [
        ({"const": False}, "fl", ["fa", "als"]),
        (TWO_BOOLEANS, "s", ["true", "fal", "e"]),
        (ARRAYS, "]", []),
        (ARRAYS, "[", ["[,", "],["]),
        ({**OBJECTS, "required": ["k"]}, "k", []),
        ({"type": "object"}, "}", [":}", "}]"]),
    ],
)
def test_schema_of_which_no_tokens_spell_a_text_is_refused(schema, lacking, tokens):
    engine = engine_without([byte.encode() for byte in lacking + WHITESPACE], *(token.encode() for token in tokens))
    with pytest.raises(core().SchemaError, match="the tokens of the vocabulary spell no text of the schema"):
        engine.compile(schema)


def in_others(schema):
    """Constraints of texts in which a schema stands between <t> and </t>."""
    content = {"type": "json_schema", "json_schema": schema}
    tag = {"type": "tag", "begin": "<t>", "end": "</t>", "content": content}
    grammar = 'start: "<t>" value "</t>"\nvalue: "(" value ")" | %json ' + json.dumps(schema)
    return [(Kind.STRUCTURAL_TAG, json.dumps({"type": "structural_tag", "format": tag})), (Kind.GRAMMAR, grammar)]


def vocabulary_without(lacking, *tokens):
    texts = [bytes([byte]) for byte in range(256) if byte not in lacking] + [token.encode() for token in tokens]
    return Vocabulary((*texts, b""), stop_token_ids=(len(texts),))


@pytest.mark.parametrize(("kind", "spec"), in_others({"type": "boolean"}))
@pytest.mark.parametrize(
    ("tokens", "first", "second"),
    [
        (["<t>f", "<t>t", "false"], {"<", "<t>t"}, {"t", "false"}),
        (["<t>f", "alse<"], {"<"}, {"t"}),  # an end is a token's own
        (["<t>f", "als"], {"<", "<t>f"}, {"t", "f"}),
        (["<t>f", "<t>t"], {"<", "<t>t"}, {"t"}),
    ],
)
def test_schema_inside_of_a_tag_or_grammar_is_followed_to_its_end(kind, spec, tokens, first, second):
    vocabulary = vocabulary_without(b"a", *tokens)
    texts = vocabulary.token_bytes
    grammar = NativeBackend(vocabulary).compile_grammar(kind, spec)

    def allowed_texts():
        return {texts[token].decode() for token in allowed(mask_of(grammar))}

    assert allowed_texts() == first
    assert grammar.accept_tokens("", [texts.index(bytes([byte])) for byte in b"<t>"])
    assert allowed_texts() - set("( \n") == second


@pytest.mark.parametrize(("kind", "spec"), in_others({"const": False}))
def test_schema_inside_of_a_tag_or_grammar_is_refused_if_no_tokens_spell_it(kind, spec):
    with pytest.raises(GrammarError, match="the tokens of the vocabulary spell no text of the schema"):
        NativeBackend(vocabulary_without(b"as", "fa")).compile_grammar(kind, spec)
