"""Typed, documented doors to ``torch.ops.structout.*``, and the drop-in for xgrammar's."""

import warnings
from collections.abc import Sequence

import torch

from structout import backends
from structout.bitmask import BITS_PER_WORD, bitmask_width

backends.load()
_apply_bitmask = torch.ops.structout.apply_bitmask.default


def apply_bitmask(logits: torch.Tensor, bitmask: torch.Tensor, rows: torch.Tensor | None = None) -> None:
    """Set every logit that its row's mask disallows to -inf, in place.

    Equivalent to::

        allowed = unpack_bitmask(bitmask, logits.shape[-1])          # bool [R, V]
        allowed = allowed if rows is None else allowed[rows]         # and rows == -1 allow everything
        logits.masked_fill_(~allowed, -inf)

    Args:
        logits: ``[N, V]`` or ``[V]``, float32, float16 or bfloat16; any row stride and alignment. Never read.
        bitmask: int32 ``[R, W]`` or ``[W]``, bit ``i & 31`` of word ``i >> 5`` is 1 where token ``i`` is allowed.
            Columns past the last word are disallowed; bits past the last column are ignored.
        rows: int32 or int64 ``[N]``: the mask row that governs each logits row. -1 leaves the row alone; any other id
            outside ``[0, R)`` disallows the whole row. ``None``: row i governs row i, and R must equal N.

    Raises:
        ValueError: wrong dtype, rank, shape, stride or device; rows of logits that overlap. Nothing is written.
        RuntimeError: logits would need a gradient through this op, which has none.

    ``torch.ops.structout.apply_bitmask`` is the same op without this door, for use in model code.
    """
    if logits.requires_grad and torch.is_grad_enabled():
        raise RuntimeError("apply_bitmask has no gradient; call it under torch.inference_mode() or torch.no_grad()")
    _apply_bitmask(logits, bitmask, rows)


def apply_token_bitmask_inplace(
    logits: torch.Tensor,
    bitmask: torch.Tensor,
    *,
    vocab_size: int | None = None,
    indices: Sequence[int] | torch.Tensor | None = None,
) -> None:
    """xgrammar's function of this name, with its semantics: change the import, keep the call.

    Unlike :func:`apply_bitmask`, columns at or past ``vocab_size`` are left untouched, and ``indices`` selects both the
    logits row and the mask row.

    Args:
        logits: ``[N, V]`` or ``[V]``, float32, float16 or bfloat16.
        bitmask: int32 ``[R, W]`` or ``[W]``, on the device of logits.
        vocab_size: columns that the mask speaks for. Default ``min(V, 32 * W)``; warns if that is less than V.
        indices: logits rows to mask, each by the mask row of the same number; a sequence of ints, or an int32 or int64
            tensor (ids outside ``[0, N)`` in a tensor are ignored, in a sequence they raise). Default: all, R == N.

    Raises:
        ValueError, IndexError: as above, or vocab_size beyond what logits or bitmask hold. Nothing is written.

    Source: xgrammar 0.2.8, ``xgrammar.apply_token_bitmask_inplace``.
    """
    if logits.dim() == 0 or bitmask.dim() == 0:
        raise ValueError("apply_token_bitmask_inplace: logits and bitmask must have 1 or 2 dimensions, got 0")
    columns, covered = logits.shape[-1], BITS_PER_WORD * bitmask.shape[-1]
    if vocab_size is None:
        vocab_size = min(columns, covered)
        if covered < columns:
            warnings.warn(
                f"the bitmask covers {covered} tokens and logits has {columns}: logits[..., {covered}:] stay unmasked; "
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
    indices: Sequence[int] | torch.Tensor, num_rows: int, num_masks: int, device: torch.device
) -> torch.Tensor:
    """The row map in which each row of ``indices`` governs itself and the others are free."""
    if isinstance(indices, torch.Tensor):
        if indices.dim() != 1 or indices.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"indices must be a 1-D int32 or int64 tensor, got {indices.dtype} {list(indices.shape)}")
        chosen = indices.to(device=device, dtype=torch.int64)
        # One spare entry takes the ids that are out of range, so that the device never sees a bad index.
        chosen = torch.where((chosen >= 0) & (chosen < num_rows), chosen, num_rows)
    else:
        limit = min(num_rows, num_masks)
        for index in indices:
            if not 0 <= index < limit:
                raise IndexError(
                    f"indices must be in [0, {limit}) for {num_rows} logits and {num_masks} mask rows, got {index}"
                )
        chosen = torch.tensor(list(indices), dtype=torch.int64, device=device)
    rows = torch.full((num_rows + 1,), -1, dtype=torch.int64, device=device)
    rows[chosen] = chosen
    return rows[:num_rows]
