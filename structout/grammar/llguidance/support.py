"""Which constraints llguidance enforces in full."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from structout.grammar.engine_versions import (
    LLGUIDANCE_ESCAPES_IN_NAMES,
    LLGUIDANCE_WHITESPACE_PATTERN,
    is_at_least,
)
from structout.grammar.llguidance.spec import FORMATS, admits_escaped_names
from structout.grammar.regex_classes import ranges_of
from structout.grammar.regex_features import Feature, regex_parts
from structout.grammar.support import (
    Support,
    counts_unchecked_keys,
    features_in,
    formats_beyond,
    is_gbnf,
    largest_integer,
    may_be,
    patterns_with,
    unreadable_schema,
    weakened_in_schema,
)
from structout.json_schema import Node, Nodes, draft_of, patterns_at
from structout.params import Constraint, StructuredOutputOptions

_IGNORED_SINCE = {"propertyNames": 6, "unevaluatedItems": 2019, "unevaluatedProperties": 2019}
_EXACT_IN_DOUBLE = 2**53
_NUMBERS_AS_DOUBLES = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "const", "enum")
_LOOKED_AT = frozenset((*_NUMBERS_AS_DOUBLES, "minProperties", "properties", "patternProperties", "pattern"))
_WITH_CHARACTERS = frozenset({"const", "enum", "pattern", "patternProperties"})
_MISREADS = {Feature.SET_OPERATION, Feature.POSSESSIVE, Feature.INCOMPLETE_ESCAPE, Feature.BRACKET_FIRST_IN_CLASS}
_ESCAPED_BY_NUMBER = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
_MAY_NEED_ESCAPE_BY_NUMBER = re.compile(rf"{_ESCAPED_BY_NUMBER.pattern}|\\|\[\^")
_MOST_ESCAPED_IN_A_ROW = 0x1F - 0x0E + 1
_WARNINGS = {"oneOf ": ("oneOf",), "min/maxProperties ": ("minProperties", "maxProperties")}
_UNREAD_KEYWORDS = re.compile("Unimplemented keys: ")
_READ_WITH_IF = {"then", "else"}
_QUOTED = re.compile('"([^"]*)"')


def llguidance_support(constraint: Constraint) -> Support:
    """How llguidance would serve the constraint."""
    match constraint.kind:
        case StructuredOutputOptions.JSON:
            nodes = constraint.nodes
            refusal = unreadable_schema(constraint.value, constraint.spec, dict(constraint.schemas), nodes) or next(
                _unspellable(nodes), ""
            )
            if refusal:
                return Support(refusal=refusal)
            weakened = weakened_in_schema(nodes, draft_of(constraint.value), _ignored_keywords, _IGNORED_SINCE)
            if constraint.whitespace_pattern is not None and not is_at_least(
                "llguidance", LLGUIDANCE_WHITESPACE_PATTERN
            ):
                weakened += ("whitespace_pattern",)
            return Support(weakened=weakened, formats=formats_beyond(nodes, FORMATS))
        case StructuredOutputOptions.REGEX:
            return Support(weakened=features_in(constraint.spec, _MISREADS))
        case StructuredOutputOptions.GRAMMAR if is_gbnf(constraint.spec):
            return Support(refusal="takes Lark grammars, not GBNF (::=)")
        case StructuredOutputOptions.STRUCTURAL_TAG:
            return Support(refusal="has no structural tags in xgrammar's format")
    return Support()


def places_of_warnings(warnings: Iterable[str], nodes: Nodes) -> Iterator[str]:
    """Yield JSON pointers to the keywords that warnings of llguidance's lenient
    compilation name. A warning that names none stands for itself."""
    for warning in warnings:
        keywords = next((set(named) for start, named in _WARNINGS.items() if warning.startswith(start)), set())
        if _UNREAD_KEYWORDS.match(warning):
            keywords = set(_QUOTED.findall(warning)) - _READ_WITH_IF
        elif not keywords:
            yield warning
        for pointer, node in nodes:
            yield from (f"#{pointer}/{keyword}" for keyword in node if keyword in keywords)


def _ignored_keywords(node: Node, draft: int) -> Iterator[str]:
    if _LOOKED_AT.isdisjoint(node):
        return
    yield from (key for key in _NUMBERS_AS_DOUBLES if key in node and largest_integer(node[key]) > _EXACT_IN_DOUBLE)
    yield from _misread_bounds(node)
    if counts_unchecked_keys(node):
        yield "minProperties"
    if not is_at_least("llguidance", LLGUIDANCE_ESCAPES_IN_NAMES) and admits_escaped_names(node):
        yield from (keyword for keyword in ("properties", "patternProperties") if node.get(keyword))
    yield from patterns_with(node, _MISREADS)


def _misread_bounds(node: Node) -> Iterator[str]:
    """An exclusive bound that is an integer is lost if the other one is less than 1
    away."""
    if not may_be(node, "number"):
        return
    lower = [node[key] for key in ("minimum", "exclusiveMinimum") if _is_number(node.get(key))]
    upper = [node[key] for key in ("maximum", "exclusiveMaximum") if _is_number(node.get(key))]
    if lower and upper and min(upper) - max(lower) < 1:
        yield from (key for key in ("exclusiveMinimum", "exclusiveMaximum") if _is_number(node.get(key)))


def _unspellable(nodes: Nodes) -> Iterator[str]:
    """Describe the characters of constants and patterns that llguidance cannot write.

    It writes no escapes with digits here (spec._JSON_ESCAPES), and knows no other way
    to write these characters. It leaves them out of a pattern; after a constant with
    one, masks would allow only whitespace, for ever.
    """
    for pointer, node in nodes:
        if _WITH_CHARACTERS.isdisjoint(node):
            continue
        for keyword in ("const", "enum"):
            pending = [node.get(keyword)]
            while pending:
                part = pending.pop()
                if isinstance(part, list | dict):
                    pending += [*part, *part.values()] if isinstance(part, dict) else part
                elif isinstance(part, str) and (found := _ESCAPED_BY_NUMBER.search(part)):
                    yield f"cannot write the character U+{ord(found[0]):04X} of #{pointer}/{keyword}"
        for keyword, pattern in patterns_at(node):
            yield from (
                f"cannot write the character U+{code:04X} of #{pointer}/{keyword}"
                for code in _escaped_by_number(pattern)
            )


def _escaped_by_number(pattern: str) -> Iterator[int]:
    """The characters that a pattern asks for and llguidance cannot write. Other
    characters of the same class may stand in for one."""
    if not _MAY_NEED_ESCAPE_BY_NUMBER.search(pattern):
        return
    for match in regex_parts(pattern):
        if match.lastgroup in ("code", "escape", "cls") or _ESCAPED_BY_NUMBER.fullmatch(match.group()):
            ranges = ranges_of(match.group())
            if all(last - first < _MOST_ESCAPED_IN_A_ROW for first, last in ranges):
                codes = [code for first, last in ranges for code in range(first, last + 1)]
                if codes and all(_ESCAPED_BY_NUMBER.match(chr(code)) for code in codes):
                    yield codes[0]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
