"""Models that reason: the constraint holds after the end of the reasoning."""

import re

import pytest

pytest.importorskip("vllm")

from tokenizers import AddedToken
from vllm import SamplingParams

from support.tokenizers_on_the_spot import byte_level, with_tokens
from support.vllm_engines import PROMPT, engine, token_ids
from support.vllm_models import save_small_model
from support.vllm_requests import LETTERS, NGRAM, PENALTIES, greedy, structured

ANSWER = "</think>"
CALL = "<tool_call>"


@pytest.fixture(scope="module")
def reasoning_model(tmp_path_factory):
    tokens = [AddedToken("<think>", special=False), AddedToken(ANSWER, special=False)]
    return save_small_model(tmp_path_factory.mktemp("model"), with_tokens(byte_level(), tokens))


@pytest.fixture(scope="module")
def running(reasoning_model):
    with engine(reasoning_model, structured_outputs_config={"reasoning_parser": "deepseek_r1"}) as running:
        yield running
        assert running.num_held == 0


@pytest.fixture(scope="module", params=[False, True], ids=["scheduler", "worker"])
def drafting(reasoning_model, request):
    """An engine whose scheduler or whose worker keeps the states of grammars."""
    arguments = {"structured_outputs_config": {"reasoning_parser": "deepseek_r1"}, "speculative_config": NGRAM}
    with engine(reasoning_model, keeps_states=request.param, **arguments) as drafting:
        assert (drafting.states is not None) == request.param
        yield drafting
        assert drafting.num_held == 0


def requests(engine):
    """Requests that begin their answer after a while."""
    end = engine.tokenizer.convert_tokens_to_ids(ANSWER)
    return [
        SamplingParams(seed=seed, max_tokens=200, logit_bias={end: bias}, **structured(regex=LETTERS), **arguments)
        for seed, bias in enumerate((100.0, 9.0, 8.0, 7.0, 6.0))
        for arguments in ({}, {"n": 2, "logprobs": 1}, PENALTIES)
    ]


def check(outputs):
    """Check the answers. Return the lengths of the reasonings."""
    lengths = []
    for output in outputs:
        for completion in output.outputs:
            reasoning, is_ended, answer = completion.text.partition(ANSWER)
            if completion.finish_reason == "stop" and is_ended:
                assert re.fullmatch(LETTERS, answer), completion.text
                lengths.append(len(reasoning))
    return lengths


def test_a_constraint_holds_from_the_end_of_the_reasoning(running):
    lengths = check(running.generate(requests(running)))
    assert min(lengths) == 0
    assert max(lengths) > 10


def test_a_prompt_that_ends_its_reasoning_is_answered_at_once(running):
    outputs = running.generate([greedy(60, **structured(regex=LETTERS))], f"{PROMPT}<think>yes{ANSWER}")
    assert re.fullmatch(LETTERS, outputs[0].outputs[0].text)


def test_reasoning_beside_answers_and_free_requests(running):
    end = running.tokenizer.convert_tokens_to_ids(ANSWER)
    answers = [greedy(60, logit_bias={end: 100.0}, **structured(regex=LETTERS)), greedy(20), greedy(20)]
    outputs = running.generate([*requests(running), *answers])
    assert check(outputs[:-3])
    assert token_ids(outputs[-3:]) == token_ids(running.generate(answers))


def seeded(allowed, max_tokens, regex):
    """The parameters of 16 requests that draw from few tokens."""
    return [
        SamplingParams(seed=seed, max_tokens=max_tokens, allowed_token_ids=allowed, **structured(regex=regex))
        for seed in range(16)
    ]


@pytest.mark.parametrize("max_tokens", [8, 9, 12, 24])  # 8 are needed
def test_reasonings_leave_room_for_answers_within_the_limit(running, drafting, max_tokens):
    reply = f"<think>x{ANSWER}{'ab' * 8}!"
    allowed = running.tokenizer.convert_tokens_to_ids(["x", ANSWER, "a", "b", "!", running.tokenizer.eos_token])
    params = seeded(allowed, max_tokens, "[abx]*!{6}")
    expected = running.generate(params, f"{reply}{reply}<think>x")
    outputs = drafting.generate(params, f"{reply}{reply}<think>x")
    assert token_ids(outputs) == token_ids(expected)
    for output in outputs:
        (answer,) = output.outputs
        assert answer.finish_reason == "stop"
        assert re.fullmatch("[abx]*!{6}", answer.text.partition(ANSWER)[2])


@pytest.mark.parametrize(("regex", "may_be_empty"), [("[ab]{3}!", False), ("([ab]{3}!)?", True)])
def test_a_reasoning_ends_its_text_only_where_the_answer_may_be_empty(running, regex, may_be_empty):
    params = greedy(20, logit_bias={running.tokenizer.eos_token_id: 100.0}, **structured(regex=regex))
    (answer,) = running.generate([params], "<think>x")[0].outputs
    assert answer.finish_reason == "stop"
    assert (ANSWER in answer.text) != may_be_empty
    assert re.fullmatch(regex, answer.text.partition(ANSWER)[2])


def test_drafts_across_the_end_of_the_reasoning_change_no_text(running, drafting):
    # After "x" the prompt goes on with the end, and so do the drafts.
    reply = f"<think>x{ANSWER}{'ab' * 8}!"
    allowed = running.tokenizer.convert_tokens_to_ids(["x", ANSWER, "a", "b", "!", running.tokenizer.eos_token])
    params = seeded(allowed, 60, "(ab){8,12}!")
    expected = running.generate(params, f"{reply}{reply}<think>x")
    outputs = drafting.generate(params, f"{reply}{reply}<think>x")
    assert token_ids(outputs) == token_ids(expected)
    assert sum(ANSWER in output.outputs[0].text for output in outputs) > 4


@pytest.mark.parametrize("keeps_states", [False, True], ids=["scheduler", "worker"])
def test_a_call_ends_a_reasoning_only_where_the_answer_may_begin_with_it(tmp_path, keeps_states):
    tokens = ["<think>", ANSWER, CALL, "</tool_call>"]
    model = save_small_model(tmp_path, with_tokens(byte_level(), [AddedToken(each, special=False) for each in tokens]))
    arguments = {"structured_outputs_config": {"reasoning_parser": "qwen3"}, "speculative_config": NGRAM}
    with engine(model, keeps_states=keeps_states, **arguments) as running:
        # After "x" the prompt goes on with a call, and so do the drafts.
        reply = f"<think>x{CALL}{'ab' * 8}!"
        allowed = running.tokenizer.convert_tokens_to_ids(["x", ANSWER, CALL, "a", "b", "!"])
        allowed.append(running.tokenizer.eos_token_id)

        def texts(regex):
            params = seeded(allowed, 60, regex)
            completions = [output.outputs[0] for output in running.generate(params, f"{reply}{reply}<think>x")]
            assert all(completion.finish_reason != "error" for completion in completions)
            return [completion.text for completion in completions]

        answers = texts("(ab){8,12}!")
        assert not any(CALL in text for text in answers)
        assert sum(bool(re.fullmatch(f"[xab!]*{ANSWER}(ab){{8,12}}!", text)) for text in answers) > 4
        calls = texts(f"{CALL}(ab){{8,12}}!")
        assert any(re.fullmatch(f"[xab!]*{CALL}(ab){{8,12}}!", text) for text in calls)
        running.assert_empty()
