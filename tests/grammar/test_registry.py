"""Which backend serves a constraint, and what is reported about it."""

import dataclasses
import json
import pathlib
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pydantic
import pytest

from structout.constraints.config import StructuredOutputsConfig
from structout.constraints.params import Constraint, StructuredOutputOptions as Kind, StructuredOutputsParams
from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar import registry
from structout.grammar.optional.xgrammar import XgrammarBackend
from structout.grammar.registry import BackendSet, check_params, register_backend
from structout.grammar.vocabulary import Vocabulary
from support.tokenizers_on_the_spot import byte_level

VOCABULARY = Vocabulary.from_tokenizer(byte_level(), 525)
S, I = {"type": "string"}, {"type": "integer"}  # noqa: E741 - schemas of one line each
AB = {"type": "object", "properties": {"a": I, "b": I}}
ANCHORED = {"$ref": "#n", "$defs": {"x": {"$anchor": "n", **I}}}
EMBEDDED = {  # $defs/n of the embedded schema, not of the document
    "$id": "http://example.invalid/list.json",
    "items": {"$ref": "n.json"},
    "$defs": {"x": {"$id": "n.json", "$ref": "#/$defs/n", "$defs": {"n": I}}, "n": False},
}
TAG = {
    "type": "structural_tag",
    "format": {"type": "tag", "begin": "<a>", "content": {"type": "json_schema", "json_schema": AB}, "end": "</a>"},
}
LOOKBEHIND = {**S, "pattern": "(?<=a)b"}


@pytest.fixture(scope="module")
def backend_set():
    return BackendSet(VOCABULARY, StructuredOutputsConfig(compile_timeout=60), byte_level())


def constraint(**params):
    return StructuredOutputsParams(**params).constraint()


def takes(compiled, text):
    tokens = [*VOCABULARY.spell(text), VOCABULARY.stop_token_ids[0]]
    return len(compiled.grammar.validate_tokens(tokens)) == len(tokens)


@pytest.mark.parametrize(
    ("params", "member"),
    [
        ({"json": AB}, '{"a": 1, "b": 1}'),
        ({"json": True}, "[1]"),
        ({"json": {**S, "not": {"pattern": "x"}, "maxLength": 100}}, '"a"'),
        ({"json": {**S, "format": "json-pointer"}}, '"/a"'),
        ({"json": ANCHORED}, "12"),
        ({"json": EMBEDDED}, "[12]"),
        ({"json": AB, "whitespace_pattern": ""}, '{"a":1}'),
        ({"json_object": True}, '{"x": [1]}'),
        ({"regex": "[a-z]{2,400}@x"}, "abc@x"),
        ({"regex": r"(?=.*\d)\w+"}, "ab1"),
        ({"choice": [f"option {i}" for i in range(2_000)]}, "option 1999"),
        ({"grammar": 'root ::= "a" root "b" | "c"'}, "aacbb"),
        ({"grammar": 'start: "a" start "b" | "c"'}, "aacbb"),
        ({"structural_tag": TAG}, '<a>{"a": 1}</a>'),
    ],
)
def test_compile_with_auto_uses_the_own_engine(backend_set, params, member):
    compiled = backend_set.compile(constraint(**params))
    assert compiled.backend_name == "native"
    assert compiled.weakened == ()
    assert takes(compiled, member)


@pytest.mark.parametrize("backend", ["native", "xgrammar"])
def test_compile_with_a_name_uses_that_backend(backend_set, backend):
    for params in ({"json": AB}, {"json_object": True}, {"regex": "a+"}, {"choice": ["a", "b"]}):
        assert backend_set.compile(constraint(**params, backend=backend)).backend_name == backend


def test_xgrammar_takes_no_nul(backend_set):
    with pytest.raises(GrammarError, match="takes no NUL character in a schema"):
        backend_set.compile(constraint(json={"const": "\0"}, backend="xgrammar"))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"grammar": 'start: "a"'}, "xgrammar refuses it: "),
        ({"json": AB, "whitespace_pattern": " "}, "takes no whitespace_pattern"),
    ],
)
def test_compile_of_what_the_named_backend_refuses_raises_its_reason(backend_set, params, message):
    assert backend_set.compile(constraint(**params)).backend_name == "native"
    with pytest.raises(GrammarError, match=message):
        backend_set.compile(constraint(**params, backend="xgrammar"))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"json": {"type": "foo"}}, "^#/type: unknown type foo"),
        ({"json": {"items": LOOKBEHIND}}, "^#/items/pattern: lookbehind is not supported"),
        ({"regex": "("}, "a regular expression does not parse"),
        ({"regex": "a(?<=a)b"}, r"lookbehind is not supported \(at character 4\)$"),
        ({"json": AB, "backend": "outlines"}, "unknown backend 'outlines': the known ones are auto, native, xgrammar"),
    ],
)
def test_compile_of_what_the_own_engine_refuses_raises_with_the_place(backend_set, params, message):
    with pytest.raises(GrammarError, match=message):
        backend_set.compile(constraint(**params))


@pytest.mark.parametrize(
    ("schema", "cause"),
    [
        (False, "the schema is false"),
        ({"type": "object", "required": ["a"], "properties": {"a": False}}, "#/properties/a is false"),
        ({"allOf": [S, False]}, "#/allOf/1 is false"),
        ({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}, "every instance would have to"),
        ({"type": "object", "required": ["a"], "additionalProperties": {"$ref": "#"}}, "contain another instance"),
        ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "every instance would have to"),
        ({"enum": ["a"], "type": "integer"}, "no value has all the types"),
        ({"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 3}, "only 2 values"),
        ({**S, "pattern": "^a", "not": {"pattern": "^[a-z]"}}, "no value satisfies the schema"),
    ],
)
@pytest.mark.parametrize("lenient", [False, True])
def test_compile_of_a_schema_without_finite_instances_raises(backend_set, schema, cause, lenient):
    with pytest.raises(GrammarError, match=f"allows no text at all.*{cause}") as refused:
        backend_set.compile(constraint(json=schema, lenient=lenient))
    assert refused.value.kind is GrammarErrorKind.IMPOSSIBLE


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"type": "array", "minItems": 1, "prefixItems": [{"$ref": "#"}]}]},
        {"allOf": [S, {"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    ],
)
def test_compile_of_a_schema_that_refers_to_itself_for_the_same_value_raises(backend_set, schema):
    with pytest.raises(GrammarError, match="the schema refers to itself for the same value") as refused:
        backend_set.compile(constraint(json=schema))
    assert refused.value.kind is GrammarErrorKind.MALFORMED


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "object", "required": ["a"], "properties": {"a": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}},
        {"type": ["array", "null"], "minItems": 1, "items": {"$ref": "#"}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"enum": [1]}}},
    ],
)
def test_compile_of_recursion_that_can_end_succeeds(backend_set, schema):
    backend_set.compile(constraint(json=schema))


# -- what lenient leaves out -----------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "weakened", "member", "other"),
    [
        (LOOKBEHIND, ("#/pattern",), '"x"', "1"),
        ({"items": {"not": LOOKBEHIND}, "type": "array"}, ("#/items/not",), '["b"]', "{}"),
        ({"properties": {"not": LOOKBEHIND}, "required": ["not"]}, ("#/properties/not/pattern",), '{"not": "x"}', "{}"),
        (
            {"type": "object", "patternProperties": {"(?<=a)b": I}, "additionalProperties": False, "maxProperties": 1},
            ("#/patternProperties", "#/additionalProperties"),
            '{"x": "y"}',
            '{"x": 1, "y": 2}',
        ),
        ({"anyOf": [LOOKBEHIND, I], "oneOf": [LOOKBEHIND, S]}, ("#/anyOf/0/pattern", "#/oneOf"), '"x"', "true"),
        ({"$ref": "other.json", "type": "string"}, ("#/$ref",), '"x"', "1"),
    ],
)
def test_compile_with_lenient_leaves_out_what_is_not_supported_and_lists_it(
    backend_set, schema, weakened, member, other
):
    with pytest.raises(GrammarError) as refused:
        backend_set.compile(constraint(json=schema))
    assert refused.value.kind is GrammarErrorKind.UNSUPPORTED
    compiled = backend_set.compile(constraint(json=schema, lenient=True))
    assert sorted(compiled.weakened) == sorted(weakened)
    assert takes(compiled, member)
    assert not takes(compiled, other)
    assert sorted(check_params(StructuredOutputsParams(json=schema, lenient=True))) == sorted(weakened)


def test_compile_with_lenient_still_refuses_malformed_constraints(backend_set):
    for params in ({"json": {"type": "foo"}}, {"regex": "("}, {"json": False}):
        with pytest.raises(GrammarError):
            backend_set.compile(constraint(**params, lenient=True))


# -- annotations -----------------------------------------------------------------------


class Upload(pydantic.BaseModel):
    path: pathlib.Path
    password: pydantic.SecretStr
    data: bytes
    network: pydantic.IPvAnyNetwork


def test_compile_with_unknown_formats_reports_annotations(backend_set):
    compiled = backend_set.compile(constraint(json=Upload))
    assert compiled.weakened == ()
    assert compiled.annotations == tuple(
        f"#/properties/{name}/format" for name in ("path", "password", "data", "network")
    )
    assert takes(compiled, '{"path": "x", "password": "y", "data": "z", "network": "n"}')
    assert backend_set.compile(constraint(json={**S, "format": "date"})).annotations == ()


def test_strict_formats_refuse_what_the_engine_takes_as_an_annotation():
    strict = BackendSet(VOCABULARY, StructuredOutputsConfig(formats="strict"))
    unknown = {"type": "object", "properties": {"p": {"type": "string", "format": "password"}}}
    place = "#/properties/p/format"
    for refuse in (strict.compile, strict.check):
        with pytest.raises(GrammarError, match=rf'does not enforce {place}, and formats="strict"') as refused:
            refuse(constraint(json=unknown))
        assert (refused.value.kind, refused.value.pointer) == (GrammarErrorKind.UNSUPPORTED, place)
    assert strict.compile(constraint(json=unknown, lenient=True)).annotations == (place,)
    assert strict.compile(constraint(json={"type": "string", "format": "regex"})).backend_name == "native"


def test_strict_formats_are_not_expected_of_another_engine():
    strict = BackendSet(VOCABULARY, StructuredOutputsConfig(formats="strict"))
    dated = {"type": "string", "format": "date"}
    with pytest.raises(GrammarError, match='formats="strict"'):
        strict.compile(constraint(json=dated, backend="xgrammar"))


def test_config_with_an_unknown_rule_for_formats_is_refused():
    with pytest.raises(ValueError, match='formats must be "annotate" or "strict"'):
        StructuredOutputsConfig(formats="ignore")


# -- malformed schemas -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"enum": 10**30}, "#/enum"),
        ({"if": True, "then": {"format": [[]]}}, "#/then/format"),
        ({"items": None}, "#/items"),
        ({"properties": {"a/b": {"type": 3}}}, "#/properties/a~1b/type"),
        ({"properties": [{}]}, "#/properties"),
        ({"properties": {"a": 1}}, "#/properties/a"),
        ({"anyOf": {"type": "string"}}, "#/anyOf"),
        ({"allOf": ["string"]}, "#/allOf/0"),
        ({"items": [1]}, "#/items/0"),
        ({"required": [["a"]]}, "#/required"),
        ({"dependentRequired": {"a": "b"}}, "#/dependentRequired/a"),
        ({"dependentRequired": {"a": ["b", 1]}}, "#/dependentRequired/a/1"),
        ({"dependencies": {"a": 1}}, "#/dependencies/a"),
        ({"minLength": True}, "#/minLength"),
        ({"type": ["string", None]}, "#/type"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"pattern": 1}}}, "#/$defs/a/pattern"),
    ],
)
@pytest.mark.parametrize("lenient", [False, True])
def test_compile_with_a_keyword_of_the_wrong_type_raises_with_its_pointer(backend_set, schema, pointer, lenient):
    with pytest.raises(GrammarError, match=rf"^{re.escape(pointer)}\b") as refused:
        backend_set.compile(constraint(json=schema, lenient=lenient))
    assert refused.value.kind is GrammarErrorKind.MALFORMED


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
def other_backends(monkeypatch):
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))


def counting_factory(made):
    def make(vocabulary, config, canonical_tokenizer):
        made.append(threading.get_ident())
        return XgrammarBackend(vocabulary)

    return make


@pytest.mark.usefixtures("other_backends")
def test_registered_backend_serves_requests_that_name_it():
    made = []
    register_backend("other", counting_factory(made))
    own = BackendSet(VOCABULARY, StructuredOutputsConfig())
    assert own.compile(constraint(json=AB)).backend_name == "native"
    assert not made
    assert own.compile(constraint(json=AB, backend="other")).backend_name == "other"
    assert len(made) == 1
    with pytest.raises(GrammarError, match="takes no whitespace_pattern"):
        own.compile(constraint(json=AB, whitespace_pattern=" ", backend="other"))


@pytest.mark.parametrize("name", ["auto", "native", "", "a b", "x:y"])
def test_register_backend_with_a_bad_name_raises(name):
    with pytest.raises(ValueError, match="a backend needs a name"):
        register_backend(name, counting_factory([]))


def test_optional_backend_without_its_package_is_refused_with_the_way_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "structout.grammar.optional.xgrammar", None)
    own = BackendSet(VOCABULARY, StructuredOutputsConfig())
    with pytest.raises(GrammarError, match=r"pip install 'structout\[xgrammar\]'"):
        own.compile(constraint(json=AB, backend="xgrammar"))


@pytest.mark.usefixtures("other_backends")
def test_backend_is_made_once_by_many_threads():
    made = []
    register_backend("other", counting_factory(made))
    own = BackendSet(VOCABULARY, StructuredOutputsConfig())
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda _: own.compile(constraint(json=AB, backend="other")), range(64)))
    assert len(made) == 1
    assert {compiled.backend_name for compiled in results} == {"other"}


def test_destroy_closes_all_backends():
    own = BackendSet(VOCABULARY, StructuredOutputsConfig())
    own.prepare()
    own.destroy()
    own.destroy()
    for ask in (
        lambda: own.compile(constraint(json=AB)),
        lambda: own.compile(constraint(json=AB, backend="xgrammar")),
        lambda: own.backend("xgrammar"),
        own.prepare,
    ):
        with pytest.raises(GrammarError, match="the manager is closed"):
            ask()


def test_compile_in_many_threads_returns_each_its_own_grammar(backend_set):
    def compile_and_check(i):
        backend = ("auto", "xgrammar")[i % 2]
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


# -- checks without a tokenizer --------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [
        {"json": {"$ref": "#"}},
        {"json": {"type": "nothing"}},
        {"json": {"type": "string", "pattern": "("}},
        {"regex": "("},
        {"regex": "a{3,1}"},
        {"regex": "(?<=a)b"},
        {"grammar": "root ::= "},
        {"grammar": "start: foo"},
        {"structural_tag": {"begin": "<"}},
        {"choice": ["a"], "backend": "outlines"},
        {},
    ],
)
def test_check_params_refuses_what_compile_refuses_in_the_same_words(backend_set, params):
    params = StructuredOutputsParams(**params)
    with pytest.raises(GrammarError) as of_check:
        check_params(params)
    with pytest.raises(GrammarError) as of_compile:
        backend_set.compile(params.constraint())
    assert of_check.value.as_dict() == of_compile.value.as_dict()


@pytest.mark.parametrize("regex", ["[ab]*a[ab]{14}", "(?=.*a.{8}b)(?=.*c.{9}d)(?=.*e.{9}f).*"])
def test_check_params_stops_early_on_a_costly_pattern(regex):
    started = time.thread_time()
    assert check_params(StructuredOutputsParams(regex=regex)) == ()
    assert time.thread_time() - started < 0.4  # about 0.06


def test_check_params_does_not_make_a_backend_that_is_named():
    assert check_params(StructuredOutputsParams(json={"type": "nothing"}, backend="xgrammar")) == ()


def test_check_params_refuses_a_limit_below_the_shortest_text():
    tokenizer = byte_level()
    params = StructuredOutputsParams(choice=["order" * 5, "order" * 4])
    num_needed = 1 + len(tokenizer.encode("order" * 4))
    assert num_needed < 20  # fewer tokens than bytes
    assert check_params(params, tokenizer=tokenizer, max_tokens=num_needed) == ()
    with pytest.raises(GrammarError, match=f"at least {num_needed} tokens, max_tokens is {num_needed - 1}") as caught:
        check_params(params, tokenizer=tokenizer, max_tokens=num_needed - 1)
    assert (caught.value.kind, caught.value.num_needed) == (GrammarErrorKind.LIMIT, num_needed)
    for other in ({"fit": "off"}, {"backend": "xgrammar"}):
        assert check_params(dataclasses.replace(params, **other), tokenizer=tokenizer, max_tokens=1) == ()


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
    with pytest.raises(GrammarError, match="formats apply to json, tags and tools only, got a regex constraint"):
        constraint(regex="a", formats="strict")


QWEN_CALL = {
    "type": "tag",
    "begin": "<a>",
    "content": {"type": "json_schema", "json_schema": {"type": "object", "properties": {}}, "style": "qwen_xml"},
    "end": "</a>",
}
EXCLUDING = {"type": "json_schema", "json_schema": AB, "excludes": ["</a>"]}
OBJECTS = [
    ({"json": AB}, '{"a": 1, "b": 1}', '{"c": 1}'),
    ({"structural_tag": TAG}, '<a>{"a": 1, "b": 1}</a>', '<a>{"c": 1}</a>'),
    ({"structural_tag": {"format": EXCLUDING}}, '{"a": 1}', '{"c": 1}'),
    ({"structural_tag": {"format": QWEN_CALL}}, "<a></a>", "<a><parameter=c>1</parameter></a>"),
    ({"grammar": f"start: %json {json.dumps(AB)}"}, '{"a": 1, "b": 1}', '{"c": 1}'),
    (
        {"tools": [{"name": "f", "parameters": AB}], "tool_choice": "f"},
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {"c": 1}}\n</tool_call>',
    ),
]


@pytest.mark.parametrize(("params", "text", "open_only"), OBJECTS)
def test_additional_properties_are_those_of_the_request_or_else_of_the_config(params, text, open_only):
    for of_config, of_request, is_closed in [
        ("schema", "closed", True),
        ("closed", "schema", False),
        ("closed", None, True),
        ("schema", None, False),
    ]:
        backends = BackendSet(VOCABULARY, StructuredOutputsConfig(additional_properties=of_config))
        compiled = backends.compile(constraint(**params, additional_properties=of_request))
        assert takes(compiled, text)
        assert takes(compiled, open_only) is not is_closed


def test_additional_properties_are_checked():
    with pytest.raises(GrammarError, match='additional_properties must be "schema" or "closed", got \'open\''):
        constraint(json=True, additional_properties="open")
    with pytest.raises(GrammarError, match="additional_properties applies to json, grammars, tags and tools only"):
        constraint(regex="a", additional_properties="closed")
    with pytest.raises(ValueError, match='additional_properties must be "schema" or "closed", got None'):
        StructuredOutputsConfig(additional_properties=None)


def test_additional_properties_are_part_of_what_caches_know_a_constraint_by():
    backends = BackendSet(VOCABULARY, StructuredOutputsConfig())
    grammar = f"start: %json {json.dumps(AB)}"
    for additional_properties in ("schema", "closed"):
        asked = constraint(grammar=grammar, additional_properties=additional_properties)
        compiled = backends.compile(asked)
        assert takes(compiled, '{"c": 1}') is (additional_properties == "schema")
    two_keys = {"type": "object", "properties": {"a": {"type": "null"}}, "minProperties": 2}
    assert check_params(StructuredOutputsParams(json=two_keys, additional_properties="closed")) == ()
