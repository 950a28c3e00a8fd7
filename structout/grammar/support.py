"""Which keywords of a constraint an engine enforces: what both support tables share.

All of it was found by experiment with the versions of ``engine_versions``.

What a backend refuses by itself needs no entry in a table, though an entry saves a
compilation. What it accepts and then ignores does: tests/grammar/test_support.py checks
the tables against instances.

Two deviations are not counted, since JSON Schema leaves them open: the keys of an
object may repeat, unless its properties are counted; and a ``format`` is enforced by
its shape (February may have 29 days in any year).
"""

import math
import re
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from structout.exact_json import ExactNumber
from structout.grammar.regex_features import Feature, regex_features
from structout.json_schema import Node, Nodes, formats_of_draft_3, has_nul, is_no_op, patterns_at, standard_format


@dataclass(frozen=True)
class Support:
    """How a backend would serve a constraint.

    Attributes:
        refusal: why it cannot serve it at all. Empty if it can.
        weakened: parts that it would not enforce, such as ``#/properties/age/not``.
        formats: each ``format`` that it would take as an annotation, such as
            ``#/properties/age/format``.
        unproved: parts that no comparison with other implementations has covered. Only
            a request that names the backend gets them from it.
        is_slow: whether it may compile for seconds.
        is_costly: whether its masks may take milliseconds, a hundred times the usual.
    """

    refusal: str = ""
    weakened: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    unproved: tuple[str, ...] = ()
    is_slow: bool = False
    is_costly: bool = False

    def if_chosen_automatically(self) -> "Support":
        """Count what is not proved as not enforced."""
        return replace(self, weakened=tuple(dict.fromkeys(self.weakened + self.unproved)))

    @property
    def enforces(self) -> bool:
        return not self.refusal and not self.weakened

    @property
    def reason(self) -> str:
        """Why the backend does not enforce the constraint in full."""
        return self.refusal or f"does not enforce {self.places}"

    @property
    def places(self) -> str:
        """The parts that are not enforced, for a message."""
        num_more = len(self.weakened) - _MAX_SHOWN
        shown = ", ".join(self.weakened[:_MAX_SHOWN])
        return f"{shown} and {num_more} more" if num_more > 0 else shown

    @property
    def pointer(self) -> str | None:
        """JSON pointer to the first part of a schema that is at fault, or None."""
        found = _POINTER.search(self.refusal or self.weakened[0]) if not self.enforces else None
        return None if found is None else found[0]


_MAX_SHOWN = 8
_POINTER = re.compile(r"#(?:/[^:]*)?(?=$|: )")


def is_gbnf(grammar: str) -> bool:
    """Whether a grammar uses ``::=``, which Lark has only inside strings."""
    return "::=" in _TEXT.sub("", grammar)


# Strings, classes and comments. Unclosed ones end at the end of their line, so that the
# time stays linear.
_TEXT = re.compile(r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"?|\[[^\]\\\n]*(?:\\.[^\]\\\n]*)*\]?|//[^\n]*|#[^\n]*')


# Keywords that neither engine enforces, and the draft that introduced them. In a schema
# of an earlier draft they are not keywords.
_IGNORED_SINCE = {
    "not": 4,
    "uniqueItems": 3,
    "dependencies": 3,
    "contains": 6,
    "if": 7,
    "minContains": 2019,
    "maxContains": 2019,
    "dependentRequired": 2019,
    "dependentSchemas": 2019,
    "$recursiveRef": 2019,
    "$dynamicRef": 2020,
}
_DRAFT_3 = 3
_ONLY_IN_DRAFT_3 = ("disallow", "divisibleBy", "extends")


def weakened_in_schema(
    nodes: Nodes,
    draft: int,
    ignored_keywords: Callable[[Node, int], Iterable[str]],
    ignored_since: dict[str, int] | None = None,
    root: str = "#",
) -> tuple[str, ...]:
    """Return JSON pointers to the keywords that a backend ignores.

    Keywords that every instance satisfies are left out.

    Args:
        nodes: the object schemas of a parsed schema.
        draft: the draft of that schema.
        ignored_keywords: called with a node and the draft. Returns the keywords of the
            node that only this backend ignores, because of their values.
        ignored_since: keywords that only this backend never reads, with the draft that
            introduced them.
        root: JSON pointer to the schema.
    """
    since = _IGNORED_SINCE | (ignored_since or {})
    unread = frozenset(keyword for keyword in since if since[keyword] <= draft)
    found = []
    for pointer, node in nodes:
        keywords = [] if unread.isdisjoint(node) else [key for key in node if key in unread and not is_no_op(key, node)]
        if draft <= _DRAFT_3:
            keywords += _ignored_in_draft_3(node)
        found += [f"{root}{pointer}/{keyword}" for keyword in [*keywords, *ignored_keywords(node, draft)]]
    return tuple(dict.fromkeys(found))


def formats_beyond(nodes: Nodes, enforced: Container[str], root: str = "#") -> tuple[str, ...]:
    """Return JSON pointers to each standard ``format`` that is not one of
    ``enforced``."""
    older = formats_of_draft_3(nodes)
    return tuple(
        f"{root}{pointer}/format"
        for pointer, node in nodes
        if "format" in node
        and (standard_format(node) or node["format"] in older)
        and node["format"] not in enforced
        and may_be(node, "string")
    )


def _ignored_in_draft_3(node: Node) -> Iterator[str]:
    yield from (key for key in _ONLY_IN_DRAFT_3 if key in node)
    if node.get("required") is True:  # in a property; later drafts list names in the object
        yield "required"


def unfollowed_reference(nodes: Nodes) -> str:
    """Why a backend that follows only JSON pointers refuses a schema, or nothing."""
    for pointer, node in nodes:
        reference = node.get("$ref", "#")
        if isinstance(reference, str) and reference != "#" and not reference.startswith("#/"):
            return f"cannot follow the reference {reference!r} of #{pointer}/$ref: copy the schema it names into $defs"
    return ""


def unreadable_schema(schema: Any, text: str, others: Container[str], nodes: Nodes) -> str:
    """Why a backend that gets a schema alone, as a C string, refuses it, or nothing.

    Args:
        schema: the schema.
        text: the same as JSON text.
        others: the URIs of the schemas that it may refer to.
        nodes: its object schemas.
    """
    metaschema = str(schema.get("$schema")).rstrip("#") if isinstance(schema, dict) else ""
    if metaschema in others:
        return f"knows the drafts' own metaschemas only, got {metaschema}"
    if has_nul(schema, text):
        return "takes no NUL character in a schema"
    return unfollowed_reference(nodes)


def counts_unchecked_keys(node: Node) -> bool:
    """Whether minProperties counts keys that the engines do not check for
    repetition."""
    minimum = node.get("minProperties")
    if not isinstance(minimum, int) or minimum < 2:
        return False
    return "patternProperties" in node or "propertyNames" in node or node.get("additionalProperties", True) is not False


def patterns_with(node: Node, features: set[Feature]) -> Iterator[str]:
    """Yield the places, from the node, of regular expressions that use one of
    ``features``."""
    yield from (place for place, pattern in patterns_at(node) if regex_features(pattern) & features)


def largest_integer(value: Any) -> float:
    """The largest magnitude of an integer in a JSON value, or 0. Infinity if no double
    has one of its numbers."""
    largest, pending = 0.0, [value]
    while pending:
        part = pending.pop()
        if isinstance(part, list | dict):
            pending += part.values() if isinstance(part, dict) else part
        elif isinstance(part, ExactNumber):
            return math.inf
        elif isinstance(part, int):
            largest = max(largest, abs(part))
    return largest


def may_be(node: Node, name: str) -> bool:
    """Whether the ``type`` of a node allows the JSON type ``name``."""
    given = node.get("type", name)
    return name in given if isinstance(given, list) else name == given


def features_in(pattern: str, features: set[Feature]) -> tuple[str, ...]:
    """The names of those of ``features`` that a regular expression uses."""
    return tuple(sorted(feature.value for feature in regex_features(pattern) & features))
