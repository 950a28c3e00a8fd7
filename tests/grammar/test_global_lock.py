"""How often a step gives Python's global lock away.

Each time it may take a switch interval (5 ms) to get it back, while another thread runs
Python code.
"""

import sys
import threading
import time

import pytest
import tokenizers_on_the_spot
import tvm_ffi
from xgrammar.tvm_ffi_binding import BatchGrammarMatcher, GrammarMatcher

from structout import StructuredOutputManager, StructuredOutputsConfig, StructuredOutputsParams
from structout.grammar.optional.llguidance import LlguidanceBackend
from structout.grammar.optional.llguidance import LlguidanceGrammar
from structout.grammar.xgrammar import backend, native
from structout.grammar.optional.xgrammar import XgrammarGrammar

V = 512
TOKENIZER = tokenizers_on_the_spot.byte_level()
A, B = TOKENIZER("ab", add_special_tokens=False)["input_ids"]
NAMES = [f"r{i}" for i in range(64)]
PATIENT = StructuredOutputsConfig(slow_token_seconds=60)  # a slow step, of a busy machine, fills each row alone


@pytest.fixture(params=["xgrammar", "llguidance", "fsm"])
def manager(request):
    with StructuredOutputManager(TOKENIZER, V) as manager:
        for name in NAMES:
            manager.add_request(name, StructuredOutputsParams(regex="[ab]*", backend=f"{request.param}:no-fallback"))
            manager.wait_ready(name, 60)
        yield manager


@pytest.fixture
def switches():
    """Counts how often another thread has got the lock, which nobody takes from its
    holder."""
    interval, counts, stopped = sys.getswitchinterval(), [0], threading.Event()

    def count():
        while not stopped.is_set():
            counts[0] += 1
            time.sleep(0)  # gives the lock back

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    sys.setswitchinterval(1_000)
    yield counts
    sys.setswitchinterval(interval)
    stopped.set()
    for thread in threads:
        thread.join()


def test_accept_batch_and_rollback_do_not_give_the_lock_away(manager, switches):
    """Not once in 100 steps. On a busy machine a thread of the manager may wait for its
    lock meanwhile, so the best of a few tries counts."""
    tokens = {name: [A, B] for name in NAMES}
    num_switches = []
    while len(num_switches) < 5 and 0 not in num_switches:
        before = switches[0]
        for _ in range(100):
            assert all(manager.accept_batch(tokens).values())
            for name in NAMES:
                manager.rollback(name, 2)
        num_switches.append(switches[0] - before)
    assert min(num_switches) == 0


def test_lock_is_counted_where_it_is_given_away(switches):
    """Shows that the test above can fail."""
    before = switches[0]
    time.sleep(0.01)
    assert switches[0] > before


class Counter:
    """Counts the calls of an object's methods."""

    def __init__(self, target):
        self.calls = []
        self._target = target

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append(name)
            return getattr(self._target, name)(*arguments)

        return call


@pytest.mark.parametrize("drafts", [None, {name: [A, B, -1] for name in NAMES}], ids=["plain", "drafts"])
def test_llguidance_fills_a_large_step_in_one_call(monkeypatch, drafts):
    counter = None
    executor = LlguidanceBackend._executor

    def counted(backend):
        nonlocal counter
        counter = counter or Counter(executor(backend))
        return counter

    with StructuredOutputManager(TOKENIZER, V, PATIENT) as manager:
        for name in NAMES:
            manager.add_request(name, StructuredOutputsParams(regex="[ab]*", backend="llguidance:no-fallback"))
            manager.wait_ready(name, 60)
        monkeypatch.setattr(LlguidanceBackend, "_executor", counted)
        monkeypatch.setattr(LlguidanceGrammar, "fill_row", None)  # gives the lock away once a row
        for calls in range(1, 4):
            batch = manager.grammar_bitmask(NAMES, drafts)
            assert batch.bitmask.any(axis=1).all()
            assert len(counter.calls) == calls


@pytest.mark.parametrize("drafts", [None, {name: [A, B, -1] for name in NAMES}], ids=["plain", "drafts"])
def test_xgrammar_fills_a_short_step_without_giving_the_lock_away(monkeypatch, drafts):
    with StructuredOutputManager(TOKENIZER, V, PATIENT) as manager:
        for name in NAMES:
            manager.add_request(name, StructuredOutputsParams(regex="[ab]*", backend="xgrammar:no-fallback"))
            manager.wait_ready(name, 60)
        xgrammar = manager._backends.backend("xgrammar")
        monkeypatch.setattr(backend, "_MIN_SHARED_SECONDS", 60)  # a busy machine may take long for a short step
        monkeypatch.setattr(xgrammar, "_batch", None)  # xgrammar's own methods give it away
        monkeypatch.setattr(XgrammarGrammar, "fill_bitmask", None)
        for name in NAMES:
            monkeypatch.setattr(manager._requests[name].grammar, "matcher", HandleOnly(manager, name))
        assert manager.grammar_bitmask(NAMES, drafts).bitmask.any(axis=1).all()


class HandleOnly:
    """A matcher of which only the handle can be used."""

    def __init__(self, manager, name):
        self._handle = manager._requests[name].grammar.matcher._handle


@pytest.mark.parametrize(
    ("cls", "name", "function"),
    [
        (GrammarMatcher, "accept_token", native.accept_token),
        (GrammarMatcher, "accept_string", native.accept_string),
        (GrammarMatcher, "rollback", native.rollback),
        (GrammarMatcher, "is_completed", native.is_completed),
        (BatchGrammarMatcher, "batch_fill_next_token_bitmask", native.fill_batch),
    ],
)
def test_native_calls_keep_the_lock_and_leave_xgrammars_own_as_they_are(cls, name, function):
    assert isinstance(function, tvm_ffi.Function)
    assert not function.release_gil
    own = next(method.func for method in cls.__tvm_ffi_type_info__.methods if method.name == name)
    assert own.release_gil


def test_native_calls_of_changed_bindings_are_the_methods():
    class Changed:
        def rollback(self, num_tokens):
            return num_tokens + 1

    assert native._keeping_lock(Changed, "rollback")(Changed(), 1) == 2


DEAR = {  # the first key of the inner object asks for all the others
    "properties": {
        "a": {
            "type": "object",
            "properties": {f"k{i}": {"type": "integer"} for i in range(401)},
            "dependentRequired": {f"k{i}": [f"k{i + 1}"] for i in range(400)},
            "required": ["k0"],
            "additionalProperties": False,
        }
    },
    "type": "object",
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("call", ["accept_tokens", "accept_batch", "validate_tokens", "drafts", "forced"])
def test_calls_of_the_fsm_engine_that_take_long_give_the_lock_away(switches, call):
    with StructuredOutputManager(TOKENIZER, V, StructuredOutputsConfig(any_whitespace=False)) as manager:
        manager.add_request("r", StructuredOutputsParams(json=DEAR, key_order="any", backend="fsm:no-fallback"))
        manager.wait_ready("r", 60)
        tokens = TOKENIZER('{"a": {"k', add_special_tokens=False)["input_ids"]
        before = switches[0]
        if call == "accept_tokens":
            assert manager.accept_tokens("r", tokens)
        elif call == "accept_batch":
            assert manager.accept_batch({"r": tokens}) == {"r": True}
        elif call == "validate_tokens":
            assert manager.validate_tokens("r", tokens) == tokens
        elif call == "drafts":
            assert manager.grammar_bitmask(["r"], {"r": tokens}).num_acceptable_drafts.tolist() == [len(tokens)]
        else:
            assert manager.find_jump_forward_string("r").startswith('{"a": {"k')
        assert switches[0] > before
