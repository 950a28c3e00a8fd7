"""ManagerCollector: what a Prometheus server scrapes."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from structout import GrammarError, StructuredOutputsParams
from structout.metrics import ManagerCollector
from support.managers import add


@pytest.fixture
def registry(manager):
    registry = CollectorRegistry()
    registry.register(ManagerCollector(manager))
    return registry


def test_scrape_has_the_managers_counters(manager, registry):
    for name in ("a", "b"):
        add(manager, name, choice=["yes", "no"])
    manager.add_request("bad", StructuredOutputsParams(regex="("))
    with pytest.raises(GrammarError):
        manager.wait_ready("bad", 60)
    for _ in range(3):
        manager.grammar_bitmask(["a", "b"])
    stats = manager.stats()
    scraped = {
        name: float(value)
        for name, value in (
            line.rsplit(" ", 1) for line in generate_latest(registry).decode().splitlines() if line[0] != "#"
        )
    }
    assert scraped.pop("structout_compiling") <= 2  # a worker is freed after its requests are ready
    assert scraped == {
        'structout_requests{status="waiting"}': 0,
        'structout_requests{status="ready"}': 2,
        'structout_requests{status="failed"}': 1,
        "structout_compile_queue": 0,
        "structout_compile_overdue": 0,
        'structout_compile_seconds{quantile="0.5"}': stats.compilation.compile_seconds_p50,
        'structout_compile_seconds{quantile="0.99"}': stats.compilation.compile_seconds_p99,
        "structout_cache_entries": 1,
        "structout_failures_kept": 1,
        "structout_cache_bytes": stats.compilation.cache_bytes,
        "structout_cache_hits_total": 1,
        "structout_cache_misses_total": 2,
        "structout_compile_timeouts_total": 0,
        "structout_mask_rows_total": 6,
        'structout_fill_seconds{quantile="0.5"}': stats.fill_seconds[0],
        'structout_fill_seconds{quantile="0.99"}': stats.fill_seconds[1],
    }
    assert 0 < stats.fill_seconds[0] <= stats.fill_seconds[1]
    assert stats.compilation.cache_bytes > 0


def test_help_texts_are_whole_sentences(registry):
    help_texts = {
        words[2]: words[3]
        for words in (line.split(" ", 3) for line in generate_latest(registry).decode().splitlines())
        if words[1] == "HELP"
    }
    assert len(help_texts) == 13
    for name, text in help_texts.items():
        assert text.startswith(("The number of ", "The memory used by ", "Quantiles of the duration of ")), name
        assert text.endswith("."), name
        assert name.endswith("_seconds") == text.endswith(", in seconds."), name
        assert name.endswith("_bytes") == text.endswith(", in bytes."), name
    assert len(set(help_texts.values())) == len(help_texts)
