"""structured_batching: transformers' continuous batching under masks, on the CPU."""

import json
import re

import jsonschema
import pytest
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching.requests import RequestState

from structout import GrammarError, StructuredOutputsParams, UnknownRequestError
from structout.integrations.transformers import generate, structured_batching

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Alan"]}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PROMPTS = ["order:", "an order of a rather long prompt:", "the"]
# Without these the cache would take 60% of the memory.
SMALL = {"num_blocks": 64, "page_size": 16, "max_batch_tokens": 32, "max_requests_per_batch": 8}


@pytest.fixture
def prompt_ids(parts):
    return [parts[1](prompt)["input_ids"] for prompt in PROMPTS]


def config_of(parts, **options):
    return GenerationConfig(eos_token_id=parts[1].eos_token_id, pad_token_id=parts[1].eos_token_id, **options)


def batching(parts, manager, generation=None, **options):
    return structured_batching(
        parts[0],
        manager,
        generation_config=generation or config_of(parts, do_sample=False, max_new_tokens=60),
        continuous_batching_config=ContinuousBatchingConfig(**SMALL),
        **options,
    )


def text_of(parts, output):
    assert output.error is None
    return parts[1].decode(output.generated_tokens, skip_special_tokens=True)


def test_generate_batch_gives_the_greedy_texts_of_generate(parts, manager, prompt_ids):
    expected = generate(*parts, PROMPTS, json=SCHEMA, manager=manager, do_sample=False, max_new_tokens=60).texts
    manager.add_request("a", StructuredOutputsParams(json=SCHEMA))
    attention = parts[0].config._attn_implementation
    with batching(parts, manager, default_request_id="a"):
        outputs = parts[0].generate_batch(prompt_ids)
    assert [text_of(parts, output) for output in outputs.values()] == expected
    assert (manager.num_requests, manager.num_tokens("a")) == (1, 0)
    assert parts[0].config._attn_implementation == attention


def test_requests_name_their_own_constraints_or_none(parts, manager, prompt_ids):
    manager.add_request("json", StructuredOutputsParams(json=SCHEMA))
    manager.add_request("choice", StructuredOutputsParams(choice=["yes", "no"]))
    manager.wait_all()
    generation = config_of(parts, do_sample=True, temperature=0.8, top_k=50, max_new_tokens=60, num_return_sequences=2)
    with batching(parts, manager, generation) as cb:
        cb.start()
        for i, name in enumerate(["json", "choice", None]):
            named = {} if name is None else {"structured_request": name}
            cb.add_request(prompt_ids[i], request_id=f"r{i}", max_new_tokens=60, **named)
        texts = {}
        while len(texts) < 6:
            output = cb.get_result(timeout=120)
            texts[output.request_id] = text_of(parts, output)
        assert cb.structured.errors == {}
    for request_id, text in texts.items():
        if request_id.startswith("r0"):
            jsonschema.validate(json.loads(text), SCHEMA)
        elif request_id.startswith("r1"):
            assert text in ("yes", "no")
    assert manager.num_requests == 2


def test_more_requests_than_fit_into_the_cache_are_preempted_and_stay_valid(parts, manager, prompt_ids, monkeypatch):
    preempted = []
    restart = RequestState.create_equivalent_initial_request
    monkeypatch.setattr(
        RequestState, "create_equivalent_initial_request", lambda state: preempted.append(state) or restart(state)
    )
    manager.add_request("a", StructuredOutputsParams(regex="[a-z]{200}"))
    manager.wait_ready("a")
    generation = config_of(parts, do_sample=False, max_new_tokens=240)
    config = ContinuousBatchingConfig(**SMALL | {"num_blocks": 10, "safety_margin": 0.0})
    with structured_batching(
        parts[0], manager, default_request_id="a", generation_config=generation, continuous_batching_config=config
    ):
        outputs = parts[0].generate_batch(prompt_ids * 3)
    assert len(preempted) > 2
    assert len(outputs) == 9
    assert all(re.fullmatch("[a-z]{200}", text_of(parts, output)) for output in outputs.values())
    assert manager.num_requests == 1


def test_request_that_names_an_unknown_constraint_ends_alone(parts, manager, prompt_ids):
    manager.add_request("choice", StructuredOutputsParams(choice=["yes", "no"]))
    manager.wait_ready("choice")
    with batching(parts, manager) as cb:
        cb.start()
        for i, name in enumerate(["choice", "absent"]):
            cb.add_request(prompt_ids[i], request_id=f"r{i}", structured_request=name)
        texts = {}
        while len(texts) < 2:
            output = cb.get_result(timeout=120)
            texts[output.request_id] = text_of(parts, output)
        assert cb.structured.errors == {"r1": "request 'absent' is not with the manager"}
    assert texts["r0"] in ("yes", "no")
    assert texts["r1"] == ""


def test_structured_batching_refuses_before_the_model_is_switched(parts, manager):
    model = parts[0]
    with (
        pytest.raises(ValueError, match="use_async_batching must be off: a mask depends on the token before it"),
        structured_batching(
            model, manager, continuous_batching_config=ContinuousBatchingConfig(use_async_batching=True)
        ),
    ):
        pass
    with pytest.raises(UnknownRequestError), batching(parts, manager, default_request_id="absent"):
        pass
    manager.add_request("bad", StructuredOutputsParams(regex="("))
    with pytest.raises(GrammarError, match="is not closed"), batching(parts, manager, default_request_id="bad"):
        pass
    with (
        batching(parts, manager),
        pytest.raises(ValueError, match="has a continuous batching manager"),
        batching(parts, manager),
    ):
        pass
    assert getattr(model, "_cached_continuous_batching_manager", None) is None
