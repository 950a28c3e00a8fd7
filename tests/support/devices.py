"""The devices that tests run on."""

import pytest
import torch

from support import triton_interpreter

HAS_GPU = torch.cuda.is_available()
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
TRITON_DEVICE = "cuda" if HAS_GPU else "cpu"  # the CPU: under Triton's interpreter

if not HAS_GPU:
    triton_interpreter.replace_builtins_once_a_launch()
