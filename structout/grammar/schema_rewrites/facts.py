"""What a JSON schema says about its instances: types, values, required properties."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from structout import exact_json
from structout.exact_json import is_integer
from structout.json_schema import DRAFT_OF_KEYWORD, Node, is_no_op

TYPES = ("null", "boolean", "object", "array", "number", "string")
REF_ALONE_UNTIL = 7  # up to this draft, keywords beside $ref are ignored

# Every keyword that restricts instances in some draft.
CONSTRAINING = frozenset(
    "$ref $dynamicRef $recursiveRef type enum const allOf anyOf oneOf not if then else "
    "properties required additionalProperties patternProperties propertyNames minProperties maxProperties "
    "dependencies dependentRequired dependentSchemas unevaluatedProperties "
    "items prefixItems additionalItems unevaluatedItems minItems maxItems uniqueItems contains minContains maxContains "
    "minLength maxLength pattern format minimum maximum exclusiveMinimum exclusiveMaximum multipleOf "
    "disallow divisibleBy extends".split()
)
_MAY_BE_TRUE = ("additionalProperties", "items", "additionalItems")


class Facts:
    """What every instance of a schema satisfies.

    Attributes:
        whole: the schema.
        types: the JSON types that an instance may have. "integer" are the numbers
            without a fraction, and "number" all others.
        values: all values of an instance, or None if they are not listed.
        required: names of properties that every object has.
        any_ofs: lists of schemas, one of which holds.
    """

    def __init__(self, whole: Any):
        self.whole = whole
        self.types = split_numbers(TYPES)
        self.values: list[Any] | None = None
        self.required: set[str] = set()
        self.any_ofs: list[list[Any]] = []
        self._objects: list[Node] = []

    def add(self, node: Node, draft: int) -> None:
        """Let the keywords of a node count, which holds beside those before it."""
        self.types &= split_numbers(types_of_node(node))
        values = listed_values(node, draft)
        if values is not None and (self.values is None or len(values) < len(self.values)):
            self.values = values
        required = node.get("required")
        self.required.update(required if isinstance(required, list) else ())
        if isinstance(node.get("anyOf"), list):
            self.any_ofs.append(node["anyOf"])
        self._objects.append(node)

    def may_be(self, value: Any) -> bool:
        """Whether an instance may equal ``value``, as far as types and values say."""
        return bool(split_numbers(types_of_value(value)) & self.types) and (
            self.values is None or equality_key(value) in map(equality_key, self.values)
        )

    def properties_called(self, name: str) -> list[Any]:
        """The schemas that a property must satisfy."""
        found = []
        for node in self._objects:
            properties = node.get("properties") or {}
            if name in properties:
                found.append(properties[name])
            elif node.get("additionalProperties") is False and not node.get("patternProperties"):
                found.append(False)
        return found or [True]


def constraining_keywords(schema: Node) -> dict[str, Any]:
    """The keywords of a schema that restrict its instances."""
    found = {key: value for key, value in schema.items() if key in CONSTRAINING and not is_no_op(key, schema)}
    for keyword in _MAY_BE_TRUE:
        if found.get(keyword) in (True, {}):
            del found[keyword]
    return found


def types_of_node(node: Node) -> frozenset[str]:
    """The names of the types that ``type`` allows."""
    given = node.get("type")
    if isinstance(given, list) and not all(isinstance(name, str) for name in given):
        return frozenset(TYPES)  # schemas, in draft 3
    return frozenset(TYPES if given is None else given if isinstance(given, list) else [given])


def split_numbers(types: Iterable[str]) -> frozenset[str]:
    """``types`` with "number" written as "number" and "integer"."""
    return frozenset(types) | ({"integer"} if "number" in types else frozenset())


def types_of_value(value: Any) -> frozenset[str]:
    """The type of a JSON value; that of a number without a fraction is "integer"."""
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int | float):
        return frozenset({"integer" if is_integer(value) else "number"})
    for type_, name in ((str, "string"), (dict, "object"), (list, "array")):
        if isinstance(value, type_):
            return frozenset({name})
    return frozenset({"null"})


def listed_values(node: Node, draft: int) -> list[Any] | None:
    """All values that ``enum`` or ``const`` allows, or None."""
    if "const" in node and draft >= DRAFT_OF_KEYWORD["const"]:
        return [node["const"]]
    values = node.get("enum")
    return values if isinstance(values, list) else None


def equality_key(value: Any) -> str:
    """Equal for values that JSON Schema counts as equal, such as 1 and 1.0."""
    return exact_json.dumps(_with_integers(value), sort_keys=True)


def _with_integers(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_integers(part) for part in value]
    if isinstance(value, dict):
        return {name: _with_integers(part) for name, part in value.items()}
    if isinstance(value, float) and value.is_integer():
        with suppress(OverflowError):
            return int(value)
    return value
