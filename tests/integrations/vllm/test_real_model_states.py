"""SmolLM2-135M-Instruct writes the same texts with the states of grammars in the
scheduler and in the worker, in batches of many kinds of requests that are preempted."""

import json
import os

import pytest

pytest.importorskip("vllm")

from vllm import SamplingParams

from support.real_model_cases import CALLS, CASES, OFFLINE, TAGS, Case, messages_of, prompt_of
from support.vllm_drafters import save_drafter
from support.vllm_engines import engine, finish_reasons, token_ids
from support.vllm_requests import NGRAM, structured

NUM_REQUESTS = int(os.environ.get("STRUCTOUT_MIXED_REQUESTS", 48))
NAMES = ("Maria Lopez", "Tom Becker", "Ada Byron", "Omar Said", "Chen Wei")
CITIES = ("Madrid", "Berlin", "Oslo", "Rome", "Cairo", "Lima", "Nairobi")


def case_of(number):
    """A request of one of nine kinds, with a prompt of its own where that is easy."""
    call = Case([*CALLS, *messages_of(f"What is {number} plus 25?")], None, {"structural_tag": json.dumps(TAGS)})
    kinds = [*CASES.values(), call]
    case = kinds[number % len(kinds)]
    if case.messages[-1]["content"].startswith("Extract the person"):
        name, city = NAMES[number % len(NAMES)], CITIES[number % len(CITIES)]
        text = f"Extract the person as JSON (name, age, city): {name} is {20 + number} years old and lives in {city}."
        return Case(messages_of(text), None, case.constraint)
    return case


def generate(running):
    """Draw the requests in one batch, by their likeliest tokens or with a seed, one to
    three texts each."""
    prompts, params = [], []
    for number in range(NUM_REQUESTS):
        case = case_of(number)
        drawing = {"temperature": 0} if number % 3 == 0 else {"seed": number, "n": 3 if number % 10 == 1 else 1}
        constraint = structured(**case.constraint) if case.constraint else {}
        params.append(SamplingParams(max_tokens=64, **drawing, **constraint))
        prompts.append(prompt_of(running.tokenizer, case))
    return running.generate(params, prompts)


@pytest.fixture(scope="module")
def expected(real_model):
    with engine(real_model, is_async=True, **OFFLINE) as running:
        assert running.states is None
        return generate(running)


@pytest.mark.parametrize(
    ("is_async", "arguments"),
    [(True, {}), (True, {"block_size": 32, "num_gpu_blocks_override": 24}), (False, {"speculative_config": NGRAM})],
    ids=["asynchronous", "preempted", "drafts"],
)
def test_texts_of_mixed_requests_do_not_depend_on_where_the_states_are(real_model, expected, is_async, arguments):
    keeps_states = None if is_async else True
    with engine(real_model, is_async=is_async, keeps_states=keeps_states, **OFFLINE | arguments) as running:
        assert running.states is not None
        outputs = generate(running)
        running.assert_empty()
        assert ("block_size" in arguments) == any(output.metrics.num_preemptions for output in outputs)
    assert token_ids(outputs) == token_ids(expected)
    assert finish_reasons(outputs) == finish_reasons(expected)


@pytest.mark.parametrize("is_async", [False, True], ids=["worker", "asynchronous"])
def test_texts_with_a_draft_model_are_those_without_drafts(real_model, expected, tmp_path, is_async):
    folder = save_drafter(tmp_path, "draft_model", real_model, num_layers=2)
    drafter = {"method": "draft_model", "model": str(folder), "num_speculative_tokens": 2}
    keeps_states = None if is_async else True
    arguments = {"is_async": is_async, "keeps_states": keeps_states, "speculative_config": drafter}
    with engine(real_model, **OFFLINE | arguments) as running:
        assert (running.states is None) == is_async
        outputs = generate(running)
        metrics = {metric.name: metric for metric in running.llm.get_metrics()}
        assert metrics["vllm:spec_decode_num_accepted_tokens"].value > 0
        running.assert_empty()
    assert token_ids(outputs) == token_ids(expected)
    assert finish_reasons(outputs) == finish_reasons(expected)
