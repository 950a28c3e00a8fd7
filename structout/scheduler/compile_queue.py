"""CompileQueue: decides which constraint is compiled next."""

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain

from structout.constraints.config import StructuredOutputsConfig
from structout.constraints.params import Constraint
from structout.errors import GrammarErrorKind, GrammarLimitError

_WORKERS_PER_SHARE = 4  # a tenant's share is a quarter of the workers
_RECENT_SECONDS = 60.0  # a tenant seen within this time keeps a share free


@dataclass(eq=False)
class Job:
    """One compilation.

    Attributes:
        key: what to compile.
        digest: the digest of the key.
        tickets: who waits for it, in order, some of whom have cancelled.
        tenants: how many of them each tenant has, while it waits for a worker.
        holder: the tenant whose share it counts for, once it has a worker.
        cpu_clock: the CPU seconds of the thread that compiles it, once it has begun.
        cpu_deadline: when its subscribers fail with a timeout, by that clock.
        deadline: when they do by the clock. None: it has not begun, or they have failed
            already, and nobody has subscribed since.
        is_overdue: it has missed a deadline, and no longer holds a worker.
    """

    key: Constraint
    digest: bytes
    tickets: list[int] = field(default_factory=list)
    tenants: Counter[str] = field(default_factory=Counter)
    holder: str | None = None
    cpu_clock: Callable[[], float] | None = None
    cpu_deadline: float = math.inf
    deadline: float | None = None
    is_overdue: bool = False

    def take_tickets(self) -> list[int]:
        tickets, self.tickets = self.tickets, []
        return tickets


class CompileQueue:
    """The waiting jobs, from which tenants take turns. Not thread-safe.

    A tenant's share is a quarter of the workers, but at least one. A tenant may exceed
    its share if no tenant below its share waits. While another tenant was seen in the
    last minute, one share stays free for it, so that a flood of slow constraints from
    one tenant does not delay the others.

    Args:
        config: its ``compile_workers``, ``queue_size`` and ``tenant_queue_size``.
        clock: seconds, monotonic.

    Attributes:
        num_waiting: how many jobs wait.
    """

    def __init__(self, config: StructuredOutputsConfig, clock: Callable[[], float]):
        self._config = config
        self._clock = clock
        self._share = max(1, config.compile_workers // _WORKERS_PER_SHARE)
        self._queues: OrderedDict[str, dict[Job, None]] = OrderedDict()  # of waiting tenants, the next one first
        self._num_running: Counter[str] = Counter()  # by tenant
        self._last_seen = ("", -math.inf)  # a tenant and the time
        self._last_other_seen = ("", -math.inf)  # the last tenant other than that one
        self.num_waiting = 0

    @property
    def num_running(self) -> int:
        return self._num_running.total()

    def add(self, job: Job, tenant: str) -> None:
        """Queue the job for the tenant; other tenants may have queued it already.

        Raises:
            GrammarLimitError: the queue is full, for this tenant or for all.
        """
        if tenant != self._last_seen[0]:
            self._last_other_seen = self._last_seen
        self._last_seen = (tenant, self._clock())
        queue = self._queues.get(tenant, {})
        if job not in queue:
            if not job.tenants:
                _check_size("queue_size", self.num_waiting + 1, self._config.queue_size)
            _check_size("tenant_queue_size", len(queue) + 1, self._config.tenant_queue_size)
            self.num_waiting += not job.tenants
            queue[job] = None
            self._queues[tenant] = queue
        job.tenants[tenant] += 1

    def remove(self, job: Job, tenant: str) -> None:
        """Remove one of the tenant's subscriptions to a waiting job, and with the last
        one of all the job."""
        job.tenants[tenant] -= 1
        if not job.tenants[tenant]:
            self._dequeue(job, tenant)

    def start_next(self) -> Job | None:
        """Start the next job, which holds a worker until :meth:`finish`.

        Returns:
            None if no job waits, or no worker is free for it.
        """
        tenant = self._next_tenant()
        if tenant is None:
            return None
        self._queues.move_to_end(tenant)
        job = next(iter(self._queues[tenant]))
        for job_tenant in list(job.tenants):
            self._dequeue(job, job_tenant)
        self._num_running[tenant] += 1
        job.holder = tenant
        return job

    def finish(self, job: Job) -> None:
        """Free the job's worker."""
        assert job.holder is not None
        self._num_running[job.holder] -= 1
        if not self._num_running[job.holder]:
            del self._num_running[job.holder]

    def clear(self) -> list[Job]:
        """Remove and return all waiting jobs."""
        jobs = list(dict.fromkeys(chain.from_iterable(self._queues.values())))
        for job in jobs:
            job.tenants.clear()
        self._queues.clear()
        self.num_waiting = 0
        return jobs

    def _dequeue(self, job: Job, tenant: str) -> None:
        del job.tenants[tenant]
        del self._queues[tenant][job]
        if not self._queues[tenant]:
            del self._queues[tenant]
        self.num_waiting -= not job.tenants

    def _next_tenant(self) -> str | None:
        num_free = self._config.compile_workers - self.num_running
        if num_free <= 0:
            return None
        below_share = (tenant for tenant in self._queues if self._num_running[tenant] < self._share)
        beyond = (tenant for tenant in self._queues if num_free > self._share or self._is_alone(tenant))
        return next(chain(below_share, beyond), None)

    def _is_alone(self, tenant: str) -> bool:
        """True if no other tenant has queued a job in the last minute."""
        _, seen_at = self._last_other_seen if tenant == self._last_seen[0] else self._last_seen
        return self._clock() - seen_at >= _RECENT_SECONDS


def _check_size(limit: str, size: int, max_size: int) -> None:
    if size > max_size:
        raise GrammarLimitError(limit, size, max_size, kind=GrammarErrorKind.OVERLOADED)
