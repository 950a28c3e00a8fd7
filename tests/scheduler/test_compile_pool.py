"""CompilePool: futures, the queue, cancelling, failures, threads, closing, forks."""

import os
import random
import threading
import time
import weakref
from collections import Counter
from concurrent.futures import CancelledError

import pytest

from structout.constraints.limits import Limits
from structout.errors import CompileCrashError, GrammarError, GrammarLimitError, GrammarTimeoutError, StructOutError
from structout.scheduler import compile_pool
from support import fresh_process
from support.compilations import (
    LONG,
    Compiled,
    Key,
    cached,
    compile_with,
    is_idle,
    outcome,
    wait_until,
    wait_until_freed,
)
from support.managers import in_threads

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


# -- one key, several submissions ------------------------------------------------------


def test_submit_of_equal_keys_compiles_once(make, gates):
    pool = make(gates)
    first = pool.submit("a")
    assert gates.next_started() == "a"
    second = pool.submit("a")  # while it is compiled
    pool.submit("b")
    third = pool.submit("b")  # while it waits
    gates.open("a", "b")
    assert first.result(LONG) is second.result(LONG)
    assert third.result(LONG).text == "b"
    assert gates.count == {"a": 1, "b": 1}


def test_failed_compilation_gives_each_future_its_own_error(make, gates):
    pool = make(gates)
    gates.errors["a"] = GrammarLimitError("alternatives", 7, 5)
    futures = [pool.submit("a"), pool.submit("a")]
    gates.open("a")
    first, second = (future.exception(LONG) for future in futures)
    assert first is not second
    first.request_id = "r"
    assert second.request_id is None
    for error in (first, second, compile_with(pool, "a")):
        assert isinstance(error, GrammarLimitError)
        assert (str(error), error.limit, error.got, error.max) == (
            "alternatives is limited to 5, got 7",
            "alternatives",
            7,
            5,
        )
        assert error.__traceback__ is None
    assert compile_with(pool, "a") is not compile_with(pool, "a")


def test_callback_that_raises_leaves_other_futures_unaffected(make, gates, caplog):
    pool = make(gates)
    pool.submit("a").add_done_callback(lambda future: 1 / 0)
    future = pool.submit("a")
    gates.open("a", "b")
    assert future.result(LONG).text == "a"
    assert compile_with(pool, "b").text == "b"
    assert "ZeroDivisionError" in caplog.text


# -- cancelling ------------------------------------------------------------------------


def test_cancel_of_one_future_leaves_the_other(make, gates):
    pool = make(gates)
    stays = {}
    for key in ("compiling", "queued"):
        gone, stays[key] = pool.submit(key), pool.submit(key)
        assert gone.cancel()
        assert gone.cancel()
    gates.open("compiling", "queued")
    assert [future.result(LONG).text for future in stays.values()] == ["compiling", "queued"]


def test_cancel_of_all_futures_removes_the_waiting_job(make, gates):
    pool = make(gates, queue_size=2)
    pool.submit("first")
    assert gates.next_started() == "first"
    unwanted = Key("unwanted")
    futures = [pool.submit(unwanted) for _ in range(3)]
    reference = weakref.ref(unwanted)
    del unwanted
    pool.submit("last")
    while futures:
        with pytest.raises(GrammarLimitError):
            pool.submit("too many")
        futures.pop().cancel()
    assert pool.stats().waiting == 1
    wait_until_freed([reference])
    gates.open("first", "last")
    assert gates.next_started() == "last"
    wait_until(lambda: is_idle(pool))
    assert gates.count == {"first": 1, "last": 1}


def test_cancel_while_compiling_still_caches_the_result(make, gates):
    pool = make(gates)
    future = pool.submit("a")
    assert gates.next_started() == "a"
    assert future.cancel()
    gates.open("a")
    wait_until(lambda: cached(pool, "a") is not None)


def test_cancel_after_completion_does_nothing(make):
    pool = make(Compiled)
    future = pool.submit("a")
    assert future.result(LONG).text == "a"
    assert not future.cancel()
    assert cached(pool, "a").text == "a"


def test_cancel_inside_a_callback_stops_the_next_one(make, gates):
    pool = make(gates)
    first, second = pool.submit("a"), pool.submit("a")
    first.add_done_callback(lambda _: second.cancel())
    gates.open("a")
    with pytest.raises(CancelledError):
        second.result(LONG)
    assert first.result().text == "a"


def test_finished_future_keeps_nothing_alive(make, gates):
    class Listener:
        def on_done(self, future):
            pass

    pool = make(gates)
    listeners = [Listener(), Listener()]
    keys = [Key("notified"), Key("cancelled")]
    futures = [pool.submit(key) for key in keys]
    for future, listener in zip(futures, listeners, strict=True):
        future.add_done_callback(listener.on_done)
    references = [weakref.ref(each) for each in (*listeners, keys[1])]
    futures[1].cancel()
    del listeners, keys, listener, future, futures
    gates.open("notified")
    wait_until(lambda: is_idle(pool))
    wait_until_freed(references)


# -- the queue -------------------------------------------------------------------------


def test_jobs_start_in_the_order_of_their_submissions(make, gates):
    pool = make(gates)
    for key in ("first", "c", "a", "b", "a"):
        pool.submit(key)
    gates.open("first", "a", "b", "c")
    assert [gates.next_started() for _ in range(4)] == ["first", "c", "a", "b"]


def test_submit_beyond_the_queue_limit_raises(make, gates):
    pool = make(gates, queue_size=3)
    pool.submit("compiling")
    futures = [pool.submit(str(i)) for i in range(3)]
    with pytest.raises(GrammarLimitError) as caught:
        pool.submit("new")
    assert (caught.value.limit, caught.value.got, caught.value.max) == ("queue_size", 4, 3)
    pool.submit("0")  # waits already
    pool.submit("compiling")
    assert pool.stats().waiting == 3
    futures[1].cancel()
    pool.submit("new")
    assert cached(pool, "new") is None


# -- failures --------------------------------------------------------------------------


@pytest.mark.parametrize("crash", [MemoryError("no memory"), RuntimeError("?"), SystemExit(3), CompileCrashError("?")])
def test_crash_is_retried_once_and_not_cached(make, crash):
    counts = Counter()

    def compile(key):
        counts[key] += 1
        if key == "always" or counts[key] == 1:
            raise crash
        return Compiled(key)

    pool = make(compile)
    assert compile_with(pool, "once").text == "once"
    error = compile_with(pool, "always")
    assert isinstance(error, CompileCrashError)
    assert str(error) == ("?" if isinstance(crash, CompileCrashError) else f"compilation failed: {crash!r}")
    assert counts == {"once": 2, "always": 2}
    assert cached(pool, "always") is None


@pytest.mark.parametrize("error", [GrammarError("bad"), GrammarTimeoutError("killed at its deadline")])
def test_grammar_error_is_not_retried(make, gates, error):
    pool = make(gates)
    gates.errors["a"] = error
    gates.open("a")
    assert str(compile_with(pool, "a")) == str(error)
    assert gates.count == {"a": 1}
    is_timeout = isinstance(error, GrammarTimeoutError)
    assert (cached(pool, "a") is None) == is_timeout
    assert pool.stats().timeouts == is_timeout


def test_grammar_above_compiled_bytes_fails_with_a_limit_error(make):
    pool = make(lambda key: Compiled(key, memory_bytes=1001), limits=Limits(compiled_bytes=1000))
    error = compile_with(pool, "a")
    assert (error.limit, error.got, error.max) == ("compiled_bytes", 1001, 1000)
    assert pool.stats().failures_kept == 1


def test_submit_without_a_thread_fails_and_leaves_no_job(make, monkeypatch):
    def no_thread(self):
        raise RuntimeError("can't start new thread")

    pool = make(Compiled)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        future = pool.submit("a")
    error = future.exception(LONG)
    assert isinstance(error, CompileCrashError)
    assert str(error) == "compilation failed: the process cannot start another thread"
    assert is_idle(pool)
    assert compile_with(pool, "a").text == "a"  # a job left behind would never compile


# -- threads ---------------------------------------------------------------------------


def test_compilations_run_on_all_workers_and_no_more(make):
    lock = threading.Lock()
    three_at_once = threading.Barrier(3)
    num_running, max_running = 0, 0

    def compile(key):
        nonlocal num_running, max_running
        with lock:
            num_running += 1
            max_running = max(max_running, num_running)
        three_at_once.wait(LONG)
        time.sleep(0.002)
        with lock:
            num_running -= 1
        return Compiled(str(key))

    pool = make(compile, compile_workers=3)
    futures = [pool.submit(i) for i in range(60)]
    assert all(isinstance(future.result(LONG), Compiled) for future in futures)
    assert max_running == 3


def test_submit_from_64_threads_gives_each_its_own_result(make):
    def compile(key):
        if key[1] % 5 == 0:
            raise GrammarError(str(key))
        return Compiled(str(key))

    pool = make(compile, compile_workers=4, cache_bytes=50_000)

    def ask(thread):
        for i in range(20):
            key = (thread, i) if i % 2 else (-1, i)  # every other key is shared by all threads
            future = pool.submit(key)
            if i % 7 == 3 and future.cancel():
                continue
            result = outcome(future)
            text = str(result) if key[1] % 5 == 0 else result.text
            assert text == str(key)

    in_threads(ask, 64)
    wait_until(lambda: is_idle(pool))
    assert pool.stats().cache_bytes <= 50_000


def test_threads_end_when_there_is_no_work(make):
    pool = make(Compiled, compile_workers=4, compile_timeout=0.1)
    for i in range(20):
        compile_with(pool, i)
    wait_until(no_thread_is_left)


def no_thread_is_left():
    return not [t for t in threading.enumerate() if t.name.startswith("structout-")]


def test_thread_takes_the_next_job(make):
    wait_until(no_thread_is_left)
    pool = make(lambda key: Compiled(threading.get_ident()))
    idents = set()
    for i in range(5):
        idents.add(compile_with(pool, i).text)
        wait_until(lambda: [t for t in threading.enumerate() if t.name == "structout-idle"])
    assert len(idents) == 1
    pool.close()
    wait_until(no_thread_is_left)


def test_no_job_is_lost_when_threads_end(make, monkeypatch):
    monkeypatch.setattr(compile_pool, "_IDLE_SECONDS", 1e-4)
    pool = make(Compiled, compile_workers=3)
    rng = random.Random(0)
    for first in range(0, 1500, 3):
        keys = range(first, first + rng.randrange(1, 4))
        futures = [pool.submit(key) for key in keys]
        assert [future.result(LONG).text for future in futures] == [*keys]
        time.sleep(rng.random() * 3e-4)
    wait_until(lambda: not pool._idle)


# -- closing ---------------------------------------------------------------------------


def test_close_cancels_all_futures_and_refuses_new_keys(make, gates):
    pool = make(gates)
    futures = [pool.submit("compiling"), pool.submit("queued")]
    gates.next_started()
    pool.close()
    assert all(future.cancelled() for future in futures)
    assert pool.stats().compiling == 1  # close did not wait for it
    gates.open("compiling", "queued")
    wait_until(lambda: is_idle(pool))
    assert gates.count == {"compiling": 1}
    assert cached(pool, "compiling") is None
    assert pool.stats().cache_bytes == 0
    with pytest.raises(StructOutError, match="closed"):
        pool.submit("late")
    pool.close()


def test_close_inside_a_callback_cancels_the_next_future(make, gates):
    pool = make(gates)
    first, second = pool.submit("a"), pool.submit("a")
    first.add_done_callback(lambda _: pool.close())
    gates.open("a")
    with pytest.raises(CancelledError):
        second.result(LONG)
    wait_until(lambda: is_idle(pool))


# -- forks -----------------------------------------------------------------------------


PREAMBLE = """
import os, sys, threading, time
from structout.scheduler.compile_pool import CompilePool
from structout.scheduler.process_lock import ProcessLock
from structout.constraints.config import StructuredOutputsConfig
from structout.errors import StructOutError
"""


def test_forked_process_raises_without_taking_the_lock():
    script = """
is_lock_held, is_over = threading.Event(), threading.Event()

lock = ProcessLock("CompilePool")
pool = CompilePool(lambda key: time.sleep(600), StructuredOutputsConfig(compile_workers=1), lock)
pool.submit("a")

def hold():
    with lock:
        is_lock_held.set()
        is_over.wait()

threading.Thread(target=hold, daemon=True).start()
assert is_lock_held.wait(60)
print(os.getpid(), flush=True)
child = os.fork()
if child == 0:
    for call in (lambda: pool.submit("a"), lambda: pool.submit("b"), pool.stats, pool.close):
        try:
            call()
        except StructOutError as error:
            print(error, flush=True)
    os._exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
is_over.set()
sys.exit(7)
"""
    run = fresh_process.run("-c", PREAMBLE + script, env=dict(os.environ))
    lines = run.stdout.splitlines()
    message = (
        f"this CompilePool belongs to process {lines[0]}, from which this process was forked; its threads and "
        "locks cannot be used here. Create a new one in this process"
    )
    assert lines[1:] == [message] * 4 + ["5"], run.stderr
    assert run.returncode == 7
