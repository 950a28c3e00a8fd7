"""Steps of the fsm engine's requests, which are filled and accepted in single native
calls: equal to what each grammar does alone."""

import random

import numpy as np
import pytest
import torch
from random_patterns import random_pattern
from tokenizers_on_the_spot import byte_level

from structout import StructuredOutputManager, StructuredOutputsConfig, StructuredOutputsParams, UnknownRequestError
from structout.bitmask import allocate_token_bitmask
from structout.grammar.fsm import matcher as fsm_matcher
from structout.grammar.fsm.automaton import Automaton
from structout.grammar.fsm.matcher import FsmGrammar
from structout.grammar.interface import StructuredOutputGrammar
from structout.scheduler import bitmask_filler

TOKENIZER = byte_level()
V, STOP = 525, TOKENIZER.eos_token_id
NOT_TOKENS = [-1, V, 2**40, None, 1.5, True, "x"]


@pytest.fixture
def manager():
    with StructuredOutputManager(TOKENIZER, V) as made:
        yield made


@pytest.fixture
def one_by_one(monkeypatch):
    """A function after which managers call each grammar alone."""

    def switch():
        monkeypatch.setattr(FsmGrammar, "is_batched", False)

    return switch


def add(manager, name, **params):
    manager.add_request(name, StructuredOutputsParams(**params, backend="fsm:no-fallback"))
    manager.wait_ready(name, 60)


def regexes(rng, count):
    found = []
    while len(found) < count:
        pattern = random_pattern(rng, 2).text
        if Automaton.from_regex(pattern).num_states > 1:
            found.append(pattern)
    return found


def allowed_tokens(mask):
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little", count=V)).tolist()


def run(manager, patterns, seed, num_steps):
    """Random steps, drafts and rollbacks: the masks and results of each."""
    rng = random.Random(seed)
    names = [f"r{i}" for i in range(len(patterns))]
    for name, pattern in zip(names, patterns, strict=True):
        add(manager, name, regex=pattern)
    seen = []
    for _ in range(num_steps):
        masks = manager.grammar_bitmask(names)
        bitmask, row_indptr = masks.bitmask.copy(), masks.row_indptr.copy()
        seen.append((bitmask.tobytes(), row_indptr.tolist(), masks.errors, masks.num_acceptable_drafts.tolist()))
        drafts, tokens = {}, {}
        for i, name in enumerate(names):
            legal = allowed_tokens(bitmask[row_indptr[i]]) if row_indptr[i] < row_indptr[i + 1] else []
            chain = [rng.choice(legal or [STOP])]
            chain += [rng.choice([rng.randrange(V), *chain, STOP, -1]) for _ in range(rng.randrange(4))]
            if rng.random() < 0.8:
                drafts[name] = rng.choice([chain, tuple(chain), np.array(chain), torch.tensor(chain)])
            tokens[name] = rng.choice([chain[:1], chain, (token for token in chain), [rng.choice(NOT_TOKENS)], 7, None])
        masks = manager.grammar_bitmask(names, drafts)
        seen.append((masks.bitmask.tobytes(), masks.row_indptr.tolist(), masks.num_acceptable_drafts.tolist()))
        accepted = manager.accept_batch(tokens)
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
def test_steps_of_a_batch_equal_those_of_each_grammar_alone(seed, one_by_one, num_cases):
    patterns = regexes(random.Random(seed), 12)
    with StructuredOutputManager(TOKENIZER, V) as manager:
        batched = run(manager, patterns, seed, num_cases(12, long=200))
    one_by_one()
    with StructuredOutputManager(TOKENIZER, V) as manager:
        assert run(manager, patterns, seed, num_cases(12, long=200)) == batched


def test_batch_is_one_native_call(manager, monkeypatch):
    calls = []
    for name in ("fill_step", "accept_batch"):
        native = getattr(fsm_matcher.core(), name)
        monkeypatch.setattr(
            fsm_matcher.core(), name, lambda *given, name=name, native=native: calls.append(name) or native(*given)
        )
    for i in range(3):
        add(manager, f"r{i}", regex="[ab]+")
    (a,) = TOKENIZER("a", add_special_tokens=False)["input_ids"]
    names = ["r2", "r0", "r1"]
    manager.grammar_bitmask(names)
    manager.grammar_bitmask(names, {"r0": [a, a]})
    assert manager.accept_batch({name: [a] for name in names}) == dict.fromkeys(names, True)
    assert calls == ["fill_step", "fill_step", "accept_batch"]
    assert manager.stats().backends["fsm"].rows == 3 + 5


def test_batch_with_requests_of_other_kinds_falls_back_to_each_alone(manager):
    add(manager, "r", regex="[ab]+")
    manager.add_request("json", StructuredOutputsParams(json={"type": "integer"}))
    manager.add_request("bad", StructuredOutputsParams(regex="("))
    manager.add_request("thinking", StructuredOutputsParams(regex="b+"), constrain_after=[7])
    manager.wait_all(timeout=60)
    (a,) = TOKENIZER("a", add_special_tokens=False)["input_ids"]
    (one,) = TOKENIZER("1", add_special_tokens=False)["input_ids"]
    tokens = {"r": [a], "json": [one], "bad": [a], "thinking": [9], "unknown": [a]}
    assert manager.accept_batch(tokens) == {"r": True, "json": True, "bad": False, "thinking": True, "unknown": False}
    masks = manager.grammar_bitmask(["r", "json", "bad", "thinking"])
    assert list(masks.errors) == ["bad"]
    assert masks.row_indptr.tolist() == [0, 1, 2, 3, 3]
    with pytest.raises(UnknownRequestError):
        manager.grammar_bitmask(["r", "unknown"])
    assert manager.grammar_bitmask(["r", "unknown"], strict=False).row_indptr.tolist() == [0, 1, 1]


@pytest.mark.parametrize("drafts", [[object()], "text", {1, 2}])
def test_malformed_drafts_fail_no_other_request(manager, drafts):
    add(manager, "good", regex="[ab]+")
    add(manager, "bad", regex="[ab]+")
    masks = manager.grammar_bitmask(["good", "bad"], {"bad": drafts})
    assert "good" not in masks.errors
    expected = allocate_token_bitmask(1, V, pin_memory=False)
    manager._requests["good"].grammar.fill_bitmask(expected, 0)
    assert (masks.bitmask[0] == expected[0].numpy()).all()


def test_dead_end_of_a_batch_is_an_error_of_its_request_alone(manager):
    """A request may take as a stop token what its text needs."""
    (a, b) = (TOKENIZER(text, add_special_tokens=False)["input_ids"][0] for text in "ab")
    add(manager, "good", regex="ab")
    manager.add_request("stuck", StructuredOutputsParams(regex="ab"), stop_token_ids=[b])
    manager.wait_ready("stuck", 60)
    assert manager.accept_batch({"good": [a], "stuck": [a]}) == {"good": True, "stuck": True}
    masks = manager.grammar_bitmask(["good", "stuck"])
    assert masks.errors == {"stuck": bitmask_filler._DEAD_END}
    assert not masks.bitmask[1].any()
    assert masks.bitmask[0].any()


def test_grammar_that_is_not_batched_has_no_step():
    with pytest.raises(NotImplementedError, match="is not batched"):
        StructuredOutputGrammar.fill_step([], allocate_token_bitmask(1, V), None)


def test_slow_step_of_a_batch_is_followed_by_one_that_times_each_request():
    config = StructuredOutputsConfig(slow_token_seconds=1e-9)
    with StructuredOutputManager(TOKENIZER, V, config) as manager:
        for name in ("a", "b"):
            add(manager, name, regex="[ab]+")
        manager.grammar_bitmask(["a", "b"])
        assert manager._filler.seconds_alone == {}
        manager.grammar_bitmask(["a", "b"])
        assert set(manager._filler.seconds_alone) == {"a", "b"}
