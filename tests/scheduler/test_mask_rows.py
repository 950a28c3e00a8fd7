"""Masks that are written over those of earlier steps: only what differs is written."""

import pickle
import random

import pytest
import torch

from structout import StructuredOutputManager, StructuredOutputsConfig, unpack_bitmask
from structout.errors import GrammarError
from support.managers import TOKENIZER, add

V = 600
ITEM = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 4}, "b": {"enum": [1, 12, "x"]}}}
CONSTRAINTS = [
    {"json": {"type": "array", "items": ITEM}},
    {"json": {"type": "array", "items": {"enum": ["a", "ab", "b", 1, 12]}, "uniqueItems": True}},
    {"json": {"type": "object", "additionalProperties": {"type": ["string", "null"]}, "maxProperties": 3}},
    {"regex": "([ab]+ ?)*c"},
    {"grammar": 'root ::= "(" root ")" | [^()]+'},
    {"choice": ["yes", "no", "never"]},
]


def forget_rows(manager):
    """Let the next step write whole rows."""
    for buffer in manager._steps._buffers._buffers:
        buffer.native.forget(0, len(buffer.array))


@pytest.mark.parametrize("num_mask_buffers", [1, 2])
def test_rows_equal_those_that_are_written_as_a_whole(num_mask_buffers, num_cases):
    rng = random.Random(num_mask_buffers)
    config = StructuredOutputsConfig(num_mask_buffers=num_mask_buffers)
    with StructuredOutputManager(TOKENIZER, V, config) as manager, StructuredOutputManager(TOKENIZER, V) as plain:
        names, num_refused = [], 0
        for step in range(num_cases(120, long=3000)):
            while len(names) < 6:
                names.append(f"request-{step}-{len(names)}")
                backend = rng.choice(["auto", "auto", "auto", "xgrammar"])
                constraint = rng.choice(CONSTRAINTS if backend == "auto" else CONSTRAINTS[3:5])
                for each in (manager, plain):
                    add(each, names[-1], **constraint, backend=backend)
            if rng.random() < 0.1:  # it has no rows any more, or empty ones
                for each in (manager, plain):
                    each.add_failed_request(f"failed-{step}", GrammarError("bad"))
                names.append(f"failed-{step}")
            scheduled = rng.sample(names, rng.randrange(1, len(names) + 1))
            drafts = {name: rng.choices(range(TOKENIZER.vocab_size), k=2) for name in scheduled if rng.random() < 0.2}
            bounds = {name: (rng.randrange(3), rng.randrange(4)) for name in scheduled if rng.random() < 0.1}
            forget_rows(plain)
            expected = plain.grammar_bitmask(scheduled, drafts, bounds=bounds)
            batch = manager.grammar_bitmask(scheduled, drafts, bounds=bounds)
            assert (batch.bitmask == expected.bitmask).all()
            assert batch.row_indptr.tolist() == expected.row_indptr.tolist()
            masks = plain.grammar_bitmask(scheduled)
            drawn = {}
            for i, name in enumerate(scheduled):
                row = unpack_bitmask(masks.to("cpu")[masks.row_indptr[i] : masks.row_indptr[i + 1]], V)
                allowed = row.flatten().nonzero().flatten().tolist()
                if allowed and name not in masks.errors:
                    drawn[name] = [rng.choice(allowed)]
            if rng.random() < 0.2 and drawn:  # a refused token empties rows outside of the native step
                drawn[rng.choice([*drawn])] = [-1]
            forget_rows(plain)
            by_step = [each.step(drawn, scheduled).result(60) for each in (manager, plain)]
            assert (by_step[0].bitmask == by_step[1].bitmask).all()
            assert by_step[0].errors == by_step[1].errors
            num_refused += sum("does not allow the tokens" in reason for reason in by_step[0].errors.values())
            ended = {name for name in scheduled if plain.is_terminated(name) or plain.error(name)}
            for name in ended | set(rng.sample(names, rng.random() < 0.1)):
                names.remove(name)
                manager.finish_request(name)
                plain.finish_request(name)
        assert num_refused


def test_bitmask_cannot_be_written_to_while_it_is_in_a_buffer():
    with StructuredOutputManager(TOKENIZER, V) as manager:
        add(manager, "r", regex="[ab]*")
        batch = manager.grammar_bitmask(["r"])
        with pytest.raises(ValueError, match="read-only"):
            batch.bitmask[0] = 0
        assert torch.equal(batch.to("cpu"), torch.from_numpy(batch.bitmask.copy()))
        copied = pickle.loads(pickle.dumps(batch))  # noqa: S301 - our own bytes
        copied.bitmask[0] = 0  # its own memory
        assert batch.bitmask.any()
