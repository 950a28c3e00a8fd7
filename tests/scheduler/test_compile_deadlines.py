"""CompilePool's deadlines: compilations that take too long, and clocks that jump."""

import logging
import threading
import time

import pytest

from structout.constraints.config import StructuredOutputsConfig
from structout.errors import GrammarError, GrammarTimeoutError
from structout.scheduler.compile_pool import CompilePool
from structout.scheduler.process_lock import ProcessLock
from support.compilations import LONG, Clock, Compiled, cached, compile_with, is_idle, wait_until

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


def test_deadline_fails_all_futures_and_frees_the_worker(make, gates, caplog):
    clock = Clock()
    pool = make(gates, clock=clock, compile_timeout=0.15)
    futures = [pool.submit(key) for key in ("slow", "slow", "next")]
    gates.open("next")
    assert gates.next_started() == "slow"
    clock.now += 0.14
    time.sleep(0.3)  # the deadlines are checked meanwhile, by the clock
    assert not any(future.done() for future in futures)
    assert (pool.stats().waiting, pool.stats().compiling, pool.stats().timeouts) == (1, 1, 0)
    clock.now += 0.02
    for future in futures[:2]:
        error = future.exception(LONG)
        assert isinstance(error, GrammarTimeoutError)
        assert str(error) == "the constraint took more than 0.15 CPU seconds to compile"
    assert futures[2].result(LONG).text == "next"
    assert (pool.stats().overdue, pool.stats().timeouts) == (1, 1)
    assert cached(pool, "slow") is None
    assert [record.levelno for record in caplog.records if record.name == "structout.scheduler"] == [logging.WARNING]

    gates.open("slow")  # late, but good
    wait_until(lambda: cached(pool, "slow") is not None)
    wait_until(lambda: is_idle(pool))


def test_deadline_counts_from_the_start_of_the_compilation(make, gates):
    clock = Clock()
    pool = make(gates, clock=clock, compile_timeout=0.3)
    futures = {key: pool.submit(key) for key in ("first", "second", "last")}
    for key in ("first", "second"):
        assert gates.next_started() == key
        clock.now += 0.2
        gates.open(key)
        assert futures[key].result(LONG).text == key
    assert gates.next_started() == "last"
    time.sleep(0.5)  # deadlines are checked every 0.3 s; "last" was submitted 0.4 s ago by the clock
    gates.open("last")
    assert futures["last"].result(LONG).text == "last"


def test_deadline_counts_cpu_time_and_ten_times_as_much_without_any(request):
    """A compilation that sleeps uses no CPU time."""
    clock, is_over = Clock(), threading.Event()
    config = StructuredOutputsConfig(compile_workers=1, compile_timeout=0.2)
    is_begun = threading.Event()
    pool = CompilePool(
        lambda key: is_begun.set() or (is_over.wait(LONG) and Compiled("{}")),
        config,
        ProcessLock("CompilePool"),
        clock=clock,
    )
    request.addfinalizer(pool.close)
    request.addfinalizer(is_over.set)
    future = pool.submit("blocked")
    assert is_begun.wait(LONG)
    clock.now += 1.9
    time.sleep(0.5)  # the deadline is checked every 0.2 s
    assert not future.done()
    clock.now += 0.2
    assert isinstance(future.exception(LONG), GrammarTimeoutError)


def test_clock_that_jumps_ahead_ends_what_compiles_and_nothing_else(make, gates):
    """As when a machine has slept."""
    clock = Clock()
    pool = make(gates, clock=clock, compile_timeout=0.15)
    gates.errors["bad"] = GrammarError("bad")
    gates.open("good", "bad", "next")
    compile_with(pool, "good")
    compile_with(pool, "bad")
    slow, following = pool.submit("slow"), pool.submit("next")
    assert [gates.next_started() for _ in range(3)] == ["good", "bad", "slow"]
    clock.now += 1e9
    assert isinstance(slow.exception(LONG), GrammarTimeoutError)
    assert following.result(LONG).text == "next"
    assert cached(pool, "good").text == "good"
    assert cached(pool, "bad") is None  # its time is over
    stats = pool.stats()
    assert (stats.waiting, stats.overdue, stats.timeouts, stats.failures_kept) == (0, 1, 1, 0)


def test_clock_that_jumps_back_ends_nothing(make, gates):
    clock = Clock()
    pool = make(gates, clock=clock)
    gates.errors["bad"] = GrammarError("bad")
    gates.open("bad")
    compile_with(pool, "bad")
    futures = [pool.submit("running"), pool.submit("waiting")]
    clock.now -= 1e9
    futures.append(pool.submit("last"))
    gates.open("running", "waiting", "last")
    assert [future.result(LONG).text for future in futures] == ["running", "waiting", "last"]
    assert str(cached(pool, "bad")) == "bad"
    wait_until(lambda: is_idle(pool))
    assert pool.stats().timeouts == 0


def test_submit_of_an_overdue_key_joins_its_compilation(make, gates):
    clock = Clock()
    pool = make(gates, clock=clock, compile_timeout=0.05)
    for is_first in (True, False):
        future = pool.submit("slow")
        assert not is_first or gates.next_started() == "slow"
        clock.now += 0.1
        assert isinstance(future.exception(LONG), GrammarTimeoutError)
    future = pool.submit("slow")
    gates.open("slow")
    assert future.result(LONG).text == "slow"
    assert gates.count == {"slow": 1}


def test_too_many_overdue_compilations_refuse_new_ones(make, gates):
    clock = Clock()
    pool = make(gates, clock=clock, compile_timeout=0.05)
    for i in range(4):
        pool.submit(f"slow {i}")
    waiting = pool.submit("waiting")
    for i in range(4):
        assert gates.next_started() == f"slow {i}"
        clock.now += 0.1
    message = (
        "4 compilations still run past their deadline of 0.05 CPU seconds; "
        "nothing new is compiled until one of them ends"
    )
    assert str(waiting.exception(LONG)) == message
    with pytest.raises(GrammarError, match=message):
        pool.submit("new")
    assert cached(pool, "waiting") is None
    assert pool.stats().overdue == 4
    gates.open("slow 2", "new")
    wait_until(lambda: pool.stats().overdue == 3)
    assert compile_with(pool, "new").text == "new"
