"""Loads the op libraries, which registers the ops, and chooses the kernels for each
device.

The choice is made once, when structout is imported.
"""

import functools
import importlib.util
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from structout import envs

_PACKAGE = Path(__file__).parents[1]  # the build puts the libraries there
_REINSTALL = "reinstall from structout's checkout: pip install --no-build-isolation --force-reinstall --no-deps ."


@dataclass(frozen=True)
class Backends:
    """The kernels that serve the ops.

    Attributes:
        cuda: the kernels for CUDA tensors: "cuda", "triton" or None.
        missing: optional parts that are absent, each with the way to get it.
        broken: why no op can be used and how to repair it, or None.
        unused: why the CUDA library was built but is not used, or None.
    """

    cuda: str | None
    missing: tuple[str, ...]
    broken: str | None = None
    unused: str | None = None


class _NotBuiltError(Exception):
    """A library that an installation need not have is absent."""


class _LoadError(Exception):
    """A library or its kernels are there but cannot be used."""


def _load_cpu_library() -> None:
    library = _PACKAGE / "_C.so"
    if not library.exists():
        raise ImportError(f"structout's CPU ops were not built ({library} is missing); {_way_to_built_ops()}")
    try:
        torch.ops.load_library(library)
    except OSError as error:
        raise ImportError(f"structout's CPU ops were built but do not load ({_cause(error)}); {_REINSTALL}") from error


def _way_to_built_ops() -> str:
    checkout = _PACKAGE.parent
    if not (checkout / "csrc").is_dir():
        return _REINSTALL
    advice = "build it in place: pip install --no-build-isolation -e ."
    folders = (Path(path, "structout") for path in sys.path)
    installed = next((folder for folder in folders if (folder / "_C.so").exists()), None)
    if installed is not None:
        return (
            f"this is the checkout {checkout}, which hides the structout that is installed in {installed.parent}: "
            f"leave the checkout's folder, or {advice}"
        )
    return f"this is the checkout {checkout}: {advice}"


def _load_cuda_library() -> None:
    library = _PACKAGE / "_C_cuda.so"
    if not library.exists():
        raise _NotBuiltError(f"the CUDA ops were not built: install the CUDA toolkit (nvcc), then {_REINSTALL}")
    try:
        torch.ops.load_library(library)
    except OSError as error:
        # A library that does not load is of another version of structout, or of a torch
        # that lacks a symbol. The loader's message names the symbol.
        raise _LoadError(
            f"the CUDA ops were built but do not load in torch {torch.__version__}: {_cause(error)}"
        ) from error
    if not has_cuda_kernels():
        raise _LoadError(f"{library} was loaded but registers no kernels: it was built without csrc/cuda; {_REINSTALL}")


def _cause(error: OSError) -> BaseException:
    """The loader's own error: torch raises one that names the file only."""
    return error.__cause__ or error


def has_cuda_kernels() -> bool:
    """True if structout's kernels for CUDA tensors are registered with torch."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key("structout::apply_bitmask", "CUDA"))


def _register_triton() -> None:
    if importlib.util.find_spec("triton") is None:
        raise _NotBuiltError("Triton is not installed: pip install triton")
    from structout.triton_kernels.apply_bitmask import apply_bitmask
    from structout.triton_kernels.fsm_states import fsm_advance, fsm_draft_states, fsm_rows
    from structout.triton_kernels.listed_logits import apply_logit_bias, apply_penalties
    from structout.triton_kernels.masked_sample import masked_sample, masked_sample_logprobs
    from structout.triton_kernels.push import push_all_gather
    from structout.triton_kernels.shards import merge_shard_results, sample_shard
    from structout.triton_kernels.token_logprobs import (
        masked_sample_topn,
        merge_totals,
        row_totals,
        token_logprobs,
        top_tokens,
    )
    from structout.triton_kernels.verify_drafts import accept_drafts, verify_drafts

    library = torch.library.Library("structout", "IMPL")
    public = (
        *(apply_bitmask, apply_penalties, apply_logit_bias),
        *(masked_sample, masked_sample_logprobs, masked_sample_topn, token_logprobs, verify_drafts),
        *(fsm_advance, fsm_rows, fsm_draft_states),
    )
    for kernel in public:
        library.impl(kernel.__name__, kernel, "CUDA")
    private = (
        *(accept_drafts, sample_shard, merge_shard_results, push_all_gather),
        *(top_tokens, row_totals, merge_totals),
    )
    for kernel in private:
        library.impl(f"_{kernel.__name__}", kernel, "CUDA")
    _registered_libraries.append(library)


# A Library removes its kernels when it is collected.
_registered_libraries: list[torch.library.Library] = []


@functools.cache
def load() -> Backends:
    """Load the libraries on the first call, and return which kernels serve the ops.

    It does not raise, so that the doctor can report what is broken. It warns if the ops
    are broken, if torch has CUDA but the ops have no kernels for it, and if a built
    CUDA library is not used.
    """
    try:
        loaded = _load()
    except (ImportError, ValueError) as error:
        loaded = Backends(None, (), broken=str(error))
        warnings.warn(f"structout's ops cannot be used: {error}", RuntimeWarning, stacklevel=2)
    if loaded.broken is None and loaded.cuda is None and torch.version.cuda is not None:
        missing = "; ".join(loaded.missing)
        warnings.warn(f"structout has no kernels for CUDA tensors. {missing}", RuntimeWarning, stacklevel=2)
    elif loaded.unused is not None:
        warnings.warn(f"structout uses its Triton kernels: {loaded.unused}", RuntimeWarning, stacklevel=2)
    return loaded


def require() -> None:
    """Raise ``ImportError`` if the ops cannot be used."""
    broken = load().broken
    if broken is not None:
        raise ImportError(broken)


def _load() -> Backends:
    _load_cpu_library()
    requested = envs.backend()
    envs.cpu_capability()  # the CPU ops raise for an unknown value only when the first one is called
    if torch.version.cuda is None:
        if requested is not None:
            raise ImportError(f"STRUCTOUT_BACKEND={requested}, but this torch ({torch.__version__}) has no CUDA")
        return Backends(None, (f"torch {torch.__version__} has no CUDA: CPU tensors only",))
    missing: list[str] = []
    unused: str | None = None
    for name, register in (("cuda", _load_cuda_library), ("triton", _register_triton)):
        if requested not in (None, name):
            continue
        try:
            register()
        except _NotBuiltError as error:
            missing.append(str(error))
        except _LoadError as error:
            missing.append(str(error))
            unused = str(error)
        else:
            return Backends(name, tuple(missing), unused=unused)
    if requested is not None:
        raise ImportError(f"STRUCTOUT_BACKEND={requested} cannot be used: {missing[0]}")
    return Backends(None, tuple(missing))
