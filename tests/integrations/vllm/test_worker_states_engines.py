"""Grammars whose states live in vLLM's worker, in engines of several configurations.

Each engine ends before the next one starts: they share their process's groups.
"""

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from tokenizers import AddedToken
from vllm import SamplingParams

from structout.integrations.vllm.grammar_manager import GrammarManager
from structout.integrations.vllm.handover import AdmittingManager, workers_keep_states
from support.tokenizers_on_the_spot import byte_level, with_tokens
from support.vllm_engines import PROMPT, engine, finish_reasons, token_ids
from support.vllm_models import save_small_model
from support.vllm_requests import (
    JUMP_FORWARD,
    LETTERS,
    NGRAM,
    PENALTIES,
    SCHEMA,
    dead_ends,
    greedy,
    letters_of,
    seeded_kinds,
    structured,
)

ANSWER = "</think>"
PROMPTS_OF = [" ".join([PROMPT] * count) for count in range(1, 6)]


@pytest.fixture(scope="module")
def served(small_model):
    """Greedy requests, seeded requests, and the tokens of both on the host path."""
    with engine(small_model) as host:
        greedy_requests = [
            greedy(30, ignore_eos=True, **PENALTIES),
            greedy(30, **structured(regex=LETTERS)),
            greedy(30, **structured(json=SCHEMA)),
            greedy(30, **structured(regex=LETTERS), **PENALTIES),
            greedy(30, **structured(regex="[a-f]{1,30}"), min_tokens=20),
            greedy(30, **structured(choice=["red", "green", "blue"])),
        ]
        seeded_requests = list(seeded_kinds().values())
        for params in seeded_requests:
            params.max_tokens = min(params.max_tokens, 30)
        prompts = [PROMPTS_OF[number % len(PROMPTS_OF)] for number in range(len(greedy_requests))]
        return (
            (greedy_requests, prompts, token_ids(host.generate(greedy_requests, prompts))),
            (seeded_requests, PROMPT, token_ids(host.generate(seeded_requests))),
        )


def test_logprobs_after_filters_are_those_of_the_host_path(small_model):
    requests = [
        greedy(12, logprobs=2, **structured(regex=LETTERS)),
        SamplingParams(seed=1, max_tokens=30, logprobs=2, **structured(json=SCHEMA)),
        greedy(12),
    ]
    arguments = {"logprobs_mode": "processed_logprobs"}
    with engine(small_model, is_async=True, **arguments) as host:
        expected = host.generate(requests)
    with engine(small_model, is_async=True, keeps_states=True, **arguments) as keeping:
        outputs = keeping.generate(requests)
        assert token_ids(outputs) == token_ids(expected)
        for output, other in zip(outputs[:2], expected[:2], strict=True):
            assert [set(step) for step in output.outputs[0].logprobs] == [
                set(step) for step in other.outputs[0].logprobs
            ]
        a, b, c = letters_of(keeping, "abc")
        dead = greedy(20, logprobs=1, **structured(regex="abc[xy]"), allowed_token_ids=[a, b, c])
        assert finish_reasons(keeping.generate([dead])) == [["error"]]


def test_logprobs_after_filters_with_drafts_are_those_of_the_host_path(small_model):
    requests = [greedy(40, logprobs=2, **structured(regex="(ab|cd){10,30}!")), greedy(12)]
    arguments = {"logprobs_mode": "processed_logprobs", "speculative_config": NGRAM}
    with engine(small_model, **arguments) as host:
        expected = host.generate(requests)
    with engine(small_model, keeps_states=True, **arguments) as keeping:
        assert keeping.states is not None
        outputs = keeping.generate(requests)
        assert token_ids(outputs) == token_ids(expected)
        a, b = letters_of(keeping, "ab")
        dead = greedy(60, logprobs=1, **structured(regex="(ab){10}z"), allowed_token_ids=[a, b])
        (output,) = keeping.generate([dead])
        assert finish_reasons([output]) == [["error"]]
        assert output.outputs[0].text == "ab" * 10


@pytest.mark.parametrize("is_async", [True, False], ids=["asynchronous", "synchronous"])
def test_prompts_in_chunks_change_no_text(small_model, served, is_async):
    # Not seeded: on CPUs vLLM cannot cut the prompts of requests that are.
    requests, prompts, expected = served[0]
    arguments = {"max_num_batched_tokens": 32, "max_num_seqs": 16, "enable_chunked_prefill": True}
    with engine(small_model, is_async=is_async, keeps_states=True, **arguments) as chunked:
        assert token_ids(chunked.generate(requests, prompts)) == expected
        chunked.assert_empty()
        chunked.step(2)
        assert chunked.states.num_requests == 0


def test_reasoning_is_free_and_answers_are_those_of_the_host_path(tmp_path):
    tokens = [AddedToken("<think>", special=False), AddedToken(ANSWER, special=False)]
    model = save_small_model(tmp_path, with_tokens(byte_level(), tokens))
    arguments = {"structured_outputs_config": {"reasoning_parser": "deepseek_r1"}}

    def requests(running):
        end = running.tokenizer.convert_tokens_to_ids(ANSWER)
        return [
            SamplingParams(seed=seed, max_tokens=100, logit_bias={end: bias}, **structured(regex=LETTERS), **more)
            for seed, bias in enumerate((100.0, 9.0, 8.0, 7.0))
            for more in ({}, {"n": 3}, PENALTIES)
        ]

    prompts = [PROMPT if number % 4 else f"{PROMPT}<think>yes{ANSWER}" for number in range(12)]
    with engine(model, **arguments) as host:
        expected = host.generate(requests(host), prompts)
    assert sum(ANSWER in completion.text for output in expected for completion in output.outputs) > 8
    tight = {"block_size": 32, "num_gpu_blocks_override": 28}
    with engine(model, is_async=True, keeps_states=True, **arguments, **tight) as keeping:
        outputs = keeping.generate(requests(keeping), prompts)
        assert sum(output.metrics.num_preemptions for output in outputs) > 0
        assert token_ids(outputs) == token_ids(expected)
        keeping.assert_empty()


@pytest.mark.parametrize(
    ("switch", "is_async", "is_kept"), [("", True, True), ("", False, False), ("0", True, False), ("1", False, True)]
)
def test_workers_keep_states_under_asynchronous_scheduling_or_as_switched(monkeypatch, switch, is_async, is_kept):
    monkeypatch.setenv("STRUCTOUT_VLLM_WORKER_STATES", switch)
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(distributed_executor_backend="mp"),
        scheduler_config=SimpleNamespace(async_scheduling=is_async),
        speculative_config=None,
        use_v2_model_runner=False,
    )
    assert workers_keep_states(config) is is_kept


def test_engines_with_jump_forward_keep_states_in_the_scheduler(small_model, served):
    with engine(small_model, keeps_states=True, speculative_config=JUMP_FORWARD) as jumping:
        assert type(jumping.manager) is GrammarManager
        assert jumping.states is None
        requests, prompts, expected = served[0]
        assert token_ids(jumping.generate(requests, prompts)) == expected


def test_two_ranks_follow_all_requests(small_model, served):
    arguments = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    with engine(small_model, is_async=True, keeps_states=True, **arguments) as pair:
        assert type(pair.manager) is AdmittingManager
        for requests, prompts, expected in served:
            assert token_ids(pair.generate(requests, prompts)) == expected
        ends = dead_ends(pair)
        assert finish_reasons(pair.generate([params for params, _ in ends[:4]])) == [["error"]] * 4
        assert pair.num_held == 0
