"""The C++ of masked_sample without torch: MaskedSampleParams for ctypes, and the CPU kernel as a library of its own."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import torch
from locations import ROOT

CPU_SOURCE = ROOT / "tests" / "data" / "masked_sample_cpu.cpp"


class Strided(ctypes.Structure):
    _fields_ = [("values", ctypes.c_void_p), ("stride", ctypes.c_int64)]


class StridedIntegers(ctypes.Structure):
    _fields_ = [("values", ctypes.c_void_p), ("stride", ctypes.c_int64), ("is_int64", ctypes.c_bool)]


class Bitmask(ctypes.Structure):
    _fields_ = [("words", ctypes.c_void_p), ("num_rows", ctypes.c_int64), ("words_per_row", ctypes.c_int64),
                ("row_stride", ctypes.c_int64)]  # fmt: skip


class Params(ctypes.Structure):
    """MaskedSampleParams of csrc/common/masked_sample.h."""

    _fields_ = [("logits", ctypes.c_void_p), ("num_rows", ctypes.c_int64), ("vocab_begin", ctypes.c_int64),
                ("vocab_end", ctypes.c_int64), ("row_stride", ctypes.c_int64), ("format", ctypes.c_int32),
                ("has_mask", ctypes.c_bool), ("bitmask", Bitmask), ("rows", StridedIntegers), ("temperature", Strided),
                ("top_k", StridedIntegers), ("top_p", Strided), ("min_p", Strided),
                ("seed", Strided), ("position", Strided),
                ("ids", ctypes.c_void_p), ("logprobs", ctypes.c_void_p), ("outcomes", ctypes.c_void_p)]  # fmt: skip


_FORMATS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


def _strided(values: torch.Tensor | None) -> Strided:
    return Strided(None, 0) if values is None else Strided(values.data_ptr(), values.stride(0))


def _strided_integers(values: torch.Tensor | None) -> StridedIntegers:
    if values is None:
        return StridedIntegers(None, 0, False)
    return StridedIntegers(values.data_ptr(), values.stride(0), values.dtype == torch.int64)


def run(
    kernel: Callable[[Params], object],
    logits: torch.Tensor,
    bitmask: torch.Tensor | None,
    rows: torch.Tensor | None,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    seed: torch.Tensor,
    position: torch.Tensor,
    *,
    logprobs: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """masked_sample_logprobs by a kernel. Results are poisoned first."""
    ids = torch.full((logits.shape[0],), 77, dtype=torch.int64)
    chosen = torch.full((logits.shape[0],), float("nan"))
    mask = Bitmask(None, 0, 0, 0)
    if bitmask is not None:
        mask = Bitmask(bitmask.data_ptr(), *bitmask.shape, bitmask.stride(0))
    params = Params(
        logits.data_ptr(), logits.shape[0], 0, logits.shape[1], logits.stride(0), _FORMATS[logits.dtype],
        bitmask is not None, mask,
        _strided_integers(rows), _strided(temperature), _strided_integers(top_k), _strided(top_p), _strided(min_p),
        _strided(seed), _strided(position), ids.data_ptr(), chosen.data_ptr() if logprobs else None,
        None,
    )  # fmt: skip
    kernel(params)
    return ids, chosen


class CpuKernel:
    """csrc/cpu/masked_sample.cpp, in which the text of a header may be replaced: (header, old, new)."""

    def __init__(self, directory: Path, change: tuple[str, str, str] | None = None):
        sources = ROOT / "csrc"
        if change is not None:
            sources = directory / "csrc"
            shutil.copytree(ROOT / "csrc", sources)
            header, old, new = change
            assert old in (sources / header).read_text()
            (sources / header).write_text((sources / header).read_text().replace(old, new))
        compiler = shlex.split(os.environ.get("CXX", "g++"))
        flags = ["-std=c++17", "-O2", "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno", "-shared", "-fPIC"]
        command = [*compiler, *flags, f"-I{sources}", str(CPU_SOURCE), "-o", str(directory / "masked_sample_cpu.so")]
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        self._run = ctypes.CDLL(command[-1]).masked_sample_on_cpu
        self._run.restype = ctypes.c_int64

    def logprobs(self, *arguments: torch.Tensor | None, num_threads: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        """masked_sample_logprobs, as if with that many threads."""

        def kernel(params: Params) -> None:
            self.first_tasks = self._run(ctypes.byref(params), ctypes.c_int64(num_threads))

        return run(kernel, *arguments)

    def ids(self, *arguments: torch.Tensor | None) -> torch.Tensor:
        return self.logprobs(*arguments)[0]

    first_tasks: int
    """Of the latest call: how many tasks the work was first cut into; 0 if it was not."""
