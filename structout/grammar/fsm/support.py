"""Which constraints structout's own engine enforces."""

from functools import lru_cache

from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.fsm.automaton import AutomatonLimits
from structout.grammar.fsm.grammars import check_grammar
from structout.grammar.fsm.native import core, is_available
from structout.grammar.support import Support
from structout.params import Constraint, StructuredOutputOptions

_KINDS = (StructuredOutputOptions.REGEX, StructuredOutputOptions.CHOICE, StructuredOutputOptions.GRAMMAR)
_CACHED_CONSTRAINTS = 1 << 8


def fsm_support(constraint: Constraint) -> Support:
    """How the engine would serve the constraint. What it serves, it enforces in
    full."""
    if constraint.kind not in _KINDS:
        return Support(refusal="takes regex, choice and grammar constraints only")
    if constraint.whitespace_pattern is not None:
        return Support(refusal=f"has no whitespace_pattern for {constraint.kind.value} constraints")
    if not is_available():
        return Support(refusal="is not built for this version of Python")
    if constraint.kind is StructuredOutputOptions.CHOICE:
        return Support()
    return Support(refusal=_refusal_of(constraint.kind, constraint.spec))


@lru_cache(_CACHED_CONSTRAINTS)
def _refusal_of(kind: StructuredOutputOptions, spec: str) -> str:
    """What the constraint uses that the engine does not support. Empty for what is
    malformed or too large, which the compilation refuses."""
    try:
        if kind is StructuredOutputOptions.GRAMMAR:
            check_grammar(spec)
        else:
            core().check_regex(spec.encode(errors="surrogatepass"), AutomatonLimits().as_native())
    except GrammarError as error:
        return f"refuses the grammar: {error}" if error.kind is GrammarErrorKind.UNSUPPORTED else ""
    except core().LimitError:
        return ""
    except core().PatternError as error:
        cause, is_malformed = error.args
        return "" if is_malformed else f"refuses the pattern: {cause}"
    return ""
