"""The layout of a token bitmask, int32 ``[rows, ceil(V / 32)]``.

Bit ``i & 31`` of word ``i >> 5`` is 1 where token ``i`` is allowed. The layout is
xgrammar's and llguidance's; docs/mask_contract.md defines every edge case.
"""

import numpy as np
import numpy.typing as npt

BITS_PER_WORD = 32


def bitmask_width(vocab_size: int) -> int:
    """The number of words in a mask row: ``ceil(vocab_size / 32)``."""
    if vocab_size < 0:
        raise ValueError(f"vocab_size must not be negative, got {vocab_size}")
    return -(-vocab_size // BITS_PER_WORD)


def get_bitmask_shape(batch_size: int, vocab_size: int) -> tuple[int, int]:
    """The shape of a batch's bitmask: ``(batch_size, ceil(vocab_size / 32))``."""
    return (batch_size, bitmask_width(vocab_size))


def allowed_tokens(mask: npt.NDArray[np.int32], vocab_size: int) -> npt.NDArray[np.bool_]:
    """One row of a bitmask as bools ``[vocab_size]``."""
    return np.unpackbits(mask.view(np.uint8), bitorder="little", count=vocab_size).view(np.bool_)
