"""Packing, unpacking and counting bitmasks."""

import pytest
import torch
import xgrammar

import structout


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 64, 100, 50257])
def test_unpack_bitmask_inverts_pack_bitmask(vocab_size):
    allowed = torch.rand(3, vocab_size) < 0.5
    bitmask = structout.pack_bitmask(allowed)
    assert bitmask.dtype == torch.int32
    assert bitmask.shape == structout.get_bitmask_shape(3, vocab_size) == xgrammar.get_bitmask_shape(3, vocab_size)
    assert torch.equal(structout.unpack_bitmask(bitmask, vocab_size), allowed)
    assert torch.equal(structout.count_allowed(bitmask, vocab_size), allowed.sum(-1))


def test_pack_bitmask_stores_least_significant_bit_first():
    allowed = torch.zeros(70, dtype=torch.bool)
    allowed[[0, 31, 33, 69]] = True
    assert structout.pack_bitmask(allowed).tolist() == [1 - 2**31, 2, 1 << 5]


def test_tokens_past_the_mask_are_disallowed_and_padding_bits_not_counted():
    full = torch.full((1, 2), -1, dtype=torch.int32)
    assert structout.unpack_bitmask(full, 70)[0].tolist() == [True] * 64 + [False] * 6
    assert structout.count_allowed(full, 40).tolist() == [40]


def test_allocated_and_reset_bitmasks_allow_every_token():
    bitmask = structout.allocate_token_bitmask(2, 33)
    assert bitmask.tolist() == [[-1, -1], [-1, -1]]
    assert bitmask.is_pinned() == torch.cuda.is_available()
    bitmask.zero_()
    structout.reset_token_bitmask(bitmask)
    assert bitmask.tolist() == [[-1, -1], [-1, -1]]


def test_bitmask_functions_with_wrong_dtypes_raise():
    with pytest.raises(TypeError, match=r"allowed must be a bool tensor, got torch\.float32"):
        structout.pack_bitmask(torch.zeros(3))
    with pytest.raises(TypeError, match=r"bitmask must be int32, got torch\.int64"):
        structout.unpack_bitmask(torch.zeros(3, dtype=torch.int64), 3)
    with pytest.raises(ValueError, match="vocab_size must not be negative"):
        structout.bitmask_width(-1)
