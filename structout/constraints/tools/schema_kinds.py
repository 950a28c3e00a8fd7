"""The JSON types that a part of a schema allows, by its own keywords alone.

The grammar that generates arguments and the reader must agree on these types.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from structout.constraints.schema_walks import escaped, part_at, referred
from structout.constraints.tools.styles import JSON_KINDS, STRING

Node = Mapping[str, Any]

ALL_KINDS = frozenset((STRING, *JSON_KINDS))
_KIND_OF = {"integer": "number"}
# Keywords that constrain nothing.
ANNOTATIONS = frozenset(("title", "description", "default", "examples", "deprecated", "$comment"))
# Keywords that may stand beside a reference that is followed.
_DESCRIPTIVE = ANNOTATIONS | {"$ref", "$defs", "definitions"}


def resolved(schema: Any, pointer: str | None) -> tuple[str | None, Node]:
    """Follow references that stand alone.

    Args:
        schema: the whole schema.
        pointer: JSON pointer to a part of it, without ``#``. None stands for a part
            that allows any value.

    Returns:
        the place where they lead, and what is there. A boolean is written as an object.
    """
    if pointer is None:
        return None, {}
    seen: set[str] = set()
    while True:
        node = part_at(schema, pointer)
        if not isinstance(node, Mapping):
            return (pointer, {}) if node is True else (pointer, {"enum": []})
        target = next(referred(schema, node), None)
        if target is None or target[1] is None or pointer in seen or node.keys() - _DESCRIPTIVE:
            return pointer, node
        seen.add(pointer)
        pointer = unquote(target[0])


def branches_of(pointer: str | None, node: Node) -> list[str]:
    """The places of the alternatives of a part that says nothing else. Empty if it is
    no such part."""
    choices = node.get("anyOf")
    if pointer is None or not isinstance(choices, list) or node.keys() - _DESCRIPTIVE - {"anyOf"}:
        return []
    return [f"{pointer}/anyOf/{i}" for i in range(len(choices))]


def kinds_of(node: Node) -> frozenset[str]:
    """The JSON types of a part's values; "number" stands for integers too."""
    if "const" in node:
        return frozenset((kind_of(node["const"]),))
    if "enum" in node:
        return frozenset(map(kind_of, node["enum"]))
    given = node.get("type")
    if given is None:
        return ALL_KINDS
    return frozenset(_KIND_OF.get(name, name) for name in ([given] if isinstance(given, str) else given))


def property_pointer(pointer: str | None, node: Node, name: str) -> str | None:
    """The place of the schema of a key's values. None if any value is allowed."""
    if pointer is None:
        return None
    if name in node.get("properties", {}):
        return f"{pointer}/properties/{escaped(name)}"
    return below(pointer, node, "additionalProperties")


def below(pointer: str | None, node: Node, keyword: str) -> str | None:
    """The place of a keyword's schema. None if it is missing, or allows any value."""
    return None if pointer is None or not isinstance(node.get(keyword), Mapping) else f"{pointer}/{keyword}"


def kind_of(value: object) -> str:
    """The JSON type of a value; "number" stands for integers too."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return STRING
        case dict():
            return "object"
        case list():
            return "array"
    return "number"
