"""Waiting for compilations: who is delayed, and what wakes ``wait_ready``."""

import queue
import threading
import time

import pytest

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
from structout.grammar.native.backend import NativeBackend
from support import fresh_process
from support.locations import importing
from support.managers import TOKENIZER, V, add


@pytest.fixture
def manager():
    config = StructuredOutputsConfig(compile_workers=4, compile_timeout=60)  # for a busy machine
    with StructuredOutputManager(TOKENIZER, V, config) as manager:
        yield manager


class Gate:
    """Blocks compilations of regexes that start with "slow" until it is opened."""

    def __init__(self, monkeypatch):
        self.opened = threading.Event()
        self.entered = threading.Semaphore(0)
        compile_constraint = NativeBackend.compile

        def blocked_compile(backend, constraint, stop_token_ids):
            if constraint.spec.startswith("slow"):
                self.entered.release()
                assert self.opened.wait(60)
            return compile_constraint(backend, constraint, stop_token_ids)

        monkeypatch.setattr(NativeBackend, "compile", blocked_compile)


@pytest.fixture
def gate(monkeypatch):
    gate = Gate(monkeypatch)
    yield gate
    gate.opened.set()


def add_slow(manager, gate, request_id):
    manager.add_request(request_id, StructuredOutputsParams(regex=f"slow {request_id}"))
    assert gate.entered.acquire(timeout=60)


def run_in_background(call, *arguments):
    """Run the call in a thread. Returns a queue that receives its exception, or
    None."""
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


def test_slow_compilations_delay_no_other_request_while_a_worker_is_free(manager, gate):
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


def test_finish_request_wakes_its_waiters(manager, gate):
    workers = manager.config.compile_workers
    for i in range(workers):
        add_slow(manager, gate, f"compiling {i}")
    manager.add_request("queued", StructuredOutputsParams(regex="slow queued"))
    for name in ("compiling 0", "queued"):
        raised = run_in_background(manager.wait_ready, name)
        manager.finish_request(name)
        error = raised.get(timeout=60)
        assert isinstance(error, UnknownRequestError)
        assert error.request_id == name
        with pytest.raises(UnknownRequestError):
            manager.status(name)
    gate.opened.set()
    for i in range(1, workers):
        manager.wait_ready(f"compiling {i}", timeout=60)
    assert sorted(manager.poll_ready()) == [f"compiling {i}" for i in range(1, workers)]
    assert not gate.entered.acquire(timeout=0.05)  # "queued" was finished, so it never compiles


def test_close_wakes_waiters_and_refuses_new_requests(manager, gate):
    add_slow(manager, gate, "r")
    raised = run_in_background(manager.wait_ready, "r")
    time.sleep(0.05)
    manager.close()
    error = raised.get(timeout=60)
    assert isinstance(error, StructOutError)
    assert str(error) in ("the manager was closed", "request 'r' is not with the manager")
    with pytest.raises(StructOutError, match="the manager is closed") as caught:
        manager.add_request("late", StructuredOutputsParams(regex="a"))
    assert caught.value.request_id == "late"
    with pytest.raises(UnknownRequestError):
        manager.status("late")
    manager.close()


def test_compilation_of_finished_request_leaves_a_new_request_of_its_id_waiting(manager, monkeypatch):
    """The old compilation ends while the new one still runs."""
    old = Gate(monkeypatch)
    add_slow(manager, old, "a")
    manager.finish_request("a")
    monkeypatch.undo()
    new = Gate(monkeypatch)
    manager.add_request("a", StructuredOutputsParams(regex="slow again"))
    assert new.entered.acquire(timeout=60)
    old.opened.set()
    time.sleep(0.2)
    assert manager.poll_ready() == []
    assert manager.status("a") is GrammarStatus.WAITING
    new.opened.set()
    manager.wait_ready("a", timeout=60)
    assert manager.poll_ready() == ["a"]


def test_poll_ready_after_finish_request_omits_the_request(manager):
    for _ in range(5):
        add(manager, "r", regex="a")
        manager.finish_request("r")
    assert manager.poll_ready() == []


def test_add_request_that_raises_leaves_no_request(manager, monkeypatch):
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
def test_process_exits_while_a_constraint_compiles(ending):
    script = f"""
import sys, time
from support.managers import TOKENIZER, V
from structout import StructuredOutputManager, StructuredOutputsParams
from structout.grammar.native.backend import NativeBackend
NativeBackend.compile = lambda *arguments: time.sleep(600)
manager = StructuredOutputManager(TOKENIZER, V)
manager.add_request("r", StructuredOutputsParams(regex="a"))
print("ending", flush=True)
{ending}
"""
    run = fresh_process.run("-c", script, env=importing(__file__), timeout=120, finalizes=True)
    assert (run.stdout, run.returncode) == ("ending\n", 7)  # the compilation takes 600 s
