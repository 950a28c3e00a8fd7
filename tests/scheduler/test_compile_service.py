"""CompileService: subscriptions, cancelling, failures, threads, closing, forks."""

import os
import random
import threading
import time
import weakref
from collections import Counter

import pytest

from structout.constraints.limits import Limits
from structout.errors import CompileCrashError, GrammarError, GrammarLimitError, GrammarTimeoutError, StructOutError
from structout.scheduler import compile_service
from support import fresh_process
from support.compile_jobs import LONG, Compiled, Inbox, Key, cached, compile_with, is_idle, wait_until, wait_until_freed

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


# -- one key, several subscriptions ----------------------------------------------------


def test_submit_of_equal_keys_compiles_once(make, gates):
    service = make(gates)
    inboxes = [Inbox() for _ in range(3)]
    service.submit("a", "", inboxes[0])
    assert gates.next_started() == "a"
    service.submit("a", "", inboxes[1])  # while it is compiled
    service.submit("b", "", Inbox())
    service.submit("b", "", inboxes[2])  # while it waits
    gates.open("a", "b")
    assert inboxes[0].get() is inboxes[1].get()
    assert inboxes[2].get().text == "b"
    assert gates.count == {"a": 1, "b": 1}


def test_failed_compilation_gives_each_subscription_its_own_error(make, gates):
    service = make(gates)
    gates.errors["a"] = GrammarLimitError("alternatives", 7, 5)
    inboxes = [Inbox(), Inbox()]
    for inbox in inboxes:
        service.submit("a", "", inbox)
    gates.open("a")
    first, second = (inbox.get() for inbox in inboxes)
    assert first is not second
    first.request_id = "r"
    assert second.request_id is None
    for error in (first, second, compile_with(service, "a")):
        assert isinstance(error, GrammarLimitError)
        assert (str(error), error.limit, error.got, error.max) == (
            "alternatives is limited to 5, got 7",
            "alternatives",
            7,
            5,
        )
        assert error.__traceback__ is None
    assert compile_with(service, "a") is not compile_with(service, "a")


def test_on_done_that_raises_leaves_other_subscriptions_unaffected(make, gates, caplog):
    service = make(gates)
    inbox = Inbox()
    service.submit("a", "", lambda result: 1 / 0)
    service.submit("a", "", inbox)
    gates.open("a", "b")
    assert inbox.get().text == "a"
    assert compile_with(service, "b").text == "b"
    assert "on_done callback of a compilation raised" in caplog.text


# -- cancelling ------------------------------------------------------------------------


def test_cancel_of_one_subscription_leaves_the_other(make, gates):
    service = make(gates)
    for key in ("compiling", "queued"):
        gone, stays = Inbox(), Inbox()
        ticket = service.submit(key, "", gone)
        service.submit(key, "", stays)
        service.cancel(ticket)
        service.cancel(ticket)
        if key == "compiling":
            compiling = gone, stays
    gates.open("compiling", "queued")
    assert compiling[1].get().text == "compiling"
    assert stays.get().text == "queued"
    assert compiling[0].is_empty()
    assert gone.is_empty()


def test_cancel_of_all_subscriptions_removes_the_waiting_job(make, gates):
    service = make(gates, queue_size=2)
    service.submit("first", "", Inbox())
    assert gates.next_started() == "first"
    unwanted = Key("unwanted")
    tickets = [service.submit(unwanted, tenant, Inbox()) for tenant in ("a", "b", "a")]
    reference = weakref.ref(unwanted)
    del unwanted
    service.submit("last", "b", Inbox())
    for ticket in tickets:
        with pytest.raises(GrammarLimitError):
            service.submit("too many", "", Inbox())
        service.cancel(ticket)
    assert service.stats().waiting == 1
    wait_until_freed([reference])
    gates.open("first", "last")
    assert gates.next_started() == "last"
    wait_until(lambda: is_idle(service))
    assert gates.count == {"first": 1, "last": 1}


def test_cancel_while_compiling_still_caches_the_result(make, gates):
    service = make(gates)
    inbox = Inbox()
    ticket = service.submit("a", "", inbox)
    assert gates.next_started() == "a"
    service.cancel(ticket)
    gates.open("a")
    wait_until(lambda: cached(service, "a") is not None)
    assert inbox.is_empty()


def test_cancel_after_completion_does_nothing(make):
    service = make(Compiled)
    inbox = Inbox()
    ticket = service.submit("a", "", inbox)
    assert inbox.get().text == "a"
    service.cancel(ticket)
    assert inbox.is_empty()
    assert cached(service, "a").text == "a"


def test_cancel_inside_on_done_stops_the_next_callback(make, gates):
    service = make(gates)
    tickets = []
    inbox, other = Inbox(), Inbox()

    def cancel_the_next(result):
        service.cancel(tickets[1])
        inbox(result)

    tickets += [service.submit("a", "", on_done) for on_done in (cancel_the_next, other)]
    gates.open("a")
    inbox.get()
    wait_until(lambda: service.stats().compiling == 0)
    assert other.is_empty()


def test_finished_subscription_keeps_nothing_alive(make, gates):
    class Listener:
        def on_done(self, result):
            pass

    service = make(gates)
    listeners = [Listener(), Listener()]
    keys = [Key("notified"), Key("cancelled")]
    tickets = [service.submit(key, "", listener.on_done) for key, listener in zip(keys, listeners, strict=True)]
    references = [weakref.ref(each) for each in (*listeners, keys[1])]
    del listeners, keys
    service.cancel(tickets[1])
    gates.open("notified")
    wait_until(lambda: is_idle(service))
    wait_until_freed(references)


# -- failures --------------------------------------------------------------------------


@pytest.mark.parametrize("crash", [MemoryError("no memory"), RuntimeError("?"), SystemExit(3), CompileCrashError("?")])
def test_crash_is_retried_once_and_not_cached(make, crash):
    counts = Counter()

    def compile(key):
        counts[key] += 1
        if key == "always" or counts[key] == 1:
            raise crash
        return Compiled(key)

    service = make(compile)
    assert compile_with(service, "once").text == "once"
    error = compile_with(service, "always")
    assert isinstance(error, CompileCrashError)
    assert str(error) == ("?" if isinstance(crash, CompileCrashError) else f"compilation failed: {crash!r}")
    assert counts == {"once": 2, "always": 2}
    assert cached(service, "always") is None


@pytest.mark.parametrize("error", [GrammarError("bad"), GrammarTimeoutError("killed at its deadline")])
def test_grammar_error_is_not_retried(make, gates, error):
    service = make(gates)
    gates.errors["a"] = error
    gates.open("a")
    assert str(compile_with(service, "a")) == str(error)
    assert gates.count == {"a": 1}
    is_timeout = isinstance(error, GrammarTimeoutError)
    assert (cached(service, "a") is None) == is_timeout
    assert service.stats().timeouts == is_timeout


def test_grammar_above_compiled_bytes_fails_with_a_limit_error(make):
    service = make(lambda key: Compiled(key, memory_bytes=1001), limits=Limits(compiled_bytes=1000))
    error = compile_with(service, "a")
    assert (error.limit, error.got, error.max) == ("compiled_bytes", 1001, 1000)
    assert service.stats().failures_kept == 1


def test_submit_without_a_thread_fails_and_leaves_no_job(make, monkeypatch):
    def no_thread(self):
        raise RuntimeError("can't start new thread")

    service = make(Compiled)
    inbox = Inbox()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        service.submit("a", "", inbox)
    error = inbox.get()
    assert isinstance(error, CompileCrashError)
    assert str(error) == "compilation failed: the process cannot start another thread"
    assert is_idle(service)
    assert compile_with(service, "a").text == "a"  # a job left behind would never compile
    assert inbox.is_empty()


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

    service = make(compile, compile_workers=3)
    inbox = Inbox()
    for i in range(60):
        service.submit(i, f"tenant {i % 3}", inbox)
    assert all(isinstance(inbox.get(), Compiled) for _ in range(60))
    assert max_running == 3


def test_submit_from_64_threads_gives_each_its_own_result(make):
    def compile(key):
        if key[1] % 5 == 0:
            raise GrammarError(str(key))
        return Compiled(str(key))

    service = make(compile, compile_workers=4, tenant_queue_size=512, cache_bytes=50_000)
    wrong = []

    def ask(thread):
        for i in range(20):
            key = (thread, i) if i % 2 else (-1, i)  # every other key is shared by all threads
            inbox = Inbox()
            ticket = service.submit(key, f"tenant {thread % 7}", inbox)
            if i % 7 == 3:
                service.cancel(ticket)
                continue
            result = inbox.get()
            text = str(result) if key[1] % 5 == 0 else result.text
            if text != str(key):
                wrong.append((key, text))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    wait_until(lambda: is_idle(service))
    assert service.stats().cache_bytes <= 50_000


def test_threads_end_when_there_is_no_work(make):
    service = make(Compiled, compile_workers=4, compile_timeout=0.1)
    for i in range(20):
        compile_with(service, i)
    wait_until(no_thread_is_left)


def no_thread_is_left():
    return not [t for t in threading.enumerate() if t.name.startswith("structout-")]


def test_thread_takes_the_next_job(make):
    wait_until(no_thread_is_left)
    service = make(lambda key: Compiled(threading.get_ident()))
    idents = set()
    for i in range(5):
        idents.add(compile_with(service, i).text)
        wait_until(lambda: [t for t in threading.enumerate() if t.name == "structout-idle"])
    assert len(idents) == 1
    service.close()
    wait_until(no_thread_is_left)


def test_no_job_is_lost_when_threads_end(make, monkeypatch):
    monkeypatch.setattr(compile_service, "_IDLE_SECONDS", 1e-4)
    service = make(Compiled, compile_workers=3)
    rng = random.Random(0)
    for first in range(0, 1500, 3):
        inboxes = [Inbox() for _ in range(rng.randrange(1, 4))]
        for i, inbox in enumerate(inboxes):
            service.submit(first + i, "", inbox)
        assert sorted(inbox.get().text for inbox in inboxes) == [first + i for i in range(len(inboxes))]
        time.sleep(rng.random() * 3e-4)
    wait_until(lambda: service._num_idle == 0)
    assert service._handed.empty()


# -- closing ---------------------------------------------------------------------------


def test_close_calls_no_callback_and_refuses_new_keys(make, gates):
    service = make(gates)
    inbox = Inbox()
    ticket = service.submit("compiling", "", inbox)
    gates.next_started()
    service.submit("queued", "", inbox)
    service.close()
    assert service.stats().compiling == 1  # close did not wait for it
    gates.open("compiling", "queued")
    wait_until(lambda: is_idle(service))
    assert inbox.is_empty()
    assert gates.count == {"compiling": 1}
    assert cached(service, "compiling") is None
    assert service.stats().cache_bytes == 0
    with pytest.raises(StructOutError, match="closed"):
        service.submit("late", "", inbox)
    service.cancel(ticket)
    service.close()


def test_close_inside_on_done_stops_the_next_callback(make, gates):
    service = make(gates)
    inbox = Inbox()
    is_closed = threading.Event()
    service.submit("a", "", lambda result: (service.close(), is_closed.set()))
    service.submit("a", "", inbox)
    gates.open("a")
    assert is_closed.wait(LONG)
    wait_until(lambda: is_idle(service))
    assert inbox.is_empty()


# -- forks -----------------------------------------------------------------------------


PREAMBLE = """
import os, sys, threading, time
from structout.scheduler.compile_service import CompileService
from structout.scheduler.process_lock import ProcessLock
from structout.constraints.config import StructuredOutputsConfig
from structout.errors import StructOutError
"""


def test_forked_process_raises_without_taking_the_lock():
    script = """
is_lock_held, is_over = threading.Event(), threading.Event()

def clock():
    if threading.current_thread().name == "holder":  # here the service's lock is held
        is_lock_held.set()
        is_over.wait()
    return time.monotonic()

config = StructuredOutputsConfig(compile_workers=1)
service = CompileService(lambda key: time.sleep(600), config, ProcessLock("CompileService"), clock=clock)
ticket = service.submit("a", "", print)
threading.Thread(target=service.submit, args=("b", "", print), name="holder", daemon=True).start()
assert is_lock_held.wait(60)
print(os.getpid(), flush=True)
child = os.fork()
if child == 0:
    calls = (lambda: service.submit(key, "", print) for key in "ab")
    for call in (*calls, service.stats, lambda: service.cancel(ticket)):
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
        f"this CompileService belongs to process {lines[0]}, from which this process was forked; its threads and "
        "locks cannot be used here. Create a new one in this process"
    )
    assert lines[1:] == [message] * 4 + ["5"], run.stderr
    assert run.returncode == 7
