"""CompileCache: compiled grammars and known failures, within the configured bounds."""

import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from structout.constraints.config import StructuredOutputsConfig
from structout.errors import CompileCrashError, GrammarError, GrammarTimeoutError
from structout.grammar.interface import CompiledConstraint

_FAILURES_FRACTION = 16  # failures may use 1/16 of the cache, so that bad constraints evict few good ones
_ENTRY_BYTES = 512  # the overhead of a cache entry: its digest and its places in dicts
_NUM_MEASURED = 64  # grammars that are measured again with each new one

Result = CompiledConstraint | GrammarError


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
