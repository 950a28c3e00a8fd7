"""The meaning of every op, in plain torch: slow, readable, on any device. Tests, benches and docs answer to it."""

import torch

from structout.bitmask import unpack_bitmask


def apply_bitmask(logits: torch.Tensor, bitmask: torch.Tensor, rows: torch.Tensor | None = None) -> None:
    """``structout.apply_bitmask``: -inf, in place, wherever the row's mask does not allow."""
    logits = logits if logits.dim() == 2 else logits.unsqueeze(0)
    allowed = unpack_bitmask(bitmask if bitmask.dim() == 2 else bitmask.unsqueeze(0), logits.shape[-1])
    if rows is not None:
        nothing, everything = torch.zeros_like(allowed[:1]), torch.ones_like(allowed[:1])
        if allowed.shape[0] == 0:
            nothing = torch.zeros(1, logits.shape[-1], dtype=torch.bool, device=logits.device)
            everything = ~nothing
        known = (rows >= 0) & (rows < allowed.shape[0])
        table = torch.cat([allowed, nothing, everything])
        fallback = torch.where(rows == -1, allowed.shape[0] + 1, allowed.shape[0])
        allowed = table[torch.where(known, rows, fallback).long()]
    logits.masked_fill_(~allowed, float("-inf"))
