"""Whole engines of vLLM with model runner V2, which is run on the CPU here.

test_model_runner_v2.py runs this file.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the counts below are of this process
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
os.environ["VLLM_CPU_CI_ENV"] = "1"  # no warm-up
os.environ["HF_HUB_OFFLINE"] = "1"

from support import vllm_under_interpreter  # isort: skip  # noqa: F401

import pytest
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.platforms.cpu import CpuPlatform
from vllm.sampling_params import StructuredOutputsParams

from structout.integrations.vllm import model_runner_v2, register, worker_states
from structout.integrations.vllm.handover import AdmittingManager
from support.vllm_models import save_small_model

N_GRAMS = {"method": "ngram_gpu", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 1}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}, "b": {"type": "string", "maxLength": 4}},
    "required": ["a", "b"],
    "additionalProperties": False,
}

register()


KINDS = [
    *("sync", "async", "sync with drafts", "async with drafts"),
    *("sync, states in the worker", "async, states in the worker"),
    *("sync with drafts, states in the worker", "async with drafts, states in the worker"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=KINDS)
def engine(request, model: Path) -> Iterator[LLM]:
    options = {"speculative_config": N_GRAMS} if "drafts" in request.param else {}
    with running(model, is_async="async" in request.param, keeps_states="states" in request.param, **options) as llm:
        yield llm


@contextmanager
def running(model: Path, *, is_async: bool, keeps_states: bool, wants_states: bool = False, **options) -> Iterator[LLM]:
    """An engine that ends with the context."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRUCTOUT_VLLM_WORKER_STATES", str(int(keeps_states or wants_states)))
        if is_async:
            patch.setattr(CpuPlatform, "check_and_update_config", with_async_scheduling())
        defaults = {"enforce_eager": True, "max_model_len": 256, "max_num_seqs": 16, "disable_log_stats": False}
        llm = LLM(str(model), **defaults | options)
    core = llm.llm_engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    assert llm.llm_engine.vllm_config.scheduler_config.async_scheduling == is_async
    assert (worker_states.states_of(runner) is not None) == keeps_states
    assert isinstance(core.structured_output_manager, AdmittingManager) == keeps_states
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        cleanup_dist_env_and_memory()


def with_async_scheduling() -> classmethod:
    """What vLLM does on CPUs, where it turns asynchronous scheduling off, without
    that."""
    check = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls, config) -> None:
        check(cls, config)
        config.scheduler_config.async_scheduling = True

    return classmethod(check_and_update_config)


def structured(constraint: dict, **params) -> SamplingParams:
    return SamplingParams(max_tokens=80, structured_outputs=StructuredOutputsParams(**constraint), **params)


def generate(engine: LLM, params: list[SamplingParams]):
    return [output.outputs for output in engine.generate(["abcd abcd ef"] * len(params), params, use_tqdm=False)]


def is_with_drafts(engine: LLM) -> bool:
    return engine.llm_engine.vllm_config.speculative_config is not None


def test_requests_of_all_kinds_in_one_batch_keep_their_constraints(engine: LLM, monkeypatch):
    calls = Counter()
    for name in ("_sample", "_verify"):
        function = getattr(model_runner_v2, name)
        monkeypatch.setattr(model_runner_v2, name, lambda *args, f=function, n=name: calls.update([n]) or f(*args))
    # With drafts, vLLM's frontend refuses min_p and logit_bias.
    min_p, bias = ({}, {}) if is_with_drafts(engine) else ({"min_p": 0.01}, {"logit_bias": {67: -50.0}})
    cases = [
        (structured({"json": SCHEMA}, seed=1), lambda text: json.loads(text).keys() == {"a", "b"}),
        (structured({"regex": "[0-9]{3}-[a-f]{2}"}, temperature=0.0, logprobs=3), "[0-9]{3}-[a-f]{2}"),
        (structured({"choice": ["red", "green"]}, n=3, seed=2), "red|green"),
        (structured({"grammar": 'root ::= "x" [yz]{4} "w"'}, top_p=0.7, top_k=9, **min_p), "x[yz]{4}w"),
        (structured({"regex": "(ab|cd){5}"}, frequency_penalty=1.0, repetition_penalty=1.3), "(ab|cd){5}"),
        (structured({"regex": "[a-e]{6}"}, bad_words=["c"], **bias), "[abde]{6}"),
        (structured({"regex": "[a-e]{6}"}, min_tokens=30), "[a-e]{6}"),
        (structured({"regex": "[a-z]{6}"}, allowed_token_ids=[0, *range(67, 93)]), "[a-z]{6}"),
        (SamplingParams(max_tokens=12, temperature=0.0, presence_penalty=0.5, logprobs=2), None),
        (SamplingParams(max_tokens=12, min_tokens=12, seed=3), None),
    ] * 2  # more requests than the engine takes at once
    for outputs, (params, expected) in zip(generate(engine, [p for p, _ in cases]), cases, strict=True):
        assert len(outputs) == params.n
        for output in outputs:
            if expected is None:
                assert output.finish_reason in ("stop", "length")
                continue
            assert output.finish_reason == "stop"
            assert expected(output.text) if callable(expected) else re.fullmatch(expected, output.text), output.text
            if params.logprobs is not None:
                assert [token in row for token, row in zip(output.token_ids, output.logprobs, strict=True)] == (
                    [True] * len(output.token_ids)
                )
                assert {len(row) for row in output.logprobs} <= {3, 4}  # the drawn token and three
    assert calls["_verify" if is_with_drafts(engine) else "_sample"] > 10


TEXTS: dict[str, list] = {}


def test_seeded_texts_do_not_depend_on_drafts_or_on_asynchronous_scheduling(engine: LLM):
    params = [
        structured({"regex": "(abcabd){6}x"}, temperature=0.0),
        structured({"regex": "[abc]{12}"}, seed=3, logprobs=2),
        structured({"regex": r"(\d\d){9}"}, seed=5, frequency_penalty=0.2),
        SamplingParams(max_tokens=24, seed=7, top_p=0.9),
    ]
    outputs = [output for (output,) in generate(engine, params)]
    texts = [(output.text, output.finish_reason, len(output.logprobs or [])) for output in outputs]
    assert texts == TEXTS.setdefault("seeded", texts)
    assert [reason for _, reason, _ in texts] == ["stop", "stop", "stop", "length"]
    accepted = [m.value for m in engine.get_metrics() if m.name == "vllm:spec_decode_num_accepted_tokens"]
    assert sum(accepted) > 20 if is_with_drafts(engine) else not accepted


def test_a_dead_end_ends_its_request_with_an_error_and_no_other(engine: LLM):
    params = [
        structured({"regex": "[ab]{3}(cd|ef)"}),
        structured({"regex": "[ab]{30}"}, allowed_token_ids=[1, 2, 3], logprobs=3),
        structured({"regex": "aaaab"}, bad_words=["b"], logprobs=2),
        SamplingParams(temperature=0.7, seed=4, max_tokens=10, ignore_eos=True),
    ]
    fine, dead, dies, free = [output for (output,) in generate(engine, params)]
    assert re.fullmatch("[ab]{3}(cd|ef)", fine.text)
    assert (dead.text, dead.token_ids, dead.finish_reason) == ("", [], "error")
    assert (dies.text, dies.finish_reason, len(dies.logprobs)) == ("aaaa", "error", len(dies.token_ids))
    assert (len(free.token_ids), free.finish_reason) == (10, "length")


@pytest.mark.parametrize(
    ("is_async", "drafts"),
    [(False, {}), (True, {}), (True, {"speculative_config": N_GRAMS})],
    ids=["sync", "async", "async with drafts"],
)
def test_preempted_requests_whose_states_are_in_the_worker_draw_what_they_draw_alone(
    model: Path, is_async: bool, drafts: dict
):
    """A preempted request comes back as a new one, with the tokens that it has."""
    params = [structured({"regex": "[a-f]{70}!"}, seed=seed) for seed in range(8)]
    with running(model, is_async=is_async, keeps_states=False) as roomy:
        expected = [output.token_ids for (output,) in generate(roomy, params)]
    small = {"block_size": 32, "num_gpu_blocks_override": 14}
    with running(model, is_async=is_async, keeps_states=True, **drafts, **small) as tight:
        outputs = tight.generate(["abcd abcd ef"] * len(params), params, use_tqdm=False)
        assert sum(output.metrics.num_preemptions for output in outputs) > 0
        assert [output.outputs[0].token_ids for output in outputs] == expected


def test_other_rules_of_acceptance_leave_the_states_with_the_scheduler(model: Path):
    rule = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5, 0.4, 0.3, 0.2]}
    options = {"speculative_config": N_GRAMS | rule}
    with running(model, is_async=False, keeps_states=False, wants_states=True, **options) as engine:
        ((output,),) = generate(engine, [SamplingParams(max_tokens=5, ignore_eos=True)])
        assert len(output.token_ids) == 5
