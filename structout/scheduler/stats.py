"""The counters and times that a manager reports."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class CompileStats:
    """The counters of compilations at one moment.

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


@dataclass(frozen=True)
class ManagerStats:
    """A manager's counters at one moment.

    Attributes:
        waiting: how many requests are WAITING.
        ready: how many requests are READY.
        failed: how many requests have FAILED.
        compilation: see :class:`structout.scheduler.stats.CompileStats`.
        rows_filled: how many mask rows have been filled since the start.
        fill_seconds: percentiles 50 and 99 over the last 1,024 calls of
            ``grammar_bitmask``.
        backends: by backend name, how many requests it has served since the start.
    """

    waiting: int
    ready: int
    failed: int
    compilation: CompileStats
    rows_filled: int
    fill_seconds: tuple[float, float]
    backends: dict[str, int]


def percentiles(seconds: Iterable[float]) -> tuple[float, float]:
    """Percentiles 50 and 99 of durations, 0 if there are none."""
    ordered = sorted(seconds) or [0.0]
    last = len(ordered) - 1
    return ordered[last * 50 // 100], ordered[last * 99 // 100]
