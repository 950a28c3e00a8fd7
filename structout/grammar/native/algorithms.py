"""The published algorithms that the engine builds on, written as in the papers.

They are for readers and tests. ``TokenIndex`` computes the same in C++: it follows a
trie of the vocabulary instead of one token after another.
"""

from typing import NamedTuple

from structout.grammar.native.automaton import Automaton
from structout.grammar.vocabulary import Vocabulary


def find_sub_sequences(automaton: Automaton, token: bytes) -> list[tuple[int, ...]]:
    """Find all walks of a token through an automaton (Willard and Louf, "Efficient
    Guided Generation for Large Language Models", Algorithm 3).

    Returns:
        for each state from which the token leads somewhere: that state, and the state
        after each of its bytes.
    """
    walks = []
    for start in range(automaton.num_states):
        walk = [start]
        for byte in token:
            state = automaton.next(walk[-1], byte)
            if state < 0:
                break
            walk.append(state)
        if len(walk) == len(token) + 1:
            walks.append(tuple(walk))
    return walks


def map_states_to_vocab(automaton: Automaton, vocabulary: Vocabulary) -> dict[int, set[int]]:
    """Map each state to the tokens that lead out of it (Algorithm 4 of the same paper).

    The paper maps to strings. Two tokens may have the same bytes, so this maps to ids.
    """
    tokens_of_state: dict[int, set[int]] = {state: set() for state in range(automaton.num_states)}
    for token, data in enumerate(vocabulary.token_bytes):
        if data:
            for start, *_ in find_sub_sequences(automaton, data):
                tokens_of_state[start].add(token)
    return tokens_of_state


class ForcedPath(NamedTuple):
    """A path without a choice: in ``first`` only ``data`` can follow, which leads to
    ``last``."""

    first: int
    data: bytes
    last: int


def coalesce(automaton: Automaton) -> list[ForcedPath]:
    """Find the paths of an automaton that can be written at once, which the compressed
    state machine of SGLang turns into single transitions.

    There is no choice where the text cannot end and one byte can follow. A path begins
    at the start or after a choice, and is as long as possible.
    """
    only_edges = {}
    for state in range(automaton.num_states):
        edges = automaton.edges(state)
        if not automaton.accepts(state) and len(edges) == 1 and edges[0].first == edges[0].last:
            only_edges[state] = edges[0]
    inside = {edge.target for edge in only_edges.values()} - {0}
    inside -= {
        edge.target
        for state in range(automaton.num_states)
        if state not in only_edges
        for edge in automaton.edges(state)
    }
    paths = []
    for first in sorted(only_edges.keys() - inside):
        data, state = bytearray(), first
        while state in only_edges:
            data.append(only_edges[state].first)
            state = only_edges[state].target
        paths.append(ForcedPath(first, bytes(data), state))
    return paths
