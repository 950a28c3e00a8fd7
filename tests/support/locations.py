"""Paths in the repository."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
CORPUS = TESTS / "corpus"
NATIVE = TESTS / "native"
CUDA_PROGRAMS = NATIVE / "cuda"


def importing(test_file: str) -> dict[str, str]:
    """Return the environment for a process that imports a test module and
    tests/support."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(test_file).parent), str(TESTS)])}
