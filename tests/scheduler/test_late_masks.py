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


def test_step_with_many_dear_requests_works_no_more_than_a_step_may(manager):
    names = [f"dear{i}" for i in range(12)]
    for i, name in enumerate(names):
        add(manager, name, dear_schema(i))
    add(manager, "cheap", cheap_schema(0))
    batch = manager.grammar_bitmask([*names, "cheap"])
    assert 0 < manager._steps.work <= STEP_WORK
    assert not batch.errors
    assert all(mask.any() for mask in masks(batch).values())
    manager.grammar_bitmask(["cheap"])
    assert manager._steps.work == 0


def test_step_finishes_the_dear_request_after_the_others(manager):
    add(manager, "dear", dear_schema())
    for i, name in enumerate(CHEAP):
        add(manager, name, cheap_schema(i))
    batch = manager.grammar_bitmask(["dear", *CHEAP])
    assert not batch.errors
    assert manager._steps.work <= STEP_WORK
    assert manager._requests["dear"].work_left < manager._requests["cheap0"].work_left
    alone = masks(batch)
    with StructuredOutputManager(TOKENIZER, V) as other:
        for i, name in enumerate(CHEAP):
            add(other, name, cheap_schema(i))
            np.testing.assert_array_equal(alone[name], masks(other.grammar_bitmask([name]))[name])
        add(other, "dear", dear_schema())
        np.testing.assert_array_equal(alone["dear"], masks(other.grammar_bitmask(["dear"]))["dear"])


def test_drafts_of_a_dear_request_are_checked_outside_of_the_step(manager):
    add(manager, "dear", dear_schema())
    add(manager, "cheap", cheap_schema(0))
    drafts = {"dear": token_ids('"k0_0'), "cheap": token_ids('"n')}
    batch = manager.grammar_bitmask(["dear", "cheap"], drafts)
    assert manager._steps.work <= STEP_WORK
    assert batch.num_acceptable_drafts.tolist() == [len(drafts["dear"]), 2]
    assert batch.bitmask.any(axis=1).all()


def test_request_that_has_spent_its_work_fails_with_limit(manager):
    add(manager, "dear", dear_schema())
    add(manager, "cheap", cheap_schema(0))
    manager._requests["dear"].work_left = 1_000
    batch = manager.grammar_bitmask(["dear", "cheap"])
    assert list(batch.errors) == ["dear"]
    assert masks(batch)["cheap"].any()
    assert manager.wait_all(timeout=60) == {"dear": GrammarStatus.FAILED, "cheap": GrammarStatus.READY}
    assert manager.error("dear").kind is GrammarErrorKind.LIMIT
    assert manager.poll_changed() == [("dear", GrammarStatus.FAILED)]
