"""apply_bitmask on each backend, as functions with the op's own signature."""

import ctypes
import functools

import torch

from support import ptx
from support.apply_bitmask_cases import Op


def get(name: str) -> Op:
    """Return the op of a backend.

    Args:
        name: "cpu", "cuda", "triton" (interpreted without a GPU), "cuda_on_cpu" (the
            .cu file on CPU threads, for CPU tensors) or "ptx" (what nvcc made of it).
    """
    if name in ("cpu", "cuda"):
        return torch.ops.structout.apply_bitmask.default
    if name == "triton":
        from structout.triton_kernels.apply_bitmask import apply_bitmask

        return apply_bitmask
    return ptx.on_ptx(_cuda_on_cpu, library, "apply_bitmask") if name == "ptx" else _cuda_on_cpu


class _Bitmask(ctypes.Structure):
    _fields_ = [("words", ctypes.c_void_p), ("num_rows", ctypes.c_int64), ("words_per_row", ctypes.c_int64),
                ("row_stride", ctypes.c_int64)]  # fmt: skip


class _RowMap(ctypes.Structure):
    _fields_ = [("ids", ctypes.c_void_p), ("stride", ctypes.c_int64), ("is_int64", ctypes.c_bool)]


class _Params(ctypes.Structure):
    """ApplyBitmaskParams of csrc/common/apply_bitmask.h."""

    _fields_ = [("logits", ctypes.c_void_p), ("num_rows", ctypes.c_int64), ("vocab_size", ctypes.c_int64),
                ("row_stride", ctypes.c_int64), ("element_bytes", ctypes.c_int32), ("neg_inf", ctypes.c_uint32),
                ("bitmask", _Bitmask), ("rows", _RowMap)]  # fmt: skip


_NEG_INF = {torch.float32: 0xFF800000, torch.float16: 0xFC00, torch.bfloat16: 0xFF80}


@functools.cache
def library() -> ctypes.CDLL:
    return ctypes.CDLL(str(ptx.program("apply_bitmask")))


def _cuda_on_cpu(logits: torch.Tensor, bitmask: torch.Tensor, rows: torch.Tensor | None = None) -> None:
    torch.ops.structout._check_apply_bitmask(logits, bitmask, rows)
    logits = logits if logits.dim() == 2 else logits.unsqueeze(0)
    bitmask = bitmask if bitmask.dim() == 2 else bitmask.unsqueeze(0)
    if logits.numel() == 0:
        return
    row_map = _RowMap(None, 0, False)
    if rows is not None:
        row_map = _RowMap(rows.data_ptr(), rows.stride(0), rows.dtype == torch.int64)
    params = _Params(
        logits.data_ptr(), *logits.shape, logits.stride(0), logits.element_size(), _NEG_INF[logits.dtype],
        _Bitmask(bitmask.data_ptr(), *bitmask.shape, bitmask.stride(0)), row_map,
    )  # fmt: skip
    num_sms = logits.shape[1] % 2  # both kernels: for 0 multiprocessors no batch is small
    library().apply_bitmask_on_host(ctypes.byref(params), num_sms)
