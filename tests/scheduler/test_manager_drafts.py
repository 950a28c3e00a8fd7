"""Drafts, bounds and draft trees in ``grammar_bitmask``: rows, masks and errors."""

import numpy as np
import pytest
import torch

from structout import StructuredOutputManager, StructuredOutputsParams
from support.managers import STOP, TOKENIZER, V, add, ids_of

FREE = np.full(V // 32, -1, dtype=np.int32)


A, B, C = (ids_of(letter)[0] for letter in "abc")


@pytest.fixture(params=["native", "xgrammar"])
def manager(request):
    with StructuredOutputManager(TOKENIZER, V) as manager:
        for name in ("r", "other"):
            add(manager, name, regex="(a|b)(a|b)c", backend=request.param)
        yield manager


def rows_of(batch, request_id):
    i = batch.request_ids.index(request_id)
    return batch.bitmask[batch.row_indptr[i] : batch.row_indptr[i + 1]].copy()


def masks_along(manager, tokens):
    """The mask before each of ``tokens`` and after the last, one step at a time."""
    masks = [rows_of(manager.grammar_bitmask(["r"]), "r")[0]]
    for token in tokens:
        assert manager.accept_tokens("r", [token])
        masks.append(rows_of(manager.grammar_bitmask(["r"]), "r")[0])
    manager.rollback("r", len(tokens))
    return masks


def test_grammar_bitmask_with_and_without_drafts_gives_the_masks_along_the_drafts(manager):
    masks = masks_along(manager, [A, B])
    batch = manager.grammar_bitmask(["other", "r", "nobody"], {"r": [A, B], "nobody": [A]}, strict=False)
    assert batch.row_indptr.tolist() == [0, 1, 4, 4]
    assert batch.num_acceptable_drafts.tolist() == [0, 2, 0]
    assert (rows_of(batch, "r") == masks).all()
    assert (rows_of(batch, "other") == masks[0]).all()
    assert batch.rows_for(["r", "nobody", "other"], [3, 2, 1]).tolist() == [1, 2, 3, -1, -1, 0]
    assert batch.rows_for(["r"], [2]).tolist() == [1, 2]  # a worker that verified fewer drafts


def test_drafts_after_stop_token_or_minus_one_are_free_and_after_bad_draft_repeat(manager):
    masks = masks_along(manager, [A, B, C])
    batch = manager.grammar_bitmask(["r"], {"r": [A, B, C, STOP, A]})
    assert batch.num_acceptable_drafts.tolist() == [4]
    assert (rows_of(batch, "r") == [*masks, FREE, FREE]).all()
    batch = manager.grammar_bitmask(["r"], {"r": [A, -1, B]})
    assert batch.num_acceptable_drafts.tolist() == [1]
    assert (rows_of(batch, "r") == [*masks[:2], FREE, FREE]).all()
    batch = manager.grammar_bitmask(["r"], {"r": [A, C, B]})
    assert batch.num_acceptable_drafts.tolist() == [1]
    assert (rows_of(batch, "r") == [*masks[:2], masks[1], masks[1]]).all()


def test_drafts_of_terminated_request_own_no_rows(manager):
    assert manager.accept_tokens("r", [A, B, C, STOP])
    batch = manager.grammar_bitmask(["r"], {"r": [A, A]})
    assert batch.row_indptr.tolist() == [0, 0]
    assert batch.rows_for(["r"], [3]).tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    ("bounds", "free_rows", "grammar_tokens"),
    [
        ((0, 0), 0, [A, B]),
        ((1, 1), 1, [B]),
        ((2, 2), 2, []),
        ((0, 2), 2, [A, B]),
        ((2, 0), 2, []),
        ((0, 9), 3, [A, B]),
        ((3, 3), 3, []),
        ((3, 0), 3, []),
    ],
)
def test_bounds_set_where_the_grammar_and_the_masks_start(manager, bounds, free_rows, grammar_tokens):
    masks = masks_along(manager, grammar_tokens)
    expected = [*[FREE] * (3 - len(masks)), *masks]
    expected[:free_rows] = [FREE] * free_rows
    batch = manager.grammar_bitmask(["r", "other"], {"r": [A, B]}, bounds={"r": bounds})
    assert (rows_of(batch, "r") == expected).all()
    assert (rows_of(batch, "other") == masks[0]).all()
    assert batch.num_acceptable_drafts.tolist() == [2, 0]


def test_bounds_without_drafts_mask_the_only_row_or_free_it(manager):
    masks = masks_along(manager, [])
    assert (rows_of(manager.grammar_bitmask(["r"], bounds={"r": (0, 0)}), "r") == masks).all()
    assert (rows_of(manager.grammar_bitmask(["r"], bounds={"r": (0, 1)}), "r") == [FREE]).all()


def test_draft_tree_gives_each_node_the_mask_of_its_path(manager):
    """Node 0, below it a and b; below a: c, which is not allowed, and b with c and -1
    below it."""
    masks = masks_along(manager, [A, B, C])
    tokens = [-1, A, B, C, B, C, -1]
    next_token = [1, 3, -1, -1, 5, -1, -1]
    next_sibling = [-1, 2, -1, 4, -1, 6, -1]
    batch = manager.grammar_bitmask(["r"], {"r": tokens}, draft_trees={"r": (next_token, next_sibling)})
    assert (rows_of(batch, "r") == [masks[0], masks[1], masks[1], masks[1], masks[2], masks[3], FREE]).all()
    assert batch.num_acceptable_drafts.tolist() == [4]


@pytest.mark.parametrize(
    ("drafts", "bounds", "tree", "message"),
    [
        ([A, B], (-1, 0), None, "bounds must not be negative"),
        ([A, B], (0, -1), None, "bounds must not be negative"),
        (
            [A, B],
            None,
            ([1, -1, -1], [-1, -1, -1]),
            "a tree of 2 drafts needs 2 entries in next_token and in next_sibling, got 3 and 3",
        ),
        ([A, B], None, ([1, 0], [-1, -1]), "must form a tree"),
        ([A, B], None, ([7, -1], [-1, -1]), "must form a tree"),
    ],
)
def test_invalid_drafts_close_only_their_requests_rows(manager, drafts, bounds, tree, message):
    batch = manager.grammar_bitmask(
        ["other", "r"],
        {"r": drafts},
        bounds={"r": bounds} if bounds else None,
        draft_trees={"r": tree} if tree else None,
    )
    assert set(batch.errors) == {"r"}
    assert message in batch.errors["r"]
    assert not rows_of(batch, "r").any()
    assert rows_of(batch, "other").any()
    with pytest.raises(ValueError, match=r"num_tokens must be in \[0, 0\], got 1"):  # the grammar has not advanced
        manager.rollback("r", 1)


def test_grammar_bitmask_in_inference_mode_fills_free_and_constrained_rows():
    with StructuredOutputManager(TOKENIZER, V) as manager:
        for name in "ab":
            manager.add_request(name, StructuredOutputsParams(regex="a+"), constrain_after=[7])
            manager.wait_ready(name, 30)
        with torch.inference_mode():
            batch = manager.grammar_bitmask(["a", "b"], {"a": [A], "b": [7, A]})
        assert not batch.errors
        assert batch.num_acceptable_drafts.tolist() == [1, 2]
