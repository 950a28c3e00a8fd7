"""The service: threads, deadlines, and who is told what."""

import atexit
import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from structout.config import StructuredOutputsConfig
from structout.errors import CompileCrashError, GrammarError, GrammarLimitError, GrammarTimeoutError, StructOutError
from structout.process_guard import ForkGuard
from structout.scheduler.compile_cache import Compiled, Outcomes, copy_error, is_crash, own_copy
from structout.scheduler.fair_queue import FairQueue, Job, Subscription

_ABANDONED_PER_WORKER = 4  # threads past their deadline, for each worker, from which on nothing new is begun
_NUM_TIMINGS = 1024  # compilations that the percentiles are over
_LAST_WAIT = 0.5  # seconds that the end of the process gives to compilations under way

_log = logging.getLogger("structout.scheduler")
_threads: set[threading.Thread] = set()
_process_ends = threading.Event()

Key = TypeVar("Key")


@dataclass(frozen=True)
class CompileStats:
    """
    Attributes:
        waiting: constraints that no worker has begun.
        compiling: constraints that hold a worker.
        abandoned: threads that go on past their deadline, because nothing can stop them. They hold no worker.
        cache_entries: compiled grammars that are kept.
        cache_bytes: of those and of the failures kept, keys included.
        cache_hits: constraints whose outcome was known.
        cache_misses: constraints that were submitted.
        failures_kept: constraints remembered to be bad.
        timeouts: compilations that overran their deadline.
        compile_seconds_p50, compile_seconds_p99: over the last 1,024 compilations that ended, late ones too.
        compile_seconds_max: over all.
    """

    waiting: int
    compiling: int
    abandoned: int
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
    """
    Args:
        compile: from a key to what is compiled from it; called from several threads. What it raises other than
            ``GrammarError`` is taken for an accident, as is a CompileCrashError.
        config: for its workers, deadline, queue, cache and ``limits.compiled_bytes``.
        clock: seconds, monotonic.

    Keys are told apart by their ``repr``: frozen dataclasses, tuples, text and numbers will do.

    The threads are daemons that live only while there is work: a native compilation cannot be interrupted, and the
    interpreter would join any other thread (``ThreadPoolExecutor``'s too) before it exits.
    """

    def __init__(
        self,
        compile: Callable[[Key], Compiled],
        config: StructuredOutputsConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._compile = compile
        self._config = config
        self._clock = clock
        self._fork_guard = ForkGuard("CompileService")
        self._changed = threading.Condition()  # guards what follows
        self._is_closed = False
        self._jobs: dict[bytes, Job] = {}  # whatever has not ended
        self._queue = FairQueue(config, clock)
        self._outcomes: Outcomes[Compiled] = Outcomes(config, clock)
        self._num_abandoned = 0
        self._has_monitor = False
        self._hits = self._misses = self._timeouts = 0
        self._seconds: deque[float] = deque(maxlen=_NUM_TIMINGS)
        self._longest = 0.0

    def get(self, key: Key) -> Compiled | GrammarError | None:
        """The outcome if it is known, without waiting. An error is the caller's own copy."""
        self._fork_guard.check()
        digest = _digest(key)
        with self._changed:
            known = self._outcomes.get(digest)
            self._hits += known is not None
        return own_copy(known)

    def submit(self, key: Key, tenant: str, on_done: Callable[[Compiled | GrammarError], None]) -> Subscription:
        """Compile, unless that is under way already: then share its outcome and its deadline.

        Args:
            key: what to compile.
            tenant: whose turn it takes.
            on_done: called exactly once, from a thread of the service, unless this is cancelled or the service
                closed before. Errors are its own copies.

        Raises:
            GrammarLimitError: too many wait (``queue_size``, ``tenant_queue_size``).
            GrammarError: too many compilations go on past their deadlines, or the process can have no more threads.
            StructOutError: the service is closed, or belongs to the process that this one was forked from.
        """
        self._fork_guard.check()
        digest = _digest(key)
        with self._changed:
            if self._is_closed:
                raise StructOutError("the compile service is closed")
            job = self._jobs.get(digest) or Job(key, digest)
            if not job.has_begun:
                if self._is_overloaded():
                    raise self._overload()
                self._queue.add(job, tenant)
                self._jobs[digest] = job
            elif job.deadline is None:
                self._set_deadline(job)
            subscription = Subscription(job, tenant, on_done, self._cancel)
            job.subscriptions[subscription] = None
            self._misses += 1
            threadless = self._start_threads()
            if job in threadless:
                subscription.close()
        for other in threadless:
            self._tell(other.take_subscriptions(), _no_thread())
        if job in threadless:
            raise _no_thread()
        return subscription

    def stats(self) -> CompileStats:
        self._fork_guard.check()
        with self._changed:
            seconds = sorted(self._seconds)
            return CompileStats(
                waiting=self._queue.num_waiting,
                compiling=self._queue.num_running,
                abandoned=self._num_abandoned,
                cache_entries=len(self._outcomes.grammars),
                cache_bytes=self._outcomes.num_bytes,
                cache_hits=self._hits,
                cache_misses=self._misses,
                failures_kept=len(self._outcomes.failures),
                timeouts=self._timeouts,
                compile_seconds_p50=_percentile(seconds, 50),
                compile_seconds_p99=_percentile(seconds, 99),
                compile_seconds_max=self._longest,
            )

    def close(self) -> None:
        """At once: nobody is told anything any more, and compilations under way end in the background."""
        if self._fork_guard.is_forked():
            return
        with self._changed:
            self._is_closed = True
            for job in self._jobs.values():
                for subscription in job.take_subscriptions():
                    subscription.close()
            self._jobs.clear()
            self._queue.drop_waiting()
            self._outcomes.clear()
            self._changed.notify_all()

    # -- private, under the lock unless it says otherwise -------------------------------------------------------------

    def _is_overloaded(self) -> bool:
        return self._num_abandoned >= _ABANDONED_PER_WORKER * self._config.compile_workers

    def _overload(self) -> GrammarError:
        return GrammarError(
            f"{self._num_abandoned} compilations go on past their deadline of {self._config.compile_timeout:g} s: "
            "nothing new is compiled until one of them ends"
        )

    def _cancel(self, subscription: Subscription) -> None:
        """Takes the lock."""
        self._fork_guard.check()
        with self._changed:
            job = subscription.job
            subscription.close()
            if job is None or subscription not in job.subscriptions:
                return
            del job.subscriptions[subscription]
            if not job.has_begun:
                self._queue.withdraw(job, subscription.tenant)
                if not job.subscriptions:
                    del self._jobs[job.digest]

    def _start_threads(self) -> list[Job]:
        """One for each job whose turn it is. Those that could have none are dropped, and returned."""
        threadless = []
        while (job := self._begin()) is not None:
            try:
                threading.Thread(target=self._work, args=(job,), name="structout-compile", daemon=True).start()
            except RuntimeError:
                self._queue.end(job)
                del self._jobs[job.digest]
                threadless.append(job)
        return threadless

    def _begin(self) -> Job | None:
        if self._is_closed or _process_ends.is_set():
            return None
        job = self._queue.begin()
        if job is not None:
            self._set_deadline(job)
        return job

    def _set_deadline(self, job: Job) -> None:
        job.deadline = self._clock() + self._config.compile_timeout
        if not self._has_monitor:
            self._has_monitor = True
            try:
                threading.Thread(target=self._watch, name="structout-deadlines", daemon=True).start()
            except RuntimeError as error:
                self._has_monitor = False
                _log.warning("deadlines are not watched for now: %s", error)

    # -- on the service's threads; these take the lock ----------------------------------------------------------------

    def _work(self, first: Job) -> None:
        _threads.add(threading.current_thread())
        job: Job | None = first
        while job is not None:
            job = self._conclude(job, self._outcome(job))
        _threads.discard(threading.current_thread())

    def _outcome(self, job: Job) -> Compiled | GrammarError:
        with self._changed:
            known = self._outcomes.get(job.digest)
        outcome = self._try(job) if known is None else known
        if is_crash(outcome) and not job.is_abandoned and not self._is_closed:
            _log.warning("%s; trying once more", outcome)
            outcome = self._try(job)
        return outcome

    def _try(self, job: Job) -> Compiled | GrammarError:
        begun = self._clock()
        try:
            compiled = self._compile(job.key)
            most = self._config.limits.compiled_bytes
            if compiled.memory_bytes > most:
                return GrammarLimitError("compiled_bytes", compiled.memory_bytes, most)
            return compiled
        except GrammarError as error:
            return copy_error(error)
        except BaseException as error:  # whatever it is, those who wait must hear of it
            _log.warning("a compilation raised what it should not", exc_info=True)
            return CompileCrashError(f"compilation failed: {error!r}")
        finally:
            self._note_seconds(self._clock() - begun)

    def _note_seconds(self, seconds: float) -> None:
        with self._changed:
            self._seconds.append(seconds)
            self._longest = max(self._longest, seconds)

    def _conclude(self, job: Job, outcome: Compiled | GrammarError) -> Job | None:
        """Tell those who wait; returns what the thread does next. The worker is held until they know."""
        with self._changed:
            if not self._is_closed:
                self._outcomes.keep(job.digest, outcome)
            if self._jobs.get(job.digest) is job:
                del self._jobs[job.digest]
            self._num_abandoned -= job.is_abandoned
            self._timeouts += isinstance(outcome, GrammarTimeoutError) and not job.is_abandoned
            subscriptions = job.take_subscriptions()
        self._tell(subscriptions, outcome)
        with self._changed:
            if not job.is_abandoned:
                self._queue.end(job)
            return self._begin()

    def _tell(self, subscriptions: Iterable[Subscription], outcome: Compiled | GrammarError) -> None:
        for subscription in subscriptions:
            with self._changed:
                on_done = subscription.close()
                if on_done is None or self._is_closed:
                    continue
            try:
                on_done(own_copy(outcome))
            except Exception:
                _log.exception("on_done of a compilation raised")

    def _watch(self) -> None:
        """Ends when there is no deadline left."""
        while True:
            with self._changed:
                deadlines = [job.deadline for job in self._jobs.values() if job.deadline is not None]
                if not deadlines:
                    self._has_monitor = False
                    return
                wait = min(deadlines) - self._clock()
                if wait > 0:
                    self._changed.wait(wait)
                    continue
                failed = self._enforce_deadlines()
            for subscriptions, error in failed:
                _log.warning("%s (%d requests)", error, len(subscriptions))
                self._tell(subscriptions, error)

    def _enforce_deadlines(self) -> list[tuple[list[Subscription], GrammarError]]:
        """Under the lock. Returns whom to tell what."""
        now = self._clock()
        failed: list[tuple[list[Subscription], GrammarError]] = []
        for job in self._jobs.values():
            if job.deadline is not None and job.deadline <= now:
                self._abandon(job)
                error = GrammarTimeoutError(
                    f"the constraint took more than {self._config.compile_timeout:g} s to compile"
                )
                failed.append((job.take_subscriptions(), error))
        dropped = self._queue.drop_waiting() if self._is_overloaded() else []
        for job in dropped:
            del self._jobs[job.digest]
            failed.append((job.take_subscriptions(), self._overload()))
        failed += [(job.take_subscriptions(), _no_thread()) for job in self._start_threads()]
        return failed

    def _abandon(self, job: Job) -> None:
        """Under the lock."""
        job.deadline = None
        self._timeouts += 1
        if not job.is_abandoned:
            job.is_abandoned = True
            self._num_abandoned += 1
            self._queue.end(job)


def _digest(key: object) -> bytes:
    return hashlib.sha256(repr(key).encode()).digest()


def _no_thread() -> GrammarError:
    return CompileCrashError("compilation failed: the process can have no more threads")


def _percentile(ordered: list[float], percent: int) -> float:
    return ordered[(len(ordered) - 1) * percent // 100] if ordered else 0.0


@atexit.register
def _let_short_ones_end() -> None:
    """Before 3.14, Python ends a daemon thread that comes back from native code while the interpreter goes down, and
    C++ answers that with an abort. Few compilations take longer than this wait, and fewer end just after it."""
    _process_ends.set()
    deadline = time.monotonic() + _LAST_WAIT
    for thread in list(_threads):
        thread.join(max(0.0, deadline - time.monotonic()))
