"""apply_token_bitmask_inplace, the drop-in for xgrammar's function, compared with
it."""

import random
import warnings

import pytest
import torch
import xgrammar

import structout
from support import apply_bitmask_cases as cases


def xgrammar_result(logits, mask, vocab_size=None, indices=None):
    """Apply xgrammar's function to the slices that its documentation of vocab_size
    names.

    Padding bits are set to 1 first.
    """
    columns = logits.shape[-1] if vocab_size is None else vocab_size
    covered, words = logits[..., :columns].contiguous(), mask[..., : structout.bitmask_width(columns)].clone()
    if words.shape[-1] * 32 > columns:
        words[..., -1] |= -1 << columns % 32
    xgrammar.apply_token_bitmask_inplace(covered, words, indices=indices)
    return torch.cat([covered, logits[..., columns:]], -1)


@pytest.mark.parametrize(
    "how", ["1-D", "2-D", "vocab_size", "list", "tensor", "int32 tensor", "empty list", "wide", "narrow"]
)
def test_drop_in_on_random_cases_matches_xgrammar(how):
    rng = random.Random(how)
    for _ in range(100):
        vocab_size, n = rng.randint(1, 200), rng.randint(1, 6)
        dtype = rng.choice(cases.DTYPES)
        words = structout.bitmask_width(vocab_size) + {"wide": 2, "narrow": -1}.get(how, 0)
        case = cases.make_case(rng, num_rows=n, vocab_size=vocab_size, dtype=dtype, mask_words=max(words, 0))
        ours, theirs, mask = case.logits.clone(), case.logits.clone(), case.bitmask.contiguous()
        arguments = {}
        if how == "1-D":
            ours, theirs, mask = ours[0], theirs[0], mask[0]
        elif how == "vocab_size":
            arguments["vocab_size"] = rng.randint(1, vocab_size)
        elif how in ("list", "tensor", "int32 tensor"):
            chosen = rng.sample(range(n), rng.randint(1, n))
            arguments["indices"] = (
                chosen if how == "list" else torch.tensor(chosen, dtype=torch.int32 if "32" in how else None)
            )
        elif how == "empty list":
            arguments["indices"] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            structout.apply_token_bitmask_inplace(ours, mask, **arguments)
            theirs = xgrammar_result(theirs, mask, **arguments)
        cases.assert_same_bits(ours, theirs, f"{how} {arguments} V={vocab_size}")


def test_drop_in_reads_an_iterator_once_and_rejects_fractions():
    logits, mask = torch.zeros(3, 40), torch.zeros(3, 2, dtype=torch.int32)
    structout.apply_token_bitmask_inplace(logits, mask, indices=iter([0, 2]), backend="auto")
    assert logits.isneginf().all(-1).tolist() == [True, False, True]
    with pytest.raises(TypeError):
        structout.apply_token_bitmask_inplace(logits, mask, indices=[0.7])


def test_warns_in_xgrammars_words_when_columns_are_left_unmasked():
    """xgrammar's own test of the function looks for "left unmasked"."""
    with pytest.warns(UserWarning, match=r"covers 32 tokens and logits has 40: logits\[..., 32:\] are left unmasked"):
        structout.apply_token_bitmask_inplace(torch.zeros(1, 40), torch.zeros(1, 1, dtype=torch.int32))


def test_drop_in_with_indices_accepts_more_mask_rows_than_logits_rows():
    logits, mask = torch.zeros(2, 40), torch.zeros(5, 2, dtype=torch.int32)
    structout.apply_token_bitmask_inplace(logits, mask, indices=[1])
    assert logits[0].eq(0).all()
    assert logits[1].isneginf().all()


def test_drop_in_ignores_out_of_range_ids_in_a_tensor():
    logits, mask = torch.zeros(2, 40), torch.zeros(2, 2, dtype=torch.int32)
    structout.apply_token_bitmask_inplace(logits, mask, indices=torch.tensor([-1, 2, 2**40, 0]))
    assert logits[0].isneginf().all()
    assert logits[1].eq(0).all()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"indices": [2]}, IndexError, r"indices must be in \[0, 2\) for 2 logits and 2 mask rows, got 2"),
        ({"indices": [-1]}, IndexError, "got -1"),
        (
            {"indices": torch.tensor([0.0])},
            ValueError,
            "indices must be a 1-D int32 or int64 tensor, got torch.float32",
        ),
        ({"vocab_size": 65}, ValueError, r"vocab_size must be in \[0, 40\] for 40 logits and 64 mask bits, got 65"),
        ({"vocab_size": -1}, ValueError, "got -1"),
    ],
)
def test_drop_in_with_invalid_arguments_raises_and_writes_nothing(arguments, error, message):
    logits = torch.zeros(2, 40)
    with pytest.raises(error, match=message):
        structout.apply_token_bitmask_inplace(logits, torch.zeros(2, 2, dtype=torch.int32), **arguments)
    assert logits.eq(0).all()
