"""The structs of csrc/common/strided.h for ctypes."""

from __future__ import annotations

import ctypes

import torch


class Strided(ctypes.Structure):
    _fields_ = [("values", ctypes.c_void_p), ("stride", ctypes.c_int64)]


class StridedIntegers(ctypes.Structure):
    _fields_ = [("values", ctypes.c_void_p), ("stride", ctypes.c_int64), ("is_int64", ctypes.c_bool)]


def strided(values: torch.Tensor | None) -> Strided:
    return Strided(None, 0) if values is None else Strided(values.data_ptr(), values.stride(0))


def strided_integers(values: torch.Tensor | None) -> StridedIntegers:
    if values is None:
        return StridedIntegers(None, 0, False)
    return StridedIntegers(values.data_ptr(), values.stride(0), values.dtype == torch.int64)
