"""Calls in every format that vLLM constrains, and in our own formats, read by vLLM's
parsers."""

import json

import jsonschema
import pytest

pytest.importorskip("vllm")

from tokenizers import AddedToken
from vllm.config import StructuredOutputsConfig
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser import ParserManager
from vllm.sampling_params import StructuredOutputsParams
from vllm.tool_parsers.tool_strict_level import ToolStrictLevel

from structout import StructuredOutputsConfig as OurConfig, StructuredOutputsParams as OurParams
from structout.constraints.tools.call_formats import TOOL_FORMATS
from structout.grammar.native.backend import NativeBackend
from structout.integrations.client_tags import as_parsers_read
from structout.integrations.vllm import request_params
from support.tag_walks import VOCABULARY, drawn_texts
from support.tokenizers_on_the_spot import byte_level, with_tokens
from support.tool_calls import TEN, as_openai_tools, check_call, marks_of, read_calls

PARSERS = (
    "hermes llama3_json qwen3_coder step3p5 mimo longcat glm47 ling3 minimax_m2 deepseek_v3 deepseek_v31 deepseek_v32 "
    "deepseek_v4 deepseek_v41 kimi_k2 plamo3"
).split()
# Its streams lose calls after a text and calls without arguments, whoever writes them.
READS_NO_STREAMS = ("llama3_json",)
# Reads the string "null" as null where the schema allows both, whoever writes it, but
# not in streams.
READS_NULL_IN_QUOTES = ("plamo3",)
# These do so with our formats.
READS_NULL_AT_ONCE = ("mistral", "gemma4", "kimi_k2")
READS_NO_CALL_BESIDE_TEXT = ("pythonic",)
READS_NO_CALL_BESIDE_BRACES = ("llama3_json",)
# vLLM's parsers for formats of structout.
OWN_FORMATS = {
    "hermes": "hermes",
    "llama": "llama3_json",
    "qwen_3_coder": "qwen3_coder",
    "mimo": "mimo",
    "glm_4_7": "glm47",
    "minimax": "minimax_m2",
    "minimax_m3": "minimax_m3",
    "deepseek_r1": "deepseek_v3",
    "deepseek_v3_1": "deepseek_v31",
    "deepseek_v3_2": "deepseek_v32",
    "deepseek_v4": "deepseek_v4",
    "deepseek_v4_1": "deepseek_v41",
    "kimi": "kimi_k2",
    "kimi_k3": "kimi_k3",
    "lfm2": "lfm2",
    "pythonic": "pythonic",
    "gemma_4": "gemma4",
    "mistral": "mistral",
}
# Tools that these notations refuse: recursive arguments, "contains" and "if".
REFUSED = {"minimax_m3": ("tree", "sort", "pay"), "gemma_4": ("tree", "sort", "pay")}
# What the parsers ask the tokenizers of their models for.
MARKERS = """
<tool_call> </tool_call> <longcat_tool_call> </longcat_tool_call> <minimax:tool_call> </minimax:tool_call>
<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁sep｜> <｜tool▁call▁end｜>
<|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> <|tool_call_argument_begin|>
<|tool_call_end|> <|python_tag|> <think> </think> <|tool_call_start|> [TOOL_CALLS] [ARGS]
""".split()


@pytest.fixture(scope="module")
def tokenizer():
    return with_tokens(byte_level(), [AddedToken(marker, special=False) for marker in MARKERS])


@pytest.fixture(scope="module")
def backend():
    return NativeBackend(VOCABULARY)


def request_of(choice):
    tools = as_openai_tools(TEN)
    for tool in tools:
        tool["function"]["strict"] = True
    named = {"type": "function", "function": {"name": choice}} if choice in TEN else choice
    messages = [{"role": "user", "content": "x"}]
    return ChatCompletionRequest(model="m", messages=messages, tools=tools, tool_choice=named)


def parser_of(name, tokenizer, request):
    made = ParserManager.get_parser(tool_parser_name=name, reasoning_parser_name=None, enable_auto_tools=True)
    return made(tokenizer, request.tools)


def with_null(arguments, schema):
    """The arguments with null in the place of "null" where the schema allows it."""

    def allows_null(name):
        return jsonschema.Draft202012Validator(schema["properties"].get(name, {})).is_valid(None)

    return {name: None if value == "null" and allows_null(name) else value for name, value in arguments.items()}


def read_at_once(name, tokenizer, request, text):
    _, _, calls = parser_of(name, tokenizer, request).parse(
        text, request, enable_auto_tools=True, model_output_token_ids=tokenizer.encode(text, add_special_tokens=False)
    )
    return [(call.name, call.arguments) for call in calls or []]


def read_as_a_stream(name, tokenizer, request, text):
    """The calls that arrive with one token at a time. Some parsers lose the end of a
    call where more arrive at once."""
    parser, calls, written = parser_of(name, tokenizer, request), {}, ""
    ids = tokenizer.encode(text, add_special_tokens=False)
    for end, token in enumerate(ids, 1):
        is_last = end == len(ids)
        now = tokenizer.decode(ids[:end])
        if now.endswith("\ufffd") and not is_last:  # vLLM's detokenizer waits for the rest of the character
            now = written
        delta = parser.parse_delta(now[len(written) :], [token], request, prompt_token_ids=[], finished=is_last)
        written = now
        for call in delta.tool_calls if delta is not None else ():
            parts = calls.setdefault(call.index, ["", ""])
            parts[0] += (call.function and call.function.name) or ""
            parts[1] += (call.function and call.function.arguments) or ""
    return [(name, arguments) for _, (name, arguments) in sorted(calls.items())]


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("choice", ["auto", "required", "book"])
def test_parsers_read_what_was_generated(name, choice, tokenizer, backend, num_cases):
    request = request_of(choice)
    tool_parser = parser_of(name, tokenizer, request).tool_parser
    made = tool_parser.get_structural_tag(request, reasoning=False, strict_level=ToolStrictLevel.AUTO)
    tag = json.loads(made.model_dump_json())
    meant = as_parsers_read(json.loads(made.model_dump_json()))
    constraint = StructuredOutputsParams(structural_tag=json.dumps(tag))
    params = request_params.params_of(constraint, StructuredOutputsConfig(), tokenizer)
    grammar = backend.compile(params.constraint()).grammar
    num_calls = 0
    for text in drawn_texts(grammar, tag, f"{name} {choice}", num_cases(80, long=100, full=300)):
        calls = read_calls(meant["format"], text)
        for _, arguments, schema in calls:
            check_call(arguments, schema)
        as_read = with_null if name in READS_NULL_IN_QUOTES else lambda arguments, schema: arguments
        expected = [as_read(arguments, schema) for _, arguments, schema in calls]
        reads = [read_at_once(name, tokenizer, request, text)]
        if name not in READS_NO_STREAMS:
            reads.append(read_as_a_stream(name, tokenizer, request, text))
        for read in reads:
            assert len(read) == len(calls), text
            found = [as_read(json.loads(each), schema) for (_, each), (_, _, schema) in zip(read, calls, strict=True)]
            assert found == expected, text
            assert choice not in TEN or {called for called, _ in read} <= {choice}
        num_calls += len(calls)
        if num_calls >= num_cases(8, long=60, full=250):
            break
    assert num_calls > 0


@pytest.mark.parametrize("tool_format", OWN_FORMATS)
@pytest.mark.parametrize("choice", ["auto", "required", "book"])
def test_parsers_read_the_calls_of_our_formats(tool_format, choice, tokenizer, num_cases):
    """But calls whose strings resemble marks, or whose JSON has line breaks: some of
    vLLM's parsers lose these."""
    name, request, form = OWN_FORMATS[tool_format], request_of("auto"), TOOL_FORMATS[tool_format]
    tools = as_openai_tools({name: schema for name, schema in TEN.items() if name not in REFUSED.get(tool_format, ())})
    params = OurParams(tools=tools, tool_choice=choice, tool_format=tool_format)
    constraint = params.constraint()
    grammar = NativeBackend.from_config(VOCABULARY, OurConfig(any_whitespace=False), None).compile(constraint).grammar
    marks = marks_of(form)
    num_calls, num_texts = 0, num_cases(80, long=300, full=2_000)
    for text in drawn_texts(grammar, json.loads(constraint.spec), f"{tool_format} {choice}", num_texts):
        calls = [(call.name, call.arguments) for call in params.parse_tool_calls(text)]
        if any(mark in json.dumps(arguments, ensure_ascii=False) for _, arguments in calls for mark in marks):
            continue
        if name in READS_NO_CALL_BESIDE_TEXT and not (text.startswith("[") and text.endswith("]")):
            continue
        num_braces = sum(1 + json.dumps(arguments).count("{") for _, arguments in calls)
        if name in READS_NO_CALL_BESIDE_BRACES and text.count("{") > num_braces:
            continue
        read = [(called, json.loads(arguments)) for called, arguments in read_at_once(name, tokenizer, request, text)]
        if name in READS_NULL_AT_ONCE:
            calls = [(called, with_null(arguments, TEN[called])) for called, arguments in calls]
        assert read == calls, text
        num_calls += len(calls)
        if num_calls >= num_cases(8, long=200, full=500):
            break
    assert num_calls > 0
