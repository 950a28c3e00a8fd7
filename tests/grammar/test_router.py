"""Which backend serves a constraint, and what is reported about it."""

import json
import os
import pathlib
import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pydantic
import pytest
from options_backend import OptionsBackend, slow_support
from tokenizers_on_the_spot import byte_level

from structout.bitmask import allocate_token_bitmask
from structout.config import StructuredOutputsConfig
from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar import router
from structout.grammar.engine_versions import LLGUIDANCE_WHITESPACE_PATTERN, is_at_least
from structout.grammar.llguidance.backend import LlguidanceBackend
from structout.grammar.router import BackendSet, register_backend
from structout.grammar.support import Support
from structout.grammar.vocabulary import Vocabulary
from structout.params import Constraint, StructuredOutputsParams
from structout.params import StructuredOutputOptions as Kind

VOCABULARY = Vocabulary.from_tokenizer(byte_level(), 525)
S, I = {"type": "string"}, {"type": "integer"}  # noqa: E741 - schemas of one line each
N, X = {"type": "number"}, {"pattern": "x"}
AB = {"type": "object", "properties": {"a": I, "b": I}}
ANCHORED = {"$ref": "#n", "$defs": {"x": {"$anchor": "n", **I}}}
EMBEDDED = {  # $defs/n of the embedded schema, not of the document
    "$id": "http://example.invalid/list.json",
    "items": {"$ref": "n.json"},
    "$defs": {"x": {"$id": "n.json", "$ref": "#/$defs/n", "$defs": {"n": I}}, "n": False},
}


@pytest.fixture(scope="module")
def backend_set():
    return BackendSet(VOCABULARY, StructuredOutputsConfig(compile_timeout=60), byte_level())


@pytest.fixture
def without_fsm(monkeypatch):
    """JSON schemas go to the other engines, as where fsm is not built."""
    monkeypatch.setattr("structout.grammar.fsm.support.is_available", lambda: False)


def constraint(**params):
    return StructuredOutputsParams(**params).constraint()


def takes(compiled, text):
    tokens = [*VOCABULARY.spell(text), VOCABULARY.stop_token_ids[0]]
    return len(compiled.grammar.validate_tokens(tokens)) == len(tokens)


TAG = {
    "type": "structural_tag",
    "format": {"type": "tag", "begin": "<a>", "content": {"type": "json_schema", "json_schema": AB}, "end": "</a>"},
}


@pytest.mark.parametrize(
    ("params", "name", "member"),
    [
        ({"json": AB}, "fsm", '{"a": 1, "b": 1}'),
        ({"json": True}, "fsm", "[1]"),
        ({"json": {**S, "not": X, "maxLength": 100}}, "fsm", '"a"'),
        ({"json": {**S, "format": "json-pointer"}}, "fsm", '"/a"'),
        ({"json": {**S, "pattern": r"^\p{Greek}+$"}}, "llguidance", '"αβγ"'),
        ({"json": ANCHORED}, "fsm", "12"),
        ({"json": EMBEDDED}, "fsm", "[12]"),
        ({"json_object": True}, "fsm", '{"x": [1]}'),
        ({"regex": "[a-z]{2,4}@x"}, "fsm", "abc@x"),
        ({"regex": "[a-z]{2,400}"}, "fsm", "abc"),
        ({"regex": ".{0,5000}"}, "fsm", "abc"),
        ({"regex": "a.{0,15000}"}, "llguidance", "abc"),
        ({"json": {**S, "pattern": "^a.{0,15000}$"}}, "llguidance", '"abc"'),
        ({"regex": ".+"}, "fsm", "abc"),
        ({"regex": r"(?=.*\d)\w+"}, "fsm", "ab1"),
        ({"regex": "[a&&b]"}, "fsm", "&"),
        ({"regex": "(?i)abc"}, "llguidance", "aBc"),
        ({"regex": r"\p{Greek}+"}, "llguidance", "αβγ"),
        ({"regex": "[ab]*a[ab]{18}"}, "llguidance", "a" * 20),
        ({"choice": ["yes", "no"]}, "fsm", "no"),
        ({"choice": [f"option {i}" for i in range(2_000)]}, "fsm", "option 1999"),
        ({"grammar": 'root ::= "a" | "b"'}, "fsm", "b"),
        ({"grammar": 'root ::= "a" root "b" | "c"'}, "fsm", "aacbb"),
        ({"grammar": 'start: "a" | "b"'}, "fsm", "b"),
        ({"grammar": 'start: "a" start "b" | "c"'}, "fsm", "aacbb"),
        ({"structural_tag": TAG}, "xgrammar", '<a>{"a": 1}</a>'),
    ],
)
def test_compile_with_auto_chooses_the_best_backend(backend_set, params, name, member):
    compiled = backend_set.compile(constraint(**params))
    assert compiled.backend_name == name
    assert compiled.weakened == ()
    assert takes(compiled, member)


@pytest.mark.parametrize(
    ("params", "name", "member"),
    [
        ({"json": AB}, "llguidance", '{"a": 1}'),
        ({"json": True}, "llguidance", "[1]"),
        ({"json": {**S, "maxLength": 100}}, "llguidance", '"a"'),
        ({"json": {**AB, "minProperties": 2, "additionalProperties": False}}, "xgrammar", '{"a": 1, "b": 2}'),
        ({"json": {**S, "format": "json-pointer"}}, "xgrammar", '"/a"'),
        ({"json_object": True}, "llguidance", '{"x": [1]}'),
    ],
)
@pytest.mark.usefixtures("without_fsm")
def test_compile_with_auto_when_the_fsm_engine_is_not_built_chooses_the_best_other(backend_set, params, name, member):
    compiled = backend_set.compile(constraint(**params))
    assert compiled.backend_name == name
    assert compiled.weakened == ()
    assert takes(compiled, member)


@pytest.mark.parametrize(("schema", "place"), [(ANCHORED, "'#n' of #/$ref"), (EMBEDDED, "'n.json' of #/items/$ref")])
@pytest.mark.usefixtures("without_fsm")
def test_references_that_are_no_pointers_are_refused_without_the_fsm_engine(backend_set, schema, place):
    with pytest.raises(GrammarError, match=re.escape(f"cannot follow the reference {place}")) as refused:
        backend_set.compile(constraint(json=schema))
    assert refused.value.kind is GrammarErrorKind.UNSUPPORTED
    assert refused.value.keyword == "$ref"


def takes_surrogates(compiled, before, after):
    one = {text: token for token, text in enumerate(VOCABULARY.token_bytes) if len(text) == 1}
    tokens = [one[bytes([byte])] for byte in before + b"\xed\xb0\x80" + after]
    return compiled.grammar.validate_tokens(tokens) == tokens


@pytest.mark.parametrize(
    ("regex", "name"),
    [
        ("[0-9a-zA-Z_-]{1,16}", "llguidance"),
        (r"\w{1,16}", "llguidance"),
        (r"(\w+ ){1,8}", "llguidance"),
        ("[A-Z][a-z]{0,15}( [A-Z][a-z]{0,15}){0,15}", "llguidance"),
        ("[^,]{5}", "llguidance"),
        ("[a-z]{0" + "9" * 5_000 + "}", "llguidance"),
        (r"\d{4}-\d{2}-\d{2}", "xgrammar"),
        ("[0-9a-f]{8}-[0-9a-f]{4}", "xgrammar"),
        (r"a{16}b{1,16}\.{1,16}", "xgrammar"),
        ("[a-z]{2,}@[a-z]+", "xgrammar"),
    ],
)
def test_candidates_for_a_regex_are_fsm_and_then_the_engine_with_quick_masks(backend_set, regex, name):
    first, second, *_ = (candidate.name for candidate in backend_set._candidates(Constraint(Kind.REGEX, regex)))
    assert (first, second) == ("fsm", name)


def test_masks_of_repeated_classes_take_less_cpu_time_than_the_other_engine_needs():
    """CPU time of one thread, so a busy machine changes nothing."""
    chance = random.Random(0)
    words = {
        "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))).encode() for _ in range(20_000)
    }
    vocabulary = Vocabulary((b"", *(bytes([i]) for i in range(256)), *sorted(words)), (0,))
    backend_set = BackendSet(vocabulary, StructuredOutputsConfig(compile_timeout=60))
    mask = allocate_token_bitmask(1, vocabulary.size, pin_memory=False)
    seconds = {}
    letter = vocabulary.token_bytes.index(b"a")
    for backend in ("auto", "xgrammar:no-fallback"):
        compiled = backend_set.compile(constraint(regex="[0-9a-zA-Z_-]{1,16}", backend=backend))
        for _ in range(3):  # the last time counts: what an engine defers is over then
            grammar, seconds[backend] = compiled.grammar.copy(), 0.0
            for _ in range(12):
                assert grammar.accept_tokens("", [letter])
                started = time.thread_time()
                grammar.fill_bitmask(mask, 0)
                seconds[backend] += time.thread_time() - started
                assert mask.any()
    assert 1.3 * seconds["auto"] < seconds["xgrammar:no-fallback"]  # about 0.5 of it


@pytest.mark.parametrize(
    ("params", "before", "after"),
    [
        ({"json": S}, b'"', b'"'),
        ({"json_object": True}, b'["', b'"]'),
        ({"json": {**AB, "additionalProperties": S}}, b'{"c": "', b'"}'),
    ],
)
def test_compile_json_with_auto_allows_utf_8_only(backend_set, params, before, after):
    assert not takes_surrogates(backend_set.compile(constraint(**params)), before, after)


def test_xgrammar_allows_surrogates_in_free_text(backend_set):
    """If this fails, xgrammar has changed, and xgrammar/support.py need not mention
    it."""
    for params, before, after in (({"regex": '"[^"]*"'}, b'"', b'"'), ({"json_object": True}, b'["', b'"]')):
        by_xgrammar = constraint(**params, backend="xgrammar:no-fallback")
        assert takes_surrogates(backend_set.compile(by_xgrammar), before, after)


@pytest.mark.parametrize("name", ["llguidance", "xgrammar"])
@pytest.mark.parametrize("suffix", ["", ":no-fallback"])
def test_compile_with_a_name_uses_that_backend(backend_set, name, suffix):
    for params in ({"json": AB}, {"json_object": True}, {"regex": "a+"}, {"choice": ["a", "b"]}):
        assert backend_set.compile(constraint(**params, backend=name + suffix)).backend_name == name


@pytest.mark.parametrize("kind", ["regex", "choice"])
def test_compile_with_auto_when_the_fsm_engine_is_not_built_uses_the_others(backend_set, monkeypatch, kind):
    monkeypatch.setattr("structout.grammar.fsm.support.is_available", lambda: False)
    params = {"regex": "[a-c]+"} if kind == "regex" else {"choice": ["a", "b"]}
    assert backend_set.compile(constraint(**params)).backend_name == "xgrammar"


def test_compile_with_a_name_that_cannot_enforce_falls_back(backend_set):
    bounded = {"const": 2**53 + 1}
    assert backend_set.compile(constraint(json=bounded, backend="llguidance")).backend_name == "fsm"
    assert backend_set.compile(constraint(json={"minimum": 3}, backend="xgrammar")).backend_name == "fsm"
    assert backend_set.compile(constraint(structural_tag=TAG, backend="llguidance")).backend_name == "xgrammar"


@pytest.mark.usefixtures("without_fsm")
def test_compile_with_a_name_that_cannot_enforce_falls_back_to_the_other_engine(backend_set):
    bounded = {"const": 2**53 + 1}
    assert backend_set.compile(constraint(json=bounded, backend="llguidance")).backend_name == "xgrammar"
    assert backend_set.compile(constraint(json={"minimum": 3}, backend="xgrammar")).backend_name == "llguidance"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"json": {"const": 2**53 + 1}, "backend": "llguidance:no-fallback"}, "llguidance does not enforce #/const"),
        ({"json": {"minimum": 3}, "backend": "xgrammar:no-fallback"}, "xgrammar does not enforce #/minimum"),
        ({"grammar": 'start: "a"', "backend": "xgrammar:no-fallback"}, "xgrammar takes GBNF grammars"),
        ({"grammar": 'root ::= "a"', "backend": "llguidance:no-fallback"}, "llguidance takes Lark grammars"),
        ({"json": AB, "whitespace_pattern": " ", "backend": "xgrammar:no-fallback"}, "whitespace_pattern"),
        ({"json": {"type": "foo"}}, "^#/type: unknown type foo"),
        ({"json": {"items": {"pattern": "(?<=a)b"}}}, "^#/items/pattern: lookbehind is not supported"),
        ({"regex": "("}, "a regular expression does not parse"),
        (
            {"json": AB, "backend": "outlines"},
            "unknown backend 'outlines': the known ones are auto, llguidance, xgrammar, fsm",
        ),
        ({"structural_tag": TAG, "backend": "fsm:no-fallback"}, "fsm has no structural tags"),
        (
            {"regex": "(?<=a)b", "backend": "fsm:no-fallback"},
            "^fsm refuses the pattern: lookbehind is not supported",
        ),
    ],
)
def test_compile_without_an_enforcing_backend_raises_with_reasons(backend_set, params, message):
    with pytest.raises(GrammarError, match=message):
        backend_set.compile(constraint(**params))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"json": {**AB, "not": {"additionalProperties": I}}},
            "^not supported: #/not; pass lenient=True to accept",
        ),
        ({"json": {"oneOf": [I, {"type": "number"}]}}, "^#/oneOf: oneOf is not supported where"),
        ({"json": {"type": "foo"}}, "^#/type: there is no type foo"),
    ],
)
@pytest.mark.usefixtures("without_fsm")
def test_compile_without_fsm_or_an_enforcing_backend_raises_with_reasons(backend_set, params, message):
    with pytest.raises(GrammarError, match=message):
        backend_set.compile(constraint(**params))


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}},
        {"type": "object", "required": ["a"], "additionalProperties": {"$ref": "#"}},
        {"type": "array", "minItems": 1, "items": {"$ref": "#"}},
        {"type": "array", "minItems": 1, "items": [{"$ref": "#"}]},
        {"anyOf": [{"$ref": "#"}, {"type": "array", "minItems": 1, "prefixItems": [{"$ref": "#"}]}]},
        {"allOf": [S, {"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        False,
        {"type": "object", "required": ["a"], "properties": {"a": False}},
    ],
)
@pytest.mark.parametrize("lenient", [False, True])
def test_compile_of_a_schema_without_finite_instances_raises(backend_set, schema, lenient):
    with pytest.raises(GrammarError, match="allows no text at all"):
        backend_set.compile(constraint(json=schema, lenient=lenient))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "object", "required": ["a"], "properties": {"a": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": ["array", "null"], "minItems": 1, "items": {"$ref": "#"}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"enum": [1]}}},
    ],
)
def test_compile_of_recursion_that_can_end_succeeds(backend_set, schema):
    backend_set.compile(constraint(json=schema))


@pytest.mark.parametrize(
    ("schema", "name", "weakened"),
    [
        (AB, "llguidance", ()),
        ({**AB, "not": {"additionalProperties": I}}, "llguidance", ("#/not",)),
        ({"type": "object", "additionalProperties": I, "minProperties": 2}, "llguidance", ("#/minProperties",)),
        ({**AB, "minProperties": 2, "additionalProperties": False}, "xgrammar", ()),
        ({"oneOf": [X, S]}, "llguidance", ("#/oneOf",)),
        (
            {"properties": {"a": {"oneOf": [X, N]}, "b": {"not": X}, "c": {"not": X, "if": X, "then": I}}},
            "llguidance",
            ("#/properties/b/not", "#/properties/c/not", "#/properties/c/if", "#/properties/a/oneOf"),
        ),
    ],
)
@pytest.mark.usefixtures("without_fsm")
def test_compile_with_lenient_chooses_the_backend_that_enforces_most(backend_set, schema, name, weakened):
    compiled = backend_set.compile(constraint(json=schema, lenient=True))
    assert compiled.backend_name == name
    assert compiled.weakened == weakened


def test_compile_with_lenient_still_refuses_malformed_constraints(backend_set):
    for params in ({"json": {"type": "foo"}}, {"regex": "("}, {"json": False}):
        with pytest.raises(GrammarError):
            backend_set.compile(constraint(**params, lenient=True))


@pytest.mark.skipif(not is_at_least("llguidance", LLGUIDANCE_WHITESPACE_PATTERN), reason="needs llguidance >= 1.9.1")
def test_compile_with_a_whitespace_pattern_bounds_whitespace(backend_set):
    compiled = backend_set.compile(constraint(json=AB, whitespace_pattern=" ?", backend="xgrammar"))
    assert compiled.backend_name == "llguidance"
    assert takes(compiled, '{"a": 1}')
    assert not takes(compiled, '{"a":  1}')


@pytest.mark.parametrize(
    ("schema", "cause"),
    [
        (False, "the schema is false"),
        ({"type": "object", "required": ["a"], "properties": {"a": False}}, "#/properties/a is false"),
        (
            {
                "properties": {"x": {"type": "array", "minItems": 1, "items": False}},
                "required": ["x"],
                "type": "object",
            },
            "#/properties/x/items is false",
        ),
        ({"allOf": [S, False]}, "#/allOf/1 is false"),
        ({"$ref": "#"}, "every instance would have to contain another instance"),
    ],
)
def test_compile_of_an_impossible_schema_raises_with_the_cause(backend_set, schema, cause):
    with pytest.raises(GrammarError, match=f"allows no text at all: .*{cause}"):
        backend_set.compile(constraint(json=schema))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"regex": "a(?<=a)b"}, r"^fsm refuses the pattern: lookbehind is not supported \(at character 4\)$"),
        (
            {"json": {"type": "array", "items": S, "uniqueItems": True}, "backend": "llguidance:no-fallback"},
            "#/uniqueItems; use a list instead of a set or pass lenient=True",
        ),
        ({"json": {"const": 2**53 + 1}, "backend": "llguidance:no-fallback"}, "#/const; pass lenient=True"),
    ],
)
def test_compile_with_a_refused_constraint_names_the_cause_and_the_way_out(backend_set, params, message):
    with pytest.raises(GrammarError, match=message):
        backend_set.compile(constraint(**params))


def test_compile_with_a_malformed_constraint_does_not_advise_lenient(backend_set):
    with pytest.raises(GrammarError, match="does not parse") as caught:
        backend_set.compile(constraint(regex="("))
    assert "lenient" not in str(caught.value)


class Upload(pydantic.BaseModel):
    path: pathlib.Path
    password: pydantic.SecretStr
    data: bytes
    network: pydantic.IPvAnyNetwork


@pytest.mark.parametrize("backend", ["auto", "llguidance:no-fallback", "xgrammar"])
def test_compile_with_unknown_formats_reports_annotations(backend_set, backend):
    compiled = backend_set.compile(constraint(json=Upload, backend=backend))
    assert compiled.weakened == ()
    assert compiled.annotations == tuple(
        f"#/properties/{name}/format" for name in ("path", "password", "data", "network")
    )
    assert takes(compiled, '{"path": "x", "password": "y", "data": "z", "network": "n"}')
    assert backend_set.compile(constraint(json={**S, "format": "date"})).annotations == ()
    tag = {**TAG, "format": {"type": "json_schema", "json_schema": {**S, "format": "path", "pattern": "^ab$"}}}
    compiled = backend_set.compile(constraint(structural_tag=tag))
    assert compiled.annotations == ("#/format/json_schema/format",)
    assert takes(compiled, '"ab"')
    assert not takes(compiled, '"b"')


@pytest.mark.parametrize(
    ("schema", "backend", "name", "annotations", "member"),
    [
        ({**S, "format": "iri"}, "auto", "llguidance", ("#/format",), '"no iri"'),
        ({**S, "format": "iri", "pattern": "^ab$"}, "auto", "llguidance", ("#/format",), '"ab"'),
        ({**S, "format": "json-pointer", "minLength": 3}, "auto", "llguidance", ("#/format",), '"abc"'),
        ({**S, "format": "json-pointer"}, "auto", "xgrammar", (), '"/a"'),
        ({**S, "format": "json-pointer"}, "llguidance", "xgrammar", (), '"/a"'),
        ({**S, "format": "json-pointer"}, "llguidance:no-fallback", "llguidance", ("#/format",), '"a"'),
        ({**S, "format": "date"}, "xgrammar", "llguidance", (), '"2024-02-29"'),
        ({**S, "format": "date"}, "xgrammar:no-fallback", "xgrammar", ("#/format",), '"no date"'),
        ({**S, "format": "date", "pattern": "^a+$"}, "xgrammar:no-fallback", "xgrammar", ("#/format",), '"aa"'),
        ({"not": {**N, "format": "int32"}, "format": "idn-email"}, "auto", "llguidance", ("#/format",), "null"),
    ],
)
@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.usefixtures("without_fsm")
def test_compile_takes_a_format_that_no_engine_enforces_as_an_annotation(
    backend_set, schema, backend, name, annotations, member, lenient
):
    compiled = backend_set.compile(constraint(json=schema, backend=backend, lenient=lenient))
    assert (compiled.backend_name, compiled.weakened, compiled.annotations[-1:]) == (name, (), annotations)
    assert takes(compiled, member)
    assert not takes(compiled, "3")
    assert "pattern" not in schema or not takes(compiled, '"b"')


@pytest.mark.parametrize("name", ["llguidance", "xgrammar"])
def test_compile_without_any_whitespace_reaches_each_backend(name):
    compact = BackendSet(VOCABULARY, StructuredOutputsConfig(any_whitespace=False))
    for params in ({"json": AB}, {"json_object": True}):
        compiled = compact.compile(constraint(**params, backend=name + ":no-fallback"))
        assert takes(compiled, '{"a": 1, "b": 2}')
        assert not takes(compiled, '{"a":1,"b":2}')


def test_compile_with_stop_tokens_uses_them(backend_set):
    for name in ("llguidance", "xgrammar", "fsm"):
        compiled = backend_set.compile(constraint(choice=["ab"], backend=name), [7])
        assert compiled.grammar.accept_tokens("r", [*VOCABULARY.spell("ab"), 7])
        assert compiled.grammar.is_terminated()


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"enum": 10**30}, "#/enum must be array, got number"),
        ({"then": {"format": [[]]}}, "#/then/format must be string, got array"),
        ({"items": None}, "#/items must be object or boolean or array, got null"),
        ({"properties": {"a/b": {"type": 3}}}, "#/properties/a~1b/type must be string or array, got number"),
        ({"properties": [{}]}, "#/properties must be object, got array"),
        ({"properties": {"a": 1}}, "#/properties/a must be object or boolean, got number"),
        ({"anyOf": {"type": "string"}}, "#/anyOf must be array, got object"),
        ({"allOf": ["string"]}, "#/allOf/0 must be object or boolean, got string"),
        ({"items": [1]}, "#/items/0 must be"),
        ({"required": [["a"]]}, "#/required/0 must be string, got array"),
        ({"minLength": True}, "#/minLength must be number, got boolean"),
        ({"type": ["string", None]}, "#/type/1 must be string"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"pattern": 1}}}, r"#/\$defs/a/pattern must be string, got number"),
    ],
)
@pytest.mark.parametrize("lenient", [False, True])
def test_compile_with_a_keyword_of_the_wrong_type_raises_with_its_pointer(backend_set, schema, message, lenient):
    with pytest.raises(GrammarError, match=message):
        backend_set.compile(constraint(json=schema, lenient=lenient))
    tag = {**TAG, "format": {"type": "json_schema", "json_schema": schema}}
    with pytest.raises(GrammarError, match=message.removeprefix("#")):
        backend_set.compile(constraint(structural_tag=tag))


@pytest.mark.parametrize(
    "schema",
    [
        {"const": {"enum": 3}, "default": {"type": 1}, "examples": [{"required": 1}]},
        {"type": "object", "properties": {"enum": I, "required": S, "items": {"type": "array", "items": I}}},
        {"$schema": "http://json-schema.org/draft-04/schema#", **I, "minimum": 1, "exclusiveMinimum": True},
        {"x-type": 3, "title": "t", "$defs": {"unused": {"type": 3}}},
    ],
)
def test_compile_of_data_and_older_drafts_succeeds(backend_set, schema):
    backend_set.compile(constraint(json=schema))


# -- the set itself --------------------------------------------------------------------


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(router, "_registered", dict(router._registered))


def counting_factory(made, vocabulary_seen=None):
    def make(vocabulary, config, canonical_tokenizer):
        made.append(threading.get_ident())
        return LlguidanceBackend(vocabulary)

    return make


@pytest.mark.usefixtures("registry")
def test_registered_backend_serves_requests_that_name_it():
    made = []
    register_backend("other", counting_factory(made))
    own = BackendSet(VOCABULARY, StructuredOutputsConfig())
    assert own.compile(constraint(json=AB)).backend_name == "fsm"
    assert not made
    assert own.compile(constraint(json=AB, backend="other")).backend_name == "other"
    assert own.compile(constraint(json=AB, backend="other:no-fallback")).backend_name == "other"
    assert len(made) == 1
    with pytest.raises(GrammarError, match="other does not enforce whitespace_pattern"):
        own.compile(constraint(json=AB, whitespace_pattern=" ", backend="other:no-fallback"))


@pytest.mark.usefixtures("registry")
def test_registered_backend_with_support_is_chosen_by_it():
    register_backend("other", counting_factory([]), lambda constraint: Support(weakened=("everything",)))
    own = BackendSet(VOCABULARY, StructuredOutputsConfig())
    assert own.compile(constraint(json=AB, backend="other")).backend_name == "fsm"
    with pytest.raises(GrammarError, match="other does not enforce everything"):
        own.compile(constraint(json=AB, backend="other:no-fallback"))


@pytest.mark.usefixtures("registry")
def test_registered_backend_gets_options_and_process_isolation():
    register_backend("other", OptionsBackend.from_config, slow_support)
    own = BackendSet(VOCABULARY, StructuredOutputsConfig(compile_workers=1, compile_timeout=60))
    params = {"json": S, "whitespace_pattern": " ?", "lenient": True, "backend": "other"}
    compiled = own.compile(constraint(**params))
    own.destroy()
    assert compiled.backend_name == "other"
    *options, process = compiled.weakened
    assert options == ['{"type": "string"}', " ?", "True"]
    assert int(process) != os.getpid()


@pytest.mark.usefixtures("registry")
def test_registered_backend_without_an_importable_factory_compiles_in_this_process():
    def make(vocabulary, config, canonical_tokenizer):
        return OptionsBackend(vocabulary)

    register_backend("other", make, slow_support)
    own = BackendSet(VOCABULARY, StructuredOutputsConfig())
    assert takes(own.compile(constraint(json=S, backend="other")), '"a"')


@pytest.mark.parametrize("name", ["auto", "", "a b", "x:no-fallback"])
def test_register_backend_with_a_bad_name_raises(name):
    with pytest.raises(ValueError, match="a backend needs a name"):
        register_backend(name, counting_factory([]))


@pytest.mark.usefixtures("registry")
def test_backend_is_made_once_by_many_threads():
    made = []
    register_backend("other", counting_factory(made))
    own = BackendSet(VOCABULARY, StructuredOutputsConfig())
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda _: own.compile(constraint(json=AB, backend="other")), range(64)))
    assert len(made) == 1
    assert {compiled.backend_name for compiled in results} == {"other"}


@pytest.mark.usefixtures("registry")
def test_prepare_makes_backends_and_destroy_closes_them():
    made = []
    register_backend("other", counting_factory(made))
    own = BackendSet(VOCABULARY, StructuredOutputsConfig())
    own.prepare()
    own.prepare()
    assert len(made) == 1
    own.destroy()
    own.destroy()
    for ask in (
        lambda: own.compile(constraint(json=AB, backend="other")),
        lambda: own.compile(constraint(json={**S, "maxLength": 99}, backend="xgrammar")),
        lambda: own.backend("other"),
        lambda: own.backend("xgrammar"),
        own.prepare,
    ):
        with pytest.raises(GrammarError, match="the manager is closed"):
            ask()
    assert len(made) == 1


def test_compile_in_many_threads_returns_each_its_own_grammar(backend_set):
    def compile_and_check(i):
        backend = ("auto", "llguidance", "xgrammar")[i % 3]
        compiled = backend_set.compile(constraint(json={"enum": [f"text {i}", i]}, backend=backend))
        return takes(compiled, f'"text {i}"') and takes(compiled, str(i)) and not takes(compiled, f'"text {i + 1}"')

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(compile_and_check, range(96)))


def test_compile_of_a_constraint_without_a_value_parses_its_text():
    own = BackendSet(VOCABULARY, StructuredOutputsConfig())
    compiled = own.compile(Constraint(Kind.JSON, json.dumps(AB)))
    assert takes(compiled, '{"a": 1}')
    with pytest.raises(RuntimeError, match="needs the tokenizer"):
        compiled.grammar.compute_ff_tokens()


@pytest.mark.parametrize(
    "params",
    [
        {"json": {"uniqueItems": True}, "backend": "llguidance:no-fallback"},
        {"json": {"$ref": "#"}},
        {"regex": "(?=a)b", "backend": "xgrammar:no-fallback"},
        {"grammar": "start: A", "backend": "xgrammar:no-fallback"},
        {"choice": ["a"], "backend": "outlines"},
        {},
    ],
)
def test_check_params_refuses_what_compile_refuses_in_the_same_words(backend_set, params):
    params = StructuredOutputsParams(**params)
    with pytest.raises(GrammarError) as of_check:
        router.check_params(params)
    with pytest.raises(GrammarError) as of_compile:
        backend_set.compile(params.constraint())
    assert of_check.value.as_dict() == of_compile.value.as_dict()


@pytest.mark.parametrize(
    "params",
    [
        {"regex": "("},
        {"regex": "a{3,1}"},
        {"grammar": "root ::= "},
        {"grammar": "start: foo"},
        {"json": {"type": "nothing"}},
        {"json": {"type": "string", "pattern": "("}},
        {"structural_tag": {"begin": "<"}},
    ],
)
def test_check_params_that_compiles_refuses_bad_syntax_in_the_words_of_compile(backend_set, params):
    params = StructuredOutputsParams(**params)
    with pytest.raises(GrammarError) as of_check:
        router.check_params(params, compiles=True)
    with pytest.raises(GrammarError) as of_compile:
        backend_set.compile(params.constraint())
    assert of_check.value.as_dict() == of_compile.value.as_dict()
    assert router.check_params(StructuredOutputsParams(regex="[a-z]+"), compiles=True) == ()


@pytest.mark.parametrize("regex", ["[ab]*a[ab]{14}", "(?=.*a.{8}b)(?=.*c.{9}d)(?=.*e.{9}f).*"])
def test_check_params_that_compiles_stops_early_on_a_costly_pattern(regex):
    started = time.thread_time()
    assert router.check_params(StructuredOutputsParams(regex=regex), compiles=True) == ()
    assert time.thread_time() - started < 0.4  # about 0.06


def test_check_params_makes_no_backend_and_returns_what_lenient_would_weaken(monkeypatch):
    def make(backends, registered):
        raise AssertionError("no backend is needed")

    monkeypatch.setattr(BackendSet, "_make", make)
    assert router.check_params(StructuredOutputsParams(json=AB)) == ()
    assert router.check_params(StructuredOutputsParams(regex="[a-z]+")) == ()
    lenient = StructuredOutputsParams(
        json={"type": "array", "items": I, "uniqueItems": True}, backend="llguidance:no-fallback", lenient=True
    )
    assert router.check_params(lenient) == ("#/uniqueItems",)


def test_strict_formats_refuse_what_the_engine_takes_as_an_annotation():
    strict = BackendSet(VOCABULARY, StructuredOutputsConfig(formats="strict"))
    unknown = {"type": "object", "properties": {"p": {"type": "string", "format": "password"}}}
    place = "#/properties/p/format"
    for refuse in (strict.compile, strict.check):
        with pytest.raises(GrammarError, match=rf'does not enforce {place}, and formats="strict"') as refused:
            refuse(constraint(json=unknown))
        assert (refused.value.kind, refused.value.pointer) == (GrammarErrorKind.UNSUPPORTED, place)
    assert strict.compile(constraint(json=unknown, lenient=True)).annotations == (place,)
    assert strict.compile(constraint(json={"type": "string", "format": "regex"})).backend_name == "fsm"
    with pytest.raises(GrammarError, match='formats="strict"'):
        strict.compile(constraint(json={"type": "string", "format": "iri"}, backend="llguidance:no-fallback"))


def test_rule_for_formats_of_a_request_goes_before_that_of_the_config():
    unknown = {"type": "string", "format": "password"}
    for of_config, of_request, is_refused in [
        ("annotate", "strict", True),
        ("strict", "annotate", False),
        ("strict", None, True),
        ("annotate", None, False),
    ]:
        backends = BackendSet(VOCABULARY, StructuredOutputsConfig(formats=of_config))
        asked = constraint(json=unknown, formats=of_request)
        if is_refused:
            with pytest.raises(GrammarError, match='formats="strict"'):
                backends.compile(asked)
        else:
            assert backends.compile(asked).annotations == ("#/format",)


def test_unknown_rule_for_formats_and_one_that_does_not_apply_are_refused():
    with pytest.raises(GrammarError, match='formats must be "annotate" or "strict", got \'ignore\''):
        constraint(json=True, formats="ignore")
    with pytest.raises(GrammarError, match="formats apply to json only, got a regex constraint"):
        constraint(regex="a", formats="strict")


def test_config_with_an_unknown_rule_for_formats_is_refused():
    with pytest.raises(ValueError, match='formats must be "annotate" or "strict"'):
        StructuredOutputsConfig(formats="ignore")
