"""Who compiles what when, who hears of it, what is remembered, and what happens when it takes too long or breaks."""

import gc
import logging
import queue
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter, defaultdict
from dataclasses import dataclass

import pytest

from structout.config import StructuredOutputsConfig
from structout.errors import CompileCrashError, GrammarError, GrammarLimitError, GrammarTimeoutError, StructOutError
from structout.limits import Limits
from structout.scheduler.compile_cache import copy_error
from structout.scheduler.compile_service import CompileService

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

LONG = 20  # seconds that a test waits for what must come


@dataclass(eq=False)
class Compiled:
    text: str
    memory_bytes: int = 1000


class Gates:
    """A compile function that holds each key until it is let through; all of them begin in an order that is seen."""

    def __init__(self):
        self.begun = queue.Queue()
        self.opened = defaultdict(threading.Event)
        self.outcomes = {}  # of keys that do not simply compile: an exception
        self.count = Counter()

    def __call__(self, key):
        self.count[key] += 1
        self.begun.put(key)
        assert self.opened[key].wait(LONG)
        outcome = self.outcomes.get(key)
        if outcome is not None:
            raise outcome
        return Compiled(key)

    def next(self):
        return self.begun.get(timeout=LONG)

    def open(self, *keys):
        for key in keys:
            self.opened[key].set()


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def make(request):
    """Services that are closed at the end."""

    def make(compile, *, clock=time.monotonic, **config):
        config = {"compile_workers": 1, **config}
        service = CompileService(compile, StructuredOutputsConfig(**config), clock=clock)
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
    """Collects what ``on_done`` is called with."""

    def __init__(self):
        self.received = queue.Queue()

    def __call__(self, outcome):
        self.received.put(outcome)

    def get(self):
        return self.received.get(timeout=LONG)

    def is_empty(self):
        return self.received.empty()


def outcome_of(service, key, tenant=""):
    inbox = Inbox()
    service.submit(key, tenant, inbox)
    return inbox.get()


def wait_until(condition):
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


# -- one key, several who wait -----------------------------------------------------------------------------------------


def test_what_was_compiled_is_known_afterwards(make):
    service = make(Compiled)
    assert service.get("a") is None
    compiled = outcome_of(service, "a")
    assert compiled.text == "a"
    assert service.get("a") is compiled
    stats = service.stats()
    assert (stats.cache_entries, stats.cache_hits, stats.cache_misses) == (1, 1, 1)
    assert stats.compile_seconds_max >= stats.compile_seconds_p99 >= stats.compile_seconds_p50 > 0


def test_two_who_want_the_same_get_it_from_one_compilation(make, gates):
    service = make(gates)
    inboxes = [Inbox() for _ in range(3)]
    service.submit("a", "", inboxes[0])
    assert gates.next() == "a"
    service.submit("a", "", inboxes[1])  # while it is compiled
    service.submit("b", "", Inbox())
    service.submit("b", "", inboxes[2])  # while it waits
    gates.open("a", "b")
    assert inboxes[0].get() is inboxes[1].get()
    assert inboxes[2].get().text == "b"
    assert gates.count == {"a": 1, "b": 1}


def test_a_failure_reaches_all_each_with_an_error_of_its_own(make, gates):
    service = make(gates)
    gates.outcomes["a"] = GrammarLimitError("alternatives", 7, 5)
    inboxes = [Inbox(), Inbox()]
    for inbox in inboxes:
        service.submit("a", "", inbox)
    gates.open("a")
    first, second = (inbox.get() for inbox in inboxes)
    assert first is not second
    first.request_id = "r"
    assert second.request_id is None
    for error in (first, second, service.get("a")):
        assert isinstance(error, GrammarLimitError)
        assert (str(error), error.limit, error.got, error.max) == (
            "alternatives is limited to 5, got 7",
            "alternatives",
            7,
            5,
        )
        assert error.__traceback__ is None
    assert service.get("a") is not service.get("a")


@pytest.mark.parametrize(
    "error", [GrammarError("x", "r"), GrammarTimeoutError("x", "r"), GrammarLimitError("x", 2, 1, "r")]
)
def test_copies_of_errors(error):
    copy = copy_error(error)
    assert copy is not error
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_a_result_that_came_between_asking_and_submitting_is_not_compiled_again(make, gates):
    service = make(gates)
    gates.open("a")
    first = outcome_of(service, "a")
    assert outcome_of(service, "a") is first
    assert gates.count == {"a": 1}


def test_on_done_that_raises_harms_nobody_else(make, gates, caplog):
    service = make(gates)
    inbox = Inbox()
    service.submit("a", "", lambda outcome: 1 / 0)
    service.submit("a", "", inbox)
    gates.open("a", "b")
    assert inbox.get().text == "a"
    assert outcome_of(service, "b").text == "b"
    assert "on_done of a compilation raised" in caplog.text


# -- cancelling --------------------------------------------------------------------------------------------------------


def test_cancelling_one_of_two_leaves_the_other(make, gates):
    service = make(gates)
    for key in ("compiling", "queued"):
        gone, stays = Inbox(), Inbox()
        subscription = service.submit(key, "", gone)
        service.submit(key, "", stays)
        subscription.cancel()
        subscription.cancel()
        if key == "compiling":
            compiling = gone, stays
    gates.open("compiling", "queued")
    assert compiling[1].get().text == "compiling"
    assert stays.get().text == "queued"
    assert compiling[0].is_empty()
    assert gone.is_empty()


def test_what_nobody_waits_for_any_more_is_never_begun(make, gates):
    service = make(gates, queue_size=2)
    service.submit("first", "", Inbox())
    assert gates.next() == "first"
    subscriptions = [service.submit("unwanted", tenant, Inbox()) for tenant in ("a", "b", "a")]
    service.submit("last", "b", Inbox())
    for subscription in subscriptions:
        with pytest.raises(GrammarLimitError):
            service.submit("too many", "", Inbox())
        subscription.cancel()
    assert service.stats().waiting == 1
    gates.open("first", "last")
    assert gates.next() == "last"
    wait_until(lambda: service.stats().compiling == 0)
    assert gates.count == {"first": 1, "last": 1}
    assert not service._jobs
    assert not service._queue._queues


def test_a_cancelled_compilation_goes_on_and_is_remembered(make, gates):
    service = make(gates)
    inbox = Inbox()
    subscription = service.submit("a", "", inbox)
    assert gates.next() == "a"
    subscription.cancel()
    gates.open("a")
    wait_until(lambda: service.get("a") is not None)
    assert inbox.is_empty()


def test_cancelling_when_it_is_done_does_nothing(make):
    service = make(Compiled)
    inbox = Inbox()
    subscription = service.submit("a", "", inbox)
    assert inbox.get().text == "a"
    subscription.cancel()
    assert inbox.is_empty()
    assert service.get("a").text == "a"


def test_one_of_those_who_are_being_told_can_cancel_another(make, gates):
    service = make(gates)
    subscriptions = []
    inbox, other = Inbox(), Inbox()

    def tell_and_cancel(outcome):
        subscriptions[1].cancel()
        inbox(outcome)

    subscriptions += [service.submit("a", "", on_done) for on_done in (tell_and_cancel, other)]
    gates.open("a")
    inbox.get()
    wait_until(lambda: service.stats().compiling == 0)
    assert other.is_empty()


def test_a_ticket_keeps_nothing_alive(make, gates):
    class Listener:
        def on_done(self, outcome):
            pass

    service = make(gates)
    told, cancelled = Listener(), Listener()
    subscriptions = [service.submit("told", "", told.on_done), service.submit("cancelled", "", cancelled.on_done)]
    references = [weakref.ref(told), weakref.ref(cancelled)]
    del told, cancelled
    subscriptions[1].cancel()
    gates.open("told")
    wait_until(lambda: not service._jobs and service.stats().compiling == 0)
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    assert [subscription.job for subscription in subscriptions] == [None, None]


# -- what is remembered ------------------------------------------------------------------------------------------------


def test_the_memory_bound_holds_over_ten_thousand_keys(make):
    bound = 1 << 20
    service = make(lambda i: Compiled(str(i), memory_bytes=i * 37 % 5000), cache_bytes=bound)
    inbox = Inbox()
    for i in range(10_000):
        service.submit(i, "", inbox)
        inbox.get()
        assert service.stats().cache_bytes <= bound
    kept = [value for value, _ in service._outcomes.grammars.values()]
    assert service.stats().cache_bytes == sum(value.memory_bytes for value in kept) + 512 * len(kept)
    assert [value.text for value in kept] == [str(i) for i in range(10_000 - len(kept), 10_000)]
    assert len(kept) > 250


def test_keys_count_for_the_bound(make):
    service = make(lambda key: Compiled("", memory_bytes=0), cache_bytes=100 * 512)
    for i in range(300):
        outcome_of(service, ("x" * 100_000, i))
    assert service.stats().cache_entries == 100
    assert all(len(digest) == 32 for digest in service._outcomes.grammars)


def test_the_least_recently_used_leaves_first_and_what_is_too_large_comes_not_in(make):
    service = make(lambda key: Compiled(key, memory_bytes=10_000 if key == "large" else 488), cache_bytes=2500)
    for key in ("a", "b", "c", "large"):
        outcome_of(service, key)
        service.get("a")
    assert [service.get(key) is not None for key in ("a", "b", "c", "large")] == [True, False, True, False]


def test_failures_are_remembered_for_a_time(make, gates):
    clock = Clock()
    service = make(gates, clock=clock, failure_ttl=60.0)
    gates.outcomes["bad"] = GrammarError("bad")
    gates.open("bad")
    assert str(outcome_of(service, "bad")) == "bad"
    clock.now += 59
    assert str(service.get("bad")) == "bad"
    assert service.stats().failures_kept == 1
    clock.now += 1
    assert service.get("bad") is None
    assert (service.stats().failures_kept, service.stats().cache_bytes) == (0, 0)
    outcome_of(service, "bad")
    assert gates.count == {"bad": 2}


def test_failures_are_bounded_in_number_and_push_out_few_grammars(make):
    def compile(key):
        if isinstance(key, str):
            return Compiled(key, memory_bytes=1000)
        raise GrammarError("x" * key)

    service = make(compile, cache_bytes=64 * 1512, failures_kept=5)
    for i in range(64):
        outcome_of(service, f"good {i}")
    for i in range(20):
        outcome_of(service, i)
    assert [i for i in range(20) if service.get(i) is not None] == [15, 16, 17, 18, 19]
    for length in range(1000, 1100):
        outcome_of(service, length)
    stats = service.stats()
    assert stats.failures_kept >= 1
    assert stats.cache_entries >= 64 * 15 // 16 - 1
    assert stats.cache_bytes <= 64 * 1512
    outcome_of(service, 1_000_000)
    assert service.get(1_000_000) is None


def test_nothing_is_kept_where_nothing_may_be(make):
    def compile(key):
        if key == "bad":
            raise GrammarError("bad")
        return Compiled(key)

    service = make(compile, cache_bytes=0, failures_kept=0)
    for key in ("good", "bad"):
        outcome_of(service, key)
        assert service.get(key) is None


def test_a_grammar_above_the_limit_is_refused(make):
    service = make(lambda key: Compiled(key, memory_bytes=1001), limits=Limits(compiled_bytes=1000))
    error = outcome_of(service, "a")
    assert (error.limit, error.got, error.max) == ("compiled_bytes", 1001, 1000)
    assert service.stats().failures_kept == 1


# -- accidents ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "accident", [MemoryError("no memory"), RuntimeError("?"), SystemExit(3), CompileCrashError("?")]
)
def test_an_accident_is_tried_again_once(make, accident):
    counts = Counter()

    def compile(key):
        counts[key] += 1
        if key == "always" or counts[key] == 1:
            raise accident
        return Compiled(key)

    service = make(compile)
    assert outcome_of(service, "once").text == "once"
    error = outcome_of(service, "always")
    assert isinstance(error, CompileCrashError)
    assert str(error) == ("?" if isinstance(accident, CompileCrashError) else f"compilation failed: {accident!r}")
    assert counts == {"once": 2, "always": 2}
    assert service.get("always") is None


@pytest.mark.parametrize("error", [GrammarError("bad"), GrammarTimeoutError("killed at its deadline")])
def test_what_is_no_accident_is_not_tried_again(make, gates, error):
    service = make(gates)
    gates.outcomes["a"] = error
    gates.open("a")
    assert str(outcome_of(service, "a")) == str(error)
    assert gates.count == {"a": 1}
    is_timeout = isinstance(error, GrammarTimeoutError)
    assert (service.get("a") is None) == is_timeout
    assert service.stats().timeouts == is_timeout


def test_where_no_thread_can_be_had_the_caller_hears_it_and_nothing_is_left(make, monkeypatch):
    def no_thread(self):
        raise RuntimeError("can't start new thread")

    service = make(Compiled)
    inbox = Inbox()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(CompileCrashError, match="no more threads"):
            service.submit("a", "", inbox)
    assert not service._jobs
    assert (service.stats().waiting, service.stats().compiling) == (0, 0)
    assert outcome_of(service, "a").text == "a"
    assert inbox.is_empty()


# -- deadlines ---------------------------------------------------------------------------------------------------------


def test_at_the_deadline_all_are_told_and_the_worker_is_free(make, gates, caplog):
    service = make(gates, compile_timeout=0.15)
    inboxes = [Inbox() for _ in range(3)]
    begun = time.monotonic()
    service.submit("slow", "", inboxes[0])
    service.submit("slow", "", inboxes[1])
    service.submit("next", "", inboxes[2])
    gates.open("next")
    for inbox in inboxes[:2]:
        error = inbox.get()
        assert isinstance(error, GrammarTimeoutError)
        assert str(error) == "the constraint took more than 0.15 s to compile"
    assert inboxes[2].get().text == "next"
    assert 0.15 <= time.monotonic() - begun < 1.15
    assert (service.stats().abandoned, service.stats().timeouts) == (1, 1)
    assert service.get("slow") is None
    assert [record.levelno for record in caplog.records if record.name == "structout.scheduler"] == [logging.WARNING]

    gates.open("slow")  # late, but good
    wait_until(lambda: service.get("slow") is not None)
    wait_until(lambda: service.stats().abandoned == 0)
    wait_until(lambda: service.stats().compiling == 0)
    assert inboxes[0].is_empty()


def test_the_deadline_counts_from_when_the_compilation_begins(make, gates):
    service = make(gates, compile_timeout=0.3)
    for key in ("first", "second"):
        service.submit(key, "", Inbox())
    last = Inbox()
    service.submit("last", "", last)
    for key in ("first", "second", "last"):
        assert gates.next() == key
        time.sleep(0.15)
        gates.open(key)
    assert last.get().text == "last"


def test_who_asks_again_waits_for_the_compilation_that_goes_on(make, gates):
    service = make(gates, compile_timeout=0.1)
    assert isinstance(outcome_of(service, "slow"), GrammarTimeoutError)
    assert isinstance(outcome_of(service, "slow"), GrammarTimeoutError)
    inbox = Inbox()
    service.submit("slow", "", inbox)
    gates.open("slow")
    assert inbox.get().text == "slow"
    assert gates.count == {"slow": 1}


def test_too_many_that_go_on_past_their_deadline_stop_everything_new(make, gates):
    service = make(gates, compile_timeout=0.05)
    queued = Inbox()
    for i in range(4):
        service.submit(f"slow {i}", "", Inbox())
    service.submit("queued", "", queued)
    message = "4 compilations go on past their deadline of 0.05 s: nothing new is compiled until one of them ends"
    assert str(queued.get()) == message
    with pytest.raises(GrammarError, match=message):
        service.submit("new", "", Inbox())
    assert service.get("queued") is None
    assert service.stats().abandoned == 4
    gates.open("slow 2", "new")
    wait_until(lambda: service.stats().abandoned == 3)
    assert outcome_of(service, "new").text == "new"


def test_threads_live_only_while_there_is_work(make):
    service = make(Compiled, compile_workers=4, compile_timeout=0.1)
    for i in range(20):
        outcome_of(service, i)
    wait_until(
        lambda: not [t for t in threading.enumerate() if t.name.startswith("structout-") and not hasattr(t, "old")]
    )


# -- turns -------------------------------------------------------------------------------------------------------------


def test_no_more_are_compiled_at_once_than_there_are_workers(make):
    lock = threading.Lock()
    num_now, most = 0, 0

    def compile(key):
        nonlocal num_now, most
        with lock:
            num_now += 1
            most = max(most, num_now)
        time.sleep(0.002)
        with lock:
            num_now -= 1
        return Compiled(str(key))

    service = make(compile, compile_workers=3)
    inbox = Inbox()
    for i in range(60):
        service.submit(i, f"tenant {i % 3}", inbox)
    for _ in range(60):
        inbox.get()
    assert most == 3


def test_tenants_who_wait_take_turns(make, gates):
    service = make(gates, compile_workers=4)
    for i in range(8):
        service.submit(f"a{i}", "a", Inbox())
    assert {gates.next() for _ in range(4)} == {"a0", "a1", "a2", "a3"}  # nobody else is there
    for tenant in "bcd":
        for i in range(2):
            service.submit(f"{tenant}{i}", tenant, Inbox())
    for i in range(4):
        gates.open(f"a{i}")
    assert Counter(gates.next()[0] for _ in range(4)) == {"a": 1, "b": 1, "c": 1, "d": 1}


@pytest.mark.parametrize("other", ["b", ""], ids=["named", "the-default"])
@pytest.mark.parametrize("workers", [2, 4, 8])
def test_a_flood_leaves_a_worker_free_for_others(make, gates, workers, other):
    service = make(gates, compile_workers=workers)
    gates.open("b seen")
    outcome_of(service, "b seen", other)
    assert gates.next() == "b seen"
    for i in range(32):
        service.submit(f"a{i}", "a", Inbox())
    share = max(1, workers // 4)
    for _ in range(workers - share):
        assert gates.next().startswith("a")
    assert service.stats().compiling == workers - share
    for i in range(share):
        service.submit(f"b{i}", other, Inbox())
        assert gates.next() == f"b{i}"


def test_after_a_minute_alone_a_tenant_has_all_workers(make, gates):
    clock = Clock()
    service = make(gates, clock=clock, compile_workers=4, compile_timeout=1000.0)
    gates.open("b seen")
    outcome_of(service, "b seen", "b")
    gates.next()
    service.submit("a0", "a", Inbox())
    clock.now += 61
    for i in range(1, 4):
        service.submit(f"a{i}", "a", Inbox())
    assert {gates.next() for _ in range(4)} == {"a0", "a1", "a2", "a3"}


def test_a_flood_does_not_double_what_others_wait(make):
    """M26, in seconds: b asks for one constraint after the other, without and with a's flood."""

    def compile(key):
        time.sleep(0.02)
        return Compiled(str(key))

    def seconds_of_b(service):
        begun = time.perf_counter()
        for i in range(15):
            outcome_of(service, ("b", i), "b")
        return time.perf_counter() - begun

    alone = seconds_of_b(make(compile, compile_workers=4))
    service = make(compile, compile_workers=4, tenant_queue_size=10_000, queue_size=10_000)
    outcome_of(service, "b is known", "b")
    for i in range(1000):
        service.submit(("a", i), "a", Inbox())
    assert seconds_of_b(service) < 2 * alone
    assert service.stats().waiting > 0


def test_a_job_that_two_tenants_want_has_the_turn_of_either(make, gates):
    service = make(gates)
    service.submit("first", "a", Inbox())
    assert gates.next() == "first"
    for i in range(5):
        service.submit(f"a{i}", "a", Inbox())
    service.submit("a4", "b", Inbox())
    gates.open("first", "a0", "a1", "a2", "a3", "a4")
    assert [gates.next() for _ in range(5)] == ["a0", "a4", "a1", "a2", "a3"]
    assert service.stats().waiting == 0


def test_queues_are_bounded(make, gates):
    service = make(gates, queue_size=4, tenant_queue_size=3)
    service.submit("compiling", "a", Inbox())
    subscriptions = [service.submit(f"a{i}", "a", Inbox()) for i in range(3)]
    with pytest.raises(GrammarLimitError) as caught:
        service.submit("a3", "a", Inbox())
    assert (caught.value.limit, caught.value.got, caught.value.max) == ("tenant_queue_size", 4, 3)
    service.submit("a0", "a", Inbox())  # no further constraint waits for it
    service.submit("compiling", "a", Inbox())
    service.submit("b0", "b", Inbox())
    with pytest.raises(GrammarLimitError) as caught:
        service.submit("c0", "c", Inbox())
    assert (caught.value.limit, caught.value.got, caught.value.max) == ("queue_size", 5, 4)
    assert service.stats().waiting == 4
    subscriptions[1].cancel()
    service.submit("c0", "c", Inbox())
    assert service.get("a3") is None


def test_each_of_64_threads_gets_its_own(make):
    def compile(key):
        if key[1] % 5 == 0:
            raise GrammarError(str(key))
        return Compiled(str(key))

    service = make(compile, compile_workers=4, tenant_queue_size=512, cache_bytes=50_000)
    wrong = []

    def ask(thread):
        for i in range(20):
            key = (thread, i) if i % 2 else (-1, i)  # every other one is everybody's
            inbox = Inbox()
            subscription = service.submit(key, f"tenant {thread % 7}", inbox)
            if i % 7 == 3:
                subscription.cancel()
                continue
            outcome = inbox.get()
            text = str(outcome) if key[1] % 5 == 0 else outcome.text
            if text != str(key):
                wrong.append((key, text))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    wait_until(lambda: not service._jobs)
    assert service.stats().cache_bytes <= 50_000


# -- the end -----------------------------------------------------------------------------------------------------------


def test_closing_tells_nobody_anything_and_takes_no_more(make, gates):
    service = make(gates)
    inbox = Inbox()
    subscription = service.submit("compiling", "", inbox)
    gates.next()
    service.submit("queued", "", inbox)
    begun = time.monotonic()
    service.close()
    assert time.monotonic() - begun < 1
    gates.open("compiling", "queued")
    wait_until(lambda: service.stats().compiling == 0)
    assert inbox.is_empty()
    assert gates.count == {"compiling": 1}
    assert service.get("compiling") is None
    assert service.stats().cache_bytes == 0
    with pytest.raises(StructOutError, match="closed"):
        service.submit("late", "", inbox)
    subscription.cancel()
    service.close()


def test_closing_also_stops_the_telling_under_way(make, gates):
    service = make(gates)
    inbox = Inbox()
    service.submit("a", "", lambda outcome: service.close())
    service.submit("a", "", inbox)
    gates.open("a")
    wait_until(lambda: service._is_closed and service.stats().compiling == 0)
    assert inbox.is_empty()


IN_A_PROCESS = """
import json, os, random, sys, threading, time
from structout.scheduler.compile_service import CompileService
from structout.config import StructuredOutputsConfig
from structout.errors import CompileCrashError, GrammarTimeoutError, StructOutError
from structout.grammar.vocabulary import Vocabulary
from structout.grammar.xgrammar.backend import XgrammarBackend
from structout.params import StructuredOutputOptions

backend = XgrammarBackend(Vocabulary((*[bytes([i]) for i in range(256)], b""), (256,)))
SLOW = json.dumps({"enum": ["".join(random.Random(i).choices("abcdefghij", k=12)) for i in range(30_000)]})

class Compiled:
    def __init__(self, spec):
        self.native = backend.compile_native(StructuredOutputOptions.JSON, spec)
        self.memory_bytes = self.native.memory_size_bytes

def outcome_of(service, spec):
    outcomes, done = [], threading.Event()
    service.submit(spec, "", lambda outcome: (outcomes.append(outcome), done.set()))
    assert done.wait(20)
    return outcomes[0]
"""


def run_in_a_process(script, timeout=60):
    """What it prints, and the seconds from its last line to its end."""
    with subprocess.Popen([sys.executable, "-c", IN_A_PROCESS + script], stdout=subprocess.PIPE, text=True) as process:
        lines = []
        last = 0.0
        for line in process.stdout:
            lines.append(line.strip())
            last = time.monotonic()
        code = process.wait(timeout)
        return lines, time.monotonic() - last, code


@pytest.fixture(scope="module")
def seconds_to_end():
    """That a process with the same imports takes to end: here, now, and without work."""
    return run_in_a_process('print("ends", flush=True)')[1]


def test_a_real_grammar_that_takes_too_long(seconds_to_end):
    """Its worker is free within a second of the deadline, and the process ends soon while it still compiles."""
    lines, seconds, code = run_in_a_process("""
service = CompileService(Compiled, StructuredOutputsConfig(compile_workers=1, compile_timeout=0.5))
begun = time.monotonic()
assert isinstance(outcome_of(service, SLOW), GrammarTimeoutError)
print(time.monotonic() - begun)
assert outcome_of(service, '{"type": "integer"}').memory_bytes > 0
print(time.monotonic() - begun)
assert service.stats().abandoned == 1
print("ends", flush=True)
sys.exit(7)
""")
    assert 0.5 <= float(lines[0]) <= float(lines[1]) < 1.5
    assert lines[2:] == ["ends"]
    assert code == 7
    assert seconds < 2 + 2 * seconds_to_end  # the compilation alone takes another twenty


def test_a_forked_process_is_refused_at_once(seconds_to_end):
    lines, seconds, code = run_in_a_process("""
service = CompileService(lambda key: time.sleep(10), StructuredOutputsConfig(compile_workers=1))
subscription = service.submit("a", "", print)
service._changed.acquire()  # as another thread may have done at the moment of the fork
child = os.fork()
if child == 0:
    for call in (lambda: service.get("a"), lambda: service.submit("b", "", print), service.stats, subscription.cancel):
        try:
            call()
        except StructOutError as error:
            print(error, flush=True)
    service.close()
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
service._changed.release()
sys.exit(7)
""")
    assert len(lines) == 5
    for message in lines[:4]:
        assert message.startswith("this CompileService belongs to process ")
        assert message.endswith(
            "from which this process was forked; its threads and locks cannot be used here. "
            "Create a new one in this process"
        )
    assert lines[4] == "5"
    assert code == 7
    assert seconds < 2 + 2 * seconds_to_end
