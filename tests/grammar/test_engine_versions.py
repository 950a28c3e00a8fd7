import warnings
from importlib.metadata import version

import pytest

from structout.grammar import engine_versions
from structout.grammar.engine_versions import MEASURED_VERSIONS, is_at_least, warn_if_unmeasured


@pytest.fixture
def fake_version(monkeypatch):
    def fake(installed):
        monkeypatch.setattr(engine_versions, "_installed_version", lambda engine: installed)
        is_at_least.cache_clear()
        warn_if_unmeasured.cache_clear()

    yield fake
    is_at_least.cache_clear()
    warn_if_unmeasured.cache_clear()


@pytest.mark.parametrize("engine", MEASURED_VERSIONS)
def test_installed_version_was_measured(engine):
    assert version(engine) in MEASURED_VERSIONS[engine]


@pytest.mark.parametrize(
    ("installed", "expected"),
    [("1.9.1", True), ("1.9.0", False), ("1.10", True), ("2.0.0rc1", True), ("1.9.1.post2", True), ("1.7.6", False)],
)
def test_is_at_least_compares_numbers(fake_version, installed, expected):
    fake_version(installed)
    assert is_at_least("llguidance", "1.9.1") == expected


def test_warn_if_unmeasured_warns_once_for_an_unmeasured_version(fake_version):
    fake_version("1.8.0")
    with pytest.warns(RuntimeWarning, match=r"llguidance 1\.8\.0 was not measured: .* 1\.7\.6 and 1\.9\.1"):
        warn_if_unmeasured("llguidance")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_unmeasured("llguidance")
        fake_version("1.7.6")
        warn_if_unmeasured("llguidance")
