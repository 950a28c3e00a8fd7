"""Whitespace in generated JSON: bounded by default, in both engines alike."""

import json
import random

import pytest
from tokenizers_on_the_spot import byte_level

from structout.bitmask import allocate_token_bitmask
from structout.config import StructuredOutputsConfig
from structout.grammar.engine_versions import LLGUIDANCE_WHITESPACE_PATTERN, is_at_least
from structout.grammar.router import BackendSet
from structout.grammar.vocabulary import Vocabulary
from structout.params import StructuredOutputsParams

VOCABULARY = Vocabulary.from_tokenizer(byte_level(), 525)
STOP = VOCABULARY.stop_token_ids[0]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "boolean"}}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
PARAMS = [{"json": SCHEMA}, {"json_object": True}]


@pytest.fixture(scope="module")
def backend_sets():
    return {limit: BackendSet(VOCABULARY, StructuredOutputsConfig(max_whitespace=limit)) for limit in (1, 2, None)}


def compile_with(backend_set, name, params):
    return backend_set.compile(StructuredOutputsParams(**params, backend=f"{name}:no-fallback").constraint()).grammar


def takes(grammar, text):
    tokens = [*VOCABULARY.spell(text), STOP]
    return len(grammar.validate_tokens(tokens)) == len(tokens)


def longest_run_outside_strings(text):
    longest = run = 0
    is_in_string = is_escaped = False
    for character in text:
        run = run + 1 if character in " \t\n\r" and not is_in_string else 0
        longest = max(longest, run)
        if character == '"' and not is_escaped:
            is_in_string = not is_in_string
        is_escaped = is_in_string and character == "\\" and not is_escaped
    return longest


def sample_uniformly(grammar, draw, num_tokens):
    """The text of tokens drawn uniformly from the allowed ones, which prefers no way
    out of a loop."""
    bitmask = allocate_token_bitmask(1, VOCABULARY.size, pin_memory=False)
    tokens = []
    while len(tokens) < num_tokens:
        grammar.fill_bitmask(bitmask, 0)
        words = bitmask[0].tolist()
        allowed = [i for i in range(VOCABULARY.size) if words[i >> 5] >> (i & 31) & 1]
        assert allowed
        tokens.append(draw.choice(allowed))
        assert grammar.accept_tokens("", tokens[-1:])
        if grammar.is_terminated():
            return VOCABULARY.text_of(tokens), True
    return VOCABULARY.text_of(tokens), False


@pytest.mark.parametrize("params", PARAMS, ids=["json", "json_object"])
@pytest.mark.parametrize("name", ["llguidance", "xgrammar"])
def test_default_config_bounds_whitespace_of_a_uniform_sampler(name, params):
    grammar = compile_with(BackendSet(VOCABULARY, StructuredOutputsConfig()), name, params)
    num_runs = 0
    for seed in range(20):
        text, _ = sample_uniformly(grammar.copy(), random.Random(seed), 60)
        assert longest_run_outside_strings(text) <= 2, (seed, text)
        num_runs += longest_run_outside_strings(text) == 2
    assert num_runs > 0  # the limit was reached, so it was tested


@pytest.mark.parametrize("name", ["llguidance", "xgrammar"])
def test_unbounded_whitespace_runs_on(backend_sets, name):
    grammar = compile_with(backend_sets[None], name, PARAMS[0])
    assert takes(grammar, '{"a":' + " " * 500 + '1, "b": []}')


@pytest.mark.parametrize("params", PARAMS, ids=["json", "json_object"])
@pytest.mark.parametrize("name", ["llguidance", "xgrammar"])
@pytest.mark.parametrize("limit", [1, 2])
def test_max_whitespace_means_the_same_in_both_engines(backend_sets, name, params, limit):
    grammar = compile_with(backend_sets[limit], name, params)
    brackets = limit if name == "xgrammar" or is_at_least("llguidance", LLGUIDANCE_WHITESPACE_PATTERN) else 0
    template = '{<"a">:>1>,>"b">:>[<true>,>false<]<}'
    for inside, separators, is_allowed in (
        (0, 0, True),
        (0, limit, True),
        (0, limit + 1, False),
        (brackets, limit, True),
        (brackets + 1, limit, False),
    ):
        for space in (" ", "\n"):
            text = template.replace("<", space * inside).replace(">,", space * separators + ",")
            text = text.replace(">:", space * separators + ":").replace(">1", space * separators + "1")
            text = text.replace(">", space * separators if separators else "")
            assert json.loads(text)
            assert takes(grammar, text) == is_allowed, text
    assert not takes(grammar, ' {"a":1,"b":[]}')
    assert not takes(grammar, '{"a":1,"b":[]} ')


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "2"])
def test_config_with_a_bad_max_whitespace_raises(limit):
    with pytest.raises(ValueError, match="max_whitespace must be an int of at least 1 or None"):
        StructuredOutputsConfig(max_whitespace=limit)
