"""Tools: from models, functions and objects to tags, and calls read back; what parsers
of vLLM and SGLang would read otherwise is not generated."""

import json
import random
import re

import pytest
from pydantic import BaseModel, ValidationError

from structout import StructuredOutputsParams
from structout.constraints.tools.call_formats import TOOL_FORMATS
from structout.constraints.tools.derivation import ID
from structout.constraints.tools.styles import STYLES
from structout.errors import GrammarError
from structout.grammar.native.backend import NativeBackend
from structout.grammar.vocabulary import Vocabulary
from structout.integrations.client_tags import as_parsers_read, current_structural_tag
from support.mask_walks import MaskWalker

_TOKENS = (*(bytes([byte]) for byte in range(256)), "｜DSML｜".encode(), b"<|", b"</", b"parameter", b"")
VOCABULARY = Vocabulary(_TOKENS, stop_token_ids=(len(_TOKENS) - 1,))


class GetWeather(BaseModel, extra="forbid"):
    """The weather at a place."""

    location: str
    days: int = 1
    note: str | None = None


def add(a: int, b: float, tag: str = "x") -> float:
    """Add two numbers."""
    return a + b


OBJECT = {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": None}}
TOOLS = [GetWeather, add, OBJECT]


@pytest.fixture(scope="module")
def backend():
    return NativeBackend(VOCABULARY)


def takes(backend, params, text):
    """Whether a text is a whole one of the params."""
    grammar = backend.compile(params.constraint()).grammar
    return grammar.accept_tokens("", [*text.encode(), VOCABULARY.stop_token_ids[0]])


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
@pytest.mark.parametrize("choice", ["required", "add", "auto"])
def test_calls_that_are_generated_are_read_back_and_run(backend, tool_format, choice):
    params = StructuredOutputsParams(tools=TOOLS, tool_choice=choice, tool_format=tool_format)
    form = TOOL_FORMATS[tool_format]
    grammar = backend.compile(params.constraint()).grammar
    begun = form.section[0] if form.section else form.begin("add").partition(ID)[0] if choice == "auto" else ""
    tokens = list(begun.encode())
    assert grammar.accept_tokens("", tokens)
    style = None if form.style == "json" else STYLES[form.style]
    closing = [] if style is None else [text.encode() for text in (style.closing("a"), *(style.quotes or ()))]
    hints = [form.end.encode(), *closing, *([form.section[1].encode()] if form.section else []), b'"', b"}"]
    walker, rng, num_calls = MaskWalker(VOCABULARY), random.Random(f"{tool_format} {choice}"), 0
    for _ in range(6):
        text = walker.draw(grammar, "uniform", rng, 20, hints)
        calls = [] if text is None else params.parse_tool_calls(begun + text.decode())
        for call in calls:
            if call.name == "add":
                assert call.run() == pytest.approx(call.arguments["a"] + call.arguments["b"])
            elif call.name == "GetWeather":
                assert call.value.location == call.arguments["location"]
            else:
                assert call.arguments == {}
        num_calls += len(calls)
        assert {call.name for call in calls} <= ({"add"} if choice == "add" else {"add", "GetWeather", "now"})
    assert num_calls > 0


def test_choices_bound_the_calls_and_the_text_around_them(backend):
    def call(name, arguments):
        return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'

    sum_of, time_of = call("add", {"a": 1, "b": 2.5}), call("now", {})
    expected = {
        ("auto", True): {"": True, "a": True, f"a{sum_of}b{time_of}": True, sum_of: True, "<tool_call>": False},
        ("auto", False): {"": True, f"a{sum_of}": True, f"{sum_of}b": False, sum_of + time_of: False},
        ("required", True): {"": False, sum_of + time_of: True, f"a{sum_of}": False, time_of: True},
        ("required", False): {sum_of: True, sum_of + time_of: False},
        ("add", True): {sum_of: True, time_of: False, sum_of + sum_of: False, "": False},
    }
    for (choice, is_parallel), texts in expected.items():
        params = StructuredOutputsParams(tools=TOOLS, tool_choice=choice, parallel_tool_calls=is_parallel)
        assert {text: takes(backend, params, text) for text in texts} == texts, (choice, is_parallel)


def test_arguments_of_other_types_are_refused_when_they_are_read():
    params = StructuredOutputsParams(tools=TOOLS)
    text = '<tool_call>\n{"name": "GetWeather", "arguments": {"location": 3}}\n</tool_call>'
    with pytest.raises(ValidationError):
        _ = params.parse_tool_calls(text)[0].value
    with pytest.raises(ValueError, match="is not closed by"):
        params.parse_tool_calls(text.removesuffix("</tool_call>"))
    with pytest.raises(TypeError, match="the tool GetWeather is no function"):
        params.parse_tool_calls(text)[0].run()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tools": []}, "tools must be a list that is not empty"),
        ({"tools": [3]}, "tool 1: expected a class, a function or an object"),
        ({"tools": [add, add]}, "two tools have the name add"),
        ({"tools": [lambda x: x]}, "tool 1: the parameter x of <lambda> needs a type"),
        (
            {"tools": [{"type": "web_search"}]},
            'tool 1: expected the type "function" or "custom", got \'web_search\'; give a builtin tool as a function',
        ),
        ({"tools": [add], "tool_choice": "sub"}, 'tool_choice must be "auto", "required", "none", the name'),
        ({"tools": [add], "tool_format": "xml"}, "tool_format must be one of hermes"),
        ({"tools": [add], "regex": "a"}, "expected exactly one constraint, got regex, tools"),
    ],
)
def test_what_is_wrong_with_tools_is_named(given, message):
    with pytest.raises(GrammarError, match=message):
        StructuredOutputsParams(**given).constraint()


NAMES = ["a.b", "get-weather", "wetter_größe", "天気.今日-1", "1x", "f:1", 'a"b', "a(b", "x" * 300]
EMPTY = [{}, None, {"type": "object"}, {"type": "object", "properties": {}}]


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_tools_without_arguments_and_with_any_name_are_called(backend, tool_format):
    form = TOOL_FORMATS[tool_format]
    section = form.section or ("", "")
    for number, name in enumerate(NAMES):
        parameters = EMPTY[number % len(EMPTY)]
        tools = [{"name": name, "parameters": parameters}, {"name": f"{name}2", "parameters": {}}]
        params = StructuredOutputsParams(tools=tools, tool_choice="required", tool_format=tool_format)
        text = form.write(name, {}).join(section)
        assert takes(backend, params, text), text
        (call,) = params.parse_tool_calls(text)
        assert (call.name, call.arguments) == (name, {})
        assert not takes(backend, params, form.write(f"{name}3", {}).join(section))


@pytest.mark.parametrize("tool_format", ["hermes", "qwen_3_coder"])
def test_a_bad_schema_in_a_tool_is_named_with_its_place(backend, tool_format):
    bad = {"type": "object", "properties": {"age": {"type": "string", "pattern": "(?<=a)b"}}}
    tools = [OBJECT, {"name": "find", "parameters": bad}]
    params = StructuredOutputsParams(tools=tools, tool_format=tool_format)
    with pytest.raises(GrammarError, match="lookbehind is not supported") as caught:
        backend.compile(params.constraint())
    assert caught.value.pointer == "#/format/tags/1/content/json_schema/properties/age/pattern"


# -- what made calls fail in vLLM ------------------------------------------------------


def hermes(schema):
    tool = {"name": "f", "parameters": schema}
    return StructuredOutputsParams(tools=[tool], tool_choice="required"), (
        lambda arguments: f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
    )


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"properties": {"d": {"type": "string", "format": "date"}}}, ['{"d": "2024-02-29"}'], ['{"d": "2023-02-29"}']),
        ({"properties": {"d": {"type": "string", "format": "ipv4"}}}, ['{"d": "1.2.3.4"}'], ['{"d": "1.2.3.256"}']),
        (
            {"properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
            ["{}", '{"a": 1, "b": 2}'],
            ['{"a": 1}'],
        ),
        (
            {"properties": {"a": {}, "b": {}}, "if": {"required": ["a"]}, "then": {"required": ["b"]}},
            ["{}", '{"a": 1, "b": 2}'],
            ['{"a": 1}'],
        ),
        (
            {"properties": {"s": {"type": "string", "maxLength": 2}}},
            ['{"s": "\\n\\""}', '{"s": "é"}'],
            ['{"s": "abc"}', '{"s": "\n"}'],
        ),
        ({"properties": {"a": {"type": "integer"}}}, ['{"a": 1}'], ['{"\\u0061": 1}', '{"a": "x"}']),
        ({"properties": {"a": {}}}, ['{"a": 1}'], ['{"a":    1}']),
    ],
)
def test_arguments_hold_what_their_schema_says(backend, schema, valid, invalid):
    params, written = hermes({"type": "object", "additionalProperties": False, **schema})
    for arguments in valid:
        assert takes(backend, params, written(arguments)), arguments
    for arguments in invalid:
        assert not takes(backend, params, written(arguments)), arguments


def as_read(tag):
    return StructuredOutputsParams(structural_tag=as_parsers_read(current_structural_tag(json.dumps(tag))))


def test_an_end_marker_inside_a_string_is_generated_only_if_no_parser_takes_it_for_one(backend):
    params, written = hermes({"type": "object", "properties": {"s": {"type": "string"}, "o": {}}})
    for arguments in ('{"s": "</tool_call>"}', '{"o": {"<tool_call>": ["</tool_call>"]}}'):
        text = written(arguments)
        assert takes(backend, params, text)
        assert params.parse_tool_calls(text)[0].arguments == json.loads(arguments)
        assert not takes(backend, as_read(params.constraint().value), text)
    assert takes(backend, as_read(params.constraint().value), written('{"s": "</tool_cal>"}'))


def test_a_marker_that_a_parser_looks_for_does_not_stand_in_free_text(backend):
    """vLLM's parser of qwen_3_coder reads a call from "<function=" on."""
    schema = {"type": "object", "properties": {"s": {"type": "string"}}}
    begin, end = "<tool_call>\n<function=f>\n", "\n</function>\n</tool_call>"
    content = {"type": "json_schema", "json_schema": schema, "style": "qwen_xml"}
    tags = [{"type": "tag", "begin": begin, "content": content, "end": end}]
    tag = {"format": {"type": "triggered_tags", "triggers": ["<tool_call>\n<function="], "tags": tags}}
    call = f"{begin}<parameter=s>\nx\n</parameter>{end}"
    params = as_read(tag)
    assert takes(backend, params, f"a < b {call} <tool {call}")
    for text in ("<function=f>", "</tool_call>", "<tool_call> ", call.replace("x", "<function=")):
        assert not takes(backend, params, text), text
        assert takes(backend, StructuredOutputsParams(structural_tag=tag), text) is (
            "x" not in text and "=f>\n" not in text
        )


def test_the_older_spelling_reaches_the_engine(backend):
    structures = [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}, {"begin": "<g>", "end": "</g>"}]
    params = as_read({"structures": structures, "triggers": ["<f", "<g"]})
    assert takes(backend, params, 'a<f>12</f>b<g>"x"</g>')
    assert not takes(backend, params, "<f>1.5</f>")


def test_tool_objects_take_classes_for_their_parameters_and_calls_are_read_into_them():
    tool = {"type": "function", "function": {"name": "weather", "parameters": GetWeather}}
    params = StructuredOutputsParams(tools=[tool])
    text = '<tool_call>\n{"name": "weather", "arguments": {"location": "Rome"}}\n</tool_call>'
    (call,) = params.parse(text)
    assert call.value == GetWeather(location="Rome")
    assert call.tool.as_dict["function"]["parameters"] == GetWeather.model_json_schema()


def test_tags_take_classes_for_their_schemas_at_any_depth():
    content = {"type": "sequence", "elements": [{"type": "json_schema", "json_schema": GetWeather}]}
    tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "a", "content": content, "end": "b"}}
    constraint = StructuredOutputsParams(structural_tag=tag).constraint()
    assert [schema.schema for schema in constraint.tag_schemas] == [GetWeather.model_json_schema()]
    content["elements"][0]["json_schema"] = type("NoSchema", (), {})
    with pytest.raises(GrammarError, match="the type NoSchema has no JSON schema"):
        StructuredOutputsParams(structural_tag=tag).constraint()


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"properties": {"a": {"type": "integer"}}},
        {"type": ["object", "null", "array"]},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$ref": "#/$defs/any",
            "$defs": {"any": {"title": "Any"}},
        },
        {"enum": [{"a": 1}, 5, [], None]},
    ],
)
def test_arguments_are_objects_whatever_else_the_parameters_allow(backend, parameters):
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    params = StructuredOutputsParams(tools=[tool], tool_choice="required", tool_format="hermes")
    texts = {
        arguments: f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
        for arguments in ('{"a": 1}', "[]", "5", "null")
    }
    assert [arguments for arguments, text in texts.items() if takes(backend, params, text)] == ['{"a": 1}']
    assert params.parse_tool_calls(texts['{"a": 1}'])[0].arguments == {"a": 1}


@pytest.mark.parametrize("parameters", [{"type": "array"}, {"type": ["string", "null"]}, {"enum": [1, 2]}])
def test_parameters_that_allow_no_object_are_refused(parameters):
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    with pytest.raises(GrammarError, match=r"tool 1 \(f\): parameters must be the schema of an object, got one of"):
        StructuredOutputsParams(tools=[tool]).validate()


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_names_are_written_as_they_are(backend, tool_format):
    tool = {"type": "function", "function": {"name": "wetter_für_日本", "parameters": {"type": "object"}}}
    params = StructuredOutputsParams(tools=[tool], tool_choice="required", tool_format=tool_format)
    begun = TOOL_FORMATS[tool_format].begin("wetter_für_日本").replace(ID, "0")
    assert "wetter_für_日本" in begun
    section = TOOL_FORMATS[tool_format].section
    grammar = backend.compile(params.constraint()).grammar
    assert grammar.accept_tokens("", list(((section[0] if section else "") + begun).encode()))


def test_number_of_a_call_cannot_go_on_for_ever(backend):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    params = StructuredOutputsParams(tools=[tool], tool_choice="required", tool_format="kimi")
    call = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:{}<|tool_call_argument_begin|>{{}}"
    whole = call + "<|tool_call_end|><|tool_calls_section_end|>"
    assert [takes(backend, params, whole.format(number)) for number in ("0", "12", "999", "01", "1000")] == [
        True, True, True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("tool_format", ["deepseek_v3_2", "qwen_3_coder", "hermes"])
def test_many_tools_are_served(backend, tool_format):
    tools = [
        {
            "type": "function",
            "function": {
                "name": f"tool_{i}",
                "parameters": {
                    "properties": {f"of_tool_{i}_key_{j}": {"type": ["string", "integer"][j % 2]} for j in range(10)},
                    "additionalProperties": False,
                },
            },
        }
        for i in range(200)
    ]
    params = StructuredOutputsParams(tools=tools, tool_choice="required", tool_format=tool_format)
    begun = TOOL_FORMATS[tool_format].begin("tool_199").replace(ID, "0")
    section = TOOL_FORMATS[tool_format].section
    grammar = backend.compile(params.constraint()).grammar
    assert grammar.accept_tokens("", list(((section[0] if section else "") + begun).encode()))


# -- choices, custom tools, and JSON beside tools --------------------------------------


def called(name, arguments=None):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments or {})}}}\n</tool_call>'


ALLOWED = [{"type": "function", "name": "now"}, {"type": "function", "function": {"name": "add"}}]
SUM = called("add", {"a": 1, "b": 2.5})


@pytest.mark.parametrize(
    ("choice", "texts"),
    [
        ("none", {"a": True, "": True, "<tool_cal": True, called("now"): False, "<tool_call>": False}),
        ({"type": "function", "function": {"name": "now"}}, {called("now"): True, SUM: False, "": False}),
        ({"type": "function", "name": "now"}, {called("now"): True, SUM: False, "": False}),
        (
            {"type": "allowed_tools", "mode": "required", "tools": ALLOWED[:1]},
            {called("now") * 2: True, SUM: False, "": False, f"a{called('now')}": False},
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ALLOWED}},
            {f"a{called('now')}{SUM}b": True, "": True, called("GetWeather", {"location": "x"}): False},
        ),
    ],
)
def test_choices_of_openai_bound_the_calls(backend, choice, texts):
    params = StructuredOutputsParams(tools=TOOLS, tool_choice=choice)
    assert {text: takes(backend, params, text) for text in texts} == texts


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "sell"},
        {"type": "allowed_tools", "mode": "auto", "tools": []},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "sell"}]},
        {"type": "allowed_tools", "mode": "some", "tools": ALLOWED},
        {"type": "web_search"},
        3,
    ],
)
def test_choices_of_what_is_no_tool_are_refused(choice):
    with pytest.raises(GrammarError, match="tool_choice must be"):
        StructuredOutputsParams(tools=TOOLS, tool_choice=choice).validate()


PATCH = r"""start: "*** Begin Patch" LF hunk+ "*** End Patch" LF?
hunk: "*** Add File: " /(.+)/ LF ("+" /(.*)/ LF)+ | "*** Delete File: " /(.+)/ LF
%import common.LF
"""
LARK = {"type": "grammar", "syntax": "lark", "definition": PATCH}
REGEX = {"syntax": "regex", "definition": "v[0-9]+/[a-z]\\/?\n"}
CUSTOM = [
    {"type": "custom", "name": "patch", "format": LARK},
    {"type": "custom", "custom": {"name": "tag", "format": {"type": "grammar", "grammar": REGEX}}},
    {"type": "custom", "name": "note", "description": "A note."},
]
INPUTS = {
    "patch": ["*** Begin Patch\n*** Add File: a \"b\"\n+x\\y\n+\n*** End Patch\n", "*** Begin Patch\n*** End Patch"],
    "tag": ["v12/a/\n", "v/a\n"],
    "note": ["any \"text\"\n", None],
}  # fmt: skip


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
@pytest.mark.parametrize("name", INPUTS)
def test_input_of_a_custom_tool_is_a_text_of_its_grammar(backend, tool_format, name):
    params = StructuredOutputsParams(tools=[*CUSTOM, *TOOLS], tool_choice=name, tool_format=tool_format)
    form = TOOL_FORMATS[tool_format]
    valid, invalid = INPUTS[name]
    text = form.write(name, {"input": valid}).join(form.section or ("", ""))
    assert takes(backend, params, text)
    (call,) = params.parse_tool_calls(text)
    assert (call.name, call.value) == (name, valid)
    if invalid is not None:
        assert not takes(backend, params, form.write(name, {"input": invalid}).join(form.section or ("", "")))


@pytest.mark.parametrize("tool_format", ["hermes", "qwen_3_coder"])
def test_drawn_inputs_of_a_grammar_are_read_back(backend, tool_format):
    params = StructuredOutputsParams(tools=CUSTOM, tool_choice="patch", tool_format=tool_format)
    grammar = backend.compile(params.constraint()).grammar
    walker, rng = MaskWalker(VOCABULARY), random.Random(tool_format)
    texts = [walker.draw(grammar, "uniform", rng, 60, [b"\\n", b"\n", b"*** End Patch"]) for _ in range(8)]
    whole = "".join(f"(?:{line}\n)" for line in ["[*]{3} Begin Patch", "[^§]*[*]{3} End Patch"])
    found = [params.parse_tool_calls(text.decode())[0].value for text in texts if text is not None]
    assert found
    assert all(re.fullmatch(whole.removesuffix("\n)") + "\n?)", value) for value in found), found


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        ({"type": "custom"}, "tool 1: a tool needs a name"),
        ({"type": "custom", "name": "f", "format": {"type": "grammar"}}, r"tool 1 \(f\): a grammar needs a definition"),
        (
            {"type": "custom", "name": "f", "format": LARK | {"definition": 'root ::= "a"'}},
            r"tool 1 \(f\): the syntax is lark",
        ),
        ({"type": "custom", "name": "f", "format": LARK | {"definition": "start: x"}}, "x"),
    ],
)
def test_what_is_wrong_with_a_custom_tool_is_named(backend, tool, message):
    with pytest.raises(GrammarError, match=message):
        backend.compile(StructuredOutputsParams(tools=[tool]).constraint())


def test_answers_are_calls_or_json(backend):
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
    params = StructuredOutputsParams(json=schema, tools=TOOLS)
    texts = {'{"a": "x"}': True, SUM + SUM: True, f"a{SUM}": False, '{"b": 1}': False, f'{{"a": "x"}}{SUM}': False}
    assert {text: takes(backend, params, text) for text in texts} == texts
    assert params.parse('{"a": "x"}') == {"a": "x"}
    assert [call.name for call in params.parse(SUM)] == ["add"]
    quoted = json.dumps({"a": called("now")})  # no call
    assert params.parse(quoted) == {"a": called("now")}
    assert params.parse_tool_calls(quoted) == []
    stream = params.tool_call_stream()
    assert "".join(event.text for piece in quoted for event in stream.feed(piece)) == quoted
    assert takes(backend, StructuredOutputsParams(json=schema, tools=TOOLS, tool_choice="none"), '{"a": "x"}')
    assert not takes(backend, StructuredOutputsParams(json=schema, tools=TOOLS, tool_choice="required"), '{"a": "x"}')
    assert takes(backend, StructuredOutputsParams(json_object=True, tools=TOOLS), '{"q": 1}')
    assert StructuredOutputsParams(json=GetWeather, tools=TOOLS).parse('{"location": "x"}') == GetWeather(location="x")
    with pytest.raises(GrammarError, match="cannot be told from JSON"):
        StructuredOutputsParams(json=schema, tools=TOOLS, tool_format="llama").validate()
