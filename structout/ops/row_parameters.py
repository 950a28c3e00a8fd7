"""Per-row parameters of the ops, given as numbers or tensors."""

import functools
import math
import numbers
import operator

import torch

_LARGEST_FLOAT32 = 3.4028234663852886e38
_ROUNDS_TO_ZERO = 2.0**-150  # half of the smallest positive float32


def row_parameters(
    logits: torch.Tensor,
    temperature: torch.Tensor | float,
    top_k: torch.Tensor | int | None,
    top_p: torch.Tensor | float | None,
    min_p: torch.Tensor | float | None,
    seed: torch.Tensor | int,
    position: torch.Tensor | int,
) -> tuple[torch.Tensor | None, ...]:
    """The per-row parameters of the op: numbers become tensors ``[N]`` of stride 0.

    Raises:
        ValueError: a number is out of range.
        TypeError: a parameter is neither a tensor nor a number.
    """
    op = "masked_sample"
    return (
        float_parameter(op, "temperature", temperature, logits),
        None if top_k is None else integer_parameter(op, "top_k", top_k, logits, is_kept=True),
        None if top_p is None else float_parameter(op, "top_p", top_p, logits),
        None if min_p is None else float_parameter(op, "min_p", min_p, logits),
        integer_parameter(op, "seed", seed, logits),
        integer_parameter(op, "position", position, logits),
    )


def empty_ids(logits: torch.Tensor) -> torch.Tensor:
    """An uninitialized int64 ``[N]`` tensor for the ids of these logits."""
    return logits.new_empty(logits.shape[0] if logits.dim() == 2 else 1, dtype=torch.int64)


def float_parameter(
    op: str, name: str, value: torch.Tensor | float, logits: torch.Tensor, *, minimum: float = 0.0
) -> torch.Tensor:
    """Return a tensor as it is, and a number as a float32 tensor ``[N]`` of stride 0 on
    the logits' device.

    Raises:
        ValueError: the number is below ``minimum``, infinite, NaN or no float32.
        TypeError: the parameter is neither a tensor nor a number.
    """
    if isinstance(value, torch.Tensor):
        return value
    _check_float(op, name, value, minimum)
    return _expanded(float(value), torch.float32, logits, is_kept=True)


def integer_parameter(
    op: str, name: str, value: torch.Tensor | int, logits: torch.Tensor, *, is_kept: bool = False
) -> torch.Tensor:
    """Return a tensor as it is, and an int as an int64 tensor ``[N]`` of stride 0 on
    the logits' device.

    Args:
        op: the op's name, for messages.
        name: the parameter's name. A ``seed`` may be a uint64.
        value: the parameter.
        logits: ``[N, V]`` or ``[V]``.
        is_kept: whether later calls are likely to pass the same int. 0 is always kept:
            it is the default of seed and position.

    Raises:
        ValueError: the int is out of range.
        TypeError: the parameter is neither a tensor nor an int.
    """
    if isinstance(value, torch.Tensor):
        return value
    number = _as_int64(op, name, value)
    return _expanded(number, torch.int64, logits, is_kept=is_kept or number == 0)


def _expanded(value: float, dtype: torch.dtype, logits: torch.Tensor, *, is_kept: bool) -> torch.Tensor:
    num_rows = logits.shape[0] if logits.dim() == 2 else 1
    if is_kept and not _is_recorded(logits):
        return _kept(value, math.copysign(1.0, value), dtype, logits.device, num_rows)
    return torch.full((1,), value, dtype=dtype, device=logits.device).expand(num_rows)


def _is_recorded(logits: torch.Tensor) -> bool:
    """True if the call is traced or captured. Then it must make its own tensors: a
    cached one would belong to the trace, or to the memory of the graph."""
    if torch.compiler.is_compiling() or type(logits) is not torch.Tensor:
        return True
    # This check comes last, because a trace cannot contain it.
    return logits.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


@functools.lru_cache(maxsize=1024)
def _kept(value: float, sign: float, dtype: torch.dtype, device: torch.device, num_rows: int) -> torch.Tensor:
    """A tensor ``[num_rows]`` of one value that is made once. ``sign`` tells 0 from -0,
    which are equal."""
    constant = torch.full((1,), value, dtype=dtype, device=device)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()  # other streams will read it
    return constant.expand(num_rows)


def _check_float(op: str, name: str, value: float, minimum: float) -> None:
    if not isinstance(value, (float, int, numbers.Real)):
        raise TypeError(
            f"{op}: {name} must be a number or a float32 tensor with one value per row, got {type(value).__name__}"
        )
    if not minimum <= value < float("inf") or value == -float("inf"):
        bound = "" if minimum == -float("inf") else f" of at least {minimum:g}"
        raise ValueError(f"{op}: {name} must be a finite number{bound}, got {value}")
    if abs(value) > _LARGEST_FLOAT32:
        raise ValueError(f"{op}: {name} must fit float32: at most {_LARGEST_FLOAT32:.7g}, got {value}")
    if name == "temperature" and 0 < value <= _ROUNDS_TO_ZERO:
        raise ValueError(
            f"{op}: temperature {value} rounds to 0 in float32, which is greedy; pass 0, or at least 1e-45"
        )


def _as_int64(op: str, name: str, value: int) -> int:
    if not isinstance(value, (int, numbers.Integral)) and not hasattr(value, "__index__"):
        raise TypeError(
            f"{op}: {name} must be an int or an int64 tensor with one value per row, got {type(value).__name__}"
        )
    number = operator.index(value)
    largest = 2**64 - 1 if name == "seed" else 2**63 - 1  # engines hold 64-bit seeds as uint64
    if not -(2**63) <= number <= largest:
        raise ValueError(f"{op}: {name} must be from -2^63 to {largest}, got {number}")
    return number - 2**64 if number >= 2**63 else number
