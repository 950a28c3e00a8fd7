"""Calls in the formats that SGLang constrains, and in our own formats, read by SGLang's
parsers."""

import json
import re

import pytest

from support.sglang_imports import make_sglang_importable

if not make_sglang_importable():
    pytest.skip("needs SGLang: make test-sglang", allow_module_level=True)

from sglang.srt.entrypoints.openai.protocol import Function, Tool, ToolChoice, ToolChoiceFuncName
from sglang.srt.function_call.function_call_parser import FunctionCallParser

from structout import StructuredOutputsConfig, StructuredOutputsParams
from structout.constraints.tools.call_formats import TOOL_FORMATS
from structout.grammar.native.backend import NativeBackend
from structout.integrations.client_tags import as_parsers_read, current_structural_tag
from support.tag_walks import VOCABULARY, drawn_texts
from support.tool_calls import TEN, as_openai_tools, check_call, marks_of, read_calls

# SGLang's tags of other formats hold no schemas, or their calls are JSON constraints.
PARSERS = ("qwen25", "hermes", "llama3", "qwen3_coder", "deepseekv32", "kimi_k2")
# The others lose arguments that arrive in single characters, whoever writes them.
READS_STREAMS = ("qwen3_coder", "deepseekv32")
# The parsers tell a value's type by "type" alone.
_TYPED = {name: part for name, part in TEN["book"]["properties"].items() if name != "shade"}
TOOLS = TEN | {"book": TEN["book"] | {"properties": _TYPED}}
# SGLang's parsers for formats of structout. It has none for cohere's, that for
# mistral_list expects a space in front of the list, and that for pythonic reads neither
# negative numbers nor brackets in strings.
OWN_FORMATS = {
    "hermes": "hermes",
    "exaone": "hermes",
    "llama": "llama3",
    "qwen_3_coder": "qwen3_coder",
    "mimo": "mimo",
    "glm_4_7": "glm47",
    "minimax": "minimax-m2",
    "minimax_m3": "minimax-m3",
    "deepseek_r1": "deepseekv3",
    "deepseek_v3_1": "deepseekv31",
    "deepseek_v3_2": "deepseekv32",
    "deepseek_v4": "deepseekv4",
    "deepseek_v4_1": "deepseekv41",
    "kimi": "kimi_k2",
    "kimi_k3": "kimi_k3",
    "lfm2": "lfm2",
    "gemma_4": "gemma4",
    "mistral": "mistral",
    "harmony": "gpt-oss",
}
# Tools that these notations refuse, and those with a value of one of several types.
LEFT_OUT = {
    "minimax_m3": ("tree", "sort", "pay"),
    "gemma_4": ("tree", "sort", "pay", "measure"),
    "mimo": ("measure",),
    "minimax": ("measure", "get_weather"),
}
AROUND_DSML = r"string=\"true\">\s|\s</｜DSML｜ ?parameter>"  # whitespace around a string
# What the parsers lose, whoever writes it, in one piece and in streams.
LOST_AT_ONCE = {
    "llama": r"(?s).+\{\"name\"|[^}]$",  # a call beside a text or another one
    "glm_4_7": r"<tool_call>\w+\n|<arg_value>\s*\"",  # a line break behind the name, quotes of a string
    "minimax": r"<parameter[^<>]*>\s|\s</parameter>",  # whitespace around a string
    "minimax_m3": r"\s\]<\]minimax\[>\[</(?!tool_call)",  # whitespace behind a string
    "deepseek_v3_2": AROUND_DSML,
    "deepseek_v4": AROUND_DSML,
    "deepseek_v4_1": AROUND_DSML,
}
LOST_IN_STREAMS = {
    "glm_4_7": r"<arg_value>\s*\"",
    "minimax": LOST_AT_ONCE["minimax"] + r"|\">\s*</invoke>|\}",  # a call without arguments, braces in strings
    "minimax_m3": r"<(\w+)>\]<\]minimax\[>\[</\1>",  # an empty list is an object
    "deepseek_v3_2": AROUND_DSML,
    "deepseek_v4": AROUND_DSML,
    "deepseek_v4_1": AROUND_DSML,
    "gemma_4": r"(?s)call:.*call:",  # the order of calls
}
REASONED = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant"  # the parser looks for what follows it
# Tokens as streams bring them: a mark is one.
TOKENS = re.compile(r"(?s)<[|｜][^<>|｜]*[|｜]>|</?[^<>\s=]+>|\[[A-Z_]+\]|\]<\]minimax\[>\[|\w+|\s+|.")


@pytest.fixture(scope="module")
def own_backend():
    return NativeBackend(VOCABULARY)


def parser_of(name):
    tools = [
        Tool(type="function", function=Function(name=tool, parameters=parameters, strict=True))
        for tool, parameters in TOOLS.items()
    ]
    return FunctionCallParser(tools, name)


def read_at_once(name, text):
    _, calls = parser_of(name).parse_non_stream(text)
    return [(call.name, json.loads(call.parameters)) for call in calls]


def read_as_a_stream(name, pieces):
    parser, written = parser_of(name), {}
    for calls in (*(parser.parse_stream_chunk(piece)[1] for piece in pieces), parser.parse_stream_end()[1]):
        for call in calls:
            parts = written.setdefault(call.tool_index, ["", ""])
            parts[0] += call.name or ""
            parts[1] += call.parameters or ""
    return [(called, json.loads(arguments)) for _, (called, arguments) in sorted(written.items())]


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("choice", ["auto", "required", "book"])
def test_parsers_read_what_was_generated(name, choice, own_backend, num_cases):
    named = ToolChoice(type="function", function=ToolChoiceFuncName(name=choice)) if choice in TOOLS else choice
    kind, given = parser_of(name).get_structure_constraint(named)
    assert kind == "structural_tag"
    text_of_tag = given if isinstance(given, str) else given.model_dump_json()
    tag = as_parsers_read(current_structural_tag(text_of_tag))
    grammar = own_backend.compile(StructuredOutputsParams(structural_tag=tag).constraint()).grammar
    num_calls = 0
    for text in drawn_texts(grammar, tag, f"{name} {choice}", num_cases(80, long=100, full=300)):
        calls = read_calls(tag["format"], text)
        expected = [arguments for _, arguments, _ in calls]
        for _, arguments, schema in calls:
            check_call(arguments, schema)
        assert [arguments for _, arguments in read_at_once(name, text)] == expected, text
        if name in READS_STREAMS:
            assert [arguments for _, arguments in read_as_a_stream(name, text)] == expected, text
        num_calls += len(calls)
        if num_calls >= num_cases(8, long=60, full=250):
            break
    assert num_calls > 0


@pytest.mark.parametrize("tool_format", OWN_FORMATS)
@pytest.mark.parametrize("choice", ["auto", "required", "book"])
def test_parsers_read_the_calls_of_our_formats(tool_format, choice, num_cases):
    """But what ``LOST_AT_ONCE`` and ``LOST_IN_STREAMS`` list, and calls whose strings
    resemble marks."""
    name, form = OWN_FORMATS[tool_format], TOOL_FORMATS[tool_format]
    schemas = {name: schema for name, schema in TOOLS.items() if name not in LEFT_OUT.get(tool_format, ())}
    params = StructuredOutputsParams(tools=as_openai_tools(schemas), tool_choice=choice, tool_format=tool_format)
    constraint = params.constraint()
    config = StructuredOutputsConfig(any_whitespace=False)
    grammar = NativeBackend.from_config(VOCABULARY, config, None).compile(constraint).grammar
    marks = marks_of(form) - {")"}
    num_calls, num_texts = 0, num_cases(80, long=300, full=2_000)
    for text in drawn_texts(grammar, json.loads(constraint.spec), f"{tool_format} {choice}", num_texts):
        calls = [(call.name, call.arguments) for call in params.parse_tool_calls(text)]
        if any(mark in json.dumps(arguments, ensure_ascii=False) for _, arguments in calls for mark in marks):
            continue
        given = REASONED + text if tool_format == "harmony" else text
        if not re.search(LOST_AT_ONCE.get(tool_format, "$^"), text):
            assert read_at_once(name, given) == calls, text
        if not re.search(LOST_IN_STREAMS.get(tool_format, "$^"), text):
            assert read_as_a_stream(name, TOKENS.findall(given)) == calls, text
        num_calls += len(calls)
        if num_calls >= num_cases(17, long=200, full=500):
            break
    assert num_calls > 0
