"""generate with a GGUF model: its results, and what the model reads for them."""

import enum
import json
from concurrent.futures import CancelledError
from dataclasses import dataclass

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: make test-llama-cpp")

from structout import GrammarError, StructuredOutputsParams
from structout.integrations.llama_cpp import StructuredLogitsProcessor, generate, llama_tokenizer, stream, tokenizer_of
from structout.integrations.llama_cpp.llama_generation import LlamaFeed
from structout.integrations.llama_cpp.llama_tokenizer import LlamaTokenizer

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
    num_requests = tokenizer_of(llama).manager.num_requests  # of other tests
    result = generate(llama, CHAT, json=Person, max_tokens=100)
    assert result.parsed == [Person("Maria Lopez", 34, "Madrid")]
    assert (result.is_complete, result.finish_reasons, result.fitted) == ([True], ["stop"], [False])
    vocabulary = tokenizer_of(llama).vocabulary
    assert result.texts == [vocabulary.text_of(result.token_ids[0])]
    prompt = tokenizer_of(llama).apply_chat_template(CHAT)
    assert result.usage[0].prompt_tokens == len(llama.tokenize(prompt.encode(), add_bos=False, special=True))
    assert result.usage[0].completion_tokens == len(result.token_ids[0]) + 1
    assert tokenizer_of(llama).manager.num_requests <= num_requests


def test_generate_gives_each_prompt_its_own_constraint(llama):
    params = [StructuredOutputsParams(choice=Color), None, StructuredOutputsParams(regex="[a-z]{90}")]
    prompts = ["The sky is", "One, two,", [504, 3575]]
    result = generate(llama, prompts, params=params, max_tokens=90, fit="off", temperature=1.0, seed=5, top_k=20)
    assert result.parsed[0] in Color
    assert result.finish_reasons[0] == "stop"
    assert result.params[1] is None
    assert len(result.texts[2]) <= 90


def test_generate_lets_the_prompt_tell_whether_a_reasoning_has_begun(llama):
    params = StructuredOutputsParams(json=Person, reasoning="auto")
    prompts = [f"{MARIA} As JSON: <think>\n", f"{MARIA} As JSON: <think></think>"]
    result = generate(llama, prompts, params=params, max_tokens=100)
    assert [each.reasoning for each in result.params] == [("", "</think>"), "disabled"]
    assert ["</think>" in text for text in result.texts] == [True, False]
    assert [type(person) for person in result.parsed] == [Person, Person]


def test_generate_calls_tools(llama):
    result = generate(llama, CHAT, **call_of_weather(), describe=True, max_tokens=80)
    assert result.finish_reasons == ["tool_calls"]
    assert [call.name for call in result.parsed[0]] == ["weather"]
    with pytest.warns(UserWarning, match="chat template ignores tools"):
        generate(llama, CHAT, **call_of_weather(), max_tokens=80)


def test_generate_writes_calls_as_the_chat_template_does(llama, monkeypatch):
    template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
        "{% for call in message.tool_calls or [] %}[CALL]{{ call.function.name }}[ARGS]"
        "{{ call.function.arguments | tojson }}{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer = LlamaTokenizer(llama)
    monkeypatch.setattr(tokenizer, "chat_template", template)
    monkeypatch.setitem(llama_tokenizer._tokenizers, llama, tokenizer)
    result = generate(llama, CHAT, **call_of_weather(), max_tokens=80)
    assert result.texts[0].startswith("[CALL]weather[ARGS]{")
    assert [call.name for call in result.parsed[0]] == ["weather"]


def test_stream_gives_the_text_of_generate_in_pieces(llama):
    pieces = stream(llama, CHAT, json=Person, max_tokens=100)
    text = "".join(pieces)
    assert pieces.result.parsed == [Person("Maria Lopez", 34, "Madrid")]
    assert generate(llama, CHAT, json=Person, max_tokens=100).texts == [text]
    closed = stream(llama, "Words:", regex="([a-z]+ ){90}", max_tokens=400)
    assert len(next(closed)) > 0
    closed.close()
    with pytest.raises(CancelledError):
        closed.result  # noqa: B018 - waits for the thread
    with pytest.raises(ValueError, match="stream takes one prompt, got 2"):
        stream(llama, ["a", "b"], regex="a")
    with pytest.raises(GrammarError, match="grammar does not parse"):
        next(stream(llama, "a", grammar='root ::= "a" ('))


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
    with pytest.raises(ValueError, match="the longest prompt has 600 tokens of the 512"):
        generate(llama, [*range(20)] * 30, regex="a")
    with pytest.raises(ValueError, match="a prompt has no tokens"):
        generate(llama, [[]], regex="a")


@pytest.mark.parametrize("jump_forward", ["off", "ff_tokens", "retokenize", "draft"])
def test_sentencepiece_model_spells_text_with_byte_fallback(sentencepiece, jump_forward):
    schema = {"enum": [{"café": ["東京", " the 🦊"]}, {"café": [" the\n"]}]}
    options = {"max_tokens": 120, "temperature": 1.0, "seed": 4, "jump_forward": jump_forward}
    result = generate(sentencepiece, "the café", json=schema, **options)
    assert result.finish_reasons == ["stop"]
    assert result.parsed[0] in schema["enum"]
    assert tokenizer_of(sentencepiece).vocabulary.bytes_of(result.token_ids[0]).decode() == result.texts[0]
    processor = StructuredLogitsProcessor(sentencepiece, json=schema, max_tokens=120)
    answer = sentencepiece.create_completion("the café", max_tokens=120, logits_processor=[processor])
    assert processor.parse(answer["choices"][0]["text"]) in schema["enum"]


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


@pytest.mark.parametrize(("mode", "max_passes"), [("ff_tokens", 6), ("retokenize", 6), ("draft", 12)])
def test_forced_text_is_read_in_few_calls(llama, evaluated, mode, max_passes):
    constraint = {"regex": r'\{"temperature_in_celsius": [0-9]{2}, "city": "Madrid"\}'}
    plain = generate(llama, CHAT, **constraint)
    num_passes = len(evaluated)
    evaluated.clear()
    llama.reset()
    jumped = generate(llama, CHAT, **constraint, jump_forward=mode)
    assert json.loads(jumped.texts[0]).keys() == json.loads(plain.texts[0]).keys()
    assert len(evaluated) <= max_passes < num_passes
    if mode == "ff_tokens":
        read = [token for call in evaluated for token in call]
        assert jumped.token_ids[0][: len(read) - jumped.usage[0].prompt_tokens] == read[jumped.usage[0].prompt_tokens :]


@pytest.mark.parametrize("n_batch", [3, 512])
def test_logits_of_drafts_are_those_of_tokens_read_one_by_one(llama, monkeypatch, n_batch):
    """Up to llama.cpp's rounding, which is another for several tokens at once."""
    prompt, drafts = llama.tokenize(MARIA.encode()), llama.tokenize(b" Her name is Maria", add_bos=False)

    def logits_of(*reads):
        llama.reset()
        feed = LlamaFeed(llama, prompt)
        for tokens in reads:
            feed.append([tokens])
            yield feed.forward(len(tokens) + 1 if len(reads) == 1 else 1)[0].numpy().copy()
            assert llama.input_ids[: llama.n_tokens].tolist()[-len(tokens) :] == [*tokens]

    expected = np.concatenate([*logits_of(*([token] for token in drafts))])
    monkeypatch.setattr(llama, "n_batch", n_batch)
    (found,) = logits_of(drafts)
    assert found.shape == (len(drafts) + 1, llama.n_vocab())  # the first ones are those after the prompt
    assert np.abs(found[1:] - expected).max() < 2 < np.abs(found[:-1] - expected).max(1).min()


def test_model_that_has_forgotten_tokens_draws_from_no_old_logits(llama):
    prompt = llama.tokenize(MARIA.encode())
    llama.reset()
    feed = LlamaFeed(llama, prompt)
    expected = int(feed.forward(1).argmax())
    feed.append([llama.tokenize(b" Her name is", add_bos=False)])
    assert int(feed.forward(1).argmax()) != expected
    feed.forget(0, llama.n_tokens - len(prompt))
    assert next(llama.generate(prompt, temp=0.0)) == expected
