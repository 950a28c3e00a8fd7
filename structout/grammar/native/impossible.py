"""Finds the usual mistakes because of which no text satisfies a JSON schema."""

from collections.abc import Callable, Iterator
from types import NoneType, UnionType
from typing import Any

from structout.constraints import exact_json
from structout.constraints.schema_walks import Node, Nodes, escaped, referred

# _allows_finite_text gives up after so many passes over a schema, and says yes. Each
# pass resolves at least one more step of a cycle.
_MAX_PASSES = 64

_PYTHON_TYPES: dict[str, type | UnionType] = {
    "boolean": bool,  # before number: bool is a subclass of int
    "number": int | float,
    "string": str,
    "array": list,
    "object": dict,
    "null": NoneType,
}


def cause_of_impossibility(schema: Any, nodes: Nodes) -> tuple[str, str | None] | None:
    """Find a part of a schema because of which no text satisfies it.

    Args:
        schema: a schema with keywords of the right types, which no text satisfies.
        nodes: all that ``subschemas(schema)`` yields.

    Returns:
        the cause and a JSON pointer to the part, or None if there is no such part: the
        cause is none of the usual ones.
    """
    has_own_root = any(pointer and ("$id" in node or "id" in node) for pointer, node in nodes)
    if has_own_root or _allows_finite_text(schema, nodes, allows_false=False):
        return None  # in a part with an own root, pointers begin there
    if schema is False:
        return "the schema is false", "#"
    forbidden = [f"#{pointer}" for pointer, value in _required_values(schema, nodes) if value is False]
    if forbidden and _allows_finite_text(schema, nodes, allows_false=True):
        return f"{', '.join(forbidden)} is false, which no value satisfies", forbidden[0]
    for place, node in nodes:
        if not _has_value_of_its_type(node):
            return "no value has all the types that are asked of it", f"#{place}"
    for place, node in nodes:
        if cause := _lack_of_values(node):
            return cause, f"#{place}/uniqueItems"
    return "every instance would have to contain another instance", None


_MAY_BE_IMPOSSIBLE = frozenset({"$ref", "allOf", "anyOf", "oneOf", "required", "minItems", "const", "enum"})


# A least fixed point: a schema counts as finite once the schemas do that it refers to
# or whose values it must contain. So schemas that must contain each other never count.
def _allows_finite_text(schema: Any, nodes: Nodes, *, allows_false: bool) -> bool:
    finite: set[int] = set()  # ids of the nodes that are known to have a finite instance

    def is_finite(value: Any) -> bool:
        return id(value) in finite if isinstance(value, dict) else allows_false or value is not False

    for _ in range(_MAX_PASSES):
        num_known = len(finite)
        for _, node in reversed(nodes):  # the targets of references come later in the list
            if id(node) not in finite and _is_finite(schema, node, is_finite):
                finite.add(id(node))
        if is_finite(schema):
            return True
        if len(finite) == num_known:
            return False
    return True


def _is_finite(schema: Any, node: Node, is_finite: Callable[[Any], bool]) -> bool:
    if _MAY_BE_IMPOSSIBLE.isdisjoint(node) and node.get("type") != []:
        return True
    needed = [target for _, target in referred(schema, node)]
    if isinstance(node.get("allOf"), list):
        needed += node["allOf"]
    if not all(map(is_finite, needed)):
        return False
    for keyword in ("anyOf", "oneOf"):
        if isinstance(node.get(keyword), list) and not any(map(is_finite, node[keyword])):
            return False
    types = node.get("type")
    if types is None:
        return True
    names = types if isinstance(types, list) else [types]
    if "const" in node or isinstance(node.get("enum"), list):
        return _has_value_of_its_type(node)
    if names == ["array"] and _lack_of_values(node):
        return False
    return any(all(is_finite(value) for _, value in _contents(name, node)) for name in names)


def _lack_of_values(node: Node) -> str:
    """The message for an array with ``uniqueItems`` that needs more items than there
    are values. Empty if it finds no such lack."""
    least, items = node.get("minItems"), node.get("items")
    if node.get("uniqueItems") is not True or not isinstance(least, int) or "prefixItems" in node:
        return ""
    most = _max_values(items) if isinstance(items, dict) else None
    if most is None or most >= least:
        return ""
    values = "1 value" if most == 1 else f"{most:,} values"
    return f"minItems asks for {least:,} different items, and items allows only {values}"


def _max_values(node: Node) -> int | None:
    """A number of values that a node does not exceed, or None if it names none."""
    if "$ref" in node:
        return None
    if "const" in node:
        return 1
    if isinstance(node.get("enum"), list):
        return len({exact_json.dumps(value, sort_keys=True) for value in node["enum"]})
    types = node.get("type")
    if not isinstance(types, str | list):
        return None
    counts = [_max_values_of(name, node) for name in ([types] if isinstance(types, str) else types)]
    return None if None in counts else sum(count for count in counts if count is not None)


def _max_values_of(type_name: object, node: Node) -> int | None:
    if type_name == "integer":
        lowest, highest = node.get("minimum"), node.get("maximum")
        return max(0, highest - lowest + 1) if type(lowest) is int and type(highest) is int else None
    return {"boolean": 2, "null": 1}.get(str(type_name))


def _has_value_of_its_type(node: Node) -> bool:
    """False if ``const``, or else ``enum``, allows only values that are not of the
    node's type."""
    types = node.get("type")
    values = [node["const"]] if "const" in node else node.get("enum")
    if types is None or not isinstance(values, list):
        return True
    return any(_may_have_type(value, types if isinstance(types, list) else [types]) for value in values)


def _may_have_type(value: Any, names: list[Any]) -> bool:
    """True if a JSON value may be of one of the types. Every number passes as
    ``integer``."""
    name = next(name for name, type_ in _PYTHON_TYPES.items() if isinstance(value, type_))
    return name in names or (name == "number" and "integer" in names)


def _required_values(schema: Any, nodes: Nodes) -> Iterator[tuple[str, Any]]:
    """Yield the schemas that must hold for a part of some instance, each with its JSON
    pointer."""
    for pointer, node in nodes:
        yield from referred(schema, node)
        for keyword in ("allOf", "anyOf", "oneOf"):
            if isinstance(node.get(keyword), list):
                yield from ((f"{pointer}/{keyword}/{i}", child) for i, child in enumerate(node[keyword]))
        for type_name in ("object", "array"):
            yield from ((f"{pointer}/{below}", value) for below, value in _contents(type_name, node))


def _contents(type_name: object, node: Node) -> Iterator[tuple[str, Any]]:
    """Yield the schemas of what every object or array of ``node`` contains, each with
    its pointer from there."""
    if type_name == "object" and isinstance(node.get("required"), list):
        properties = node.get("properties")
        others = True if "patternProperties" in node else node.get("additionalProperties", True)
        for name in node["required"]:
            if isinstance(properties, dict) and name in properties:
                yield f"properties/{escaped(name)}", properties[name]
            else:
                yield "additionalProperties", others
    elif type_name == "array" and isinstance(node.get("minItems"), int):
        items = node.get("items", True)
        first_keyword = "items" if isinstance(items, list) else "prefixItems"
        first = node.get(first_keyword, [])
        others_keyword = "additionalItems" if isinstance(items, list) else "items"
        if isinstance(first, list):
            yield from ((f"{first_keyword}/{i}", value) for i, value in enumerate(first[: node["minItems"]]))
            if node["minItems"] > len(first):
                yield others_keyword, node.get(others_keyword, True)
