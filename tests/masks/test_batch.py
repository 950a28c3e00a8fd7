import pickle
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

import structout
from structout import MaskBatch


def batch() -> MaskBatch:
    """a owns row 0, b none, c rows 1 and 2."""
    return MaskBatch(
        request_ids=("a", "b", "c"),
        row_indptr=np.array([0, 1, 1, 3], dtype=np.int32),
        bitmask=np.arange(6, dtype=np.int32).reshape(3, 2),
    )


def test_rows_for_follows_the_workers_order():
    rows = batch().rows_for(["c", "free", "b", "a"])
    assert rows.tolist() == [1, -1, -1, 0]
    assert rows.dtype.is_signed
    assert rows.element_size() == 4


def test_rows_for_with_several_logits_or_none_per_request():
    assert batch().rows_for(["free", "c", "a", "b"], [3, 2, 0, 1]).tolist() == [-1, -1, -1, 1, 2, -1]


def test_rows_for_with_more_logits_than_masks_raises():
    with pytest.raises(ValueError, match="'a' has 2 logits rows but only 1 mask rows"):
        batch().rows_for(["a"], [2])
    with pytest.raises(ValueError, match="one entry for each of the 1 requests, got 2"):
        batch().rows_for(["a"], [1, 1])


def test_rows_for_with_another_number_of_rows_than_expected_raises():
    assert batch().rows_for(["c", "a"], [2, 1], expected_rows=3).tolist() == [1, 2, 0]
    with pytest.raises(ValueError, match="the 2 requests have 2 logits rows, expected 3; pass num_logits_per_request"):
        batch().rows_for(["c", "a"], expected_rows=3)


def test_renamed_batch_has_the_rows_and_errors_of_the_old_ids():
    masks = replace(batch(), errors={"c": "a dead end"})
    renamed = masks.renamed(["x", "a", "y"])
    assert renamed.rows_for(["a", "y", "x"]).tolist() == [-1, 1, 0]
    assert renamed.errors == {"y": "a dead end"}
    for names in (["x", "y"], ["x", "x", "y"], ["a", "b", "c", "d"]):
        with pytest.raises(ValueError, match="a different id for each of the 3 requests"):
            masks.renamed(names)


def test_dense_masks_follow_the_workers_batch_and_free_rows_allow_everything():
    masks = batch()
    dense = masks.dense(["c", "free", "b", "a"], [2, 1, 2, 1])
    assert dense.tolist() == [[2, 3], [4, 5], [-1, -1], [-1, -1], [-1, -1], [0, 1]]
    assert dense.dtype == np.int32
    assert not np.shares_memory(dense, masks.bitmask)
    assert masks.dense([]).shape == (0, 2)
    empty = MaskBatch(request_ids=(), row_indptr=np.zeros(1, dtype=np.int32), bitmask=np.zeros((0, 2), dtype=np.int32))
    assert empty.dense(["free"]).tolist() == [[-1, -1]]


def test_pickled_batch_keeps_its_masks_and_rows():
    copy = pickle.loads(pickle.dumps(batch()))  # noqa: S301 - our own bytes
    assert copy.rows_for(["c"]).tolist() == [1]
    assert copy.to("cpu").tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.filterwarnings("error")
def test_masks_from_another_process_are_tensors_without_a_copy_or_a_warning():
    received = np.frombuffer(batch().bitmask.tobytes(), dtype=np.int32).reshape(3, 2)
    assert not received.flags.writeable
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        masks = replace(batch(), bitmask=received).to("cpu")
    finally:
        torch.set_warn_always(always)
    assert masks.data_ptr() == received.ctypes.data
    del received
    assert masks.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_batch_without_rows_leaves_logits_unchanged():
    empty = MaskBatch(
        request_ids=("free",), row_indptr=np.zeros(2, dtype=np.int32), bitmask=np.zeros((0, 2), dtype=np.int32)
    )
    logits = torch.zeros(1, 40)
    structout.apply_bitmask(logits, empty.to("cpu"), empty.rows_for(["free"]))
    assert logits.eq(0).all()


def test_rows_for_random_batches_equals_a_loop():
    chance = random.Random(0)
    for _ in range(300):
        num_masks = {f"request {i}": chance.choice([0, 0, 1, 2, 5]) for i in range(chance.randint(0, 6))}
        row_indptr = np.cumsum([0, *num_masks.values()], dtype=np.int32)
        masks = MaskBatch(
            request_ids=tuple(num_masks), row_indptr=row_indptr, bitmask=np.zeros((row_indptr[-1], 1), dtype=np.int32)
        )
        worker_ids = chance.sample([*num_masks, "free", "free too"], chance.randint(0, len(num_masks) + 2))
        num_logits = [chance.randint(0, num_masks.get(request_id) or 3) for request_id in worker_ids]
        expected = []
        for request_id, count in zip(worker_ids, num_logits, strict=True):
            first = row_indptr[masks.request_ids.index(request_id)] if num_masks.get(request_id) else None
            expected += [-1 if first is None else int(first) + j for j in range(count)]
        assert masks.rows_for(worker_ids, num_logits).tolist() == expected
