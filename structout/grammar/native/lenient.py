"""A schema without the parts that the engine does not support."""

import copy
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from structout.constraints.schema_walks import escaped, unescaped

# A weaker part inside of these may make the schema stronger: a weaker ``not`` forbids
# more. So the whole keyword goes, and the schema becomes weaker and not stronger.
_NEGATING = ("not", "if", "oneOf", "contains")
# Without the first keyword, these would apply to more.
_DEPENDENT = {"patternProperties": ("additionalProperties", "unevaluatedProperties")}
_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")


def without(schema: Any, pointer: str) -> tuple[Any, list[str]]:
    """Copy a schema without one of its keywords.

    Args:
        schema: does not change itself.
        pointer: JSON pointer to the keyword, or to a part of its value, from ``#``.

    Returns:
        the copy, and pointers to the keywords that it lacks. These stand further out
        where the given one is negated.

    Raises:
        LookupError: the schema has nothing at this place.
    """
    changed = copy.deepcopy(schema)
    keywords = list(_keywords_along(changed, pointer))
    if not keywords:
        raise LookupError(pointer)
    node, keyword, place = next((found for found in keywords if found[1] in _NEGATING), keywords[-1])
    left_out = [name for name in (keyword, *_DEPENDENT.get(keyword, ())) if name in node]
    for name in left_out:
        del node[name]
    return changed, [f"{place}/{name}" for name in left_out]


def _keywords_along(schema: Any, pointer: str) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yield the keywords on the way to a place, each with the schema that has it and
    the pointer to that schema."""
    place, part, holds_schemas = "#", schema, False
    for name in pointer.split("/")[1:]:
        name = unescaped(unquote(name))
        if isinstance(part, list):
            part, holds_schemas = part[int(name)], False
        else:
            if not holds_schemas:
                yield part, name, place
            holds_schemas = not holds_schemas and name in _NAMED_SCHEMAS
            part = part[name]
        place += f"/{escaped(name)}"
