"""The C++ of masked_sample without torch: its params for ctypes, its CPU kernel, and
its CUDA kernels on the CPU."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import torch

from support import builds, ptx
from support.locations import NATIVE
from support.strided import Strided, StridedIntegers, strided, strided_integers

CPU_SOURCE = NATIVE / "masked_sample_cpu.cpp"


class Bitmask(ctypes.Structure):
    _fields_ = [("words", ctypes.c_void_p), ("num_rows", ctypes.c_int64), ("words_per_row", ctypes.c_int64),
                ("row_stride", ctypes.c_int64)]  # fmt: skip


_FORMATS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


class MaskedLogits(ctypes.Structure):
    """MaskedLogits of csrc/common/masked_logits.h."""

    _fields_ = [("logits", ctypes.c_void_p), ("num_rows", ctypes.c_int64), ("vocab_begin", ctypes.c_int64),
                ("vocab_end", ctypes.c_int64), ("row_stride", ctypes.c_int64), ("format", ctypes.c_int32),
                ("has_mask", ctypes.c_bool), ("bitmask", Bitmask), ("rows", StridedIntegers)]  # fmt: skip

    @classmethod
    def of(
        cls, logits: torch.Tensor, bitmask: torch.Tensor | None, rows: torch.Tensor | None, vocab_begin: int = 0
    ) -> MaskedLogits:
        """``logits`` are those of tokens ``vocab_begin``, ``vocab_begin + 1``, ..."""
        mask = Bitmask(None, 0, 0, 0)
        if bitmask is not None:
            mask = Bitmask(bitmask.data_ptr(), *bitmask.shape, bitmask.stride(0))
        return cls(
            logits.data_ptr(), logits.shape[0], vocab_begin, vocab_begin + logits.shape[1], logits.stride(0),
            _FORMATS[logits.dtype], bitmask is not None, mask, strided_integers(rows),
        )  # fmt: skip


class Params(ctypes.Structure):
    """MaskedSampleParams of csrc/common/masked_sample.h."""

    _fields_ = [("logits", MaskedLogits), ("temperature", Strided),
                ("top_k", StridedIntegers), ("top_p", Strided), ("min_p", Strided),
                ("seed", Strided), ("position", Strided),
                ("ids", ctypes.c_void_p), ("logprobs", ctypes.c_void_p),
                ("shard_results", ctypes.c_void_p)]  # fmt: skip


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
    vocab_begin: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute masked_sample_logprobs with a kernel. Results are poisoned first."""
    ids = torch.full((logits.shape[0],), 77, dtype=torch.int64)
    chosen = torch.full((logits.shape[0],), float("nan"))
    params = Params(
        MaskedLogits.of(logits, bitmask, rows, vocab_begin),
        strided(temperature), strided_integers(top_k), strided(top_p), strided(min_p),
        strided(seed), strided(position), ids.data_ptr(), chosen.data_ptr() if logprobs else None, None,
    )  # fmt: skip
    kernel(params)
    return ids, chosen


class CpuKernel:
    """csrc/cpu/masked_sample.cpp as a library, from ``csrc`` or a changed copy."""

    def __init__(self, csrc: Path = builds.CSRC, optimize: str = "-O1"):
        """``-O2`` takes twice as long to compile, and runs twenty times as fast."""
        flags = ["-std=c++17", optimize, "-shared", "-fPIC"]
        flags += ["-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno"]
        command = [*builds.cxx(), *flags]
        library = builds.compiled("masked_sample_cpu", command, [CPU_SOURCE], suffix=".so", csrc=csrc)
        self._run = ctypes.CDLL(str(library)).masked_sample_on_cpu
        self._run.restype = ctypes.c_int64

    def logprobs(
        self, *arguments: torch.Tensor | None, num_threads: int = 1, vocab_begin: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Call masked_sample_logprobs as if with ``num_threads`` threads.

        The logits are those of tokens ``vocab_begin``, ``vocab_begin + 1``, ...
        """

        def kernel(params: Params) -> None:
            self.first_tasks = self._run(ctypes.byref(params), ctypes.c_int64(num_threads))

        return run(kernel, *arguments, vocab_begin=vocab_begin)

    def ids(self, *arguments: torch.Tensor | None) -> torch.Tensor:
        return self.logprobs(*arguments)[0]

    first_tasks: int
    """How many tasks the latest call was first cut into; 0 if it was not cut."""


@functools.cache
def cuda_library() -> ctypes.CDLL:
    """The CUDA kernels of masked_sample and token_logprobs, compiled for the CPU."""
    library = ctypes.CDLL(str(ptx.program("masked_sample")))
    library.masked_sample_rows_of_path.restype = ctypes.c_uint
    return library
