"""Loads the op libraries, which registers the ops, and decides, once, which kernels serve each device."""

import functools
import importlib.util
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from structout import envs

_HERE = Path(__file__).parent
_REINSTALL = "reinstall from structout's checkout: pip install --no-build-isolation --force-reinstall --no-deps ."


@dataclass(frozen=True)
class Backends:
    """What serves the ops.

    Attributes:
        cuda: "cuda", "triton" or None.
        missing: what is not there and need not be, with the way to get it.
        broken: what must be mended before any op can be used. None: all is well.
    """

    cuda: str | None
    missing: tuple[str, ...]
    broken: str | None = None


def _load_cpu_library() -> None:
    library = _HERE / "_C.so"
    if not library.exists():
        raise ImportError(f"structout's CPU ops were not built ({library} is missing); {_REINSTALL}")
    try:
        torch.ops.load_library(library)
    except OSError as error:
        raise ImportError(f"structout's CPU ops were built but do not load ({error}); {_REINSTALL}") from error


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
    from structout.triton_kernels.masked_sample import masked_sample, masked_sample_logprobs
    from structout.triton_kernels.push import push_all_gather
    from structout.triton_kernels.shards import merge_masses, merge_outcomes, sample_shard, shard_mass

    library = torch.library.Library("structout", "IMPL")
    for kernel in (apply_bitmask, masked_sample, masked_sample_logprobs):
        library.impl(kernel.__name__, kernel, "CUDA")
    for kernel in (sample_shard, merge_outcomes, shard_mass, merge_masses, push_all_gather):
        library.impl(f"_{kernel.__name__}", kernel, "CUDA")
    _kept_alive.append(library)
    return None


_kept_alive: list[torch.library.Library] = []


@functools.cache
def load() -> Backends:
    """Idempotent. Never raises, so that the doctor can speak; warns of what is broken, and of CUDA without kernels."""
    try:
        loaded = _load()
    except (ImportError, ValueError) as error:
        loaded = Backends(None, (), broken=str(error))
        warnings.warn(f"structout's ops cannot be used: {error}", RuntimeWarning, stacklevel=2)
    if loaded.broken is None and loaded.cuda is None and torch.version.cuda is not None:
        missing = "; ".join(loaded.missing)
        warnings.warn(f"structout has no kernels for CUDA tensors. {missing}", RuntimeWarning, stacklevel=2)
    return loaded


def require() -> None:
    """Raise ``ImportError`` if the ops cannot be used."""
    broken = load().broken
    if broken is not None:
        raise ImportError(broken)


def _load() -> Backends:
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
    return Backends(None, tuple(missing))
