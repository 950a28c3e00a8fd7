"""The support tables against the engines themselves.

A test that fails because an engine now enforces something means that its table can be
shortened.
"""

import json
import time

import pytest
from tokenizers_on_the_spot import byte_level

from structout.errors import GrammarError
from structout.grammar.engine_versions import (
    LLGUIDANCE_ESCAPES_IN_NAMES,
    LLGUIDANCE_WHITESPACE_PATTERN,
    XGRAMMAR_NEGATED_CLASSES,
    is_at_least,
)
from structout.grammar.llguidance.backend import LlguidanceBackend
from structout.grammar.llguidance.support import llguidance_support
from structout.grammar.regex_features import Feature, regex_features
from structout.grammar.support import is_gbnf
from structout.grammar.vocabulary import Vocabulary
from structout.grammar.xgrammar.backend import XgrammarBackend
from structout.grammar.xgrammar.support import xgrammar_support
from structout.params import Constraint
from structout.params import StructuredOutputOptions as Kind

VOCABULARY = Vocabulary.from_tokenizer(byte_level(), 525)
SUPPORT = {"llguidance": llguidance_support, "xgrammar": xgrammar_support}
_backends = {}


def backend(name):
    if name not in _backends:
        _backends[name] = {"llguidance": LlguidanceBackend, "xgrammar": XgrammarBackend}[name](VOCABULARY)
    return _backends[name]


def takes(name, kind, spec, text):
    grammar = backend(name).compile_grammar(kind, spec)
    tokens = [*VOCABULARY.spell(text), VOCABULARY.stop_token_ids[0]]
    return len(grammar.validate_tokens(tokens)) == len(tokens)


def schema_support(name, schema):
    return SUPPORT[name](Constraint(Kind.JSON, json.dumps(schema, ensure_ascii=False)))


S, I, O, A, N = ({"type": name} for name in ("string", "integer", "object", "array", "number"))  # noqa: E741 - schemas of one line each
AB = {**O, "properties": {"a": I, "b": I}}

# A schema, an instance that violates it but that the engine accepts, and what the table
# must list as weakened.
IGNORED = [
    # keywords that the engine does not know
    ("xgrammar", {"not": S}, '"x"', "#/not"),
    ("xgrammar", {**AB, "if": {"required": ["a"]}, "then": {"required": ["b"]}}, '{"a": 1}', "#/if"),
    ("xgrammar", {**A, "items": I, "uniqueItems": True}, "[1, 1]", "#/uniqueItems"),
    ("xgrammar", {**A, "items": {}, "contains": I}, '["x"]', "#/contains"),
    ("xgrammar", {**AB, "dependentRequired": {"a": ["b"]}}, '{"a": 1}', "#/dependentRequired"),
    # keywords that the engine does not read beside another one
    ("xgrammar", {"$ref": "#/$defs/x", "$defs": {"x": S}, "minLength": 3}, '"a"', "#/minLength"),
    ("xgrammar", {**AB, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, "{}", "#/anyOf/0/required"),
    ("xgrammar", {"enum": ["a", "abc"], "minLength": 3}, '"a"', "#/minLength"),
    ("xgrammar", {"const": 1, "type": "string"}, "1", "#/type"),
    ("xgrammar", {"type": "integer", "enum": [1, "a"]}, '"a"', "#/type"),
    ("xgrammar", {"allOf": [S], "minLength": 2}, '"a"', "#/minLength"),
    ("xgrammar", {"allOf": [{**I, "minimum": 3}, {**I, "maximum": 5}]}, "9", "#/allOf"),
    ("xgrammar", {"minimum": 3}, "2", "#/minimum"),
    ("xgrammar", {"minLength": 2}, '"a"', "#/minLength"),
    ("xgrammar", {"required": ["a"]}, "{}", "#/required"),
    ("xgrammar", {**S, "pattern": "^a*$", "maxLength": 2}, '"aaa"', "#/maxLength"),
    ("xgrammar", {**S, "format": "uuid", "minLength": 99}, '"123e4567-e89b-12d3-a456-426614174000"', "#/minLength"),
    ("xgrammar", {**S, "format": "time", "pattern": "^1"}, '"20:00:00Z"', "#/pattern"),
    ("xgrammar", {**O, "required": ["a"]}, "{}", "#/required"),
    ("xgrammar", {**AB, "patternProperties": {"^a": {**I, "minimum": 2}}}, '{"a": 1}', "#/patternProperties"),
    ("xgrammar", {**AB, "propertyNames": {"pattern": "^b"}}, '{"a": 1}', "#/propertyNames"),
    ("xgrammar", {**O, "propertyNames": {"not": {"const": "b"}}}, '{"b": 1}', "#/propertyNames"),
    # keywords that the engine misreads
    ("xgrammar", {"oneOf": [I, N]}, "1", "#/oneOf"),
    ("xgrammar", {**N, "multipleOf": 0.5}, "0.3", "#/multipleOf"),
    ("xgrammar", {**I, "multipleOf": 2, "minimum": 4}, "5", "#/multipleOf"),
    ("xgrammar", {**I, "multipleOf": 1_000_003}, "98", "#/multipleOf"),
    ("xgrammar", {**O, "additionalProperties": I, "minProperties": 2}, '{"b": 1, "b": 2}', "#/minProperties"),
    ("xgrammar", {**S, "pattern": "a^b"}, '"ab"', "#/pattern"),
    ("xgrammar", {**S, "pattern": "^a$b"}, '"ab"', "#/pattern"),
    ("xgrammar", {**S, "pattern": "^(?!a)a$"}, '"a"', "#/pattern"),
    ("xgrammar", {**S, "pattern": '^a"b$'}, '"a"b"', "#/pattern"),
    ("xgrammar", {**S, "pattern": r"^\\$"}, '"\\"', "#/pattern"),
    ("xgrammar", {**S, "pattern": r"^\n$"}, '"\n"', "#/pattern"),
    ("xgrammar", {**S, "pattern": "^é.$"}, '"é""', "#/pattern"),
    ("xgrammar", {**S, "pattern": "^[^b]{0,200}$"}, '"""', "#/pattern"),
    ("xgrammar", {**S, "pattern": r"^[\n]$"}, '"\n"', "#/pattern"),
    ("xgrammar", {**S, "pattern": r"^\x22$"}, '"""', "#/pattern"),
    ("xgrammar", {**S, "pattern": r"^\Z$"}, '"Z"', "#/pattern"),
    ("llguidance", {"const": 2**53 + 1}, str(2**53), "#/const"),
    ("llguidance", {**I, "minimum": 2**53 + 1}, str(2**53), "#/minimum"),
    ("llguidance", {**O, "additionalProperties": I, "minProperties": 2}, '{"b": 1, "b": 2}', "#/minProperties"),
    ("llguidance", {**S, "pattern": "^[a-c--b]$"}, '"a"', "#/pattern"),
    ("llguidance", {**S, "pattern": "a\\"}, '"a"', "#/pattern"),
]


@pytest.mark.parametrize(("name", "schema", "text", "weakened"), IGNORED)
def test_support_of_an_ignored_keyword_is_weakened(name, schema, text, weakened):
    assert takes(name, Kind.JSON, json.dumps(schema), text), "the engine enforces this now: the table can be shortened"
    support = schema_support(name, schema)
    assert weakened in support.weakened
    assert not support.enforces
    assert weakened in support.reason


# A schema that the engine enforces, instances of it, and texts that are not instances.
ENFORCED = [
    ("xgrammar", AB, ['{"a": 1}', "{}"], ['{"a": "x"}']),
    ("xgrammar", {**AB, "required": ["b"], "additionalProperties": S}, ['{"b": 1, "c": "x"}'], ["{}", '{"b": "x"}']),
    ("xgrammar", {**AB, "minProperties": 2, "additionalProperties": False}, ['{"a": 1, "b": 1}'], ['{"a": 1}']),
    ("xgrammar", {**AB, "maxProperties": 1}, ['{"b": 1}'], ['{"a": 1, "b": 1}']),
    ("xgrammar", {**O, "propertyNames": {"pattern": "^a$"}}, ['{"a": 1}'], ['{"b": 1}']),
    ("xgrammar", {**AB, "unevaluatedProperties": False}, ['{"a": 1}'], ['{"c": 1}']),
    ("xgrammar", {**I, "multipleOf": 3}, ["6"], ["7"]),
    ("xgrammar", {"oneOf": [S, {"type": "null"}]}, ['"a"', "null"], ["1"]),
    ("xgrammar", {"type": "string", "enum": ["a", "b"]}, ['"a"'], ['"c"']),
    ("xgrammar", {"allOf": [AB]}, ['{"a": 1}'], ['{"a": "x"}']),
    ("xgrammar", {**S, "pattern": "^[^a]b.$"}, ['"cbx"'], ['"abx"', '"cb""', '"cb\x01"']),
    ("xgrammar", {**S, "format": "json-pointer"}, ['"/a"'], ['"a"']),
    ("xgrammar", {"$ref": "#/$defs/x", "$defs": {"x": S}, "description": "d"}, ['"a"'], ["1"]),
    ("llguidance", {"allOf": [{**I, "minimum": 3}, {**I, "maximum": 5}]}, ["4"], ["2", "9"]),
    ("llguidance", {"$ref": "#/$defs/x", "$defs": {"x": S}, "minLength": 3}, ['"abc"'], ['"a"']),
    ("llguidance", {**N, "multipleOf": 0.1}, ["0.3"], ["0.35"]),
    ("llguidance", {"minimum": 3}, ["3", '"a"'], ["2"]),
    ("llguidance", {**S, "pattern": '^a"b$'}, ['"a\\"b"'], ['"a"b"']),
    ("llguidance", {**O, "required": ["a"]}, ['{"b": 1, "a": 2}', '{"a": 1}'][1:], ["{}"]),
    ("llguidance", {**S, "format": "date"}, ['"2024-02-29"'], ['"2023-02-30"']),
    ("llguidance", {**I, "format": "int32"}, ["1"], ["1.5"]),
    ("llguidance", {"$schema": "http://json-schema.org/draft-04/schema#", "if": I, "type": "string"}, ['"a"'], ["1"]),
    ("llguidance", {**AB, "$defs": {"x": {"not": {}}}}, ['{"a": 1}'], ['{"a": "x"}']),
]


@pytest.mark.parametrize(("name", "schema", "members", "others"), ENFORCED)
def test_support_of_an_enforced_schema_is_full(name, schema, members, others):
    assert schema_support(name, schema).enforces
    spec = json.dumps(schema, ensure_ascii=False)
    assert all(takes(name, Kind.JSON, spec, text) for text in members)
    assert not any(takes(name, Kind.JSON, spec, text) for text in others)


REFUSED_BY_LLGUIDANCE = [
    {"not": S},
    {**AB, "if": {"required": ["a"]}},
    {**A, "uniqueItems": True},
    {**A, "contains": I},
    {**O, "propertyNames": {"pattern": "a"}},
    {**AB, "dependentRequired": {"a": ["b"]}},
    {**AB, "dependencies": {"a": ["b"]}},
    {**AB, "unevaluatedProperties": False},
]


@pytest.mark.parametrize("schema", REFUSED_BY_LLGUIDANCE)
def test_support_of_a_schema_that_llguidance_refuses_is_weakened(schema):
    assert not schema_support("llguidance", schema).enforces
    with pytest.raises(GrammarError):
        backend("llguidance").compile_grammar(Kind.JSON, json.dumps(schema))


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"properties": {"a/b~": {"not": {}}}}, "#/properties/a~1b~0/not"),
        ({"items": [I, {"not": {}}]}, "#/items/1/not"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"not": {}}, S]}}}, "#/$defs/a/anyOf/0/not"),
        ({"properties": {"x": {"$ref": "#"}}, "not": {}}, "#/not"),
        ({"patternProperties": {"^[a&&b]/": I}, "additionalProperties": False}, "#/patternProperties/^[a&&b]~1"),
    ],
)
def test_weakened_parts_are_json_pointers(schema, pointer):
    assert schema_support("llguidance", schema).weakened == (pointer,)


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [{"not": 1}]},
        {"const": {"if": 1}},
        {"default": {"not": {}}, "examples": [{"not": {}}]},
        {"properties": {"not": S, "if": I, "uniqueItems": S}},
        {**A, "uniqueItems": False},
        {"definitions": {"unused": {"not": {}}}},
        {"x-custom": {"not": {}}},
        True,
    ],
)
def test_support_does_not_read_data_as_keywords(schema):
    assert schema_support("llguidance", schema).enforces


def test_support_counts_keywords_from_the_draft_that_has_them():
    schema = {"contains": I, "if": I, "dependentRequired": {"a": ["b"]}, "not": I}
    weakened = {
        draft: {
            keyword.removeprefix("#/") for keyword in schema_support("llguidance", schema | {"$schema": url}).weakened
        }
        for draft, url in {
            4: "http://json-schema.org/draft-04/schema#",
            6: "http://json-schema.org/draft-06/schema",
            7: "http://json-schema.org/draft-07/schema#",
            2020: "https://json-schema.org/draft/2020-12/schema",
            None: "https://example.com/mine",
        }.items()
    }
    assert weakened == {
        4: {"not"},
        6: {"not", "contains"},
        7: {"not", "contains", "if"},
        2020: {"not", "contains", "if", "dependentRequired"},
        None: {"not", "contains", "if", "dependentRequired"},
    }


DRAFT_3 = "http://json-schema.org/draft-03/schema#"


@pytest.mark.parametrize("name", SUPPORT)
@pytest.mark.parametrize(
    ("schema", "pointer", "text"),
    [
        ({**O, "disallow": "object"}, "#/disallow", "{}"),
        ({**I, "divisibleBy": 2}, "#/divisibleBy", "5"),
        ({**I, "extends": {"minimum": 3}}, "#/extends", "1"),
        ({**O, "properties": {"a": {**I, "required": True}}}, "#/properties/a/required", "{}"),
        ({**A, "items": I, "uniqueItems": True}, "#/uniqueItems", None),
    ],
)
def test_support_of_draft_3_keywords_is_weakened(name, schema, pointer, text):
    schema = {"$schema": DRAFT_3, **schema}
    assert schema_support(name, schema).weakened == (pointer,)
    assert text is None or takes(name, Kind.JSON, json.dumps(schema), text)
    assert pointer not in schema_support(name, {**schema, "$schema": DRAFT_7}).weakened or text is None


DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def test_support_of_prefix_items_before_2020_differs():
    schema = {"$schema": DRAFT_7, **A, "prefixItems": [I]}
    assert schema_support("xgrammar", schema).weakened == ("#/prefixItems",)
    assert not takes("xgrammar", Kind.JSON, json.dumps(schema), '["a"]')
    assert schema_support("llguidance", schema).enforces
    assert takes("llguidance", Kind.JSON, json.dumps(schema), '["a"]')


def test_support_of_deep_and_cyclic_schemas_ends():
    deep = S
    for _ in range(5_000):
        deep = {"items": deep}
    assert llguidance_support(Constraint(Kind.JSON, '{"items":' * 900 + "true" + "}" * 900)).enforces
    cyclic = {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"items": {"$ref": "#/$defs/a"}}},
    }
    assert schema_support("llguidance", cyclic).enforces


@pytest.mark.parametrize(
    ("kind", "spec", "is_slow"),
    [
        (Kind.JSON, json.dumps({**S, "maxLength": 100}), True),
        (Kind.JSON, json.dumps({**S, "pattern": "^[a-z]{1,99}$"}), True),
        (Kind.JSON, json.dumps({"enum": [str(i) for i in range(2_000)]}), True),
        (Kind.JSON, json.dumps({**O, "properties": {f"p{i}": S for i in range(200)}}), True),
        (Kind.JSON, json.dumps(AB), False),
        (Kind.REGEX, "[a-z]{1,200}", True),
        (Kind.REGEX, "[a-z]{1,8}", False),
        (Kind.CHOICE, json.dumps([str(i) for i in range(2_000)]), True),
        (Kind.CHOICE, '["a", "b"]', False),
    ],
)
def test_support_of_slow_constraints_is_slow_for_xgrammar_only(kind, spec, is_slow):
    assert xgrammar_support(Constraint(kind, spec)).is_slow == is_slow
    assert not llguidance_support(Constraint(kind, spec)).is_slow


# -- regular expressions ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pattern", "text"),
    [
        ("xgrammar", "a^b", "ab"),
        ("xgrammar", "(a$)b", "ab"),
        ("xgrammar", r"\Z", "Z"),
        ("xgrammar", ".", "\n"),
        ("xgrammar", r"\s", "\u00a0"),
        ("llguidance", "[a-c--b]", "a"),
        ("llguidance", "a\\", "a"),
    ],
)
def test_support_of_a_misread_regex_is_weakened(name, pattern, text):
    assert takes(name, Kind.REGEX, pattern, text)
    assert not SUPPORT[name](Constraint(Kind.REGEX, pattern)).enforces


@pytest.mark.parametrize(
    ("pattern", "text"), [("[^é]", "é"), (r"[^\u4e00-\u9fff]", "東"), (r"[^\x80-\xff]", "é"), (r"[^\D]", "é")]
)
def test_xgrammar_support_of_negated_classes_beyond_ascii(pattern, text):
    is_enforced = is_at_least("xgrammar", XGRAMMAR_NEGATED_CLASSES)
    assert takes("xgrammar", Kind.REGEX, pattern, text) != is_enforced
    assert xgrammar_support(Constraint(Kind.REGEX, pattern)).enforces == is_enforced
    in_json = schema_support("xgrammar", {**S, "pattern": r"^[^\Da]$"})
    assert in_json.enforces == is_enforced


@pytest.mark.parametrize(
    "schema",
    [
        {**AB, "patternProperties": {"^a": I}, "additionalProperties": S},
        {**O, "properties": {f"p{i}": I for i in range(300)}},
        {**O, "properties": {"x" * 101: I}},
    ],
    ids=["patternProperties", "300 properties", "long name"],
)
def test_llguidance_support_of_open_objects_that_cannot_be_rewritten(schema):
    is_enforced = is_at_least("llguidance", LLGUIDANCE_ESCAPES_IN_NAMES)
    assert schema_support("llguidance", schema).enforces == is_enforced
    assert schema_support("llguidance", {**schema, "additionalProperties": False}).enforces


@pytest.mark.parametrize(
    ("name", "format_name", "text"),
    [("xgrammar", "ipv4", "01.2.3.4"), ("xgrammar", "date", "2023-02-30"), ("llguidance", "json-pointer", "a")]
    + [(name, format_name, "(") for name in SUPPORT for format_name in ("regex", "iri")],
)
def test_support_of_a_format_that_the_engine_does_not_enforce_names_it(name, format_name, text):
    schema = {"properties": {"a": {**S, "format": format_name}, "b": {**I, "format": format_name}}}
    support = schema_support(name, schema)
    assert support.formats == ("#/properties/a/format",)
    assert takes(name, Kind.JSON, json.dumps({**S, "format": format_name}), json.dumps(text))


def test_support_of_formats_in_structural_tags_names_those_that_are_not_enforced():
    schema = {"properties": {"json_schema": {**S, "format": "iri"}, "a": {**S, "format": "uuid"}}}
    support = xgrammar_support(tag_around({"type": "json_schema", "json_schema": schema}))
    assert support.formats == ("#/format/content/json_schema/properties/json_schema/format",)
    assert support.enforces


def test_support_of_unknown_formats_is_full():
    for schema in ({**S, "format": "zip"}, {**S, "format": "password", "pattern": "^a$", "maxLength": 3}):
        assert schema_support("llguidance", schema).enforces
    assert schema_support("xgrammar", {**S, "format": "zip"}).enforces
    assert takes("xgrammar", Kind.JSON, json.dumps({**S, "format": "password", "pattern": "^ab$"}), '"ab"')
    assert not takes("xgrammar", Kind.JSON, json.dumps({**S, "format": "password", "pattern": "^ab$"}), '"b"')


@pytest.mark.parametrize(
    "pattern", ["^ab$", "^a$|^b$", "(?:a|b)+", "a*?b", "[^a-z]{2}", r"\d\w\x41", "(?<name>a)", "(^a|b$)", r"[\w.-]+"]
)
def test_support_of_ordinary_regexes_is_full(pattern):
    constraint = Constraint(Kind.REGEX, pattern)
    assert llguidance_support(constraint).enforces
    assert xgrammar_support(constraint).enforces


@pytest.mark.parametrize("pattern", ["(?=a)b", "(?<!a)b", r"(a)\1", r"\bfoo\b", "(?i)a", r"\p{L}", "a++", "(?>a)"])
def test_xgrammar_support_of_unsupported_regexes_is_weakened(pattern):
    assert not xgrammar_support(Constraint(Kind.REGEX, pattern)).enforces


@pytest.mark.parametrize(
    ("pattern", "features"),
    [
        ("x(^a)", {Feature.INNER_ANCHOR}),
        ("(a$|b)c", {Feature.INNER_ANCHOR}),
        ("^(a|^b)$", set()),
        (r"^\$\^$", set()),
        ("[$^.]", set()),
        ("[a-z ]|é", set()),
        ("[ -~]", {Feature.MAY_NEED_JSON_ESCAPE}),
        (r"[[:alpha:]]", {Feature.SET_OPERATION, Feature.MAY_NEED_JSON_ESCAPE}),
        (r"[\[]", set()),
        (r"[^\n]", {Feature.MAY_NEED_JSON_ESCAPE}),
        (r"\\b", {Feature.NEEDS_JSON_ESCAPE, Feature.MAY_NEED_JSON_ESCAPE}),
        ("[^é]", {Feature.NEGATED_CLASS_BEYOND_ASCII, Feature.MAY_NEED_JSON_ESCAPE}),
        (r"[^\u00e9x]", {Feature.NEGATED_CLASS_BEYOND_ASCII, Feature.MAY_NEED_JSON_ESCAPE}),
        (r"\u00e9a", {Feature.HEX_BEFORE_HEX_DIGIT}),
        (r"[\^a]", {Feature.CARET_FIRST_IN_CLASS}),
        (r"[^\D]", {Feature.NEGATED_CLASS_BEYOND_ASCII}),
        (r"[é\w]|[^\d]\D", {Feature.MIXED_CLASS, Feature.MAY_NEED_JSON_ESCAPE}),
        ("(", set()),
        ("a\\", {Feature.INCOMPLETE_ESCAPE}),
        ("[", set()),
        (")|", set()),
    ],
)
def test_regex_features(pattern, features):
    assert regex_features(pattern) == features


@pytest.mark.parametrize(
    "part",
    ["[", '"', "\\", "(", "]", "[]", "[^", "a[", "/", "<", "{1", "\\]", "[\\]", "stop ", "x[stop", "\\u{", "a\n["],
)
@pytest.mark.parametrize("kind", [Kind.JSON, Kind.REGEX, Kind.CHOICE, Kind.GRAMMAR, Kind.STRUCTURAL_TAG])
def test_support_takes_linear_time(kind, part, num_cases):
    size = num_cases(64 << 10, long=256 << 10)
    text = (part * size)[:size]
    wrap = {
        Kind.JSON: lambda: json.dumps({**S, "pattern": text}),
        Kind.CHOICE: lambda: json.dumps([text]),
        Kind.STRUCTURAL_TAG: lambda: json.dumps({"type": "regex", "pattern": text}),
    }
    spec = wrap[kind]() if kind in wrap else text
    start = time.process_time()
    llguidance_support(Constraint(kind, spec))
    xgrammar_support(Constraint(kind, spec))
    # 0.1 s expected (0.4 s under --long); quadratic time would take many seconds
    # (minutes).
    assert time.process_time() - start < num_cases(1, long=2)


@pytest.mark.parametrize("pattern", ["[^]a(?=x)", "[]a(?=x)", "[ab(?=x)", "[a]b[\\](?=x)"])
def test_regex_features_after_an_unclosed_class_are_found(pattern):
    assert Feature.LOOKAROUND in regex_features(pattern)


def test_support_of_bounds_with_many_digits():
    assert xgrammar_support(Constraint(Kind.REGEX, "a{" + "9" * 5_000 + "}")).is_slow
    assert not xgrammar_support(Constraint(Kind.REGEX, "a{" + "0" * 5_000 + "9}")).is_slow


# -- other kinds -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        ('root ::= "a"', True),
        ('start: "a"', False),
        ('start: "::="', False),
        ("start: a // was ::=\na: B\nB: /[::=]/", False),
        ('# a comment\nroot ::= "x: y"', True),
    ],
)
def test_is_gbnf_distinguishes_gbnf_from_lark(grammar, expected):
    assert is_gbnf(grammar) == expected
    constraint = Constraint(Kind.GRAMMAR, grammar)
    assert xgrammar_support(constraint).enforces == expected
    assert llguidance_support(constraint).enforces != expected


def test_support_of_a_whitespace_pattern():
    constraint = Constraint(Kind.JSON, "{}", whitespace_pattern=" ?")
    assert llguidance_support(constraint).enforces == is_at_least("llguidance", LLGUIDANCE_WHITESPACE_PATTERN)
    assert xgrammar_support(constraint).weakened == ("whitespace_pattern",)


def tag_around(content):
    tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<a>", "content": content, "end": "</a>"}}
    return Constraint(Kind.STRUCTURAL_TAG, json.dumps(tag))


@pytest.mark.parametrize(
    ("schema", "weakened"),
    [
        (AB, ()),
        (json.dumps(AB), ()),
        ({"not": S}, ("#/format/content/json_schema/not",)),
        ("no schema", ()),
        ('{"not": {}}', ("#/format/content/json_schema/not",)),
        ({**S, "maxLength": 3}, ("#/format/content/json_schema/maxLength",)),
    ],
)
def test_support_of_schemas_in_structural_tags(schema, weakened):
    constraint = tag_around({"type": "json_schema", "json_schema": schema})
    assert xgrammar_support(constraint).weakened == weakened
    assert llguidance_support(constraint).refusal


def test_support_of_patterns_in_structural_tags():
    assert xgrammar_support(tag_around({"type": "regex", "pattern": "a+"})).enforces
    weakened = xgrammar_support(tag_around({"type": "regex", "pattern": "a^b"})).weakened
    assert weakened == ("#/format/content/pattern: anchor inside",)
