"""Which tokens lead from each state of an automaton, by the algorithms of Willard and
Louf, "Efficient Guided Generation for Large Language Models", as the paper writes them.

``TokenIndex`` computes the same in C++: it follows a trie of the vocabulary instead of
one token after another.
"""

from structout.grammar.native.automaton import Automaton
from structout.grammar.vocabulary import Vocabulary


def find_sub_sequences(automaton: Automaton, token: bytes) -> list[tuple[int, ...]]:
    """Find all walks of a token through an automaton (Algorithm 3).

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
    """Map each state to the tokens that lead out of it (Algorithm 4).

    The paper maps to strings. Two tokens may have the same bytes, so this maps to ids.
    """
    tokens_of_state: dict[int, set[int]] = {state: set() for state in range(automaton.num_states)}
    for token, data in enumerate(vocabulary.token_bytes):
        if data:
            for start, *_ in find_sub_sequences(automaton, data):
                tokens_of_state[start].add(token)
    return tokens_of_state
