"""Paths in the repository."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests" / "support"
DATA = ROOT / "tests" / "data"
HOST_CUDA_PROGRAMS = ROOT / "tests" / "host_cuda_programs"


def importing(test_file: str) -> dict[str, str]:
    """Return the environment for a process that imports a test module and
    tests/support."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(test_file).parent), str(SUPPORT)])}
