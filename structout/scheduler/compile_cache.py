"""What became of constraints: compiled, bad, or an accident; the first two are remembered within bounds."""

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from structout.config import StructuredOutputsConfig
from structout.errors import CompileCrashError, GrammarError, GrammarTimeoutError

_FAILURES_SHARE = 16  # the part of the cache that failures may fill, so that bad constraints push out few good ones
_ENTRY_BYTES = 512  # of a cache entry, beside what it holds: its digest and its place in two dicts


class HasMemory(Protocol):
    @property
    def memory_bytes(self) -> int: ...


Compiled = TypeVar("Compiled", bound=HasMemory)


def copy_error(error: GrammarError) -> GrammarError:
    """The same error for another request: its own instance, without the traceback, which would keep frames alive."""
    # Not by way of __init__, which wants who knows what.
    new = OSError.__new__ if isinstance(error, OSError) else Exception.__new__
    copy = new(type(error), *error.args)
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    return copy


def own_copy(outcome: Any) -> Any:
    return copy_error(outcome) if isinstance(outcome, GrammarError) else outcome


def is_crash(outcome: object) -> bool:
    return isinstance(outcome, CompileCrashError)


class Outcomes(Generic[Compiled]):
    """What became of keys, by their digests: compiled grammars, the least recently used one leaving first, and failures
    for a time. Not safe for threads.
    """

    def __init__(self, config: StructuredOutputsConfig, clock: Callable[[], float]):
        self._config = config
        self._clock = clock
        self.grammars: OrderedDict[bytes, tuple[Compiled, int]] = OrderedDict()  # and their bytes
        self.failures: OrderedDict[bytes, tuple[GrammarError, int, float]] = OrderedDict()  # bytes; when they expire
        self.num_bytes = 0
        self._failure_bytes = 0

    def get(self, digest: bytes) -> Compiled | GrammarError | None:
        if digest in self.grammars:
            self.grammars.move_to_end(digest)
            return self.grammars[digest][0]
        self._forget_expired_failures()
        return self.failures[digest][0] if digest in self.failures else None

    def keep(self, digest: bytes, outcome: Compiled | GrammarError) -> None:
        """Unless it says nothing about the key, is known, or is too large."""
        if digest in self.grammars or digest in self.failures:
            return
        if not isinstance(outcome, GrammarError):
            self._keep_grammar(digest, outcome)
        elif not is_crash(outcome) and not isinstance(outcome, GrammarTimeoutError):
            self._keep_failure(digest, outcome)

    def clear(self) -> None:
        self.grammars.clear()
        self.failures.clear()
        self.num_bytes = self._failure_bytes = 0

    def _keep_grammar(self, digest: bytes, grammar: Compiled) -> None:
        size = grammar.memory_bytes + _ENTRY_BYTES
        if size <= self._config.cache_bytes - self._failure_bytes:
            self.grammars[digest] = (grammar, size)
            self.num_bytes += size
            self._forget_grammars()

    def _keep_failure(self, digest: bytes, error: GrammarError) -> None:
        size = sys.getsizeof(str(error)) + _ENTRY_BYTES
        most = self._config.cache_bytes // _FAILURES_SHARE
        if size > most or not self._config.failures_kept:
            return
        self._forget_expired_failures()
        while len(self.failures) >= self._config.failures_kept or self._failure_bytes + size > most:
            self._forget_oldest_failure()
        self.failures[digest] = (error, size, self._clock() + self._config.failure_ttl)
        self._failure_bytes += size
        self.num_bytes += size
        self._forget_grammars()

    def _forget_grammars(self) -> None:
        while self.num_bytes > self._config.cache_bytes:
            _, (_, size) = self.grammars.popitem(last=False)
            self.num_bytes -= size

    def _forget_expired_failures(self) -> None:
        while self.failures and next(iter(self.failures.values()))[2] <= self._clock():
            self._forget_oldest_failure()

    def _forget_oldest_failure(self) -> None:
        _, (_, size, _) = self.failures.popitem(last=False)
        self._failure_bytes -= size
        self.num_bytes -= size
