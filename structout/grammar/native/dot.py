"""Pictures of automata, in the language of graphviz."""

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


def arrows(automaton: Automaton) -> list[Arrow]:
    """List the edges of an automaton for a picture.

    The edges between two states are one arrow. So is a path on which no other begins,
    joins or ends: the states inside it are left out.
    """
    steps = [_steps(automaton, state) for state in range(automaton.num_states)]
    num_entries = [0] * automaton.num_states
    for step in steps:
        for target in step:
            num_entries[target] += 1
    is_inside = [
        state != 0 and not automaton.accepts(state) and len(steps[state]) == 1 and num_entries[state] == 1
        for state in range(automaton.num_states)
    ]
    found = []
    for source in range(automaton.num_states):
        if is_inside[source]:
            continue
        for first, taken in steps[source].items():
            classes, target = [_class(taken)], first
            while is_inside[target]:
                ((target, taken),) = steps[target].items()
                classes.append(_class(taken))
            found.append(Arrow(source, _sequence(classes), target))
    return found


def to_dot(automaton: Automaton, max_states: int = 64) -> str | None:
    """Draw an automaton.

    Args:
        automaton: over bytes.
        max_states: the largest number of states in the picture.

    Returns:
        a digraph for graphviz's ``dot``, in which a state with a double circle may end
        a text. None if it has too many states.
    """
    found = arrows(automaton)
    states = sorted({0} | {arrow.source for arrow in found} | {arrow.target for arrow in found})
    if len(states) > max_states:
        return None
    lines = [
        "digraph {",
        "  rankdir=LR",
        '  node [shape=circle, fontsize=10, fontname="monospace"]',
        '  edge [fontsize=10, fontname="monospace"]',
        '  start [shape=point, label=""]',
        "  start -> 0",
        *(f"  {state} [shape=doublecircle]" for state in states if automaton.accepts(state)),
        *(f"  {arrow.source} -> {arrow.target} [label={_quoted(arrow.label)}]" for arrow in found),
        "}",
    ]
    return "\n".join(lines) + "\n"


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
    if len(label) > _MAX_LABEL:
        label = f"{label[: _MAX_LABEL // 2]} … {label[-_MAX_LABEL // 2 :]}"
    escaped = label.replace("\\", "\\\\").replace('"', '\\"').replace(" ", "␣")
    return f'"{escaped}"'
