"""The machine of tests/native/ptx_vm for tests in Python."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
from collections.abc import Iterator, Sequence

import torch

from support import ptx


class _Launch(ctypes.Structure):
    """PtxLaunch of tests/native/ptx_vm/api.h."""

    _fields_ = [("kernel", ctypes.c_char_p), ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3),
                ("cluster_blocks", ctypes.c_uint32), ("dynamic_shared_bytes", ctypes.c_uint32),
                ("arguments", ctypes.c_void_p), ("find_targets", ctypes.c_void_p)]  # fmt: skip


class _Options(ctypes.Structure):
    """PtxOptions of tests/native/ptx_vm/api.h."""

    _fields_ = [("seed", ctypes.c_uint64), ("max_instructions", ctypes.c_uint64), ("races", ctypes.c_bool),
                ("undefined", ctypes.c_bool), ("counts", ctypes.c_bool), ("equal_stores", ctypes.c_bool)]  # fmt: skip


class PtxError(RuntimeError):
    """The machine refuses PTX, or what PTX does."""


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(ptx.machine()))
    library.ptx_vm_load.restype = library.ptx_vm_launch.restype = ctypes.c_void_p
    for name in ("ptx_vm_error", "ptx_vm_report", "ptx_vm_forms"):
        getattr(library, name).restype = ctypes.c_char_p
    return library


def forms() -> list[str]:
    """Return the opcodes that the machine's table has, with all their modifiers."""
    return _library().ptx_vm_forms().decode().split()


@contextlib.contextmanager
def watching(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Find data races in memory that several devices share, from launch to launch. A
    device is a thread that launches."""
    for tensor in tensors:
        begin = tensor.data_ptr()
        _library().ptx_vm_watch(ctypes.c_uint64(begin), ctypes.c_uint64(begin + tensor.nbytes))
    try:
        yield
    finally:
        _library().ptx_vm_watch_nothing()


class Module:
    """The kernels of a PTX text.

    Raises:
        PtxError: If the text holds what the machine does not know.
    """

    def __init__(self, text: str):
        self._module = _library().ptx_vm_load(text.encode())
        if self._module is None:
            raise PtxError(_library().ptx_vm_error().decode())

    def launch(
        self,
        kernel: str,
        arguments: Sequence[object],
        *,
        grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (32, 1, 1),
        cluster_blocks: int = 1,
        dynamic_shared_bytes: int = 0,
        **options: int,
    ) -> None:
        """Run a kernel.

        Args:
            arguments: A ctypes value for each parameter.
            options: ``seed``, ``races``, ``undefined``, ``counts``,
                ``max_instructions``, ``equal_stores`` (of several warps are no race).

        Raises:
            PtxError: If the kernel does what it must not.
        """
        addresses = (ctypes.c_void_p * max(1, len(arguments)))(*(ctypes.addressof(each) for each in arguments))
        launch = _Launch(
            kernel.encode(), (ctypes.c_uint32 * 3)(*grid), (ctypes.c_uint32 * 3)(*block), cluster_blocks,
            dynamic_shared_bytes, ctypes.addressof(addresses), None,
        )  # fmt: skip
        asked = _Options(**{"max_instructions": 1 << 34, **options})
        problem = _library().ptx_vm_launch(ctypes.c_void_p(self._module), ctypes.byref(launch), ctypes.byref(asked))
        if problem is not None:
            raise PtxError(ctypes.string_at(problem).decode())

    def report(self) -> dict[str, ptx.KernelReport]:
        """Return what the launches of each kernel did."""
        return ptx.kernel_reports([json.loads(_library().ptx_vm_report(ctypes.c_void_p(self._module)))])
