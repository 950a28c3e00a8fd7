"""The content of pictures of states, and its form in the language of graphviz."""

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from structout.grammar.native.automaton import Automaton

_NUM_BYTES = 256
_MAX_LABEL = 40  # characters of a label; longer ones are cut in the middle
_ESCAPES = {ord("\n"): r"\n", ord("\r"): r"\r", ord("\t"): r"\t"}


class Arrow(NamedTuple):
    """Bytes that lead from a state to another. ``label`` is a regular expression."""

    source: int
    label: str
    target: int


class StateGraph(NamedTuple):
    """States that bytes lead to, from state 0 on.

    Attributes:
        steps: for each state the bytes that lead to each next state.
        ends: the states that may end a text.
    """

    steps: dict[int, dict[int, set[int]]]
    ends: set[int]

    @classmethod
    def of_automaton(cls, automaton: Automaton) -> "StateGraph":
        states = range(automaton.num_states)
        steps = {state: _steps(automaton, state) for state in states}
        return cls(steps, {state for state in states if automaton.accepts(state)})


class Picture(NamedTuple):
    """The content of a picture: arrows between states, and the states that may end a
    text."""

    arrows: list[Arrow]
    ends: set[int]

    @property
    def states(self) -> list[int]:
        return sorted({0}.union(*((arrow.source, arrow.target) for arrow in self.arrows)))


def picture_of(graph: StateGraph, shown: frozenset[int] = frozenset()) -> Picture:
    """Turn states into a picture.

    The edges between two states are one arrow. So is a path on which no other begins,
    joins or ends: of the states inside it, only those in ``shown`` appear.
    """
    num_entries: Counter[int] = Counter()
    for step in graph.steps.values():
        num_entries.update(step.keys())
    inside = {
        state
        for state, step in graph.steps.items()
        if len(step) == 1 and num_entries[state] == 1 and state not in graph.ends | shown | {0}
    }
    found = []
    for source, step in graph.steps.items():
        if source in inside:
            continue
        for first, taken in step.items():
            classes, target = [_class(taken)], first
            while target in inside:
                ((target, taken),) = graph.steps[target].items()
                classes.append(_class(taken))
            found.append(Arrow(source, _sequence(classes), target))
    return Picture(found, graph.ends)


def to_dot(picture: Picture) -> str:
    """Write a picture as a digraph for graphviz's ``dot``. A state with a double circle
    may end a text."""
    lines = [
        "digraph {",
        "  rankdir=LR",
        '  node [shape=circle, fontsize=10, fontname="monospace"]',
        '  edge [fontsize=10, fontname="monospace"]',
        '  start [shape=point, label=""]',
        "  start -> 0",
        *(f"  {state} [shape=doublecircle]" for state in picture.states if state in picture.ends),
        *(f"  {arrow.source} -> {arrow.target} [label={_quoted(arrow.label)}]" for arrow in picture.arrows),
        "}",
    ]
    return "\n".join(lines) + "\n"


def shortened(label: str) -> str:
    """A label as pictures show it: with visible spaces, and cut if it is long."""
    if len(label) > _MAX_LABEL:
        label = f"{label[: _MAX_LABEL // 2]} … {label[-_MAX_LABEL // 2 :]}"
    return label.replace(" ", "␣")


def _steps(automaton: Automaton, state: int) -> dict[int, set[int]]:
    """The bytes that lead to each next state."""
    steps: dict[int, set[int]] = {}
    for first, last, target in automaton.edges(state):
        steps.setdefault(target, set()).update(range(first, last + 1))
    return steps


def _class(taken: set[int]) -> str:
    """A set of bytes as a regular expression: a byte, a class, or the class of the
    others if that is shorter."""
    if len(taken) == 1:
        return _byte(min(taken), special=r"\[].*+?(){}|^$")
    others = set(range(_NUM_BYTES)) - taken
    if not others:
        return r"[\x00-\xff]"
    inside, outside = (f"[{''.join(_ranges(of))}]" for of in (taken, others))
    outside = f"[^{outside[1:]}"
    return inside if len(inside) <= len(outside) else outside


def _sequence(classes: list[str]) -> str:
    """One class after the other. A repeated one is written once, with its number."""
    parts = []
    for taken, repeated in groupby(classes):
        count = len(list(repeated))
        is_worth_it = len(taken) > 2 and count > 1
        parts.append(f"{taken}{{{count}}}" if is_worth_it else taken * count)
    return "".join(parts)


def _ranges(taken: set[int]) -> Iterator[str]:
    ordered = sorted(taken)
    first = last = ordered[0]
    for byte in [*ordered[1:], _NUM_BYTES + 1]:
        if byte == last + 1:
            last = byte
            continue
        ends = [_byte(end, special=r"\]^-[") for end in (first, last)]
        yield ends[0] if first == last else "".join(ends) if first + 1 == last else "-".join(ends)
        first = last = byte


def _byte(byte: int, special: str) -> str:
    if byte in _ESCAPES:
        return _ESCAPES[byte]
    if not 0x20 <= byte < 0x7F:
        return f"\\x{byte:02x}"
    return f"\\{chr(byte)}" if chr(byte) in special else chr(byte)


def _quoted(label: str) -> str:
    escaped = shortened(label).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
