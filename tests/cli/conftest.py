"""The command on a narrow terminal. The random model takes the demo model's place, in a
cache that these tests share."""

import pytest

from structout_cli import main


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def environment(cache, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("STRUCTOUT_CACHE_DIR", str(cache))
    monkeypatch.setenv("STRUCTOUT_DEMO_MODEL", "random")


@pytest.fixture
def run(capsys):
    """``run(*arguments, status=0)`` runs the command, and returns what it has
    written."""

    def run(*arguments, status=0):
        try:
            got = main([*map(str, arguments)])
        except SystemExit as ended:
            got = ended.code
        assert got == status
        return capsys.readouterr()

    return run
