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


def expensive_schema(version=0, length=12_000):
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
    manager.add_request(request_id, StructuredOutputsParams(json=schema, backend="native"))
    manager.wait_ready(request_id, 60)
    manager.poll_changed()
    assert manager.accept_tokens(request_id, token_ids('{"a": {'))


def masks(batch):
    return {name: batch.bitmask[row].copy() for name, row in zip(batch.request_ids, batch.row_indptr, strict=False)}


def test_step_with_many_expensive_requests_works_no_more_than_a_step_may(manager):
    names = [f"expensive{i}" for i in range(12)]
    for i, name in enumerate(names):
        add(manager, name, expensive_schema(i))
    add(manager, "cheap", cheap_schema(0))
    batch = manager.grammar_bitmask([*names, "cheap"])
    assert 0 < manager._steps.work <= STEP_WORK
    assert not batch.errors
    assert all(mask.any() for mask in masks(batch).values())
    manager.grammar_bitmask(["cheap"])
    assert manager._steps.work == 0


def test_step_finishes_the_expensive_request_after_the_others(manager):
    add(manager, "expensive", expensive_schema())
    for i, name in enumerate(CHEAP):
        add(manager, name, cheap_schema(i))
    batch = manager.grammar_bitmask(["expensive", *CHEAP])
    assert not batch.errors
    assert manager._steps.work <= STEP_WORK
    assert manager._requests["expensive"].work_left < manager._requests["cheap0"].work_left
    alone = masks(batch)
    with StructuredOutputManager(TOKENIZER, V) as other:
        for i, name in enumerate(CHEAP):
            add(other, name, cheap_schema(i))
            np.testing.assert_array_equal(alone[name], masks(other.grammar_bitmask([name]))[name])
        add(other, "expensive", expensive_schema())
        np.testing.assert_array_equal(alone["expensive"], masks(other.grammar_bitmask(["expensive"]))["expensive"])


def test_drafts_of_a_expensive_request_are_checked_outside_of_the_step(manager):
    add(manager, "expensive", expensive_schema())
    add(manager, "cheap", cheap_schema(0))
    drafts = {"expensive": token_ids('"k0_0'), "cheap": token_ids('"n')}
    batch = manager.grammar_bitmask(["expensive", "cheap"], drafts)
    assert manager._steps.work <= STEP_WORK
    assert batch.num_acceptable_drafts.tolist() == [len(drafts["expensive"]), 2]
    assert batch.bitmask.any(axis=1).all()


def test_request_that_has_spent_its_work_fails_with_limit(manager):
    add(manager, "expensive", expensive_schema())
    add(manager, "cheap", cheap_schema(0))
    manager._requests["expensive"].work_left = 1_000
    batch = manager.grammar_bitmask(["expensive", "cheap"])
    assert list(batch.errors) == ["expensive"]
    assert masks(batch)["cheap"].any()
    assert manager.wait_all(timeout=60) == {"expensive": GrammarStatus.FAILED, "cheap": GrammarStatus.READY}
    assert manager.error("expensive").kind is GrammarErrorKind.LIMIT
    assert manager.poll_changed() == [("expensive", GrammarStatus.FAILED)]
