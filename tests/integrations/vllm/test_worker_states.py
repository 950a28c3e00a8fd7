"""Grammars whose states live in vLLM's worker, as by default under asynchronous
scheduling."""

import itertools
import logging
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("vllm")

from vllm import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.structured_output import StructuredOutputManager

from structout.integrations.vllm import handover, worker_states
from structout.integrations.vllm.grammar_manager import GrammarManager
from support.vllm_engines import engine, finish_reasons, token_ids
from support.vllm_requests import (
    LETTERS,
    PENALTIES,
    SCHEMA,
    check_dead_ends,
    check_preempted_requests,
    every_kind,
    greedy,
    letters_of,
    seeded_kinds,
    structured,
)

ANSWER = "</think>"


@pytest.fixture(scope="module")
def running(small_model):
    with engine(small_model, is_async=True, keeps_states=None, block_size=32, num_gpu_blocks_override=20) as running:
        yield running


@pytest.fixture
def calls(monkeypatch):
    """The names of the functions that the scheduler of structured requests calls."""
    names = []

    def recording(owner, name):
        original = getattr(owner, name)

        def call(self, *arguments, **options):
            names.append(name)
            return original(self, *arguments, **options)

        monkeypatch.setattr(owner, name, call)

    recording(GrammarManager, "grammar_bitmask")
    recording(StructuredOutputManager, "_get_constraint_bounds")
    return names


@pytest.fixture
def messages(caplog):
    """The errors that structout has logged."""
    log = logging.getLogger("vllm")
    log.addHandler(caplog.handler)
    yield lambda: [record.getMessage() for record in caplog.records if record.name == "vllm.structout"]
    log.removeHandler(caplog.handler)


@pytest.fixture(autouse=True)
def no_request_is_left(request):
    yield
    if "running" in request.fixturenames:
        running = request.getfixturevalue("running")
        running.assert_empty()
        running.step(2)
        assert running.states.num_requests == 0


def test_texts_are_those_of_the_host_path_and_no_step_is_deferred(running, plain, calls, monkeypatch):
    outputs_of_schedule = []
    update = Scheduler._update_after_schedule

    def _update_after_schedule(self, scheduler_output):
        outputs_of_schedule.append(scheduler_output)
        update(self, scheduler_output)

    monkeypatch.setattr(Scheduler, "_update_after_schedule", _update_after_schedule)
    kinds = every_kind(plain) | {f"seeded, {name}": params for name, params in seeded_kinds().items()}
    expected = plain.generate(list(kinds.values()))
    del calls[:], outputs_of_schedule[:]
    outputs = running.generate(list(kinds.values()))
    assert dict(zip(kinds, token_ids(outputs), strict=True)) == dict(zip(kinds, token_ids(expected), strict=True))
    assert finish_reasons(outputs) == finish_reasons(expected)
    assert len(outputs_of_schedule) > 50
    assert not any(o.pending_structured_output_tokens or o.has_structured_output_requests for o in outputs_of_schedule)
    assert calls == []


def test_preempted_requests_draw_what_they_draw_alone(running, plain):
    check_preempted_requests(running, plain)


def test_tokens_that_vllm_drops_are_taken_back(running, plain):
    requests = [
        SamplingParams(seed=1, max_tokens=40, **structured(regex=LETTERS)),
        greedy(60, **structured(json=SCHEMA)),
        SamplingParams(seed=3, max_tokens=40, **structured(json=SCHEMA), **PENALTIES),
    ]
    expected = plain.generate(requests)
    ids = [running.add(params) for params in requests]
    outputs = {}
    num_replayed = 0
    while not running.is_idle:
        outputs |= {output.request_id: output for output in running.step(4)}
        before = dict(running.states._requests)
        running.llm.llm_engine.reset_prefix_cache(reset_running_requests=True)
        outputs |= {output.request_id: output for output in running.step()}
        after = running.states._requests
        num_replayed += sum(after.get(request_id) is not request for request_id, request in before.items())
    assert num_replayed > 5
    assert token_ids([outputs[request_id] for request_id in ids]) == token_ids(expected)


def test_tokens_that_a_grammar_does_not_take_again_end_their_request(running, messages, monkeypatch):
    def refusing(manager, request, token_ids):
        return handover.replay(manager, request, [*token_ids, 0])

    monkeypatch.setattr(worker_states, "replay", refusing)
    running.add(SamplingParams(seed=1, max_tokens=40, **structured(regex=LETTERS)))
    running.step(8)
    running.llm.llm_engine.reset_prefix_cache(reset_running_requests=True)
    (output,) = running.run().values()
    assert finish_reasons([output]) == [["error"]]
    assert any("the grammar does not allow the tokens" in message for message in messages())


def test_slow_constraints_are_compiled_once_and_handed_over_in_one_process(running, plain, calls, monkeypatch):
    monkeypatch.setattr(handover, "MAX_COMPILE_SECONDS", -1.0)
    params = greedy(30, **structured(regex="[a-f]{1,17}|[g-k]{3}"))
    expected = plain.generate([params])
    num_compiled = running.manager.structout.stats().compilation.cache_misses
    del calls[:]
    assert token_ids(running.generate([params])) == token_ids(expected)
    assert running.manager.structout.stats().compilation.cache_misses == num_compiled + 1
    assert calls == []


@pytest.mark.parametrize("kept", [lambda number: False, lambda number: number % 2 == 0], ids=["none", "half"])
def test_slow_constraints_stay_with_the_scheduler(running, plain, calls, monkeypatch, kept):
    numbers = iter(range(100))
    monkeypatch.setattr(handover._HandOver, "_is_for_workers", lambda *_: kept(next(numbers)))
    requests = [
        SamplingParams(seed=seed, max_tokens=40, **structured(**constraint))
        for seed in range(4)
        for constraint in ({"regex": LETTERS}, {"json": SCHEMA})
    ]
    requests.insert(3, greedy(30))
    expected = plain.generate(requests)
    del calls[:]
    assert token_ids(running.generate(requests)) == token_ids(expected)
    assert "grammar_bitmask" in calls


def test_a_dead_end_ends_its_request_with_an_error_and_no_other(running):
    check_dead_ends(running)


def test_a_dead_end_is_explained_once(running, messages):
    a, b, c = letters_of(running, "abc")
    params = greedy(20, **structured(regex="abc[xy]"), allowed_token_ids=[a, b, c])
    assert finish_reasons(running.generate([params, greedy(5)])) == [["error"], ["length"]]
    (message,) = messages()
    assert "its grammar allows a token, but its sampling parameters forbid it" in message


def test_the_grammars_own_reason_is_that_of_the_scheduler(running, messages, monkeypatch):
    params = greedy(60, **structured(json=SCHEMA))
    grammar_bitmask = running.manager.structout.grammar_bitmask
    step = running.states._manager.structout.step
    num_steps = itertools.count()

    def failing_step(*arguments, **options):
        """A step after which no request can go on, as at a limit."""
        masks = step(*arguments, **options).result()
        if next(num_steps) > 10:
            masks = replace(masks, bitmask=np.zeros_like(masks.bitmask), lease=None)
        future = Future()
        future.set_result(masks)
        return future

    def failing_bitmask(*arguments, **options):
        masks = grammar_bitmask(*arguments, **options)
        return replace(masks, errors=dict.fromkeys(masks.request_ids, "the text is too deep"))

    monkeypatch.setattr(running.states._manager.structout, "step", failing_step)
    monkeypatch.setattr(running.manager.structout, "grammar_bitmask", failing_bitmask)
    assert finish_reasons(running.generate([params])) == [["error"]]
    (message,) = messages()
    assert message.endswith("cannot continue: the text is too deep")


def test_a_constraint_that_only_a_worker_refuses_ends_its_request(running):
    manager = running.states._manager.structout
    others = [greedy(40, **structured(regex=LETTERS)), greedy(20)]
    expected = token_ids(running.generate(others))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager._compiler, "_compile", None)  # what is cached goes on
        refused = greedy(20, **structured(regex="never-seen-before"))
        outputs = running.generate([refused, *others])
    assert finish_reasons(outputs[:1]) == [["error"]]
    assert token_ids(outputs[:1]) == [[[]]]
    assert token_ids(outputs[1:]) == expected


def test_aborted_requests_leave_nothing(running):
    ids = [running.add(greedy(200, **structured(regex="[a-z ]{150,}"))) for _ in range(4)]
    running.abort(ids[0])
    while running.states.num_requests < 3:
        running.step()
    assert running.num_held == 0  # the scheduler keeps none
    for request_id in ids[1:]:
        running.step(3)
        running.abort(request_id)
    while not running.is_idle:
        running.step()


def test_an_id_is_used_again_while_its_first_request_is_in_flight(running, plain):
    first, second = (greedy(60, **structured(regex=regex)) for regex in ("(ab|cd){20,30}!", LETTERS))
    running.add(first, request_id="twice")
    running.step(8)
    running.abort("twice")
    running.add(second, request_id="twice")
    assert token_ids([running.run()["twice"]]) == token_ids(plain.generate([second]))


def test_no_client_hands_a_request_over(running, plain):
    params = greedy(40, **structured(regex=LETTERS), extra_args={handover._MARK: {"reasoning_ended": False}})
    assert token_ids(running.generate([params])) == token_ids(plain.generate([params]))
