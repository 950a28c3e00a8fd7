"""Which constraints structout's own engine enforces."""

from functools import lru_cache

from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.fsm.automaton import AutomatonLimits
from structout.grammar.fsm.native import core, grammar_errors, is_available
from structout.grammar.support import Support
from structout.params import Constraint, StructuredOutputOptions

_KINDS = (StructuredOutputOptions.REGEX, StructuredOutputOptions.CHOICE)
_CACHED_PATTERNS = 1 << 8


def fsm_support(constraint: Constraint) -> Support:
    """How the engine would serve the constraint. What it serves, it enforces in
    full."""
    if constraint.kind not in _KINDS:
        return Support(refusal="takes regex and choice constraints only")
    if constraint.whitespace_pattern is not None:
        return Support(refusal=f"has no whitespace_pattern for {constraint.kind.value} constraints")
    if not is_available():
        return Support(refusal="is not built for this version of Python")
    if constraint.kind is StructuredOutputOptions.REGEX:
        return Support(refusal=_refusal_of(constraint.spec))
    return Support()


@lru_cache(_CACHED_PATTERNS)
def _refusal_of(pattern: str) -> str:
    """What the pattern uses that the engine does not support. Empty for malformed
    patterns, which the compilation refuses."""
    try:
        with grammar_errors():
            core().check_regex(pattern.encode(errors="surrogatepass"), AutomatonLimits().as_native())
    except GrammarError as error:
        return f"refuses the pattern: {error}" if error.kind is GrammarErrorKind.UNSUPPORTED else ""
    return ""
