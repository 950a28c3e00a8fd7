"""generate with the states of the constraints on the device, beside the loop with the
manager's masks."""

import copy
import functools

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM

from structout import StructuredOutputsParams
from structout.integrations.transformers import generate, masked_generate
from structout.integrations.transformers.constrained_sampler import DeadEndError

PROMPTS = ["order:", "an order of a rather long prompt:", "a", "b"]
SAMPLED = {"do_sample": True, "temperature": 1.0, "top_k": 0}
CONSTRAINTS = {
    "regex": {"regex": "(name|orderId): [a-z]{1,12}; that is all[.!]"},
    "long": {"regex": r"([a-z]+ ?)*!"},
    "choice": {"choice": ["naïve 東京 🦊", "naïve 東京", "no"]},
    "schema": {"json": {"enum": ["naïve 東京", {"n": [1, None]}]}},
}

NO = StructuredOutputsParams(choice=["no"], backend="native")


@pytest.mark.parametrize("sampling", [SAMPLED, SAMPLED | {"top_p": 0.9, "top_k": 40}, {"do_sample": False}])
@pytest.mark.parametrize("constraint", CONSTRAINTS.values(), ids=CONSTRAINTS)
def test_generate_with_a_device_fsm_draws_the_texts_of_the_managers_masks(parts, constraint, sampling):
    """Also of left-padded rows, and of those that run out of tokens."""
    params = StructuredOutputsParams(**constraint, backend="native")
    options = {"num_return_sequences": 2, "max_new_tokens": 40, "seed": 3, "params": params, **sampling}
    expected = generate(*parts, PROMPTS, **options)
    result = generate(*parts, PROMPTS, device_fsm=True, **options)
    assert (result.texts, result.is_complete) == (expected.texts, expected.is_complete)


def test_masked_generate_with_a_device_fsm_follows_a_constraint_of_its_own_in_each_row(parts, manager):
    model, tokenizer = parts
    prompt = tokenizer(PROMPTS, return_tensors="pt", padding=True, padding_side="left")
    options = {"custom_generate": masked_generate, "manager": manager, "request_ids": [*CONSTRAINTS], "seed": 5}
    drawn = {}
    for device_fsm in (False, True):
        for name, constraint in CONSTRAINTS.items():
            manager.add_request(name, StructuredOutputsParams(**constraint, backend="native"))
        drawn[device_fsm] = model.generate(**prompt, **options, **SAMPLED, device_fsm=device_fsm, max_new_tokens=50)
        for name in CONSTRAINTS:
            manager.finish_request(name)
    assert torch.equal(drawn[True], drawn[False])


def test_masked_generate_with_a_device_fsm_goes_on_where_requests_are(parts, manager):
    model, _ = parts
    prompt = torch.tensor([[5, 6]])
    first, second = (manager.vocabulary.token_bytes.index(text) for text in (b"a", b"b"))
    manager.add_request(
        "a", StructuredOutputsParams(regex="ab[xy]", backend="native"), output_token_ids=[first, second]
    )
    options = {"custom_generate": masked_generate, "manager": manager, "request_ids": ["a"], "device_fsm": True}
    ids = model.generate(prompt, **options, max_new_tokens=5)
    assert manager.is_terminated("a")
    assert manager.vocabulary.token_bytes[ids[0, 2]] in (b"x", b"y")


def test_generate_with_a_device_fsm_ends_soon_after_the_longest_text(parts):
    model, tokenizer = parts
    passes = []

    @functools.wraps(model.forward)
    def forward(*args, **kwargs):
        passes.append(1)
        return type(model).forward(model, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "forward", forward)
        result = generate(model, tokenizer, PROMPTS, params=NO, device_fsm=True, max_new_tokens=500)
    assert result.texts == ["no"] * len(PROMPTS)
    assert len(passes) == 16


# -- refusals --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grammar": 'root ::= "(" root ")" | "a"'}, "is served by native, which has no automaton of its constraint"),
        ({"regex": "a", "jump_forward": "draft"}, "device_fsm does not go with jump_forward='draft'"),
        ({"regex": "a", "repetition_penalty": 1.5}, "leave out RepetitionPenaltyLogitsProcessor"),
        ({"regex": "a", "max_time": 1.0}, "does not go with stopping criteria: leave out MaxTimeCriteria"),
    ],
)
def test_generate_with_a_device_fsm_refuses_what_needs_the_cpu(parts, options, message):
    with pytest.raises(ValueError, match=message):
        generate(*parts, "order:", device_fsm=True, **options)


def test_masked_generate_with_a_device_fsm_refuses_streams_and_free_rows(parts, manager):
    model, _ = parts
    manager.add_request("a", StructuredOutputsParams(choice=["yes"]))
    options = {"custom_generate": masked_generate, "manager": manager, "device_fsm": True, "max_new_tokens": 4}
    with pytest.raises(ValueError, match="device_fsm does not go with stream_to"):
        model.generate(torch.tensor([[5]]), **options, request_ids=["a"], stream_to=object())
    with pytest.raises(ValueError, match="device_fsm needs a request for each row, got none for row 1"):
        model.generate(torch.tensor([[5], [5]]), **options, request_ids=["a", None])


def test_generate_with_a_device_fsm_refuses_models_without_a_static_cache(parts):
    config = MambaConfig(vocab_size=1024, hidden_size=32, state_size=8, num_hidden_layers=1)
    with pytest.raises(ValueError, match="a model that takes a StaticCache, which MambaForCausalLM does not"):
        generate(MambaForCausalLM(config), parts[1], "order:", params=NO, device_fsm=True)


def test_generate_with_a_device_fsm_and_nan_logits_raises(parts):
    broken = copy.deepcopy(parts[0])
    broken.lm_head.weight.data.fill_(float("nan"))
    with pytest.raises(DeadEndError, match="the model gave NaN"):
        generate(broken, parts[1], "order:", params=NO, device_fsm=True)
