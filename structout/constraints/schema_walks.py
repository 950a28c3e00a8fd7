"""Walks over the parts of a JSON schema that apply to an instance.

Schemas may be deep and may refer to themselves, so nothing here recurses.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

Node = Mapping[str, Any]
Nodes = Sequence[tuple[str, Node]]  # what subschemas yields

_SCHEMA_KEYWORDS = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_SCHEMA_LIST_KEYWORDS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_SCHEMA_MAP_KEYWORDS = ("dependentSchemas", "patternProperties", "properties")
_HOLDS_SCHEMAS = frozenset((*_SCHEMA_KEYWORDS, *_SCHEMA_LIST_KEYWORDS, *_SCHEMA_MAP_KEYWORDS))

_DRAFT = re.compile(r"https?://json-schema\.org/draft[-/](?:0?(\d)|(20\d\d)-\d\d)/schema#?")
_NEWEST_DRAFT = 2020

# The keywords that constrain an instance.
CONSTRAINING_KEYWORDS = frozenset(
    "type enum const properties required additionalProperties patternProperties propertyNames minProperties "
    "maxProperties unevaluatedProperties dependencies dependentRequired dependentSchemas items prefixItems "
    "additionalItems minItems maxItems uniqueItems contains minContains maxContains unevaluatedItems minLength "
    "maxLength pattern format minimum maximum exclusiveMinimum exclusiveMaximum multipleOf allOf anyOf oneOf not if "
    "then else $ref $dynamicRef $recursiveRef".split()
)

# The draft that introduced a keyword, for those that came after draft 4.
DRAFT_OF_KEYWORD = {
    "const": 6,
    "contains": 6,
    "propertyNames": 6,
    "if": 7,
    "then": 7,
    "else": 7,
    "$recursiveRef": 2019,
    "dependentRequired": 2019,
    "dependentSchemas": 2019,
    "maxContains": 2019,
    "minContains": 2019,
    "unevaluatedItems": 2019,
    "unevaluatedProperties": 2019,
    "$dynamicRef": 2020,
    "prefixItems": 2020,
}

# The formats that a draft from 4 on defines. Any other value of `format` is an
# annotation: a validator that does not know it ignores it.
STANDARD_FORMATS = frozenset(
    "date-time time date duration email idn-email hostname idn-hostname ipv4 ipv6 uri uri-reference iri iri-reference "
    "uuid uri-template json-pointer relative-json-pointer regex".split()
)

# Formats that only draft 3 defines, as far as texts can be checked for them.
FORMATS_OF_DRAFT_3 = frozenset(("host-name", "ip-address", "color"))


def draft_of(schema: Any) -> int:
    """The draft that ``$schema`` names (3, 4, 6, 7, 2019 or 2020), or the newest if it
    names none of these."""
    match = _DRAFT.fullmatch(str(schema.get("$schema"))) if isinstance(schema, dict) else None
    return int(match[1] or match[2]) if match else _NEWEST_DRAFT


# -- the schemas that apply to an instance ----------------------------------------


def subschemas(schema: Any) -> Iterator[tuple[str, Node]]:
    """Yield all object schemas that apply to a part of an instance, each once, with its
    JSON pointer.

    Definitions count only where something refers to them.
    """
    pending = [("", schema)]
    seen: dict[int, Any] = {}  # keeps the values alive, so that no id is used twice
    while pending:
        pointer, node = pending.pop()
        if not isinstance(node, dict) or id(node) in seen:
            continue
        seen[id(node)] = node
        yield pointer, node
        children = list(_children(pointer, node))
        if "$ref" in node:
            children += referred(schema, node)
        pending += reversed(children)


def _children(pointer: str, node: Node) -> Iterator[tuple[str, Any]]:
    for keyword, value in node.items():
        if keyword not in _HOLDS_SCHEMAS:
            continue
        if isinstance(value, list) and keyword in _SCHEMA_LIST_KEYWORDS:
            yield from ((f"{pointer}/{keyword}/{i}", child) for i, child in enumerate(value))
        elif isinstance(value, dict) and keyword in _SCHEMA_MAP_KEYWORDS:
            yield from ((f"{pointer}/{keyword}/{escaped(name)}", child) for name, child in value.items())
        elif isinstance(value, dict) and keyword == "propertyNames":
            yield f"{pointer}/{keyword}", {"type": "string"} | value  # every name is a string
        elif isinstance(value, dict) and keyword in _SCHEMA_KEYWORDS:
            yield f"{pointer}/{keyword}", value


def referred(schema: Any, node: Node) -> Iterator[tuple[str, Any]]:
    """Yield the target of the node's ``$ref`` with its pointer. The target is None if
    there is nothing there. References that are no pointers lead nowhere."""
    reference = node.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        target = schema
        for part in unquote(reference[1:]).split("/")[1:]:
            name = unescaped(part)
            if isinstance(target, list) and name.isdecimal() and int(name) < len(target):
                target = target[int(name)]
            else:
                target = target.get(name) if isinstance(target, dict) else None
        yield reference[1:], target


def part_at(schema: Any, pointer: str) -> Any:
    """The part of a schema at a JSON pointer.

    Args:
        schema: the schema.
        pointer: without ``#``.

    Raises:
        LookupError: there is none.
    """
    part = schema
    for name in pointer.split("/")[1:]:
        part = part[int(name)] if isinstance(part, list) else part[unescaped(name)]
    return part


def escaped(name: str) -> str:
    """``name`` as one part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def keyword_at(pointer: str) -> str | None:
    """The keyword that a JSON pointer names, or the one whose patterns or names it
    points to."""
    parts_ = pointer.split("/")[1:]
    return next((part for part in reversed(parts_[-2:]) if part in CONSTRAINING_KEYWORDS), None)


# -- formats ------------------------------------------------------------------------


def standard_format(node: Node) -> str | None:
    """The node's ``format`` if a draft defines it. Any other value constrains
    nothing."""
    name = node.get("format")
    return name if isinstance(name, str) and name in STANDARD_FORMATS else None


def formats_of_draft_3(nodes: Nodes) -> frozenset[str]:
    """The formats that the schema may name because it is of draft 3."""
    return FORMATS_OF_DRAFT_3 if nodes and draft_of(nodes[0][1]) == 3 else frozenset()


def unknown_formats(nodes: Nodes, root: str = "#") -> Iterator[str]:
    """Yield JSON pointers to the ``format`` keywords whose value no draft defines."""
    older = formats_of_draft_3(nodes)
    for pointer, node in nodes:
        if "format" in node and standard_format(node) is None and node["format"] not in older:
            yield f"{root}{pointer}/format"


def unescaped(part: str) -> str:
    """The name that one part of a JSON pointer is."""
    return part.replace("~1", "/").replace("~0", "~")
