"""Texts that end within the limits of transformers' loops."""

import json
import re

import jsonschema
import pytest
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from structout import GrammarError, StructuredOutputsParams
from structout.errors import GrammarErrorKind
from structout.integrations.transformers import (
    StructuredLogitsProcessor,
    generate,
    masked_generate,
    stream,
    structured_batching,
)
from structout.integrations.transformers.decode import Text
from structout.jump_forward import JumpForward

PROMPTS = ["order:", "an order of a rather long prompt:"]
PATTERN = r"(name|orderId): [a-z ]*; that is all[.!]*"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["name", "tags"],
    "additionalProperties": False,
}
SAMPLED = {"do_sample": True, "temperature": 1.0, "top_k": 0, "seed": 3}


@pytest.fixture
def num_needed(manager):
    manager.add_request("needed", StructuredOutputsParams(regex=PATTERN))
    manager.wait_ready("needed")
    return manager.num_needed("needed")


def check(result, limit):
    assert result.finish_reasons == ["stop"] * len(result.texts)
    assert all(result.is_complete)
    assert all(usage.completion_tokens <= limit for usage in result.usage)
    assert all(re.fullmatch(PATTERN, text) for text in result.texts)


@pytest.mark.parametrize("spare", [0, 1, 5])
@pytest.mark.parametrize("mode", JumpForward)
def test_generate_ends_each_text_within_its_limit(parts, manager, num_needed, mode, spare):
    limit = num_needed + spare
    options = {"manager": manager, "max_new_tokens": limit, "num_return_sequences": 3, "jump_forward": mode}
    result = generate(*parts, PROMPTS, regex=PATTERN, **options, **SAMPLED)
    check(result, limit)
    assert all(result.fitted)


def test_generate_of_a_schema_ends_within_its_limit(parts):
    result = generate(*parts, PROMPTS, json=SCHEMA, num_return_sequences=4, max_new_tokens=40, **SAMPLED)
    assert all(result.is_complete)
    for text in result.texts:
        jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize("option", ["max_new_tokens", "max_length", "generation_config"])
def test_generate_with_a_limit_below_the_shortest_text_is_refused_before_a_pass(parts, manager, num_needed, option):
    model, tokenizer = parts
    num_prompt_tokens = len(tokenizer(PROMPTS[0])["input_ids"])
    limit = {
        "max_new_tokens": num_needed - 1,
        "max_length": num_prompt_tokens + num_needed - 1,
        "generation_config": GenerationConfig(max_new_tokens=num_needed - 1, pad_token_id=0),
    }[option]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "forward", lambda *args, **kwargs: pytest.fail("a forward pass"))
        with pytest.raises(
            GrammarError, match=f"at least {num_needed} tokens, max_tokens is {num_needed - 1}"
        ) as caught:
            generate(*parts, PROMPTS[0], regex=PATTERN, manager=manager, **{option: limit})
    assert (caught.value.kind, caught.value.num_needed) == (GrammarErrorKind.LIMIT, num_needed)


def test_generate_far_from_its_limit_draws_what_it_draws_without(parts):
    options = {"regex": "[a-z]{1,9}", "max_new_tokens": 60, "num_return_sequences": 3, **SAMPLED}
    fitted, free = generate(*parts, PROMPTS, **options), generate(*parts, PROMPTS, fit="off", **options)
    assert fitted.texts == free.texts
    assert not any(fitted.fitted)


def test_generate_with_fit_off_cuts_texts_off(parts, num_needed):
    result = generate(*parts, PROMPTS, regex=PATTERN, fit="off", max_new_tokens=num_needed - 1, **SAMPLED)
    assert (result.finish_reasons, result.is_complete, result.fitted) == (["length"] * 2, [False] * 2, [False] * 2)


def test_stream_ends_within_its_limit(parts, num_needed):
    pieces = stream(*parts, "order:", regex=PATTERN, max_new_tokens=num_needed + 3, **SAMPLED)
    text = "".join(pieces)
    check(pieces.result, num_needed + 3)
    assert pieces.result.texts == [text]


def test_masked_generate_keeps_the_lower_one_of_two_limits(parts, manager, num_needed):
    model, tokenizer = parts
    params = StructuredOutputsParams(regex=PATTERN)
    manager.add_request("low", params, max_tokens=num_needed + 2)
    manager.add_request("high", params, max_tokens=num_needed + 200)
    prompt = tokenizer(PROMPTS, return_tensors="pt", padding=True, padding_side="left")
    options = {"custom_generate": masked_generate, "manager": manager, "request_ids": ["low", "high"]}
    texts: list[Text] = []
    model.generate(**prompt, **options, **SAMPLED, texts=texts, max_new_tokens=num_needed + 6)
    assert all(text.is_terminated for text in texts)
    assert len(texts[0].token_ids) <= num_needed + 2
    assert len(texts[1].token_ids) <= num_needed + 6


# -- states on the device --------------------------------------------------------------


@pytest.mark.parametrize("limit", [17, 24, 40])
def test_generate_with_a_device_fsm_draws_cut_texts_again_as_the_manager_does(parts, manager, limit):
    params = [StructuredOutputsParams(regex=PATTERN), StructuredOutputsParams(choice=["no"])]
    options = {"params": params, "manager": manager, "max_new_tokens": limit, "num_return_sequences": 2, **SAMPLED}
    expected = generate(*parts, PROMPTS, **options)
    result = generate(*parts, PROMPTS, device_fsm=True, **options)
    assert (result.texts, result.is_complete) == (expected.texts, [True] * 4)


def test_generate_with_a_device_fsm_and_filters_ends_within_its_limit(parts, num_needed):
    options = SAMPLED | {"top_p": 0.9, "top_k": 40, "num_return_sequences": 3, "max_new_tokens": num_needed + 4}
    check(generate(*parts, PROMPTS, regex=PATTERN, device_fsm=True, **options), num_needed + 4)


# -- transformers' own loops -----------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 3}, {"prompt_lookup_num_tokens": 3}, {"do_sample": True}], ids=str
)
def test_logits_processor_ends_each_text_within_its_limit(parts, manager, num_needed, options):
    model, tokenizer = parts
    torch.manual_seed(0)
    limit = num_needed + 3
    processor = StructuredLogitsProcessor(manager=manager, regex=PATTERN, max_new_tokens=limit)
    prompt = tokenizer(PROMPTS[:1], return_tensors="pt")
    ids = model.generate(**prompt, logits_processor=[processor], max_new_tokens=limit, **{"do_sample": False} | options)
    tokens = ids[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.eos_token_id in tokens
    assert re.fullmatch(PATTERN, tokenizer.decode(tokens, skip_special_tokens=True))


def test_logits_processor_with_a_limit_below_the_shortest_text_refuses_its_first_call(parts, manager, num_needed):
    processor = StructuredLogitsProcessor(manager=manager, regex=PATTERN, max_new_tokens=num_needed - 1)
    with pytest.raises(GrammarError, match=f"at least {num_needed} tokens"):
        parts[0].generate(**parts[1](PROMPTS[:1], return_tensors="pt"), logits_processor=[processor], max_new_tokens=9)


def test_continuous_batching_ends_texts_within_their_limits(parts, manager, num_needed):
    model, tokenizer = parts
    stop = tokenizer.eos_token_id
    config = GenerationConfig(do_sample=False, eos_token_id=stop, pad_token_id=0)
    limits = {"a": num_needed, "b": num_needed + 5, "c": num_needed - 1}
    # Without a number of blocks the cache would take 60% of the memory.
    small = ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=32)
    options = {"default_request_id": "needed", "generation_config": config, "continuous_batching_config": small}
    with structured_batching(model, manager, **options) as batching:
        for name, limit in limits.items():
            batching.add_request(tokenizer("order:")["input_ids"], request_id=name, max_new_tokens=limit)
        batching.start()
        outputs = {output.request_id: output.generated_tokens for output in (batching.get_result() for _ in limits)}
        errors = dict(batching.structured.errors)
    for name in "ab":
        assert len(outputs[name]) <= limits[name]
        assert re.fullmatch(PATTERN, tokenizer.decode(outputs[name][:-1]))
        assert outputs[name][-1] == stop
    assert outputs["c"] == [stop]
    assert errors == {"c": f"the text needs at least {num_needed} tokens, max_tokens is {num_needed - 1}"}
