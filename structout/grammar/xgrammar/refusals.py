"""What xgrammar's messages mean."""

import re

from structout.errors import GrammarErrorKind
from structout.grammar.refusals import PATTERN_KEYWORDS, Refusal, Rule, explain
from structout.params import StructuredOutputOptions

_MALFORMED, _UNSUPPORTED = GrammarErrorKind.MALFORMED, GrammarErrorKind.UNSUPPORTED
_IMPOSSIBLE = GrammarErrorKind.IMPOSSIBLE

_RULES = [
    # regular expressions
    Rule(
        r"Regex parsing error at position \d+: (.*?) (?:is|are) not supported",
        _UNSUPPORTED,
        "a regular expression uses what is not supported: {0}",
        PATTERN_KEYWORDS,
    ),
    Rule(
        r"Regex parsing error at position (\d+): (.*?)\.?$",
        _MALFORMED,
        "a regular expression does not parse at character {0}: {1}",
        PATTERN_KEYWORDS,
    ),
    # schemas
    Rule('Unsupported type "(.*)"', _MALFORMED, "there is no type {0}", ("type",)),
    Rule(r"Cannot find field .* in (#.*)", _MALFORMED, "a $ref names {0}, where there is no schema", ("$ref",)),
    Rule(r"(\w+ ?\S*) is greater than (\w+ ?\d*)", _IMPOSSIBLE, "no value satisfies both {0} and {1}"),
    Rule("minimum greater than maximum", _IMPOSSIBLE, "no value satisfies both minimum and maximum", ("minimum",)),
    Rule("enum array must not be empty", _IMPOSSIBLE, "an empty enum allows no value", ("enum",)),
    Rule("multipleOf must be greater than 0", _MALFORMED, "multipleOf must be greater than 0", ("multipleOf",)),
    Rule("Integer exceeds maximum limit", _UNSUPPORTED, "the bounds of a number are too large"),
    # structural tags
    Rule("Invalid structural tag error: (.*)", _MALFORMED, "the structural tag is not valid: {0}"),
]
_RULES_FOR_GRAMMARS = [
    Rule(
        r'EBNF \w+ error at (line \d+, column \d+): Rule "(.*)" is not defined',
        _MALFORMED,
        "{0}: the grammar uses {1}, which it does not define",
    ),
    Rule(
        'EBNF .* error .* The root rule with name "root" is not found',
        _MALFORMED,
        "a GBNF grammar must have a rule named root",
    ),
    Rule(r"EBNF \w+ error at (line \d+, column \d+): (.*)", _MALFORMED, "{0}: the {constraint} does not parse: {1}"),
]
_INTERNAL = re.compile(r"^Check failed: \(.*?\) is false: |^EBNF \w+ error at line \d+, column \d+: ")


def explain_refusal(message: str, kind: StructuredOutputOptions) -> Refusal:
    """Say what a message of xgrammar about a constraint of some kind means."""
    if kind is StructuredOutputOptions.GRAMMAR:
        return explain([*_RULES_FOR_GRAMMARS, *_RULES], message, kind)
    return explain(_RULES, _INTERNAL.sub("", message), kind)
