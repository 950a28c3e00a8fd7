"""CompilePool: compiles constraints on background threads, with deadlines, and keeps
the results."""

import atexit
import hashlib
import logging
import math
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

from structout.constraints.config import StructuredOutputsConfig
from structout.constraints.params import Constraint
from structout.errors import (
    CompileCrashError,
    GrammarError,
    GrammarErrorKind,
    GrammarLimitError,
    GrammarTimeoutError,
    StructOutError,
)
from structout.grammar.interface import CompiledConstraint
from structout.scheduler.process_lock import ProcessLock
from structout.scheduler.stats import CompileStats, percentiles

_MAX_OVERDUE_PER_WORKER = 4  # with this many overdue threads per worker, nothing new is started
_CLOCK_FACTOR = 10  # a compilation may take so many times its CPU seconds by the clock
_SHORTEST_WAIT = 0.01  # seconds between two looks at the CPU time of compilations
_IDLE_SECONDS = 1.0  # how long a thread waits for the next job: waking one is faster than starting one
_NUM_TIMINGS = 1024  # how many compilations the percentiles cover
_FAILURES_FRACTION = 16  # failures may use 1/16 of the cache, so that bad constraints evict few good ones
_ENTRY_BYTES = 512  # the overhead of a cache entry: its digest and its places in dicts
_NUM_MEASURED = 64  # grammars that are measured again with each new one
_EXIT_WAIT_SECONDS = 0.5  # how long the process waits for compilations when it exits
_BUSY, _IDLE = "structout-compile", "structout-idle"  # names of threads

_log = logging.getLogger("structout.scheduler")
_is_process_exiting = threading.Event()

Result = CompiledConstraint | GrammarError


def thread_cpu_clock() -> Callable[[], float]:
    """The CPU seconds of the calling thread, which other threads may read while it
    lives. On a platform without such clocks, the seconds of the monotonic clock."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic
    return partial(time.clock_gettime, time.pthread_getcpuclockid(threading.get_ident()))


class _Entry(NamedTuple):
    result: Result
    num_bytes: int
    expires_at: float


@dataclass
class _Shelf:
    """Entries by digest, the one that leaves next first, and their bytes."""

    entries: OrderedDict[bytes, _Entry] = field(default_factory=OrderedDict)
    num_bytes: int = 0

    def put(self, digest: bytes, entry: _Entry) -> None:
        old = self.entries.get(digest)
        self.entries[digest] = entry
        self.num_bytes += entry.num_bytes - (old.num_bytes if old else 0)

    def pop_first(self) -> None:
        self.num_bytes -= self.entries.popitem(last=False)[1].num_bytes


class CompileCache:
    """The results of compilations, by the digest of their key. Not thread-safe.

    Grammars leave in least-recently-used order. They may grow while requests use them,
    so some of them are measured again with each new one. Failures leave after
    ``config.failure_ttl`` seconds, or when newer ones need their space. Timeouts and
    crashes are never cached, because they say nothing about the constraint.

    Args:
        config: its ``cache_bytes``, ``failures_kept`` and ``failure_ttl``.
        clock: seconds, monotonic.
    """

    def __init__(self, config: StructuredOutputsConfig, clock: Callable[[], float]):
        self._config = config
        self._clock = clock
        self._grammars = _Shelf()
        self._failures = _Shelf()
        self._to_measure: list[bytes] = []  # digests, some of them of grammars that have left

    @property
    def num_grammars(self) -> int:
        return len(self._grammars.entries)

    @property
    def num_failures(self) -> int:
        return len(self._failures.entries)

    @property
    def num_bytes(self) -> int:
        """The memory of all entries, their overhead included."""
        return self._grammars.num_bytes + self._failures.num_bytes

    def get(self, digest: bytes) -> Result | None:
        """The cached result, which becomes the most recently used one."""
        self._drop_expired()
        shelf = self._grammars if digest in self._grammars.entries else self._failures
        entry = shelf.entries.get(digest)
        if entry is None:
            return None
        if shelf is self._grammars:
            shelf.entries.move_to_end(digest)
        return entry.result

    def put(self, digest: bytes, result: Result) -> None:
        """Cache the result, unless it is too large, a timeout or a crash."""
        if not isinstance(result, GrammarError):
            self._measure_again()
            entry = _Entry(result, result.memory_bytes + _ENTRY_BYTES, 0.0)
            if entry.num_bytes <= self._config.cache_bytes - self._failures.num_bytes:
                self._grammars.put(digest, entry)
        elif not isinstance(result, CompileCrashError | GrammarTimeoutError):
            num_bytes = sys.getsizeof(str(result)) + _ENTRY_BYTES
            self._put_failure(digest, _Entry(result, num_bytes, self._clock() + self._config.failure_ttl))
        while self.num_bytes > self._config.cache_bytes:
            self._grammars.pop_first()

    def clear(self) -> None:
        self._grammars, self._failures = _Shelf(), _Shelf()
        self._to_measure.clear()

    def _put_failure(self, digest: bytes, entry: _Entry) -> None:
        max_bytes = self._config.cache_bytes // _FAILURES_FRACTION
        if entry.num_bytes > max_bytes or not self._config.failures_kept:
            return
        self._drop_expired()
        while self.num_failures >= self._config.failures_kept or self._failures.num_bytes + entry.num_bytes > max_bytes:
            self._failures.pop_first()
        self._failures.put(digest, entry)

    def _drop_expired(self) -> None:
        entries = self._failures.entries
        while entries and next(iter(entries.values())).expires_at <= self._clock():
            self._failures.pop_first()

    def _measure_again(self) -> None:
        entries = self._grammars.entries
        for _ in range(min(_NUM_MEASURED, len(entries))):
            self._to_measure = self._to_measure or list(entries)
            entry = entries.get(digest := self._to_measure.pop())
            if entry is not None and not isinstance(entry.result, GrammarError):
                self._grammars.put(digest, entry._replace(num_bytes=entry.result.memory_bytes + _ENTRY_BYTES))


@dataclass(eq=False)
class _Job:
    """One compilation.

    Attributes:
        key: what to compile.
        digest: the digest of the key.
        futures: those of its submissions, without the cancelled ones: an ordered set.
        cpu_clock: the CPU seconds of the thread that compiles it, once it has begun.
        cpu_deadline: when its futures fail with a timeout, by that clock.
        deadline: when they do by the clock. None: it has not begun, or they have failed
            already, and nobody has submitted it since.
        is_overdue: it has missed a deadline, and no longer holds a worker.
    """

    key: Constraint
    digest: bytes
    futures: dict[Future[CompiledConstraint], None] = field(default_factory=dict)
    cpu_clock: Callable[[], float] | None = None
    cpu_deadline: float = math.inf
    deadline: float | None = None
    is_overdue: bool = False

    def take_futures(self) -> list[Future[CompiledConstraint]]:
        futures, self.futures = [*self.futures], {}
        return futures


class CompilePool:
    """Compiles each key once, for all who submit it, and keeps the results.

    Jobs start in the order of their first submissions. Threads are daemons and end soon
    after their work. A native compilation cannot be interrupted, and the interpreter
    would join any other thread before it exits, ``ThreadPoolExecutor``'s included.

    A deadline is one of CPU time: what a busy machine does beside a compilation does
    not count. One that gets no CPU time ends after ten times as much.

    Args:
        compile: compiles a key; called from several threads. A ``CompileCrashError``,
            or any exception other than ``GrammarError``, counts as a crash: it is
            retried once and never cached.
        config: its workers, deadline, queue, cache and ``limits.compiled_bytes``.
        lock: guards the pool.
        clock: seconds, monotonic.
        cpu_clock: makes the clock of the thread that calls it.

    Keys are equal if their ``repr`` is, as for frozen dataclasses.
    """

    def __init__(
        self,
        compile: Callable[[Constraint], CompiledConstraint],
        config: StructuredOutputsConfig,
        lock: ProcessLock,
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], Callable[[], float]] = thread_cpu_clock,
    ):
        self._compile = compile
        self._config = config
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._lock = lock  # guards the fields below
        self._closed = threading.Event()
        self._jobs: dict[bytes, _Job] = {}  # waiting, running and overdue ones, by digest
        self._waiting: dict[_Job, None] = {}  # an ordered set
        self._num_running = 0  # jobs that hold a worker
        self._num_overdue = 0
        self._cache = CompileCache(config, clock)
        self._idle: list[SimpleQueue[_Job | None]] = []  # of each idle thread: what hands it a job, or None to end it
        self._is_monitored = False
        self._num_hits = self._num_misses = self._num_timeouts = 0
        self._seconds: deque[float] = deque(maxlen=_NUM_TIMINGS)
        self._max_seconds = 0.0

    def submit(self, key: Constraint) -> Future[CompiledConstraint]:
        """Compile the key, or join the compilation of an equal key and its deadline.

        Returns:
            a future of its own for each call. Its exception is a ``GrammarError``. It
            is done at once if the result is cached. :meth:`close` cancels it.

        Raises:
            GrammarLimitError: ``queue_size`` constraints wait already.
            GrammarError: too many compilations are overdue.
            StructOutError: the pool is closed, or this process was forked.
        """
        future: Future[CompiledConstraint] = Future()
        digest = hashlib.sha256(repr(key).encode()).digest()
        with self._lock:
            if self._closed.is_set():
                raise StructOutError("the compile pool is closed")
            result = self._cache.get(digest)
            if result is None:
                job = self._join(key, digest, future)
                self._num_misses += 1
            else:
                self._num_hits += 1
        if result is not None:
            self._settle([future], result)
            return future
        future.add_done_callback(partial(self._leave, job))
        self._start_threads()
        self._start_monitor()  # if it has joined an overdue compilation
        return future

    def stats(self) -> CompileStats:
        with self._lock:
            p50, p99 = percentiles(self._seconds)
            return CompileStats(
                waiting=len(self._waiting),
                compiling=self._num_running,
                overdue=self._num_overdue,
                cache_entries=self._cache.num_grammars,
                cache_bytes=self._cache.num_bytes,
                cache_hits=self._num_hits,
                cache_misses=self._num_misses,
                failures_kept=self._cache.num_failures,
                timeouts=self._num_timeouts,
                compile_seconds_p50=p50,
                compile_seconds_p99=p99,
                compile_seconds_max=self._max_seconds,
            )

    def close(self) -> None:
        """Cancel all futures at once. Compilations in progress end in the
        background."""
        with self._lock:
            self._closed.set()
            futures = [future for job in self._jobs.values() for future in job.take_futures()]
            self._jobs.clear()
            self._waiting.clear()
            self._cache.clear()
            for idle in self._idle:
                idle.put(None)
            self._idle.clear()
        for future in futures:
            future.cancel()

    # -- under the lock ----------------------------------------------------------------

    def _join(self, key: Constraint, digest: bytes, future: Future[CompiledConstraint]) -> _Job:
        job = self._jobs.get(digest)
        if job is None or job in self._waiting:
            if self._is_overloaded():
                raise self._overload_error()
        elif job.is_overdue and job.deadline is None:
            self._set_deadline(job)
        if job is None:
            size, max_size = len(self._waiting) + 1, self._config.queue_size
            if size > max_size:
                raise GrammarLimitError("queue_size", size, max_size, kind=GrammarErrorKind.OVERLOADED)
            job = self._jobs[digest] = _Job(key, digest)
            self._waiting[job] = None
        job.futures[future] = None
        return job

    def _is_overloaded(self) -> bool:
        return self._num_overdue >= _MAX_OVERDUE_PER_WORKER * self._config.compile_workers

    def _overload_error(self) -> GrammarError:
        return GrammarError(
            f"{self._num_overdue} compilations still run past their deadline of {self._config.compile_timeout:g} CPU "
            "seconds; nothing new is compiled until one of them ends",
            kind=GrammarErrorKind.OVERLOADED,
        )

    def _set_deadline(self, job: _Job) -> None:
        """Give a job that has begun its whole time from now on."""
        assert job.cpu_clock is not None
        job.deadline = self._clock() + _CLOCK_FACTOR * self._config.compile_timeout
        job.cpu_deadline = job.cpu_clock() + self._config.compile_timeout

    def _seconds_left(self, job: _Job) -> float:
        """A lower bound on the seconds until the job misses its deadline: its thread
        spends at most one CPU second in a second. Infinite without a deadline."""
        if job.deadline is None or job.cpu_clock is None:
            return math.inf
        return min(job.cpu_deadline - job.cpu_clock(), job.deadline - self._clock())

    def _enforce_deadlines(self) -> list[tuple[list[Future[CompiledConstraint]], GrammarError]]:
        """Returns the futures that fail, and with what error."""
        failed: list[tuple[list[Future[CompiledConstraint]], GrammarError]] = []
        for job in self._jobs.values():
            if self._seconds_left(job) <= 0:
                job.deadline = None
                self._num_timeouts += 1
                if not job.is_overdue:
                    job.is_overdue = True
                    self._num_overdue += 1
                    self._num_running -= 1
                message = f"the constraint took more than {self._config.compile_timeout:g} CPU seconds to compile"
                failed.append((job.take_futures(), GrammarTimeoutError(message)))
        if self._is_overloaded():
            for job in self._waiting:
                del self._jobs[job.digest]
                failed.append((job.take_futures(), self._overload_error()))
            self._waiting.clear()
        return failed

    def _next_job(self) -> _Job | None:
        """Start the job that has waited longest, if a worker is free for it."""
        if self._is_ending() or not self._waiting or self._num_running >= self._config.compile_workers:
            return None
        job = next(iter(self._waiting))
        del self._waiting[job]
        self._num_running += 1
        return job

    # -- without the lock: a new thread may need it before it has started --------------

    def _leave(self, job: _Job, future: Future[CompiledConstraint]) -> None:
        """Forget a cancelled future, and a job that waits for no other."""
        with self._lock:
            job.futures.pop(future, None)
            if not job.futures and job in self._waiting:
                del self._waiting[job], self._jobs[job.digest]

    def _start_threads(self) -> None:
        """Let a thread take each job that may start."""
        while True:
            with self._lock:
                job = self._next_job()
                if job is None:
                    return
                if self._idle:
                    self._idle.pop().put(job)
                    continue
            try:
                threading.Thread(target=self._work, args=(job,), name=_BUSY, daemon=True).start()
            except RuntimeError:
                self._finish(job, CompileCrashError("compilation failed: the process cannot start another thread"))
                with self._lock:
                    self._num_running -= 1

    def _is_ending(self) -> bool:
        return self._closed.is_set() or _is_process_exiting.is_set()

    def _work(self, first_job: _Job) -> None:
        job: _Job | None = first_job
        while job is not None:
            threading.current_thread().name = _BUSY
            self._finish(job, self._run(job))
            handed: SimpleQueue[_Job | None] = SimpleQueue()
            with self._lock:
                self._num_running -= not job.is_overdue
                job = self._next_job()
                if job is None:
                    if self._is_ending():
                        return
                    self._idle.append(handed)
            job = job or self._wait_for_job(handed)

    def _wait_for_job(self, handed: "SimpleQueue[_Job | None]") -> _Job | None:
        threading.current_thread().name = _IDLE
        try:
            return handed.get(timeout=_IDLE_SECONDS)
        except Empty:
            with self._lock:
                if handed in self._idle:
                    self._idle.remove(handed)
                    return None
            return handed.get()

    def _run(self, job: _Job) -> Result:
        with self._lock:
            job.cpu_clock = self._cpu_clock()
            self._set_deadline(job)
        self._start_monitor()
        start = self._clock()
        result = self._try_compile(job.key)
        if isinstance(result, CompileCrashError) and not job.is_overdue and not self._closed.is_set():
            _log.warning("%s; trying once more", result)
            result = self._try_compile(job.key)
        with self._lock:
            self._seconds.append(self._clock() - start)
            self._max_seconds = max(self._max_seconds, self._seconds[-1])
        return result

    def _try_compile(self, key: Constraint) -> Result:
        try:
            compiled = self._compile(key)
            max_bytes = self._config.limits.compiled_bytes
            if compiled.memory_bytes > max_bytes:
                return GrammarLimitError("compiled_bytes", compiled.memory_bytes, max_bytes)
            return compiled
        except GrammarError as error:
            return error.copy()
        except BaseException as error:  # whatever it is, the futures need a result
            _log.warning("a compilation crashed", exc_info=True)
            return CompileCrashError(f"compilation failed: {error!r}")

    def _finish(self, job: _Job, result: Result) -> None:
        """Cache the result, and settle the futures."""
        with self._lock:
            if not self._closed.is_set():
                self._cache.put(job.digest, result)
            self._jobs.pop(job.digest, None)
            self._num_overdue -= job.is_overdue
            self._num_timeouts += isinstance(result, GrammarTimeoutError) and not job.is_overdue
            futures = job.take_futures()
        self._settle(futures, result)

    def _settle(self, futures: Iterable[Future[CompiledConstraint]], result: Result) -> None:
        for future in futures:
            if self._closed.is_set():
                future.cancel()
            elif not future.set_running_or_notify_cancel():
                continue
            elif isinstance(result, GrammarError):
                future.set_exception(result.copy())
            else:
                future.set_result(result)

    def _start_monitor(self) -> None:
        """Start a thread that watches deadlines, if there are any and none does."""
        if self._is_monitored:  # it looks at all jobs before it ends
            return
        with self._lock:
            if self._is_monitored or all(job.deadline is None for job in self._jobs.values()):
                return
            self._is_monitored = True
        try:
            threading.Thread(target=self._monitor_deadlines, name="structout-deadlines", daemon=True).start()
        except RuntimeError as error:
            self._is_monitored = False
            _log.warning("compile deadlines are not enforced for now: %s", error)

    def _monitor_deadlines(self) -> None:
        """Run until no job has a deadline."""
        while True:
            with self._lock:
                seconds_left = min(map(self._seconds_left, self._jobs.values()), default=math.inf)
                if seconds_left == math.inf:
                    self._is_monitored = False
                    return
                failed = self._enforce_deadlines() if seconds_left <= 0 else []
            for futures, error in failed:
                _log.warning("%s (%d requests)", error, len(futures))
                self._settle(futures, error)
            if failed:
                self._start_threads()
            else:
                self._closed.wait(max(seconds_left, _SHORTEST_WAIT))


@atexit.register
def _wait_for_compilations_at_exit() -> None:
    """Wait shortly for compilations in progress.

    Before Python 3.14 the interpreter ends a daemon thread that returns from native
    code during shutdown, and C++ answers with an abort. Few compilations outlast this
    wait.
    """
    _is_process_exiting.set()
    deadline = time.monotonic() + _EXIT_WAIT_SECONDS
    for thread in threading.enumerate():
        if thread.name == _BUSY:
            thread.join(max(0.0, deadline - time.monotonic()))
