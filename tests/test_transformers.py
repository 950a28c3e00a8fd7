"""structout under transformers' generate, with a real model and tokenizer."""

import json

import jsonschema
import pytest
import torch

import structout
from structout.default_model import load_default_model
from structout.integrations.transformers import masked_generate

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Alan"]}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRUCTOUT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        model, tokenizer, *_ = load_default_model()
    tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def generate(parts, request_params, **options):
    model, tokenizer = parts
    width = model.lm_head.weight.shape[0]
    config = structout.StructuredOutputsConfig(any_whitespace=False)
    with structout.StructuredOutputManager(tokenizer, width, config) as manager:
        request_ids = []
        for i, params in enumerate(request_params):
            request_ids.append(None if params is None else f"r{i}")
            if params is not None:
                manager.add_request(f"r{i}", params)
                manager.wait_ready(f"r{i}", timeout=30)
        prompt = tokenizer(["order:"] * len(request_params), return_tensors="pt")
        ids = model.generate(
            **prompt, custom_generate=masked_generate, manager=manager, request_ids=request_ids, **options
        )
        return [tokenizer.decode(row[prompt["input_ids"].shape[1] :], skip_special_tokens=True) for row in ids]


def test_constrained_and_free_rows_together(parts):
    json_params = structout.StructuredOutputsParams(json=SCHEMA)
    choice = structout.StructuredOutputsParams(choice=["yes", "no"])
    options = {"do_sample": True, "temperature": 0.8, "top_p": 0.95, "max_new_tokens": 60}
    texts = generate(parts, [json_params, None, choice, json_params], seed=3, **options)
    for text in (texts[0], texts[3]):
        jsonschema.validate(json.loads(text), SCHEMA)
    assert texts[2] in ("yes", "no")
    assert texts[1]
    assert generate(parts, [json_params, None, choice, json_params], seed=3, **options) == texts


def test_free_greedy_rows_equal_transformers_own(parts):
    model, tokenizer = parts
    prompt = tokenizer(["order:", "order:"], return_tensors="pt")
    wanted = model.generate(**prompt, do_sample=False, max_new_tokens=20)
    text = tokenizer.decode(wanted[0][prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert generate(parts, [None, None], do_sample=False, max_new_tokens=20) == [text, text]


def test_one_request_id_a_row(parts):
    model, tokenizer = parts
    options = {"custom_generate": masked_generate, "request_ids": ["a", "b"], "max_new_tokens": 2}
    manager = structout.StructuredOutputManager(tokenizer, model.lm_head.weight.shape[0])
    with manager, pytest.raises(ValueError, match="one entry for each of 1 rows, got 2"):
        model.generate(torch.tensor([[5]]), manager=manager, **options)
