"""Automata of JSON strings, from the core, for tests of its strings."""

from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.native.automaton import DEFAULT_LIMITS, Automaton, AutomatonLimits
from structout.grammar.native.extension import core, grammar_errors
from structout.grammar.native.formats import FORMATS

_LARGEST_LENGTH = 1 << 30  # exceeds every limit on nodes


def json_string_automaton(
    pattern: str | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
    format: str | None = None,
    limits: AutomatonLimits = DEFAULT_LIMITS,
) -> Automaton:
    r"""Accept the JSON strings, with their quotes, whose value satisfies some keywords
    of JSON Schema.

    A value may be spelled in every way that JSON allows: ``"a"`` is also
    ``"\u0061"``. Half of a surrogate pair is no character, so its escape is not
    accepted.

    Args:
        pattern: a regular expression that matches somewhere in the value, in the
            dialect of docs/native.md.
        min_length: the smallest number of characters, that is code points.
        max_length: the largest number of characters.
        format: one of ``FORMATS``. A host name may have more than 253 characters here.
        limits: what the automaton may cost.

    Raises:
        GrammarError: the pattern is malformed or uses what is not supported, or the
            format is unknown.
        GrammarLimitError: the automaton would exceed one of ``limits``.
    """
    native_limits = limits.native
    patterns = [] if pattern is None else [pattern]
    if format is not None:
        if format not in FORMATS:
            message = f"the format {format} is not supported, only {', '.join(sorted(FORMATS))}"
            raise GrammarError(message, kind=GrammarErrorKind.UNSUPPORTED)
        patterns += [f"^(?:{expression})$" for expression in FORMATS[format].expressions]
    minimum = min(max(min_length or 0, 0), _LARGEST_LENGTH)
    maximum = None if max_length is None else min(max_length, _LARGEST_LENGTH)
    encoded = [each.encode(errors="surrogatepass") for each in patterns]
    with grammar_errors():
        if maximum is not None and maximum < minimum:
            return Automaton.from_choices([])
        return Automaton(core().compile_json_string(encoded, minimum, maximum, native_limits))
