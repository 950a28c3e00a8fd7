"""The requirements of a JSON schema, and the schema with some of them only."""

from collections.abc import Container
from typing import Any, NamedTuple

from structout.constraints.schema_walks import CONSTRAINING_KEYWORDS, escaped

_MAPS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_LISTS = ("allOf", "anyOf", "prefixItems", "items")
_SCHEMAS = (
    "additionalItems additionalProperties unevaluatedItems unevaluatedProperties items propertyNames then else".split()
)
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_COUNTS = ("minContains", "maxContains")
_CONDITIONS = ("if", *_COUNTS)  # of then and else, and of contains


class Requirement(NamedTuple):
    """A keyword that forbids texts.

    Attributes:
        pointer: JSON pointer to it, from ``#``.
        keyword: its name. For a schema that is false, that of the keyword which holds
            it.
        value: what stands there.
    """

    pointer: str
    keyword: str
    value: Any


class RelaxedSchema:
    """A schema in which each requirement may be dropped.

    Fewer requirements allow more texts: whatever counts the other way round (``not``,
    ``if``, ``contains``) is one requirement, with all that it holds. A ``oneOf`` is one
    too, beside its alternatives, of which a text must satisfy one.

    Args:
        schema: does not change itself.
        kept: pointers to the requirements that stay. Default: all.

    Attributes:
        value: the schema with these requirements.
        requirements: all, in the order of the schema.
    """

    def __init__(self, schema: Any, kept: Container[str] | None = None):
        self.requirements: list[Requirement] = []
        self._kept = kept
        self.value = self._relaxed(schema, "#", "")

    def _keeps(self, pointer: str, keyword: str, value: Any) -> bool:
        self.requirements.append(Requirement(pointer, keyword, value))
        return self._kept is None or pointer in self._kept

    def _relaxed(self, schema: Any, pointer: str, keyword: str) -> Any:
        if not isinstance(schema, dict):
            return schema if schema is not False or self._keeps(pointer, keyword, False) else True
        relaxed: dict[str, Any] = {}
        alternatives = None
        for name, value in schema.items():
            place = f"{pointer}/{escaped(name)}"
            if name in _MAPS and isinstance(value, dict):
                relaxed[name] = {
                    key: self._relaxed(part, f"{place}/{escaped(key)}", name) for key, part in value.items()
                }
            elif name in _LISTS and isinstance(value, list):
                relaxed[name] = self._relaxed_list(value, place, name)
            elif name in _SCHEMAS:
                relaxed[name] = self._relaxed(value, place, name)
            elif name == "oneOf" and isinstance(value, list):
                alternatives = {"anyOf": self._relaxed_list(value, place, name)}
                if self._keeps(place, name, value):
                    relaxed[name] = value
            elif name == "dependencies" and isinstance(value, dict):
                relaxed[name] = self._relaxed_dependencies(value, place)
            elif not _is_required(name, value) or self._keeps(place, name, value):
                relaxed[name] = value
        if alternatives is not None:
            relaxed["allOf"] = [*relaxed.get("allOf", ()), alternatives]
        if "contains" not in relaxed:
            relaxed = {name: value for name, value in relaxed.items() if name not in _COUNTS}
        return relaxed

    def _relaxed_list(self, schemas: list[Any], pointer: str, keyword: str) -> list[Any]:
        return [self._relaxed(part, f"{pointer}/{i}", keyword) for i, part in enumerate(schemas)]

    def _relaxed_dependencies(self, given: dict[str, Any], pointer: str) -> dict[str, Any]:
        relaxed = {}
        for key, part in given.items():
            place = f"{pointer}/{escaped(key)}"
            if isinstance(part, list):
                relaxed[key] = part if self._keeps(place, "dependencies", part) else []
            else:
                relaxed[key] = self._relaxed(part, place, "dependencies")
        return relaxed


def _is_required(keyword: str, value: Any) -> bool:
    """True if a keyword is a requirement as a whole: ``maximum``, and also ``not`` with
    all that it holds. A reference to a part of the same document is none: the
    requirements of that part count."""
    if keyword in _REFERENCES and isinstance(value, str) and value.startswith("#"):
        return False
    return keyword in CONSTRAINING_KEYWORDS and keyword not in _CONDITIONS
