"""The states that texts visit, where the states of a constraint are no automaton."""

from collections import defaultdict
from collections.abc import Iterable

from structout.grammar.checking.checker import Checker
from structout.grammar.checking.spelled_text import may_end
from structout.grammar.checking.trace import state_of
from structout.grammar.native.pictures import StateGraph


def visited_states(checker: Checker, texts: Iterable[str]) -> tuple[StateGraph, list[str]]:
    """Follow texts byte by byte.

    Args:
        checker: of the constraint.
        texts: complete ones. A text counts up to the first byte that is not allowed.

    Returns:
        the states, numbered in the order of the first visits, and the engine's name of
        each: what is on top of the stack, as far as a mask looks.
    """
    numbers: dict[str, int] = {}
    steps: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    ends = set()
    for text in texts:
        grammar = checker.grammar()
        state = numbers.setdefault(state_of(grammar), len(numbers))
        for byte in text.encode():
            if not grammar.accept_bytes(bytes([byte])):
                break
            source, state = state, numbers.setdefault(state_of(grammar), len(numbers))
            steps[source][state].add(byte)
        if may_end(grammar, checker.vocabulary):
            ends.add(state)
    return StateGraph({state: dict(steps[state]) for state in range(len(numbers))}, ends), list(numbers)
