"""A JSON schema as a graph of schemas: walked without recursion, since they may be deep and refer to themselves."""

import re
from collections.abc import Callable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Any
from urllib.parse import unquote

from structout.errors import GrammarError

Node = Mapping[str, Any]

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

# The types that any draft gives a keyword's value, and the parts of it.
_SCHEMA = "object boolean"
_TYPES_OF = (
    dict.fromkeys(_SCHEMA_KEYWORDS, _SCHEMA)
    | dict.fromkeys(_SCHEMA_LIST_KEYWORDS, "array")
    | dict.fromkeys((*_SCHEMA_MAP_KEYWORDS, "$defs", "definitions", "dependencies", "dependentRequired"), "object")
    | dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), "number")
    | dict.fromkeys(("minContains", "maxContains", "minimum", "maximum", "multipleOf"), "number")
    | dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), "number boolean")
    | dict.fromkeys(("$schema", "$ref", "format", "pattern"), "string")
    | {"enum": "array", "items": "object boolean array", "required": "array boolean", "type": "string array"}
    | {"uniqueItems": "boolean"}
)
_TYPES_OF_PARTS = dict.fromkeys((*_SCHEMA_LIST_KEYWORDS, *_SCHEMA_MAP_KEYWORDS), _SCHEMA) | {
    "required": "string",
    "type": "string object",
}
_JSON_TYPES: dict[str, type | UnionType] = {
    "boolean": bool,  # which is an int to Python
    "number": int | float,
    "string": str,
    "array": list,
    "object": dict,
    "null": NoneType,
}

_DRAFT = re.compile(r"https?://json-schema\.org/draft[-/](?:0?(\d)|(20\d\d)-\d\d)/schema#?")
_NEWEST_DRAFT = 2020

# Passes over a schema until it is taken to allow something: each deals with at least one more step of a cycle.
_MOST_PASSES = 64


def draft_of(schema: Any) -> int:
    """3, 4, 6, 7, 2019 or 2020: what ``$schema`` says, the newest where it says something else."""
    match = _DRAFT.fullmatch(str(schema.get("$schema"))) if isinstance(schema, dict) else None
    return int(match[1] or match[2]) if match else _NEWEST_DRAFT


def subschemas(schema: Any) -> Iterator[tuple[str, Node]]:
    """All object schemas that bear on an instance, each once, with a pointer: definitions only where referred to."""
    pending = [("", schema)]
    seen: dict[int, Any] = {}  # by id, which lasts as long as the value
    while pending:
        pointer, node = pending.pop()
        if not isinstance(node, dict) or id(node) in seen:
            continue
        seen[id(node)] = node
        yield pointer, node
        pending += reversed([*_children(pointer, node), *referred(schema, node)])


def _children(pointer: str, node: Node) -> Iterator[tuple[str, Any]]:
    for keyword in _SCHEMA_KEYWORDS:
        child = node.get(keyword)
        if keyword == "propertyNames" and isinstance(child, dict):
            child = {"type": "string"} | child  # as every name is
        yield f"{pointer}/{keyword}", child
    for keyword in _SCHEMA_LIST_KEYWORDS:
        if isinstance(node.get(keyword), list):
            yield from ((f"{pointer}/{keyword}/{i}", child) for i, child in enumerate(node[keyword]))
    for keyword in _SCHEMA_MAP_KEYWORDS:
        if isinstance(node.get(keyword), dict):
            yield from ((f"{pointer}/{keyword}/{escaped(name)}", child) for name, child in node[keyword].items())


def check_keywords(schema: Any, root: str = "#") -> None:
    """Raise ``GrammarError`` for a keyword whose value is of a type that no draft gives it: engines and the functions
    here need not deal with it.

    Args:
        schema: as parsed.
        root: pointer to it.
    """
    for pointer, node in subschemas(schema):
        for keyword in node.keys() & _TYPES_OF.keys():
            _check_type(node[keyword], _TYPES_OF[keyword], f"{root}{pointer}/{keyword}")
        for keyword in node.keys() & _TYPES_OF_PARTS.keys():
            value = node[keyword]
            has_names = isinstance(value, dict) and keyword != "items"
            for name, part in value.items() if has_names else enumerate(value if isinstance(value, list) else ()):
                _check_type(part, _TYPES_OF_PARTS[keyword], f"{root}{pointer}/{keyword}/{escaped(str(name))}")


def _check_type(value: Any, types: str, pointer: str) -> None:
    name = next(name for name, type_ in _JSON_TYPES.items() if isinstance(value, type_))
    if name not in types.split():
        raise GrammarError(f"{pointer} must be {' or '.join(types.split())}, got {name}")


def referred(schema: Any, node: Node) -> Iterator[tuple[str, Any]]:
    """What a ``$ref`` of the node points to, with its pointer: None where there is nothing."""
    reference = node.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        target = schema
        for part in unquote(reference[1:]).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and name.isdecimal() and int(name) < len(target):
                target = target[int(name)]
            else:
                target = target.get(name) if isinstance(target, dict) else None
        yield reference[1:], target


def escaped(name: str) -> str:
    """As a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def allows_finite_text(schema: Any) -> bool:
    """False where every instance would have to contain another one, as those of ``{"$ref": "#"}``."""
    nodes = [node for _, node in subschemas(schema)]
    finite: set[int] = set()  # ids of nodes, some instance of which is known to end

    def is_finite(value: Any) -> bool:
        return id(value) in finite if isinstance(value, dict) else value is not False

    for _ in range(_MOST_PASSES):
        num_known = len(finite)
        for node in reversed(nodes):  # those that are referred to come later in the list
            if id(node) not in finite and _is_finite(schema, node, is_finite):
                finite.add(id(node))
        if is_finite(schema):
            return True
        if len(finite) == num_known:
            return False
    return True


def _is_finite(schema: Any, node: Node, is_finite: Callable[[Any], bool]) -> bool:
    needed = [target for _, target in referred(schema, node)]
    if isinstance(node.get("allOf"), list):
        needed += node["allOf"]
    if not all(map(is_finite, needed)):
        return False
    for keyword in ("anyOf", "oneOf"):
        if isinstance(node.get(keyword), list) and not any(map(is_finite, node[keyword])):
            return False
    types = node.get("type")
    if types is None or "const" in node or "enum" in node:
        return True
    names = types if isinstance(types, list) else [types]
    return any(all(map(is_finite, _needed_in(name, node))) for name in names)


def _needed_in(type_name: object, node: Node) -> Iterator[Any]:
    """The schemas of what every object or array of the node contains."""
    if type_name == "object" and isinstance(node.get("required"), list):
        properties = node.get("properties")
        others = True if "patternProperties" in node else node.get("additionalProperties", True)
        for name in node["required"]:
            yield properties.get(name, others) if isinstance(properties, dict) else others
    elif type_name == "array" and isinstance(node.get("minItems"), int):
        items = node.get("items", True)
        first = items if isinstance(items, list) else node.get("prefixItems", [])
        others = node.get("additionalItems", True) if isinstance(items, list) else items
        if isinstance(first, list):
            yield from first[: node["minItems"]]
            if node["minItems"] > len(first):
                yield others
