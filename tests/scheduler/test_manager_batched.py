"""Steps of many requests, which are filled and accepted in single native calls: equal
to what each grammar does alone."""

import itertools
import random

import numpy as np
import pytest
import torch

from structout import StructuredOutputManager, StructuredOutputsParams, UnknownRequestError
from structout.grammar.native.automaton import Automaton
from structout.grammar.native.extension import core
from structout.ops.token_bitmask import allocate_token_bitmask
from structout.scheduler.decoding_step import DEAD_END
from support.grammar_walks import allowed
from support.managers import STOP, TOKENIZER, add, ids_of
from support.random_patterns import random_pattern

V = 525  # ends inside of a word of the mask
NOT_TOKENS = [-1, V, 2**40, None, 1.5, True, "x"]


@pytest.fixture
def manager():
    with StructuredOutputManager(TOKENIZER, V) as made:
        yield made


def regexes(rng, count):
    found = []
    while len(found) < count:
        pattern = random_pattern(rng, 2).text
        if Automaton.from_regex(pattern).num_states > 1:
            found.append(pattern)
    return found


def rows_of(manager, names, drafts, is_batched):
    """The rows, errors and numbers of acceptable drafts of a step."""
    rows, errors, num_acceptable = [], {}, []
    for step in [names] if is_batched else [[name] for name in names]:
        batch = manager.grammar_bitmask(step, {name: drafts[name] for name in step if name in drafts})
        bounds = batch.row_indptr.tolist()
        rows += [batch.bitmask[first:end].copy() for first, end in itertools.pairwise(bounds)]
        errors |= batch.errors
        num_acceptable += batch.num_acceptable_drafts.tolist()
    return rows, errors, num_acceptable


def accepted_by(manager, tokens, is_batched):
    if is_batched:
        return manager.accept_batch(tokens)
    return {name: manager.accept_tokens(name, each) for name, each in tokens.items()}


def run(manager, patterns, seed, num_steps, is_batched):
    """Random steps, drafts and rollbacks: the masks and results of each."""
    rng = random.Random(seed)
    names = [f"r{i}" for i in range(len(patterns))]
    for name, pattern in zip(names, patterns, strict=True):
        add(manager, name, regex=pattern)
    seen = []
    for _ in range(num_steps):
        rows, *others = rows_of(manager, names, {}, is_batched)
        seen.append(([each.tolist() for each in rows], *others))
        drafts, tokens = {}, {}
        for name, row in zip(names, rows, strict=True):
            legal = allowed(row[0]) if len(row) > 0 else []
            chain = [rng.choice(legal or [STOP])]
            chain += [rng.choice([rng.randrange(V), *chain, STOP, -1]) for _ in range(rng.randrange(4))]
            if rng.random() < 0.8:
                drafts[name] = rng.choice([chain, tuple(chain), np.array(chain), torch.tensor(chain)])
            tokens[name] = rng.choice([chain[:1], chain, (token for token in chain), [rng.choice(NOT_TOKENS)], 7, None])
        rows, *others = rows_of(manager, names, drafts, is_batched)
        seen.append(([each.tolist() for each in rows], *others))
        accepted = accepted_by(manager, tokens, is_batched)
        assert list(accepted) == names
        assert all(type(value) is bool for value in accepted.values())
        seen.append(accepted)
        for name in names:
            if rng.random() < 0.2:
                manager.rollback(name, rng.randint(0, manager.num_tokens(name)))
        seen.append([manager.num_tokens(name) for name in names])
    assert any(any(results.values()) for results in seen if isinstance(results, dict))
    return seen


@pytest.mark.parametrize("seed", range(4))
def test_steps_of_a_batch_equal_those_of_each_grammar_alone(seed, num_cases):
    patterns = regexes(random.Random(seed), 12)
    seen = []
    for is_batched in (True, False):
        with StructuredOutputManager(TOKENIZER, V) as manager:
            seen.append(run(manager, patterns, seed, num_cases(12, long=200), is_batched))
    assert seen[0] == seen[1]


def test_batch_is_one_native_call(manager, monkeypatch):
    steps = []
    native = core().Step
    monkeypatch.setattr(core(), "Step", lambda *given: steps.append(native(*given)) or steps[-1])
    add(manager, "r0", regex="[ab]+")
    add(manager, "r1", json={"type": "string"})
    manager.add_request("r2", StructuredOutputsParams(regex="a+"), constrain_after=[7])
    manager.wait_ready("r2", 60)
    a, quote = ids_of('a"')
    names = ["r2", "r0", "r1"]
    manager.grammar_bitmask(names)
    manager.grammar_bitmask(names, {"r0": [a, a], "r2": [7, a]}, bounds={"r1": (0, 1)})
    assert manager.accept_batch({"r0": [a], "r1": [quote], "r2": [7]}) == {"r0": True, "r1": True, "r2": True}
    manager.step({"r0": [a]}, names).result(60)
    assert len(steps) == 4
    assert manager.stats().rows_filled == 3 + 7 + 3


def test_batch_with_requests_that_are_not_ready_or_free_serves_the_others(manager):
    add(manager, "r", regex="[ab]+")
    manager.add_request("json", StructuredOutputsParams(json={"type": "integer"}))
    manager.add_request("bad", StructuredOutputsParams(regex="("))
    manager.add_request("thinking", StructuredOutputsParams(regex="b+"), constrain_after=[7])
    manager.wait_all(timeout=60)
    a, one = ids_of("a1")
    tokens = {"r": [a], "json": [one], "bad": [a], "thinking": [9], "unknown": [a]}
    assert manager.accept_batch(tokens) == {"r": True, "json": True, "bad": False, "thinking": True, "unknown": False}
    masks = manager.grammar_bitmask(["r", "json", "bad", "thinking"])
    assert list(masks.errors) == ["bad"]
    assert masks.row_indptr.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(UnknownRequestError):
        manager.grammar_bitmask(["r", "unknown"])
    assert manager.grammar_bitmask(["r", "unknown"], strict=False).row_indptr.tolist() == [0, 1, 1]


@pytest.mark.parametrize("drafts", [[object()], "text", {1, 2}, 5])
def test_malformed_drafts_fail_no_other_request(manager, drafts):
    add(manager, "good", regex="[ab]+")
    add(manager, "bad", regex="[ab]+")
    masks = manager.grammar_bitmask(["good", "bad"], {"bad": drafts})
    assert "good" not in masks.errors
    assert ("bad" in masks.errors) == (drafts == 5)
    expected = allocate_token_bitmask(1, V, pin_memory=False)
    manager._requests["good"].grammar.fill_bitmask(expected, 0)
    assert (masks.bitmask[0] == expected[0].numpy()).all()


# -- dead ends -------------------------------------------------------------------------


def test_dead_end_of_a_batch_is_an_error_of_its_request_alone(manager):
    """A request may take as a stop token what its text needs."""
    a, b = ids_of("ab")
    add(manager, "good", regex="ab")
    manager.add_request("stuck", StructuredOutputsParams(regex="ab"), stop_token_ids=[b])
    manager.wait_ready("stuck", 60)
    assert manager.accept_batch({"good": [a], "stuck": [a]}) == {"good": True, "stuck": True}
    masks = manager.grammar_bitmask(["good", "stuck"])
    assert masks.errors == {"stuck": DEAD_END}
    assert not masks.bitmask[1].any()
    assert masks.bitmask[0].any()
