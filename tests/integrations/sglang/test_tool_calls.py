"""Calls in the formats that SGLang constrains, read by SGLang's own parsers."""

import json

import pytest

from support.sglang_imports import make_sglang_importable

if not make_sglang_importable():
    pytest.skip("needs SGLang: make test-sglang", allow_module_level=True)

from sglang.srt.entrypoints.openai.protocol import Function, Tool, ToolChoice, ToolChoiceFuncName
from sglang.srt.function_call.function_call_parser import FunctionCallParser

from structout import StructuredOutputsParams
from structout.grammar.native.backend import NativeBackend
from structout.integrations.client_tags import as_parsers_read, current_structural_tag
from support.tag_walks import VOCABULARY, drawn_texts
from support.tool_calls import TEN, check_call, read_calls

# SGLang's tags of other formats hold no schemas, or their calls are JSON constraints.
PARSERS = ("qwen25", "hermes", "llama3", "qwen3_coder", "deepseekv32", "kimi_k2")
# The others lose arguments that arrive in single characters, whoever writes them.
READS_STREAMS = ("qwen3_coder", "deepseekv32")
# The parsers tell a value's type by "type" alone.
_TYPED = {name: part for name, part in TEN["book"]["properties"].items() if name != "shade"}
TOOLS = TEN | {"book": TEN["book"] | {"properties": _TYPED}}


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
    return [json.loads(call.parameters) for call in calls]


def read_as_a_stream(name, text):
    parser, written = parser_of(name), {}
    for character in text:
        _, calls = parser.parse_stream_chunk(character)
        for call in calls:
            written[call.tool_index] = written.get(call.tool_index, "") + (call.parameters or "")
    for call in parser.parse_stream_end()[1]:
        written[call.tool_index] = written.get(call.tool_index, "") + (call.parameters or "")
    return [json.loads(arguments) for _, arguments in sorted(written.items())]


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
        assert read_at_once(name, text) == expected, text
        if name in READS_STREAMS:
            assert read_as_a_stream(name, text) == expected, text
        num_calls += len(calls)
        if num_calls >= num_cases(8, long=60, full=250):
            break
    assert num_calls > 0
