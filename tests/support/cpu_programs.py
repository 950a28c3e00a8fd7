"""The CPU kernels as programs, also for processors that this machine is not."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest
import torch

from support import builds
from support.locations import NATIVE

ARM_COMPILER, ARM_EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
NEEDS_ARM = pytest.mark.skipif(
    shutil.which(ARM_COMPILER) is None or shutil.which(ARM_EMULATOR) is None,
    reason=f"needs {ARM_COMPILER} and {ARM_EMULATOR}: make test-arm",
)
_FORMATS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
# As in setup.py, but for -O1, which compiles faster.
FLAGS = ("-std=c++17", "-O1", "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno")


def compiled(compiler: list[str], *flags: str) -> Path:
    sources = [NATIVE / "cpu_kernels.cpp"]
    sources += [builds.CSRC / "cpu" / f"{name}.cpp" for name in ("apply_bitmask", "capability", "masked_sample")]
    return builds.compiled("cpu_kernels", [*compiler, *FLAGS, *flags], sources, allow_messages=False)


class CpuProgram:
    """Calls kernels in a process, which ends with the object's context."""

    def __init__(self, command: list[str]):
        self._command = command

    def __enter__(self) -> CpuProgram:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def apply_bitmask(self, logits: torch.Tensor, bitmask: torch.Tensor, rows: torch.Tensor | None) -> None:
        stride = logits.stride(0) if len(logits) > 1 else logits.shape[1]
        buffer = logits.as_strided((len(logits), stride), (stride, 1)).contiguous() if len(logits) else logits
        arrays = [buffer, bitmask, rows]
        result = self._call(0, logits, stride, bitmask, rows, {}, arrays, buffer.nbytes)
        written = torch.frombuffer(bytearray(result), dtype=logits.dtype).view(buffer.shape) if result else buffer
        logits.copy_(written[:, : logits.shape[1]])

    def masked_sample_logprobs(
        self,
        logits: torch.Tensor,
        bitmask: torch.Tensor | None,
        rows: torch.Tensor | None,
        temperature: torch.Tensor,
        top_k: torch.Tensor | None,
        top_p: torch.Tensor | None,
        min_p: torch.Tensor | None,
        seed: torch.Tensor,
        position: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        n, vocab_size = logits.shape
        filters = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
        arrays = [logits, bitmask, rows, temperature, top_k, top_p, min_p, seed, position]
        result = bytearray(self._call(1, logits, vocab_size, bitmask, rows, filters, arrays, 12 * n))
        if n == 0:
            return torch.empty(0, dtype=torch.int64), torch.empty(0)
        return torch.frombuffer(result[: 8 * n], dtype=torch.int64), torch.frombuffer(
            result[8 * n :], dtype=torch.float32
        )

    def _call(
        self,
        op: int,
        logits: torch.Tensor,
        row_stride: int,
        bitmask: torch.Tensor | None,
        rows: torch.Tensor | None,
        filters: dict[str, torch.Tensor | None],
        arrays: list[torch.Tensor | None],
        result_bytes: int,
    ) -> bytes:
        present = [filters.get(name) is not None for name in ("top_k", "top_p", "min_p")]
        mask_shape = (0, 0) if bitmask is None else bitmask.shape
        header = (op, *logits.shape, row_stride, _FORMATS[logits.dtype], *mask_shape)
        header += (bitmask is not None, rows is not None, *present, 3)
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        to.write(struct.pack(f"={len(header)}q", *header))
        for array in arrays:
            if array is not None:
                integers = array.dtype == torch.int32 and array is not bitmask
                to.write(_bytes(array.long() if integers else array))
        to.flush()
        result = back.read(result_bytes)
        assert len(result) == result_bytes, "the program ended"
        return result


def _bytes(array: torch.Tensor) -> bytes:
    same_size = {2: torch.int16, 4: torch.int32, 8: torch.int64}[array.element_size()]  # numpy has no bfloat16
    return array.view(same_size).numpy().tobytes()
