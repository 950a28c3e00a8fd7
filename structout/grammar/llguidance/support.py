"""Which constraints llguidance enforces in full."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from structout.grammar.engine_versions import (
    LLGUIDANCE_ESCAPES_IN_NAMES,
    LLGUIDANCE_WHITESPACE_PATTERN,
    is_at_least,
)
from structout.grammar.llguidance.spec import admits_escaped_names
from structout.grammar.regex_features import Feature
from structout.grammar.support import (
    Support,
    counts_unchecked_keys,
    features_in,
    is_gbnf,
    largest_integer,
    may_be,
    patterns_with,
    weakened_in_schema,
)
from structout.json_schema import Node, standard_format, subschemas
from structout.params import Constraint, StructuredOutputOptions

_IGNORED_SINCE = {"propertyNames": 6, "unevaluatedItems": 2019, "unevaluatedProperties": 2019}
_EXACT_IN_DOUBLE = 2**53
_NUMBERS_AS_DOUBLES = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "const", "enum")
_FORMATS = frozenset("date-time time date duration email hostname ipv4 ipv6 uuid uri".split())
_MISREADS = {Feature.SET_OPERATION, Feature.POSSESSIVE, Feature.INCOMPLETE_ESCAPE}
_ESCAPED_BY_NUMBER = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
# llguidance's warnings.
_UNKNOWN_FORMAT = re.compile("Unknown format: ")
_UNREAD_KEYWORDS = re.compile("Unimplemented keys: ")
_QUOTED = re.compile('"([^"]*)"')


def llguidance_support(constraint: Constraint) -> Support:
    """How llguidance would serve the constraint."""
    match constraint.kind:
        case StructuredOutputOptions.JSON:
            refusal = next(_unspellable(constraint.value), "")
            if refusal:
                return Support(refusal=refusal)
            weakened = weakened_in_schema(constraint.value, _ignored_keywords, _IGNORED_SINCE)
            if constraint.whitespace_pattern is not None and not is_at_least(
                "llguidance", LLGUIDANCE_WHITESPACE_PATTERN
            ):
                weakened += ("whitespace_pattern",)
            return Support(weakened=weakened)
        case StructuredOutputOptions.REGEX:
            return Support(weakened=features_in(constraint.spec, _MISREADS))
        case StructuredOutputOptions.GRAMMAR if is_gbnf(constraint.spec):
            return Support(refusal="takes Lark grammars, not GBNF (::=)")
        case StructuredOutputOptions.STRUCTURAL_TAG:
            return Support(refusal="has no structural tags in xgrammar's format")
    return Support()


def is_described_by(warning: str, weakened: Iterable[str]) -> bool:
    """Whether JSON pointers already describe what a warning of llguidance's lenient
    compilation says."""
    keywords = {pointer.rpartition("/")[2] for pointer in weakened}
    if _UNKNOWN_FORMAT.match(warning):
        return "format" in keywords
    return bool(_UNREAD_KEYWORDS.match(warning)) and keywords.issuperset(_QUOTED.findall(warning))


def _ignored_keywords(node: Node, draft: int) -> Iterator[str]:
    yield from (key for key in _NUMBERS_AS_DOUBLES if key in node and largest_integer(node[key]) > _EXACT_IN_DOUBLE)
    yield from _misread_bounds(node)
    if counts_unchecked_keys(node):
        yield "minProperties"
    if may_be(node, "string") and standard_format(node) not in (None, *_FORMATS):
        yield "format"
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


def _unspellable(schema: Any) -> Iterator[str]:
    """Describe the characters of constants that llguidance cannot write.

    It writes no escapes with digits here (spec._JSON_ESCAPES), and JSON allows these
    characters in no other way. Masks would allow only whitespace, for ever.
    """
    for pointer, node in subschemas(schema):
        for keyword in ("const", "enum"):
            pending = [node.get(keyword)]
            while pending:
                part = pending.pop()
                if isinstance(part, list | dict):
                    pending += [*part, *part.values()] if isinstance(part, dict) else part
                elif isinstance(part, str) and (found := _ESCAPED_BY_NUMBER.search(part)):
                    yield f"cannot write the character U+{ord(found[0]):04X} of #{pointer}/{keyword}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
