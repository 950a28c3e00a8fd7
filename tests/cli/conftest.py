"""A cache of the demo model that the tests of this folder share."""

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(cache, monkeypatch):
    monkeypatch.setenv("STRUCTOUT_CACHE_DIR", str(cache))
