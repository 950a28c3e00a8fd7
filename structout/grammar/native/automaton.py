"""Deterministic automata over bytes."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from structout.grammar.native.extension import core, grammar_errors


@dataclass(frozen=True)
class AutomatonLimits:
    """Bounds on the cost of one pattern's automaton.

    Attributes:
        nesting: open groups of the pattern.
        nodes: nodes of the nondeterministic automaton, with repetitions written out.
        states: states of the deterministic automaton, before it is minimised.
        seconds: CPU time of the calling thread.
    """

    nesting: int = 256
    nodes: int = 1 << 20
    states: int = 1 << 16
    seconds: float = 0.8

    @cached_property
    def native(self) -> Any:
        """The same of the C++ core, which nobody changes."""
        limits = core().Limits()
        limits.nesting, limits.nodes = self.nesting, self.nodes
        limits.states, limits.seconds = self.states, self.seconds
        return limits


DEFAULT_LIMITS = AutomatonLimits()


class Edge(NamedTuple):
    """The bytes ``first ... last`` lead to ``target``."""

    first: int
    last: int
    target: int


class Automaton:
    """A minimal deterministic automaton over bytes. The start is state 0.

    From every state the end of a text can be reached. Equal languages have equal
    automata: ``==`` compares languages. ``&``, ``|``, ``-`` and ``~`` combine them;
    ``~`` accepts every other sequence of bytes, UTF-8 or not.

    Args:
        native: an automaton of the C++ core. Use ``from_regex`` and ``from_choices``.
    """

    def __init__(self, native: Any):
        self.native = native

    @classmethod
    def from_regex(cls, pattern: str, limits: AutomatonLimits = DEFAULT_LIMITS) -> "Automaton":
        """Compile a regular expression, which the whole text must match. docs/native.md
        has the dialect.

        Raises:
            GrammarError: the pattern is malformed or uses what is not supported.
            GrammarLimitError: the automaton would exceed one of ``limits``.
        """
        with grammar_errors():
            return cls(core().compile_regex(pattern.encode(errors="surrogatepass"), limits.native))

    @classmethod
    def from_choices(cls, texts: Iterable[str | bytes]) -> "Automaton":
        """Accept exactly the given texts."""
        return cls(core().compile_choices([text.encode() if isinstance(text, str) else text for text in texts]))

    @property
    def num_states(self) -> int:
        """The number of states. 0 if no text is accepted."""
        return self.native.num_states

    @property
    def is_empty(self) -> bool:
        """True if the automaton accepts no text."""
        return self.num_states == 0

    @property
    def memory_bytes(self) -> int:
        return self.native.memory_bytes

    def next(self, state: int, byte: int) -> int:
        """The state after another byte. -1 if no accepted text goes on like this."""
        return self.native.next(state, byte)

    def accepts(self, state: int) -> bool:
        """True if a text may end in the state."""
        return self.native.accepts(state)

    def edges(self, state: int) -> list[Edge]:
        """The ways out of a state, by increasing bytes."""
        return [Edge(*edge) for edge in self.native.edges(state)]

    def matches(self, text: str | bytes) -> bool:
        """True if the automaton accepts the whole text."""
        return self.native.matches(text.encode() if isinstance(text, str) else text)

    def serialize(self) -> bytes:
        """Bytes of a versioned format with a checksum, the same for equal automata."""
        return self.native.serialize()

    @classmethod
    def deserialize(cls, data: bytes) -> "Automaton":
        """Do the opposite of ``serialize``.

        Raises:
            ValueError: ``data`` is damaged or of another version.
        """
        return cls(core().Automaton.deserialize(data))

    def __and__(self, other: "Automaton") -> "Automaton":
        return self._combined("intersection", other)

    def __or__(self, other: "Automaton") -> "Automaton":
        return self._combined("union", other)

    def __sub__(self, other: "Automaton") -> "Automaton":
        return self._combined("difference", other)

    def __invert__(self) -> "Automaton":
        with grammar_errors():
            return Automaton(core().complement(self.native, DEFAULT_LIMITS.native))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Automaton) and self.native == other.native

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.native)

    def _combined(self, operation: str, other: "Automaton") -> "Automaton":
        with grammar_errors():
            return Automaton(getattr(core(), operation)(self.native, other.native, DEFAULT_LIMITS.native))
