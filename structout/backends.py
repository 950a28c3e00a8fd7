"""Loads the op libraries and decides, once, which kernels serve each device. Importing this registers the ops."""

import functools
import importlib.util
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from structout import envs

_HERE = Path(__file__).parent
_REINSTALL = "reinstall with: pip install --no-build-isolation --force-reinstall --no-deps structout"


@dataclass(frozen=True)
class Backends:
    """What serves the ops: ``cuda`` is "cuda", "triton" or None; ``missing`` says what is not there, and the fix."""

    cuda: str | None
    missing: tuple[str, ...]


def _load_cpu_library() -> None:
    library = _HERE / "_C.so"
    if not library.exists():
        raise ImportError(f"structout's CPU ops were not built ({library} is missing); {_REINSTALL}")
    torch.ops.load_library(library)


def _load_cuda_library() -> str | None:
    """None on success, else what is wrong and how to mend it."""
    library = _HERE / "_C_cuda.so"
    if not library.exists():
        return f"the CUDA ops were not built: install the CUDA toolkit (nvcc), then {_REINSTALL}"
    try:
        torch.ops.load_library(library)
    except OSError as error:
        return f"the CUDA ops were built but do not load ({error}); {_REINSTALL}"
    return None


def _register_triton() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed: pip install triton"
    from structout.triton_kernels.apply_bitmask import apply_bitmask

    library = torch.library.Library("structout", "IMPL")
    library.impl("apply_bitmask", apply_bitmask, "CUDA")
    _kept_alive.append(library)
    return None


_kept_alive: list[torch.library.Library] = []


@functools.cache
def load() -> Backends:
    """Idempotent. Warns when CUDA is there but no kernels for it are; raises when STRUCTOUT_BACKEND cannot be had."""
    _load_cpu_library()
    wish = envs.backend()
    if torch.version.cuda is None:
        if wish is not None:
            raise ImportError(f"STRUCTOUT_BACKEND={wish}, but this torch ({torch.__version__}) has no CUDA")
        return Backends(None, (f"torch {torch.__version__} has no CUDA: CPU tensors only",))
    missing: list[str] = []
    for name, register in (("cuda", _load_cuda_library), ("triton", _register_triton)):
        if wish not in (None, name):
            continue
        problem = register()
        if problem is None:
            return Backends(name, tuple(missing))
        missing.append(problem)
    if wish is not None:
        raise ImportError(f"STRUCTOUT_BACKEND={wish} cannot be served: {missing[0]}")
    warnings.warn("structout has no kernels for CUDA tensors. " + "; ".join(missing), RuntimeWarning, stacklevel=2)
    return Backends(None, tuple(missing))


load()
