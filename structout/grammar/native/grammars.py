"""Compiles grammars in GBNF and in Lark."""

from structout.constraints.grammar_texts import is_gbnf
from structout.grammar.interface import StructuredOutputGrammar
from structout.grammar.native import gbnf, lark
from structout.grammar.native.automaton import DEFAULT_LIMITS, Automaton, AutomatonLimits
from structout.grammar.native.compiled_grammar import CompiledGrammar
from structout.grammar.native.extension import grammar_errors
from structout.grammar.native.grammar_context import NO_CONTEXT, GrammarContext
from structout.grammar.native.rules import RuleSet
from structout.grammar.vocabulary import Vocabulary


def parse_grammar(text: str, limits: AutomatonLimits = DEFAULT_LIMITS, context: GrammarContext = NO_CONTEXT) -> RuleSet:
    """Parse a grammar in GBNF (with ``::=``, from ``root``) or in llguidance's Lark
    (from ``start``). docs/native.md has what is supported.

    Args:
        context: what the grammar may refer to.

    Raises:
        GrammarError: the grammar is malformed or uses what is not supported.
        GrammarLimitError: its groups are nested too deep.
    """
    return gbnf.parse_gbnf(text, limits, context) if is_gbnf(text) else lark.parse_lark(text, limits, context)


def compile_grammar(
    text: str,
    vocabulary: Vocabulary,
    limits: AutomatonLimits = DEFAULT_LIMITS,
    context: GrammarContext | None = None,
) -> Automaton | CompiledGrammar:
    """Compile a grammar: into an automaton where that is possible.

    Args:
        context: what the grammar may refer to. Default: schemas, and the tokens of the
            vocabulary.

    Raises:
        GrammarError: the grammar is malformed or uses what is not supported.
        GrammarLimitError: it would exceed one of ``limits``.
    """
    rules = parse_grammar(text, limits, context or GrammarContext(vocabulary))
    automaton = rules.automaton()
    return CompiledGrammar(rules, vocabulary) if automaton is None else automaton


class ContextFreeGrammar(StructuredOutputGrammar):
    """The position of one request in a grammar with recursion, whose index is a
    :class:`CompiledGrammar`."""

    _matcher_class = "GrammarMatcher"

    def state_id(self) -> int:
        """The number of the text's configuration: the set of all stacks that it may
        have led to. Equal configurations have equal numbers, until states are freed."""
        return self.matcher.state

    def shortest_end(self) -> bytes | None:
        """Return a shortest continuation that completes the text. None if the search
        for one gives up.

        Raises:
            GrammarLimitError: that takes more than the limits.
        """
        with grammar_errors("the grammar"):
            return self.matcher.shortest_end()

    def captures(self) -> list[tuple[str, bytes]]:
        """Return captured texts as the interface specifies.

        Raises:
            GrammarLimitError: that takes more than the limits.
        """
        reader = self.index.capture_reader
        return [] if reader is None else reader.captures(self.matcher.recent_tokens(self.num_tokens))
