"""What tests of CompilePool submit, wait for and look at."""

from __future__ import annotations

import gc
import hashlib
import queue
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from structout.scheduler.compile_pool import CompilePool

LONG = 60  # seconds that a test waits for an event that must happen


@dataclass(eq=False)
class Compiled:
    """What stands for a compiled constraint."""

    text: str
    memory_bytes: int = 1000


class Gates:
    """A compile function that blocks on each key until the test opens it.

    Attributes:
        errors: by key, the exception to raise instead of compiling.
        count: by key, the number of compilations that started.
    """

    def __init__(self) -> None:
        self._started: queue.Queue[str] = queue.Queue()
        self._opened: defaultdict[str, threading.Event] = defaultdict(threading.Event)
        self._are_all_open = False
        self.errors: dict[str, BaseException] = {}
        self.count: Counter[str] = Counter()

    def __call__(self, key: str) -> Compiled:
        self.count[key] += 1
        self._started.put(key)
        assert self._are_all_open or self._opened[key].wait(LONG)
        if key in self.errors:
            raise self.errors[key]
        return Compiled(key)

    def next_started(self) -> str:
        """Wait for the next compilation to start, and return its key."""
        return self._started.get(timeout=LONG)

    def open(self, *keys: str) -> None:
        for key in keys:
            self._opened[key].set()

    def open_all(self) -> None:
        self._are_all_open = True
        self.open(*list(self.count))


class Key(str):
    """A key that weak references can watch."""


class Clock:
    """A clock that moves only when the test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def outcome(future: Future[Any]) -> Any:
    """Wait for the future's result or exception."""
    return future.exception(LONG) or future.result()


def compile_with(pool: CompilePool, key: Any) -> Any:
    """Submit the key and wait for its result or exception."""
    return outcome(pool.submit(key))


def cached(pool: CompilePool, key: Any) -> Any:
    """The cached result of the key, None if there is none."""
    with pool._lock:
        return pool._cache.get(hashlib.sha256(repr(key).encode()).digest())


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def is_idle(pool: CompilePool) -> bool:
    stats = pool.stats()
    return (stats.waiting, stats.compiling, stats.overdue) == (0, 0, 0) and not pool._jobs


def wait_until_freed(references: Sequence[weakref.ref[Any]]) -> None:
    """Wait until nothing keeps the referents alive. Threads may hold them a little
    longer."""

    def are_freed() -> bool:
        gc.collect()
        return not [reference for reference in references if reference() is not None]

    wait_until(are_freed)
