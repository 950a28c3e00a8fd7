"""Which backend serves a constraint, and what is said of it."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tokenizers_on_the_spot import byte_level

from structout.config import StructuredOutputsConfig
from structout.errors import GrammarError
from structout.grammar import router
from structout.grammar.llguidance.backend import LlguidanceBackend
from structout.grammar.router import BackendSet, register_backend
from structout.grammar.support import Support
from structout.grammar.vocabulary import Vocabulary
from structout.params import Constraint, StructuredOutputsParams
from structout.params import StructuredOutputOptions as Kind

VOCABULARY = Vocabulary.from_tokenizer(byte_level(), 525)
S, I = {"type": "string"}, {"type": "integer"}  # noqa: E741 - schemas of one line each
AB = {"type": "object", "properties": {"a": I, "b": I}}


@pytest.fixture(scope="module")
def backend_set():
    return BackendSet(VOCABULARY, StructuredOutputsConfig(), byte_level())


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
        ({"json": AB}, "llguidance", '{"a": 1}'),
        ({"json": True}, "llguidance", "[1]"),
        ({"json": {**S, "maxLength": 100}}, "llguidance", '"a"'),
        ({"json": {**AB, "minProperties": 2, "additionalProperties": False}}, "xgrammar", '{"a": 1, "b": 2}'),
        ({"json": {**S, "format": "json-pointer"}}, "xgrammar", '"/a"'),
        ({"json_object": True}, "llguidance", '{"x": [1]}'),
        ({"regex": "[a-z]{2,4}@x"}, "xgrammar", "abc@x"),
        ({"regex": "[a-z]{2,400}"}, "llguidance", "abc"),
        ({"regex": ".+"}, "llguidance", "abc"),
        ({"regex": "(?i)abc"}, "llguidance", "aBc"),
        ({"regex": "[a&&b]"}, "xgrammar", "&"),
        ({"choice": ["yes", "no"]}, "xgrammar", "no"),
        ({"choice": [f"option {i}" for i in range(2_000)]}, "llguidance", "option 1999"),
        ({"grammar": 'root ::= "a" | "b"'}, "xgrammar", "b"),
        ({"grammar": 'start: "a" | "b"'}, "llguidance", "b"),
        ({"structural_tag": TAG}, "xgrammar", '<a>{"a": 1}</a>'),
    ],
)
def test_auto_takes_the_fittest(backend_set, params, name, member):
    compiled = backend_set.compile(constraint(**params))
    assert compiled.backend_name == name
    assert compiled.weakened == ()
    assert takes(compiled, member)


def takes_surrogates(compiled, before, after):
    one = {text: token for token, text in enumerate(VOCABULARY.token_bytes) if len(text) == 1}
    tokens = [one[bytes([byte])] for byte in before + b"\xed\xb0\x80" + after]
    return compiled.grammar.validate_tokens(tokens) == tokens


@pytest.mark.parametrize(
    ("params", "before", "after"),
    [
        ({"json": S}, b'"', b'"'),
        ({"json_object": True}, b'["', b'"]'),
        ({"json": {**AB, "additionalProperties": S}}, b'{"c": "', b'"}'),
    ],
)
def test_json_is_utf_8(backend_set, params, before, after):
    assert not takes_surrogates(backend_set.compile(constraint(**params)), before, after)


def test_surrogates_in_free_text_are_xgrammars_known_departure(backend_set):
    """If this fails, xgrammar has learned something, and xgrammar/support.py need not mention it."""
    for params, before, after in (({"regex": '"[^"]*"'}, b'"', b'"'), ({"json_object": True}, b'["', b'"]')):
        wish = constraint(**params, backend="xgrammar:no-fallback")
        assert takes_surrogates(backend_set.compile(wish), before, after)


@pytest.mark.parametrize("name", ["llguidance", "xgrammar"])
@pytest.mark.parametrize("suffix", ["", ":no-fallback"])
def test_a_name_is_honoured_where_it_can_be(backend_set, name, suffix):
    for params in ({"json": AB}, {"json_object": True}, {"regex": "a+"}, {"choice": ["a", "b"]}):
        assert backend_set.compile(constraint(**params, backend=name + suffix)).backend_name == name


def test_a_name_is_a_wish(backend_set):
    bounded = {"const": 2**53 + 1}
    assert backend_set.compile(constraint(json=bounded, backend="llguidance")).backend_name == "xgrammar"
    assert backend_set.compile(constraint(json={"minimum": 3}, backend="xgrammar")).backend_name == "llguidance"
    assert backend_set.compile(constraint(structural_tag=TAG, backend="llguidance")).backend_name == "xgrammar"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"json": {"const": 2**53 + 1}, "backend": "llguidance:no-fallback"}, "llguidance does not enforce #/const"),
        ({"json": {"minimum": 3}, "backend": "xgrammar:no-fallback"}, "xgrammar does not enforce #/minimum"),
        ({"grammar": 'start: "a"', "backend": "xgrammar:no-fallback"}, "xgrammar takes GBNF grammars"),
        ({"grammar": 'root ::= "a"', "backend": "llguidance:no-fallback"}, "llguidance takes Lark grammars"),
        ({"json": AB, "whitespace_pattern": " ", "backend": "xgrammar:no-fallback"}, "whitespace_pattern"),
        ({"json": {**AB, "not": {"required": ["a"]}}}, "llguidance does not enforce #/not; xgrammar does not .* #/not"),
        ({"json": {"oneOf": [I, {"type": "number"}]}}, "llguidance: .*oneOf.*; xgrammar does not enforce #/oneOf"),
        ({"json": {"type": "foo"}}, "Invalid type: foo"),
        ({"regex": "("}, "invalid regex constraint"),
        (
            {"json": AB, "backend": "outlines"},
            "unknown backend 'outlines': the known ones are auto, llguidance, xgrammar",
        ),
        ({"regex": "a", "backend": "fsm"}, "'fsm' is reserved .* comes later"),
        ({"regex": "a", "backend": "fsm:no-fallback"}, "comes later"),
    ],
)
def test_what_nobody_enforces_is_an_error_that_says_why(backend_set, params, message):
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
    ],
)
@pytest.mark.parametrize("lenient", [False, True])
def test_what_never_ends_is_refused(backend_set, schema, lenient):
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
def test_recursion_that_can_end_is_taken(backend_set, schema):
    backend_set.compile(constraint(json=schema))


@pytest.mark.parametrize(
    ("schema", "name", "weakened"),
    [
        (AB, "llguidance", ()),
        ({**AB, "not": {"required": ["a"]}}, "llguidance", ("#/not",)),
        ({"type": "object", "additionalProperties": I, "minProperties": 2}, "llguidance", ("#/minProperties",)),
        ({**AB, "minProperties": 2, "additionalProperties": False}, "xgrammar", ()),
        ({"oneOf": [I, {"type": "number"}]}, "llguidance", ("oneOf",)),
        (
            {"properties": {"a": {"oneOf": [I, {"type": "number"}]}, "b": {"not": S}, "c": {"not": S, "if": I}}},
            "llguidance",
            ("#/properties/b/not", "#/properties/c/not", "#/properties/c/if", "oneOf"),
        ),
        ({**S, "format": "zip"}, "llguidance", ("#/format",)),
    ],
)
def test_lenient_takes_the_backend_that_loses_least(backend_set, schema, name, weakened):
    compiled = backend_set.compile(constraint(json=schema, lenient=True))
    assert compiled.backend_name == name
    assert len(compiled.weakened) == len(weakened)
    assert all(expected in got for expected, got in zip(weakened, compiled.weakened, strict=True))


def test_lenient_does_not_excuse_what_is_malformed(backend_set):
    for params in ({"json": {"type": "foo"}}, {"regex": "("}, {"json": False}):
        with pytest.raises(GrammarError):
            backend_set.compile(constraint(**params, lenient=True))


def test_whitespace_pattern_is_honoured(backend_set):
    compiled = backend_set.compile(constraint(json=AB, whitespace_pattern=" ?", backend="xgrammar"))
    assert compiled.backend_name == "llguidance"
    assert takes(compiled, '{"a": 1}')
    assert not takes(compiled, '{"a":  1}')


@pytest.mark.parametrize("name", ["llguidance", "xgrammar"])
def test_fixed_whitespace_reaches_each_backend(name):
    compact = BackendSet(VOCABULARY, StructuredOutputsConfig(any_whitespace=False))
    for params in ({"json": AB}, {"json_object": True}):
        compiled = compact.compile(constraint(**params, backend=name + ":no-fallback"))
        assert takes(compiled, '{"a": 1, "b": 2}')
        assert not takes(compiled, '{"a":1,"b":2}')


def test_stop_tokens_of_a_request_reach_the_grammar(backend_set):
    for name in ("llguidance", "xgrammar"):
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
def test_a_keyword_of_the_wrong_type_is_an_error_that_says_where(backend_set, schema, message, lenient):
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
def test_data_and_older_drafts_have_their_types(backend_set, schema):
    backend_set.compile(constraint(json=schema))


# -- the set itself ---------------------------------------------------------------------------------------------------


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(router, "_registered", dict(router._registered))


def counting_factory(made, vocabulary_seen=None):
    def make(vocabulary, config, canonical_tokenizer):
        made.append(threading.get_ident())
        return LlguidanceBackend(vocabulary)

    return make


@pytest.mark.usefixtures("registry")
def test_a_registered_backend_serves_those_who_name_it():
    made = []
    register_backend("mine", counting_factory(made))
    own = BackendSet(VOCABULARY, StructuredOutputsConfig())
    assert own.compile(constraint(json=AB)).backend_name == "llguidance"
    assert not made
    assert own.compile(constraint(json=AB, backend="mine")).backend_name == "mine"
    assert own.compile(constraint(json=AB, backend="mine:no-fallback")).backend_name == "mine"
    assert len(made) == 1
    with pytest.raises(GrammarError, match="mine does not enforce whitespace_pattern"):
        own.compile(constraint(json=AB, whitespace_pattern=" ", backend="mine:no-fallback"))


@pytest.mark.usefixtures("registry")
def test_a_registered_backend_may_say_what_it_is_fit_for():
    register_backend("mine", counting_factory([]), lambda constraint: Support(weakened=("everything",)))
    own = BackendSet(VOCABULARY, StructuredOutputsConfig())
    assert own.compile(constraint(json=AB, backend="mine")).backend_name == "llguidance"
    with pytest.raises(GrammarError, match="mine does not enforce everything"):
        own.compile(constraint(json=AB, backend="mine:no-fallback"))


@pytest.mark.parametrize("name", ["auto", "fsm", "", "a b", "x:no-fallback"])
def test_reserved_and_unusable_names(name):
    with pytest.raises(ValueError, match="cannot name a backend"):
        register_backend(name, counting_factory([]))


@pytest.mark.usefixtures("registry")
def test_a_backend_is_made_once_however_many_ask():
    made = []
    register_backend("mine", counting_factory(made))
    own = BackendSet(VOCABULARY, StructuredOutputsConfig())
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda _: own.compile(constraint(json=AB, backend="mine")), range(64)))
    assert len(made) == 1
    assert {compiled.backend_name for compiled in results} == {"mine"}


@pytest.mark.usefixtures("registry")
def test_prepare_and_destroy():
    made = []
    register_backend("mine", counting_factory(made))
    own = BackendSet(VOCABULARY, StructuredOutputsConfig())
    own.prepare()
    own.prepare()
    assert len(made) == 1
    own.destroy()
    own.destroy()
    for ask in (
        lambda: own.compile(constraint(json=AB, backend="mine")),
        lambda: own.compile(constraint(json={**S, "maxLength": 99}, backend="xgrammar")),
        lambda: own.backend("mine"),
        lambda: own.backend("xgrammar"),
        own.prepare,
    ):
        with pytest.raises(GrammarError, match="the manager is closed"):
            ask()
    assert len(made) == 1


def test_each_of_many_threads_gets_its_own_language(backend_set):
    def compile_and_check(i):
        wish = ("auto", "llguidance", "xgrammar")[i % 3]
        compiled = backend_set.compile(constraint(json={"enum": [f"text {i}", i]}, backend=wish))
        return takes(compiled, f'"text {i}"') and takes(compiled, str(i)) and not takes(compiled, f'"text {i + 1}"')

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(compile_and_check, range(96)))


def test_constraints_are_compiled_from_their_text():
    """As caches hand them over, without the params they came from."""
    own = BackendSet(VOCABULARY, StructuredOutputsConfig())
    compiled = own.compile(Constraint(Kind.JSON, json.dumps(AB)))
    assert takes(compiled, '{"a": 1}')
    with pytest.raises(RuntimeError, match="needs the tokenizer"):
        compiled.grammar.compute_ff_tokens()
