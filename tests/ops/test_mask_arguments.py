"""Masks of a step given to the ops as they come from the manager."""

import numpy as np
import pytest
import torch

import structout
from structout import MaskBatch, MaskedSampler, SamplingParams

V = 70


@pytest.fixture
def batch():
    """Three requests: one mask, none, and two."""
    bits = torch.zeros(3, V, dtype=torch.bool)
    bits[0, 5] = bits[1, 6] = bits[2, 7] = True
    bitmask = structout.pack_bitmask(bits).numpy()
    return MaskBatch(request_ids=("a", "b", "c"), row_indptr=np.array([0, 1, 1, 3], dtype=np.int32), bitmask=bitmask)


@pytest.fixture
def logits():
    logits = torch.zeros(4, V)
    logits[1, 9] = 1.0
    return logits


def test_ops_take_the_masks_of_a_step_in_the_order_of_its_requests(batch, logits):
    expected = [5, 9, 6, 7]
    assert structout.masked_sample(logits, batch, temperature=0).tolist() == expected
    assert structout.masked_sample_logprobs(logits, batch, temperature=0)[0].tolist() == expected
    for masks in (batch, structout.DeviceMasks.of(batch, ["a", "b", "c"], "cpu", [1, 1, 2])):
        output = MaskedSampler(top_n=1)(logits, masks, SamplingParams(temperature=0))
        assert (output.ids.tolist(), output.top_ids[:, 0].tolist()) == (expected, expected)
    structout.apply_bitmask(logits, batch)
    assert logits.argmax(-1).tolist() == expected
    assert (logits > -float("inf")).sum(-1).tolist() == [1, V, 1, 1]


def test_ops_take_the_masks_of_a_step_with_a_row_map(batch, logits):
    rows = torch.tensor([2, -1, 0, 0])
    assert structout.masked_sample(logits, batch, rows, temperature=0).tolist() == [7, 9, 5, 5]
    assert structout.masked_sample(logits[0], batch, rows[:1], temperature=0).tolist() == [7]


@pytest.mark.parametrize("op", [structout.masked_sample, structout.masked_sample_logprobs, structout.apply_bitmask])
@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (np.zeros((4, 3), dtype=np.int32), TypeError, "got a ndarray; torch.from_numpy makes one"),
        ([[1]], TypeError, "got a list; pack_bitmask makes one"),
        (
            torch.zeros(4, 3, dtype=torch.int32, device="meta"),
            ValueError,
            r"bitmask must be on the device of logits \(cpu\), got meta; move it with bitmask.to\(logits.device\)",
        ),
    ],
)
def test_ops_refuse_what_is_no_mask_in_one_line(op, mask, error, message, logits):
    before = logits.clone()
    with pytest.raises(error, match=message) as raised:
        op(logits, mask)
    assert "\n" not in str(raised.value)
    assert torch.equal(logits, before)


def test_apply_bitmask_without_a_mask_raises(logits):
    with pytest.raises(TypeError, match="got None"):
        structout.apply_bitmask(logits, None)


def test_ops_refuse_a_batch_of_another_size(batch, logits):
    with pytest.raises(ValueError, match="the 3 requests have 4 logits rows, expected 3"):
        structout.masked_sample(logits[:3], batch)
    with pytest.raises(ValueError, match="the 3 requests have 4 logits rows, expected 1"):
        structout.apply_bitmask(logits[0], batch)
