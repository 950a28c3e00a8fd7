"""MaskDeduplicator and MaskPool: the draws are those of masks that are sent whole."""

import pickle
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import structout
from structout import DeviceMasks, MaskBatch, MaskedSampler, SamplerOutput, SamplingParams
from structout.masks.bitmask import bitmask_width
from structout.masks.pool import MaskDeduplicator, MaskPool, MaskPoolStats, PooledMaskBatch
from support.devices import DEVICES
from support.seeds import for_each_seed

VOCAB = 70
WIDTH = bitmask_width(VOCAB)
MASK_BYTES = 4 * WIDTH
CAPACITY = 9


@dataclass
class Step:
    """A step's masks, and a worker's batch that they govern."""

    masks: MaskBatch
    worker_ids: list[str]
    num_logits: list[int]


def masks_of(*rows: int) -> MaskBatch:
    """A request for each of ``rows``, under a mask that says which it is."""
    bitmask = np.repeat(np.array(rows, dtype=np.int32)[:, None], WIDTH, axis=1)
    return MaskBatch(
        request_ids=tuple("abcdefghijkl"[: len(rows)]),
        row_indptr=np.arange(len(rows) + 1, dtype=np.int32),
        bitmask=bitmask,
    )


def random_steps(seed: int, num_steps: int) -> Iterator[Step]:
    """Masks from a library of three pools' size, favourites among them. Up to CAPACITY
    rows a step: of requests with drafts, with errors, or that have terminated. The
    worker has them in its own order, beside free requests. All steps share one buffer,
    which is overwritten as soon as the next step is asked for."""
    numbers, chance = np.random.default_rng(seed), random.Random(seed)
    library = numbers.integers(-(2**31), 2**31, (3 * CAPACITY, WIDTH), dtype=np.int32)
    buffer = np.empty((CAPACITY, WIDTH), dtype=np.int32)
    for _ in range(num_steps):
        ids = [f"request {i}" for i in range(6)]
        num_masks = numbers.choice([0, 1, 1, 2, 3], len(ids))
        num_masks[np.cumsum(num_masks) > CAPACITY] = 0
        row_indptr = np.concatenate([[0], np.cumsum(num_masks)]).astype(np.int32)
        bitmask = buffer[: row_indptr[-1]]
        bitmask[:] = library[np.minimum(numbers.zipf(1.2, len(bitmask)) - 1, len(library) - 1)]
        errors = {}
        if num_masks[0]:
            errors[ids[0]] = "the grammar allows no token here"
            bitmask[: num_masks[0]] = 0
        worker_ids = chance.sample([*ids, "free", "free too"], 8)
        most = dict(zip(ids, num_masks, strict=True))
        num_logits = [chance.randint(0, int(most.get(request_id) or 2)) for request_id in worker_ids]
        masks = MaskBatch(
            request_ids=tuple(ids),
            row_indptr=row_indptr,
            errors=errors,
            num_acceptable_drafts=num_masks.astype(np.int32),
            bitmask=bitmask,
        )
        yield Step(masks, worker_ids, num_logits)
        buffer[:] = 0x5A5A5A5A


def check_against_whole_masks(
    deduplicator: MaskDeduplicator, device: str, seed: int, num_steps: int = 60, in_flight: int = 4
) -> None:
    """Up to ``in_flight`` steps wait between the scheduler and the worker, some of them
    pickled."""
    pool, sampler = MaskPool(CAPACITY, VOCAB, device), MaskedSampler(top_n=0)
    chance = random.Random(seed)
    waiting: deque[tuple[PooledMaskBatch, Step, SamplerOutput]] = deque()

    def logits_of(step: Step) -> torch.Tensor:
        generator = torch.Generator(device).manual_seed(seed)
        return torch.randn(sum(step.num_logits), VOCAB, generator=generator, device=device)

    def work() -> None:
        pooled, step, expected = waiting.popleft()
        masks = DeviceMasks.of_pool(pool, pooled, step.worker_ids, step.num_logits)
        drawn = sampler(logits_of(step), masks, SamplingParams(temperature=0.9, seed=seed))
        assert torch.equal(drawn.ids, expected.ids), "a token was drawn under another mask"
        assert torch.equal(drawn.logprobs, expected.logprobs)

    for step in random_steps(seed, num_steps):
        masks = DeviceMasks.of(step.masks, step.worker_ids, device, step.num_logits)
        expected = sampler(logits_of(step), masks, SamplingParams(temperature=0.9, seed=seed))
        pooled = deduplicator.deduplicate(step.masks)
        if chance.random() < 0.5:
            pooled = pickle.loads(pickle.dumps(pooled))  # noqa: S301 - our own bytes
        waiting.append((pooled, step, expected))
        while len(waiting) > chance.randint(0, in_flight):
            work()
    while waiting:
        work()


@pytest.mark.parametrize("device", DEVICES)
@for_each_seed(4)
def test_pooled_masks_give_the_draws_of_whole_masks(device, seed):
    deduplicator = MaskDeduplicator(CAPACITY, VOCAB)
    check_against_whole_masks(deduplicator, device, seed)
    stats = deduplicator.stats()
    assert min(stats.masks_sent, stats.masks_reused, stats.masks_evicted) > 20, "the steps must exercise all of it"
    num_rows = sum(len(step.masks.bitmask) for step in random_steps(seed, 60))
    assert stats.masks_sent + stats.masks_reused == num_rows


class EvictsTheLatest(MaskDeduplicator):
    def _place(self, mask_hash):
        if len(self._slot_of) == self.capacity:
            self._slot_of.move_to_end(next(reversed(self._slot_of)), last=False)
        return super()._place(mask_hash)


class ForgetsToTouch(MaskDeduplicator):
    def _touch(self, mask_hashes):
        return [mask_hash for mask_hash in mask_hashes if mask_hash not in self._slot_of]


class MixesUpRows(MaskDeduplicator):
    def deduplicate(self, masks):
        pooled = super().deduplicate(masks)
        return replace(pooled, row_slots=pooled.row_slots[::-1])


@pytest.mark.parametrize("wrong", [EvictsTheLatest, ForgetsToTouch, MixesUpRows])
def test_comparison_with_faulty_deduplicator_fails(wrong):
    with pytest.raises((AssertionError, KeyError)):
        check_against_whole_masks(wrong(CAPACITY, VOCAB), "cpu", seed=0)


def test_deduplicate_sends_new_masks_and_evicts_the_least_recently_used():
    deduplicator = MaskDeduplicator(2, VOCAB)
    sent = []
    for rows in [(1, 2), (1, 1), (3,), (1, 3), (2,), (2, 3)]:
        pooled = deduplicator.deduplicate(masks_of(*rows))
        sent.append(dict(zip(pooled.new_slots.tolist(), pooled.new_masks[:, 0].tolist(), strict=True)))
        assert pooled.new_masks.dtype == pooled.new_slots.dtype == pooled.row_slots.dtype == np.int32
    assert sent == [{0: 1, 1: 2}, {}, {1: 3}, {}, {0: 2}, {}]
    assert deduplicator.stats() == MaskPoolStats(
        masks_sent=4, masks_reused=6, bytes_sent=4 * (MASK_BYTES + 4), bytes_reused=6 * MASK_BYTES, masks_evicted=2
    )


def test_deduplicate_with_more_masks_than_capacity_changes_nothing():
    deduplicator, pool = MaskDeduplicator(2, VOCAB), MaskPool(2, VOCAB, "cpu")
    pool.update(deduplicator.deduplicate(masks_of(1, 2)))
    before = deduplicator.stats()
    with pytest.raises(ValueError, match="3 different masks, but the pool has a capacity of 2"):
        deduplicator.deduplicate(masks_of(3, 4, 5))
    assert deduplicator.stats() == before
    pooled = deduplicator.deduplicate(masks_of(2, 1, 2))
    assert len(pooled.new_masks) == 0
    pool.update(pooled)
    assert pool.bitmask[pooled.rows_for(["a", "b", "c"])][:, 0].tolist() == [2, 1, 2]


def test_reset_after_worker_restart_sends_all_masks():
    deduplicator, pool = MaskDeduplicator(4, VOCAB), MaskPool(4, VOCAB, "cpu")
    pool.update(deduplicator.deduplicate(masks_of(1, 2)))
    under_way = deduplicator.deduplicate(masks_of(2, 3))
    fresh = MaskPool(4, VOCAB, "cpu")
    with pytest.raises(
        ValueError, match=r"expected masks of step 0 since the last reset, got those of step 1; .*reset"
    ):
        fresh.update(under_way)
    deduplicator.reset()
    pooled = deduplicator.deduplicate(masks_of(3, 2))
    for each in (fresh, pool):  # one that went on starts over as well, whatever it had
        each.update(pooled)
        assert each.bitmask[pooled.rows_for(["a", "b"])][:, 0].tolist() == [3, 2]


def test_update_out_of_order_raises():
    deduplicator, pool = MaskDeduplicator(4, VOCAB), MaskPool(4, VOCAB, "cpu")
    steps = [deduplicator.deduplicate(masks_of(i)) for i in range(3)]
    pool.update(steps[0])
    for wrong in (steps[2], replace(steps[0], sequence=5)):
        with pytest.raises(ValueError, match="expected masks of step 1 since"):
            pool.update(wrong)
    pool.update(steps[1])
    with pytest.raises(ValueError, match="expected masks of step 2 since"):
        pool.update(steps[1])
    pool.update(steps[2])
    assert pool.bitmask[:, 0].tolist() == [0, 1, 2, 0]


def test_pool_and_deduplicator_of_different_sizes_raise():
    pool = MaskPool(2, VOCAB, "cpu")
    with pytest.raises(
        ValueError, match=r"expected mask slots in \[0, 2\), the capacity of this pool, got 2; give the"
    ):
        pool.update(MaskDeduplicator(3, VOCAB).deduplicate(masks_of(1, 2, 3)))
    with pytest.raises(
        ValueError, match=r"expected masks int32 \[rows, 4\], got int32 \[1, 3\]; use the same vocab_size"
    ):
        MaskDeduplicator(3, 128).deduplicate(masks_of(1))
    with pytest.raises(ValueError, match=r"expected masks int32 \[rows, 4\]"):
        MaskPool(2, 128, "cpu").update(MaskDeduplicator(3, VOCAB).deduplicate(masks_of(1)))
    assert not pool.bitmask.any()
    for make in (lambda: MaskDeduplicator(0, VOCAB), lambda: MaskPool(0, VOCAB, "cpu")):
        with pytest.raises(ValueError, match="capacity must be at least 1 mask, got 0"):
            make()


def test_step_without_masks_leaves_logits_unchanged():
    deduplicator, pool = MaskDeduplicator(2, VOCAB), MaskPool(2, VOCAB, "cpu")
    pooled = deduplicator.deduplicate(masks_of())
    pool.update(pooled)
    assert pooled.rows_for(["a", "b"], [1, 2]).tolist() == [-1, -1, -1]
    logits = torch.zeros(3, VOCAB)
    structout.apply_bitmask(logits, pool.bitmask, pooled.rows_for(["a", "b"], [1, 2]))
    assert logits.eq(0).all()
    assert deduplicator.stats() == MaskPoolStats()


def test_deduplicate_keeps_ids_errors_and_draft_counts():
    masks = replace(masks_of(1, 2), errors={"b": "why"}, num_acceptable_drafts=np.array([0, 3], dtype=np.int32))
    pooled = MaskDeduplicator(2, VOCAB).deduplicate(masks)
    assert (pooled.request_ids, pooled.errors) == (("a", "b"), {"b": "why"})
    assert pooled.num_acceptable_drafts.tolist() == [0, 3]
    with pytest.raises(ValueError, match="'a' has 2 logits rows but only 1 mask rows"):
        pooled.rows_for(["a"], [2])


def test_update_keeps_the_address_of_the_bitmask():
    deduplicator, pool = MaskDeduplicator(2, VOCAB), MaskPool(2, VOCAB, "cpu")
    address = pool.bitmask.data_ptr()
    for i in range(4):
        pool.update(deduplicator.deduplicate(masks_of(i)))
    assert pool.bitmask.data_ptr() == address


def test_deduplicate_accepts_views_of_wider_masks():
    wide = np.arange(40, dtype=np.int32).reshape(4, 10)
    view = replace(masks_of(1, 2, 3, 4), bitmask=wide[:, 2 : 2 + WIDTH])
    pooled = MaskDeduplicator(4, VOCAB).deduplicate(view)
    assert np.array_equal(pooled.new_masks, view.bitmask)
