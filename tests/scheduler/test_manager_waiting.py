"""Who waits for a compilation, who does not, and what happens to those who wait when a request or a manager ends."""

import queue
import subprocess
import sys
import threading
import time

import pytest
import tokenizers_on_the_spot
from locations import importing

import structout
from structout import (
    GrammarStatus,
    GrammarTimeoutError,
    StructOutError,
    StructuredOutputManager,
    StructuredOutputsConfig,
    StructuredOutputsParams,
    UnknownRequestError,
)

V = 512


@pytest.fixture
def manager():
    config = StructuredOutputsConfig(compile_workers=4)
    with StructuredOutputManager(tokenizers_on_the_spot.byte_level(), V, config) as manager:
        yield manager


def add(manager, request_id, **params):
    manager.add_request(request_id, StructuredOutputsParams(**params))
    manager.wait_ready(request_id, timeout=30)


class Gate:
    """Holds every compilation of the regex "slow" until it is opened."""

    def __init__(self, manager, monkeypatch):
        self.opened = threading.Event()
        self.entered = threading.Semaphore(0)
        compile_constraint = manager._backends.compile

        def held(constraint):
            if constraint.spec.startswith("slow"):
                self.entered.release()
                assert self.opened.wait(30)
            return compile_constraint(constraint)

        monkeypatch.setattr(manager._backends, "compile", held)


@pytest.fixture
def gate(manager, monkeypatch):
    gate = Gate(manager, monkeypatch)
    yield gate
    gate.opened.set()


def add_slow(manager, gate, request_id):
    manager.add_request(request_id, StructuredOutputsParams(regex=f"slow {request_id}"), tenant=request_id)
    assert gate.entered.acquire(timeout=30)


def in_the_background(call, *arguments):
    """What ``call`` raises, if it does, as soon as it ends."""
    raised = queue.Queue()

    def run():
        try:
            call(*arguments)
        except Exception as error:
            raised.put(error)
        else:
            raised.put(None)

    threading.Thread(target=run, daemon=True).start()
    return raised


def test_slow_compilations_delay_nobody_while_one_worker_is_left(manager, gate):
    num_slow = manager.config.compile_workers - 1
    for i in range(num_slow):
        add_slow(manager, gate, f"slow {i}")
    add(manager, "quick", regex="a")
    assert manager.grammar_bitmask(["quick"]).bitmask.any()
    stats = manager.stats()
    assert (stats.waiting, stats.ready, stats.failed) == (num_slow, 1, 0)
    with pytest.raises(GrammarTimeoutError, match=r"still compiling after 0\.01 s") as caught:
        manager.wait_ready("slow 0", timeout=0.01)
    assert caught.value.request_id == "slow 0"
    assert isinstance(caught.value, TimeoutError)
    assert manager.grammar_bitmask(["slow 0"]).errors == {"slow 0": "scheduled before its grammar was ready"}


def test_steps_go_on_while_xgrammar_compiles():
    """A real compilation of seconds: it leaves Python to the other threads."""
    slow = {"type": "object", "properties": {f"k{i}": {"type": "string", "minLength": 1} for i in range(900)}}
    with StructuredOutputManager(tokenizers_on_the_spot.byte_level(), V) as manager:
        add(manager, "quick", regex="a")
        manager.add_request("slow", StructuredOutputsParams(json=slow, backend="xgrammar:no-fallback"))
        for _ in range(50):
            started = time.perf_counter()
            assert manager.grammar_bitmask(["quick"]).bitmask.any()
            assert time.perf_counter() - started < 1
        assert manager.status("slow") is GrammarStatus.WAITING
        started = time.perf_counter()
    assert time.perf_counter() - started < 2  # closing


def test_finishing_a_request_wakes_who_waits_for_it(manager, gate):
    workers = manager.config.compile_workers
    for i in range(workers):
        add_slow(manager, gate, f"compiling {i}")
    manager.add_request("queued", StructuredOutputsParams(regex="slow queued"))
    for name in ("compiling 0", "queued"):
        raised = in_the_background(manager.wait_ready, name)
        manager.finish_request(name)
        error = raised.get(timeout=30)
        assert isinstance(error, UnknownRequestError)
        assert error.request_id == name
        with pytest.raises(UnknownRequestError):
            manager.status(name)
    gate.opened.set()
    for i in range(1, workers):
        manager.wait_ready(f"compiling {i}", timeout=30)
    assert sorted(manager.poll_ready()) == [f"compiling {i}" for i in range(1, workers)]
    assert not gate.entered.acquire(timeout=0.05)  # what was finished in the queue is never compiled


def test_closing_the_manager_wakes_who_waits_and_takes_no_more(manager, gate):
    add_slow(manager, gate, "r")
    raised = in_the_background(manager.wait_ready, "r")
    time.sleep(0.05)
    manager.close()
    error = raised.get(timeout=30)
    assert isinstance(error, StructOutError)
    assert str(error) in ("the manager was closed", "request 'r' is not with the manager")
    with pytest.raises(StructOutError, match="the manager is closed") as caught:
        manager.add_request("late", StructuredOutputsParams(regex="a"))
    assert caught.value.request_id == "late"
    with pytest.raises(UnknownRequestError):
        manager.status("late")
    manager.close()


def test_an_old_compilation_says_nothing_about_the_new_request_of_its_id(manager, monkeypatch):
    """The old one ends while the new one is still being compiled."""
    old = Gate(manager, monkeypatch)
    add_slow(manager, old, "a")
    manager.finish_request("a")
    monkeypatch.undo()
    new = Gate(manager, monkeypatch)
    manager.add_request("a", StructuredOutputsParams(regex="slow again"))
    assert new.entered.acquire(timeout=30)
    old.opened.set()
    time.sleep(0.2)
    assert manager.poll_ready() == []
    assert manager.status("a") is GrammarStatus.WAITING
    new.opened.set()
    manager.wait_ready("a", timeout=30)
    assert manager.poll_ready() == ["a"]


def test_poll_ready_after_finish_request_omits_the_request(manager):
    for _ in range(5):
        add(manager, "r", regex="a")
        manager.finish_request("r")
    assert manager.poll_ready() == []


def test_a_call_that_fails_leaves_no_request_behind(manager, monkeypatch):
    with pytest.raises(TypeError):
        manager.add_request("r", StructuredOutputsParams(regex="a"), output_token_ids=None)

    def no_thread(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(structout.GrammarError, match="the process cannot start another thread"):
            add(manager, "r", regex="a")
    manager.finish_request("r")
    add(manager, "r", regex="b")
    assert manager.slot("r") == 0


@pytest.mark.parametrize("ending", ["sys.exit(7)", "manager.close(); sys.exit(7)"])
def test_the_process_ends_while_a_constraint_is_still_being_compiled(ending):
    script = f"""
import sys, time, tokenizers_on_the_spot
from structout import StructuredOutputManager, StructuredOutputsParams
manager = StructuredOutputManager(tokenizers_on_the_spot.byte_level(), {V})
hold = lambda *arguments: time.sleep(60)
manager._backends.compile = hold
manager.add_request("r", StructuredOutputsParams(regex="a"))
print("ending", flush=True)
{ending}
"""
    run = subprocess.Popen([sys.executable, "-c", script], env=importing(__file__), stdout=subprocess.PIPE)
    assert run.stdout.readline() == b"ending\n"
    started = time.perf_counter()
    assert run.wait(timeout=50) == 7
    assert time.perf_counter() - started < 20  # a second, and what the interpreter itself needs on a busy machine
    run.stdout.close()
