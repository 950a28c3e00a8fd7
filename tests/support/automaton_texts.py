"""Texts that an automaton accepts."""


def drawn_text(automaton, rng, max_bytes=60):
    """A text that the automaton accepts, or None if a random walk finds none."""
    state, text = 0, bytearray()
    while automaton.num_states and len(text) < max_bytes:
        edges = automaton.edges(state)
        if automaton.accepts(state) and (not edges or rng.random() < 0.2):
            return text.decode()
        first, last, state = rng.choice(edges)
        text.append(rng.randint(first, last))
    return None
