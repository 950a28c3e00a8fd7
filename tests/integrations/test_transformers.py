"""structout under transformers' generate, with a real model and tokenizer."""

import json

import jsonschema
import pytest
import torch

import structout
from structout.cli.demo_model import load_demo_model
from structout.integrations.transformers.custom_generate import _mix, masked_generate, row_seeds

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
        model, tokenizer, *_ = load_demo_model()
    tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def generate(parts, request_params, prompts=None, **options):
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
        prompts = prompts or ["order:"] * len(request_params)
        prompt = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
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


SAMPLED = {"do_sample": True, "temperature": 1.0, "top_k": 0, "max_new_tokens": 16}


def test_a_row_alone_is_the_row_beside_a_longer_prompt(parts):
    alone = generate(parts, [None], ["order:"], seed=3, **SAMPLED)
    padded = generate(parts, [None, None], ["order:", "order: of a much longer prompt than that"], seed=3, **SAMPLED)
    assert padded[0] == alone[0]
    assert padded[1] != alone[0]


def test_rows_share_no_noise_with_those_of_the_next_seed(parts):
    texts = [text for seed in range(4) for text in generate(parts, [None] * 3, seed=seed, **SAMPLED)]
    assert len(set(texts)) == 12
    seeds = [number for seed in (-1, 0, 1, 2, 2**63, 2**64 - 2) for number in row_seeds(seed, 1000)]
    assert len(set(seeds)) == 6000
    assert all(-(2**63) <= number < 2**63 for number in seeds)
    assert row_seeds(0, 8)[:3] == row_seeds(0, 3)
    assert row_seeds(-1, 3) == row_seeds(2**64 - 1, 3)


def test_mixing_gives_splitmix64_s_known_answers():
    """Its first three outputs from state 0; each adds the same step to its input."""
    answers = [_mix(i * 0x9E3779B97F4A7C15) for i in range(3)]
    assert answers == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_tokens_are_streamed(parts):
    class Streamer:
        def __init__(self):
            self.tokens, self.has_ended = [], False

        def put(self, tokens):
            self.tokens += tokens.flatten().tolist()

        def end(self):
            self.has_ended = True

    streamer = Streamer()
    text = generate(parts, [None], stream_to=streamer, seed=5, **SAMPLED)[0]
    _, tokenizer = parts
    prompt_length = len(tokenizer("order:")["input_ids"])
    assert tokenizer.decode(streamer.tokens[prompt_length:], skip_special_tokens=True) == text
    assert streamer.has_ended


def test_a_dict_is_refused(parts):
    with pytest.raises(ValueError, match="returns token ids alone; leave out return_dict_in_generate"):
        generate(parts, [None], return_dict_in_generate=True, max_new_tokens=2)
