"""The devices that tests run on."""

import pytest
import torch

from support import triton_interpreter

HAS_GPU = torch.cuda.is_available()
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
TRITON_DEVICE = "cuda" if HAS_GPU else "cpu"  # the CPU: under Triton's interpreter


def on_device(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """Copy a tensor with what lies between its elements, and its strides. ``to`` makes
    it dense."""
    memory = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    return memory.to(device).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


if not HAS_GPU:
    triton_interpreter.replace_builtins_once_a_launch()
