"""A manager's figures for Prometheus (https://prometheus.io), by its own client library."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from structout.manager import StructuredOutputManager


class ManagerCollector(Collector):
    """
    Args:
        manager: read at each scrape; nothing is counted in between.

    ``prometheus_client.REGISTRY.register(ManagerCollector(manager))`` adds it to what a server exports.
    """

    def __init__(self, manager: StructuredOutputManager):
        self._manager = manager

    def collect(self) -> Iterator[Metric]:
        stats = self._manager.stats()
        compilation = stats.compilation
        requests = GaugeMetricFamily("structout_requests", "Requests with the manager.", labels=["status"])
        for status in ("waiting", "ready", "failed"):
            requests.add_metric([status], getattr(stats, status))
        yield requests
        yield GaugeMetricFamily("structout_compile_queue", "Constraints that wait to be compiled.", compilation.waiting)
        yield GaugeMetricFamily("structout_compiling", "Constraints being compiled.", compilation.compiling)
        yield GaugeMetricFamily("structout_cache_bytes", "Compiled grammars in the cache.", compilation.cache_bytes)
        yield CounterMetricFamily("structout_cache_hits", "Constraints found in the cache.", compilation.cache_hits)
        yield CounterMetricFamily("structout_cache_misses", "Constraints compiled.", compilation.cache_misses)
        yield CounterMetricFamily("structout_compile_timeouts", "Constraints given up.", compilation.timeouts)
        yield CounterMetricFamily("structout_mask_rows", "Mask rows filled.", stats.rows_filled)
        fill = GaugeMetricFamily("structout_fill_seconds", "Of the last steps.", labels=["quantile"])
        for quantile, seconds in zip(("0.5", "0.99"), stats.fill_seconds, strict=True):
            fill.add_metric([quantile], seconds)
        yield fill
