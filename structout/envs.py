"""Every environment variable that structout reads at run time. (STRUCTOUT_BUILD_CUDA is read by setup.py, and
STRUCTOUT_CPU_CAPABILITY = default | avx2 | avx512 by the CPU kernels, to lower their choice of instructions.)
"""

import os
from pathlib import Path

_BACKENDS = ("cuda", "triton")


def backend() -> str | None:
    """STRUCTOUT_BACKEND = cuda | triton: which kernels serve CUDA tensors. Default: cuda where it was built."""
    wish = os.environ.get("STRUCTOUT_BACKEND") or None
    if wish is not None and wish not in _BACKENDS:
        raise ValueError(f"STRUCTOUT_BACKEND must be one of {', '.join(_BACKENDS)}, got {wish!r}")
    return wish


def shared_memory() -> bool:
    """STRUCTOUT_SHARED_MEMORY = 0: ranks of one host exchange messages by their process group all the same."""
    return os.environ.get("STRUCTOUT_SHARED_MEMORY", "1") != "0"


def cache_dir() -> Path:
    """STRUCTOUT_CACHE_DIR: where the demo model is kept. Default: structout in $XDG_CACHE_HOME or ~/.cache."""
    chosen = os.environ.get("STRUCTOUT_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "structout"
