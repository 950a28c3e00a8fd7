"""The negation of a JSON schema, and whether two schemas exclude each other."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from structout.grammar.schema_rewrites.facts import (
    REF_ALONE_UNTIL,
    TYPES,
    Facts,
    constraining_keywords,
    equality_key,
    listed_values,
    split_numbers,
    types_of_node,
    types_of_value,
)
from structout.grammar.text_patterns import pattern_of_other_texts
from structout.json_schema import DRAFT_OF_KEYWORD, Node, draft_of, referred

_NUMERIC_EXCLUSIVE_SINCE = 6  # before, exclusiveMinimum is a boolean
_MAX_PARTS = 256  # of one schema, with its references and the parts of its allOf
_MAX_DEPTH = 12  # of the schemas that are negated or compared
_MAX_STEPS = 1_000  # of all negations and comparisons
_MAX_TEXTS = 64
_MAX_TEXT = 100  # characters; engines refuse patterns nested 250 deep
_OPPOSITE_BOUNDS = {
    "minimum": "exclusiveMaximum",
    "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum",
    "exclusiveMaximum": "minimum",
}
_SIZES = {"Length": "string", "Items": "array", "Properties": "object"}


class CannotNegateError(Exception):
    """A schema has no negation in the keywords that engines read."""


class SchemaLogic:
    """Negates and compares the parts of one schema.

    After ``_MAX_STEPS`` steps nothing can be negated, and no schemas are exclusive.

    Args:
        schema: the whole schema, to which references refer.
    """

    def __init__(self, schema: Any):
        self._schema = schema
        self._draft = draft_of(schema)
        self._num_steps = 0

    def negation(self, schema: Any, beside: Node, depth: int = 0) -> Any:
        """A schema of the instances of ``beside`` that are not instances of ``schema``.

        Raises:
            CannotNegateError: there is none in the keywords that engines read.
        """
        if isinstance(schema, bool):
            return not schema
        if depth > _MAX_DEPTH or not self._may_go_on():
            raise CannotNegateError
        alternatives: list[Any] = []
        for keyword, value in self._constraining(schema).items():
            if DRAFT_OF_KEYWORD.get(keyword, 0) > self._draft:
                raise CannotNegateError
            match keyword:
                case "$ref":
                    alternatives.append(self.negation(self._target(schema), beside, depth + 1))
                case "type":
                    alternatives.append(_other_types(value, types_of_node(beside)))
                case "enum" | "const":
                    values = value if keyword == "enum" else [value]
                    alternatives += self._other_values(values, beside)
                case "required":
                    alternatives += [_present_and_absent(value[:i], name) for i, name in enumerate(value)]
                case "properties":
                    for name, inner in value.items():
                        known = (beside.get("properties") or {}).get(name, True)
                        other = self.negation(inner, self.known(known), depth + 1)
                        if other is not False:
                            alternatives.append({"type": "object", "required": [name], "properties": {name: other}})
                case "anyOf":
                    alternatives.append(all_of([self.negation(inner, beside, depth + 1) for inner in value]))
                case "allOf":
                    alternatives += [self.negation(inner, beside, depth + 1) for inner in value]
                case "not":
                    alternatives.append(value)
                case _:
                    alternatives.append(self._other_size(keyword, value))
        return any_of(alternatives)

    def known(self, schema: Any) -> Node:
        """Keywords that hold for every instance of ``schema``."""
        if not isinstance(schema, dict):
            return {}
        values = self._facts(schema).values
        return self._constraining(schema) | ({} if values is None else {"enum": values})

    def are_exclusive(self, first: Any, second: Any, depth: int = 0) -> bool:
        """Whether no instance satisfies both schemas, as far as types, values and
        required properties show it."""
        if first is False or second is False:
            return True
        if not isinstance(first, dict) or not isinstance(second, dict) or depth > _MAX_DEPTH or not self._may_go_on():
            return False
        first_facts, second_facts = self._facts(first), self._facts(second)
        for facts, other in ((first_facts, second_facts), (second_facts, first_facts)):
            for branches in facts.any_ofs:
                if all(self.are_exclusive(branch, other.whole, depth + 1) for branch in branches):
                    return True
            if facts.values is not None and not any(other.may_be(value) for value in facts.values):
                return True
        common = first_facts.types & second_facts.types
        if common - {"object"}:
            return False
        return not common or any(
            self.are_exclusive(first_value, second_value, depth + 1)
            for name in first_facts.required | second_facts.required
            for first_value in first_facts.properties_called(name)
            for second_value in second_facts.properties_called(name)
        )

    def _other_values(self, excluded: list[Any], beside: Node) -> list[Any]:
        """Alternatives that make up the negation of an ``enum``."""
        keys = {equality_key(value) for value in excluded}
        values = listed_values(beside, self._draft)
        if values is not None:
            rest = [value for value in values if equality_key(value) not in keys]
            return [{"enum": rest}] if rest else []
        alternatives: list[Any] = []
        untouched = []
        types = types_of_node(beside)
        for name in TYPES if "number" in types else (*TYPES, "integer"):
            members = [value for value in excluded if types_of_value(value) & split_numbers([name])]
            if name not in types or (name == "null" and members):
                continue
            if not members:
                untouched.append(name)
            elif name == "boolean":
                alternatives += [{"enum": [value]} for value in (False, True) if equality_key(value) not in keys]
            elif name == "string":
                alternatives.append(_other_texts(members))
            elif name == "integer":
                alternatives += _other_integers(members)
            elif name == "number" and self._draft >= _NUMERIC_EXCLUSIVE_SINCE:
                alternatives += _other_numbers(members)
            else:
                raise CannotNegateError
        return [*alternatives, _typed(untouched)]

    def _other_size(self, keyword: str, value: Any) -> Any:
        """The negation of one bound."""
        if keyword in _OPPOSITE_BOUNDS and self._draft >= _NUMERIC_EXCLUSIVE_SINCE and not isinstance(value, bool):
            return {"type": "number", _OPPOSITE_BOUNDS[keyword]: value}
        name, sizes = keyword[3:], _SIZES.get(keyword[3:])
        if sizes is None or keyword[:3] not in ("min", "max") or not isinstance(value, int):
            raise CannotNegateError
        if keyword.startswith("max"):
            return {"type": sizes, f"min{name}": value + 1}
        return {"type": sizes, f"max{name}": value - 1} if value > 0 else False

    def _target(self, node: Node) -> Any:
        target = next((target for _, target in referred(self._schema, node)), None)
        if target is None:
            raise CannotNegateError
        return target

    def _constraining(self, schema: Node) -> dict[str, Any]:
        if "$ref" in schema and self._draft <= REF_ALONE_UNTIL:
            return {"$ref": schema["$ref"]}
        return constraining_keywords(schema)

    def _may_go_on(self) -> bool:
        self._num_steps += 1
        return self._num_steps <= _MAX_STEPS

    def _facts(self, schema: Any) -> Facts:
        """What follows from a schema, its references, and all parts of its allOf."""
        facts = Facts(schema)
        pending, num_parts = [schema], 0
        while pending and num_parts < _MAX_PARTS:
            part = pending.pop()
            num_parts += 1
            if not isinstance(part, dict):
                continue
            if "$ref" in part:
                pending += [target for _, target in referred(self._schema, part)]
                if self._draft <= REF_ALONE_UNTIL:
                    continue
            pending += part.get("allOf", ())
            facts.add(part, self._draft)
        return facts


def any_of(schemas: list[Any]) -> Any:
    """The simplest schema that is satisfied where one of ``schemas`` is."""
    alternatives = [schema for schema in schemas if schema is not False]
    if any(schema is True or schema == {} for schema in alternatives):
        return True
    if len(alternatives) < 2:
        return alternatives[0] if alternatives else False
    return {"anyOf": alternatives}


def all_of(schemas: list[Any]) -> Any:
    """The simplest schema that is satisfied where all of ``schemas`` are."""
    parts = [schema for schema in schemas if schema is not True and schema != {}]
    if any(schema is False for schema in parts):
        return False
    if len(parts) < 2:
        return parts[0] if parts else True
    return {"allOf": parts}


def _present_and_absent(present: Sequence[str], absent: str) -> Node:
    schema = {"type": "object", "properties": {absent: False}}
    return {**schema, "required": present} if present else schema


def _other_types(names: Any, types: frozenset[str]) -> Any:
    """The negation of ``type`` for instances that have one of ``types``."""
    excluded = frozenset([names] if isinstance(names, str) else names)
    if "integer" in excluded and "number" not in excluded and "number" in types:
        raise CannotNegateError  # numbers that are not integers
    if "number" in excluded:
        excluded |= {"integer"}
    return _typed([name for name in (*TYPES, "integer") if name in types - excluded])


def _typed(names: list[str]) -> Any:
    return {"type": names[0] if len(names) == 1 else names} if names else False


def _other_texts(excluded: list[str]) -> Node:
    if len(excluded) > _MAX_TEXTS or max(map(len, excluded)) > _MAX_TEXT:
        raise CannotNegateError
    return {"type": "string", "pattern": f"^{pattern_of_other_texts(excluded)}$"}


def _other_integers(excluded: list[Any]) -> list[Any]:
    bounds = sorted({int(value) for value in excluded})
    below: list[Any] = [{"type": "integer", "maximum": bounds[0] - 1}]
    between = [
        {"type": "integer", "minimum": lower + 1, "maximum": upper - 1}
        for lower, upper in pairwise(bounds)
        if upper - lower > 1
    ]
    return [*below, *between, {"type": "integer", "minimum": bounds[-1] + 1}]


def _other_numbers(excluded: list[Any]) -> list[Any]:
    bounds = sorted(set(excluded))
    below: list[Any] = [{"type": "number", "exclusiveMaximum": bounds[0]}]
    between = [
        {"type": "number", "exclusiveMinimum": lower, "exclusiveMaximum": upper} for lower, upper in pairwise(bounds)
    ]
    return [*below, *between, {"type": "number", "exclusiveMinimum": bounds[-1]}]
