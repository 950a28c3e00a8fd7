"""Products of several languages: against the operations on whole automata."""

import itertools
import random
import time
from concurrent.futures import ThreadPoolExecutor
from functools import reduce

import pytest

from structout.errors import GrammarError, GrammarLimitError
from structout.grammar.native.automaton import Automaton, AutomatonLimits
from structout.grammar.native.json_strings import json_string_automaton
from structout.grammar.native.product import Condition, LazyProduct, accepted_by, always, never
from support.random_patterns import mutated, random_pattern

ALL = ~Automaton.from_choices([])
NONE = Automaton.from_choices([])


def state_after(product, text):
    state = 0
    for byte in text:
        state = product.next(state, byte)
        if state < 0:
            break
    return state


def verdict_on(product, text):
    state = state_after(product, text)
    return product.verdict(state) if state >= 0 else 0


def random_condition(rng, num_components, depth=3):
    """A condition, and a function that applies it to automata."""
    kind = rng.random()
    if depth == 0 or kind < 0.2:
        if rng.random() < 0.1:
            return rng.choice([(always, lambda _: ALL), (never, lambda _: NONE)])
        component = rng.randrange(num_components)
        return accepted_by(component), lambda automata: automata[component]
    left, apply_left = random_condition(rng, num_components, depth - 1)
    if kind < 0.45:
        return ~left, lambda automata: ~apply_left(automata)
    right, apply_right = random_condition(rng, num_components, depth - 1)
    if kind < 0.75:
        return left & right, lambda automata: apply_left(automata) & apply_right(automata)
    return left | right, lambda automata: apply_left(automata) | apply_right(automata)


def shortest_length(automaton):
    """The length of a shortest accepted text, or None."""
    lengths, pending = {0: 0}, [0]
    for state in pending if automaton.num_states else ():
        if automaton.accepts(state):
            return lengths[state]
        for edge in automaton.edges(state):
            if edge.target not in lengths:
                lengths[edge.target] = lengths[state] + 1
                pending.append(edge.target)
    return None


def random_components(rng):
    """Patterns and automata, and the automata of all of them."""
    patterns = [random_pattern(rng, 2) for _ in range(rng.randint(1, 4))]
    automata = [Automaton.from_regex(pattern.text) for pattern in patterns]
    mixed = [
        automaton if rng.random() < 0.5 else pattern.text for pattern, automaton in zip(patterns, automata, strict=True)
    ]
    return patterns, automata, mixed


def test_verdicts_are_those_of_the_components(num_cases):
    rng = random.Random(16)
    num_accepted = 0
    for _ in range(num_cases(100, long=2_000)):
        patterns, automata, mixed = random_components(rng)
        product = LazyProduct(mixed)
        texts = [pattern.sample(rng) for pattern in patterns for _ in range(2)]
        for text in [*texts, *(mutated(text, rng) for text in texts)]:
            data = text.encode()
            expected = sum(automaton.matches(data) << i for i, automaton in enumerate(automata))
            assert verdict_on(product, data) == expected, (mixed, text)
            num_accepted += expected.bit_count()
            for length in range(len(data) + 1):  # a component is live wherever it may still accept
                state = state_after(product, data[:length])
                assert state >= 0 or not expected
                if state >= 0:
                    assert expected & ~product.live(state) == 0
    assert num_accepted > 300


def test_find_agrees_with_operations_on_whole_automata(num_cases):
    rng = random.Random(17)
    num_found = num_empty = 0
    for _ in range(num_cases(300, long=5_000)):
        _, automata, mixed = random_components(rng)
        condition, apply = random_condition(rng, len(automata))
        combined = apply(automata)
        witness = LazyProduct(mixed).find(condition)
        expected = shortest_length(combined)
        if expected is None:
            assert witness is None, (mixed, condition.steps)
            num_empty += 1
        else:
            assert witness is not None, (mixed, condition.steps)
            assert combined.matches(witness), (mixed, condition.steps, witness)
            assert len(witness) == expected
            num_found += 1
    assert num_found > 50
    assert num_empty > 20


def test_find_begins_at_the_given_state():
    product = LazyProduct(["ab*c", "abbd"])
    state = state_after(product, b"ab")
    assert product.find(accepted_by(0), state) == b"c"
    assert product.find(accepted_by(1), state) == b"bd"
    assert product.find(accepted_by(1), state_after(product, b"abb")) == b"d"
    assert product.find(accepted_by(1), state_after(product, b"abbb")) is None
    assert product.find(~accepted_by(0) & ~accepted_by(1), state) == b""


def test_find_separates_lengths_of_ways_out_from_those_inside():
    """Both shortest texts have one byte here: one inside, one after all components."""
    product = LazyProduct(["a|bb", "a"])
    assert product.find(~accepted_by(0) & ~accepted_by(1), state_after(product, b"a")) in (
        bytes([i]) for i in range(256)
    )
    assert product.find(accepted_by(0) & ~accepted_by(1)) == b"bb"
    every_byte = Automaton.from_regex("[\\s\\S]*") | ~Automaton.from_regex("[\\s\\S]*")
    assert LazyProduct([every_byte, "a*"]).find(accepted_by(0) & ~accepted_by(1)) == b"\x00"
    assert LazyProduct([every_byte]).find(~accepted_by(0)) is None


def test_component_may_have_an_automaton_that_is_too_large():
    large = "(a|b)*a(a|b){22}"
    with pytest.raises(GrammarLimitError):
        Automaton.from_regex(large)
    product = LazyProduct([large, "a{30}"])
    text = b"ab" * 20
    assert verdict_on(product, text) == (text[-23] == ord("a"))
    assert product.num_states < 100
    assert product.find(accepted_by(0) & accepted_by(1)) == b"a" * 30


def test_lookahead_and_anchors_hold_for_their_component_alone():
    product = LazyProduct(["(?!foo$)\\w+", "^\\w{3}$", "(?=.*o).*"])
    assert verdict_on(product, b"foo") == 0b110
    assert verdict_on(product, b"bar") == 0b011
    assert verdict_on(product, b"fooo") == 0b101
    assert product.find(accepted_by(1) & accepted_by(2) & ~accepted_by(0)) == b"foo"


def test_json_strings_can_be_components():
    shorter = json_string_automaton(max_length=3)
    product = LazyProduct([json_string_automaton("^a"), shorter, json_string_automaton("b$")])
    condition = accepted_by(0) & accepted_by(2)
    assert product.find(condition & accepted_by(1)) == b'"ab"'
    assert len(product.find(condition & ~accepted_by(1))) == 6
    assert LazyProduct([json_string_automaton("^a"), shorter]).find(accepted_by(0) & ~accepted_by(1)) == b'"a   "'


def test_more_components_than_bits_of_a_word():
    product = LazyProduct([f"{i}|x" for i in range(100)])
    assert verdict_on(product, b"x") == (1 << 100) - 1
    assert verdict_on(product, b"99") == 1 << 99
    alone = reduce(Condition.__and__, (~accepted_by(i) for i in range(100) if i != 77), accepted_by(77))
    assert product.find(alone) == b"77"
    assert LazyProduct([]).find(always) == b""
    assert LazyProduct([]).find(never) is None


def test_budgets_end_a_search_and_the_product_can_be_used_again():
    product = LazyProduct(["(a|b)*a(a|b){30}", "(a|b)*b(a|b){31}", "(a|b){40}"], AutomatonLimits(states=2_000))
    impossible = accepted_by(0) & accepted_by(1) & ~accepted_by(2) & ~always
    assert product.find(impossible) is None
    both = accepted_by(0) & ~accepted_by(0)
    with pytest.raises(GrammarLimitError, match="product_states is limited to 100, got 101"):
        product.find(both, max_states=100)
    with pytest.raises(GrammarLimitError, match="pattern_states is limited to 2,000, got 2,001"):
        product.find(both)
    for _ in range(3):
        with pytest.raises(GrammarLimitError, match="pattern_states is limited to 2,000, got 2,001"):
            state_after(product, b"a" * 31)
    assert product.num_states == 2_001
    assert verdict_on(product, b"abab") == 0  # through states that are there already
    with pytest.raises(GrammarLimitError, match="cpu_milliseconds is limited to 20"):
        LazyProduct(["(a|b)*a(a|b){30}"], AutomatonLimits(seconds=0.02, states=1 << 30)).find(both)


@pytest.mark.parametrize("steps", [(), (0, 0), (-1,), (0, -2), (0, 1, -2), (2**40,), (-6,), (0, -1, -1, 0)])
def test_condition_that_is_not_well_formed_raises(steps):
    with pytest.raises(ValueError, match="not well formed"):
        LazyProduct(["a"]).find(Condition(steps))


def test_errors_of_patterns_and_states():
    with pytest.raises(GrammarError, match="a \\( is not closed"):
        LazyProduct(["a", "("])
    with pytest.raises(IndexError, match="a state must be in"):
        LazyProduct(["a"]).next(7, 0)


def test_threads_may_share_a_product():
    product = LazyProduct(["(a|b)*a(a|b){9}", "(a|b)*b(a|b){8}"])
    texts = ["".join(letters).encode() for letters in itertools.product("ab", repeat=11)]

    def check(text):
        return verdict_on(product, text) == (text[-10] == ord("a")) + 2 * (text[-9] == ord("b"))

    with ThreadPoolExecutor(8) as pool:
        searches = [pool.submit(product.find, accepted_by(0) & ~accepted_by(0)) for _ in range(4)]
        assert all(pool.map(check, texts))
        assert [search.result() for search in searches] == [None] * 4


def test_other_threads_run_while_one_waits_for_a_search():
    product = LazyProduct(["(a|b)*a(a|b){30}"], AutomatonLimits(seconds=0.6, states=1 << 30))
    gaps = [0.0]
    with ThreadPoolExecutor(2) as pool:
        search = pool.submit(product.find, accepted_by(0) & ~accepted_by(0), 0, 1 << 30)
        while not product.is_busy:
            assert not search.done()
        start = last = time.perf_counter()
        step = pool.submit(product.next, 0, ord("a"))
        while not search.done():
            time.sleep(0.001)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now
        assert isinstance(search.exception(), GrammarLimitError)
        assert step.result() == 1
    assert max(gaps) < (last - start) / 2
