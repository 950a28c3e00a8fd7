"""CompileService: sharing, cancelling, caching, crashes, deadlines, turns of tenants,
closing."""

import gc
import hashlib
import logging
import os
import queue
import random
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter, defaultdict
from dataclasses import dataclass

import pytest

from structout.constraints.config import StructuredOutputsConfig
from structout.constraints.limits import Limits
from structout.errors import CompileCrashError, GrammarError, GrammarLimitError, GrammarTimeoutError, StructOutError
from structout.scheduler import compile_service
from structout.scheduler.compile_service import CompileService
from structout.scheduler.process_lock import ProcessLock
from support import fresh_process

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

LONG = 60  # seconds that a test waits for an event that must happen


@dataclass(eq=False)
class Compiled:
    text: str
    memory_bytes: int = 1000


class Gates:
    """A compile function that blocks on each key until the test opens it.

    Attributes:
        errors: by key, the exception to raise instead of compiling.
        count: by key, the number of compilations that started.
    """

    def __init__(self):
        self._started = queue.Queue()
        self._opened = defaultdict(threading.Event)
        self.errors = {}
        self.count = Counter()

    def __call__(self, key):
        self.count[key] += 1
        self._started.put(key)
        assert self._opened[key].wait(LONG)
        if key in self.errors:
            raise self.errors[key]
        return Compiled(key)

    def next_started(self):
        """Wait for the next compilation to start, and return its key."""
        return self._started.get(timeout=LONG)

    def open(self, *keys):
        for key in keys:
            self._opened[key].set()


class Key(str):
    """A key that weak references can watch."""


class Clock:
    """A clock that moves only when the test moves it."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def make(request):
    """Make services that are closed after the test. Their default deadline is one that
    a busy machine keeps."""

    def make(compile, *, clock=time.monotonic, **config):
        config = {"compile_workers": 1, "compile_timeout": LONG, **config}
        lock = ProcessLock("CompileService")
        service = CompileService(compile, StructuredOutputsConfig(**config), lock, clock=clock, cpu_clock=lambda: clock)
        request.addfinalizer(service.close)
        return service

    return make


@pytest.fixture
def gates():
    gates = Gates()
    yield gates
    for key in list(gates.count):
        gates.open(key)


class Inbox:
    """An ``on_done`` callback that collects results."""

    def __init__(self):
        self._results = queue.Queue()

    def __call__(self, result):
        self._results.put(result)

    def get(self):
        return self._results.get(timeout=LONG)

    def is_empty(self):
        return self._results.empty()


def compile_with(service, key, tenant=""):
    """Submit the key and wait for its result."""
    inbox = Inbox()
    service.submit(key, tenant, inbox)
    return inbox.get()


def cached(service, key):
    """The cached result of the key, None if there is none."""
    with service._lock:
        return service._cache.get(hashlib.sha256(repr(key).encode()).digest())


def wait_until(condition):
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def is_idle(service):
    stats = service.stats()
    is_kept = service._jobs or service._subscriptions
    return (stats.waiting, stats.compiling, stats.overdue) == (0, 0, 0) and not is_kept


def wait_until_freed(references):
    """Wait until nothing keeps the referents alive. Threads may hold them a little
    longer."""

    def are_freed():
        gc.collect()
        return not [reference for reference in references if reference() is not None]

    wait_until(are_freed)


# -- one key, several subscriptions ----------------------------------------------------


def test_submit_after_compilation_returns_the_same_result_at_once(make):
    service = make(Compiled)
    assert cached(service, "a") is None
    compiled = compile_with(service, "a")
    assert compiled.text == "a"
    results = []
    assert service.submit("a", "", results.append) is None
    assert results == [compiled]
    stats = service.stats()
    assert (stats.cache_entries, stats.cache_hits, stats.cache_misses) == (1, 1, 1)
    assert stats.compile_seconds_max >= stats.compile_seconds_p99 >= stats.compile_seconds_p50 > 0


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


def test_submit_of_cached_key_does_not_compile_again(make, gates):
    service = make(gates)
    gates.open("a")
    first = compile_with(service, "a")
    assert compile_with(service, "a") is first
    assert gates.count == {"a": 1}


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


# -- the cache -------------------------------------------------------------------------


def test_cache_bytes_over_thousands_of_keys_stay_within_the_bound(make, num_cases):
    bound, num_keys = 1 << 20, num_cases(3_000, long=10_000)
    service = make(lambda i: Compiled(str(i), memory_bytes=i * 37 % 5000), cache_bytes=bound)
    inbox = Inbox()
    for i in range(num_keys):
        service.submit(i, "", inbox)
        inbox.get()
        assert service.stats().cache_bytes <= bound
    kept = [compiled for i in range(num_keys) if (compiled := cached(service, i)) is not None]
    assert service.stats().cache_bytes == sum(value.memory_bytes for value in kept) + 512 * len(kept)
    assert [value.text for value in kept] == [str(i) for i in range(num_keys - len(kept), num_keys)]
    assert len(kept) > 250


def test_cache_of_long_keys_counts_entries_and_drops_the_keys(make):
    service = make(lambda key: Compiled("", memory_bytes=0), cache_bytes=100 * 512)
    references = []
    for i in range(300):
        key = Key(f"{i}{'x' * 100_000}")
        compile_with(service, key)
        references.append(weakref.ref(key))
        del key
    assert service.stats().cache_entries == 100
    wait_until_freed(references)


def test_cache_evicts_the_least_recently_used_and_skips_too_large_grammars(make):
    service = make(lambda key: Compiled(key, memory_bytes=10_000 if key == "large" else 488), cache_bytes=2500)
    for key in ("a", "b", "c", "large"):
        compile_with(service, key)
        cached(service, "a")
    assert [cached(service, key) is not None for key in ("a", "b", "c", "large")] == [True, False, True, False]


def test_cached_grammars_that_grow_are_measured_again_and_stay_within_the_bound(make):
    service = make(Compiled, cache_bytes=100 * 1512)
    grown = [compile_with(service, str(i)) for i in range(50)]
    for compiled in grown:
        compiled.memory_bytes = 10_000
    compile_with(service, "new")
    assert service.stats().cache_bytes <= 100 * 1512
    kept = [compiled for compiled in grown if cached(service, compiled.text) is not None]
    assert kept == grown[-14:]
    assert service.stats().cache_bytes == 14 * 10_512 + 1512


def test_cached_failure_expires_after_its_ttl(make, gates):
    clock = Clock()
    service = make(gates, clock=clock, failure_ttl=60.0)
    gates.errors["bad"] = GrammarError("bad")
    gates.open("bad")
    assert str(compile_with(service, "bad")) == "bad"
    clock.now += 59
    assert str(cached(service, "bad")) == "bad"
    assert service.stats().failures_kept == 1
    clock.now += 1
    assert cached(service, "bad") is None
    assert (service.stats().failures_kept, service.stats().cache_bytes) == (0, 0)
    compile_with(service, "bad")
    assert gates.count == {"bad": 2}


def test_cached_failures_are_bounded_and_evict_few_grammars(make):
    def compile(key):
        if isinstance(key, str):
            return Compiled(key, memory_bytes=1000)
        raise GrammarError("x" * key)

    service = make(compile, cache_bytes=64 * 1512, failures_kept=5)
    for i in range(64):
        compile_with(service, f"good {i}")
    for i in range(20):
        compile_with(service, i)
    assert [i for i in range(20) if cached(service, i) is not None] == [15, 16, 17, 18, 19]
    for length in range(1000, 1100):
        compile_with(service, length)
    stats = service.stats()
    assert stats.failures_kept >= 1
    assert stats.cache_entries >= 64 * 15 // 16 - 1
    assert stats.cache_bytes <= 64 * 1512
    compile_with(service, 1_000_000)
    assert cached(service, 1_000_000) is None


def test_cache_of_size_zero_keeps_nothing(make):
    def compile(key):
        if key == "bad":
            raise GrammarError("bad")
        return Compiled(key)

    service = make(compile, cache_bytes=0, failures_kept=0)
    for key in ("good", "bad"):
        compile_with(service, key)
        assert cached(service, key) is None


def test_grammar_above_compiled_bytes_fails_with_a_limit_error(make):
    service = make(lambda key: Compiled(key, memory_bytes=1001), limits=Limits(compiled_bytes=1000))
    error = compile_with(service, "a")
    assert (error.limit, error.got, error.max) == ("compiled_bytes", 1001, 1000)
    assert service.stats().failures_kept == 1


# -- crashes ---------------------------------------------------------------------------


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


# -- deadlines -------------------------------------------------------------------------


def test_deadline_fails_all_subscriptions_and_frees_the_worker(make, gates, caplog):
    clock = Clock()
    service = make(gates, clock=clock, compile_timeout=0.15)
    inboxes = [Inbox() for _ in range(3)]
    service.submit("slow", "", inboxes[0])
    service.submit("slow", "", inboxes[1])
    service.submit("next", "", inboxes[2])
    gates.open("next")
    assert gates.next_started() == "slow"
    clock.now += 0.14
    time.sleep(0.3)  # the deadlines are checked meanwhile, by the clock
    assert all(inbox.is_empty() for inbox in inboxes)
    assert (service.stats().waiting, service.stats().compiling, service.stats().timeouts) == (1, 1, 0)
    clock.now += 0.02
    for inbox in inboxes[:2]:
        error = inbox.get()
        assert isinstance(error, GrammarTimeoutError)
        assert str(error) == "the constraint took more than 0.15 CPU seconds to compile"
    assert inboxes[2].get().text == "next"
    assert (service.stats().overdue, service.stats().timeouts) == (1, 1)
    assert cached(service, "slow") is None
    assert [record.levelno for record in caplog.records if record.name == "structout.scheduler"] == [logging.WARNING]

    gates.open("slow")  # late, but good
    wait_until(lambda: cached(service, "slow") is not None)
    wait_until(lambda: is_idle(service))
    assert inboxes[0].is_empty()


def test_deadline_counts_from_the_start_of_the_compilation(make, gates):
    clock = Clock()
    service = make(gates, clock=clock, compile_timeout=0.3)
    inboxes = {key: Inbox() for key in ("first", "second", "last")}
    for key, inbox in inboxes.items():
        service.submit(key, "", inbox)
    for key in ("first", "second"):
        assert gates.next_started() == key
        clock.now += 0.2
        gates.open(key)
        assert inboxes[key].get().text == key
    assert gates.next_started() == "last"
    time.sleep(0.5)  # deadlines are checked every 0.3 s; "last" was submitted 0.4 s ago by the clock
    gates.open("last")
    assert inboxes["last"].get().text == "last"


def test_deadline_counts_cpu_time_and_ten_times_as_much_without_any(request):
    """A compilation that sleeps uses no CPU time."""
    clock, is_over = Clock(), threading.Event()
    config = StructuredOutputsConfig(compile_workers=1, compile_timeout=0.2)
    is_begun = threading.Event()
    service = CompileService(
        lambda key: is_begun.set() or (is_over.wait(LONG) and Compiled("{}")),
        config,
        ProcessLock("CompileService"),
        clock=clock,
    )
    request.addfinalizer(service.close)
    request.addfinalizer(is_over.set)
    inbox = Inbox()
    service.submit("blocked", "", inbox)
    assert is_begun.wait(LONG)
    clock.now += 1.9
    time.sleep(0.5)  # the deadline is checked every 0.2 s
    assert inbox.is_empty()
    clock.now += 0.2
    assert isinstance(inbox.get(), GrammarTimeoutError)


def test_clock_that_jumps_ahead_ends_what_compiles_and_nothing_else(make, gates):
    """As when a machine has slept."""
    clock = Clock()
    service = make(gates, clock=clock, compile_timeout=0.15)
    gates.errors["bad"] = GrammarError("bad")
    gates.open("good", "bad", "next")
    compile_with(service, "good")
    compile_with(service, "bad")
    inboxes = {key: Inbox() for key in ("slow", "next")}
    for key, inbox in inboxes.items():
        service.submit(key, "", inbox)
    assert [gates.next_started() for _ in range(3)] == ["good", "bad", "slow"]
    clock.now += 1e9
    assert isinstance(inboxes["slow"].get(), GrammarTimeoutError)
    assert inboxes["next"].get().text == "next"
    assert cached(service, "good").text == "good"
    assert cached(service, "bad") is None  # its time is over
    stats = service.stats()
    assert (stats.waiting, stats.overdue, stats.timeouts, stats.failures_kept) == (0, 1, 1, 0)


def test_clock_that_jumps_back_ends_nothing(make, gates):
    clock = Clock()
    service = make(gates, clock=clock)
    gates.errors["bad"] = GrammarError("bad")
    gates.open("bad")
    compile_with(service, "bad")
    inboxes = {key: Inbox() for key in ("running", "waiting")}
    for key, inbox in inboxes.items():
        service.submit(key, "tenant", inbox)
    clock.now -= 1e9
    service.submit("last", "another tenant", last := Inbox())
    gates.open("running", "waiting", "last")
    assert [inbox.get().text for inbox in (*inboxes.values(), last)] == ["running", "waiting", "last"]
    assert str(cached(service, "bad")) == "bad"
    wait_until(lambda: is_idle(service))
    assert service.stats().timeouts == 0


def test_submit_of_an_overdue_key_joins_its_compilation(make, gates):
    clock = Clock()
    service = make(gates, clock=clock, compile_timeout=0.05)
    for is_first in (True, False):
        inbox = Inbox()
        service.submit("slow", "", inbox)
        assert not is_first or gates.next_started() == "slow"
        clock.now += 0.1
        assert isinstance(inbox.get(), GrammarTimeoutError)
    inbox = Inbox()
    service.submit("slow", "", inbox)
    gates.open("slow")
    assert inbox.get().text == "slow"
    assert gates.count == {"slow": 1}


def test_too_many_overdue_compilations_refuse_new_ones(make, gates):
    clock = Clock()
    service = make(gates, clock=clock, compile_timeout=0.05)
    waiting = Inbox()
    for i in range(4):
        service.submit(f"slow {i}", "", Inbox())
    service.submit("waiting", "", waiting)
    for i in range(4):
        assert gates.next_started() == f"slow {i}"
        clock.now += 0.1
    message = (
        "4 compilations still run past their deadline of 0.05 CPU seconds; "
        "nothing new is compiled until one of them ends"
    )
    assert str(waiting.get()) == message
    with pytest.raises(GrammarError, match=message):
        service.submit("new", "", Inbox())
    assert cached(service, "waiting") is None
    assert service.stats().overdue == 4
    gates.open("slow 2", "new")
    wait_until(lambda: service.stats().overdue == 3)
    assert compile_with(service, "new").text == "new"


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


# -- turns -----------------------------------------------------------------------------


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


def test_waiting_tenants_take_turns(make, gates):
    service = make(gates, compile_workers=4)
    for i in range(8):
        service.submit(f"a{i}", "a", Inbox())
    assert {gates.next_started() for _ in range(4)} == {"a0", "a1", "a2", "a3"}  # nobody else is there
    for tenant in "bcd":
        for i in range(2):
            service.submit(f"{tenant}{i}", tenant, Inbox())
    for i in range(4):
        gates.open(f"a{i}")
    assert Counter(gates.next_started()[0] for _ in range(4)) == {"a": 1, "b": 1, "c": 1, "d": 1}


@pytest.mark.parametrize("other", ["b", ""], ids=["named", "the-default"])
@pytest.mark.parametrize("workers", [2, 4, 8])
def test_flood_of_one_tenant_leaves_a_share_free(make, gates, workers, other):
    service = make(gates, compile_workers=workers)
    gates.open("b seen")
    compile_with(service, "b seen", other)
    assert gates.next_started() == "b seen"
    for i in range(32):
        service.submit(f"a{i}", "a", Inbox())
    share = max(1, workers // 4)
    for _ in range(workers - share):
        assert gates.next_started().startswith("a")
    assert service.stats().compiling == workers - share
    for i in range(share):
        service.submit(f"b{i}", other, Inbox())
        assert gates.next_started() == f"b{i}"


def test_tenant_alone_for_a_minute_uses_all_workers(make, gates):
    clock = Clock()
    service = make(gates, clock=clock, compile_workers=4, compile_timeout=1000.0)
    gates.open("b seen")
    compile_with(service, "b seen", "b")
    gates.next_started()
    service.submit("a0", "a", Inbox())
    clock.now += 61
    for i in range(1, 4):
        service.submit(f"a{i}", "a", Inbox())
    assert {gates.next_started() for _ in range(4)} == {"a0", "a1", "a2", "a3"}


def test_flood_of_one_tenant_never_delays_another(make, gates):
    """While all of a's compilations block, b's start at once, one after the other."""
    service = make(gates, compile_workers=4, tenant_queue_size=10_000, queue_size=10_000)
    gates.open("b seen")
    compile_with(service, "b seen", "b")
    assert gates.next_started() == "b seen"
    for i in range(1000):
        service.submit(f"a{i}", "a", Inbox())
    assert {gates.next_started() for _ in range(3)} == {"a0", "a1", "a2"}  # by three threads, in any order
    for i in range(15):
        inbox = Inbox()
        service.submit(f"b{i}", "b", inbox)
        assert gates.next_started() == f"b{i}"
        gates.open(f"b{i}")
        assert inbox.get().text == f"b{i}"
    assert service.stats().waiting == 997


def test_job_of_two_tenants_starts_at_the_first_turn_of_either(make, gates):
    service = make(gates)
    service.submit("first", "a", Inbox())
    assert gates.next_started() == "first"
    for i in range(5):
        service.submit(f"a{i}", "a", Inbox())
    service.submit("a4", "b", Inbox())
    gates.open("first", "a0", "a1", "a2", "a3", "a4")
    assert [gates.next_started() for _ in range(5)] == ["a0", "a4", "a1", "a2", "a3"]
    assert service.stats().waiting == 0


def test_submit_beyond_the_queue_limits_raises(make, gates):
    service = make(gates, queue_size=4, tenant_queue_size=3)
    service.submit("compiling", "a", Inbox())
    tickets = [service.submit(f"a{i}", "a", Inbox()) for i in range(3)]
    with pytest.raises(GrammarLimitError) as caught:
        service.submit("a3", "a", Inbox())
    assert (caught.value.limit, caught.value.got, caught.value.max) == ("tenant_queue_size", 4, 3)
    service.submit("a0", "a", Inbox())  # waits already
    service.submit("compiling", "a", Inbox())
    service.submit("b0", "b", Inbox())
    with pytest.raises(GrammarLimitError) as caught:
        service.submit("c0", "c", Inbox())
    assert (caught.value.limit, caught.value.got, caught.value.max) == ("queue_size", 5, 4)
    assert service.stats().waiting == 4
    service.cancel(tickets[1])
    service.submit("c0", "c", Inbox())
    assert cached(service, "a3") is None


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


PREAMBLE = f"""
import json, os, random, sys, threading, time
from structout.scheduler.compile_service import CompileService
from structout.scheduler.process_lock import ProcessLock
from structout.constraints.config import StructuredOutputsConfig
from structout.errors import GrammarTimeoutError, StructOutError
from structout.grammar.vocabulary import Vocabulary
from structout.grammar.optional.xgrammar import XgrammarBackend
from structout.constraints.params import StructuredOutputOptions

backend = XgrammarBackend(Vocabulary((*[bytes([i]) for i in range(256)], b""), (256,)))
SLOW = json.dumps({{"enum": ["".join(random.Random(i).choices("abcdefghij", k=12)) for i in range(30_000)]}})

class Compiled:
    def __init__(self, spec):
        self.memory_bytes = backend.compile_grammar(StructuredOutputOptions.JSON, spec).memory_bytes

def compile_with(service, spec):
    results, is_done = [], threading.Event()
    service.submit(spec, "", lambda result: (results.append(result), is_done.set()))
    assert is_done.wait({LONG})
    return results[0]
"""


def run_in_a_process(script):
    """Run the script in a process of its own. Returns its lines, its exit code, and the
    CPU seconds that it used in all."""
    with subprocess.Popen([sys.executable, "-c", PREAMBLE + script], stdout=subprocess.PIPE, text=True) as process:
        lines = [line.strip() for line in process.stdout]
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        return lines, process.returncode, usage.ru_utime + usage.ru_stime


def test_native_compilation_past_its_deadline_blocks_neither_worker_nor_exit():
    """The compilation alone takes some twenty CPU seconds."""
    lines, code, cpu_seconds = run_in_a_process("""
config = StructuredOutputsConfig(compile_workers=1, compile_timeout=2.0)
service = CompileService(Compiled, config, ProcessLock("CompileService"))
start = time.monotonic()
assert isinstance(compile_with(service, SLOW), GrammarTimeoutError)
print(time.monotonic() - start)
assert compile_with(service, '{"type": "integer"}').memory_bytes > 0
print(service.stats().overdue)
print(time.process_time(), flush=True)
sys.exit(7)
""")
    assert float(lines[0]) >= 2
    assert int(lines[1]) == 1  # the worker was free while SLOW still compiled
    assert code == 7
    assert cpu_seconds - float(lines[2]) < 5  # the process did not wait for SLOW when it ended


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
