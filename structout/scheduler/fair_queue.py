"""FairQueue: decides which constraint is compiled next."""

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from structout.constraints.config import StructuredOutputsConfig
from structout.errors import GrammarErrorKind, GrammarLimitError

_WORKERS_PER_SHARE = 4  # a tenant's share is a quarter of the workers
_RECENT_SECONDS = 60.0  # a tenant seen within this time keeps a share free


class Subscription:
    """One request's interest in a compilation.

    Attributes:
        job: the compilation; None once the subscription is over.
        tenant: the owner of the request.
    """

    def __init__(
        self, job: "Job", tenant: str, on_done: Callable[[Any], None], cancel: Callable[["Subscription"], None]
    ):
        self.job: Job | None = job
        self.tenant = tenant
        self._on_done: Callable[[Any], None] | None = on_done
        self._cancel = cancel

    def cancel(self) -> None:
        """Stop ``on_done`` from being called, unless it was called already or is
        running. Idempotent."""
        self._cancel(self)

    def take_callback(self) -> Callable[[Any], None] | None:
        """End the subscription and return its ``on_done``, None the second time.

        Afterwards the subscription keeps neither the callback nor the job alive.
        """
        on_done, self._on_done, self.job = self._on_done, None, None
        return on_done


@dataclass(eq=False)
class Job:
    """One compilation and its subscriptions.

    Attributes:
        key: what to compile.
        digest: the digest of the key.
        subscriptions: an ordered set.
        num_subscriptions: how many subscriptions each tenant has while the job waits.
        has_started: whether a worker has taken the job.
        charged_tenant: the tenant whose share the running job counts for.
        deadline: when its subscriptions fail with a timeout. None: not started, or they
            have failed already and nobody has subscribed since.
        cpu_clock: the CPU seconds of the thread that compiles it; None until it has
            begun.
        cpu_deadline: when they fail with a timeout by that clock.
        is_overdue: it has missed a deadline, and no longer holds a worker.
    """

    key: Any
    digest: bytes
    subscriptions: dict[Subscription, None] = field(default_factory=dict)
    num_subscriptions: Counter[str] = field(default_factory=Counter)
    has_started: bool = False
    charged_tenant: str = ""
    deadline: float | None = None
    cpu_clock: Callable[[], float] | None = None
    cpu_deadline: float = math.inf
    is_overdue: bool = False

    def pop_subscriptions(self) -> list[Subscription]:
        subscriptions = list(self.subscriptions)
        self.subscriptions.clear()
        return subscriptions


class FairQueue:
    """The waiting jobs, from which tenants take turns. Not thread-safe.

    A tenant's share is a quarter of the workers, but at least one. A tenant may exceed
    its share if no tenant below its share waits. While another tenant was seen in the
    last minute, one share stays free for it, so that a flood of slow constraints from
    one tenant does not delay the others.

    Args:
        config: its ``compile_workers``, ``queue_size`` and ``tenant_queue_size``.
        clock: seconds, monotonic.
    """

    def __init__(self, config: StructuredOutputsConfig, clock: Callable[[], float]):
        self._config = config
        self._clock = clock
        self._share = max(1, config.compile_workers // _WORKERS_PER_SHARE)
        self._queues: OrderedDict[str, dict[Job, None]] = OrderedDict()  # of waiting tenants, the next one first
        self._waiting: dict[Job, None] = {}
        self._num_running: Counter[str] = Counter()  # by tenant
        self._last_seen = ("", -math.inf)  # a tenant and the time
        self._last_other_seen = ("", -math.inf)  # the last tenant other than that one

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return self._num_running.total()

    def add(self, job: Job, tenant: str) -> None:
        """Queue the job for the tenant; other tenants may have queued it already.

        Raises:
            GrammarLimitError: the queue is full, for this tenant or for all.
        """
        self._record_tenant(tenant)
        queue = self._queues.get(tenant, {})
        if job not in queue:
            if job not in self._waiting:
                _check_size("queue_size", len(self._waiting) + 1, self._config.queue_size)
            _check_size("tenant_queue_size", len(queue) + 1, self._config.tenant_queue_size)
            self._queues.setdefault(tenant, {})[job] = None
            self._waiting[job] = None
        job.num_subscriptions[tenant] += 1

    def remove(self, job: Job, tenant: str) -> None:
        """Remove one of the tenant's subscriptions to a waiting job, and with the last
        one the job."""
        job.num_subscriptions[tenant] -= 1
        if not job.num_subscriptions[tenant]:
            self._dequeue(job, tenant)
        if not job.num_subscriptions:
            del self._waiting[job]

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
        for job_tenant in list(job.num_subscriptions):
            self._dequeue(job, job_tenant)
        del self._waiting[job]
        self._num_running[tenant] += 1
        job.charged_tenant, job.has_started = tenant, True
        return job

    def finish(self, job: Job) -> None:
        """Free the job's worker."""
        self._num_running[job.charged_tenant] -= 1
        if not self._num_running[job.charged_tenant]:
            del self._num_running[job.charged_tenant]

    def clear(self) -> list[Job]:
        """Remove and return all waiting jobs."""
        jobs = list(self._waiting)
        self._waiting.clear()
        self._queues.clear()
        return jobs

    def _dequeue(self, job: Job, tenant: str) -> None:
        del job.num_subscriptions[tenant]
        del self._queues[tenant][job]
        if not self._queues[tenant]:
            del self._queues[tenant]

    def _next_tenant(self) -> str | None:
        num_free = self._config.compile_workers - self.num_running
        if num_free <= 0:
            return None
        below_share = [tenant for tenant in self._queues if self._num_running[tenant] < self._share]
        allowed_more = [
            tenant for tenant in self._queues if num_free > self._share or not self._was_other_seen_recently(tenant)
        ]
        return next(iter(below_share + allowed_more), None)

    def _record_tenant(self, tenant: str) -> None:
        if tenant != self._last_seen[0]:
            self._last_other_seen = self._last_seen
        self._last_seen = (tenant, self._clock())

    def _was_other_seen_recently(self, tenant: str) -> bool:
        _, seen_at = self._last_other_seen if tenant == self._last_seen[0] else self._last_seen
        return self._clock() - seen_at < _RECENT_SECONDS


def _check_size(limit: str, size: int, max_size: int) -> None:
    if size > max_size:
        raise GrammarLimitError(limit, size, max_size, kind=GrammarErrorKind.OVERLOADED)
