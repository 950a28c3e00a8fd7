"""Which constraints structout's own engine enforces."""

from functools import lru_cache

from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.fsm.automaton import AutomatonLimits
from structout.grammar.fsm.formats import ENFORCED_FORMATS
from structout.grammar.fsm.grammars import parse_grammar
from structout.grammar.fsm.native import core, is_available
from structout.grammar.support import Support, formats_beyond
from structout.params import Constraint, StructuredOutputOptions

_CACHED_CONSTRAINTS = 1 << 8


def fsm_support(constraint: Constraint) -> Support:
    """How the engine would serve the constraint. What it serves, it enforces in full,
    except for some formats of a lenient constraint. What else it does not support in a
    JSON schema, the compilation refuses."""
    kind = constraint.kind
    if kind is StructuredOutputOptions.STRUCTURAL_TAG:
        return Support(refusal="has no structural tags")
    if constraint.whitespace_pattern is not None:
        return Support(refusal=f"has no whitespace_pattern for {kind.value} constraints")
    if not is_available():
        return Support(refusal="is not built for this version of Python")
    if kind is StructuredOutputOptions.JSON:
        return Support(weakened=formats_beyond(constraint.nodes, ENFORCED_FORMATS))
    if kind in (StructuredOutputOptions.JSON_OBJECT, StructuredOutputOptions.CHOICE):
        return Support()
    return Support(refusal=_refusal_of(kind, constraint.spec))


@lru_cache(_CACHED_CONSTRAINTS)
def _refusal_of(kind: StructuredOutputOptions, spec: str) -> str:
    """What the constraint uses that the engine does not support. Empty for what is
    malformed or too large, which the compilation refuses."""
    try:
        if kind is StructuredOutputOptions.GRAMMAR:
            parse_grammar(spec).network()
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
