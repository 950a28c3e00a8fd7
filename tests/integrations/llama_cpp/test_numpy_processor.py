"""StructuredLogitsProcessor in the methods of ``llama_cpp.Llama``."""

import json
import re
from typing import Literal

import jsonschema
import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: make test-llama-cpp")

from structout import GrammarError, StructOutError, StructuredOutputsParams
from structout.integrations.llama_cpp import StructuredLogitsProcessor, tokenizer_of

CHAT = [{"role": "user", "content": "Maria Lopez is 34 years old and lives in Madrid."}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FULL = [*range(20)] * 25  # a prompt that leaves 12 of 512 positions


def tool(name, properties):
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


def row(llama, value=0.0):
    return np.full(llama.n_vocab(), value, dtype=np.single)


def allowed(scores):
    return set(np.flatnonzero(scores > -np.inf).tolist())


# -- texts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constraint", "check"),
    [
        ({"json": PERSON}, lambda value: jsonschema.validate(value, PERSON) is None),
        ({"regex": "[0-9]{2} years"}, lambda value: re.fullmatch("[0-9]{2} years", value)),
        ({"choice": Literal["Madrid", "Paris"]}, lambda value: value in ("Madrid", "Paris")),
        ({"grammar": 'root ::= "She is " [0-9]+ "."'}, lambda value: re.fullmatch(r"She is [0-9]+\.", value)),
    ],
)
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_text_of_each_method_satisfies_the_constraint(llama, constraint, check, temperature):
    options = {"max_tokens": 60, "temperature": temperature, "seed": 3}
    processors = [StructuredLogitsProcessor(llama, **constraint, max_tokens=60) for _ in range(3)]
    answer = llama.create_chat_completion(CHAT, logits_processor=processors[:1], **options)
    called = llama("Maria is", logits_processor=processors[1:2], **options)
    pieces = llama.create_completion("Maria is", logits_processor=processors[2:], stream=True, **options)
    streamed = "".join(piece["choices"][0]["text"] for piece in pieces)
    texts = [answer["choices"][0]["message"]["content"], called["choices"][0]["text"], streamed]
    assert answer["choices"][0]["finish_reason"] == called["choices"][0]["finish_reason"] == "stop"
    assert all(check(processor.parse(text)) for processor, text in zip(processors, texts, strict=True)), texts
    assert streamed == called["choices"][0]["text"]


def test_tools_are_called_by_their_names(llama):
    tools = [tool("weather", {"city": {"enum": ["Madrid", "Paris"]}}), tool("time", {"city": {"const": "Paris"}})]
    params = StructuredOutputsParams(tools=tools, tool_choice="required", parallel_tool_calls=False)
    processor = StructuredLogitsProcessor(llama, params=params, max_tokens=80)
    answer = llama.create_chat_completion(CHAT, max_tokens=80, logits_processor=[processor], temperature=0)
    (call,) = processor.parse(answer["choices"][0]["message"]["content"])
    assert call.name in ("weather", "time")


def test_text_ends_within_max_tokens(llama):
    for max_tokens in (12, 40):
        processor = StructuredLogitsProcessor(llama, json={"type": "array"}, max_tokens=max_tokens)
        answer = llama("A long list:", max_tokens=max_tokens, logits_processor=[processor], temperature=2.0, seed=1)
        assert type(processor.parse(answer["choices"][0]["text"])) is list


def test_text_ends_within_the_context_of_the_model(llama):
    processor = StructuredLogitsProcessor(llama, regex="(a b )*c")
    answer = llama(FULL, max_tokens=None, logits_processor=[processor], temperature=0)
    assert re.fullmatch("(a b )*c", processor.parse(answer["choices"][0]["text"]))


# -- masks -----------------------------------------------------------------------------


def test_mask_allows_what_the_constraint_allows(llama):
    vocabulary = tokenizer_of(llama).vocabulary
    processor = StructuredLogitsProcessor(llama, regex="ab")
    scores = row(llama)
    assert processor(np.array([5, 6], dtype=np.intc), scores) is scores
    texts = {vocabulary.token_bytes[token] for token in allowed(scores)}
    assert texts == {b"a", b"ab"}
    (token,) = (token for token in allowed(scores) if vocabulary.token_bytes[token] == b"ab")
    assert allowed(processor(np.array([5, 6, token], dtype=np.intc), row(llama))) == set(vocabulary.stop_token_ids)
    stop = vocabulary.stop_token_ids[0]
    assert allowed(processor(np.array([5, 6, token, stop], dtype=np.intc), row(llama))) == set(
        vocabulary.stop_token_ids
    )


def test_mask_of_a_strided_row_is_written_in_place(llama):
    rows = np.zeros((llama.n_vocab(), 3), dtype=np.single)
    scores = rows[:, 1]
    assert StructuredLogitsProcessor(llama, regex="ab")(np.array([5], dtype=np.intc), scores) is scores
    expected = StructuredLogitsProcessor(llama, regex="ab")(np.array([5], dtype=np.intc), row(llama))
    assert allowed(rows[:, 1]) == allowed(expected)
    assert not rows[:, [0, 2]].any()


# -- errors ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ({"grammar": 'root ::= "a" ('}, r"grammar does not parse"),
        ({"regex": "(a"}, r"a \( is not closed"),
        ({"json": {"type": "strin"}}, "strin"),
        ({"regex": "[a-z]{300}", "max_tokens": 20}, r"tokens"),
    ],
)
def test_bad_constraint_is_refused_before_any_text(llama, constraint, message):
    with pytest.raises(GrammarError, match=message):
        StructuredLogitsProcessor(llama, **constraint)


def test_arguments_that_do_not_go_together_raise(llama, monkeypatch):
    with pytest.raises(ValueError, match="expected a constraint or params, got params and regex"):
        StructuredLogitsProcessor(llama, regex="a", params=StructuredOutputsParams(regex="a"))
    with pytest.raises(ValueError, match="exactly one"):
        StructuredLogitsProcessor(llama)
    monkeypatch.setattr(llama, "draft_model", object())
    with pytest.raises(ValueError, match="does not go with the draft_model"):
        StructuredLogitsProcessor(llama, regex="a")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_second_text_ends_at_once_and_raises_the_reason(llama):
    processor = StructuredLogitsProcessor(llama, regex="[a-z]+", max_tokens=8)
    first = llama("One:", max_tokens=8, logits_processor=[processor], temperature=0)["choices"][0]["text"]
    assert processor.parse(first) == first
    second = llama("Two:", max_tokens=8, logits_processor=[processor], temperature=0)["choices"][0]
    assert (second["text"], second["finish_reason"]) == ("", "stop")
    with pytest.raises(ValueError, match="serves one text: make another"):
        processor.parse(second["text"])


def test_token_that_the_constraint_does_not_allow_leaves_only_stops(llama):
    stops = set(tokenizer_of(llama).vocabulary.stop_token_ids)
    processor = StructuredLogitsProcessor(llama, regex="[0-9]+")
    processor(np.array([5], dtype=np.intc), row(llama))
    (letter,) = llama.tokenize(b"x", add_bos=False)
    for _ in range(2):
        scores = row(llama, -np.inf)
        with pytest.raises(StructOutError, match=f"does not allow token {letter}, b'x'"):
            processor(np.array([5, letter], dtype=np.intc), scores)
        assert allowed(scores) == stops
    with pytest.raises(StructOutError, match="does not allow token"):
        processor.parse("1")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_text_that_does_not_fit_the_context_raises_the_reason(llama):
    processor = StructuredLogitsProcessor(llama, regex="[a-z]{200}")
    answer = llama(FULL, max_tokens=None, logits_processor=[processor])["choices"][0]
    assert (answer["text"], answer["finish_reason"]) == ("", "stop")
    with pytest.raises(GrammarError, match="tokens"):
        processor.parse("")


def test_scores_of_another_model_raise(llama):
    processor = StructuredLogitsProcessor(llama, regex="a")
    with pytest.raises(ValueError, match=r"expected float32 scores of 49152 tokens, got float64 \[49152\]"):
        processor(np.array([5], dtype=np.intc), row(llama).astype(np.float64))
    scores = np.zeros(4, dtype=np.single)
    with pytest.raises(ValueError, match="got float64"):
        processor(np.array([5], dtype=np.intc), scores)
    assert allowed(scores) < set(tokenizer_of(llama).vocabulary.stop_token_ids)


def test_text_of_a_method_that_drops_its_processors_is_not_parsed(llama):
    processor = StructuredLogitsProcessor(llama, regex="[0-9]+")
    answer = llama("One:", max_tokens=3, logits_processor=[processor], logit_bias={5: 1.0})
    with pytest.raises(StructOutError, match="the model did not call this processor"):
        processor.parse(answer["choices"][0]["text"])


# -- reports of users of local runtimes ------------------------------------------------


def test_tool_with_a_long_string_is_served(llama):
    """ggml-org/llama.cpp 25746: maxLength of 2,000 in one tool."""
    tools = [tool("write", {"path": {"type": "string"}, "content": {"type": "string", "maxLength": 2000}})]
    params = StructuredOutputsParams(tools=tools, tool_choice="required", parallel_tool_calls=False)
    processor = StructuredLogitsProcessor(llama, params=params, max_tokens=200)
    answer = llama.create_chat_completion(CHAT, max_tokens=200, logits_processor=[processor], temperature=0)
    assert [call.name for call in processor.parse(answer["choices"][0]["message"]["content"])] == ["write"]


def test_sixty_four_tools_are_served(llama):
    """ggml-org/llama.cpp 25895: more than 58 tools."""
    tools = [tool(f"tool_{i}", {"value": {"type": "string", "maxLength": 20}}) for i in range(64)]
    params = StructuredOutputsParams(tools=tools, tool_choice="tool_63")
    processor = StructuredLogitsProcessor(llama, params=params, max_tokens=80)
    answer = llama.create_chat_completion(CHAT, max_tokens=80, logits_processor=[processor], temperature=0)
    assert {call.name for call in processor.parse(answer["choices"][0]["message"]["content"])} == {"tool_63"}


def test_tool_with_an_empty_object_schema_is_served(llama):
    """ggml-org/llama.cpp 25923."""
    tools = [{"type": "function", "function": {"name": "now", "parameters": {}}}, tool("empty", {})]
    for name in ("now", "empty"):
        params = StructuredOutputsParams(tools=tools, tool_choice=name)
        processor = StructuredLogitsProcessor(llama, params=params, max_tokens=60)
        answer = llama.create_chat_completion(CHAT, max_tokens=60, logits_processor=[processor], temperature=0)
        calls = processor.parse(answer["choices"][0]["message"]["content"])
        assert {call.name for call in calls} == {name}
        assert all(type(json.loads(json.dumps(call.arguments))) is dict for call in calls)


def test_bad_schema_of_a_tool_is_refused_with_its_place(llama):
    tools = [tool("good", {}), tool("bad", {"x": {"type": "string", "minLength": -1}})]
    with pytest.raises(GrammarError) as refused:
        StructuredLogitsProcessor(llama, tools=tools)
    assert refused.value.pointer == "#/format/tags/1/content/json_schema/properties/x/minLength"
    assert "must not be negative, got -1 (in the tag " in str(refused.value)
    assert '"name": "bad"' in str(refused.value)
