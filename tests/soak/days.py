"""Days of a server's compilations in simulated time: the queue and the cache of
compilations, with a clock that only this hunter moves.

A seed is a day. Tenants come and go by the hour, constraints repeat, some fail, some
are cancelled while they wait, and now and then the clock leaps by hours, as where a
machine was suspended. After each event:

- no worker is idle while a compilation waits that may start, and no more work than
  there are;
- tenants take turns, and each one's compilations begin in their order;
- a failure is known until its time is over and not longer, unless others needed its
  space; a grammar is the one that was put there, and the last one used stays;
- the cache keeps within its bytes.

At the end of the day nothing is left in the queue.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

from soak.hunt import Hunter, Tally
from structout import StructuredOutputsConfig
from structout.errors import GrammarError, GrammarLimitError
from structout.scheduler.compile_cache import CompileCache
from structout.scheduler.compile_queue import CompileQueue, Job

_DAY = 86_400.0
_SECONDS_BETWEEN = 2.0  # arrivals, on average
_NUM_CONSTRAINTS = 20_000
_CONFIG = StructuredOutputsConfig(
    compile_workers=4,
    queue_size=16,
    tenant_queue_size=8,
    cache_bytes=1 << 20,
    failures_kept=16,
    failure_ttl=600.0,
)
_RECENT_SECONDS = 60.0  # for which a tenant's share stays free


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
    events: list[tuple[float, int, Any]] = field(default_factory=list)
    numbers: Any = field(default_factory=itertools.count)
    jobs: dict[int, Job] = field(default_factory=dict)  # waiting and running ones, by constraint
    running: list[Job] = field(default_factory=list)
    waiting: dict[str, deque[Job]] = field(default_factory=lambda: defaultdict(deque))
    seen: dict[str, float] = field(default_factory=dict)  # tenants
    put: dict[int, tuple[Any, float]] = field(default_factory=dict)  # results, and when
    passed_by: dict[str, set[str]] = field(default_factory=dict)  # those that have begun since a tenant waits for one
    last_failures: deque[tuple[int, float]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.queue = CompileQueue(_CONFIG, lambda: self.now)
        self.cache = CompileCache(_CONFIG, lambda: self.now)

    def at(self, seconds: float, event: Any) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.numbers), event))

    def run(self) -> None:
        self.at(0, self.arrive)
        while self.events:
            at, _, event = heapq.heappop(self.events)
            self.now = max(self.now, at)
            event()
            self.start()
            self.check()
            self.tally.executions["events"] += 1
        self.expect(not self.jobs and not self.queue.num_waiting and not self.queue.num_running, "work is left")

    def expect(self, holds: bool, problem: str) -> None:
        if not holds and len(self.tally.findings) < 5:
            self.tally.findings.append(f"at {self.now:.3f} s: {problem}")

    def tenant(self) -> str:
        """Some tenants work at all hours, others in some of them."""
        hour = int(self.now // 3600)
        return self.rng.choice([f"tenant {i}" for i in range(6) if i < 2 or (hour + i) % 4 == 0])

    def arrive(self) -> None:
        if self.now < _DAY:
            self.at(self.rng.expovariate(1 / _SECONDS_BETWEEN), self.arrive)
            if self.rng.random() < 0.02:  # a crowd
                for _ in range(self.rng.randrange(60)):
                    self.at(self.rng.random(), self.ask)
        if self.rng.random() < 1e-4:
            self.now += self.rng.uniform(3600, 3 * 3600)
            self.tally.executions["leaps of the clock"] += 1
        self.ask()

    def ask(self) -> None:
        constraint = min(int(self.rng.paretovariate(0.5)), _NUM_CONSTRAINTS)
        self.tally.executions["requests"] += 1
        if self.look_up(constraint) is not None:
            self.tally.executions["requests that the cache answers"] += 1
            return
        job = self.jobs.get(constraint) or Job(constraint, _digest(constraint))
        if job.holder is not None:
            self.tally.executions["requests that join a compilation"] += 1
            return
        tenant = self.tenant()
        self.seen[tenant] = self.now
        num_waiting, of_tenant = self.queue.num_waiting, len(self.waiting[tenant])
        try:
            self.queue.add(job, tenant)
        except GrammarLimitError:
            self.tally.executions["requests that met a full queue"] += 1
            is_full = num_waiting >= _CONFIG.queue_size or of_tenant >= _CONFIG.tenant_queue_size
            self.expect(is_full, f"the queue refuses at {num_waiting} jobs, {of_tenant} of the tenant")
            return
        self.jobs[constraint] = job
        if job not in self.waiting[tenant]:
            self.waiting[tenant].append(job)
        self.passed_by.setdefault(tenant, set())
        if self.rng.random() < 0.1:
            self.at(self.rng.expovariate(1.0), lambda: self.cancel(job, tenant))

    def cancel(self, job: Job, tenant: str) -> None:
        if tenant not in job.tenants:  # it has begun
            return
        self.queue.remove(job, tenant)
        self.tally.executions["requests cancelled while they wait"] += 1
        if tenant not in job.tenants:
            self.waiting[tenant].remove(job)
        if not job.tenants:
            del self.jobs[job.key]

    def start(self) -> None:
        while (job := self.queue.start_next()) is not None:
            tenant = job.holder
            assert tenant is not None
            self.expect(self.waiting[tenant][0] is job, f"{tenant}'s compilations begin out of order")
            for queued in self.waiting.values():
                if job in queued:
                    queued.remove(job)
            self.take_turn(tenant)
            self.running.append(job)
            slow = self.rng.random() < 0.15
            self.at(self.rng.expovariate(1 / 20.0 if slow else 2.0), lambda job=job: self.finish(job))

    def take_turn(self, tenant: str) -> None:
        """Nobody begins twice while another waits and has nothing that runs."""
        for other, begun in self.passed_by.items():
            if other == tenant or not self.waiting[other] or any(other == job.holder for job in self.running):
                begun.clear()
            else:
                self.expect(tenant not in begun, f"{tenant} begins twice while {other} waits")
                begun.add(tenant)

    def finish(self, job: Job) -> None:
        self.queue.finish(job)
        self.running.remove(job)
        del self.jobs[job.key]
        self.tally.executions["compilations"] += 1
        rng = random.Random(job.key)  # a constraint always has the same result
        result: Any = Compiled(rng.randrange(200, 60_000))
        if rng.random() < 0.2:
            result = GrammarError(f"constraint {job.key} is refused")
            self.last_failures.append((job.key, self.now))
        self.cache.put(job.digest, result)
        self.put[job.key] = (result, self.now)
        if not isinstance(result, GrammarError):
            self.expect(self.look_up(job.key) is result, "the last grammar is not in the cache")

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

    def check(self) -> None:
        num_running = len(self.running)
        self.expect(self.queue.num_running == num_running <= _CONFIG.compile_workers, f"{num_running} compilations run")
        self.expect(self.cache.num_bytes <= _CONFIG.cache_bytes, f"the cache has {self.cache.num_bytes} bytes")
        self.expect(self.cache.num_failures <= _CONFIG.failures_kept, f"{self.cache.num_failures} failures are kept")
        num_waiting = len({id(job) for queued in self.waiting.values() for job in queued})
        self.expect(
            self.queue.num_waiting == num_waiting, f"{num_waiting} wait, the queue has {self.queue.num_waiting}"
        )
        if not num_waiting or num_running == _CONFIG.compile_workers:
            return
        # The one worker that is free is kept for tenants that have come of late, and
        # none of these waits without a worker of its own.
        of_tenant = {job.holder for job in self.running}
        starved = [tenant for tenant, queued in self.waiting.items() if queued and tenant not in of_tenant]
        self.expect(num_running == _CONFIG.compile_workers - 1, f"{num_waiting} wait beside {num_running} that run")
        self.expect(not starved, f"{starved} wait while a worker is free")
        recent = {tenant for tenant, at in self.seen.items() if self.now - at < _RECENT_SECONDS}
        for tenant, queued in self.waiting.items():
            self.expect(
                not queued or bool(recent - {tenant}), f"a worker stays free for nobody but {tenant}, which waits"
            )


def _digest(constraint: int) -> bytes:
    return hashlib.sha256(str(constraint).encode()).digest()


class Days(Hunter):
    def hunt(self, seed: int, tally: Tally) -> None:
        day = Day(random.Random(f"soak days {seed}"), tally)
        day.run()
        tally.executions["simulated hours"] += round(day.now / 3600)


def make() -> Hunter:
    return Days()
