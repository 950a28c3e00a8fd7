"""A manager's figures for Prometheus (https://prometheus.io), by its own client library."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from structout.scheduler.manager import StructuredOutputManager


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
        yield GaugeMetricFamily("structout_abandoned", "Compilations past their deadline.", compilation.abandoned)
        compile_seconds = GaugeMetricFamily("structout_compile_seconds", "Of compilations.", labels=["quantile"])
        compile_seconds.add_metric(["0.5"], compilation.compile_seconds_p50)
        compile_seconds.add_metric(["0.99"], compilation.compile_seconds_p99)
        yield compile_seconds
        yield GaugeMetricFamily("structout_cache_entries", "Compiled grammars in the cache.", compilation.cache_entries)
        yield GaugeMetricFamily("structout_failures_kept", "Constraints known to be bad.", compilation.failures_kept)
        yield GaugeMetricFamily("structout_cache_bytes", "Of them, keys included.", compilation.cache_bytes)
        yield CounterMetricFamily("structout_cache_hits", "Constraints found in the cache.", compilation.cache_hits)
        yield CounterMetricFamily("structout_cache_misses", "Constraints compiled.", compilation.cache_misses)
        yield CounterMetricFamily("structout_compile_timeouts", "Constraints given up.", compilation.timeouts)
        yield CounterMetricFamily("structout_mask_rows", "Mask rows filled.", stats.rows_filled)
        fill = GaugeMetricFamily("structout_fill_seconds", "Of the last steps.", labels=["quantile"])
        for quantile, seconds in zip(("0.5", "0.99"), stats.fill_seconds, strict=True):
            fill.add_metric([quantile], seconds)
        yield fill
        if stats.mask_pool is not None:
            masks = CounterMetricFamily("structout_masks", "Masks for the workers' pool.", labels=["kind"])
            masks.add_metric(["sent"], stats.mask_pool.masks_sent)
            masks.add_metric(["reused"], stats.mask_pool.masks_reused)
            yield masks
