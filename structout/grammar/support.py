"""Which keywords of a constraint an engine enforces: what llguidance/support.py and xgrammar/support.py share.

All of it was found by experiment with llguidance 1.9.1 and xgrammar 0.2.8.

What a backend refuses by itself needs no mention there, but saves a compilation. What it takes and then ignores does:
tests/grammar/test_support.py holds both against instances.

Two departures are not counted, since JSON Schema leaves them open: the keys of an object may repeat, unless its
properties are counted; and a ``format`` is enforced by its shape (February may have 29 days in any year).
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from structout.grammar.json_schema import Node, draft_of, escaped, subschemas
from structout.grammar.regex_features import Feature, regex_features


@dataclass(frozen=True)
class Support:
    """How a backend serves a constraint.

    Attributes:
        refusal: why it cannot at all; empty where it can.
        weakened: what it would not enforce, such as ``#/properties/age/not``.
        is_slow: it may compile for seconds.
    """

    refusal: str = ""
    weakened: tuple[str, ...] = ()
    is_slow: bool = False

    @property
    def enforces(self) -> bool:
        return not self.refusal and not self.weakened

    @property
    def reason(self) -> str:
        """What keeps the backend from enforcing the constraint."""
        return self.refusal or f"does not enforce {', '.join(self.weakened)}"


def is_gbnf(grammar: str) -> bool:
    """Whether a grammar is written with ``::=``, which Lark knows nowhere outside of text."""
    return "::=" in _TEXT.sub("", grammar)


# Strings, classes and comments. What is not closed goes on to the end of its line, so that nothing is read twice.
_TEXT = re.compile(r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"?|\[[^\]\\\n]*(?:\\.[^\]\\\n]*)*\]?|//[^\n]*|#[^\n]*')


# Keywords that neither backend enforces, and the draft that introduced them: in a schema of an earlier draft they are
# no keywords.
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
# Values of these keywords that every instance satisfies.
_BINDS_NOTHING: dict[str, tuple[Any, ...]] = {
    "not": (False,),
    "uniqueItems": (False,),
    "propertyNames": (True, {}),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "dependencies": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
}


def weakened_in_schema(
    schema: Any,
    ignores: Callable[[Node, int], Iterable[str]],
    ignored_since: dict[str, int] | None = None,
    root: str = "#",
) -> tuple[str, ...]:
    """Pointers to the keywords that a backend ignores: those that bind nothing are no loss.

    Args:
        schema: as parsed.
        ignores: the keywords of a node, in a draft, that the backend alone ignores for what they say.
        ignored_since: those that it alone never reads, with the draft that introduced them.
        root: pointer to the schema.
    """
    draft = draft_of(schema)
    since = _IGNORED_SINCE | (ignored_since or {})
    found = []
    for pointer, node in subschemas(schema):
        keywords = [key for key in node if since.get(key, draft + 1) <= draft and not _binds_nothing(key, node)]
        if draft <= _DRAFT_3:
            keywords += _ignored_in_draft_3(node)
        found += [f"{root}{pointer}/{keyword}" for keyword in [*keywords, *ignores(node, draft)]]
    return tuple(dict.fromkeys(found))


def _binds_nothing(keyword: str, node: Node) -> bool:
    return node[keyword] in _BINDS_NOTHING.get(keyword, ())


def _ignored_in_draft_3(node: Node) -> Iterator[str]:
    yield from (key for key in _ONLY_IN_DRAFT_3 if key in node)
    if node.get("required") is True:  # of a property, where it is said today of the object
        yield "required"


def counts_free_keys(node: Node) -> bool:
    """minProperties counts keys that are not checked to differ."""
    least = node.get("minProperties")
    if not isinstance(least, int) or least < 2:
        return False
    return "patternProperties" in node or "propertyNames" in node or node.get("additionalProperties", True) is not False


def patterns_of(node: Node) -> Iterator[str]:
    if isinstance(node.get("pattern"), str):
        yield node["pattern"]
    if isinstance(node.get("patternProperties"), dict):
        yield from node["patternProperties"]


def patterns_with(node: Node, features: set[Feature]) -> Iterator[str]:
    for pattern in patterns_of(node):
        if regex_features(pattern) & features:
            yield "pattern" if node.get("pattern") == pattern else f"patternProperties/{escaped(pattern)}"


def may_be(node: Node, name: str) -> bool:
    given = node.get("type", name)
    return name in given if isinstance(given, list) else name == given


def features_in(pattern: str, features: set[Feature]) -> tuple[str, ...]:
    return tuple(sorted(feature.value for feature in regex_features(pattern) & features))
