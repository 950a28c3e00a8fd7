"""CompileService: compiles constraints on background threads, with deadlines."""

import atexit
import hashlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from structout.constraints.config import StructuredOutputsConfig
from structout.errors import (
    CompileCrashError,
    GrammarError,
    GrammarErrorKind,
    GrammarLimitError,
    GrammarTimeoutError,
    StructOutError,
)
from structout.scheduler.compile_cache import CompileCache, Compiled, copy_error, copy_if_error, is_crash
from structout.scheduler.fair_queue import FairQueue, Job, Subscription
from structout.scheduler.owned_condition import OwnedCondition
from structout.scheduler.process_guard import ForkGuard

_MAX_OVERDUE_PER_WORKER = 4  # with this many overdue threads per worker, nothing new is started
_CLOCK_FACTOR = 10  # a compilation may take so many times its CPU seconds by the clock
_SHORTEST_WAIT = 0.01  # seconds between two looks at the CPU time of compilations
_NUM_TIMINGS = 1024  # how many compilations the percentiles cover
_EXIT_WAIT_SECONDS = 0.5  # how long the process waits for compilations when it exits

_log = logging.getLogger("structout.scheduler")
_threads: set[threading.Thread] = set()
_is_process_exiting = threading.Event()

Key = TypeVar("Key")


def thread_cpu_clock() -> Callable[[], float]:
    """The CPU seconds of the calling thread, which other threads may read while it
    lives. Where the platform does not tell them, a clock of its time."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic
    return partial(time.clock_gettime, time.pthread_getcpuclockid(threading.get_ident()))


@dataclass(frozen=True)
class CompileStats:
    """A compile service's counters at one moment.

    Attributes:
        waiting: constraints that no worker has started.
        compiling: constraints that hold a worker.
        overdue: compilations that have missed their deadline and still run, because
            nothing can stop them. They hold no worker.
        cache_entries: compiled grammars in the cache.
        cache_bytes: the memory of all cache entries, failures and overhead included.
        cache_hits: constraints whose result was cached.
        cache_misses: constraints that were submitted.
        failures_kept: failures in the cache.
        timeouts: compilations that missed their deadline.
        compile_seconds_p50: the median of the last 1,024 compilations, overdue ones
            included.
        compile_seconds_p99: the 99th percentile of the same.
        compile_seconds_max: the longest compilation.
    """

    waiting: int
    compiling: int
    overdue: int
    cache_entries: int
    cache_bytes: int
    cache_hits: int
    cache_misses: int
    failures_kept: int
    timeouts: int
    compile_seconds_p50: float
    compile_seconds_p99: float
    compile_seconds_max: float


class CompileService(Generic[Key, Compiled]):
    """Compiles each key once, for all who submit it.

    Threads are daemons and live only while there is work. A native compilation cannot
    be interrupted, and the interpreter would join any other thread before it exits,
    ``ThreadPoolExecutor``'s included.

    Args:
        compile: compiles a key; called from several threads. A ``CompileCrashError``,
            or any exception other than ``GrammarError``, counts as a crash: it is
            retried once and never cached.
        config: its workers, deadline, queue, cache and ``limits.compiled_bytes``.
        clock: seconds, monotonic.
        cpu_clock: makes the clock of the thread that calls it.

    A deadline is one of CPU time: what a busy machine does beside a compilation does
    not count. One that gets no CPU time ends after ten times as much.

    Keys are equal if their ``repr`` is, as for frozen dataclasses, tuples, strings and
    numbers.
    """

    def __init__(
        self,
        compile: Callable[[Key], Compiled],
        config: StructuredOutputsConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], Callable[[], float]] = thread_cpu_clock,
    ):
        self._compile = compile
        self._config = config
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._fork_guard = ForkGuard("CompileService")  # checked before the lock is taken
        self.changed = OwnedCondition()  # guards the fields below
        self._is_closed = False
        self._jobs: dict[bytes, Job] = {}  # waiting, running and overdue ones, by digest
        self._queue = FairQueue(config, clock)
        self._cache: CompileCache[Compiled] = CompileCache(config, clock)
        self._num_overdue = 0
        self._is_monitored = False
        self._num_hits = self._num_misses = self._num_timeouts = 0
        self._seconds: deque[float] = deque(maxlen=_NUM_TIMINGS)
        self._max_seconds = 0.0

    def get(self, key: Key) -> Compiled | GrammarError | None:
        """The cached result, None if there is none. Never waits for a compilation. An
        error is the caller's own copy."""
        self._fork_guard.check()
        digest = _digest(key)
        with self.changed:
            result = self._cache.get(digest)
            self._num_hits += result is not None
        return copy_if_error(result)

    def submit(self, key: Key, tenant: str, on_done: Callable[[Compiled | GrammarError], None]) -> Subscription:
        """Compile the key, or join the compilation of an equal key and its deadline.

        Args:
            key: what to compile.
            tenant: the tenant whose turn to use.
            on_done: called exactly once with the result, from a thread of the service,
                unless the subscription is cancelled or the service closed before. An
                error is the subscription's own copy.

        Raises:
            GrammarLimitError: too many constraints wait (``queue_size``,
                ``tenant_queue_size``).
            GrammarError: too many compilations are overdue, or the process cannot start
                another thread.
            StructOutError: the service is closed, or this process was forked.
        """
        self._fork_guard.check()
        digest = _digest(key)
        with self.changed:
            if self._is_closed:
                raise StructOutError("the compile service is closed")
            job = self._jobs.get(digest) or Job(key, digest)
            if not job.has_started:
                if self._is_overloaded():
                    raise self._overload_error()
                self._queue.add(job, tenant)
                self._jobs[digest] = job
            elif job.deadline is None:
                self._set_deadline(job)
            subscription = Subscription(job, tenant, on_done, self._cancel)
            job.subscriptions[subscription] = None
            self._num_misses += 1
            dropped = self._start_threads()
            if job in dropped:
                subscription.take_callback()
        for dropped_job in dropped:
            self._notify(dropped_job.pop_subscriptions(), _no_thread_error())
        if job in dropped:
            raise _no_thread_error()
        return subscription

    def stats(self) -> CompileStats:
        self._fork_guard.check()
        with self.changed:
            seconds = sorted(self._seconds)
            return CompileStats(
                waiting=self._queue.num_waiting,
                compiling=self._queue.num_running,
                overdue=self._num_overdue,
                cache_entries=self._cache.num_grammars,
                cache_bytes=self._cache.num_bytes,
                cache_hits=self._num_hits,
                cache_misses=self._num_misses,
                failures_kept=self._cache.num_failures,
                timeouts=self._num_timeouts,
                compile_seconds_p50=_percentile(seconds, 50),
                compile_seconds_p99=_percentile(seconds, 99),
                compile_seconds_max=self._max_seconds,
            )

    def close(self) -> None:
        """Stop at once: no callback is called any more, and compilations in progress
        end in the background."""
        if self._fork_guard.is_forked():
            return
        with self.changed:
            self._is_closed = True
            for job in self._jobs.values():
                for subscription in job.pop_subscriptions():
                    subscription.take_callback()
            self._jobs.clear()
            self._queue.clear()
            self._cache.clear()
            self.changed.notify_all()

    # -- under the lock, except _cancel ------------------------------------------------

    def _cancel(self, subscription: Subscription) -> None:
        self._fork_guard.check()
        with self.changed:
            job = subscription.job
            subscription.take_callback()
            if job is None or subscription not in job.subscriptions:
                return
            del job.subscriptions[subscription]
            if not job.has_started:
                self._queue.remove(job, subscription.tenant)
                if not job.subscriptions:
                    del self._jobs[job.digest]

    def _is_overloaded(self) -> bool:
        return self._num_overdue >= _MAX_OVERDUE_PER_WORKER * self._config.compile_workers

    def _overload_error(self) -> GrammarError:
        return GrammarError(
            f"{self._num_overdue} compilations still run past their deadline of {self._config.compile_timeout:g} CPU "
            "seconds; nothing new is compiled until one of them ends",
            kind=GrammarErrorKind.OVERLOADED,
        )

    def _start_threads(self) -> list[Job]:
        """Start a thread for each job that may start. Returns the jobs that were
        dropped, because the process could not start another thread."""
        dropped = []
        while (job := self._start_next_job()) is not None:
            try:
                threading.Thread(target=self._work, args=(job,), name="structout-compile", daemon=True).start()
            except RuntimeError:
                self._queue.finish(job)
                del self._jobs[job.digest]
                dropped.append(job)
        return dropped

    def _start_next_job(self) -> Job | None:
        if self._is_closed or _is_process_exiting.is_set():
            return None
        job = self._queue.start_next()
        if job is not None:
            self._set_deadline(job)
        return job

    def _set_deadline(self, job: Job) -> None:
        job.deadline = self._clock() + _CLOCK_FACTOR * self._config.compile_timeout
        if job.cpu_clock is not None:
            job.cpu_deadline = job.cpu_clock() + self._config.compile_timeout
        if not self._is_monitored:
            self._is_monitored = True
            try:
                threading.Thread(target=self._monitor_deadlines, name="structout-deadlines", daemon=True).start()
            except RuntimeError as error:
                self._is_monitored = False
                _log.warning("compile deadlines are not enforced for now: %s", error)

    def _seconds_left(self, job: Job) -> float:
        """How long the job cannot miss its deadline; infinite without one."""
        if job.deadline is None:
            return math.inf
        cpu_seconds = self._config.compile_timeout if job.cpu_clock is None else job.cpu_deadline - job.cpu_clock()
        return min(cpu_seconds, job.deadline - self._clock())

    def _enforce_deadlines(self) -> list[tuple[list[Subscription], GrammarError]]:
        """Returns the subscriptions that failed, and with what error."""
        failed: list[tuple[list[Subscription], GrammarError]] = []
        for job in self._jobs.values():
            if self._seconds_left(job) <= 0:
                self._mark_overdue(job)
                error = GrammarTimeoutError(
                    f"the constraint took more than {self._config.compile_timeout:g} CPU seconds to compile"
                )
                failed.append((job.pop_subscriptions(), error))
        if self._is_overloaded():
            for job in self._queue.clear():
                del self._jobs[job.digest]
                failed.append((job.pop_subscriptions(), self._overload_error()))
        failed += [(job.pop_subscriptions(), _no_thread_error()) for job in self._start_threads()]
        return failed

    def _mark_overdue(self, job: Job) -> None:
        job.deadline = None
        self._num_timeouts += 1
        if not job.is_overdue:
            job.is_overdue = True
            self._num_overdue += 1
            self._queue.finish(job)

    # -- on the service's threads, without the lock ------------------------------------

    def _work(self, first_job: Job) -> None:
        _threads.add(threading.current_thread())
        job: Job | None = first_job
        while job is not None:
            job = self._complete(job, self._compile_job(job))
        _threads.discard(threading.current_thread())

    def _compile_job(self, job: Job) -> Compiled | GrammarError:
        with self.changed:
            job.cpu_clock = self._cpu_clock()
            job.cpu_deadline = job.cpu_clock() + self._config.compile_timeout
            cached = self._cache.get(job.digest)
        result = self._try_compile(job) if cached is None else cached
        if is_crash(result) and not job.is_overdue and not self._is_closed:
            _log.warning("%s; trying once more", result)
            result = self._try_compile(job)
        return result

    def _try_compile(self, job: Job) -> Compiled | GrammarError:
        start = self._clock()
        try:
            compiled = self._compile(job.key)
            max_bytes = self._config.limits.compiled_bytes
            if compiled.memory_bytes > max_bytes:
                return GrammarLimitError("compiled_bytes", compiled.memory_bytes, max_bytes)
            return compiled
        except GrammarError as error:
            return copy_error(error)
        except BaseException as error:  # whatever it is, the subscriptions need a result
            _log.warning("a compilation crashed", exc_info=True)
            return CompileCrashError(f"compilation failed: {error!r}")
        finally:
            self._record_seconds(self._clock() - start)

    def _record_seconds(self, seconds: float) -> None:
        with self.changed:
            self._seconds.append(seconds)
            self._max_seconds = max(self._max_seconds, seconds)

    def _complete(self, job: Job, result: Compiled | GrammarError) -> Job | None:
        """Cache the result, notify the subscriptions, and then free the worker.

        Returns:
            the thread's next job.
        """
        with self.changed:
            if not self._is_closed:
                self._cache.put(job.digest, result)
            if self._jobs.get(job.digest) is job:
                del self._jobs[job.digest]
            self._num_overdue -= job.is_overdue
            self._num_timeouts += isinstance(result, GrammarTimeoutError) and not job.is_overdue
            subscriptions = job.pop_subscriptions()
        self._notify(subscriptions, result)
        with self.changed:
            if not job.is_overdue:
                self._queue.finish(job)
            return self._start_next_job()

    def _notify(self, subscriptions: Iterable[Subscription], result: Compiled | GrammarError) -> None:
        for subscription in subscriptions:
            with self.changed:
                on_done = subscription.take_callback()
                if on_done is None or self._is_closed:
                    continue
            try:
                on_done(copy_if_error(result))
            except Exception:
                _log.exception("the on_done callback of a compilation raised")

    def _monitor_deadlines(self) -> None:
        """Run until no job has a deadline."""
        while True:
            with self.changed:
                seconds_left = min(map(self._seconds_left, self._jobs.values()), default=math.inf)
                if seconds_left == math.inf:
                    self._is_monitored = False
                    return
                if seconds_left > 0:
                    self.changed.wait(max(seconds_left, _SHORTEST_WAIT))
                    continue
                failed = self._enforce_deadlines()
            for subscriptions, error in failed:
                _log.warning("%s (%d requests)", error, len(subscriptions))
                self._notify(subscriptions, error)


def _digest(key: object) -> bytes:
    return hashlib.sha256(repr(key).encode()).digest()


def _no_thread_error() -> GrammarError:
    return CompileCrashError("compilation failed: the process cannot start another thread")


def _percentile(ordered: list[float], percent: int) -> float:
    return ordered[(len(ordered) - 1) * percent // 100] if ordered else 0.0


@atexit.register
def _wait_for_compilations_at_exit() -> None:
    """Wait shortly for compilations in progress.

    Before Python 3.14 the interpreter ends a daemon thread that returns from native
    code during shutdown, and C++ answers with an abort. Few compilations outlast this
    wait.
    """
    _is_process_exiting.set()
    deadline = time.monotonic() + _EXIT_WAIT_SECONDS
    for thread in list(_threads):
        thread.join(max(0.0, deadline - time.monotonic()))
