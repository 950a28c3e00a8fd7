import copy
import json
from collections.abc import Callable

import pydantic
import pytest

from structout import (
    GrammarError,
    GrammarLimitError,
    Limits,
    StructuredOutputOptions,
    StructuredOutputsConfig,
    StructuredOutputsParams,
)
from structout.constraints.params import Constraint


class City(pydantic.BaseModel):
    name: str


class Indescribable(pydantic.BaseModel):
    call: Callable[[int], int]


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"json": {"type": "string"}}, "JSON", '{"type": "string"}'),
        ({"json": ' {"type":"string"} '}, "JSON", '{"type": "string"}'),
        ({"json": True}, "JSON", "true"),
        ({"json": {"$ref": "#/$defs/A"}}, "JSON", '{"$ref": "#/$defs/A"}'),
        ({"json": {"const": r"\u0000"}}, "JSON", r'{"const": "\\u0000"}'),
        ({"json": City}, "JSON", json.dumps({"additionalProperties": False} | City.model_json_schema())),
        ({"regex": "a+"}, "REGEX", "a+"),
        ({"choice": ["yes", "nö"]}, "CHOICE", '["yes", "nö"]'),
        ({"choice": (r"\u0000",)}, "CHOICE", r'["\\u0000"]'),
        ({"grammar": 'root ::= "a"'}, "GRAMMAR", 'root ::= "a"'),
        ({"json_object": True}, "JSON_OBJECT", "{}"),
        ({"structural_tag": {"type": "structural_tag"}}, "STRUCTURAL_TAG", '{"type": "structural_tag"}'),
        ({"structural_tag": '{"type":"structural_tag"}'}, "STRUCTURAL_TAG", '{"type": "structural_tag"}'),
    ],
)
def test_constraint_has_kind_and_text(arguments, kind, text):
    assert StructuredOutputsParams(**arguments).constraint() == Constraint(StructuredOutputOptions[kind], text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "expected exactly one constraint, got none"),
        ({"regex": "a", "json": {}}, "expected exactly one constraint, got json, regex"),
        ({"json": False, "json_object": True}, "got json, json_object"),
        ({"json": "{}{}"}, "is not JSON: Extra data"),
        ({"json": "{"}, "is not JSON"),
        ({"json": ""}, "is not JSON"),
        ({"json": '{"minimum": NaN}'}, "NaN is not JSON"),
        ({"json": {"minimum": float("inf")}}, "is not JSON"),
        ({"json": {"a": {1, 2}}}, "is not JSON"),
        ({"json": [1]}, "a JSON schema must be an object or a boolean, got list"),
        ({"json": "5"}, "got int"),
        ({"json": object()}, "is not JSON: Object of type object is not JSON serializable"),
        ({"json": Callable[[int], int]}, "the type .*Callable.* has no JSON schema: "),
        ({"json": "[" * 200_000}, "nested too deeply"),
        ({"structural_tag": {"format": {"json_schema": {"const": "a\0"}}}}, "contains a NUL"),
        ({"structural_tag": {"format": {"a": [{"b\0": 1}]}}}, "contains a NUL"),
        ({"structural_tag": '{"format": "\\\\u0000 \\u0000"}'}, "contains a NUL"),
        ({"choice": ["a", "b\0"]}, "contains a NUL"),
        ({"regex": "\0"}, "contains a NUL"),
        ({"json": Indescribable}, "the type Indescribable has no JSON schema: "),
        ({"regex": "\ud800"}, "contains a lone surrogate at 0"),
        ({"regex": b"a"}, "must be a string, got bytes"),
        ({"grammar": ""}, "is an empty string"),
        ({"choice": "yes"}, "choice must be a non-empty list of strings, got 'yes'"),
        ({"choice": []}, "choice must be a non-empty list"),
        ({"choice": ["a", ""]}, "every choice must be a non-empty string"),
        ({"choice": ["a", 3]}, "every choice must be a non-empty string"),
        ({"regex": "a", "whitespace_pattern": " ?"}, "whitespace_pattern applies to json only, got a regex constraint"),
        (
            {"tools": [City], "whitespace_pattern": " ?"},
            "whitespace_pattern applies to json only, got a structural_tag",
        ),
        ({"regex": "a", "backend": "xgrammar:no-fallback"}, "the name of a backend, .*, got 'xgrammar:no-fallback'"),
        ({"regex": "a", "backend": ""}, "the name of a backend, such as native, got ''"),
        ({"structural_tag": "{"}, "is not JSON"),
        ({"structural_tag": []}, "a structural tag must be an object, got list"),
    ],
)
def test_validate_with_a_bad_constraint_raises_by_message(arguments, message):
    with pytest.raises(GrammarError, match=message) as caught:
        StructuredOutputsParams(**arguments).validate()
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("kind", ["json", "regexp", None])
def test_constraint_of_an_unknown_kind_raises(kind):
    with pytest.raises(GrammarError, match=f"must be a StructuredOutputOptions, got {kind!r}"):
        Constraint(kind, "{}")


def test_constraint_differs_by_whitespace_pattern_and_lenient():
    params = StructuredOutputsParams(json={}, whitespace_pattern=" ?", lenient=True)
    assert params.constraint() == Constraint(StructuredOutputOptions.JSON, "{}", "auto", " ?", True)
    assert hash(params.constraint()) != hash(StructuredOutputsParams(json={}).constraint())


def test_constraint_value_is_parsed_and_not_part_of_the_key():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    constraint = StructuredOutputsParams(json=schema).constraint()
    assert constraint.value == schema
    assert constraint == Constraint(constraint.kind, constraint.spec)
    assert repr(constraint) == repr(Constraint(constraint.kind, constraint.spec))
    assert Constraint(constraint.kind, constraint.spec).value == schema
    schema["properties"]["a"]["type"] = "string"  # the caller's own schema
    assert constraint.value == json.loads(constraint.spec)


@pytest.mark.parametrize("schema", ['{"enum": [[1, 2], "b"]}', {"enum": [[1, 2], "b"]}])
def test_constraint_of_many_requests_is_read_once(schema):
    first, second = (StructuredOutputsParams(json=copy.copy(schema)).constraint() for _ in range(2))
    assert first.value is second.value
    narrow = StructuredOutputsConfig(limits=Limits(alternatives=1))
    with pytest.raises(GrammarLimitError, match="alternatives"):
        StructuredOutputsParams(json=schema).validate(narrow)


def test_long_constraint_is_read_for_each_request():
    params = StructuredOutputsParams(json={"const": "a" * (1 << 13)})
    assert params.constraint().value is not params.constraint().value


def test_validate_takes_a_config():
    StructuredOutputsParams(regex="a").validate(StructuredOutputsConfig())
    StructuredOutputsParams(regex="a").validate(config=None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_mask_buffers": 0}, "num_mask_buffers must be an int of at least 1, got 0"),
        ({"fill_threads": 0}, "fill_threads must be an int of at least 1, got 0"),
        ({"compile_workers": 0}, "compile_workers must be an int of at least 1, got 0"),
        ({"compile_workers": 2.5}, "compile_workers must be an int of at least 1, got 2.5"),
        ({"cache_bytes": -1}, "cache_bytes must be an int of at least 0, got -1"),
        ({"compile_timeout": 0}, "compile_timeout must be more than 0 seconds, got 0"),
    ],
)
def test_config_with_a_bad_value_raises_by_message(arguments, message):
    with pytest.raises(ValueError, match=message):
        StructuredOutputsConfig(**arguments)
