"""Constraints that engines were found to get wrong: `auto` refuses them or serves them
right.

Each was a false accept, a false reject or a stall of some engine.
"""

import json
import time

import pytest

from structout.constraints.config import StructuredOutputsConfig
from structout.constraints.params import Constraint, StructuredOutputOptions as Kind
from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.registry import BackendSet
from structout.grammar.vocabulary import Vocabulary
from structout.ops.token_bitmask import allocate_token_bitmask
from support.tokenizers_on_the_spot import byte_level

VOCABULARY = Vocabulary.from_tokenizer(byte_level(), 525)


@pytest.fixture(scope="module")
def backends():
    made = BackendSet(VOCABULARY, StructuredOutputsConfig())
    yield made
    made.destroy()


def accepts(compiled, text: str) -> bool:
    tokens = [*VOCABULARY.spell(text), VOCABULARY.stop_token_ids[0]]
    return len(compiled.grammar.validate_tokens(tokens)) == len(tokens)


def compile_or_none(backends, kind, value):
    spec = value if kind is Kind.REGEX else json.dumps(value, ensure_ascii=False)
    try:
        return backends.compile(Constraint(kind, spec))
    except GrammarError:
        return None


OBJECT = {"type": "object"}
FALSE_ACCEPTS = [
    ({**OBJECT, "patternProperties": {"^[a-z]+$": {"type": "string"}, "^abc$": {"type": "integer"}}}, '{"abc": 1}'),
    ({"patternProperties": {"f.*": True, "b.*": False}}, '{"bar": 2}'),
    ({**OBJECT, "patternProperties": {"^(?!x-)": {"type": "integer"}}}, '{"a": "b"}'),
    ({**OBJECT, "patternProperties": {"^$": {"type": "integer"}}}, '{"": "b"}'),
    ({**OBJECT, "patternProperties": {"^🐲*$": {"type": "integer"}}}, '{"🐲": "b"}'),
    (
        {"anyOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}], "unevaluatedProperties": False},
        '{"a": 1, "b": 2}',
    ),
    ({**OBJECT, "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": False}, '{"a": 1}'),
    ({"const": 12345678901234567890}, "1.2345678901234567e+19"),
    ({**OBJECT, "properties": {"é": {"type": "integer"}}}, '{"é": "x"}'),
    ({**OBJECT, "properties": {'"': {"type": "integer"}}}, '{"\\"": "x"}'),
    ({**OBJECT, "properties": {"\n": {"type": "integer"}}}, '{"\\n": "x"}'),
    ({"type": "string", "pattern": '["]'}, '"""'),
    ({"type": "string", "pattern": '^["]$'}, '"""'),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.1}, "0"),
    ({"type": "number", "minimum": 0.5, "exclusiveMaximum": 1}, "1"),
]


@pytest.mark.parametrize(("schema", "text"), FALSE_ACCEPTS)
def test_schema_that_an_engine_misread_accepts_no_invalid_text(backends, schema, text):
    compiled = compile_or_none(backends, Kind.JSON, schema)
    assert compiled is None or not accepts(compiled, text)


def tag_around(content):
    tag = {"type": "tag", "begin": "<a>", "content": content, "end": "</a>"}
    return {"type": "structural_tag", "format": tag}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        *FALSE_ACCEPTS,
        ({"patternProperties": {"^Z=$": {"type": "null"}}}, '{"Z=": 10}'),
        ({"type": "string", "pattern": r"[\x22]$"}, '"""'),
        ({"type": "string", "pattern": r"[^\u00e9-\u2003_]"}, '"""'),
        ({"type": "string", "pattern": "^.$"}, '"\u2028"'),
        ({"type": "string", "pattern": r"^\S$"}, '"\ufeff"'),
        ({"type": "number", "minimum": 2**53 + 1}, "9007199254740992.0"),
    ],
)
def test_schema_in_a_structural_tag_accepts_no_invalid_text(backends, schema, text):
    content = {"type": "json_schema", "json_schema": schema}
    compiled = compile_or_none(backends, Kind.STRUCTURAL_TAG, tag_around(content))
    assert compiled is None or not accepts(compiled, f"<a>{text}</a>")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            {**OBJECT, "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
            "^#/format/content/json_schema: the json constraint allows no text at all: every instance would",
        ),
        (False, "^#/format/content/json_schema: the json constraint allows no text at all: the schema is false"),
        (
            {**OBJECT, "properties": {"a": False}, "required": ["a"]},
            "^#/format/content/json_schema/properties/a: .* #/properties/a is false",
        ),
        (
            {**OBJECT, "properties": {"a": {"$ref": "#/$defs/b"}}, "required": ["a"], "$defs": {"b": False}},
            r"^#/format/content/json_schema/\$defs/b: .* #/\$defs/b is false",
        ),
    ],
)
def test_schema_in_a_structural_tag_that_no_text_satisfies_is_refused(backends, schema, message):
    """After the beginning of the tag, no text would end."""
    content = {"type": "json_schema", "json_schema": schema}
    with pytest.raises(GrammarError, match=message) as refused:
        backends.compile(Constraint(Kind.STRUCTURAL_TAG, json.dumps(tag_around(content))))
    assert refused.value.kind is GrammarErrorKind.IMPOSSIBLE
    assert refused.value.pointer is None or refused.value.pointer.startswith("#/format/content/json_schema")


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"const": "a", "uniqueItems": False}, '"a"'),
        ({**OBJECT, "properties": {"a": {"type": "integer"}}, "unevaluatedProperties": True}, '{"b": 1}'),
        ({**OBJECT, "properties": {"a": {"type": "integer"}}, "uniqueItems": False}, '{"b": 1}'),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 5}, "0.5"),
    ],
)
def test_schema_with_a_keyword_that_changes_nothing_accepts_what_it_allows(backends, schema, text):
    compiled = compile_or_none(backends, Kind.JSON, schema)
    assert compiled is not None
    assert accepts(compiled, text)


def test_recursion_whose_only_way_out_contradicts_itself_is_refused(backends):
    """No text of such a schema ends."""
    way_out = {"anyOf": [{"const": "foo", "type": "object"}, {"$ref": "#"}]}
    assert compile_or_none(backends, Kind.JSON, {**OBJECT, "properties": {"a": way_out}, "required": ["a"]}) is None
    way_out["anyOf"][0]["type"] = "string"
    assert compile_or_none(backends, Kind.JSON, {**OBJECT, "properties": {"a": way_out}, "required": ["a"]}) is not None


def test_constant_of_characters_with_short_escapes_is_written(backends):
    compiled = compile_or_none(backends, Kind.JSON, {"const": 'a\n\r\b\t\f"\\\u0080'})
    assert accepts(compiled, '"a\\n\\r\\b\\t\\f\\"\\\\\u0080"')


@pytest.mark.parametrize(
    ("pattern", "member", "other"),
    [(r"\x41b", "Ab", "ы"), (r"\u0041b", "Ab", "ы"), (r"[\x41b]", "b", "ы"), (r"a\x41\x42", "aAB", "a\u041b")],
)
def test_regex_with_a_hexadecimal_escape_reads_two_digits(backends, pattern, member, other):
    compiled = compile_or_none(backends, Kind.REGEX, pattern)
    assert accepts(compiled, member)
    assert not accepts(compiled, other)


# Short names of classes, and the dot: characters that ECMA-262 puts into them, and that
# it does not.
CLASSES = [
    (r"\s", "\t\n\v\f\r \xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000\ufeff", "a\x1c\x85\u180e\u200b"),
    (r"\S", "a0\x1c\x85\u180e\u200b東🦊", " \n\xa0\u2003\u2029\ufeff"),
    (r"\d", "09", "a\u0663"),
    (r"\D", "a\u0663東", "0"),
    (r"\w", "aZ0_", "-éſ\u212a"),
    (r"\W", "-éſ東", "a_"),
    (".", "a \t\x85\x1c\u2027東🦊", "\n\r\u2028\u2029"),
    (r"[\s\d]", "0\ufeff", "a"),
    (r"[^\s\d]", "a", "0\ufeff"),
    (r"[\S]", "a", "\ufeff"),
    (r"[\w-.]", "a-.", "/\u0060"),
    (r"[.]", ".", "a"),
    (r"[\^\w]", "^a", "-|"),
    (r"[\u0001-\u007fa]", "b", "\u0080\u0663"),
    (r"[\u00a0-\u00e9\d]", "0é\xa0", "-\u0663"),
    (r"[^\u0001-\u001fa-c]", "xA", "a\u0001"),
    (r"[\xa0-\xe9\w]", "a0é", "-\u0663"),
    (r"\.", ".", "a"),
    (r"\u0041", "A", "u"),
]


@pytest.mark.parametrize(("pattern", "members", "others"), CLASSES)
def test_classes_of_regular_expressions_are_those_of_ecma_262(backends, pattern, members, others):
    regex = compile_or_none(backends, Kind.REGEX, pattern)
    string = compile_or_none(backends, Kind.JSON, {"type": "string", "pattern": f"^{pattern}$"})
    name = {"type": "object", "patternProperties": {f"^{pattern}$": True}, "additionalProperties": False}
    names = compile_or_none(backends, Kind.JSON, name)
    tag = compile_or_none(backends, Kind.STRUCTURAL_TAG, tag_around({"type": "regex", "pattern": pattern}))
    for character in members + others:
        is_member = character in members
        quoted = json.dumps(character, ensure_ascii=False)
        assert accepts(regex, character) == is_member, character
        assert accepts(tag, f"<a>{character}</a>") == is_member, character
        if character not in "\v\x1c\x01\x0b":  # JSON has no short escape for them
            assert accepts(string, quoted) == is_member, character
            assert accepts(names, f"{{{quoted}: 1}}") == is_member, character


@pytest.mark.parametrize("pattern", ["[]a]", "[^]a]"])
def test_class_that_ends_at_once_is_refused(backends, pattern):
    """In ECMA-262 the first bracket ends the class, in other languages it is a
    member."""
    assert compile_or_none(backends, Kind.REGEX, pattern) is None
    assert compile_or_none(backends, Kind.JSON, {"type": "string", "pattern": pattern}) is None


def test_patterns_that_become_the_same_count_both(backends):
    names = {r"^\d$": {"type": "integer"}, r"^[\u0030-\u0039]$": {"type": "string"}}
    schema = {"type": "object", "patternProperties": names}
    compiled = compile_or_none(backends, Kind.JSON, schema)
    assert accepts(compiled, '{"a": 1}')
    assert not accepts(compiled, '{"1": 1}')
    assert not accepts(compiled, '{"1": "a"}')


NESTED = ["([a-z]+ ?)*!", "([^,]*,?)*z", "(a|b*)*c", "(x+x+)+y", "(?:a{2,})*b", "((a)*b?)*c"]


@pytest.mark.parametrize("pattern", NESTED)
def test_regex_with_nested_repetition_is_filled_in_the_same_time_at_every_length(backends, pattern):
    """Automata that follow every way to read the text took 200 ms after 220 tokens, or
    gave up."""
    compiled = compile_or_none(backends, Kind.REGEX, pattern)
    mask = allocate_token_bitmask(1, VOCABULARY.size, pin_memory=False)
    letter = next(letter for letter in "xa" if accepts_first(compiled, letter))
    started = time.thread_time()
    for _ in range(300):
        assert compiled.grammar.accept_tokens("", VOCABULARY.spell(letter))
        compiled.grammar.fill_bitmask(mask, 0)
    assert time.thread_time() - started < 1.5


def accepts_first(compiled, letter: str) -> bool:
    return compiled.grammar.validate_tokens(VOCABULARY.spell(letter)) != []
