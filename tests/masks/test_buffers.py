"""BufferRing: which buffer is reused when, and how buffers grow."""

import numpy as np
import pytest

from structout.masks.bitmask import bitmask_width
from structout.masks.buffers import BufferRing

VOCAB = 70


@pytest.mark.parametrize("num_buffers", [1, 2, 3])
def test_next_reuses_each_buffer_after_num_buffers_calls(num_buffers):
    ring = BufferRing(num_buffers, VOCAB, lambda *memory: memory)
    first_round = [ring.next(4) for _ in range(num_buffers)]
    leases = [buffer.lease for buffer in first_round]
    for i, buffer in enumerate(first_round):
        buffer.array.fill(i)
    assert [int(buffer.array[0, 0]) for buffer in first_round] == list(range(num_buffers))
    assert not any(lease.is_over for lease in leases)
    second_round = [ring.next(3) for _ in range(num_buffers)]
    assert second_round == first_round
    assert all(lease.is_over for lease in leases)
    row_bytes = 4 * bitmask_width(VOCAB)
    assert [buffer.native for buffer in second_round] == [(b.array.ctypes.data, row_bytes, 4) for b in first_round]


def test_next_for_a_larger_step_leaves_earlier_rows_valid():
    ring = BufferRing(1, VOCAB)
    small = ring.next(2)
    small.array.fill(7)
    larger = ring.next(3)
    larger.array.fill(8)
    assert (larger.array.dtype, larger.array.flags.c_contiguous) == (np.int32, True)
    assert (small.array == 7).all()
    assert small.lease.is_over
    assert ring.next(4) is larger  # it has grown to twice its size at once
