"""Several languages followed at once, and Boolean questions about them."""

from collections.abc import Sequence

from structout.grammar.fsm.automaton import DEFAULT_LIMITS, Automaton, AutomatonLimits
from structout.grammar.fsm.native import core, grammar_errors

_NOT, _AND, _OR, _TRUE, _FALSE = -1, -2, -3, -4, -5
_WORD_BITS = 64
_MAX_STATES = 1 << 16


class Condition:
    """A Boolean expression over the verdicts of a :class:`LazyProduct` on one text.

    Combine conditions with ``&``, ``|`` and ``~``.

    Args:
        steps: the expression, operands first. Use ``accepted_by``, ``always`` and
            ``never``.
    """

    __slots__ = ("steps",)

    def __init__(self, steps: tuple[int, ...]):
        self.steps = steps

    def __and__(self, other: "Condition") -> "Condition":
        return Condition((*self.steps, *other.steps, _AND))

    def __or__(self, other: "Condition") -> "Condition":
        return Condition((*self.steps, *other.steps, _OR))

    def __invert__(self) -> "Condition":
        return Condition((*self.steps, _NOT))


def accepted_by(component: int) -> Condition:
    """The condition that a component accepts the text."""
    return Condition((component,))


always = Condition((_TRUE,))
never = Condition((_FALSE,))


class LazyProduct:
    """Follows several languages over one text, with states that are made when they are
    needed. Threads may share it; they wait for each other.

    A state knows which components accept a text that ends there: its verdict. State 0
    is the start. A component that is given as a pattern costs no automaton of its own,
    so it may be one whose automaton would be too large.

    Args:
        components: patterns in the dialect of docs/fsm.md, and automata.
        limits: of all components and states together. ``seconds`` applies to each call.

    Raises:
        GrammarError: a pattern is malformed or uses what is not supported.
        GrammarLimitError: the components exceed one of ``limits``.
    """

    def __init__(self, components: Sequence[str | Automaton], limits: AutomatonLimits = DEFAULT_LIMITS):
        given = [
            component.native if isinstance(component, Automaton) else component.encode(errors="surrogatepass")
            for component in components
        ]
        self.num_components = len(given)
        with grammar_errors():
            self._native = core().LazyProduct(given, limits.as_native())

    @property
    def num_states(self) -> int:
        """The number of states that were made so far."""
        return self._native.num_states

    def next(self, state: int, byte: int) -> int:
        """The state after another byte. -1 if no component accepts a text that goes on
        like this.

        Raises:
            GrammarLimitError: the product has too many states.
        """
        with grammar_errors():
            return self._native.next(state, byte)

    def verdict(self, state: int) -> int:
        """Which components accept a text that ends in the state: bit ``i`` stands for
        component ``i``."""
        with grammar_errors():
            return _bits(self._native.verdict(state))

    def live(self, state: int) -> int:
        """Which components may accept the text so far or a longer one. The others never
        do. Bits as in ``verdict``."""
        with grammar_errors():
            return _bits(self._native.live(state))

    def find(self, condition: Condition, state: int = 0, max_states: int = _MAX_STATES) -> bytes | None:
        """Find a shortest text that leads from a state to a verdict that satisfies a
        condition. The text need not be UTF-8 where no component accepts it.

        Args:
            condition: over the components of this product.
            state: where to begin.
            max_states: how many states to look at.

        Returns:
            None if there is no such text.

        Raises:
            GrammarLimitError: there was no answer within ``max_states`` or the limits
                of the product.
            ValueError: the condition names a component that does not exist.
        """
        with grammar_errors():
            return self._native.find(state, condition.steps, max_states)


def _bits(words: Sequence[int]) -> int:
    return sum(word << _WORD_BITS * i for i, word in enumerate(words))
