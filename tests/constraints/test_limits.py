"""Limits of a constraint: one at the limit passes, one above it is refused by name."""

import pytest

from structout import GrammarError, StructuredOutputsConfig, StructuredOutputsParams
from structout.constraints.limits import Limits
from structout.errors import GrammarLimitError

SMALL = StructuredOutputsConfig(
    limits=Limits(
        spec_bytes=2_000, nesting=6, alternatives=3, pattern_length=40, repetition=100, properties=3, branches=2,
        references=2,
    )
)  # fmt: skip


def nested(depth):
    schema = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def object_of(count):
    return {"properties": {str(i): True for i in range(count)}}


@pytest.mark.parametrize(
    ("limit", "fits", "too_large", "got"),
    [
        ("spec_bytes", {"grammar": "r" * 2_000}, {"grammar": "r" * 2_001}, 2_001),
        ("spec_bytes", {"grammar": "é" * 1_000}, {"grammar": "é" * 1_001}, 2_002),
        ("nesting", {"json": nested(6)}, {"json": nested(7)}, 7),
        ("nesting", {"regex": "((((((a))))))"}, {"regex": "(((((((a)))))))"}, 7),
        ("nesting", {"regex": r"\(\(\(\(\(\(\(a[(((((((]"}, {"grammar": "root ::= (((((((b)))))))"}, 7),
        ("alternatives", {"choice": ["a", "b", "c"]}, {"choice": ["a", "b", "c", "d"]}, 4),
        ("alternatives", {"json": {"enum": [1, 2, 3]}}, {"json": {"items": {"enum": [1, 2, 3, 4]}}}, 4),
        ("pattern_length", {"regex": "a" * 40}, {"regex": "a" * 41}, 41),
        ("pattern_length", {"json": {"pattern": "a" * 40}}, {"json": {"items": {"pattern": "a" * 41}}}, 41),
        ("pattern_length", {"json": {"patternProperties": {"a": {}}}}, {"json": {"patternProperties": {"a" * 41: {}}}},
         41),
        ("repetition", {"regex": "a{100}"}, {"regex": "a{2,101}"}, 101),
        ("repetition", {"regex": "(a{10}b){10}"}, {"regex": "(a{10}b){11}"}, 110),
        ("repetition", {"regex": "a{50}b{60}"}, {"regex": "((a{5}){5}){5}"}, 125),
        ("repetition", {"regex": r"\{999\}[{999}]"}, {"regex": "[a]{999}"}, 999),
        ("repetition", {"regex": "a{99,}"}, {"regex": "a{101,}"}, 101),
        ("repetition", {"grammar": 'root ::= "a"{100}'}, {"json": {"pattern": "^a{101}$"}}, 101),
        ("properties", {"json": object_of(3)}, {"json": {"items": object_of(4)}}, 4),
        ("branches", {"json": {"anyOf": [True, True]}}, {"json": {"items": {"oneOf": [True, True, True]}}}, 3),
        ("references", {"json": {"items": [{"$ref": "#"}] * 2}}, {"json": {"items": [{"$ref": "#"}] * 3}}, 3),
        ("required_length", {"json": {"minItems": 10**6}}, {"json": {"items": {"minLength": 10**6 + 1}}}, 10**6 + 1),
        ("length_bound", {"json": {"maxLength": 2**31 - 1}}, {"json": {"items": {"maxItems": 2**31}}}, 2**31),
    ],
)  # fmt: skip
def test_validate_at_the_limit_passes_and_above_it_raises(limit, fits, too_large, got):
    StructuredOutputsParams(**fits).validate(SMALL)
    with pytest.raises(GrammarLimitError) as refusal:
        StructuredOutputsParams(**too_large).validate(SMALL)
    assert refusal.value.limit == limit
    assert refusal.value.got == got
    assert refusal.value.max == getattr(SMALL.limits, limit)
    assert limit in str(refusal.value)


@pytest.mark.parametrize(
    "params",
    [
        {"grammar": "root ::= " + " | ".join(f'"F{i}("' for i in range(70))},
        {"grammar": "start: " + " | ".join(f'"F{i}("' for i in range(70))},
        {"grammar": 'root ::= "\\\\vspace{99999}" [({] [^{99999}]  # ((((((({99999}'},
        {"grammar": 'start: "\\\\vspace{99999}" /[({]\\// "x"  // ((((((({99999}'},
        {"grammar": "start: /a\\u{20000}/"},
        {"regex": r"\u{20000}|\p{L}"},
        {"json": {"pattern": r"\u{20000}"}},
    ],
)
def test_validate_counts_what_the_parser_reads(params):
    StructuredOutputsParams(**params).validate(SMALL)


def test_validate_counts_in_the_regular_expressions_of_lark():
    for grammar in ("start: /a{10}/{11}", 'start: "#" /a{101}/', "start: (((((/((a))/)))))"):
        with pytest.raises(GrammarLimitError):
            StructuredOutputsParams(grammar=grammar).validate(SMALL)


@pytest.mark.parametrize("bound", [10**30, 1e300])
def test_validate_with_huge_bounds_raises(bound):
    for params in ({"json": {"maxLength": bound}}, {"regex": f"a{{{int(bound)}}}"}):
        with pytest.raises(GrammarLimitError):
            StructuredOutputsParams(**params).validate()


def test_validate_with_a_negative_bound_raises():
    with pytest.raises(GrammarError, match="#/maxLength: must not be negative"):
        StructuredOutputsParams(json={"maxLength": -1}).validate()


def test_validate_does_not_read_a_bool_as_a_bound():
    StructuredOutputsParams(json={"properties": {"maxLength": True}}).validate()


def test_validate_with_deep_nesting_raises_without_recursion():
    for params in ({"regex": "(" * 500}, {"json": "[" * 100_000 + "]" * 100_000}):
        with pytest.raises(GrammarError):
            StructuredOutputsParams(**params).validate()
