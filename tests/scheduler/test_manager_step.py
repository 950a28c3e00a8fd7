"""``manager.step``: tokens and masks in one call on the manager's own thread, and what
other calls do in between."""

import random
import threading
import time

import pytest

from structout import (
    GrammarStatus,
    StructuredOutputManager,
    StructuredOutputsConfig,
    StructuredOutputsParams,
    UnknownRequestError,
)
from structout.errors import GrammarErrorKind, StructOutError
from structout.grammar.native.backend import NativeBackend
from structout.masks.buffers import BufferRing
from support.grammar_walks import allowed
from support.managers import STOP, TOKENIZER, V, add, gate_before, ids_of

A, B = ids_of("ab")


@pytest.fixture
def gate(monkeypatch):
    """An event; until it is set, steps wait before they are run."""
    with gate_before(monkeypatch, BufferRing, "next") as opened:
        yield opened


CONSTRAINTS = [
    {"json": {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}},
    {"regex": "([ab]+ )*c"},
    {"grammar": 'root ::= "(" root ")" | [ab]+'},
    {"choice": ["yes", "no", "never"]},
]


# Several threads share a step of long rows.
@pytest.mark.parametrize(
    ("backend", "vocab_size", "fill_threads"), [("auto", V, 1), ("xgrammar", V, 1), ("auto", 1_000_000, 3)]
)
def test_steps_equal_accept_batch_and_grammar_bitmask(backend, vocab_size, fill_threads, num_cases):
    rng = random.Random(backend)
    names = [f"r{i}" for i in range(8)]
    configs = [StructuredOutputsConfig(fill_threads=threads) for threads in (fill_threads, 1)]
    managers = [StructuredOutputManager(TOKENIZER, vocab_size, config) for config in configs]
    with managers[0] as manager, managers[1] as plain:
        for i, name in enumerate(names):
            for each in (manager, plain):
                add(each, name, backend=backend if i % 2 else "auto", **CONSTRAINTS[i % 4])
        batch, drafts = plain.grammar_bitmask(names), {}
        for _ in range(num_cases(12, long=200)):
            tokens = {}
            for i, name in enumerate(names):
                rows = batch.bitmask[batch.row_indptr[i] : batch.row_indptr[i + 1]]
                tokens[name] = [rng.choice(allowed(rows[0]))] if len(rows) else []
            drafts = {name: rng.choices([*ids_of('ab {"1 ()yesnoc'), STOP, -1], k=3) for name in rng.sample(names, 4)}
            bounds = {name: (rng.randrange(3), rng.randrange(4)) for name in rng.sample(names, 2)}
            assert all(plain.accept_batch(tokens).values())
            batch = plain.grammar_bitmask(names, drafts, bounds=bounds)
            stepped = manager.step(tokens, names, drafts, bounds=bounds).result(60)
            assert stepped.errors == batch.errors == {}
            assert stepped.row_indptr.tolist() == batch.row_indptr.tolist()
            assert stepped.num_acceptable_drafts.tolist() == batch.num_acceptable_drafts.tolist()
            assert (stepped.bitmask == batch.bitmask).all()
            assert [manager.num_tokens(name) for name in names] == [plain.num_tokens(name) for name in names]
            batch = plain.grammar_bitmask(names)
        assert any(plain.is_terminated(name) for name in names)


def test_fork_and_rollback_wait_for_the_steps_before_them(manager, gate):
    add(manager, "r", regex="[ab]*")
    first, second = manager.step({"r": [A]}, ["r"]), manager.step({"r": [B, A]}, ["r"])
    done = []

    def move():
        manager.fork("r", "forked")
        manager.rollback("r", 2)
        done.append(True)

    thread = threading.Thread(target=move)
    thread.start()
    thread.join(0.2)
    assert not done
    assert not first.done()
    gate.set()
    thread.join(60)
    assert done
    assert second.done()
    assert manager.num_tokens("forked") == 3
    assert manager.num_tokens("r") == 1


def test_request_that_is_finished_before_its_step_is_left_out_of_it(manager, gate):
    for name in ("first", "r", "other"):
        add(manager, name, regex="[ab]*")
    manager.step({}, ["first"])
    future = manager.step({"r": [A], "other": [A]}, ["r", "other"], {"r": [B]})
    manager.finish_request("r")
    gate.set()
    batch = future.result(60)
    assert batch.row_indptr.tolist() == [0, 0, 1]
    assert batch.errors == {}
    assert manager.num_tokens("other") == 1


def test_request_with_the_id_of_one_that_was_finished_before_its_step_does_not_move(manager, gate):
    for name in ("first", "r"):
        add(manager, name, regex="[ab]*")
    manager.step({}, ["first"])
    future = manager.step({"r": [A]}, ["r"])
    manager.finish_request("r")
    add(manager, "r", regex="[ab]*")
    gate.set()
    assert future.result(60).row_indptr.tolist() == [0, 0]
    assert manager.num_tokens("r") == 0
    assert manager.status("r") is GrammarStatus.READY


def test_request_that_becomes_ready_or_fails_before_its_step_gets_rows_that_allow_nothing(manager, gate, monkeypatch):
    compiles, compile = threading.Event(), NativeBackend.compile
    add(manager, "first", regex="[ab]*")
    add(manager, "failing", regex="[ab]*")

    def compile_later(backend, constraint, stop_token_ids):
        assert compiles.wait(60)
        return compile(backend, constraint, stop_token_ids)

    monkeypatch.setattr(NativeBackend, "compile", compile_later)
    manager.add_request("late", StructuredOutputsParams(regex="a*"))
    manager.step({}, ["first"])
    future = manager.step({"late": [A], "failing": [A]}, ["late", "failing"])
    compiles.set()
    manager.wait_ready("late", 60)
    manager._requests.settle(manager._requests["failing"], manager._requests["failing"].error or _limit())
    gate.set()
    batch = future.result(60)
    assert batch.row_indptr.tolist() == [0, 1, 2]
    assert not batch.bitmask.any()
    assert set(batch.errors) == {"late", "failing"}
    assert manager.num_tokens("late") == 0
    assert manager.status("late") is GrammarStatus.READY


def _limit():
    from structout.errors import GrammarError

    return GrammarError("too much", kind=GrammarErrorKind.LIMIT)


@pytest.mark.parametrize("backend", ["auto", "xgrammar"])
@pytest.mark.parametrize("tokens", [[-1], [B, A], [A, V], None])
def test_request_that_refuses_its_tokens_fails_alone(manager, backend, tokens):
    add(manager, "bad", regex="a+", backend=backend)
    add(manager, "good", regex="a+")
    manager.poll_changed()
    batch = manager.step({"bad": tokens, "good": [A]}, ["bad", "good"], {"bad": [A]}).result(60)
    assert list(batch.errors) == ["bad"]
    assert "does not allow the tokens" in batch.errors["bad"]
    assert batch.row_indptr.tolist() == [0, 2, 3]
    assert batch.bitmask.any(axis=1).tolist() == [False, False, True]
    assert manager.poll_changed() == [("bad", GrammarStatus.FAILED)]
    assert manager.error("bad").kind is GrammarErrorKind.REPLAY
    assert manager.num_tokens("good") == 1


@pytest.mark.parametrize("backend", ["auto", "xgrammar"])
def test_request_that_refuses_its_tokens_fails_also_if_the_step_has_no_rows_for_it(manager, backend):
    for name in ("bad", "good"):
        add(manager, name, regex="a+", backend=backend)
    batch = manager.step({"bad": [B], "good": [A]}, ["good"]).result(60)
    assert batch.errors == {}
    assert batch.bitmask.any(axis=1).tolist() == [True]
    assert manager.error("bad").kind is GrammarErrorKind.REPLAY
    assert manager.num_tokens("good") == 1


def test_step_reads_its_arguments_when_it_is_asked_for(manager, gate):
    add(manager, "r", regex="a[ab]*")
    tokens, drafts = {"r": [A]}, {"r": [B]}
    future = manager.step(tokens, ["r"], drafts)
    tokens["r"][0], drafts["r"][0] = B, -1
    tokens.clear()
    gate.set()
    assert future.result(60).num_acceptable_drafts.tolist() == [1]
    assert manager.num_tokens("r") == 1


def test_callback_of_a_step_may_call_the_manager_while_others_wait(manager, gate):
    add(manager, "r", regex="a*")
    counts = []
    first = manager.step({"r": [A]}, ["r"])
    first.add_done_callback(lambda _: counts.append(manager.num_tokens("r")))
    second = manager.step({"r": [A]}, ["r"])
    gate.set()
    second.result(60)
    assert counts == [1]


def test_step_with_unknown_or_repeated_ids_raises_at_once(manager):
    add(manager, "r", regex="a*")
    with pytest.raises(UnknownRequestError):
        manager.step({}, ["nobody"])
    with pytest.raises(ValueError, match="more than once"):
        manager.step({}, ["r", "r"])
    assert manager.step({"nobody": [A]}, ["r", "nobody"], strict=False).result(60).row_indptr.tolist() == [0, 1, 1]


def test_close_cancels_steps_that_have_not_begun_and_frees_who_waits_for_them(manager, gate):
    add(manager, "r", regex="a*")
    first, second = manager.step({"r": [A]}, ["r"]), manager.step({"r": [A]}, ["r"])

    def roll_back():
        with pytest.raises(UnknownRequestError):
            manager.rollback("r", 1)

    thread = threading.Thread(target=roll_back)
    thread.start()
    closing = threading.Thread(target=manager.close)
    closing.start()
    while manager.num_requests:  # else the steps may run before they are cancelled
        time.sleep(0.001)
    gate.set()
    closing.join(60)
    thread.join(60)
    assert not thread.is_alive()
    assert not closing.is_alive()
    assert first.done()
    assert second.done()
    with pytest.raises(StructOutError):
        manager.step({}, [])
