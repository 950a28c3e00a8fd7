"""generate with a GGUF model: its results, and what the model reads for them."""

import enum
import json
from dataclasses import dataclass

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: make test-llama-cpp")

import structout
from structout import GrammarError, StructuredOutputsParams
from structout.integrations.llama_cpp import generate, tokenizer_of

MARIA = "Maria Lopez is 34 years old and lives in Madrid."
CHAT = [{"role": "user", "content": MARIA}]


@dataclass
class Person:
    name: str
    age: int
    city: str


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


def weather(city: str) -> str:
    """The weather of a city."""


def call_of_weather():
    params = StructuredOutputsParams(tools=[weather], tool_choice="required", parallel_tool_calls=False)
    return {"params": params}


def test_generate_gives_values_reasons_and_usage(llama):
    result = generate(llama, CHAT, json=Person, max_tokens=100)
    assert result.parsed == [Person("Maria Lopez", 34, "Madrid")]
    assert (result.is_complete, result.finish_reasons, result.fitted) == ([True], ["stop"], [False])
    vocabulary = tokenizer_of(llama).vocabulary
    assert result.texts == [vocabulary.text_of(result.token_ids[0])]
    prompt = tokenizer_of(llama).apply_chat_template(CHAT)
    assert result.usage[0].prompt_tokens == len(llama.tokenize(prompt.encode(), add_bos=False, special=True))
    assert result.usage[0].completion_tokens == len(result.token_ids[0]) + 1
    assert tokenizer_of(llama).manager.num_requests == 0


def test_generate_gives_each_prompt_its_own_constraint(llama):
    params = [StructuredOutputsParams(choice=Color), None, StructuredOutputsParams(regex="[a-z]{90}")]
    prompts = ["The sky is", "One, two,", [504, 3575]]
    result = generate(llama, prompts, params=params, max_tokens=90, fit="off", temperature=1.0, seed=5, top_k=20)
    assert result.parsed[0] in Color
    assert result.finish_reasons[0] == "stop"
    assert result.params[1] is None
    assert len(result.texts[2]) <= 90


def test_generate_calls_tools(llama):
    result = generate(llama, CHAT, **call_of_weather(), describe=True, max_tokens=80)
    assert result.finish_reasons == ["tool_calls"]
    assert [call.name for call in result.parsed[0]] == ["weather"]
    with pytest.warns(UserWarning, match="chat template ignores tools"):
        generate(llama, CHAT, **call_of_weather(), max_tokens=80)


def test_generate_ends_texts_within_their_limits(llama):
    result = generate(llama, "A list of words:", json={"type": "array"}, max_tokens=12, temperature=2.0)
    assert type(result.parsed[0]) is list
    assert result.usage[0].completion_tokens <= 12
    cut = generate(llama, "Letters:", regex="([a-z] ){50}", max_tokens=9, fit="off")
    assert (cut.is_complete, cut.finish_reasons, cut.parsed) == ([False], ["length"], [None])
    with pytest.raises(GrammarError, match="tokens"):
        generate(llama, "Letters:", regex="([a-z] ){50}", max_tokens=9)


def test_generate_refuses_what_it_cannot_serve(llama):
    with pytest.raises(GrammarError, match="grammar does not parse"):
        generate(llama, "a", grammar='root ::= "a" (')
    with pytest.raises(ValueError, match="jump_forward must be 'off', 'ff_tokens' or 'retokenize'"):
        generate(llama, "a", regex="a", jump_forward="draft")
    with pytest.raises(ValueError, match="the longest prompt has 600 tokens of the 512"):
        generate(llama, [*range(20)] * 30, regex="a")
    with pytest.raises(ValueError, match="a prompt has no tokens"):
        generate(llama, [[]], regex="a")


def test_seeds_draw_equal_texts_and_others_draw_others(llama):
    texts = [generate(llama, "Name:", regex="[a-z]{8,20}", temperature=1.0, seed=seed).texts for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


# -- what the model reads --------------------------------------------------------------


def test_prompts_that_share_a_prefix_are_read_from_where_they_differ(llama, evaluated):
    prefix = llama.tokenize(MARIA.encode() * 5, add_bos=False)
    prompts = [[*prefix, 504, 905], [*prefix, 3575], prefix]
    generate(llama, prompts, choice=["x"])
    assert [len(call) for call in evaluated] == [len(prefix) + 2, 1, 1]
    assert evaluated[1:] == [[3575], prefix[-1:]]


def test_texts_after_a_kept_prefix_are_those_of_an_empty_cache(llama):
    prompts = [f"{MARIA} Her {what} is" for what in ("name", "age", "city")]
    together = generate(llama, prompts, regex="[a-zA-Z0-9 ]{1,20}", max_tokens=12)
    for prompt, text in zip(prompts, together.texts, strict=True):
        llama.reset()
        assert generate(llama, prompt, regex="[a-zA-Z0-9 ]{1,20}", max_tokens=12).texts == [text]


def test_each_token_is_read_once_and_stops_are_not(llama, evaluated):
    result = generate(llama, CHAT, json=Person, max_tokens=100)
    read = [token for call in evaluated for token in call]
    assert read[result.usage[0].prompt_tokens :] == result.token_ids[0][:-1]  # only a stop may follow the last


@pytest.mark.parametrize("mode", ["ff_tokens", "retokenize"])
def test_forced_text_is_read_in_one_call(llama, evaluated, mode):
    constraint = {"regex": r'\{"temperature_in_celsius": [0-9]{2}, "city": "Madrid"\}'}
    plain = generate(llama, CHAT, **constraint)
    num_passes = len(evaluated)
    evaluated.clear()
    llama.reset()
    jumped = generate(llama, CHAT, **constraint, jump_forward=mode)
    assert json.loads(jumped.texts[0]).keys() == json.loads(plain.texts[0]).keys()
    assert len(evaluated) <= 6 < num_passes
    if mode == "ff_tokens":
        read = [token for call in evaluated for token in call]
        assert jumped.token_ids[0][: len(read) - jumped.usage[0].prompt_tokens] == read[jumped.usage[0].prompt_tokens :]


def test_greedy_texts_are_those_of_transformers(llama, monkeypatch, tmp_path):
    """transformers computes with the same weights, dequantized."""
    from structout.cli.demo_model import load_demo_model

    monkeypatch.setenv("STRUCTOUT_CACHE_DIR", str(tmp_path))
    model, tokenizer, _ = load_demo_model()
    cases = [
        (CHAT, {"json": Person}),
        (CHAT, {"regex": "[A-Z][a-z]+ is [0-9]{2}"}),
        (CHAT, {"choice": ["Rome", "Madrid"]}),
    ]
    for prompt, constraint in cases:
        expected = structout.generate(model, tokenizer, prompt, **constraint, do_sample=False, max_new_tokens=60)
        assert generate(llama, prompt, **constraint, max_tokens=60).texts == expected.texts
