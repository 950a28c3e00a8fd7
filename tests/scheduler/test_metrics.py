"""Prometheus reads what the manager's own stats say."""

import tokenizers_on_the_spot
from prometheus_client import CollectorRegistry, generate_latest

from structout import StructuredOutputManager, StructuredOutputsParams
from structout.metrics import ManagerCollector


def test_a_scrape_has_the_managers_figures():
    with StructuredOutputManager(tokenizers_on_the_spot.byte_level(), 512) as manager:
        registry = CollectorRegistry()
        registry.register(ManagerCollector(manager))
        for name in ("a", "b"):
            manager.add_request(name, StructuredOutputsParams(choice=["yes", "no"]))
            manager.wait_ready(name, 30)
        manager.add_request("bad", StructuredOutputsParams(regex="("))
        for _ in range(3):
            manager.grammar_bitmask(["a", "b"])
        scraped = dict(
            line.rsplit(" ", 1) for line in generate_latest(registry).decode().splitlines() if line[0] != "#"
        )
        assert float(scraped['structout_requests{status="ready"}']) == 2
        assert float(scraped["structout_mask_rows_total"]) == 6
        assert float(scraped["structout_cache_hits_total"]) == 1
        assert 0 < float(scraped['structout_fill_seconds{quantile="0.5"}']) < 1
        assert float(scraped["structout_cache_bytes"]) > 0
