"""Formats in schemas: those that are narrower than their standards, and host
names, whose length is bounded."""

import json

import jsonschema
import pytest

from structout.grammar.native.extension import core
from structout.grammar.native.json_schema import CompiledSchema
from structout.grammar.vocabulary import Vocabulary
from support.json_engine import JsonEngine, refusal_of

ENGINE = JsonEngine(may_negate_hosts=False)
VOCABULARY = Vocabulary((*(bytes([byte]) for byte in range(256)), b""), (256,))
REGEX = {"type": "string", "format": "regex"}
NOT_REGEX = {"not": {"format": "regex"}}  # strings alone can fail it


def matches(schema, *values, engine=ENGINE):
    index = engine.compile(schema)
    return [index.matches(json.dumps(value, ensure_ascii=False).encode()) for value in values]


def refusal(schema):
    with pytest.raises(core().SchemaError) as caught:
        ENGINE.compile(schema)
    return refusal_of(caught.value), caught.value.args[-1]


@pytest.mark.parametrize("schema", [{"format": "hostname"}, {"format": "idn-hostname"}])
def test_host_name_has_253_characters_at_most(schema):
    longest = ".".join(["a" * 63] * 3 + ["a" * 61])
    assert matches({"type": "string"} | schema, longest, longest + "a") == [True, False]


def test_host_name_that_is_too_long_is_none_under_not():
    longest = ".".join(["a" * 63] * 3 + ["a" * 61])
    index = JsonEngine().compile({"type": "string", "not": {"format": "hostname"}})
    assert [index.matches(f'"{name}"'.encode()) for name in (longest, longest + "a")] == [False, True]


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        (NOT_REGEX, "#/not/format"),
        ({"if": {"const": 1}, "else": NOT_REGEX}, "#/else/not/format"),
        ({"oneOf": [REGEX, {"type": "string", "maxLength": 2}]}, "#/oneOf/0/format"),
        ({"properties": {"a": NOT_REGEX}}, "#/properties/a/not/format"),
        ({"oneOf": [{"properties": {"a": REGEX}}, {"required": ["b"]}]}, "#/oneOf/0/properties/a/format"),
        ({"not": {"propertyNames": REGEX}}, "#/not/propertyNames/format"),
        ({"propertyNames": NOT_REGEX | {"maxLength": 1}}, "#/propertyNames/not/format"),
        ({"contains": REGEX, "maxContains": 1}, "#/contains/format"),
        ({"not": {"items": {"prefixItems": [REGEX]}}}, "#/not/items/prefixItems/0/format"),
        ({"not": {"not": {"not": {"$ref": "#/$defs/r"}}}, "$defs": {"r": {"format": "regex"}}}, "#/$defs/r/format"),
        ({"not": {"format": "idn-hostname"}}, "#/not/format"),
    ],
)
def test_narrower_format_is_refused_where_a_value_may_be_valid_without_it(schema, pointer):
    assert refusal(schema) == ("unsupported", pointer)


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (REGEX, "(a|b)", "(a"),
        ({"anyOf": [REGEX, {"const": "(a"}]}, "(a", "(b"),
        ({"not": {"not": REGEX}}, "a", "("),
        ({"if": REGEX, "then": {"maxLength": 3}}, "a(b", "abcd"),  # whether `format` is asserted or not
        ({"if": {"maxLength": 1}, "then": REGEX}, "(a", "("),
        ({"items": REGEX}, ["a"], ["a", "("]),
        ({"contains": REGEX}, ["(", "a"], ["("]),
        ({"contains": REGEX, "minContains": 2}, ["a", "(", "a"], ["(", "a"]),
        ({"propertyNames": REGEX}, {"a": 1}, {"(": 1}),
        (
            {
                "oneOf": [
                    {"properties": {"k": {"const": 1}, "r": REGEX}, "required": ["k"]},
                    {"properties": {"k": {"const": 2}}, "required": ["k"]},
                ]
            },
            {"k": 1, "r": "a"},
            {"k": 1, "r": "("},
        ),
        (
            {"anyOf": [{"properties": {"a": REGEX, "b": {"const": 1}}}, {"required": ["c"]}]},
            {"a": "(", "c": 1},
            {"a": "("},
        ),
    ],
)
def test_narrower_format_is_asked_for_where_nothing_depends_on_its_negation(schema, valid, invalid):
    assert matches(schema, valid, invalid) == [True, False]


DATE, TIME = {"type": "string", "format": "date"}, {"type": "string", "format": "time"}
VALUES = ["2020-01-01", "10:00:00Z", "ab", "", 0, 1, None]
VALUES += [[], *([value] for value in VALUES), ["2020-01-01", "ab"], ["2020-01-01", "2021-01-01"]]
VALUES += [{}, *({key: value} for key in ("a", "b") for value in VALUES[:6]), {"a": "ab", "b": "ab"}]


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"minimum": 1}, TIME]},
        {"oneOf": [DATE, {"type": "string", "maxLength": 2}, {"type": "null"}]},
        {"oneOf": [{"properties": {"a": DATE}, "type": "object"}, {"required": ["b"]}]},
        {"oneOf": [{"not": DATE}, {"not": {"type": ["boolean", "null"]}}]},
        {"not": DATE},
        {"type": ["object", "array"], "not": {"items": DATE, "properties": {"a": TIME}}},
        {"anyOf": [{"not": DATE}, {"type": "string", "minLength": 3}]},
        {"if": {"format": "date"}, "then": {"maxLength": 10}, "else": {"minLength": 1}},
        {"if": {"properties": {"a": DATE}}, "then": {"maxProperties": 1}, "else": {"required": ["b"]}},
        {"type": "array", "contains": DATE, "maxContains": 1},
        {"type": "array", "contains": {"not": DATE}, "minContains": 1},
        {"type": "object", "additionalProperties": {"oneOf": [DATE, {"minLength": 1}]}},
        {"allOf": [{"if": {"items": {"$ref": "#/$defs/d"}}, "then": {"maxItems": 1}}], "$defs": {"d": DATE}},
        {"anyOf": [{"properties": {"a": DATE}}, {"required": ["b"]}], "unevaluatedProperties": False},
        {
            "if": {"properties": {"a": TIME}},
            "else": {"properties": {"b": True}},
            "unevaluatedProperties": {"type": "string"},
        },
    ],
)
def test_value_is_valid_whether_formats_are_asserted_or_annotations(schema):
    judge = jsonschema.Draft202012Validator
    judges = [judge(schema), judge(schema, format_checker=judge.FORMAT_CHECKER)]
    assert matches(schema, *VALUES, engine=JsonEngine()) == [
        all(judge.is_valid(value) for judge in judges) for value in VALUES
    ]


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"not": {"format": "date"}}, "ab", "2020-01-01"),
        ({"oneOf": [DATE, TIME]}, "10:00:00Z", "ab"),
        ({"oneOf": [DATE, TIME, {"type": "null"}]}, "2020-01-01", "ab"),
    ],
)
def test_formats_that_alone_tell_values_apart_are_asserted(schema, valid, invalid):
    assert matches(schema, valid, invalid, engine=JsonEngine()) == [True, False]


def test_names_outside_of_a_narrower_format_do_not_tell_branches_apart():
    branch = {"propertyNames": {"format": "idn-hostname"}}
    schema = {"type": "object", "oneOf": [branch, {"required": ["l·l"]}]}
    assert refusal(schema) == ("unsupported", "#/oneOf/0/propertyNames/format")


def test_format_with_a_narrower_name_only_in_data_is_served():
    assert matches({"not": {"const": {"format": "regex"}}}, 1, {"format": "regex"}) == [True, False]


def test_host_name_with_labels_of_punycode_is_valid_only_where_it_may_be_negated():
    def index(schema):
        return CompiledSchema(json.dumps(schema), VOCABULARY)

    host = {"type": "string", "format": "hostname"}
    assert not index(host).matches('"xn--4gbwdl"')
    assert index(host).matches('"a-b.example"')
    assert index({"oneOf": [host, {"const": "_"}]}).matches('"xn--4gbwdl"')
    assert not index({"not": {"format": "hostname"}}).matches('"xn--4gbwdl"')


def test_leap_second_with_any_offset_is_a_time_where_it_may_be_negated():
    schema = {"type": "string", "not": {"format": "date-time"}}
    index = CompiledSchema(json.dumps(schema), VOCABULARY)
    times = ["1990-12-31T23:59:60Z", "1990-12-31T15:59:60-08:00", "1991-01-01T05:29:60.5+05:30"]
    others = ["1990-12-31T15:59:60+08:00", "1990-12-31T23:58:60Z", "x"]
    assert [index.matches(json.dumps(text)) for text in times] == [False] * 3
    assert [index.matches(json.dumps(text)) for text in others] == [True] * 3
    asked = CompiledSchema(json.dumps({"type": "string", "format": "date-time"}), VOCABULARY)
    assert [asked.matches(json.dumps(text)) for text in times] == [True, False, False]


@pytest.mark.parametrize(
    ("name", "valid", "invalid"),
    [
        ("host-name", ["www.example.com", "a--b"], ["a b", "-a"]),
        ("ip-address", ["127.0.0.1"], ["256.1.1.1", "::1"]),
        (
            "color",
            ["fuchsia", "#CC8899", "#fff", "rgb(1, 2,3)", "rgb(10%,20%,30.5%)"],
            ["puce", "#00332520", "rgb(1,2%,3)"],
        ),
        ("time", ["08:30:06"], ["08:30:06Z", "8:30 AM"]),
    ],
)
def test_formats_of_draft_3_are_enforced_there_alone(name, valid, invalid):
    schema = {"$schema": "http://json-schema.org/draft-03/schema#", "type": "string", "format": name}
    assert matches(schema, *valid, *invalid) == [True] * len(valid) + [False] * len(invalid)
    if name != "time":
        assert all(matches({"type": "string", "format": name}, *invalid))
