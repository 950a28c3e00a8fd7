"""Whose constraint is compiled next."""

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from structout.config import StructuredOutputsConfig
from structout.errors import GrammarLimitError

_SHARE = 4  # a quarter of the workers is what a tenant may always have
_TENANT_MEMORY = 60.0  # seconds that a tenant which asked for something keeps a share free


class Subscription:
    """One request's place in a compilation."""

    def __init__(
        self, job: "Job", tenant: str, on_done: Callable[[Any], None], cancel: Callable[["Subscription"], None]
    ):
        self.job: Job | None = job
        self.tenant = tenant
        self._on_done: Callable[[Any], None] | None = on_done
        self._cancel = cancel

    def cancel(self) -> None:
        """From now on ``on_done`` is not called, unless it already was or is running. Idempotent."""
        self._cancel(self)

    def close(self) -> Callable[[Any], None] | None:
        """What was still to be called. Whoever keeps the subscription keeps nothing else alive by it."""
        on_done, self._on_done, self.job = self._on_done, None, None
        return on_done


@dataclass(eq=False)
class Job:
    """One compilation, and those who want its outcome.

    Attributes:
        tenants: how many subscriptions each tenant has on it.
        charged_to: whose turn it was begun in.
        deadline: when those who wait are told that it takes too long. None: nobody is to be told.
        is_abandoned: it overran its deadline, and its worker was given to another.
    """

    key: Any
    digest: bytes
    subscriptions: dict[Subscription, None] = field(default_factory=dict)
    tenants: Counter[str] = field(default_factory=Counter)
    has_begun: bool = False
    charged_to: str = ""
    deadline: float | None = None
    is_abandoned: bool = False

    def take_subscriptions(self) -> list[Subscription]:
        subscriptions = list(self.subscriptions)
        self.subscriptions.clear()
        return subscriptions


class FairQueue:
    """Which job begins next: tenants take turns. Not safe for threads.

    A tenant may always have a quarter of the workers, at least one. It may have more if no tenant below that waits; but
    while another tenant was seen in the last minute, a quarter stays free, so that one who floods the queue with
    constraints that take long is not felt by the others.
    """

    def __init__(self, config: StructuredOutputsConfig, clock: Callable[[], float]):
        self._config = config
        self._clock = clock
        self._share = max(1, config.compile_workers // _SHARE)
        self._queues: OrderedDict[str, dict[Job, None]] = OrderedDict()  # of tenants who wait, the next one first
        self._waiting: dict[Job, None] = {}
        self._running: Counter[str] = Counter()
        self._last_seen = ("", -math.inf)  # a tenant, and when
        self._seen_before = ("", -math.inf)  # the same of the last other tenant

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return self._running.total()

    def add(self, job: Job, tenant: str) -> None:
        """Queue the job, or let one that is queued have this tenant's turn too. Raises ``GrammarLimitError``."""
        self._note(tenant)
        queue = self._queues.get(tenant, {})
        if job not in queue:
            if job not in self._waiting:
                _check_size("queue_size", len(self._waiting) + 1, self._config.queue_size)
            _check_size("tenant_queue_size", len(queue) + 1, self._config.tenant_queue_size)
            self._queues.setdefault(tenant, {})[job] = None
            self._waiting[job] = None
        job.tenants[tenant] += 1

    def withdraw(self, job: Job, tenant: str) -> None:
        """One of those who wait for a queued job does no more."""
        job.tenants[tenant] -= 1
        if not job.tenants[tenant]:
            self._leave(job, tenant)
        if not job.tenants:
            del self._waiting[job]

    def begin(self) -> Job | None:
        """The next job, which holds a worker until its ``end``. None: no job, or no worker for it."""
        tenant = self._next_tenant()
        if tenant is None:
            return None
        self._queues.move_to_end(tenant)
        job = next(iter(self._queues[tenant]))
        for each in list(job.tenants):
            self._leave(job, each)
        del self._waiting[job]
        self._running[tenant] += 1
        job.charged_to, job.has_begun = tenant, True
        return job

    def end(self, job: Job) -> None:
        self._running[job.charged_to] -= 1
        if not self._running[job.charged_to]:
            del self._running[job.charged_to]

    def drop_waiting(self) -> list[Job]:
        dropped = list(self._waiting)
        self._waiting.clear()
        self._queues.clear()
        return dropped

    def _leave(self, job: Job, tenant: str) -> None:
        del job.tenants[tenant]
        del self._queues[tenant][job]
        if not self._queues[tenant]:
            del self._queues[tenant]

    def _next_tenant(self) -> str | None:
        free = self._config.compile_workers - self.num_running
        if free <= 0:
            return None
        within_share = [tenant for tenant in self._queues if self._running[tenant] < self._share]
        beyond = [tenant for tenant in self._queues if free > self._share or not self._has_company(tenant)]
        return next(iter(within_share + beyond), None)

    def _note(self, tenant: str) -> None:
        if tenant != self._last_seen[0]:
            self._seen_before = self._last_seen
        self._last_seen = (tenant, self._clock())

    def _has_company(self, tenant: str) -> bool:
        """Whether another tenant was seen lately."""
        _, when = self._seen_before if tenant == self._last_seen[0] else self._last_seen
        return self._clock() - when < _TENANT_MEMORY


def _check_size(limit: str, got: int, most: int) -> None:
    if got > most:
        raise GrammarLimitError(limit, got, most)
