"""The random model takes the demo model's place, in a cache that these tests share."""

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(cache, monkeypatch):
    monkeypatch.setenv("STRUCTOUT_CACHE_DIR", str(cache))
    monkeypatch.setenv("STRUCTOUT_DEMO_MODEL", "random")
