"""An engine of one's own, through the interface for other engines."""

import random

import numpy as np
import pytest
import torch

from structout import StructuredOutputManager, StructuredOutputOptions, StructuredOutputsParams, register_backend
from structout.grammar.external import ExternalGrammar, ExternalText
from structout.grammar.interface import StructuredOutputBackend
from structout.grammar.native.backend import NativeBackend
from structout.grammar.registry import _factories
from structout.grammar.vocabulary import BYTES, Vocabulary
from structout.ops.token_bitmask import allocate_token_bitmask
from support.managers import TOKENIZER, add

V = BYTES.size
STOP = BYTES.stop_token_ids[0]


class Counted(ExternalText):
    """Texts of a and b with as many of both, none of which has more of b before."""

    def __init__(self, vocabulary=BYTES):
        self._vocabulary = vocabulary
        self.text = []

    memory_bytes = 100

    def _depth(self):
        return self.text.count(ord("a")) - self.text.count(ord("b"))

    def start(self):
        return Counted(self._vocabulary)

    def accept(self, token):
        (byte,) = self._vocabulary.token_bytes[token]
        is_allowed = byte == ord("a") or (byte == ord("b") and self._depth() > 0)
        if is_allowed:
            self.text.append(byte)
        return is_allowed

    def rollback(self, num_tokens):
        del self.text[len(self.text) - num_tokens :]

    def mask(self):
        mask = np.zeros((self._vocabulary.size + 31) // 32, np.int32)
        for byte in b"ab" if self._depth() > 0 else b"a":
            token = self._vocabulary.token_of_byte(byte)
            mask[token >> 5] |= 1 << (token & 31)
        return mask

    def may_end(self):
        return self._depth() == 0

    def forced_bytes(self):
        return b""


class CountedBackend(StructuredOutputBackend):
    def compile_grammar(self, request_type, grammar_spec, stop_token_ids=None):
        stops = self.vocabulary.stop_token_ids if stop_token_ids is None else stop_token_ids
        return ExternalGrammar(Counted(self.vocabulary), self.vocabulary, stops)

    def destroy(self):
        pass


@pytest.fixture
def manager(monkeypatch):
    monkeypatch.setitem(_factories, "counted", None)
    register_backend("counted", lambda vocabulary, config, tokenizer: CountedBackend(vocabulary))
    with StructuredOutputManager(TOKENIZER, 512) as manager:
        yield manager


def add_counted(manager, name):
    add(manager, name, grammar='root ::= "x"', backend="counted")
    return manager._requests[name].grammar


def test_grammar_of_another_engine_is_that_of_the_own_one_for_the_same_language():
    own = NativeBackend(BYTES).compile_grammar(StructuredOutputOptions.GRAMMAR, 'root ::= ("a" root "b")*')
    other = ExternalGrammar(Counted(), BYTES, [STOP])
    rng = random.Random(0)
    for _ in range(300):
        tokens = rng.choices([*b"ab", STOP, 300, -1], [5, 4, 1, 0.2, 0.2], k=rng.randrange(6))
        assert other.validate_tokens(tokens) == own.validate_tokens(tokens)
        if not own.is_terminated():
            masks = [allocate_token_bitmask(len(tokens) + 1, V) for _ in range(2)]
            counts = [each.fill_bitmask_drafts(mask, 0, tokens) for each, mask in zip((own, other), masks, strict=True)]
            assert counts[0] == counts[1]
            assert torch.equal(*masks)
        assert other.accept_tokens("", tokens) == own.accept_tokens("", tokens)
        if rng.random() < 0.5:
            count = rng.randint(0, own.num_tokens)
            own.rollback(count)
            other.rollback(count)
        if rng.random() < 0.2:
            own, other = own.fork(), other.fork()
        if rng.random() < 0.2 and not own.is_terminated():
            data = bytes(rng.choices(b"ab", k=rng.randrange(4)))
            is_allowed = own.accept_bytes(data)
            assert other.accept_bytes(data) == is_allowed
            if is_allowed:
                own.undo_bytes()
                other.undo_bytes()
        assert other.num_tokens == own.num_tokens
        assert other.is_terminated() == own.is_terminated()


def test_requests_of_another_engine_share_a_step_with_the_others(manager):
    add_counted(manager, "other")
    manager.add_request("own", StructuredOutputsParams(regex="b+"))
    manager.wait_ready("own", 60)
    a, b = manager.vocabulary.spell("ab")
    batch = manager.step({"other": [a], "own": [b]}, ["other", "own"], {"other": [b]}).result(60)
    allowed = np.unpackbits(batch.bitmask.view(np.uint8), axis=1, bitorder="little").nonzero()
    stop = manager.vocabulary.stop_token_ids[0]
    rows = [set(allowed[1][allowed[0] == row].tolist()) for row in range(3)]
    assert rows[0] == {a, b}
    assert rows[1] == {a, stop}
    assert {b, stop} <= rows[2]
    assert batch.num_acceptable_drafts.tolist() == [1, 0]


@pytest.mark.parametrize("method", ["accept", "mask", "may_end"])
def test_exception_of_an_engine_fails_its_request_alone(manager, monkeypatch, method):
    grammar = add_counted(manager, "broken")
    add_counted(manager, "good")

    def fail(*_):
        raise RuntimeError("out of order\nmore")

    monkeypatch.setattr(grammar._text, method, fail)
    (a,) = manager.vocabulary.spell("a")
    batch = manager.step({"broken": [a], "good": [a]}, ["broken", "good"]).result(60)
    assert batch.errors == {"broken": "RuntimeError: out of order"}
    assert not batch.bitmask[0].any()
    assert batch.bitmask[1].any()


def test_mask_of_another_width_fails_its_request(manager, monkeypatch):
    grammar = add_counted(manager, "wide")
    monkeypatch.setattr(grammar._text, "mask", lambda: np.ones(1000, np.int32))
    assert manager.grammar_bitmask(["wide"]).errors == {"wide": "the mask is of another vocabulary"}


def test_stop_token_with_text_is_no_token_of_the_text():
    vocabulary = Vocabulary((b"a", b"b", b""), (2,))
    grammar = ExternalGrammar(Counted(vocabulary), vocabulary, [1, 2])
    assert not grammar.accept_tokens("", [0, 1])
    assert grammar.accept_tokens("", [1])
    assert grammar.is_terminated()
