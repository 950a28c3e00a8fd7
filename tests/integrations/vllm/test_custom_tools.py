"""Custom tools of the Responses API whose input is a text of a grammar, and choices of
tools that cannot be enforced."""

import asyncio
import json
import random
import re

import pytest

pytest.importorskip("vllm")

import httpx
from tokenizers import AddedToken
from vllm.config import StructuredOutputsConfig
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.utils import decode_custom_tool_input
from vllm.exceptions import VLLMValidationError
from vllm.parser import ParserManager
from vllm.tool_parsers import ToolParserManager

from structout.constraints.params import StructuredOutputsParams
from structout.grammar.native.backend import NativeBackend
from structout.integrations.vllm import custom_tools, hooks, request_params
from support.mask_walks import STYLES, MaskWalker
from support.tag_walks import VOCABULARY
from support.tokenizers_on_the_spot import byte_level, with_tokens
from support.vllm_tool_servers import save_tool_model, tool_servers

PATCH = r"""start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
NESTED = 'start: list\nlist: "(" (list | TEXT | "<")* ")"\nTEXT: /"[^"]*"/'
GRAMMARS = {
    "patch": {"type": "grammar", "syntax": "lark", "definition": PATCH},
    "nested": {"type": "grammar", "syntax": "lark", "definition": NESTED},
    "version": {"type": "grammar", "syntax": "regex", "definition": r"v[0-9]{1,3}(?:\.[0-9]+)* (?i:beta)?\n?"},
}
# Parsers by how they read arguments: as JSON, or between tags.
JSON_PARSERS = ("hermes", "llama3_json", "longcat", "kimi_k2", "deepseek_v3", "deepseek_v31")
XML_PARSERS = ("qwen3_coder", "step3p5", "mimo", "glm47", "ling3", "minimax_m2", "deepseek_v32", "deepseek_v4")
MARKERS = """
<tool_call> </tool_call> <longcat_tool_call> </longcat_tool_call> <minimax:tool_call> </minimax:tool_call>
<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁sep｜> <｜tool▁call▁end｜>
<|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> <|tool_call_argument_begin|>
<|tool_call_end|> <|python_tag|> <think> </think>
""".split()


@pytest.fixture(scope="module", autouse=True)
def hooked():
    hooks.install()  # they stay: vLLM loads plugins once in a process, and other files make engines


@pytest.fixture(scope="module")
def tokenizer():
    return with_tokens(byte_level(), [AddedToken(marker, special=False) for marker in MARKERS])


def tool_of(name):
    return {"type": "custom", "name": name, "description": "A tool.", "format": GRAMMARS[name]}


def request_of(*tools, choice="required", **options):
    body = {"model": "small", "input": "Go on", "tools": list(tools), "tool_choice": choice, "temperature": 1.0}
    return ResponsesRequest.model_validate(body | options)


def named(name):
    return {"type": "custom", "name": name}


def adjusted(request, parser, tokenizer):
    """A request with the constraint of a tool parser, as it would reach the engine."""
    made = ParserManager.get_parser(tool_parser_name=parser, reasoning_parser_name=None, enable_auto_tools=True)

    async def preprocess(_, request):
        made(tokenizer, request.tools).adjust_request(request)

    asyncio.run(custom_tools.preprocessing(preprocess)(None, request))
    return made(tokenizer, request.tools)


def grammar_of(request, tokenizer):
    """The grammar of an adjusted request over VOCABULARY."""
    constraint = request.extract_structured_outputs()
    params = request_params.params_of(constraint, StructuredOutputsConfig(), tokenizer)
    return NativeBackend(VOCABULARY).compile(params.constraint()).grammar


def is_text_of(tool, text):
    definition = GRAMMARS[tool]["definition"]
    if tool == "version":
        return re.fullmatch(definition, text) is not None
    params = StructuredOutputsParams(grammar=definition)
    grammar = NativeBackend(VOCABULARY).compile(params.constraint()).grammar
    return grammar.accept_tokens("", [*VOCABULARY.spell(text), *VOCABULARY.stop_token_ids])


def inputs(grammar, parser, request, tokenizer, num_cases):
    """The inputs in drawn texts, as vLLM reads them."""
    rng, walker = random.Random(0), MaskWalker(VOCABULARY)
    hints = [b'"', b"}", b")", b"\\n", b"*** ", b"+", b"</", b"<"]
    for _ in range(num_cases):
        text = walker.draw(grammar.copy(), rng.choice(STYLES), rng, rng.choice([3, 40]), hints)
        if text is None:
            continue
        ids = tokenizer.encode(text.decode(), add_special_tokens=False)
        _, _, calls = parser.parse(text.decode(), request, enable_auto_tools=True, model_output_token_ids=ids)
        for call in calls or []:
            yield decode_custom_tool_input(call.arguments)


@pytest.mark.parametrize("name", [*JSON_PARSERS, *XML_PARSERS])
@pytest.mark.parametrize("tool", [*GRAMMARS])
def test_parsers_read_texts_of_the_grammar(name, tool, tokenizer, num_cases):
    if name in XML_PARSERS and tool == "nested":
        pytest.skip("values between tags have no escapes, and recursion has no other way around the tags")
    if name not in ToolParserManager.lazy_parsers:
        pytest.skip(f"this version of vLLM has no parser {name}")
    request = request_of(tool_of(tool), {"type": "custom", "name": "free"}, choice=named(tool))
    parser = adjusted(request, name, tokenizer)
    grammar = grammar_of(request, tokenizer)
    found = list(inputs(grammar, parser, request, tokenizer, num_cases(4, long=40, full=150)))
    assert found
    for text in found:
        assert is_text_of(tool, text), text


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder"])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_beside_other_tools_only_the_grammars_are_strict(name, choice, tokenizer):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    others = [{"type": "function", "name": "f", "parameters": schema}, {"type": "custom", "name": "free"}]
    request = request_of(tool_of("patch"), *others, choice=choice)
    adjusted(request, name, tokenizer)
    tag = json.loads(request.extract_structured_outputs().structural_tag)
    assert json.dumps(PATCH) in json.dumps(tag)
    assert '"integer"' not in json.dumps(tag)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"syntax": "lark", "definition": 'start: "a'}, "#/tools/1/format/definition: line 1"),
        ({"syntax": "regex", "definition": "(a"}, "#/tools/1/format/definition: .*a . is not closed"),
        ({"syntax": "gbnf", "definition": "a"}, "#/tools/1/format/definition: a grammar needs"),
        ({"syntax": "lark", "definition": 'root ::= "a"'}, "#/tools/1/format/definition: .*GBNF"),
    ],
)
def test_a_bad_grammar_is_refused_with_its_place(given, place):
    tool = tool_of("patch") | {"format": {"type": "grammar"} | given}
    with pytest.raises(VLLMValidationError, match=place):
        request_of(tool_of("version"), tool)


@pytest.mark.parametrize(
    ("name", "tool", "choice"),
    [
        ("pythonic", "version", "auto"),  # no structural tag
        ("pythonic", "patch", "required"),  # a schema, which has no Lark
        ("kimi_k3", "version", "required"),  # a structural tag without the schema
        ("gemma4", "version", "auto"),
    ],
)
def test_grammars_that_a_parser_cannot_enforce_are_refused(name, tool, choice, tokenizer):
    if name not in ToolParserManager.lazy_parsers:
        pytest.skip(f"this version of vLLM has no parser {name}")
    request = request_of(tool_of("version"), tool_of(tool), choice=choice)
    with pytest.raises(VLLMValidationError, match=r"#/tools/[01]/format: this server has no format of tool calls"):
        adjusted(request, name, tokenizer)


def test_a_regular_expression_is_enforced_by_a_parser_that_reads_json(tokenizer):
    request = request_of(tool_of("version"), choice="required")
    adjusted(request, "pythonic", tokenizer)
    grammar = grammar_of(request, tokenizer)
    for text, is_taken in (("v1.2 ", True), ("v1.x ", False)):
        call = json.dumps([{"name": "version", "parameters": {"input": text}}])
        tokens = [*VOCABULARY.spell(call), *VOCABULARY.stop_token_ids]
        assert grammar.copy().accept_tokens("", tokens) == is_taken


FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}


@pytest.mark.parametrize("choice", ["required", "f"])
@pytest.mark.parametrize("name", ["gemma4", "minimax_m3", "dots"])
def test_a_forced_choice_never_becomes_auto_in_silence(name, choice, tokenizer):
    """These parsers have no constraint for it, and vLLM would serve auto."""
    if name not in ToolParserManager.lazy_parsers:
        pytest.skip(f"this version of vLLM has no parser {name}")
    choices = choice if choice == "required" else {"type": "function", "function": {"name": choice}}
    tools = [{"type": "function", "function": FUNCTION}]
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": tools}
    for options in ({}, {"response_format": {"type": "json_object"}}):
        request = ChatCompletionRequest.model_validate(body | options | {"tool_choice": choices})
        with pytest.raises(VLLMValidationError, match=r"tool_choice cannot be enforced.* force (required|the tool f)"):
            adjusted(request, name, tokenizer)
    adjusted(ChatCompletionRequest.model_validate(body | {"tool_choice": "auto"}), name, tokenizer)


@pytest.mark.parametrize("choice", ["required", "f"])
@pytest.mark.parametrize("name", ["hermes", "pythonic", "qwen3_coder", "kimi_k2"])
def test_a_choice_that_is_enforced_is_served(name, choice, tokenizer):
    choices = choice if choice == "required" else {"type": "function", "function": {"name": choice}}
    tools = [{"type": "function", "function": FUNCTION}]
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": choices}
    request = ChatCompletionRequest.model_validate(body)
    adjusted(request, name, tokenizer)
    adjusted(request, name, tokenizer)  # some servers do so twice
    assert request.structured_outputs is not None


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_that_vllm_does_not_force_are_refused(mode, tokenizer):
    tools = [{"type": "function", **FUNCTION}]
    choice = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "f"}]}
    request = request_of(*tools, choice=choice)
    if mode == "auto":
        adjusted(request, "hermes", tokenizer)
        return
    with pytest.raises(VLLMValidationError, match="tool_choice cannot be enforced"):
        adjusted(request, "hermes", tokenizer)


SERVED = ("hermes", "qwen3_coder", "pythonic")


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    model, log = save_tool_model(tmp_path_factory.mktemp("model")), tmp_path_factory.mktemp("servers") / "log"
    with tool_servers(model, SERVED, log) as urls:
        yield urls
        assert "EngineDeadError" not in log.read_text()


def responses(url, **options):
    body = {"model": "small", "input": "Go on", "temperature": 1.0, "max_output_tokens": 400}
    return httpx.post(f"{url}/v1/responses", json=body | options, timeout=300)


@pytest.mark.parametrize("parser", SERVED[:2])
@pytest.mark.parametrize("tool", [*GRAMMARS])
def test_a_client_gets_calls_whose_input_is_a_text_of_the_grammar(urls, parser, tool):
    if tool == "nested" and parser == "qwen3_coder":
        answer = responses(urls[parser], tools=[tool_of(tool)], tool_choice="required")
        assert answer.status_code == 400
        assert "cannot be kept free of" in answer.text
        return
    for choice in ("required", named(tool)):
        options = {"tools": [tool_of(tool)], "tool_choice": choice, "parallel_tool_calls": False}
        answer = responses(urls[parser], **options)
        assert answer.status_code == 200, answer.text
        calls = [item for item in answer.json()["output"] if item["type"] == "custom_tool_call"]
        assert [call["name"] for call in calls] == [tool]
        assert is_text_of(tool, calls[0]["input"]), calls
        streamed = responses(urls[parser], stream=True, **options)
        done = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
        (read,) = (event["input"] for event in done if event["type"] == "response.custom_tool_call_input.done")
        assert is_text_of(tool, read)


def test_what_cannot_be_enforced_is_answered_with_400(urls):
    bad = tool_of("patch") | {"format": {"type": "grammar", "syntax": "lark", "definition": "start: nothing"}}
    requests = {
        "hermes": ({"tools": [bad]}, "#/tools/0/format/definition"),
        "qwen3_coder": ({"tools": [tool_of("nested")], "tool_choice": "auto"}, "cannot be kept free of"),
        "pythonic": ({"tools": [tool_of("patch")], "tool_choice": "required"}, "#/tools/0/format"),
    }
    for parser, (options, message) in requests.items():
        answer = responses(urls[parser], **options)
        assert answer.status_code == 400, answer.text
        assert message in answer.json()["error"]["message"]
