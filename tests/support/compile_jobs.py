"""What tests of CompileService submit, wait for and look at."""

from __future__ import annotations

import gc
import hashlib
import queue
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from structout.scheduler.compile_service import CompileService

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
        self.errors: dict[str, BaseException] = {}
        self.count: Counter[str] = Counter()

    def __call__(self, key: str) -> Compiled:
        self.count[key] += 1
        self._started.put(key)
        assert self._opened[key].wait(LONG)
        if key in self.errors:
            raise self.errors[key]
        return Compiled(key)

    def next_started(self) -> str:
        """Wait for the next compilation to start, and return its key."""
        return self._started.get(timeout=LONG)

    def open(self, *keys: str) -> None:
        for key in keys:
            self._opened[key].set()


class Key(str):
    """A key that weak references can watch."""


class Clock:
    """A clock that moves only when the test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Inbox:
    """An ``on_done`` callback that collects results."""

    def __init__(self) -> None:
        self._results: queue.Queue[Any] = queue.Queue()

    def __call__(self, result: Any) -> None:
        self._results.put(result)

    def get(self) -> Any:
        return self._results.get(timeout=LONG)

    def is_empty(self) -> bool:
        return self._results.empty()


def compile_with(service: CompileService, key: Any, tenant: str = "") -> Any:
    """Submit the key and wait for its result."""
    inbox = Inbox()
    service.submit(key, tenant, inbox)
    return inbox.get()


def cached(service: CompileService, key: Any) -> Any:
    """The cached result of the key, None if there is none."""
    with service._lock:
        return service._cache.get(hashlib.sha256(repr(key).encode()).digest())


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def is_idle(service: CompileService) -> bool:
    stats = service.stats()
    is_kept = service._jobs or service._subscriptions
    return (stats.waiting, stats.compiling, stats.overdue) == (0, 0, 0) and not is_kept


def wait_until_freed(references: Sequence[weakref.ref[Any]]) -> None:
    """Wait until nothing keeps the referents alive. Threads may hold them a little
    longer."""

    def are_freed() -> bool:
        gc.collect()
        return not [reference for reference in references if reference() is not None]

    wait_until(are_freed)
