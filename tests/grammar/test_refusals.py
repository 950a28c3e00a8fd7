"""What a refusal says: its kind, its place, and a sentence of our own."""

import copy
import json
import pickle

import pytest
from tokenizers_on_the_spot import byte_level

from structout.config import StructuredOutputsConfig
from structout.errors import (
    CompileCrashError,
    GrammarError,
    GrammarErrorKind,
    GrammarLimitError,
    GrammarTimeoutError,
)
from structout.grammar.refusals import Refusal, Rule, explain, locate
from structout.grammar.router import BackendSet
from structout.grammar.vocabulary import Vocabulary
from structout.json_schema import subschemas
from structout.params import StructuredOutputOptions as Kind
from structout.params import StructuredOutputsParams
from structout.scheduler.manager import StructuredOutputManager

VOCABULARY = Vocabulary.from_tokenizer(byte_level(), 525)
MALFORMED, UNSUPPORTED = GrammarErrorKind.MALFORMED, GrammarErrorKind.UNSUPPORTED
IMPOSSIBLE, LIMIT = GrammarErrorKind.IMPOSSIBLE, GrammarErrorKind.LIMIT
S, I, O = {"type": "string"}, {"type": "integer"}, {"type": "object"}  # noqa: E741 - schemas of one line each
# Parts of engines' messages that mean nothing to a client.
RAW = (
    "NoExtensionBias",
    "coerce_one_of",
    "Check failed",
    "Unsatisfiable",
    "Unimplemented",
    "EBNF",
    "(in regex)",
    "f64",
)


@pytest.fixture(scope="module")
def backends():
    made = BackendSet(VOCABULARY, StructuredOutputsConfig(), byte_level())
    yield made
    made.destroy()


@pytest.fixture
def without_fsm(monkeypatch):
    """JSON schemas go to the other engines, as where fsm is not built."""
    monkeypatch.setattr("structout.grammar.fsm.support.is_available", lambda: False)


def refusal_of(backends, **params):
    with pytest.raises(GrammarError) as caught:
        backends.compile(StructuredOutputsParams(**params).constraint())
    error = caught.value
    assert error.client_fault
    assert "\n" not in str(error)
    assert not any(raw in str(error) for raw in RAW)
    return error


@pytest.mark.parametrize(
    ("schema", "kind", "pointer", "keyword", "sentence"),
    [
        # refused before an engine sees them
        ({"items": {"type": 3}}, MALFORMED, "#/items/type", "type", "must be string or array"),
        ({"required": [1]}, MALFORMED, "#/required/0", "required", "must be string"),
        ({**S, "minLength": -1}, MALFORMED, "#/minLength", "minLength", "must not be negative, got -1"),
        ({"items": {"$ref": "x.json"}}, UNSUPPORTED, "#/items/$ref", "$ref", "cannot follow the reference 'x.json' of"),
        (False, IMPOSSIBLE, "#", None, "the schema is false"),
        ({"$ref": "#"}, IMPOSSIBLE, None, None, "every instance would have to contain another"),
        ({"allOf": [S, False]}, IMPOSSIBLE, "#/allOf/1", "allOf", "is false"),
        ({"items": {**S, "pattern": "a{99999}"}}, LIMIT, "#/items/pattern", "pattern", "is limited to 16,384"),
        ({"items": {"enum": list(range(6000))}}, LIMIT, "#/items/enum", "enum", "alternatives is limited to 5,000"),
        # refused by the support tables
        ({"items": {"uniqueItems": True}}, UNSUPPORTED, "#/items/uniqueItems", "uniqueItems", "use a list instead"),
        ({"properties": {"a/b": {"not": {"pattern": "a"}}}}, UNSUPPORTED, "#/properties/a~1b/not", "not", "lenient"),
        ({"contains": I, "not": {"format": "uri"}}, UNSUPPORTED, "#/contains", "contains", "#/contains, #/not; pass"),
        # refused by an engine
        ({"items": {"type": "foo"}}, MALFORMED, "#/items/type", "type", "there is no type foo"),
        ({"items": {**S, "pattern": "("}}, MALFORMED, "#/items/pattern", "pattern", "does not parse: unclosed group"),
        ({**O, "patternProperties": {"(": I}}, MALFORMED, "#/patternProperties", "patternProperties", "does not parse"),
        ({"items": {**S, "pattern": "(?=a)"}}, UNSUPPORTED, "#/items/pattern", "pattern", "may not use lookaround"),
        ({**S, "pattern": r"\ba"}, UNSUPPORTED, "#/pattern", "pattern", "word boundaries"),
        ({**S, "pattern": r"(a)\1"}, UNSUPPORTED, "#/pattern", "pattern", "backreferences"),
        ({"properties": {"a": {**S, "minLength": 5, "maxLength": 3}}, "required": ["a"], **O}, IMPOSSIBLE, "#/required",
         "required", "'a' can have no value"),
        ({**S, "minLength": 5, "maxLength": 3}, IMPOSSIBLE, "#/minLength", "minLength", "minLength 5 and maxLength 3"),
        ({**I, "minimum": 5, "maximum": 3}, IMPOSSIBLE, "#/minimum", "minimum", "minimum 5 and maximum 3"),
        ({**S, "pattern": "^a$", "minLength": 4}, IMPOSSIBLE, "#/pattern", "pattern", "no string satisfies all"),
        ({**S, "const": 1}, IMPOSSIBLE, "#", None, "no value has all the types"),
        ({"enum": []}, IMPOSSIBLE, "#/enum", "enum", "an empty list of values"),
        ({"not": {}}, IMPOSSIBLE, "#", None, "allows no value"),
        ({**S, "minLength": 1.5}, MALFORMED, "#/minLength", "minLength", "must be a non-negative integer, got 1.5"),
        ({"items": {"multipleOf": 0}}, MALFORMED, "#/items/multipleOf", "multipleOf", "must be greater than 0"),
        ({**I, "minimum": 1e300}, UNSUPPORTED, "#/minimum", "minimum", "too large"),
        ({"items": {"$ref": "#/$defs/x"}}, MALFORMED, "#/items/$ref", "$ref", r"names #/\$defs/x, where"),
        ({"items": {"oneOf": [S, {"pattern": "a"}]}}, UNSUPPORTED, "#/items/oneOf", "oneOf", "two of its branches"),
        ({**O, "patternProperties": {"^a": S, "b$": I}}, UNSUPPORTED, "#/patternProperties", "patternProperties",
         "two of its patterns, here \\^a and b\\$"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("without_fsm")
def test_refused_schema_names_kind_place_and_cause(backends, schema, kind, pointer, keyword, sentence):
    with pytest.raises(GrammarError, match=sentence) as caught:
        raise refusal_of(backends, json=schema)
    error = caught.value
    assert (error.kind, error.pointer, error.keyword) == (kind, pointer, keyword)


@pytest.mark.parametrize(
    ("params", "kind", "sentence"),
    [
        ({"regex": "("}, MALFORMED, r"does not parse: a \( is not closed, at character 2"),
        ({"regex": "[z-a]"}, MALFORMED, "does not parse: the ends of a range are out of order, at character 5"),
        ({"regex": r"\q"}, MALFORMED, "does not parse: unrecognized escape sequence"),
        ({"regex": "a(?<=a)b"}, UNSUPPORTED, "lookbehind is not supported"),
        ({"regex": "(?=a)b", "backend": "llguidance:no-fallback"}, UNSUPPORTED, "may not use lookaround"),
        ({"regex": "(?=a)b", "backend": "xgrammar:no-fallback"}, UNSUPPORTED, "xgrammar does not enforce lookaround"),
        ({"regex": "a{99999}"}, LIMIT, "repetition is limited"),
        ({"grammar": "root ::= foo"}, MALFORMED, "line 1, column 10: the grammar uses foo, which it does not define"),
        ({"grammar": 'root ::= "a'}, MALFORMED, "line 1, column 10: the grammar does not parse: "),
        ({"grammar": 'start ::= "a"'}, MALFORMED, "a GBNF grammar must have a rule named root"),
        ({"grammar": "root ::= root"}, IMPOSSIBLE, "allows no text at all"),
        ({"grammar": 'start: "a"\n | b'}, MALFORMED, "line 2, column 4: the grammar uses b"),
        ({"grammar": 'start: "a'}, MALFORMED, "line 1, column 8: the grammar does not parse: .* is not closed"),
        ({"grammar": "start: x\nx: x"}, IMPOSSIBLE, "allows no text at all"),
        ({"grammar": "a: /b/"}, MALFORMED, "a Lark grammar must have a rule named start"),
        ({"grammar": "start: /(/"}, MALFORMED, r"line 1, column 8: a regular expression does not parse: a \("),
        ({"grammar": "start: <|eos|>"}, UNSUPPORTED, "may constrain text only"),
        ({"structural_tag": {"format": {"type": "x"}}}, MALFORMED, "#/format: there is no format x"),
        ({"structural_tag": {}}, MALFORMED, "structural_tag needs format"),
        ({"json": {}, "whitespace_pattern": "("}, MALFORMED, "whitespace_pattern: a regular expression"),
        ({"json": {}, "whitespace_pattern": "x"}, MALFORMED, "may match spaces"),
        ({"json": {}, "backend": "nobody"}, MALFORMED, "unknown backend"),
    ],
)  # fmt: skip
def test_refused_constraint_names_kind_and_cause(backends, params, kind, sentence):
    with pytest.raises(GrammarError, match=sentence) as caught:
        raise refusal_of(backends, **params)
    assert caught.value.kind is kind


@pytest.mark.usefixtures("without_fsm")
def test_refusal_inside_a_rewritten_schema_names_its_place_in_the_given_one(backends):
    branches = [{**S, "pattern": "(?=a)"}, {**I, "not": {"enum": [1]}}]
    error = refusal_of(backends, json={"properties": {"a": {"oneOf": branches}}, "not": {"required": ["b"]}})
    assert (error.pointer, error.keyword) == ("#/properties/a/oneOf/0/pattern", "pattern")


def test_message_that_no_rule_knows_is_quoted_behind_a_sentence():
    refusal = explain([], "something new", Kind.JSON)
    assert refusal == Refusal(UNSUPPORTED, "the JSON schema cannot be compiled: something new")
    assert explain([], "x", Kind.REGEX) == Refusal(MALFORMED, "the regular expression does not parse: x")
    assert explain([Rule("y (.*)", LIMIT, "{0}")], "y z", Kind.REGEX) == Refusal(LIMIT, "z")


def test_locate_finds_the_innermost_subschema_that_is_refused_and_gives_up_on_many():
    nodes = list(subschemas({"items": {"properties": {"a": {"minLength": 1, "title": "bad"}, "b": {}}}}))
    found = locate(Refusal(MALFORMED, ""), nodes, lambda node: "bad" in json.dumps(node))
    assert found == ("#/items/properties/a", None)
    assert locate(Refusal(MALFORMED, ""), nodes, lambda node: False) == (None, None)
    num_tried = 0

    def count(node):
        nonlocal num_tried
        num_tried += 1

    locate(Refusal(MALFORMED, "", ("pattern",)), [("", {"pattern": "a"})] * 10_000, count)
    assert num_tried == 64


def pickled(error):
    return pickle.loads(pickle.dumps(error))  # noqa: S301 - it was made here


ERRORS = [
    GrammarError("m", "r", kind=UNSUPPORTED, pointer="#/not", keyword="not"),
    GrammarLimitError("branches", 2, 1, "r").at("#/anyOf", "anyOf"),
    GrammarLimitError("queue_size", 2, 1, kind=GrammarErrorKind.OVERLOADED),
    GrammarTimeoutError("late", "r"),
    CompileCrashError("crashed"),
]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("duplicate", [pickled, copy.copy, GrammarError.copy])
def test_grammar_errors_survive_pickling_and_copying(error, duplicate):
    copied = duplicate(error)
    assert type(copied) is type(error)
    assert copied is not error
    assert (str(copied), copied.args, vars(copied)) == (str(error), error.args, vars(error))
    described = GrammarError.from_dict(json.loads(json.dumps(error.as_dict())), "other")
    assert described.as_dict() == error.as_dict()
    assert described.request_id == "other"


def test_kinds_of_the_server_are_no_fault_of_the_client():
    assert [error.client_fault for error in ERRORS] == [True, True, False, False, False]
    at_fault = {kind for kind in GrammarErrorKind if kind.client_fault}
    assert at_fault == {MALFORMED, UNSUPPORTED, IMPOSSIBLE, LIMIT}


def test_error_of_a_request_keeps_kind_and_place():
    with StructuredOutputManager(byte_level(), 525) as manager:
        manager.add_request("bad", StructuredOutputsParams(json={"items": {"type": "foo"}}))
        with pytest.raises(GrammarError):
            manager.wait_ready("bad")
        manager.add_failed_request("elsewhere", manager.error("bad"))
        for request_id in ("bad", "elsewhere"):
            error = manager.error(request_id)
            assert (error.request_id, error.kind, error.pointer) == (request_id, MALFORMED, "#/items/type")
        manager.add_request("replayed", StructuredOutputsParams(regex="a"), output_token_ids=VOCABULARY.spell("b"))
        with pytest.raises(GrammarError, match="do not satisfy") as caught:
            manager.wait_ready("replayed")
        assert (caught.value.kind, caught.value.client_fault) == (GrammarErrorKind.REPLAY, False)


def test_closed_backends_say_so():
    closed = BackendSet(VOCABULARY, StructuredOutputsConfig())
    closed.destroy()
    with pytest.raises(GrammarError, match="closed") as caught:
        closed.compile(StructuredOutputsParams(regex="a").constraint())
    assert caught.value.kind is GrammarErrorKind.CLOSED


@pytest.mark.usefixtures("without_fsm")
def test_counts_beside_optional_properties_are_refused_or_weakened_by_their_keywords(backends):
    schema = O | {"properties": {"a": {}}, "minProperties": 1, "maxProperties": 3}
    error = refusal_of(backends, json=schema)
    assert error.pointer == "#/minProperties"
    assert error.kind is UNSUPPORTED
    lenient = StructuredOutputsParams(json=schema, lenient=True)
    assert backends.compile(lenient.constraint()).weakened == ("#/minProperties", "#/maxProperties")
