"""masked_generate under transformers' own generate, with a real model and tokenizer."""

import json
import os

import jsonschema
import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration, TopKLogitsWarper

import structout
from structout import StructuredOutputManager, StructuredOutputsConfig, StructuredOutputsParams
from structout.integrations.transformers import masked_generate
from structout.integrations.transformers.constrained_sampler import DeadEndError, _mix, row_seeds
from support import fresh_process
from support.recording_streamer import RecordingStreamer

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Alan"]}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
JSON = StructuredOutputsParams(json=SCHEMA)
CHOICE = StructuredOutputsParams(choice=["yes", "no"])
SAMPLED = {"do_sample": True, "temperature": 1.0, "top_k": 0, "max_new_tokens": 16}


def generate(parts, request_params, prompts=None, **options):
    """The texts of one call, each row under its own request."""
    model, tokenizer = parts
    width = model.lm_head.weight.shape[0]
    config = StructuredOutputsConfig(any_whitespace=False)
    with StructuredOutputManager(tokenizer, width, config) as manager:
        request_ids = [None if params is None else f"r{i}" for i, params in enumerate(request_params)]
        for request_id, params in zip(request_ids, request_params, strict=True):
            if params is not None:
                manager.add_request(request_id, params)
        prompts = prompts or ["order:"] * len(request_params)
        prompt = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
        ids = model.generate(
            **prompt, custom_generate=masked_generate, manager=manager, request_ids=request_ids, **options
        )
        return [tokenizer.decode(row[prompt["input_ids"].shape[1] :], skip_special_tokens=True) for row in ids]


def test_import_structout_reaches_the_integration_by_attribute():
    script = "import structout; print(structout.integrations.transformers.masked_generate.__name__)"
    run = fresh_process.run("-c", script, env=dict(os.environ))
    assert (run.returncode, run.stdout) == (0, "masked_generate\n"), run.stderr


def test_integrations_without_such_an_adapter_raise_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'structout\.integrations' has no attribute 'absent'"):
        structout.integrations.absent  # noqa: B018 - the access itself raises


def test_masked_generate_with_constrained_and_free_rows(parts):
    options = {"do_sample": True, "temperature": 0.8, "top_p": 0.95, "max_new_tokens": 60}
    texts = generate(parts, [JSON, None, CHOICE, JSON], seed=3, **options)
    for text in (texts[0], texts[3]):
        jsonschema.validate(json.loads(text), SCHEMA)
    assert texts[2] in ("yes", "no")
    assert texts[1]
    assert generate(parts, [JSON, None, CHOICE, JSON], seed=3, **options) == texts


def test_masked_generate_greedy_free_rows_equal_transformers_own(parts):
    model, tokenizer = parts
    prompt = tokenizer(["order:", "order:"], return_tensors="pt")
    expected = model.generate(**prompt, do_sample=False, max_new_tokens=20)
    text = tokenizer.decode(expected[0][prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert generate(parts, [None, None], do_sample=False, max_new_tokens=20) == [text, text]


# -- what is refused before a token is drawn -------------------------------------------


def check_refusal(parts, manager, request_ids, error, message, **options):
    """The call raises before the first token is streamed, and the manager draws no
    mask."""
    model, _ = parts
    streamer = RecordingStreamer()
    prompt = torch.tensor([[5]] * len(request_ids)) if "input_ids" not in options else options.pop("input_ids")
    options = {"max_new_tokens": 4, "do_sample": False, **options}
    with pytest.raises(error, match=message):
        model.generate(
            prompt,
            custom_generate=masked_generate,
            manager=manager,
            request_ids=request_ids,
            stream_to=streamer,
            **options,
        )
    assert streamer.tokens == []
    assert manager.stats().rows_filled == 0


def test_masked_generate_needs_one_request_id_per_row(parts, manager):
    message = "one entry for each of 1 rows, got 2"
    check_refusal(parts, manager, ["a", "b"], ValueError, message, input_ids=torch.tensor([[5]]))


def test_masked_generate_refuses_an_unknown_request(parts, manager):
    check_refusal(parts, manager, [None, "a"], structout.UnknownRequestError, "request 'a' is not with the manager")


def test_masked_generate_refuses_a_finished_request(parts, manager):
    manager.add_request("a", CHOICE)
    manager.finish_request("a")
    check_refusal(parts, manager, ["a"], structout.UnknownRequestError, "request 'a' is not with the manager")


def test_masked_generate_refuses_a_request_whose_text_is_complete(parts, manager):
    model, tokenizer = parts
    manager.add_request("a", CHOICE)
    options = {"custom_generate": masked_generate, "manager": manager, "request_ids": ["a"], "max_new_tokens": 8}
    ids = model.generate(torch.tensor([[5]]), **options)
    assert tokenizer.decode(ids[0, 1:], skip_special_tokens=True) in ("yes", "no")
    assert manager.is_terminated("a")
    with pytest.raises(ValueError, match="request 'a' is complete already: its row would be unconstrained"):
        model.generate(torch.tensor([[5]]), **options)


def test_masked_generate_refuses_one_request_for_two_rows(parts, manager):
    manager.add_request("a", CHOICE)
    check_refusal(parts, manager, ["a", "a"], ValueError, "request 'a' is given for more than one row")


def test_masked_generate_raises_the_error_of_a_failed_request(parts, manager):
    manager.add_request("a", StructuredOutputsParams(regex="("))
    check_refusal(parts, manager, ["a"], structout.GrammarError, r"a \( is not closed")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, "got beam search: leave out num_beams=2"),
        ({"num_beams": 2, "do_sample": True}, "got beam sample: leave out num_beams=2"),
        ({"prompt_lookup_num_tokens": 3}, "got assisted generation: leave out prompt_lookup_num_tokens=3"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "got contrastive search: leave out penalty_alpha=0.6"),
        ({"return_dict_in_generate": True}, "returns token ids alone: leave out return_dict_in_generate"),
        (
            {"return_dict_in_generate": True, "output_scores": True},
            "returns token ids alone: leave out return_dict_in_generate, output_scores",
        ),
        ({"output_logits": True}, "returns token ids alone: leave out output_logits"),
    ],
)
def test_masked_generate_refuses_options_it_would_ignore(parts, manager, options, message):
    manager.add_request("a", CHOICE)
    num_beams = options.get("num_beams", 1)
    prompt = torch.tensor([[5]])
    check_refusal(parts, manager, ["a"] + [None] * (num_beams - 1), ValueError, message, input_ids=prompt, **options)


# -- transformers' contract of a custom loop -------------------------------------------


def test_masked_generate_with_several_sequences_per_prompt(parts, manager):
    model, tokenizer = parts
    for request_id in ("a", "b"):
        manager.add_request(request_id, CHOICE)
    options = {"num_return_sequences": 3, "do_sample": True, "max_new_tokens": 8}
    ids = model.generate(
        torch.tensor([[5]]), custom_generate=masked_generate, manager=manager, request_ids=["a", "b", None], **options
    )
    assert len(ids) == 3
    assert {tokenizer.decode(row[1:], skip_special_tokens=True) for row in ids[:2]} <= {"yes", "no"}


def test_masked_generate_reads_the_parameters_of_warpers_passed_by_the_caller(parts):
    greedy = generate(parts, [None], do_sample=False, max_new_tokens=16)
    top_1 = [TopKLogitsWarper(1)]
    assert generate(parts, [None], logits_processor=top_1, seed=3, **SAMPLED) == greedy
    assert generate(parts, [None], seed=3, **SAMPLED) != greedy


def test_masked_generate_ends_a_row_with_the_stop_token_of_its_request(parts, manager):
    """Also where transformers knows of no end token."""
    model, tokenizer = parts
    manager.add_request("a", CHOICE)
    prompt = torch.tensor([[5], [5]])
    options = {"eos_token_id": None, "pad_token_id": None, "max_new_tokens": 12, "do_sample": False}
    config = model.generation_config
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "eos_token_id", None)
        patch.setattr(config, "pad_token_id", None)
        ids = model.generate(
            prompt, custom_generate=masked_generate, manager=manager, request_ids=["a", None], **options
        )
    text = [token for token in ids[0, 1:].tolist() if token != tokenizer.eos_token_id]
    assert tokenizer.decode(text) in ("yes", "no")
    assert ids[0, 1:].tolist() == text + [tokenizer.eos_token_id] * (12 - len(text))


def test_masked_generate_continues_a_given_cache(parts, manager):
    model, tokenizer = parts
    prompt = tokenizer("order: coffee", return_tensors="pt")["input_ids"]
    options = {"custom_generate": masked_generate, "manager": manager, "request_ids": [None], **SAMPLED}
    expected = model.generate(prompt, **options)
    cache = model(prompt[:, :-1], use_cache=True).past_key_values
    assert torch.equal(model.generate(prompt, past_key_values=cache, **options), expected)


def test_masked_generate_without_a_cache_or_with_a_static_one_draws_the_same_texts(parts):
    expected = generate(parts, [JSON, None], ["order:", "order: coffee"], seed=5, **SAMPLED)
    for options in ({"use_cache": False}, {"cache_implementation": "static", "disable_compile": True}):
        assert generate(parts, [JSON, None], ["order:", "order: coffee"], seed=5, **SAMPLED, **options) == expected


def test_masked_generate_reads_inputs_embeds(parts, manager):
    model, tokenizer = parts
    prompt = tokenizer("order: coffee", return_tensors="pt")["input_ids"]
    options = {"custom_generate": masked_generate, "manager": manager, "request_ids": [None], **SAMPLED}
    expected = model.generate(prompt, **options)[:, prompt.shape[1] :]
    embeddings = model.get_input_embeddings()(prompt)
    assert torch.equal(model.generate(inputs_embeds=embeddings, **options), expected)


def test_masked_generate_with_an_encoder_decoder_model(parts, manager):
    _, tokenizer = parts
    torch.manual_seed(0)
    config = T5Config(vocab_size=1024, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=5)
    config.eos_token_id = config.pad_token_id = tokenizer.eos_token_id
    model = T5ForConditionalGeneration(config).eval()
    prompt = tokenizer(["order:", "order: coffee"], return_tensors="pt", padding=True)
    prompt.pop("token_type_ids", None)
    options = {"do_sample": False, "max_new_tokens": 12}
    expected = model.generate(**prompt, **options)
    manager.add_request("a", CHOICE)
    ids = model.generate(**prompt, custom_generate=masked_generate, manager=manager, request_ids=["a", None], **options)
    assert tokenizer.decode(ids[0, 1:], skip_special_tokens=True) in ("yes", "no")
    assert torch.equal(ids[1], expected[1])


def test_masked_generate_row_alone_equals_the_row_beside_a_longer_prompt(parts):
    alone = generate(parts, [None], ["order:"], seed=3, **SAMPLED)
    padded = generate(parts, [None, None], ["order:", "order: of a much longer prompt than that"], seed=3, **SAMPLED)
    assert padded[0] == alone[0]
    assert padded[1] != alone[0]


def test_masked_generate_streams_every_token(parts):
    streamer = RecordingStreamer()
    text = generate(parts, [None], stream_to=streamer, seed=5, **SAMPLED)[0]
    _, tokenizer = parts
    prompt_length = len(tokenizer("order:")["input_ids"])
    assert tokenizer.decode(streamer.tokens[prompt_length:], skip_special_tokens=True) == text
    assert streamer.has_ended


@pytest.mark.parametrize(("request_params", "row"), [([None], "no constraint"), ([CHOICE], "request 'r0'")])
def test_masked_generate_with_nan_logits_names_the_row(parts, request_params, row):
    with pytest.raises(DeadEndError, match=f"row 0 .{row}.: nothing can be drawn: the model gave NaN"):
        generate(parts, request_params, logits_processor=[lambda ids, logits: logits * float("nan")], max_new_tokens=9)


# -- seeds -----------------------------------------------------------------------------


def test_row_seeds_of_neighbouring_seeds_share_no_noise(parts):
    texts = [text for seed in range(4) for text in generate(parts, [None] * 3, seed=seed, **SAMPLED)]
    assert len(set(texts)) == 12
    seeds = [number for seed in (-1, 0, 1, 2, 2**63, 2**64 - 2) for number in row_seeds(seed, 1000)]
    assert len(set(seeds)) == 6000
    assert all(-(2**63) <= number < 2**63 for number in seeds)
    assert row_seeds(0, 8)[:3] == row_seeds(0, 3)
    assert row_seeds(-1, 3) == row_seeds(2**64 - 1, 3)


def test_mix_gives_the_known_answers_of_splitmix64():
    """The first three outputs from state 0. The generator adds a constant to its state
    in each step."""
    answers = [_mix(i * 0x9E3779B97F4A7C15) for i in range(3)]
    assert answers == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
