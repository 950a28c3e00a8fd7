"""Compiled CUDA kernels on the CPU: nvcc's PTX of csrc/cuda, executed by the machine of
tests/native/ptx_vm.

A test program is compiled once, by a C++ compiler. Its launches run on fibers, or with
a configuration of this module as PTX (tests/native/simt/ptx_launch.h).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support import builds, host_cuda
from support.builds import CSRC
from support.locations import CUDA_PROGRAMS, NATIVE

ARCHITECTURES = (80, 90, 100)
NEEDS_NVCC = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")

# The flags of setup.py that change device code.
RELEASE_FLAGS = ("-O3", "-std=c++17", "-fmad=false")
# -lineinfo: the source line of each instruction, which changes no instruction.
NVCC = ("nvcc", "-ptx", "-lineinfo", *RELEASE_FLAGS)

MACHINE = NATIVE / "ptx_vm"
# -O1: -O2 compiles for 13 s longer, and runs a tenth faster. -fwrapv: PTX's integers
# wrap. -ffp-contract=off: float operations are rounded once.
MACHINE_FLAGS = ("-O1", "-std=c++20", "-fPIC", "-fwrapv", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror")

# The sources of the kernels that each program of tests/native/cuda launches.
PROGRAMS = {
    "apply_bitmask": ("apply_bitmask",),
    "fsm_states": ("fsm_states",),
    "listed_logits": ("listed_logits",),
    "masked_sample": ("masked_sample", "shards", "token_logprobs", "add_weights"),
    "verify_drafts": ("verify_drafts",),
    "push": ("push_all_gather", "push_rows"),
}


@functools.cache
def machine() -> Path:
    """Return the machine as a library."""
    command = [*builds.cxx(), *MACHINE_FLAGS, f"-march={_this_cpu()}"]
    sources = sorted(MACHINE.glob("*.cpp"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(
            pool.map(
                lambda path: builds.compiled(
                    f"ptx_vm_{path.stem}", [*command, "-c"], [path], suffix=".o", follows_includes=True
                ),
                sources,
            )
        )
    return builds.compiled("ptx_vm", [*command, "-shared"], objects, suffix=".so", follows_includes=True)


def _this_cpu() -> str:
    """Return what ``-march=native`` means here, so that a library for another machine
    is not taken from the cache."""
    if platform.machine() != "x86_64":
        return "native"
    command = [*builds.cxx(), "-march=native", "-Q", "--help=target"]
    options = subprocess.run(command, capture_output=True, text=True).stdout
    names = [line.split()[-1] for line in options.splitlines() if line.strip().startswith("-march=")]
    return names[0] if names else "native"


def ptx_of(name: str, architecture: int, csrc: Path = CSRC) -> Path:
    """Return the PTX of a source, which nvcc compiles once for each content of the
    source and what it includes."""
    source = csrc / "cuda" / f"{name}.cu"
    if not source.exists():
        source = CUDA_PROGRAMS / f"{name}.cu"
    command = [*NVCC, f"-arch=sm_{architecture}"]
    return builds.compiled(f"{name}_{architecture}", command, [source], suffix=".ptx", csrc=csrc, follows_includes=True)


@functools.cache
def program(name: str, sanitize: host_cuda.Sanitizer | None = None) -> Path:
    """Return a program of tests/native/cuda. Without a sanitizer it is a library with
    ``main``, whose functions tests call, too."""
    defines = ["STRUCTOUT_COUNT_PATHS"] if sanitize is None else []
    sources = [CUDA_PROGRAMS / f"{name}.cpp"]
    return host_cuda.build(name, sources, sanitize=sanitize, shared=sanitize is None, defines=defines)


def configuration(
    program: str, architecture: int, *, csrc: Path = CSRC, ptx: Sequence[Path] | None = None, **options: int
) -> str:
    """Return the configuration that runs a program's kernels as PTX.

    Args:
        program: A program of tests/native/cuda.
        architecture: The compute capability that nvcc compiles for: 80, 90 or 100.
        ptx: Files to run instead of what nvcc makes of csrc.
        options: ``seed``, ``races``, ``undefined``, ``counts``, ``instructions``.
    """
    if ptx is None:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            ptx = list(pool.map(lambda name: ptx_of(name, architecture, csrc), PROGRAMS[program]))
    options = {"capability": architecture} | options
    return " ".join([str(machine()), *(f"{name}={value}" for name, value in options.items()), *map(str, ptx)])


@contextlib.contextmanager
def running(library: ctypes.CDLL, configuration: str) -> Iterator[None]:
    """Let a library of a test program run its launches as PTX."""
    library.simt_use_ptx(configuration.encode())
    try:
        yield
    finally:
        library.simt_use_ptx(b"")


def on_ptx(function: Callable[..., Any], library: Callable[[], ctypes.CDLL], program: str) -> Callable[..., Any]:
    """Return ``function``, with the launches of ``library`` run as PTX for sm_90, in an
    order that changes from call to call."""
    seeds = iter(range(1, 1 << 30))

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        with running(library(), configuration(program, 90, seed=next(seeds))):
            return function(*arguments, **options)

    return run


@dataclass
class KernelReport:
    """What a program's launches of one kernel did."""

    counters: dict[str, float]
    executions: dict[int, int]
    """How often each line of the PTX was executed, by warps."""


def kernel_reports(modules: Sequence[dict[str, Any]]) -> dict[str, KernelReport]:
    """Return what the machine reports of each kernel, by mangled name."""
    kernels: dict[str, KernelReport] = {}
    for module in modules:
        for name, counters in module.items():
            executions = {line: count for line, count in counters.pop("executions")}
            kernels[name] = KernelReport(counters, executions)
    return kernels


def read_report(path: Path) -> dict[str, KernelReport]:
    """Read the file that STRUCTOUT_PTX_REPORT names."""
    return kernel_reports(json.loads(path.read_text()))
