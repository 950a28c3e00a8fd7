"""Compiles grammars without recursion into automata."""

from structout.grammar.fsm import gbnf, lark
from structout.grammar.fsm.automaton import DEFAULT_LIMITS, Automaton, AutomatonLimits
from structout.grammar.support import is_gbnf


def check_grammar(text: str, limits: AutomatonLimits = DEFAULT_LIMITS) -> None:
    """Check a grammar without compiling it.

    Raises:
        GrammarError: as :func:`grammar_automaton`.
    """
    if is_gbnf(text):
        gbnf.parse_gbnf(text, limits).check(gbnf.START)
    else:
        lark.parse_lark(text, limits).check(lark.START)


def grammar_automaton(text: str, limits: AutomatonLimits = DEFAULT_LIMITS) -> Automaton:
    """Compile a grammar whose rules do not refer to themselves, or only at their
    beginning or end, where that is repetition.

    Args:
        text: a grammar in GBNF (with ``::=``, from ``root``) or in llguidance's Lark
            (from ``start``). docs/fsm.md has what is supported.
        limits: what it may cost.

    Raises:
        GrammarError: the grammar is malformed or uses what is not supported.
        GrammarLimitError: the automaton would exceed one of ``limits``.
    """
    if is_gbnf(text):
        return gbnf.parse_gbnf(text, limits).compile(gbnf.START)
    return lark.parse_lark(text, limits).compile(lark.START)
