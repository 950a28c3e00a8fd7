"""How often a step gives Python's global lock away.

Each time it may take a switch interval (5 ms) to get it back, while another thread runs
Python code.
"""

import sys
import threading
import time

import pytest

from structout import StructuredOutputManager, StructuredOutputsConfig, StructuredOutputsParams
from support.large_schemas import EXPENSIVE
from support.managers import TOKENIZER, V, add, ids_of

A, B = ids_of("ab")
NAMES = [f"r{i}" for i in range(64)]


@pytest.fixture
def manager():
    with StructuredOutputManager(TOKENIZER, V) as manager:
        for name in NAMES:
            add(manager, name, regex="[ab]*")
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


@pytest.mark.parametrize("call", ["accept_tokens", "accept_batch", "validate_tokens", "drafts", "forced"])
def test_calls_that_take_long_give_the_lock_away(switches, call):
    with StructuredOutputManager(TOKENIZER, V, StructuredOutputsConfig(any_whitespace=False)) as manager:
        manager.add_request("r", StructuredOutputsParams(json=EXPENSIVE, key_order="any", backend="native"))
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
