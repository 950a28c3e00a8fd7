"""Token bitmasks as tensors: allocate, pack and unpack them.

``allocate_token_bitmask``, ``reset_token_bitmask`` and ``bitmask_dtype`` have
xgrammar's names, so that an engine can import them from here.
"""

import torch

from structout.masks.bitmask import BITS_PER_WORD, bitmask_width, get_bitmask_shape

bitmask_dtype = torch.int32


def allocate_token_bitmask(batch_size: int, vocab_size: int, *, pin_memory: bool | None = None) -> torch.Tensor:
    """A CPU bitmask, int32 ``[batch_size, ceil(vocab_size / 32)]``, that allows all
    tokens.

    Args:
        batch_size: the number of rows.
        vocab_size: the number of tokens.
        pin_memory: whether to pin it, so that its copy to a device can be asynchronous.
            Default: where a CUDA device is available.
    """
    if pin_memory is None:
        pin_memory = torch.cuda.is_available()
    shape = get_bitmask_shape(batch_size, vocab_size)
    return torch.full(shape, -1, dtype=bitmask_dtype, pin_memory=pin_memory)


def reset_token_bitmask(bitmask: torch.Tensor) -> None:
    """Allow all tokens, in place."""
    bitmask.fill_(-1)


def pack_bitmask(allowed: torch.Tensor) -> torch.Tensor:
    """Pack a bool tensor ``[..., V]`` (True: allowed) into a bitmask.

    Returns:
        int32 ``[..., ceil(V / 32)]`` on the same device, with padding bits 0.

    Raises:
        TypeError: ``allowed`` is not bool.
    """
    if allowed.dtype != torch.bool:
        raise TypeError(f"allowed must be a bool tensor, got {allowed.dtype}; compare first, e.g. scores > 0")
    vocab_size = allowed.shape[-1]
    width = bitmask_width(vocab_size)
    padded = torch.nn.functional.pad(allowed, (0, width * BITS_PER_WORD - vocab_size))
    bits = padded.reshape(*allowed.shape[:-1], width, BITS_PER_WORD).to(torch.int32)
    shifts = torch.arange(BITS_PER_WORD, dtype=torch.int32, device=allowed.device)
    # The bits are disjoint, so their sum is their union. Bit 31 becomes the sign of the
    # int32.
    return torch.sum(bits << shifts, -1, dtype=torch.int32)


def unpack_bitmask(bitmask: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Unpack a bitmask, int32 ``[..., W]``, into a bool tensor.

    Returns:
        bool ``[..., vocab_size]`` (True: allowed) on the same device. Tokens past the
        last word are not allowed.

    Raises:
        TypeError: ``bitmask`` is not int32.
    """
    if bitmask.dtype != bitmask_dtype:
        raise TypeError(f"bitmask must be int32, got {bitmask.dtype}; pack_bitmask makes one from bools")
    shifts = torch.arange(BITS_PER_WORD, dtype=torch.int32, device=bitmask.device)
    bits = ((bitmask.unsqueeze(-1) >> shifts) & 1).flatten(-2).bool()[..., :vocab_size]
    return torch.nn.functional.pad(bits, (0, vocab_size - bits.shape[-1]))


def count_allowed(bitmask: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """The number of allowed tokens in each row of a bitmask, int32 ``[..., W]``.

    Returns:
        int64 ``[...]``. Padding bits do not count.
    """
    return unpack_bitmask(bitmask, vocab_size).sum(-1)
