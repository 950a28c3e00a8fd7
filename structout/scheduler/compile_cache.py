"""CompileCache: compiled grammars and known failures, within the configured bounds."""

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from structout.constraints.config import StructuredOutputsConfig
from structout.errors import CompileCrashError, GrammarError, GrammarTimeoutError

_FAILURES_FRACTION = 16  # failures may use 1/16 of the cache, so that bad constraints evict few good ones
_ENTRY_BYTES = 512  # the overhead of a cache entry: its digest and its places in dicts
_NUM_MEASURED = 64  # grammars that are measured again with each new one


class HasMemory(Protocol):
    @property
    def memory_bytes(self) -> int: ...


Compiled = TypeVar("Compiled", bound=HasMemory)


def copy_error(error: GrammarError) -> GrammarError:
    """Copy an error for another request."""
    return error.copy()


def copy_if_error(result: Any) -> Any:
    return copy_error(result) if isinstance(result, GrammarError) else result


def is_crash(result: object) -> bool:
    return isinstance(result, CompileCrashError)


class _CachedFailure(NamedTuple):
    error: GrammarError
    num_bytes: int
    expires_at: float


class CompileCache(Generic[Compiled]):
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
        self._grammars: OrderedDict[bytes, tuple[Compiled, int]] = OrderedDict()  # with their bytes
        self._failures: OrderedDict[bytes, _CachedFailure] = OrderedDict()
        self._to_measure: list[bytes] = []  # digests, some of them of grammars that have left
        self._num_bytes = 0
        self._failure_bytes = 0

    @property
    def num_grammars(self) -> int:
        return len(self._grammars)

    @property
    def num_failures(self) -> int:
        return len(self._failures)

    @property
    def num_bytes(self) -> int:
        """The memory of all entries, their overhead included."""
        return self._num_bytes

    def get(self, digest: bytes) -> Compiled | GrammarError | None:
        """The cached result, which becomes the most recently used one."""
        if digest in self._grammars:
            self._grammars.move_to_end(digest)
            return self._grammars[digest][0]
        self._evict_expired_failures()
        return self._failures[digest].error if digest in self._failures else None

    def put(self, digest: bytes, result: Compiled | GrammarError) -> None:
        """Cache the result, unless it is known, too large, a timeout or a crash."""
        if digest in self._grammars or digest in self._failures:
            return
        if not isinstance(result, GrammarError):
            self._put_grammar(digest, result)
        elif not is_crash(result) and not isinstance(result, GrammarTimeoutError):
            self._put_failure(digest, result)

    def clear(self) -> None:
        self._grammars.clear()
        self._failures.clear()
        self._to_measure.clear()
        self._num_bytes = self._failure_bytes = 0

    def _put_grammar(self, digest: bytes, grammar: Compiled) -> None:
        self._measure_again()
        num_bytes = grammar.memory_bytes + _ENTRY_BYTES
        if num_bytes <= self._config.cache_bytes - self._failure_bytes:
            self._grammars[digest] = (grammar, num_bytes)
            self._num_bytes += num_bytes
            self._evict_grammars()

    def _measure_again(self) -> None:
        for _ in range(min(_NUM_MEASURED, len(self._grammars))):
            if not self._to_measure:
                self._to_measure = list(self._grammars)
            digest = self._to_measure.pop()
            if digest in self._grammars:
                grammar, num_bytes = self._grammars[digest]
                num_bytes_now = grammar.memory_bytes + _ENTRY_BYTES
                self._grammars[digest] = (grammar, num_bytes_now)
                self._num_bytes += num_bytes_now - num_bytes
        self._evict_grammars()

    def _put_failure(self, digest: bytes, error: GrammarError) -> None:
        num_bytes = sys.getsizeof(str(error)) + _ENTRY_BYTES
        max_bytes = self._config.cache_bytes // _FAILURES_FRACTION
        if num_bytes > max_bytes or not self._config.failures_kept:
            return
        self._evict_expired_failures()
        while len(self._failures) >= self._config.failures_kept or self._failure_bytes + num_bytes > max_bytes:
            self._evict_oldest_failure()
        self._failures[digest] = _CachedFailure(error, num_bytes, self._clock() + self._config.failure_ttl)
        self._failure_bytes += num_bytes
        self._num_bytes += num_bytes
        self._evict_grammars()

    def _evict_grammars(self) -> None:
        while self._num_bytes > self._config.cache_bytes:
            _, (_, num_bytes) = self._grammars.popitem(last=False)
            self._num_bytes -= num_bytes

    def _evict_expired_failures(self) -> None:
        while self._failures and next(iter(self._failures.values())).expires_at <= self._clock():
            self._evict_oldest_failure()

    def _evict_oldest_failure(self) -> None:
        _, failure = self._failures.popitem(last=False)
        self._failure_bytes -= failure.num_bytes
        self._num_bytes -= failure.num_bytes
