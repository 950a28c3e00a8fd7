"""What llguidance's messages mean."""

import re

from structout.errors import GrammarErrorKind
from structout.grammar.refusals import PATTERN_KEYWORDS, Refusal, Rule, explain
from structout.params import StructuredOutputOptions

_LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_MALFORMED, _UNSUPPORTED = GrammarErrorKind.MALFORMED, GrammarErrorKind.UNSUPPORTED
_IMPOSSIBLE, _LIMIT = GrammarErrorKind.IMPOSSIBLE, GrammarErrorKind.LIMIT

_RULES = [
    # no text
    Rule("NoExtensionBias", _IMPOSSIBLE, "the {constraint} allows no text at all"),
    Rule(
        "Unsatisfiable schema: Regex is empty",
        _IMPOSSIBLE,
        "no string satisfies all that its pattern, format and length demand",
        ("pattern", "format", "allOf", "anyOf"),
    ),
    Rule(
        "Unsatisfiable schema: (?:anyOf|oneOf) is empty",
        _IMPOSSIBLE,
        "an empty list of values, types or branches allows no value",
        ("enum", "anyOf", "oneOf", "type"),
    ),
    Rule("Unsatisfiable schema: incompatible types", _IMPOSSIBLE, "no value has all the types that are demanded of it"),
    Rule(
        "Unsatisfiable schema: required property (.*) is unsatisfiable",
        _IMPOSSIBLE,
        "the required property {0} can have no value",
        ("required",),
    ),
    Rule("Unsatisfiable schema: schema is false", _IMPOSSIBLE, "a schema of false allows no value"),
    Rule(
        r"Unsatisfiable schema: (\w+) \((.*?)\) is greater than (\w+) \((.*?)\)",
        _IMPOSSIBLE,
        "no value satisfies both {0} {1} and {2} {3}",
        ("{0}",),
    ),
    Rule("Unsatisfiable schema: (.*)", _IMPOSSIBLE, "no value satisfies the {constraint}: {0}"),
    # regular expressions
    Rule("; Word", _UNSUPPORTED, r"a regular expression may not use word boundaries (\b, \B)", PATTERN_KEYWORDS),
    Rule(
        "; (?:Start|End)",
        _UNSUPPORTED,
        "a regular expression may use the anchors ^ and $ only at its ends",
        PATTERN_KEYWORDS,
    ),
    Rule("look-?around", _UNSUPPORTED, "a regular expression may not use lookaround", PATTERN_KEYWORDS),
    Rule("backreferences are not", _UNSUPPORTED, "a regular expression may not use backreferences", PATTERN_KEYWORDS),
    Rule("regex parse error: (.*)", _MALFORMED, "a regular expression does not parse: {0}", PATTERN_KEYWORDS),
    Rule("Unable to determine if regex is empty", _LIMIT, "a regular expression is too complex", PATTERN_KEYWORDS),
    # schemas
    Rule(
        "oneOf constraints are not supported",
        _UNSUPPORTED,
        "oneOf is not supported where one value may satisfy two of its branches",
        ("oneOf",),
    ),
    Rule(
        "min/maxProperties only supported",
        _UNSUPPORTED,
        "minProperties and maxProperties are not supported where a property of properties is not required",
        ("minProperties", "maxProperties"),
    ),
    Rule(r"Unimplemented keys: \[(.*)\]", _UNSUPPORTED, "keywords that are not supported: {0}"),
    Rule(
        "patternProperty regexes /(.*)/ and /(.*)/ are not disjoint",
        _UNSUPPORTED,
        "patternProperties is not supported where a name may match two of its patterns, here {0} and {1}",
        ("patternProperties",),
    ),
    Rule("Pointer '(.*)' does not exist", _MALFORMED, "a $ref names #{0}, where there is no schema", ("$ref",)),
    Rule(
        "circular references with sibling keys",
        _UNSUPPORTED,
        "a $ref that leads back to itself may have no keywords beside it",
        ("$ref",),
    ),
    Rule(
        "Expected positive integer for '(.*)', got (.*)",
        _MALFORMED,
        "{0} must be a non-negative integer, got {1}",
        ("{0}",),
    ),
    Rule("Expected f64 for '(.*)', got (.*)", _MALFORMED, "{0} must be a number, got {1}", ("{0}",)),
    Rule("Invalid type: (.*)", _MALFORMED, "there is no type {0}", ("type",)),
    Rule("invalid multiple of", _MALFORMED, "multipleOf must be greater than 0", ("multipleOf",)),
    Rule("'multipleOf' has too many digits", _UNSUPPORTED, "multipleOf has too many digits", ("multipleOf",)),
    Rule("Failed to generate regex for", _UNSUPPORTED, "the bounds of a number are too large", _LIMITS),
    # grammars
    Rule("no start rule found", _MALFORMED, "a Lark grammar must have a rule named start"),
    Rule('unknown name: "(.*)"', _MALFORMED, "the grammar uses {0}, which it does not define"),
    Rule("unknown grammar (.*)", _MALFORMED, "the grammar refers to {0}, which does not exist"),
    Rule('duplicate rule: "(.*)"', _MALFORMED, "the grammar defines {0} twice"),
    Rule('circular reference in token "(.*)"', _MALFORMED, "the token {0} refers to itself"),
    Rule("lexer error", _MALFORMED, "the grammar does not parse: this is not a token, or one that does not end"),
    # sizes
    Rule(r"too (?:large|many|big|complex)|\bfuel\b|\blimit", _LIMIT, "the {constraint} is too large to compile"),
]
_POSITION = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
_REGEX = re.compile(r'^invalid regex ".*" \(in regex\): ')
_LINES_BEFORE_GRAMMAR = 1  # options that structout puts in front


def explain_refusal(message: str, kind: StructuredOutputOptions) -> Refusal:
    """Say what a message of llguidance about a constraint of some kind means."""
    position = _POSITION.match(message)
    refusal = explain(_RULES, _REGEX.sub("", _POSITION.sub("", message)), kind)
    if position is None or kind is not StructuredOutputOptions.GRAMMAR:
        return refusal
    line, column = int(position[1]) - _LINES_BEFORE_GRAMMAR, position[2]
    return Refusal(refusal.kind, f"line {line}, column {column}: {refusal.sentence}", refusal.keywords)
