"""The GPU code in structout's CUDA library, read without a GPU.

The build that precedes the tests has compiled it, so no test runs nvcc for minutes.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import structout

ARCHITECTURES = (80, 90, 100)
CUDA_LIBRARY = Path(structout.__file__).parent / "_C_cuda.so"
NEEDS_NVCC = pytest.mark.skipif(shutil.which("nvcc") is None and not CUDA_LIBRARY.exists(), reason="needs nvcc")


@functools.cache
def cuobjdump(*arguments: str) -> str:
    """Run NVIDIA's disassembler, which comes with Triton."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return subprocess.run([tool, *arguments, CUDA_LIBRARY], capture_output=True, text=True, check=True).stdout


@functools.cache
def compiled_architectures() -> list[int]:
    """Return the architectures that the library has machine code for, oldest first."""
    sections = cuobjdump("--dump-resource-usage").split("arch = sm_")[1:]
    return sorted({int(re.match(r"\d+", section)[0]) for section in sections if "Function " in section})


def require_architectures(*needed: int) -> None:
    """Skip the test if the library has no code for one of ``needed``.

    ``make test`` compiles for one architecture. CI compiles for all: there the test
    goes on, and fails.
    """
    missing = sorted(set(needed) - set(compiled_architectures()))
    if missing and not os.environ.get("CI"):
        names = ", ".join(f"sm_{architecture}" for architecture in missing)
        pytest.skip(f"the CUDA library has no code for {names}: STRUCTOUT_BUILD_CUDA=1 python setup.py build_ext -i")


def function_names() -> set[str]:
    """Return the mangled names of all functions."""
    return set(re.findall(r"Function (\S+):", cuobjdump("--dump-resource-usage")))


def stack_bytes(kernel: str) -> list[int]:
    """Return the stack of each function whose name contains ``kernel``, on each
    compiled architecture.

    Registers that spill go to the stack.
    """
    usage = cuobjdump("--dump-resource-usage")
    return [int(size) for size in re.findall(rf"Function \S*{kernel}\S*:\s+REG:\d+ STACK:(\d+)", usage)]


def ptx_of_source(kernel: str) -> str:
    """Return the PTX of the source file that has ``kernel``, for the newest
    architecture."""
    sections = cuobjdump("--dump-ptx").split("Fatbin ptx code:")
    (ptx,) = [section for section in sections if re.search(rf"\.entry \S*{kernel}", section)]
    return ptx
