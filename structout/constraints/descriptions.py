"""Schemas as short texts that a model reads."""

import json
from collections.abc import Mapping
from typing import Any

from structout.constraints.schema_walks import part_at

_SHORT_TYPES = {"string", "integer", "number", "boolean", "null"}
_ANNOTATIONS = {"title", "description", "default", "examples", "$schema", "$id", "$defs", "definitions"}
# The keywords of which the short form tells, by type.
_TOLD = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "format", "pattern"},
    "integer": {"minimum", "maximum"},
    "number": {"minimum", "maximum"},
}
_BOUNDS = {"string": "Length", "array": "Items", "integer": "imum", "number": "imum"}
_MAX_DEPTH = 6


def describe(schema: Any) -> str:
    """A JSON Schema as the shape of its texts.

    Keys stand in their order, optional ones with a question mark. A value is its type
    with its bounds, or its choices. Descriptions are comments. What has no short form
    is shown as JSON Schema.

    Args:
        schema: a JSON Schema.
    """
    return _described(schema, schema, 0)


def _described(root: Any, schema: Any, depth: int) -> str:
    if not isinstance(schema, Mapping):
        return "any value" if schema is True else json.dumps(schema)
    rest = {keyword: value for keyword, value in schema.items() if keyword not in _ANNOTATIONS}
    if not rest:
        return "any value"
    if depth == _MAX_DEPTH:
        return json.dumps(rest, ensure_ascii=False)
    match rest:
        case {"$ref": str(reference), **others} if not others and reference.startswith("#"):
            return _described(root, part_at(root, reference), depth + 1)
        case {"const": value}:
            return json.dumps(value, ensure_ascii=False)
        case {"enum": list(values)}:
            return " | ".join(json.dumps(value, ensure_ascii=False) for value in values)
        case {"anyOf": list(branches), **others} | {"oneOf": list(branches), **others} if not others:
            return " | ".join(_described(root, branch, depth + 1) for branch in branches)
        case {"type": list(kinds)}:
            return " | ".join(_described(root, {**schema, "type": kind}, depth + 1) for kind in kinds)
        case {"type": "object", "properties": dict(properties), **others} if others.keys() <= _TOLD["object"]:
            return _object(root, properties, others, depth)
        case {"type": "array", "items": items, **others} if others.keys() <= _TOLD["array"]:
            return f"[{_described(root, items, depth + 1)}, ...]{_bounds('array', others)}"
        case {"type": str(kind), **others} if kind in _SHORT_TYPES and others.keys() <= _TOLD.get(kind, set()):
            details = [others[name] for name in ("format", "pattern") if name in others]
            return "".join([kind, *(f" ({detail})" for detail in details), _bounds(kind, others)])
    return json.dumps(rest, ensure_ascii=False)


def _object(root: Any, properties: dict[str, Any], others: dict[str, Any], depth: int) -> str:
    indent = "  " * (depth + 1)
    lines = []
    for key, value in properties.items():
        mark = "" if key in others.get("required", ()) else "?"
        comment = value.get("description") if isinstance(value, Mapping) else None
        line = f"{indent}{json.dumps(key, ensure_ascii=False)}{mark}: {_described(root, value, depth + 1)}"
        lines.append(line if comment is None else f"{line}  // {' '.join(str(comment).split())}")
    return "{\n" + ",\n".join(lines) + f"\n{'  ' * depth}}}" if lines else "{}"


def _bounds(kind: str, others: Mapping[str, Any]) -> str:
    ending = _BOUNDS.get(kind, "")
    low, high = (others.get(f"{bound}{ending}") for bound in ("min", "max"))
    if low is None and high is None:
        return ""
    what = {"string": " characters", "array": " items"}.get(kind, "")
    if low is None or high is None:
        return f" (at least {low}{what})" if high is None else f" (at most {high}{what})"
    return f" ({low} to {high}{what})"
