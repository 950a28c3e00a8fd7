"""Masks logits in place: the op ``apply_bitmask``, and a drop-in for xgrammar's."""

import operator
import warnings
from collections.abc import Iterable

import torch

from structout.masks.batch import MaskBatch
from structout.masks.bitmask import BITS_PER_WORD, bitmask_width
from structout.ops import kernels
from structout.ops.mask_arguments import mask_tensors

kernels.require()
_apply_bitmask = torch.ops.structout.apply_bitmask.default


def apply_bitmask(logits: torch.Tensor, bitmask: torch.Tensor | MaskBatch, rows: torch.Tensor | None = None) -> None:
    """Set the logits of disallowed tokens to -inf, in place.

    ``apply_bitmask(logits [N, V], bitmask [R, ceil(V / 32)], rows [N] | None) -> None``

    Equivalent to::

        allowed = unpack_bitmask(bitmask, logits.shape[-1])   # bool [R, V]
        if rows is not None:
            allowed = allowed[rows]                  # [N, V]; all True where rows == -1
        logits.masked_fill_(~allowed, float("-inf"))

    Args:
        logits: ``[N, V]`` or ``[V]`` (one row), float32, float16 or bfloat16. Any row
            stride and alignment.
        bitmask: int32 ``[R, W]`` or ``[W]`` on the device of logits. Token ``i`` is
            allowed where bit ``i & 31`` of word ``i >> 5`` is 1. Columns of logits past
            the last word are disallowed; bits past the last column are ignored. A
            :class:`structout.MaskBatch` is copied to the device; its own requests are
            then the rows of logits, in their order, unless ``rows`` says otherwise.
        rows: int32 or int64 ``[N]`` on the device of logits, the bitmask row that
            governs each logits row. -1 leaves a logits row unchanged. Any other id
            outside ``[0, R)`` disallows the whole row. Default: bitmask row i governs
            logits row i, and R must equal N.

    Raises:
        ValueError: a dtype, rank, shape, stride or device is wrong, or rows of logits
            overlap in memory. Nothing is written. In torch 2.15 it is a RuntimeError.
        TypeError: ``bitmask`` is no mask.
        RuntimeError: logits require a gradient, which this op does not have.

    ``torch.ops.structout.apply_bitmask`` is the same op for use in model code. It does
    not check for gradients: autograd neither records it nor notices its writes.

    Source: the layout of the bitmask is xgrammar's and llguidance's.
    docs/mask_contract.md defines every edge case.
    """
    if logits.requires_grad and torch.is_grad_enabled():
        raise RuntimeError("apply_bitmask has no gradient; call it under torch.inference_mode() or torch.no_grad()")
    if bitmask is None:
        raise TypeError(
            "apply_bitmask: bitmask must be a tensor or a MaskBatch, got None; without a mask, do not call it"
        )
    mask, rows = mask_tensors("apply_bitmask", logits, bitmask, rows)
    _apply_bitmask(logits, mask, rows)
    if logits.requires_grad and not logits.is_inference():
        torch.autograd.graph.increment_version(logits)


def apply_token_bitmask_inplace(
    logits: torch.Tensor,
    bitmask: torch.Tensor,
    *,
    vocab_size: int | None = None,
    indices: Iterable[int] | torch.Tensor | None = None,
    backend: str = "auto",
) -> None:
    """Apply a bitmask in place, with the semantics of xgrammar's function of this name.

    ``apply_token_bitmask_inplace(logits [N, V], bitmask [R, W], *, vocab_size,
    indices) -> None``

    To use it in place of xgrammar's, change the import and keep the call. Unlike
    :func:`apply_bitmask` it leaves columns from ``vocab_size`` on unchanged, and
    ``indices`` selects both the logits rows and the bitmask rows.

    Equivalent to::

        allowed = unpack_bitmask(bitmask, vocab_size)         # bool [R, vocab_size]
        for i in range(N) if indices is None else indices:
            logits[i, :vocab_size].masked_fill_(~allowed[i], float("-inf"))

    Args:
        logits: ``[N, V]`` or ``[V]``, float32, float16 or bfloat16.
        bitmask: int32 ``[R, W]`` or ``[W]``, on the device of logits.
        vocab_size: how many columns to mask. Default: ``min(V, 32 * W)``, with a
            warning if that is less than V.
        indices: the rows to mask: ints, or a 1-D int32 or int64 tensor. In a tensor,
            ids outside ``[0, N)`` are ignored. Default: all rows, and R must equal N.
        backend: ignored. The device and ``STRUCTOUT_BACKEND`` choose the kernels.

    Raises:
        ValueError: as :func:`apply_bitmask`, or ``vocab_size`` exceeds the columns of
            logits or the bits of bitmask. Nothing is written.
        IndexError: an int in ``indices`` is out of range. Nothing is written.
        RuntimeError: logits require a gradient.

    Source: xgrammar 0.2.8, ``xgrammar.apply_token_bitmask_inplace``.
    """
    if logits.dim() == 0 or bitmask.dim() == 0:
        raise ValueError("apply_token_bitmask_inplace: logits and bitmask must have 1 or 2 dimensions, got 0")
    columns, covered = logits.shape[-1], BITS_PER_WORD * bitmask.shape[-1]
    if vocab_size is None:
        vocab_size = min(columns, covered)
        if covered < columns:
            warnings.warn(
                f"the bitmask covers {covered} tokens and logits has {columns}: "
                f"logits[..., {covered}:] are left unmasked; "
                "allocate the bitmask for the whole vocabulary, or pass vocab_size",
                stacklevel=2,
            )
    elif not 0 <= vocab_size <= min(columns, covered):
        raise ValueError(
            f"apply_token_bitmask_inplace: vocab_size must be in [0, {min(columns, covered)}] for {columns} logits and "
            f"{covered} mask bits, got {vocab_size}"
        )
    rows = None
    if indices is not None:
        num_rows = logits.shape[0] if logits.dim() == 2 else 1
        num_masks = bitmask.shape[0] if bitmask.dim() == 2 else 1
        rows = _rows_at(indices, num_rows, num_masks, logits.device)
    apply_bitmask(logits[..., :vocab_size], bitmask[..., : bitmask_width(vocab_size)], rows)


def _rows_at(
    indices: Iterable[int] | torch.Tensor, num_rows: int, num_masks: int, device: torch.device
) -> torch.Tensor:
    """The row map in which each row of ``indices`` governs itself, and others are
    free."""
    if isinstance(indices, torch.Tensor):
        if indices.dim() != 1 or indices.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"indices must be a 1-D int32 or int64 tensor, got {indices.dtype} {list(indices.shape)}")
        chosen = indices.to(device=device, dtype=torch.int64)
        # Ids out of range go to a spare entry, so that the device never sees a bad
        # index.
        chosen = torch.where((chosen >= 0) & (chosen < num_rows), chosen, num_rows)
    else:
        limit = min(num_rows, num_masks)
        numbers = [operator.index(index) for index in indices]
        for index in numbers:
            if not 0 <= index < limit:
                raise IndexError(
                    f"indices must be in [0, {limit}) for {num_rows} logits and {num_masks} mask rows, got {index}"
                )
        chosen = torch.tensor(numbers, dtype=torch.int64, device=device)
    rows = torch.full((num_rows + 1,), -1, dtype=torch.int64, device=device)
    rows[chosen] = chosen
    return rows[:num_rows]
