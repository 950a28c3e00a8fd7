"""The hunter of vLLM's server for some seconds; docs/volumes.md has longer runs."""

import pytest

pytest.importorskip("vllm")

from soak.hunt import short_run


def test_a_wave_of_clients_and_a_killed_engine_find_nothing():
    found = short_run("vllm", 1, first_seed=10**6)
    assert found.findings == []
    assert found.executions["texts that ended by themselves"] > 50
    assert found.executions["requests whose client left"] > 5
    assert found.executions["requests in a server whose engine was killed"] > 5
