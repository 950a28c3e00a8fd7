"""A request whose masks take long delays no other one."""

import numpy as np

from structout import GrammarStatus, StructuredOutputManager
from structout.errors import GrammarErrorKind
from structout.scheduler.decoding_step import STEP_WORK
from support.managers import TOKENIZER, V, add, ids_of


def expensive_schema(version=0, length=12_000):
    """The mask of the first key of its inner object asks for the keys of all values."""
    return {"type": "object", "properties": {"a": {"enum": [{f"k{version}_{i}": i} for i in range(length)]}}}


def cheap_schema(version):
    return {"type": "object", "properties": {"a": {"type": "object", "title": str(version)}}}


CHEAP = [f"cheap{i}" for i in range(8)]


def add_begun(manager, request_id, schema):
    add(manager, request_id, json=schema, backend="native")
    manager.poll_changed()
    assert manager.accept_tokens(request_id, ids_of('{"a": {'))


def masks(batch):
    return {name: batch.bitmask[row].copy() for name, row in zip(batch.request_ids, batch.row_indptr, strict=False)}


def test_step_with_many_expensive_requests_works_no_more_than_a_step_may(manager):
    names = [f"expensive{i}" for i in range(12)]
    for i, name in enumerate(names):
        add_begun(manager, name, expensive_schema(i))
    add_begun(manager, "cheap", cheap_schema(0))
    batch = manager.grammar_bitmask([*names, "cheap"])
    assert 0 < manager._steps.work <= STEP_WORK
    assert not batch.errors
    assert all(mask.any() for mask in masks(batch).values())
    manager.grammar_bitmask(["cheap"])
    assert manager._steps.work == 0


def test_step_finishes_the_expensive_request_after_the_others(manager):
    add_begun(manager, "expensive", expensive_schema())
    for i, name in enumerate(CHEAP):
        add_begun(manager, name, cheap_schema(i))
    batch = manager.grammar_bitmask(["expensive", *CHEAP])
    assert not batch.errors
    assert manager._steps.work <= STEP_WORK
    assert manager._requests["expensive"].work_left < manager._requests["cheap0"].work_left
    alone = masks(batch)
    with StructuredOutputManager(TOKENIZER, V) as other:
        for i, name in enumerate(CHEAP):
            add_begun(other, name, cheap_schema(i))
            np.testing.assert_array_equal(alone[name], masks(other.grammar_bitmask([name]))[name])
        add_begun(other, "expensive", expensive_schema())
        np.testing.assert_array_equal(alone["expensive"], masks(other.grammar_bitmask(["expensive"]))["expensive"])


def test_drafts_of_a_expensive_request_are_checked_outside_of_the_step(manager):
    add_begun(manager, "expensive", expensive_schema())
    add_begun(manager, "cheap", cheap_schema(0))
    drafts = {"expensive": ids_of('"k0_0'), "cheap": ids_of('"n')}
    batch = manager.grammar_bitmask(["expensive", "cheap"], drafts)
    assert manager._steps.work <= STEP_WORK
    assert batch.num_acceptable_drafts.tolist() == [len(drafts["expensive"]), 2]
    assert batch.bitmask.any(axis=1).all()


def test_request_that_has_spent_its_work_fails_with_limit(manager):
    add_begun(manager, "expensive", expensive_schema())
    add_begun(manager, "cheap", cheap_schema(0))
    manager._requests["expensive"].work_left = 1_000
    batch = manager.grammar_bitmask(["expensive", "cheap"])
    assert list(batch.errors) == ["expensive"]
    assert masks(batch)["cheap"].any()
    assert manager.wait_all(timeout=60) == {"expensive": GrammarStatus.FAILED, "cheap": GrammarStatus.READY}
    assert manager.error("expensive").kind is GrammarErrorKind.LIMIT
    assert manager.poll_changed() == [("expensive", GrammarStatus.FAILED)]
