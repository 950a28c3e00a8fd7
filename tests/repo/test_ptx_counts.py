"""What the compiled CUDA kernels execute stays as the committed counts tell."""

import json

from support import make_ptx_counts, ptx

COMMITTED = json.loads(make_ptx_counts.COUNTS.read_text())
TOLERANCE = 0.02


@ptx.NEEDS_NVCC
def test_calls_execute_the_committed_counts():
    """After a change that is meant to change them:
    ``PYTHONPATH=tests python -m support.make_ptx_counts --write``."""
    assert set(COMMITTED) == set(make_ptx_counts.CALLS)
    for name, committed in COMMITTED.items():
        for counter, value in make_ptx_counts.count(name).items():
            difference = abs(value - committed[counter])
            assert difference <= TOLERANCE * committed[counter], (name, counter, committed[counter], value)
