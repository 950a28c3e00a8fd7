"""The backends of ops whose CUDA source is one program of tests/native/cuda."""

import ctypes
import functools
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support import ptx
from support.devices import TRITON_DEVICE

# Each with the device that its tensors are on.
BACKENDS = [
    pytest.param(("cpu", "cpu"), id="cpu"),
    pytest.param(("cuda_on_cpu", "cpu"), id="cuda_on_cpu"),
    pytest.param(("ptx", "cpu"), id="ptx", marks=ptx.NEEDS_NVCC),
    pytest.param(("triton", TRITON_DEVICE), id="triton", marks=pytest.mark.triton),
    pytest.param(("cuda", "cuda"), id="cuda", marks=pytest.mark.gpu),
]


def op_of(
    backend: str,
    name: str,
    module: str,
    run_cuda_on_cpu: Callable[..., Any],
    cuda_library: Callable[[], ctypes.CDLL],
) -> Callable[..., Any]:
    """Return an op on one of the backends.

    Args:
        backend: a name of ``BACKENDS``.
        name: the op.
        module: the module of structout.triton_kernels with the op, which is also the
            name of the program.
        run_cuda_on_cpu: runs the kernel of an op on the CPU, from its name and
            arguments.
        cuda_library: the program.
    """
    if backend in ("cpu", "cuda"):
        return getattr(torch.ops.structout, name).default
    if backend == "triton":
        return getattr(importlib.import_module(f"structout.triton_kernels.{module}"), name)
    run = functools.partial(run_cuda_on_cpu, name)
    return ptx.on_ptx(run, cuda_library, module) if backend == "ptx" else run
