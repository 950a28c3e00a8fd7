"""Lets Triton run on the CPU: its compiler makes PTX for a GPU, which the machine of
tests/native/ptx_vm executes on CPU tensors.

So each launch gets the specialization that Triton would compile on that GPU. Must be
imported before any kernel, in a process without TRITON_INTERPRET.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch

from support.builds import BUILD
from support.ptx_machine import Module

os.environ["TRITON_CACHE_DIR"] = str(BUILD / "triton")  # what is cached here has no machine code

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime import driver

_CTYPES = {"i1": ctypes.c_bool, "i8": ctypes.c_int8, "i16": ctypes.c_int16, "i32": ctypes.c_int32,
           "i64": ctypes.c_int64, "u64": ctypes.c_uint64, "fp32": ctypes.c_float}  # fmt: skip


class _Utils:
    modules: ClassVar[dict[str, Module]] = {}

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 227 * 1024, "multiprocessor_count": 4}

    def load_binary(self, name: str, ptx: bytes, shared: int, device: int) -> tuple[Any, ...]:
        text = PtxDriver.change(ptx.decode())
        module = self.modules.setdefault(text, Module(text))
        return module, (module, name), 0, 0, 1024

    def unload_module(self, module: Module) -> None:
        pass


class _Launcher:
    """What starts a compiled kernel."""

    def __init__(self, source: Any, metadata: Any):
        self._types = list(source.signature.values())
        self._metadata = metadata

    def __call__(self, x: int, y: int, z: int, stream: int, function: Any, *others: Any) -> None:
        module, name = function
        arguments: list[Any] = []
        for kind, value in zip(self._types, others[4:], strict=True):
            if kind.startswith("*"):
                arguments.append(ctypes.c_uint64(0 if value is None else value.data_ptr()))
            elif kind != "constexpr":
                arguments.append(_CTYPES[kind](value))
        arguments += [ctypes.c_uint64(0)] * 2  # scratch memory, which no kernel of ours has
        options = PtxDriver.options | {"seed": next(PtxDriver.seeds)}
        block = (32 * self._metadata.num_warps, 1, 1)
        if min(x, y, z) > 0:
            module.launch(
                name, arguments, grid=(x, y, z), block=block, dynamic_shared_bytes=self._metadata.shared, **options
            )


class PtxDriver(DriverBase):
    """Triton's driver of a GPU that is not there."""

    options: ClassVar[dict[str, int]] = {}
    change: Callable[[str], str] = staticmethod(str)
    seeds: ClassVar[Iterator[int]] = itertools.count()

    def __init__(self, architecture: int):
        super().__init__()
        self.utils = _Utils()
        self.launcher_cls = _Launcher
        self._target = GPUTarget("cuda", architecture, 32)

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("there is nothing to measure")


def install(architecture: int, change: Callable[[str], str] = str, **options: int) -> None:
    """Make this process's Triton compile for ``architecture`` and run on the CPU.

    Args:
        change: Gives the text that runs in place of a kernel's PTX.
        options: Those of ``Module.launch``.
    """
    PtxDriver.options, PtxDriver.change = options, staticmethod(change)
    driver.set_active(PtxDriver(architecture))
    stages_with_machine_code = CUDABackend.add_stages

    def add_stages(self: Any, stages: dict[str, Any], *others: Any) -> None:
        stages_with_machine_code(self, stages, *others)
        del stages["cubin"]

    CUDABackend.add_stages = add_stages
    initialize = CUDABackend.__init__

    def use_ptx(self: Any, target: GPUTarget) -> None:
        initialize(self, target)
        self.binary_ext = "ptx"

    CUDABackend.__init__ = use_ptx
