"""The mask that a caller gives: a tensor on the device of the logits, or the masks of a
step as they come from the manager."""

from typing import Any

import torch

from structout.masks.batch import MaskBatch


def mask_tensors(
    op: str, logits: torch.Tensor, bitmask: Any, rows: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Check a mask, and copy the masks of a step to the device of the logits.

    Args:
        op: for messages.
        logits: ``[N, V]`` or ``[V]``.
        bitmask: a tensor, a :class:`structout.MaskBatch` or None.
        rows: the row map, or None. Without one, the rows of logits follow the requests
            of a ``MaskBatch`` in order: each has as many as it has masks, or one.

    Returns:
        the bitmask and the row map as tensors.

    Raises:
        TypeError: ``bitmask`` is neither of these.
        ValueError: it is on another device, or the batch has not N rows.
        StaleMasksError: the masks' buffer has been filled again.
    """
    if isinstance(bitmask, MaskBatch):
        if rows is None:
            rows = bitmask.rows_in_order(logits.shape[0] if logits.dim() == 2 else 1).to(logits.device)
        return bitmask.to(logits.device), rows
    if bitmask is None:
        return None, rows
    if not isinstance(bitmask, torch.Tensor):
        hint = "torch.from_numpy makes one" if type(bitmask).__module__ == "numpy" else "pack_bitmask makes one"
        raise TypeError(f"{op}: bitmask must be a tensor or a MaskBatch, got a {type(bitmask).__name__}; {hint}")
    if bitmask.device != logits.device:
        raise ValueError(
            f"{op}: bitmask must be on the device of logits ({logits.device}), got {bitmask.device}; move it with "
            "bitmask.to(logits.device)"
        )
    return bitmask, rows
