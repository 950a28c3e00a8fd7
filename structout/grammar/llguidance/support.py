"""Which constraints llguidance 1.9.1 enforces in full."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from structout.grammar.json_schema import Node
from structout.grammar.regex_features import Feature
from structout.grammar.support import (
    Support,
    counts_free_keys,
    features_in,
    is_gbnf,
    may_be,
    patterns_with,
    weakened_in_schema,
)
from structout.params import Constraint, StructuredOutputOptions

_IGNORED_SINCE = {"propertyNames": 6, "unevaluatedItems": 2019, "unevaluatedProperties": 2019}
_EXACT_IN_DOUBLE = 2**53
_NUMBERS_AS_DOUBLES = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "const", "enum")
_FORMATS = frozenset("date-time time date duration email hostname ipv4 ipv6 uuid uri".split())
_MISREADS = {Feature.SET_OPERATION, Feature.POSSESSIVE, Feature.INCOMPLETE_ESCAPE}
# As llguidance warns.
_UNKNOWN_FORMAT = re.compile("Unknown format: ")
_UNREAD_KEYWORDS = re.compile("Unimplemented keys: ")
_QUOTED = re.compile('"([^"]*)"')


def llguidance_support(constraint: Constraint) -> Support:
    match constraint.kind:
        case StructuredOutputOptions.JSON:
            return Support(weakened=weakened_in_schema(json.loads(constraint.spec), _ignores, _IGNORED_SINCE))
        case StructuredOutputOptions.REGEX:
            return Support(weakened=features_in(constraint.spec, _MISREADS))
        case StructuredOutputOptions.GRAMMAR if is_gbnf(constraint.spec):
            return Support(refusal="takes Lark grammars, not GBNF (::=)")
        case StructuredOutputOptions.STRUCTURAL_TAG:
            return Support(refusal="has no structural tags in xgrammar's format")
    return Support()


def is_told_by(warning: str, weakened: Iterable[str]) -> bool:
    """Whether pointers say already what llguidance says in its words of a lenient compilation."""
    told = {pointer.rpartition("/")[2] for pointer in weakened}
    if _UNKNOWN_FORMAT.match(warning):
        return "format" in told
    return bool(_UNREAD_KEYWORDS.match(warning)) and told.issuperset(_QUOTED.findall(warning))


def _ignores(node: Node, draft: int) -> Iterator[str]:
    yield from (key for key in _NUMBERS_AS_DOUBLES if key in node and not _is_exact_in_double(node[key]))
    if counts_free_keys(node):
        yield "minProperties"
    if "format" in node and may_be(node, "string") and node["format"] not in _FORMATS:
        yield "format"
    yield from patterns_with(node, _MISREADS)


def _is_exact_in_double(value: Any) -> bool:
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, list | dict):
            pending += part.values() if isinstance(part, dict) else part
        elif isinstance(part, int) and abs(part) > _EXACT_IN_DOUBLE:
            return False
    return True
