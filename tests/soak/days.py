"""Days of the cache of a server's compilations, in simulated time: only this hunter
moves the clock.

A seed is a day. Constraints repeat, some fail, and now and then the clock leaps by
hours, as where a machine was suspended. After each event:

- a failure is known until its time is over and not longer, unless others needed its
  space; a grammar is the one that was put there, and the last one used stays;
- the cache keeps within its bytes.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from soak.hunt import Hunter, Tally
from structout import StructuredOutputsConfig
from structout.errors import GrammarError
from structout.scheduler.compile_pool import CompileCache

_DAY = 86_400.0
_SECONDS_BETWEEN = 2.0  # arrivals, on average
_NUM_CONSTRAINTS = 20_000
_CONFIG = StructuredOutputsConfig(cache_bytes=1 << 20, failures_kept=16, failure_ttl=600.0)


@dataclass(frozen=True)
class Compiled:
    """What stands for a compiled constraint."""

    memory_bytes: int


@dataclass
class Day:
    """The state of a simulated day."""

    rng: random.Random
    tally: Tally
    now: float = 0.0
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    numbers: Any = field(default_factory=itertools.count)
    compiling: set[int] = field(default_factory=set)
    put: dict[int, tuple[Any, float]] = field(default_factory=dict)  # results, and when
    last_failures: deque[tuple[int, float]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.cache = CompileCache(_CONFIG, lambda: self.now)

    def at(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.numbers), event))

    def run(self) -> None:
        self.at(0, self.arrive)
        while self.events:
            at, _, event = heapq.heappop(self.events)
            self.now = max(self.now, at)
            event()
            self.expect(self.cache.num_bytes <= _CONFIG.cache_bytes, f"the cache has {self.cache.num_bytes} bytes")
            self.expect(self.cache.num_failures <= _CONFIG.failures_kept, f"{self.cache.num_failures} failures")
            self.tally.executions["events"] += 1

    def expect(self, holds: bool, problem: str) -> None:
        if not holds and len(self.tally.findings) < 5:
            self.tally.findings.append(f"at {self.now:.3f} s: {problem}")

    def arrive(self) -> None:
        if self.now < _DAY:
            self.at(self.rng.expovariate(1 / _SECONDS_BETWEEN), self.arrive)
        if self.rng.random() < 1e-4:
            self.now += self.rng.uniform(3600, 3 * 3600)
            self.tally.executions["leaps of the clock"] += 1
        constraint = min(int(self.rng.paretovariate(0.5)), _NUM_CONSTRAINTS)
        self.tally.executions["requests"] += 1
        if self.look_up(constraint) is not None:
            self.tally.executions["requests that the cache answers"] += 1
        elif constraint not in self.compiling:
            self.compiling.add(constraint)
            self.at(self.rng.expovariate(2.0), lambda: self.finish(constraint))

    def finish(self, constraint: int) -> None:
        self.compiling.remove(constraint)
        self.tally.executions["compilations"] += 1
        rng = random.Random(constraint)  # a constraint always has the same result
        result: Any = Compiled(rng.randrange(200, 60_000))
        if rng.random() < 0.2:
            result = GrammarError(f"constraint {constraint} is refused")
            self.last_failures.append((constraint, self.now))
        self.cache.put(_digest(constraint), result)
        self.put[constraint] = (result, self.now)
        if not isinstance(result, GrammarError):
            self.expect(self.look_up(constraint) is result, "the last grammar is not in the cache")

    def look_up(self, constraint: int) -> Any:
        found = self.cache.get(_digest(constraint))
        result, at = self.put.get(constraint, (None, 0.0))
        self.expect(found is None or found is result, f"the cache has another result of constraint {constraint}")
        if isinstance(found, GrammarError):
            self.expect(self.now < at + _CONFIG.failure_ttl, "a failure outlives its time")
        while len(self.last_failures) > _CONFIG.failures_kept // 2:
            self.last_failures.popleft()
        if (constraint, at) in self.last_failures and self.now < at + _CONFIG.failure_ttl:
            self.expect(found is not None, "a late failure is forgotten before its time")
        return found


def _digest(constraint: int) -> bytes:
    return hashlib.sha256(str(constraint).encode()).digest()


class Days(Hunter):
    def hunt(self, seed: int, tally: Tally) -> None:
        day = Day(random.Random(f"soak days {seed}"), tally)
        day.run()
        tally.executions["simulated hours"] += round(day.now / 3600)


make = Days
