"""The engine's apply_bitmask for numpy rows is the op on their tensor, bit for bit."""

import numpy as np
import pytest
import torch

import structout
from structout.grammar.native.extension import core

POISON = np.float32(7)


def masked_by_op(logits, bitmask):
    """What the op makes of a row."""
    expected = torch.from_numpy(logits.copy())
    structout.apply_bitmask(expected, torch.from_numpy(bitmask.copy()).unsqueeze(0))
    return expected.numpy()


@pytest.mark.parametrize("stride", [1, 2, -1, -3])
@pytest.mark.parametrize("first", [1, 2])
def test_rows_of_any_stride_are_masked_in_place_and_nothing_beside_them(stride, first):
    draw = np.random.default_rng(first)
    for vocab_size in [*range(34), *range(128, 161), 4097, 40_000]:
        num_words = max(0, -(-vocab_size // 32) + int(draw.integers(-1, 2)))  # too few, too many or enough
        bitmask = draw.integers(-(2**31), 2**31, num_words, dtype=np.int32)
        bitmask[draw.random(num_words) < 0.3] = draw.choice([0, -1])
        buffer = np.full(first + vocab_size * abs(stride) + 1, POISON)
        row = buffer[first : first + vocab_size * abs(stride)][::stride]
        row[:] = draw.standard_normal(vocab_size)
        expected = masked_by_op(row, bitmask) if vocab_size else row
        beside = buffer.copy()
        beside[first : first + vocab_size * abs(stride)][::stride] = expected
        core().apply_bitmask(row, bitmask)
        assert buffer.tobytes() == beside.tobytes(), vocab_size


def read_only(row):
    row.flags.writeable = False
    return row


ROW, MASK = np.zeros(64, dtype=np.float32), np.zeros(2, dtype=np.int32)


@pytest.mark.parametrize(
    ("logits", "bitmask", "error", "message"),
    [
        (ROW.astype(np.float64), MASK, ValueError, r"logits must be an aligned float32 array of one .* got float64 \("),
        (ROW.astype(">f4"), MASK, ValueError, "got >f4"),
        (ROW.reshape(2, 32), MASK, ValueError, r"got float32 \(2, 32\)"),
        (np.zeros(257, np.uint8)[1:].view(np.float32), MASK, ValueError, r"aligned float32 .* got float32 \(64,\)"),
        (read_only(ROW.copy()), MASK, ValueError, "logits is written in place, but it is read-only"),
        (ROW, MASK.astype(np.int64), ValueError, r"bitmask must be an aligned int32 array .* got int64 \(2,\)"),
        (ROW, MASK.reshape(1, 2), ValueError, r"got int32 \(1, 2\)"),
        (ROW, np.zeros(4, np.int32)[::2], ValueError, "bitmask must be contiguous; copy it"),
        (ROW.tolist(), MASK, TypeError, "numpy.ndarray"),
    ],
)
def test_what_is_no_row_or_no_mask_raises_and_nothing_is_written(logits, bitmask, error, message):
    with pytest.raises(error, match=message):
        core().apply_bitmask(logits, bitmask)
    assert not np.isinf(np.asarray(logits)).any()
