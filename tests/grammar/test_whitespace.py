"""Whitespace in generated JSON: bounded by default, in both engines alike."""

import json
import random

import pytest

from structout.constraints.config import StructuredOutputsConfig
from structout.constraints.params import StructuredOutputsParams
from structout.errors import GrammarError
from structout.grammar.registry import BackendSet
from structout.grammar.vocabulary import Vocabulary
from support.grammar_walks import allowed, mask_of
from support.tokenizers_on_the_spot import byte_level

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
    return backend_set.compile(StructuredOutputsParams(**params, backend=name).constraint()).grammar


def takes(grammar, text):
    tokens = [*VOCABULARY.spell(text), STOP]
    return len(grammar.validate_tokens(tokens)) == len(tokens)


def begins(grammar, text):
    tokens = list(VOCABULARY.spell(text))
    return grammar.validate_tokens(tokens) == tokens


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
    tokens = []
    while len(tokens) < num_tokens:
        choices = [token for token in allowed(mask_of(grammar)) if token < VOCABULARY.size]  # xgrammar sets more bits
        assert choices
        tokens.append(draw.choice(choices))
        assert grammar.accept_tokens("", tokens[-1:])
        if grammar.is_terminated():
            return VOCABULARY.text_of(tokens), True
    return VOCABULARY.text_of(tokens), False


@pytest.mark.parametrize("params", PARAMS, ids=["json", "json_object"])
@pytest.mark.parametrize("name", ["native", "xgrammar"])
def test_default_config_bounds_whitespace_of_a_uniform_sampler(name, params):
    grammar = compile_with(BackendSet(VOCABULARY, StructuredOutputsConfig()), name, params)
    num_runs = 0
    for seed in range(20):
        text, _ = sample_uniformly(grammar.copy(), random.Random(seed), 60)
        assert longest_run_outside_strings(text) <= 33, (seed, text)  # a line feed and an indentation
        num_runs += longest_run_outside_strings(text) > 1
    assert num_runs > 0


@pytest.mark.parametrize("name", ["native", "xgrammar"])
def test_unbounded_whitespace_runs_on(backend_sets, name):
    grammar = compile_with(backend_sets[None], name, PARAMS[0])
    assert takes(grammar, '{"a":' + " " * 500 + '1, "b": []}')


@pytest.mark.parametrize("params", PARAMS, ids=["json", "json_object"])
@pytest.mark.parametrize("name", ["native", "xgrammar"])
@pytest.mark.parametrize("limit", [1, 2])
def test_max_whitespace_means_the_same_in_both_engines(backend_sets, name, params, limit):
    grammar = compile_with(backend_sets[limit], name, params)
    template = '{<"a">:>1>,>"b">:>[<true>,>false<]<}'
    for inside, separators, is_allowed in (
        (0, 0, True),
        (0, limit, True),
        (0, limit + 1, False),
        (limit, limit, True),
        (limit + 1, limit, False),
    ):
        for space in (" ", "\n"):
            text = template.replace("<", space * inside).replace(">,", space * separators + ",")
            text = text.replace(">:", space * separators + ":").replace(">1", space * separators + "1")
            text = text.replace(">", space * separators if separators else "")
            assert json.loads(text)
            assert takes(grammar, text) == is_allowed, text
    assert not takes(grammar, ' {"a":1,"b":[]}')
    assert not takes(grammar, '{"a":1,"b":[]} ')


@pytest.mark.parametrize(
    ("pattern", "runs", "others"),
    [
        ("", [""], [" ", "\n"]),
        (" ?", ["", " "], ["  ", "\n", "\t"]),
        ("[\n\t ]*", ["", "\n\n\n", " \t"], ["\r"]),
        (r"\s{0,2}", ["", "\r\n", "\t "], ["   ", "\u00a0"]),
        ("\n  ", ["", "\n  "], ["\n", "\n ", "  ", "\n   "]),  # a part of what the pattern asks for is no whitespace
        (" +", ["", " ", "   "], ["\n"]),
    ],
)
def test_whitespace_pattern_is_what_may_stand_between_any_two_tokens(pattern, runs, others):
    params = {"json": SCHEMA, "whitespace_pattern": pattern}
    grammar = compile_with(BackendSet(VOCABULARY, StructuredOutputsConfig()), "native", params)
    tokens = ["{", '"a"', ":", "12", ",", '"b"', ":", "[", "true", ",", "false", "]", "}"]
    draw = random.Random(pattern)
    for _ in range(20):
        spaces = ["", *draw.choices(runs, k=len(tokens) - 1)]
        assert takes(grammar, "".join(map("".join, zip(spaces, tokens, strict=True))))
        spaces[draw.randrange(1, len(spaces))] = draw.choice(others)
        text = "".join(map("".join, zip(spaces, tokens, strict=True)))
        assert not takes(grammar, text), text
    assert takes(grammar, json.dumps({"a": 1, "b": []}, separators=(",", ":")))


@pytest.mark.parametrize("pattern", ["\n  ", " +", r"\s{3}"])
def test_texts_of_a_uniform_sampler_end_whatever_the_whitespace_pattern_asks_for(pattern):
    few = {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 2, "maxItems": 2}
    params = {"json": {**SCHEMA, "properties": {"a": {"const": 1}, "b": few}}, "whitespace_pattern": pattern}
    grammar = compile_with(BackendSet(VOCABULARY, StructuredOutputsConfig()), "native", params)
    for seed in range(20):
        text, is_complete = sample_uniformly(grammar.copy(), random.Random(seed), 2_000)
        assert is_complete
        assert json.loads(text)["b"] in ([True, False], [False, True])


@pytest.mark.parametrize("pattern", ["x", "[ x]*", "\u00a0", "."])
def test_whitespace_pattern_with_other_characters_raises(pattern):
    with pytest.raises(
        GrammarError, match="whitespace_pattern may match spaces, tabs, line feeds and carriage returns"
    ):
        compile_with(
            BackendSet(VOCABULARY, StructuredOutputsConfig()), "native", {"json": {}, "whitespace_pattern": pattern}
        )


def test_whitespace_pattern_that_is_malformed_raises():
    with pytest.raises(GrammarError, match="the whitespace_pattern does not parse"):
        compile_with(
            BackendSet(VOCABULARY, StructuredOutputsConfig()), "native", {"json": {}, "whitespace_pattern": "("}
        )


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "2"])
def test_config_with_a_bad_max_whitespace_raises(limit):
    with pytest.raises(ValueError, match='max_whitespace must be "indent", an int of at least 1 or None'):
        StructuredOutputsConfig(max_whitespace=limit)


INDENTED = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {}}}}


@pytest.mark.parametrize("indent", [None, 1, 2, 4, 8, "\t"])
def test_default_whitespace_is_what_json_dumps_writes(indent):
    grammar = compile_with(BackendSet(VOCABULARY, StructuredOutputsConfig()), "native", {"json": INDENTED})
    assert takes(grammar, json.dumps({"a": 1, "b": [[2, {"c": None}], []]}, indent=indent))
    assert takes(grammar, json.dumps({"a": 1, "b": [True]}, indent=indent, separators=(",", ":")))


@pytest.mark.parametrize(
    "text",
    [
        '{"a" ',
        '{"a":  ',
        '{"a":\n',
        "{\n\n",
        "{  ",
        "{ \n",
        "{\t",
        '{"a": 1  ',
        '{"b": [1 ,',
        '{"b": [1\n,',
        "{\n" + " " * 33,
    ],
)
def test_default_whitespace_is_nowhere_else_and_has_an_end(text):
    grammar = compile_with(BackendSet(VOCABULARY, StructuredOutputsConfig()), "native", {"json": INDENTED})
    assert begins(grammar, text[:-1])
    assert not begins(grammar, text)


def test_default_whitespace_after_a_value_needs_an_end_that_may_come():
    """Where a key must still come, a line end would be no way on."""
    schema = INDENTED | {"required": ["a", "b"], "additionalProperties": False}
    grammar = compile_with(BackendSet(VOCABULARY, StructuredOutputsConfig()), "native", {"json": schema})
    assert begins(grammar, '{"a": 1')
    assert not begins(grammar, '{"a": 1\n')
    assert takes(grammar, '{"a": 1, "b": []\n}')
