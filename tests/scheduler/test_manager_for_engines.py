"""What engines ask of the manager beside a step: notices, errors and clean-up."""

import gc
import threading
import time
import weakref

import pytest

from structout import (
    GrammarError,
    GrammarStatus,
    GrammarTimeoutError,
    StructOutError,
    StructuredOutputManager,
    StructuredOutputsConfig,
    StructuredOutputsParams,
    UnknownRequestError,
)
from structout.scheduler.requests import RequestTable
from support.managers import TOKENIZER, V, add, ids_of

READY, FAILED, WAITING = GrammarStatus.READY, GrammarStatus.FAILED, GrammarStatus.WAITING


# -- unknown requests ------------------------------------------------------------------


def test_grammar_bitmask_with_an_unknown_id_raises_before_it_fills(manager):
    add(manager, "r", regex="a")
    before = manager.stats().rows_filled
    with pytest.raises(UnknownRequestError, match=r"requests \['R', 'x'\] are not with the manager") as caught:
        manager.grammar_bitmask(["r", "R", "x"])
    assert caught.value.request_id == "R"
    assert manager.stats().rows_filled == before
    assert manager.grammar_bitmask(["r", "R"], strict=False).row_indptr.tolist() == [0, 1, 1]
    manager.finish_request("r")
    with pytest.raises(UnknownRequestError, match="'r'"):
        manager.grammar_bitmask(["r"])


def test_num_tokens_and_compiled_of_a_request_without_a_grammar_raise(manager, gate):
    manager.add_request("waiting", StructuredOutputsParams(regex="a"))
    with pytest.raises(StructOutError, match="has no grammar: it is waiting"):
        manager.num_tokens("waiting")
    with pytest.raises(StructOutError, match="is not compiled: it is waiting"):
        manager.compiled("waiting")


# -- changes of status -----------------------------------------------------------------


def test_poll_changed_gives_each_change_once_with_its_status(manager):
    add(manager, "good", regex="a")
    manager.add_request("bad", StructuredOutputsParams(regex="("))
    assert manager.wait_all(timeout=60) == {"good": READY, "bad": FAILED}
    assert manager.poll_changed() == [("good", READY), ("bad", FAILED)]
    assert manager.poll_changed() == manager.poll_ready() == []


def test_request_that_fails_later_is_reported_again():
    with StructuredOutputManager(TOKENIZER, V, StructuredOutputsConfig(slow_token_seconds=1e-9)) as manager:
        for name in ("first", "second"):
            add(manager, name, regex="a*", backend="xgrammar")
        assert manager.poll_changed() == [("first", READY), ("second", READY)]
        while manager.status("first") is READY:
            manager.accept_tokens("first", ids_of("a"))
        assert manager.poll_changed() == [("first", FAILED)]
        add(manager, "third", regex="a*")
        while manager.status("second") is READY:
            manager.accept_tokens("second", ids_of("a"))
        assert manager.poll_ready() == ["third", "second"]


def test_wait_all_has_one_timeout_for_all_and_names_who_is_late(manager, gate):
    for i in range(5):
        manager.add_request(f"r{i}", StructuredOutputsParams(regex=f"a{i}"))
    start = time.monotonic()
    with pytest.raises(GrammarTimeoutError, match="'r1' is still compiling"):
        manager.wait_all(["r1", "r2", "r3"], timeout=0.3)
    assert time.monotonic() - start >= 0.3
    gate.set()
    assert manager.wait_all(["r3", "r1"], timeout=60) == {"r3": READY, "r1": READY}
    assert set(manager.wait_all().values()) == {READY}
    assert manager.wait_all([]) == {}
    with pytest.raises(UnknownRequestError):
        manager.wait_all(["r1", "nobody"])


def test_num_requests_counts_every_state(manager, gate):
    assert manager.num_requests == 0
    manager.add_request("waiting", StructuredOutputsParams(regex="a"))
    manager.add_failed_request("failed", GrammarError("elsewhere"))
    assert manager.num_requests == 2
    manager.finish_request("waiting")
    manager.finish_request("failed")
    assert manager.num_requests == 0


# -- on_settled ------------------------------------------------------------------------


def test_on_settled_is_called_once_for_ready_failed_and_cached_results(manager, gate):
    calls, threads, changed = [], [], threading.Semaphore(0)

    def note(request_id, status):
        calls.append((request_id, status))
        threads.append(threading.current_thread())
        assert manager.status(request_id) is status  # it may use the manager
        changed.release()

    manager.add_request("new", StructuredOutputsParams(regex="a"), on_settled=note)
    manager.add_request("bad", StructuredOutputsParams(regex="("), on_settled=note)
    assert not calls
    gate.set()
    assert changed.acquire(timeout=60)
    assert changed.acquire(timeout=60)
    assert sorted(calls, key=str) == [("bad", FAILED), ("new", READY)]
    assert threading.main_thread() not in threads
    assert manager.add_request("known", StructuredOutputsParams(regex="a"), on_settled=note) is READY
    assert manager.add_request("malformed", StructuredOutputsParams(), on_settled=note) is FAILED
    assert calls[2:] == [("known", READY), ("malformed", FAILED)]


def test_on_settled_that_raises_harms_nobody(manager, caplog):
    def fail(request_id, status):
        raise RuntimeError("of the engine")

    for name in ("first", "cached"):
        manager.add_request(name, StructuredOutputsParams(regex="a"), on_settled=fail)
        manager.wait_ready(name, 60)
    assert manager.grammar_bitmask(["first", "cached"]).bitmask.any(axis=1).all()
    while caplog.text.count("on_settled of request") < 2:  # the first is logged after the request is ready
        time.sleep(0.01)


def test_on_settled_is_not_called_for_a_finished_request(manager, gate):
    calls = []
    manager.add_request("gone", StructuredOutputsParams(regex="a"), on_settled=lambda *call: calls.append(call))
    manager.finish_request("gone")
    gate.set()
    add(manager, "next", regex="a")
    assert not calls


# -- errors ----------------------------------------------------------------------------


def test_errors_are_fresh_objects_that_keep_nothing_alive(manager):
    manager.add_request("bad", StructuredOutputsParams(regex="("))

    class Frame:
        """Stands for what a frame of the caller holds."""

    def raise_in_a_frame():
        held = Frame()
        alive.append(weakref.ref(held))
        with pytest.raises(GrammarError, match="does not parse"):
            manager.wait_ready("bad", 60)
        raise manager.error("bad")

    alive = []
    with pytest.raises(GrammarError) as caught:
        raise_in_a_frame()
    assert caught.value.request_id == "bad"
    assert alive[0]() is not None  # held by the traceback of the error that was raised
    del caught
    gc.collect()
    assert alive[0]() is None
    assert manager.error("bad") is not manager.error("bad")
    assert manager.error("bad").__traceback__ is None


@pytest.mark.parametrize("constraint", [{"json": "{"}, {"regex": "("}, {"regex": "a", "backend": "unknown"}], ids=str)
def test_a_bad_constraint_keeps_nothing_of_its_caller_alive(manager, constraint):
    class Frame:
        """Stands for what a frame of the caller holds."""

    def add_request():
        held = Frame()
        manager.add_request("bad", StructuredOutputsParams(**constraint))
        return weakref.ref(held)

    gc.disable()
    try:
        held = add_request()
        with pytest.raises(GrammarError):
            manager.wait_ready("bad", 60)
        assert held() is None
    finally:
        gc.enable()


# -- finalizers ------------------------------------------------------------------------


def test_finish_request_from_a_finalizer_inside_the_managers_lock_is_done_at_its_end(manager, gate):
    manager.add_request("r", StructuredOutputsParams(regex="a"))
    with manager._lock:
        manager.finish_request("r")
        assert manager.status("r") is WAITING
    with pytest.raises(UnknownRequestError):
        manager.status("r")
    assert manager.stats().compilation.waiting == 0


def test_handle_collected_while_the_table_is_read_finishes_its_request(manager, monkeypatch):
    class Handle:
        def __init__(self, name):
            self.name, self.me = name, self  # a cycle, which only the collector frees

        def __del__(self):
            manager.finish_request(self.name)

    names = [f"r{i}" for i in range(20)]
    for name in names:
        add(manager, name, choice=["x"])
        Handle(name)
    is_settled = RequestTable.count_statuses

    def collect_inside(table):
        with table._lock:
            gc.collect()
            return is_settled(table)

    monkeypatch.setattr(RequestTable, "count_statuses", collect_inside)
    manager.stats()
    assert manager.num_requests == 0
    assert not manager.poll_ready()
    add(manager, "r0", choice=["x"])
    assert manager.slot("r0") == 0


# -- statistics ------------------------------------------------------------------------


def test_stats_name_backends(manager):
    add(manager, "other", regex="[ab]*", backend="xgrammar")
    add(manager, "own", regex="a")
    manager.grammar_bitmask(["other", "own"], {"other": ids_of("ab")})
    stats = manager.stats()
    assert stats.backends == {"xgrammar": 1, "native": 1}
    assert stats.rows_filled == 3 + 1
    manager.fork("own", "fork")
    assert manager.stats().backends == stats.backends  # it is not compiled
