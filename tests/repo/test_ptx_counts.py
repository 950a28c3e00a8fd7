"""What the compiled CUDA kernels execute stays what tests/data/ptx_counts.json tells."""

import json
import sys

import ptx
import pytest
from locations import ROOT

COUNTS = json.loads((ROOT / "tests" / "data" / "ptx_counts.json").read_text())
TOLERANCE = 0.02


@pytest.fixture
def ptx_counts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import ptx_counts

    yield ptx_counts
    sys.modules.pop("ptx_counts")


@ptx.NEEDS_NVCC
def test_calls_execute_the_committed_counts(ptx_counts):
    """After a change that is meant to change them: python bench/ptx_counts.py --write."""
    assert set(COUNTS) == set(ptx_counts.CALLS)
    for name, committed in COUNTS.items():
        for counter, value in ptx_counts.count(name).items():
            difference = abs(value - committed[counter])
            assert difference <= TOLERANCE * committed[counter], (name, counter, committed[counter], value)
