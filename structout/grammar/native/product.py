"""Several languages followed at once, and Boolean questions about them."""

from collections.abc import Sequence

from structout.grammar.native.automaton import DEFAULT_LIMITS, Automaton, AutomatonLimits
from structout.grammar.native.extension import core, grammar_errors

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
    """Follows one text through several languages. States are created on demand.

    The verdict of a state is the set of components that accept a text which ends there.
    State 0 is the start. A pattern needs no automaton of its own, so it may be one
    whose automaton would exceed the limits. Calls from several threads wait for each
    other.

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
        """The number of states created so far."""
        return self._native.num_states

    @property
    def is_busy(self) -> bool:
        """True while another thread is in a call of the product."""
        return self._native.is_busy

    def next(self, state: int, byte: int) -> int:
        """Return the state after another byte, or -1 if no component accepts this text
        or a continuation.

        Raises:
            GrammarLimitError: the product has too many states.
        """
        with grammar_errors():
            return self._native.next(state, byte)

    def verdict(self, state: int) -> int:
        """Return the components that accept a text which ends in the state. Bit ``i``
        of the integer stands for component ``i``."""
        with grammar_errors():
            return _bits(self._native.verdict(state))

    def live(self, state: int) -> int:
        """Return the components that may accept this text or a continuation, as in
        ``verdict``. The others accept neither."""
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
