"""generate: texts from prompts in one call, with and without jump-forward."""

import copy
import dataclasses
import enum
import functools
import gc
import json
import re
import warnings
import weakref
from concurrent.futures import CancelledError
from typing import Literal

import jsonschema
import pydantic
import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM, StopStringCriteria

from structout import GrammarError, StructuredOutputsParams
from structout.integrations.transformers import Monitor, generate, masked_generate, shared_manager, stream
from structout.integrations.transformers.constrained_sampler import DeadEndError
from structout.integrations.transformers.decode import DecodingLoop
from structout.jump_forward import JumpForward
from support.canonical_cases import ORDER
from support.recording_streamer import RecordingStreamer

CONSTRAINTS = {
    "order": {"json": ORDER},
    "regex": {"regex": "(name|orderId): [a-z]{1,5}; that is all[.!]"},
    "no choice": {"choice": ["naïve 東京 🦊"]},
}
PROMPTS = ["order:", "an order of a rather long prompt:"]
SAMPLED = {"do_sample": True, "temperature": 1.0, "top_k": 0}


class Passes(Monitor):
    def __init__(self):
        self.count = 0

    def after_step(self, texts):
        self.count += 1


@dataclasses.dataclass
class Item:
    name: Literal["apple", "pear"]
    count: int


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Model(pydantic.BaseModel, extra="forbid"):
    size: Size
    items: list[Item] = pydantic.Field(max_length=2)


# -- results ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constraint", "check"),
    [
        ({"json": ORDER}, lambda value: jsonschema.validate(value, ORDER) is None),
        ({"json": Model}, lambda value: isinstance(value, Model) and all(type(x) is Item for x in value.items)),
        ({"json": Item}, lambda value: type(value) is Item and value.name in ("apple", "pear")),
        ({"json": Literal["yes", 3, None]}, lambda value: value in ("yes", 3, None)),
        ({"json": Size | None}, lambda value: value is None or value in Size),
        ({"json": {"$ref": "urn:a"}, "schemas": {"urn:a": {"enum": ["x", 5]}}}, lambda value: value in ("x", 5)),
        ({"choice": Size}, lambda value: value in Size),
        ({"choice": Literal["yes", "no"]}, lambda value: value in ("yes", "no")),
        ({"regex": "[a-z]{3,9}"}, lambda value: re.fullmatch("[a-z]{3,9}", value)),
        ({"grammar": 'root ::= "a" | "b" root'}, lambda value: re.fullmatch("b*a", value)),
    ],
)
def test_generate_gives_valid_texts_and_their_values(parts, constraint, check):
    result = generate(*parts, PROMPTS, **constraint, **SAMPLED, seed=3, max_new_tokens=150)
    assert result.is_complete == [True, True]
    assert all(map(check, result.parsed)), result.texts
    assert (result.weakened, result.annotations) == ((), ())
    manager = shared_manager(parts[1], 1024)
    assert result.texts == [manager.vocabulary.text_of(ids) for ids in result.token_ids]
    assert manager.num_requests == 0


def test_generate_writes_keys_in_the_order_that_it_is_asked_for(parts):
    names = ["a", "b"]
    properties = {name: {"const": 1} for name in names}
    schema = {"type": "object", "properties": properties, "required": names, "additionalProperties": False}

    def orders(key_order):
        options = {"num_return_sequences": 40, "do_sample": True, "temperature": 100.0, "top_k": 0}
        result = generate(*parts, "text:", json=schema, key_order=key_order, **options)
        return {tuple(value) for value in result.parsed}

    assert orders(None) == orders("declared") == {("a", "b")}
    assert orders("any") == {("a", "b"), ("b", "a")}


def test_generate_closes_objects_where_it_is_asked_to(parts):
    schema = {"type": "object", "properties": {}, "minProperties": 0}
    options = SAMPLED | {"max_new_tokens": 40}
    result = generate(*parts, "text:", json=schema, additional_properties="closed", **options)
    assert result.parsed == [{}]
    with pytest.raises(ValueError, match="additional_properties does not go with params"):
        generate(*parts, "text:", params=StructuredOutputsParams(json=schema), additional_properties="closed")


def test_generate_gives_tool_calls_their_classes_reasons_and_usage(parts):
    tokenizer = parts[1]
    options = SAMPLED | {"seed": 4, "max_new_tokens": 300}
    params = StructuredOutputsParams(tools=[Model, Item], tool_choice="required", parallel_tool_calls=False)
    result = generate(*parts, PROMPTS, params=params, **options)
    assert result.finish_reasons == ["tool_calls", "tool_calls"]
    for (call,), prompt, ids, usage in zip(result.parsed, PROMPTS, result.token_ids, result.usage, strict=True):
        assert type(call.value) is {"Model": Model, "Item": Item}[call.name]
        assert (usage.prompt_tokens, usage.completion_tokens) == (len(tokenizer(prompt)["input_ids"]), len(ids) + 1)
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    short = generate(*parts, "a", tools=[Item], max_new_tokens=2, fit="off")
    assert (short.finish_reasons, short.usage[0].completion_tokens) == (["length"], 2)
    assert generate(*parts, "a", choice=["yes"]).finish_reasons == ["stop"]


def test_generate_takes_tags_with_classes_for_schemas(parts):
    content = {"type": "json_schema", "json_schema": Item}
    tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<i>", "content": content, "end": "</i>"}}
    result = generate(*parts, "items:", structural_tag=tag, key_order="any", **SAMPLED, max_new_tokens=200)
    assert Item(**json.loads(result.texts[0].removeprefix("<i>").removesuffix("</i>")))
    assert content["json_schema"] is Item


def test_generate_gives_tools_to_the_chat_template(parts):
    tokenizer = parts[1]
    with pytest.MonkeyPatch.context() as patch:
        template = "{{ tools[0].function.name }}: {{ tools[0].function.parameters.required | join(',') }}"
        patch.setattr(tokenizer, "chat_template", template, raising=False)
        result = generate(*parts, [{"role": "user", "content": "x"}], tools=[Item], max_new_tokens=1, fit="off")
        assert result.usage[0].prompt_tokens == len(tokenizer("Item: name,count")["input_ids"])


def test_generate_of_incomplete_texts_has_no_values(parts):
    result = generate(*parts, "order:", json=ORDER, max_new_tokens=3, fit="off")
    assert (result.is_complete, result.parsed, len(result.token_ids[0])) == ([False], [None], 3)


def test_generate_of_a_text_that_is_whole_at_its_limit_is_complete(parts):
    whole = generate(*parts, "order:", json=ORDER, do_sample=False)
    options = {"do_sample": False, "max_new_tokens": len(whole.token_ids[0]), "fit": "off"}
    at_limit = generate(*parts, "order:", json=ORDER, **options)
    assert at_limit == dataclasses.replace(whole, usage=at_limit.usage, params=at_limit.params)
    assert at_limit.usage[0].completion_tokens == whole.usage[0].completion_tokens - 1  # without the stop token


def test_generate_of_a_text_that_is_cut_off_where_it_may_end_has_a_value(parts):
    options = {"max_new_tokens": 3, "fit": "off", "logits_processor": [allow_only(parts, "x")]}
    result = generate(*parts, "order:", regex="x{3,9}", **options)
    assert (result.is_complete, result.finish_reasons, result.parsed) == ([True], ["length"], ["xxx"])


def test_generate_of_a_text_that_is_whole_at_its_limit_has_stopped(parts):
    result = generate(*parts, "order:", grammar='root ::= "x"+', max_new_tokens=3)
    assert (result.is_complete, result.finish_reasons, result.parsed) == ([True], ["stop"], result.texts)


def allow_only(parts, text):
    (token,) = parts[1](text)["input_ids"]
    return lambda ids, scores: torch.full_like(scores, -1e9).index_fill_(1, torch.tensor([token]), 0.0)


def test_generate_asks_the_model_for_no_stop_token_that_alone_may_follow(parts):
    monitor = Passes()
    result = generate(*parts, PROMPTS, choice=["!"], monitor=monitor)
    assert (result.texts, result.is_complete, monitor.count) == (["!", "!"], [True, True], 1)
    assert [usage.completion_tokens for usage in result.usage] == [2, 2]  # with the stop token


def test_generate_draws_the_texts_of_masked_generate(parts, manager):
    """Also of left-padded rows."""
    model, tokenizer = parts
    for options in (SAMPLED | {"top_p": 0.9}, {"do_sample": False}):
        result = generate(model, tokenizer, PROMPTS, json=ORDER, manager=manager, seed=5, max_new_tokens=150, **options)
        for i in range(2):
            manager.add_request(f"r{i}", StructuredOutputsParams(json=ORDER))
        prompt = tokenizer(PROMPTS, return_tensors="pt", padding=True, padding_side="left")
        options |= {"custom_generate": masked_generate, "manager": manager, "request_ids": ["r0", "r1"], "seed": 5}
        ids = model.generate(**prompt, max_new_tokens=150, **options)
        texts = tokenizer.batch_decode(ids[:, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
        assert result.texts == texts
        for i in range(2):
            manager.finish_request(f"r{i}")


def test_generate_takes_prompts_as_text_tokens_and_chat_messages(parts):
    model, tokenizer = parts
    text = tokenizer("user: order: assistant: ")["input_ids"]
    options = SAMPLED | {"regex": "[a-z]{20}", "seed": 1, "max_new_tokens": 30}
    with pytest.MonkeyPatch.context() as patch:
        template = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}assistant: "
        patch.setattr(tokenizer, "chat_template", template, raising=False)
        chat = [{"role": "user", "content": "order:"}]
        expected = generate(model, tokenizer, "user: order: assistant: ", **options).texts
        for prompts in (text, [text], chat, [chat]):
            assert generate(model, tokenizer, prompts, **options).texts == expected


def test_generate_with_several_sequences_gives_each_prompt_consecutive_texts(parts):
    result = generate(*parts, PROMPTS, regex="[a-z]{20}", num_return_sequences=3, **SAMPLED, max_new_tokens=30)
    assert len(set(result.texts)) == 6
    greedy = generate(*parts, PROMPTS, regex="[a-z]{20}", num_return_sequences=2, do_sample=False).texts
    assert (greedy[0], greedy[2]) == (greedy[1], greedy[3])
    alone = generate(*parts, PROMPTS[1:], regex="[a-z]{20}", do_sample=False).texts
    assert alone == greedy[2:3]


def test_generate_limits_texts_to_512_tokens_and_to_the_models_positions(parts):
    assert len(generate(*parts, "order:", regex="🦊{1000}", fit="off", do_sample=False).token_ids[0]) == 512
    long_prompt = [5] * 4090
    assert len(generate(*parts, long_prompt, regex="[a-z]{999}", fit="off", do_sample=False).token_ids[0]) == 6


def test_shared_manager_lives_as_long_as_its_tokenizer(parts):
    tokenizer = copy.deepcopy(parts[1])
    manager = shared_manager(tokenizer, 1024)
    assert shared_manager(tokenizer, 1024) is manager
    assert shared_manager(tokenizer, 1056) is not manager
    assert shared_manager(parts[1], 1024) is not manager
    references = [weakref.ref(manager), weakref.ref(tokenizer)]
    del manager, tokenizer
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_generate_keeps_no_tokenizer_alive(parts):
    tokenizer = copy.deepcopy(parts[1])
    assert generate(parts[0], tokenizer, "order:", choice=["yes"], jump_forward="draft").texts == ["yes"]
    reference = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert reference() is None


# -- a constraint for each prompt, free ones too ---------------------------------------


def test_generate_with_a_constraint_for_each_prompt_gives_each_its_own_values(parts):
    prompts = [*PROMPTS, "free:"]
    params = [StructuredOutputsParams(json=Item), StructuredOutputsParams(choice=["yes", "no"]), None]
    result = generate(*parts, prompts, params=params, num_return_sequences=2, seed=3, max_new_tokens=60, **SAMPLED)
    assert [type(value) for value in result.parsed[:2]] == [Item, Item]
    assert set(result.parsed[2:4]) <= {"yes", "no"}
    free = zip(result.texts, result.token_ids, result.parsed, result.finish_reasons, strict=True)
    for text, ids, value, reason in list(free)[4:]:
        is_over = len(ids) < 60
        assert (value, reason) == ((text, "stop") if is_over else (None, "length"))
        assert parts[1].eos_token_id not in ids
    alone = generate(*parts, PROMPTS[1:], params=params[1:2], do_sample=False)
    assert alone.texts == generate(*parts, prompts, params=params, do_sample=False, max_new_tokens=60).texts[1:2]
    assert shared_manager(parts[1], 1024).num_requests == 0


# -- texts that grow -------------------------------------------------------------------


@pytest.mark.parametrize("mode", JumpForward)
def test_stream_gives_the_text_of_generate_in_pieces(parts, mode):
    options = {"choice": ["naïve 東京 🦊!"], "jump_forward": mode}
    pieces = stream(*parts, "order:", **options)
    read = list(pieces)
    assert "".join(read) == pieces.result.texts[0] == generate(*parts, "order:", **options).texts[0]
    assert all(read)
    assert mode is not JumpForward.OFF or len(read) > 5
    assert list(pieces) == []


def test_stream_that_is_closed_ends_its_thread_and_its_request(parts):
    pieces = stream(*parts, "order:", regex="[a-z]{3000}", max_new_tokens=3000)
    assert next(pieces)
    pieces.close()
    with pytest.raises(CancelledError, match="the stream was closed"):
        list(pieces)
    assert shared_manager(parts[1], 1024).num_requests == 0


def test_stream_raises_the_errors_of_generate_and_takes_one_prompt(parts):
    with pytest.raises(GrammarError, match=r"a \( is not closed"):
        list(stream(*parts, "order:", regex="("))
    several = [
        (PROMPTS, {}, "stream takes one prompt"),
        ("order:", {"num_return_sequences": 2}, "stream gives one text"),
    ]
    for prompts, more, message in several:
        with pytest.raises(ValueError, match=message):
            stream(*parts, prompts, regex="a", **more)


@pytest.mark.parametrize("mode", ["off", "ff_tokens", "draft"])
def test_generate_with_a_streamer_streams_prompt_and_text(parts, mode):
    streamer = RecordingStreamer()
    result = generate(*parts, "order:", choice=["yes"], streamer=streamer, jump_forward=mode)
    tokens = [*parts[1]("order:")["input_ids"], *result.token_ids[0], parts[1].eos_token_id]
    assert (streamer.tokens, streamer.has_ended) == (tokens, True)


# -- what the prompt tells the model ---------------------------------------------------


def prompt_of(parts, monkeypatch, template, *, messages=None, **options):
    """The text of the prompt that ``generate`` makes of chat messages."""
    model, tokenizer = parts
    monkeypatch.setattr(tokenizer, "chat_template", template, raising=False)
    streamer = RecordingStreamer()
    messages = messages or [{"role": "user", "content": "Hi"}]
    result = generate(model, tokenizer, messages, **options, fit="off", streamer=streamer, max_new_tokens=1)
    return tokenizer.decode(streamer.tokens[: result.usage[0].prompt_tokens])


WITHOUT_TOOLS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def test_generate_whose_chat_template_ignores_tools_warns_and_describes_them_if_asked(parts, monkeypatch):
    with pytest.warns(UserWarning, match="chat template ignores tools.* describe=True puts them") as record:
        assert prompt_of(parts, monkeypatch, WITHOUT_TOOLS, tools=[Item]) == "user: Hi\n"
    assert __file__ in {warning.filename for warning in record}
    prompt = prompt_of(parts, monkeypatch, WITHOUT_TOOLS, tools=[Item], describe=True)
    assert re.fullmatch(
        r"system: You can call these tools:\n\{\"name\": \"Item\".*<tool_call>.*\nuser: Hi\n", prompt, re.S
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        in_template = "{{ tools[0].function.name }}\n" + WITHOUT_TOOLS
        params = StructuredOutputsParams(tools=[Item], tool_format="hermes")
        assert prompt_of(parts, monkeypatch, in_template, params=params, describe=True) == "Item\nuser: Hi\n"
        prompt_of(parts, monkeypatch, WITHOUT_TOOLS, choice=["yes"])


def test_generate_writes_calls_as_the_chat_template_does(parts, monkeypatch):
    model, tokenizer = parts
    call = "<do>{{ c.function.name }} with {{ c.function.arguments | tojson }}</do>"
    template = f"{{{{ tools | length }}}}{WITHOUT_TOOLS}{{% for c in messages[-1].tool_calls %}}{call}{{% endfor %}}"
    monkeypatch.setattr(tokenizer, "chat_template", template, raising=False)
    messages = [{"role": "user", "content": "Hi"}]
    options = {"tools": [Item], "tool_choice": "Item"}
    for tool_format, begin in ((None, "<do>Item with {"), ("mimo", "<tool_call><function=Item>")):
        params = StructuredOutputsParams(**options, tool_format=tool_format)
        result = generate(model, tokenizer, [messages, messages], params=params, max_new_tokens=200)
        assert all(text.startswith(begin) for text in result.texts)
        assert [[call.name for call in calls] for calls in result.parsed] == [["Item"], ["Item"]]


@pytest.mark.parametrize(
    ("constraint", "description"),
    [
        ({"json": {"enum": ["é", 1]}}, 'Answer with JSON in this form:\none of "é", 1'),
        ({"choice": ["yes", "no"]}, 'Answer with one of these: "yes", "no"'),
        ({"params": StructuredOutputsParams(json_object=True)}, "Answer with a JSON object."),
    ],
)
def test_generate_describes_the_constraint_after_the_system_message(parts, monkeypatch, constraint, description):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    prompt = prompt_of(parts, monkeypatch, WITHOUT_TOOLS, messages=messages, describe=True, **constraint)
    assert prompt == f"system: Be brief.\n\n{description}\nuser: Hi\n"


def test_generate_describes_after_the_parts_of_a_system_message(parts, monkeypatch):
    messages = [{"role": "system", "content": [{"type": "text", "text": "Be terse"}]}, {"role": "user", "content": "y"}]
    template = "{% for part in messages[0].content %}{{ part.text }}{% endfor %}"
    prompt = prompt_of(parts, monkeypatch, template, messages=messages, choice=["a"], describe=True)
    assert prompt == 'Be terse\n\nAnswer with one of these: "a"'


def test_generate_does_not_describe_a_regular_expression(parts, monkeypatch):
    with pytest.raises(ValueError, match="describe this constraint yourself"):
        prompt_of(parts, monkeypatch, WITHOUT_TOOLS, regex="a+", describe=True)


# -- refusals --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, GrammarError, "expected exactly one constraint, got none"),
        ({"regex": "a", "json": {}}, GrammarError, "expected exactly one constraint, got json, regex"),
        ({"regex": "("}, GrammarError, r"a \( is not closed"),
        ({"params": StructuredOutputsParams(regex="a"), "regex": "a"}, ValueError, "got params and another"),
        (
            {"params": StructuredOutputsParams(json=True), "key_order": "any"},
            ValueError,
            "give params its own key_order",
        ),
        (
            {"regex": "a", "key_order": "any"},
            GrammarError,
            "key_order applies to json, grammars, tags and tools only, got a regex constraint",
        ),
        ({"json": True, "key_order": "sorted"}, GrammarError, 'key_order must be "declared" or "any", got \'sorted\''),
        (
            {"params": StructuredOutputsParams(json=True), "formats": "strict"},
            ValueError,
            "give params its own formats",
        ),
        (
            {"regex": "a", "formats": "strict"},
            GrammarError,
            "formats apply to json, tags and tools only, got a regex constraint",
        ),
        ({"json": {"format": "path"}, "formats": "strict"}, GrammarError, 'and formats="strict" asks for it'),
        ({"regex": "a", "num_beams": 2}, ValueError, "got beam search: leave out num_beams=2"),
        ({"regex": "a", "assistant_model": object()}, ValueError, "does not support assistant_model"),
        (
            {"params": [StructuredOutputsParams(regex="a")] * 2},
            ValueError,
            "params needs one entry for each of the 1 prompts, got 2",
        ),
        ({"params": [{"regex": "a"}]}, TypeError, "params must be StructuredOutputsParams, or a list of these"),
        ({"regex": "a", "stop_strings": ["a"]}, ValueError, "stop_strings need a criterion"),
        ({"regex": "a", "describe": True}, ValueError, "describe=True needs prompts that are chat messages"),
        ({"regex": "a", "prompt_lookup_num_tokens": 2}, ValueError, "leave out prompt_lookup_num_tokens=2"),
        ({"regex": "a", "return_dict_in_generate": True}, ValueError, "leave out return_dict_in_generate"),
        ({"regex": "a", "num_return_sequences": 0}, ValueError, "num_return_sequences must be at least 1, got 0"),
        ({"regex": "a", "jump_forward": "far"}, ValueError, "'far' is not a valid JumpForward"),
        ({"regex": "a", "max_new_tokens": 4096}, ValueError, "need 4,099 positions, but the model has 4,096"),
    ],
)
def test_generate_refuses_before_a_forward_pass(parts, options, error, message):
    model, tokenizer = parts

    @functools.wraps(model.forward)
    def forward(*args, **kwargs):
        raise AssertionError("a forward pass")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "forward", forward)
        with pytest.raises(error, match=message):
            generate(model, tokenizer, "order:", **options)
    assert shared_manager(tokenizer, 1024).num_requests == 0


@pytest.mark.parametrize("prompts", [[], "", ["order:", ""], [[]]])
def test_generate_refuses_prompts_without_tokens(parts, prompts):
    with pytest.raises(ValueError, match="a prompt has no tokens"):
        generate(*parts, prompts, regex="a")


@pytest.mark.parametrize("prompts", [{"role": "user", "content": "x"}, {"input_ids": [[5]]}])
def test_generate_refuses_a_dict_as_prompts(parts, prompts):
    with pytest.raises(ValueError, match="prompts must be a text, token ids, chat messages or a list of these"):
        generate(*parts, prompts, regex="a")


def test_generate_takes_token_ids_as_a_tensor(parts):
    expected = generate(*parts, [[5, 6]], regex="[a-z]{3}").texts
    assert generate(*parts, torch.tensor([[5, 6]]), regex="[a-z]{3}").texts == expected


def test_generate_that_fails_leaves_no_request(parts):
    model, tokenizer = parts
    with pytest.raises(DeadEndError, match="the model gave NaN"):
        generate(model, tokenizer, "order:", regex="a", logits_processor=[lambda ids, scores: scores * float("nan")])
    assert shared_manager(tokenizer, 1024).num_requests == 0


# -- jump-forward ----------------------------------------------------------------------


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("constraint", CONSTRAINTS.values(), ids=CONSTRAINTS)
def test_generate_with_drafts_draws_the_tokens_of_generate_without(parts, constraint, sampled):
    """For one prompt, and for left-padded ones."""
    for seed, (prompts, n) in enumerate([("order:", 1), (PROMPTS, 2)]):
        results, passes = {}, {}
        for mode in ("off", "draft"):
            monitor = Passes()
            sampling = SAMPLED if sampled else {"do_sample": False}
            options = {"num_return_sequences": n, "max_new_tokens": 150, "monitor": monitor, "seed": seed}
            result = generate(*parts, prompts, **constraint, jump_forward=mode, **options, **sampling)
            results[mode], passes[mode] = (result.token_ids, result.is_complete), monitor.count
        assert results["draft"] == results["off"]
        assert passes["off"] == max(map(len, results["off"][0]))  # none for the stop tokens, which alone may follow
        assert passes["draft"] < passes["off"]


@pytest.mark.parametrize("mode", ["ff_tokens", "retokenize"])
@pytest.mark.parametrize("constraint", CONSTRAINTS.values(), ids=CONSTRAINTS)
def test_generate_with_forced_tokens_writes_valid_texts_in_fewer_passes(parts, constraint, mode):
    model, tokenizer = parts
    for prompts in ("order:", PROMPTS * 2):
        monitor = Passes()
        options = SAMPLED | {"seed": 1, "max_new_tokens": 150, "monitor": monitor}
        result = generate(model, tokenizer, prompts, **constraint, jump_forward=mode, **options)
        assert monitor.count < max(map(len, result.token_ids))
        assert all(result.is_complete)
        manager = shared_manager(tokenizer, 1024)
        for tokens in result.token_ids:
            again = {"output_token_ids": [*tokens, manager.vocabulary.stop_token_ids[0]]}
            manager.add_request("again", StructuredOutputsParams(**constraint), **again)
            manager.wait_ready("again", 30)
            assert manager.is_terminated("again")
            manager.finish_request("again")
        for value in result.parsed if "json" in constraint else ():
            jsonschema.validate(value, ORDER)


@pytest.mark.parametrize("mode", JumpForward)
def test_decoding_loop_feeds_the_model_each_text_and_nothing_else(parts, mode, monkeypatch):
    """In every step the logits are those of a model that starts anew."""
    model, tokenizer = parts
    forward = DecodingLoop._forward
    prompt_ids = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    num_steps = []

    def checked(loop, live):
        logits = forward(loop, live)
        expected = []
        for i in live:
            text = loop._texts[i]
            whole = [*prompt_ids[i], *text.token_ids, *text.drafts]
            expected.append(model(input_ids=torch.tensor([whole])).logits[0, -1 - len(text.drafts) :])
        torch.testing.assert_close(logits, torch.cat(expected), atol=1e-4, rtol=1e-4)
        num_steps.append(len(live))
        return logits

    monkeypatch.setattr(DecodingLoop, "_forward", checked)
    generate(*parts, PROMPTS, json=ORDER, jump_forward=mode, seed=1, max_new_tokens=150, **SAMPLED)
    assert len(num_steps) > 10
    assert set(num_steps) == {1, 2}


@pytest.mark.parametrize("mode", JumpForward)
def test_generate_stops_at_max_new_tokens_within_a_jump(parts, mode):
    for max_new_tokens in (1, 3, 5, 9):
        options = {"choice": ["naïve 東京 🦊"], "jump_forward": mode, "max_new_tokens": max_new_tokens}
        result = generate(*parts, "order:", fit="off", **options)
        assert (len(result.token_ids[0]), result.is_complete) == (max_new_tokens, [False])


def test_masked_generate_jumps_in_constrained_rows_beside_free_ones(parts, manager):
    model, tokenizer = parts
    prompt = tokenizer(PROMPTS, return_tensors="pt", padding=True, padding_side="left")
    texts = {}
    for mode in ("off", "draft", "ff_tokens"):
        manager.add_request("a", StructuredOutputsParams(json=ORDER))
        options = {"custom_generate": masked_generate, "manager": manager, "request_ids": ["a", None], "seed": 5}
        ids = model.generate(**prompt, **options, **SAMPLED, jump_forward=mode, max_new_tokens=80)
        texts[mode] = tokenizer.batch_decode(ids[:, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
        manager.finish_request("a")
    assert texts["off"] == texts["draft"]
    jsonschema.validate(json.loads(texts["ff_tokens"][0]), ORDER)
    assert texts["ff_tokens"][1] == texts["off"][1]


@pytest.mark.parametrize("mode", ["off", "draft", "ff_tokens"])
def test_masked_generate_streams_every_token_of_its_jumps(parts, manager, mode):
    model, _ = parts
    manager.add_request("a", StructuredOutputsParams(json=ORDER))
    streamer = RecordingStreamer()
    options = {"custom_generate": masked_generate, "manager": manager, "request_ids": ["a"], "stream_to": streamer}
    ids = model.generate(torch.tensor([[5, 6]]), **options, jump_forward=mode, max_new_tokens=150, **SAMPLED)
    assert (streamer.tokens, streamer.has_ended) == (ids[0].tolist(), True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_cache": False}, "jump_forward='draft' needs a DynamicCache, got NoneType"),
        ({"cache_implementation": "static"}, "needs a DynamicCache, got StaticCache"),
        ({"repetition_penalty": 1.2}, "does not go with logits processors: leave out RepetitionPenaltyLogitsProcessor"),
        ({"stop_strings": ["a"]}, "stopping criteria on the text: leave out StopStringCriteria"),
    ],
)
def test_generate_refuses_what_needs_one_token_a_step(parts, manager, options, message):
    model, tokenizer = parts
    if "stop_strings" in options:  # transformers keeps the tokenizer from custom loops
        options = {"stopping_criteria": [StopStringCriteria(tokenizer, **options)]}
    manager.add_request("a", StructuredOutputsParams(json=ORDER))
    with pytest.raises(ValueError, match=message):
        model.generate(
            torch.tensor([[5, 6]]),
            custom_generate=masked_generate,
            manager=manager,
            request_ids=["a"],
            jump_forward="draft",
            max_new_tokens=20,
            **options,
        )
    assert manager.stats().rows_filled == 0


def test_generate_with_jump_forward_needs_a_model_that_can_forget(parts):
    _, tokenizer = parts
    mamba = MambaForCausalLM(MambaConfig(hidden_size=8, num_hidden_layers=1, vocab_size=1024))
    with pytest.raises(ValueError, match="MambaForCausalLM cannot forget tokens: jump_forward='draft' must be 'off'"):
        generate(mamba, tokenizer, "order:", regex="ab", jump_forward="draft")
    assert generate(mamba, tokenizer, "order:", regex="ab").texts == ["ab"]


@pytest.mark.parametrize("constraint", [{"json": Item}, {"tools": [Item], "tool_choice": "required"}])
def test_generate_lets_the_prompt_tell_whether_a_reasoning_has_begun(parts, monkeypatch, constraint):
    thought = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    called = (
        "{% for c in m.tool_calls %}<call>{{ {'name': c.function.name, 'with': c.function.arguments} | tojson }}</call>"
    )
    template = "{% for m in messages %}" + thought + "{{ m.content }}" + called + "{% endfor %}{% endfor %}"
    opened = template + "{% if add_generation_prompt %}<think>{% endif %}"
    monkeypatch.setattr(parts[1], "chat_template", opened, raising=False)
    params = StructuredOutputsParams(**constraint, parallel_tool_calls=False, reasoning="auto")
    prompts = [[{"role": "user", "content": "x"}], "x <think></think>", "x"]
    options = SAMPLED | {"max_new_tokens": 120, "seed": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = generate(*parts, prompts, params=params, num_return_sequences=4, confidence=True, **options)
    assert result.is_complete == [True] * 12
    has_ended = ["</think>" in text for text in result.texts]
    assert has_ended[:4] == [True] * 4
    for text, parsed in zip(result.texts, result.parsed, strict=True):
        items = [call.value for call in parsed] if "tools" in constraint else [parsed]
        assert [type(item) for item in items] == [Item]
        assert text.endswith(("}</call>" if "tools" in constraint else "}",))
    for leaves in result.confidence[0].values if "tools" in constraint else [result.confidence[0].values]:
        leaves = leaves["arguments"] if "tools" in constraint else leaves
        assert leaves["count"].value == (result.parsed[0][0].value if "tools" in constraint else result.parsed[0]).count
    assert not any(text.startswith("{") for text in result.texts[:4])
    assert [each.reasoning for each in result.params[::4]] == [("", "</think>"), "disabled", "auto"]
