"""A request whose masks take long delays no other one."""

import numpy as np
import pytest

from structout import GrammarStatus, StructuredOutputManager, StructuredOutputsParams
from structout.errors import GrammarErrorKind
from structout.scheduler.decoding_step import STEP_WORK
from support import tokenizers_on_the_spot

V = 512
TOKENIZER = tokenizers_on_the_spot.byte_level()


def token_ids(text):
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def dear_schema(version=0, length=12_000):
    """The mask of the first key of its inner object asks for the keys of all values."""
    return {"type": "object", "properties": {"a": {"enum": [{f"k{version}_{i}": i} for i in range(length)]}}}


def cheap_schema(version):
    return {"type": "object", "properties": {"a": {"type": "object", "title": str(version)}}}


CHEAP = [f"cheap{i}" for i in range(8)]


@pytest.fixture
def manager():
    with StructuredOutputManager(TOKENIZER, V) as manager:
        yield manager


def add(manager, request_id, schema):
    manager.add_request(request_id, StructuredOutputsParams(json=schema, backend="fsm:no-fallback"))
    manager.wait_ready(request_id, 60)
    manager.poll_changed()
    assert manager.accept_tokens(request_id, token_ids('{"a": {'))


def masks(batch):
    return {name: batch.bitmask[row].copy() for name, row in zip(batch.request_ids, batch.row_indptr, strict=False)}


def test_step_beside_a_dear_request_fills_the_others_and_the_request_joins_again(manager):
    add(manager, "dear", dear_schema())
    for i, name in enumerate(CHEAP):
        add(manager, name, cheap_schema(i))
    batch = manager.grammar_bitmask(["dear", *CHEAP], wait=False)
    assert batch.unfinished == ("dear",)
    assert not batch.errors
    assert not masks(batch)["dear"].any()
    assert all(masks(batch)[name].any() for name in CHEAP)
    manager.wait_ready("dear", 60)
    assert manager.poll_changed() == [("dear", GrammarStatus.READY)]
    again = manager.grammar_bitmask(["dear", *CHEAP], wait=False)
    assert again.unfinished == ()
    for name in CHEAP:
        np.testing.assert_array_equal(masks(again)[name], masks(batch)[name])
    with StructuredOutputManager(TOKENIZER, V) as other:
        add(other, "dear", dear_schema())
        np.testing.assert_array_equal(masks(again)["dear"], masks(other.grammar_bitmask(["dear"]))["dear"])


def test_step_with_many_dear_requests_works_no_more_than_a_step_may(manager):
    names = [f"dear{i}" for i in range(12)]
    for i, name in enumerate(names):
        add(manager, name, dear_schema(i))
    add(manager, "cheap", cheap_schema(0))
    batch = manager.grammar_bitmask([*names, "cheap"], wait=False)
    assert 0 < manager._steps.work <= STEP_WORK
    assert set(batch.unfinished) == set(names)
    manager.wait_all(timeout=60)
    manager.grammar_bitmask(["cheap"])
    assert manager._steps.work == 0


def test_waiting_step_finishes_the_dear_request_after_the_others(manager):
    add(manager, "dear", dear_schema())
    add(manager, "cheap", cheap_schema(0))
    batch = manager.grammar_bitmask(["dear", "cheap"])
    assert batch.unfinished == ()
    assert not batch.errors
    assert all(mask.any() for mask in masks(batch).values())
    assert manager._steps.work <= STEP_WORK
    assert manager._requests["dear"].work_left < manager._requests["cheap"].work_left
    assert manager.status("dear") is GrammarStatus.READY


def test_drafts_of_a_dear_request_are_planned_outside_of_the_step(manager):
    add(manager, "dear", dear_schema())
    add(manager, "cheap", cheap_schema(0))
    drafts = {"dear": token_ids('"k0_0'), "cheap": token_ids('"n')}
    batch = manager.grammar_bitmask(["dear", "cheap"], drafts, wait=False)
    assert batch.unfinished == ("dear",)
    assert batch.num_acceptable_drafts.tolist() == [0, 2]
    manager.wait_ready("dear", 60)
    batch = manager.grammar_bitmask(["dear", "cheap"], drafts, wait=False)
    assert batch.unfinished == ()
    assert batch.num_acceptable_drafts.tolist() == [len(drafts["dear"]), 2]
    assert batch.bitmask.any(axis=1).all()


@pytest.mark.parametrize("wait", [True, False])
def test_request_that_has_spent_its_work_fails_with_limit(manager, wait):
    add(manager, "dear", dear_schema())
    add(manager, "cheap", cheap_schema(0))
    manager._requests["dear"].work_left = 1_000
    batch = manager.grammar_bitmask(["dear", "cheap"], wait=wait)
    assert list(batch.errors) == (["dear"] if wait else [])
    assert masks(batch)["cheap"].any()
    assert manager.wait_all(timeout=60) == {"dear": GrammarStatus.FAILED, "cheap": GrammarStatus.READY}
    assert manager.error("dear").kind is GrammarErrorKind.LIMIT
    assert manager.poll_changed() == [("dear", GrammarStatus.FAILED)]


def test_request_that_is_finished_while_its_mask_is_computed_is_forgotten(manager):
    add(manager, "dear", dear_schema())
    assert manager.grammar_bitmask(["dear"], wait=False).unfinished == ("dear",)
    manager.finish_request("dear")
    add(manager, "dear", cheap_schema(0))
    assert manager.grammar_bitmask(["dear"]).bitmask.any()
