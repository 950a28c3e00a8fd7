"""Lets vLLM run its Triton kernels on the CPU, under Triton's interpreter. To be
imported before vLLM."""

import os
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton.backends
from triton.runtime import interpreter

assert os.environ["TRITON_INTERPRET"] == "1"
assert "vllm.triton_utils" not in sys.modules

# vLLM's wheels for CPUs use Triton where it has a driver for CPUs, and the other wheels
# where no driver is active and no GPU is visible. The interpreter needs neither.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
triton.backends.backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))

import vllm.triton_utils  # noqa: E402

assert vllm.triton_utils.HAS_TRITON
del triton.backends.backends["cpu"]  # torch.compile would use it


def _take_masks_of_any_type(name: str, position: int) -> None:
    """Let a masked load or store take a mask of ints, which is what the interpreter
    makes of ``mask & (x > 0)``."""
    call = getattr(interpreter.InterpreterBuilder, name)

    def call_with_bools(*arguments: Any) -> Any:
        mask = arguments[position]
        as_bools = interpreter.TensorHandle(mask.data.astype(np.bool_), mask.dtype)
        return call(*arguments[:position], as_bools, *arguments[position + 1 :])

    setattr(interpreter.InterpreterBuilder, name, call_with_bools)


_take_masks_of_any_type("create_masked_load", 2)
_take_masks_of_any_type("create_masked_store", 3)

from vllm.v1.sample.ops import topk_topp_sampler  # noqa: E402

topk_topp_sampler.HAS_TRITON = False  # the interpreter cannot run its kernel; PyTorch can
