"""KeyboardInterrupt while a native call works: the call happens or does not, and what
it worked on can still be used.

Python raises it when the call returns, so the caller does not get the result.
"""

import signal
import sys
import threading
import time

import numpy as np
import pytest

from structout import StructuredOutputManager, StructuredOutputsConfig
from structout.constraints.params import StructuredOutputOptions as Kind
from structout.grammar.native.automaton import Automaton
from structout.grammar.native.backend import NativeBackend
from structout.grammar.vocabulary import Vocabulary
from support.large_schemas import EXPENSIVE
from support.managers import TOKENIZER, add, ids_of

V = 525
VOCABULARY = Vocabulary.from_tokenizer(TOKENIZER, V)
TOKENS = ids_of('{"a": {"k')


@pytest.fixture
def interrupted():
    """A function that calls another until SIGINT comes while a native call has given
    Python's global lock away.

    No thread takes the lock from its holder meanwhile, so it comes at no other place.
    """
    interval, handler = sys.getswitchinterval(), signal.signal(signal.SIGINT, signal.default_int_handler)
    is_asked, is_over = threading.Event(), threading.Event()

    def wait():
        while not is_over.is_set():
            if is_asked.is_set():
                is_asked.clear()
                signal.raise_signal(signal.SIGINT)
            time.sleep(0)  # gives the lock back

    def run(call):
        is_asked.set()
        while True:
            call()
            time.sleep(0)  # on a busy machine the other thread may have missed the call

    thread = threading.Thread(target=wait)
    thread.start()
    sys.setswitchinterval(1_000)
    yield run
    sys.setswitchinterval(interval)
    is_over.set()
    thread.join()
    signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        (Kind.REGEX, "[a-z]{2,5}@x"),
        (Kind.CHOICE, '["ab", "ac"]'),
        (Kind.JSON, "{}"),
        (Kind.GRAMMAR, 'root ::= "(" root? ")"'),
    ],
)
def test_compilation_that_is_interrupted_can_be_made_again(interrupted, kind, spec):
    backend = NativeBackend(VOCABULARY)
    with pytest.raises(KeyboardInterrupt):
        interrupted(lambda: backend.compile_grammar(kind, spec))
    found, expected = (each.compile_grammar(kind, spec).mask() for each in (backend, NativeBackend(VOCABULARY)))
    assert np.array_equal(found, expected)


def test_operation_of_automata_that_is_interrupted_changes_neither(interrupted):
    first, second = Automaton.from_regex("a+"), Automaton.from_regex("a{3,9}")
    expected = first - second
    for operation in (lambda: first - second, lambda: ~first, lambda: Automaton.deserialize(first.serialize())):
        with pytest.raises(KeyboardInterrupt):
            interrupted(operation)
    assert first - second == expected


@pytest.fixture
def manager():
    with StructuredOutputManager(TOKENIZER, V, StructuredOutputsConfig(any_whitespace=False)) as manager:
        for name in ("interrupted", "other"):
            add(manager, name, json=EXPENSIVE, key_order="any", backend="native")
        yield manager


CALLS = {
    "accept_tokens": lambda manager: manager.accept_tokens("interrupted", TOKENS),
    "accept_batch": lambda manager: manager.accept_batch({"interrupted": TOKENS}),
    "validate_tokens": lambda manager: manager.validate_tokens("interrupted", TOKENS),
    "drafts": lambda manager: manager.grammar_bitmask(["interrupted"], {"interrupted": TOKENS}),
    "forced": lambda manager: manager.find_jump_forward_string("interrupted"),
}


@pytest.mark.parametrize("call", CALLS)
def test_step_that_is_interrupted_happens_or_does_not(interrupted, manager, call):
    def row(name):
        return manager.grammar_bitmask([name]).bitmask[0].tolist()

    with pytest.raises(KeyboardInterrupt):
        interrupted(lambda: CALLS[call](manager))
    found = row("interrupted")
    before = row("other")
    assert manager.accept_tokens("other", TOKENS)
    after = row("other")
    assert before != after
    assert found == before or (found == after and call.startswith("accept"))
    if found == before:
        assert manager.accept_tokens("interrupted", TOKENS)
    assert row("interrupted") == after
    manager.rollback("interrupted", len(TOKENS))
    assert row("interrupted") == before
    assert row("other") == after
