"""Exports a manager's counters to Prometheus (https://prometheus.io)."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from structout.scheduler.manager import StructuredOutputManager

# The metric class, name and documentation of each field of CompileStats.
_OF_COMPILATIONS: dict[str, tuple[type[GaugeMetricFamily | CounterMetricFamily], str, str]] = {
    "waiting": (GaugeMetricFamily, "compile_queue", "The number of constraints that wait for a compile worker."),
    "compiling": (GaugeMetricFamily, "compiling", "The number of constraints that hold a compile worker."),
    "overdue": (
        GaugeMetricFamily,
        "compile_overdue",
        "The number of compilations that still run past their deadline.",
    ),
    "cache_entries": (GaugeMetricFamily, "cache_entries", "The number of compiled grammars in the cache."),
    "failures_kept": (GaugeMetricFamily, "failures_kept", "The number of failed constraints in the cache."),
    "cache_bytes": (GaugeMetricFamily, "cache_bytes", "The memory used by the grammar cache, in bytes."),
    "cache_hits": (CounterMetricFamily, "cache_hits", "The number of constraints found in the cache."),
    "cache_misses": (CounterMetricFamily, "cache_misses", "The number of constraints submitted for compilation."),
    "timeouts": (CounterMetricFamily, "compile_timeouts", "The number of compilations that missed their deadline."),
}


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
        compilation = stats.compilation
        yield _gauge(
            "structout_requests",
            "The number of requests by status.",
            "status",
            {"waiting": stats.waiting, "ready": stats.ready, "failed": stats.failed},
        )
        for field, (metric, name, documentation) in _OF_COMPILATIONS.items():
            yield metric(f"structout_{name}", documentation, getattr(compilation, field))
        yield _quantiles(
            "structout_compile_seconds",
            "Quantiles of the duration of the last 1,024 compilations, in seconds.",
            (compilation.compile_seconds_p50, compilation.compile_seconds_p99),
        )
        yield CounterMetricFamily("structout_mask_rows", "The number of mask rows filled.", stats.rows_filled)
        yield _quantiles(
            "structout_fill_seconds",
            "Quantiles of the duration of the last 1,024 mask fills, in seconds.",
            stats.fill_seconds,
        )


def _quantiles(name: str, documentation: str, seconds: tuple[float, float]) -> GaugeMetricFamily:
    return _gauge(name, documentation, "quantile", dict(zip(("0.5", "0.99"), seconds, strict=True)))


def _gauge(name: str, documentation: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    """A gauge with one value for each value of its label."""
    gauge = GaugeMetricFamily(name, documentation, labels=[label])
    for label_value, value in values.items():
        gauge.add_metric([label_value], value)
    return gauge
