"""Named formats of calls against xgrammar's tags of the same models, and against what
real chat templates write."""

import ast
import json
import random

import jsonschema
import pytest
import xgrammar
from transformers.utils.chat_parsing.content_parsers import parse_content
from xgrammar.builtin_structural_tag import get_model_structural_tag

from structout import StructuredOutputsParams
from structout.constraints.tools.call_formats import TOOL_FORMATS
from structout.grammar.native.backend import NativeBackend
from structout.grammar.vocabulary import Vocabulary
from support.locations import ROOT
from support.mask_walks import MaskWalker
from support.tool_calls import as_openai_tools

_STOP = 256
VOCABULARY = Vocabulary((*(bytes([byte]) for byte in range(256)), b""), stop_token_ids=(_STOP,))
MODELS = {"hermes": "qwen_3"} | {
    name: name
    for name in (
        "llama exaone qwen_3_coder mimo glm_4_7 minimax minimax_m3 deepseek_r1 deepseek_v3_1 deepseek_v3_2 deepseek_v4 "
        "deepseek_v4_1 kimi kimi_k3 cohere harmony"
    ).split()
}
# What xgrammar's tags demand in front of calls and of other text.
PRECEDING = {"minimax": "\n</think>\n\n\n\n"}
SECTIONS_ON_LINES = ("deepseek_v3_2", "deepseek_v4", "deepseek_v4_1")
# What a real template writes, in tests/corpus/tool_formats.json.
TEMPLATES = {
    "gemma_4": "llama.cpp/google-gemma-4-31B-it",
    "lfm2": "llama.cpp/LFM2.5-8B-A1B",
    "mistral": "llama.cpp/mistralai-Ministral-3-14B-Reasoning-2512",
    "mistral_list": "llama.cpp/mistralai-Mistral-Nemo-Instruct-2407",
}
PARAMETERS = {
    "find": {
        "type": "object",
        "properties": {"text": {"type": "string"}, "count": {"type": "integer"}},
        "required": ["text"],
        "additionalProperties": False,
    },
    "stop": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS = as_openai_tools(PARAMETERS)


LITERALS = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "flag": {"type": ["boolean", "null"]},
        "counts": {"type": "array", "items": {"type": "number"}, "maxItems": 3},
        "inner": {"type": "object", "properties": {"key": {"type": "string"}}, "additionalProperties": False},
    },
    "required": ["flag"],
    "additionalProperties": False,
}


def judged_by_xgrammar(model, choice):
    tag = json.loads(get_model_structural_tag(model, TOOLS, choice, "disabled").model_dump_json())
    tokens = [*(bytes([byte]) for byte in range(256)), b"<end>"]
    info = xgrammar.TokenizerInfo(tokens, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[_STOP])
    grammar = xgrammar.GrammarCompiler(info).compile_structural_tag(tag)
    begun = PRECEDING.get(model, "")
    if choice == "required":
        begun += {"minimax": "\n"}.get(model, "\n\n" if model in SECTIONS_ON_LINES else "")

    def accepts(text):
        matcher = xgrammar.GrammarMatcher(grammar)
        return matcher.accept_string(begun + text) and matcher.accept_token(_STOP)

    return accepts


def test_every_format_is_checked_against_another_source():
    assert MODELS.keys() | TEMPLATES.keys() | LITERALS_READ_BY.keys() == TOOL_FORMATS.keys()


@pytest.mark.parametrize("tool_format", MODELS)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_calls_that_are_generated_are_accepted_by_xgrammar(tool_format, choice):
    form = TOOL_FORMATS[tool_format]
    params = StructuredOutputsParams(tools=TOOLS, tool_choice=choice, tool_format=tool_format)
    accepts = judged_by_xgrammar(MODELS[tool_format], choice)
    calls = [form.write("find", {"text": "é <b>", "count": 12}), form.write("stop", {})]
    calls = calls[:1] if form.is_single else calls
    backend = NativeBackend(VOCABULARY)
    grammar = backend.compile(params.constraint()).grammar
    text = form.separator.join(calls).join(form.section or ("", ""))
    assert grammar.accept_tokens("", [*text.encode(), _STOP])
    assert accepts(text)
    assert not accepts(text.replace("find", "fund"))


@pytest.mark.parametrize("tool_format", MODELS)
def test_drawn_calls_are_accepted_by_xgrammar(tool_format):
    form = TOOL_FORMATS[tool_format]
    params = StructuredOutputsParams(tools=TOOLS, tool_choice="required", tool_format=tool_format)
    accepts = judged_by_xgrammar(MODELS[tool_format], "required")
    grammar = NativeBackend(VOCABULARY).compile(params.constraint()).grammar
    closing = [] if form.argument_style is None else [form.argument_style.closing("text").encode()]
    hints = [form.end.encode(), *closing, *([form.section[1].encode()] if form.section else []), b'"', b"}"]
    walker, rng = MaskWalker(VOCABULARY), random.Random(tool_format)
    drawn = [walker.draw(grammar, "uniform", rng, 15, hints) for _ in range(6)]
    texts = [text.decode() for text in drawn if text is not None]
    assert texts
    assert [text for text in texts if not accepts(text)] == []


def read_by_python(written):
    """The arguments of a call, by Python's own parser."""
    (call,) = (
        ast.parse(written.removeprefix("<|tool_call_start|>").removesuffix("<|tool_call_end|>")).body[0].value.elts
    )
    values = {keyword.arg: keyword.value for keyword in call.keywords}
    inner = values.pop("inner", None)  # JSON in both
    found = {key: ast.literal_eval(value) for key, value in values.items()}
    return found if inner is None else {**found, "inner": ast.literal_eval(inner)}


def read_by_transformers(written):
    """The arguments of a call, by the dialect of JSON that Gemma's response template
    names."""
    dialect = {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]}
    arguments = written.removeprefix("<|tool_call>call:find").removesuffix("<tool_call|>")
    return parse_content(arguments, "json", dialect)


LITERALS_READ_BY = {"lfm2": read_by_python, "pythonic": read_by_python, "gemma_4": read_by_transformers}


@pytest.mark.parametrize(("tool_format", "read"), LITERALS_READ_BY.items())
def test_drawn_literals_are_read_as_their_own_readers_read_them(tool_format, read):
    tools = as_openai_tools({"find": LITERALS})
    params = StructuredOutputsParams(
        tools=tools, tool_choice="required", tool_format=tool_format, parallel_tool_calls=False
    )
    form = params.call_format
    grammar = NativeBackend(VOCABULARY).compile(params.constraint()).grammar
    hints = [form.end.encode(), *map(str.encode, form.section or ()), *map(str.encode, form.argument_style.quotes)]
    walker, rng, num_drawn = MaskWalker(VOCABULARY), random.Random(tool_format), 0
    for style in ("uniform", "rare") * 15:
        drawn = walker.draw(grammar, style, rng, 25, hints)
        if drawn is None or b"\x00" in drawn:  # which Python's parser refuses
            continue
        (call,) = params.parse_tool_calls(drawn.decode())
        assert call.arguments == read(drawn.decode())
        jsonschema.validate(call.arguments, LITERALS)
        num_drawn += 1
    assert num_drawn > 5


def test_many_objects_inside_of_arguments_have_rules_of_their_own():
    inner = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    keys = [f"key_{number}" for number in range(60)]
    schema = {"type": "object", "properties": dict.fromkeys(keys, inner), "additionalProperties": False}
    params = StructuredOutputsParams(tools=as_openai_tools({"f": schema}), tool_choice="f", tool_format="gemma_4")
    text = params.call_format.write("f", {key: {"a": 1, "b": 2} for key in keys})
    grammar = NativeBackend(VOCABULARY).compile(params.constraint()).grammar
    assert grammar.accept_tokens("", [*text.encode(), _STOP])


@pytest.mark.parametrize("tool_format", TEMPLATES)
def test_formats_are_those_of_real_templates(tool_format):
    facts = json.loads((ROOT / "tests" / "corpus" / "tool_formats.json").read_text())[TEMPLATES[tool_format]]
    form = TOOL_FORMATS[tool_format]
    assert facts["begin"].replace("{name}", "f") == form.begin("f")
    assert (facts["end"], facts["trigger"], facts.get("separator", "")) == (form.end, form.trigger, form.separator)
    assert tuple(facts.get("section", ())) == (form.section or ())
