"""Structural tags of real models: what is generated under them is what their readers
read, and valid."""

import itertools
import json
import random

import pytest
import xgrammar
from xgrammar.builtin_structural_tag import get_model_structural_tag

from structout import StructuredOutputsParams
from structout.grammar.native.backend import NativeBackend
from structout.integrations.client_tags import as_parsers_read, parts_of
from support.tag_walks import VOCABULARY, drawn_texts
from support.tool_calls import JSON_ONLY, NASTY, PLAIN, as_openai_tools, check_call, read_calls

MODELS = (
    "llama kimi kimi_k3 deepseek_r1 deepseek_v3_1 qwen_3_coder qwen_3_5 mimo qwen_3 harmony deepseek_v3_2 minimax "
    "minimax_m3 glm_4_7 deepseek_v4 deepseek_v4_1 cohere exaone"
).split()
CHOICES = ["auto", "required", {"type": "function", "function": {"name": "find"}}, "none"]
REASONING = ["enabled", "disabled", "auto"]


def test_the_models_are_those_that_xgrammar_has():
    from xgrammar.builtin_structural_tag import _structural_tag_registry

    assert set(_structural_tag_registry) == set(MODELS)


def built(model, tools, choice, reasoning="disabled", *, is_parallel=True):
    tag = get_model_structural_tag(model, tools, choice, reasoning, parallel_tool_calls=is_parallel)
    return json.loads(tag.model_dump_json())


@pytest.fixture(scope="module")
def backend():
    return NativeBackend(VOCABULARY)


def compiled(backend, tag, **options):
    return backend.compile(StructuredOutputsParams(structural_tag=tag, **options).constraint())


@pytest.mark.parametrize("model", MODELS)
def test_every_builder_compiles_with_every_choice(model, backend, num_cases):
    cases = [*itertools.product(CHOICES, REASONING, (True, False))]
    random.Random(model).shuffle(cases)
    for choice, reasoning, is_parallel in cases[: num_cases(3, long=8, full=len(cases))]:
        tag = built(model, as_openai_tools(PLAIN), choice, reasoning, is_parallel=is_parallel)
        assert compiled(backend, tag).weakened == ()


def judged_by_xgrammar(tag):
    """A function that tells whether xgrammar accepts a text."""
    tokens = [*(bytes([byte]) for byte in range(256)), b"<end>"]
    info = xgrammar.TokenizerInfo(tokens, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[256])
    grammar = xgrammar.GrammarCompiler(info).compile_structural_tag(tag)

    def accepts(text):
        matcher = xgrammar.GrammarMatcher(grammar)
        return matcher.accept_string(text) and matcher.accept_token(256)

    return accepts


def check_calls(tag, texts, num_enough, accepts=lambda text: True):
    """Check the calls in texts, until there are enough."""
    num_calls = 0
    for text in texts:
        assert accepts(text), text
        calls = read_calls(tag["format"], text)
        for _, arguments, schema in calls:
            check_call(arguments, schema)
        num_calls += len(calls)
        if num_calls >= num_enough:
            break
    assert num_calls > 0


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("choice", CHOICES[:3], ids=["auto", "required", "named"])
def test_calls_as_parsers_read_them_are_valid_and_accepted_by_xgrammar(model, choice, backend, num_cases):
    tag = built(model, as_openai_tools(PLAIN), choice)
    accepts = judged_by_xgrammar(tag)
    grammar = compiled(backend, as_parsers_read(tag)).grammar
    texts = drawn_texts(grammar, tag, f"{model} {choice}", num_cases(20, long=40, full=250))
    check_calls(tag, texts, num_cases(3, long=40, full=250), accepts)


@pytest.mark.parametrize("model", MODELS)
def test_calls_with_every_keyword_are_valid(model, backend, num_cases):
    styles = {part.get("style") for part in parts_of(built(model, as_openai_tools(PLAIN), "auto")["format"])}
    tools = PLAIN | NASTY | (JSON_ONLY if styles == {None, "json"} else {})
    tag = built(model, as_openai_tools(tools), "required")
    grammar = compiled(backend, tag).grammar
    texts = drawn_texts(grammar, tag, model, num_cases(20, long=80, full=500))
    check_calls(tag, texts, num_cases(10, long=80, full=500))
