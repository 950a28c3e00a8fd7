"""Schemas as short texts that a model reads."""

import json
from collections.abc import Mapping
from typing import Any

from structout.constraints.output_types import is_output_type, schema_of
from structout.constraints.schema_walks import referred

_ANNOTATIONS = {"title", "description", "default", "examples", "$schema", "$id", "$defs", "definitions"}
# The keywords of which the short form tells, by type.
_TOLD: dict[str, set[str]] = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "format", "pattern"},
    "integer": {"minimum", "maximum"},
    "number": {"minimum", "maximum"},
    "boolean": set(),
    "null": set(),
}
_BOUNDS = {"array": ("Items", " items"), "string": ("Length", " characters")}


def describe(json: Any) -> str:
    """The shape of the texts of a JSON Schema, for a prompt.

    Keys stand in their order, optional ones with a question mark. A value is its type
    with its bounds, or its choices. Descriptions are comments. What has no short form
    is shown as JSON Schema.

    Args:
        json: a type or a JSON Schema, as in :class:`StructuredOutputsParams`.

    Raises:
        GrammarError: the type has no schema.
    """
    schema = schema_of(json) if is_output_type(json) else json
    return _Writer(schema).write(schema, 0, frozenset({"#"}))


class _Writer:
    """Writes the parts of one schema."""

    def __init__(self, schema: Any):
        self._schema = schema

    def write(self, part: Any, depth: int, within: frozenset[str]) -> str:
        """The text of one part.

        Args:
            part: the part.
            depth: of the indentation.
            within: the references that have led here.
        """
        if not isinstance(part, Mapping):
            return "any value" if part is True else _text(part)
        rest = {keyword: value for keyword, value in part.items() if keyword not in _ANNOTATIONS}
        match rest:
            case {"$ref": reference, **others} if not others:
                target = next((target for _, target in referred(self._schema, rest)), None)
                if target is not None:
                    return "as above" if reference in within else self.write(target, depth, within | {reference})
            case {"const": value}:
                return _text(value)
            case {"enum": list(values)}:
                return f"one of {', '.join(map(_text, values))}"
            case {"anyOf": list(branches), **others} | {"oneOf": list(branches), **others} if not others:
                return " or ".join(self.write(branch, depth, within) for branch in branches)
            case {"type": list(kinds)}:
                return " or ".join(self.write(_of_kind(rest, kind), depth, within) for kind in kinds)
            case {"type": "object", **others} if others and others.keys() <= _TOLD["object"]:
                return self._object(others, depth, within)
            case {"type": "array", "items": items, **others} if others.keys() <= _TOLD["array"]:
                return f"[{self.write(items, depth, within)}, ...]{_bounds('array', others)}"
            case {"type": str(kind), **others} if kind in _TOLD and others.keys() <= _TOLD[kind] - {"items"}:
                details = [f" ({others[name]})" for name in ("format", "pattern") if name in others]
                return "".join([kind, *details, _bounds(kind, others)])
            case {**others} if not others:
                return "any value"
        return _text(rest)

    def _object(self, keywords: Mapping[str, Any], depth: int, within: frozenset[str]) -> str:
        properties, required = keywords.get("properties", {}), keywords.get("required", ())
        named = [(_text(key) + ("" if key in required else "?"), value) for key, value in properties.items()]
        others = keywords.get("additionalProperties")
        if isinstance(others, Mapping):
            named.append(("any other key" if named else "any key", others))
        if not named:
            return "{}"
        indent = "  " * depth
        lines = []
        for i, (name, value) in enumerate(named, 1):
            comma = "," if i < len(named) else ""
            comment = value.get("description") if isinstance(value, Mapping) else None
            comment = "" if comment is None else f"  // {' '.join(str(comment).split())}"
            lines.append(f"{indent}  {name}: {self.write(value, depth + 1, within)}{comma}{comment}")
        return "\n".join(["{", *lines, f"{indent}}}"])


def _of_kind(part: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """A part with one of its types, without the keywords of the others."""
    others = set().union(*_TOLD.values()) - _TOLD.get(kind, set())
    return {keyword: value for keyword, value in part.items() if keyword not in others} | {"type": kind}


def _bounds(kind: str, others: Mapping[str, Any]) -> str:
    ending, what = _BOUNDS.get(kind, ("imum", ""))
    low, high = others.get(f"min{ending}"), others.get(f"max{ending}")
    if low is not None and high is not None:
        return f" ({low} to {high}{what})"
    return f" (at least {low}{what})" if low is not None else f" (at most {high}{what})" if high is not None else ""


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
