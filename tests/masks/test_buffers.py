"""BufferRing: which buffer is reused when, and how buffers grow."""

import pytest
import torch

from structout.masks.bitmask import bitmask_width
from structout.masks.buffers import BufferRing

VOCAB = 70


@pytest.mark.parametrize("num_buffers", [1, 2, 3])
def test_next_rows_reuses_each_buffer_after_num_buffers_calls(num_buffers):
    ring = BufferRing(num_buffers, VOCAB)
    first_round = [ring.next_rows(4) for _ in range(num_buffers)]
    for i, rows in enumerate(first_round):
        rows.fill_(i)
    assert [int(rows[0, 0]) for rows in first_round] == list(range(num_buffers))
    second_round = [ring.next_rows(3) for _ in range(num_buffers)]
    assert [rows.data_ptr() for rows in second_round] == [rows.data_ptr() for rows in first_round]
    assert [rows.shape for rows in second_round] == [(3, bitmask_width(VOCAB))] * num_buffers


def test_next_rows_of_a_larger_step_leaves_earlier_rows_valid():
    ring = BufferRing(1, VOCAB)
    rows = ring.next_rows(2)
    rows.fill_(7)
    larger = ring.next_rows(3)
    larger.fill_(8)
    assert (larger.dtype, larger.is_contiguous()) == (torch.int32, True)
    assert rows.eq(7).all()
    assert ring.next_rows(4).data_ptr() == larger.data_ptr()  # it has grown to twice its size at once
    assert ring.next_rows(0).shape == (0, bitmask_width(VOCAB))


def test_next_rows_in_inference_mode_returns_normal_tensors():
    ring = BufferRing(2, VOCAB)
    with torch.inference_mode():
        assert not ring.next_rows(2).is_inference()
