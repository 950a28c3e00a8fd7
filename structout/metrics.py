"""Exports a manager's counters to Prometheus (https://prometheus.io)."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from structout.scheduler.manager import StructuredOutputManager
from structout.scheduler.stats import ManagerStats


class ManagerCollector(Collector):
    """Collects a manager's :class:`ManagerStats` at each scrape.

    To add it to the metrics that a server exports::

        prometheus_client.REGISTRY.register(ManagerCollector(manager))

    Args:
        manager: the manager to read.
    """

    def __init__(self, manager: StructuredOutputManager):
        self._manager = manager

    def collect(self) -> Iterator[Metric]:
        stats = self._manager.stats()
        yield from _request_metrics(stats)
        yield from _compilation_metrics(stats)
        yield from _mask_metrics(stats)


def _request_metrics(stats: ManagerStats) -> Iterator[Metric]:
    yield _gauge(
        "structout_requests",
        "The number of requests by status.",
        "status",
        {"waiting": stats.waiting, "ready": stats.ready, "failed": stats.failed},
    )


def _compilation_metrics(stats: ManagerStats) -> Iterator[Metric]:
    compilation = stats.compilation
    yield GaugeMetricFamily(
        "structout_compile_queue", "The number of constraints that wait for a compile worker.", compilation.waiting
    )
    yield GaugeMetricFamily(
        "structout_compiling", "The number of constraints that hold a compile worker.", compilation.compiling
    )
    yield GaugeMetricFamily(
        "structout_compile_overdue",
        "The number of compilations that still run past their deadline.",
        compilation.overdue,
    )
    yield _gauge(
        "structout_compile_seconds",
        "Quantiles of the duration of the last 1,024 compilations, in seconds.",
        "quantile",
        {"0.5": compilation.compile_seconds_p50, "0.99": compilation.compile_seconds_p99},
    )
    yield GaugeMetricFamily(
        "structout_cache_entries", "The number of compiled grammars in the cache.", compilation.cache_entries
    )
    yield GaugeMetricFamily(
        "structout_failures_kept", "The number of failed constraints in the cache.", compilation.failures_kept
    )
    yield GaugeMetricFamily(
        "structout_cache_bytes", "The memory used by the grammar cache, in bytes.", compilation.cache_bytes
    )
    yield CounterMetricFamily(
        "structout_cache_hits", "The number of constraints found in the cache.", compilation.cache_hits
    )
    yield CounterMetricFamily(
        "structout_cache_misses", "The number of constraints submitted for compilation.", compilation.cache_misses
    )
    yield CounterMetricFamily(
        "structout_compile_timeouts", "The number of compilations that missed their deadline.", compilation.timeouts
    )


def _mask_metrics(stats: ManagerStats) -> Iterator[Metric]:
    yield CounterMetricFamily("structout_mask_rows", "The number of mask rows filled.", stats.rows_filled)
    fill_p50, fill_p99 = stats.fill_seconds
    yield _gauge(
        "structout_fill_seconds",
        "Quantiles of the duration of the last 1,024 mask fills, in seconds.",
        "quantile",
        {"0.5": fill_p50, "0.99": fill_p99},
    )


def _gauge(name: str, documentation: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    """A gauge with one value for each value of its label."""
    gauge = GaugeMetricFamily(name, documentation, labels=[label])
    for label_value, value in values.items():
        gauge.add_metric([label_value], value)
    return gauge
