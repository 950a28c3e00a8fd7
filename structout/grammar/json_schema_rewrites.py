"""Rewrites JSON schemas into equivalent ones that engines enforce.

Engines read no ``not``, no conditions, and ``oneOf`` only where they can tell its
branches apart. Each rewrite here keeps the set of valid instances. What cannot be
written without such keywords stays as it is, and support tables refuse it by name.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from structout.grammar.text_patterns import pattern_of_other_texts
from structout.json_schema import (
    DRAFT_OF_KEYWORD,
    Node,
    Nodes,
    copied,
    draft_of,
    is_no_op,
    referred,
    schemas,
    subschemas,
)

_REWRITTEN = frozenset(
    "not oneOf if then else dependencies dependentRequired dependentSchemas propertyNames uniqueItems".split()
)
_UNEVALUATED = frozenset({"unevaluatedItems", "unevaluatedProperties"})
_TYPES = ("null", "boolean", "object", "array", "number", "string")
_FIRST_DRAFT = 4  # draft 3 writes required and type in other ways
_REF_ALONE_UNTIL = 7  # up to this draft, keywords beside $ref are ignored
_NUMERIC_EXCLUSIVE_SINCE = 6  # before, exclusiveMinimum is a boolean
_MAX_ALTERNATIVES = 256  # of one schema
_MAX_DEPTH = 12  # of the schemas that are negated or compared
_MAX_STEPS = 1_000  # of all negations and comparisons
_MAX_TEXTS = 64
_MAX_TEXT = 100  # characters; engines refuse patterns nested 250 deep


class _CannotNegateError(Exception):
    """A schema has no negation in the keywords that engines read."""


@dataclass(frozen=True)
class Rewritten:
    """A schema as engines get it.

    Attributes:
        schema: equivalent to the given one.
        nodes: its object schemas, as ``subschemas`` yields them, but each with the JSON
            pointer of what it stands for in the given schema.
    """

    schema: Any
    nodes: Nodes


def rewrite(schema: Any, nodes: Nodes) -> Rewritten:
    """Rewrite what engines do not read, where that is possible.

    Args:
        schema: what to rewrite. It does not change itself. Its keywords have the types
            that ``check_keywords`` checks.
        nodes: all that ``subschemas(schema)`` yields.
    """
    if all(_REWRITTEN.isdisjoint(node) for _, node in nodes) or _is_fixed(schema):
        return Rewritten(schema, nodes)
    rewriter = _Rewriter(copied(schema))
    rewriter.run()
    return Rewritten(rewriter.schema, rewriter.nodes())


def _is_fixed(schema: Any) -> bool:
    """Whether keywords have to stay where they are: something refers into them, or
    depends on which of them were evaluated."""
    if draft_of(schema) < _FIRST_DRAFT:
        return True
    for node in schemas(schema):
        reference = node.get("$ref")
        if isinstance(reference, str) and not _REWRITTEN.isdisjoint(reference.split("/")):
            return True
        if any(keyword in node and not is_no_op(keyword, node) for keyword in _UNEVALUATED):
            return True
    return False


class _Rewriter:
    """Rewrites one schema in place.

    Args:
        schema: what to change.
    """

    def __init__(self, schema: Any):
        self.schema = schema
        self._draft = draft_of(schema)
        self._num_steps = 0
        self._given = list(subschemas(schema))
        self._origins = {id(node): pointer for pointer, node in self._given}

    def run(self) -> None:
        for pointer, node in reversed(self._given):  # inner schemas first
            if "$ref" not in node or self._draft > _REF_ALONE_UNTIL:
                self._rewrite_node(pointer, node)
            else:
                _leave_ref_alone(node)

    def nodes(self) -> list[tuple[str, Node]]:
        return [(self._origins.get(id(node), pointer), node) for pointer, node in subschemas(self.schema)]

    def _rewrite_node(self, pointer: str, node: Any) -> None:
        for keyword in [key for key in node if is_no_op(key, node)]:
            del node[keyword]
        if _is_one_item(node):
            del node["uniqueItems"]
        if "if" not in node:
            node.pop("then", None)
            node.pop("else", None)
        for keywords, rewrite_keyword in (
            (("propertyNames",), self._property_names),
            (("dependencies",), self._dependencies),
            (("dependentRequired",), self._dependencies),
            (("dependentSchemas",), self._dependencies),
            (("if", "then", "else"), self._condition),
            (("not",), self._not),
            (("oneOf",), self._one_of),
        ):
            keyword = keywords[0]
            if keyword not in node or DRAFT_OF_KEYWORD.get(keyword, 0) > self._draft:
                continue
            try:
                added = rewrite_keyword(keyword, node)
            except _CannotNegateError:
                continue
            if _num_alternatives({**node, "allOf": [*node.get("allOf", ()), *added]}) > _MAX_ALTERNATIVES:
                continue
            for key in keywords:
                node.pop(key, None)
            self._add(node, added, f"{pointer}/{keyword}")

    def _add(self, node: Any, added: list[Any], origin: str) -> None:
        """Let ``added`` hold too."""
        for part in added:
            for generated in schemas(part):
                self._origins.setdefault(id(generated), origin)
        for part in added:
            if isinstance(part, dict) and part.keys() == {"anyOf"} and "anyOf" not in node:
                node["anyOf"] = part["anyOf"]
            elif part is not True:
                node["allOf"] = [*node.get("allOf", ()), part]

    # -- one keyword -------------------------------------------------------------------

    def _property_names(self, _: str, node: Node) -> list[Any]:
        names = node["propertyNames"]
        if names is False:
            return [{"maxProperties": 0}]
        keywords = _constraining(names).keys()
        values = _values(names, self._draft)
        if keywords == {"pattern"}:
            allowed = {"patternProperties": {names["pattern"]: True}}
        elif keywords and keywords <= {"minLength", "maxLength"}:
            bounds = f"{names.get('minLength', 0)},{names.get('maxLength', '')}"
            allowed = {"patternProperties": {rf"^[\s\S]{{{bounds}}}$": True}}
        elif values is not None and len(keywords) == 1:
            allowed = {"properties": {value: True for value in values if isinstance(value, str)}}
        else:
            raise _CannotNegateError
        return [allowed | {"additionalProperties": False}]

    def _dependencies(self, keyword: str, node: Node) -> list[Any]:
        added = []
        for name, needed in node[keyword].items():
            if isinstance(needed, str):  # in draft 3
                needed = [needed]
            if isinstance(needed, list):
                both: Any = {"required": list(dict.fromkeys([name, *needed]))}
            else:
                both = _all_of([{"required": [name]}, needed])
            is_present = node.get("type") == "object" and name in (node.get("required") or ())
            added.append(both if is_present else _any_of([_of_objects(node, {"properties": {name: False}}), both]))
        return added

    def _condition(self, _: str, node: Node) -> list[Any]:
        condition = node["if"]
        holds, fails = node.get("then", True), node.get("else", True)
        if holds is True and fails is True:
            return []
        otherwise = self._negation(condition, node)
        return [_any_of([_all_of([condition, holds]), _all_of([otherwise, fails])])]

    def _not(self, _: str, node: Node) -> list[Any]:
        return [self._negation(node["not"], {key: value for key, value in node.items() if key != "not"})]

    def _one_of(self, _: str, node: Node) -> list[Any]:
        branches = node["oneOf"]
        alternatives = []
        for i, branch in enumerate(branches):
            beside = {**node, **self._known(branch)}
            others = [other for j, other in enumerate(branches) if j != i and not self._exclude(branch, other)]
            alternatives.append(_all_of([branch, *(self._negation(other, beside) for other in others)]))
        return [_any_of(alternatives)]

    # -- negation ----------------------------------------------------------------------

    def _negation(self, schema: Any, beside: Node, depth: int = 0) -> Any:
        """A schema of the instances of ``beside`` that are not instances of
        ``schema``."""
        if isinstance(schema, bool):
            return not schema
        if depth > _MAX_DEPTH or not self._may_go_on():
            raise _CannotNegateError
        alternatives: list[Any] = []
        for keyword, value in self._constraining(schema).items():
            if DRAFT_OF_KEYWORD.get(keyword, 0) > self._draft:
                raise _CannotNegateError
            match keyword:
                case "$ref":
                    alternatives.append(self._negation(self._target(schema), beside, depth + 1))
                case "type":
                    alternatives.append(_other_types(value, _types(beside)))
                case "enum" | "const":
                    values = value if keyword == "enum" else [value]
                    alternatives += self._other_values(values, beside)
                case "required":
                    alternatives += [_present_and_absent(value[:i], name) for i, name in enumerate(value)]
                case "properties":
                    for name, inner in value.items():
                        known = (beside.get("properties") or {}).get(name, True)
                        other = self._negation(inner, self._known(known), depth + 1)
                        if other is not False:
                            alternatives.append({"type": "object", "required": [name], "properties": {name: other}})
                case "anyOf":
                    alternatives.append(_all_of([self._negation(inner, beside, depth + 1) for inner in value]))
                case "allOf":
                    alternatives += [self._negation(inner, beside, depth + 1) for inner in value]
                case "not":
                    alternatives.append(value)
                case _:
                    alternatives.append(self._other_size(keyword, value))
        return _any_of(alternatives)

    def _other_values(self, excluded: list[Any], beside: Node) -> list[Any]:
        """Alternatives that make up the negation of an ``enum``."""
        keys = {_key(value) for value in excluded}
        values = _values(beside, self._draft)
        if values is not None:
            rest = [value for value in values if _key(value) not in keys]
            return [{"enum": rest}] if rest else []
        alternatives: list[Any] = []
        untouched = []
        types = _types(beside)
        for name in _TYPES if "number" in types else (*_TYPES, "integer"):
            members = [value for value in excluded if _types_of(value) & _split_numbers([name])]
            if name not in types or (name == "null" and members):
                continue
            if not members:
                untouched.append(name)
            elif name == "boolean":
                alternatives += [{"enum": [value]} for value in (False, True) if _key(value) not in keys]
            elif name == "string":
                alternatives.append(_other_texts(members))
            elif name == "integer":
                alternatives += _other_integers(members)
            elif name == "number" and self._draft >= _NUMERIC_EXCLUSIVE_SINCE:
                alternatives += _other_numbers(members)
            else:
                raise _CannotNegateError
        return [*alternatives, _of_types(untouched)]

    def _other_size(self, keyword: str, value: Any) -> Any:
        """The negation of one bound."""
        if keyword in _OPPOSITE_BOUNDS and self._draft >= _NUMERIC_EXCLUSIVE_SINCE and not isinstance(value, bool):
            return {"type": "number", _OPPOSITE_BOUNDS[keyword]: value}
        name, sizes = keyword[3:], _SIZES.get(keyword[3:])
        if sizes is None or keyword[:3] not in ("min", "max") or not isinstance(value, int):
            raise _CannotNegateError
        if keyword.startswith("max"):
            return {"type": sizes, f"min{name}": value + 1}
        return {"type": sizes, f"max{name}": value - 1} if value > 0 else False

    def _target(self, node: Node) -> Any:
        target = next((target for _, target in referred(self.schema, node)), None)
        if target is None:
            raise _CannotNegateError
        return target

    def _known(self, schema: Any) -> Node:
        """Keywords that hold for every instance of ``schema``."""
        if not isinstance(schema, dict):
            return {}
        values = self._facts(schema).values
        return self._constraining(schema) | ({} if values is None else {"enum": values})

    def _constraining(self, schema: Node) -> dict[str, Any]:
        if "$ref" in schema and self._draft <= _REF_ALONE_UNTIL:
            return {"$ref": schema["$ref"]}
        return _constraining(schema)

    def _may_go_on(self) -> bool:
        self._num_steps += 1
        return self._num_steps <= _MAX_STEPS

    # -- exclusion ---------------------------------------------------------------------

    def _exclude(self, one: Any, other: Any, depth: int = 0) -> bool:
        """Whether no instance satisfies both schemas, as far as types, values and
        required properties show it."""
        if one is False or other is False:
            return True
        if not isinstance(one, dict) or not isinstance(other, dict) or depth > _MAX_DEPTH or not self._may_go_on():
            return False
        first, second = self._facts(one), self._facts(other)
        for mine, theirs in ((first, second), (second, first)):
            if any(all(self._exclude(branch, theirs.whole, depth + 1) for branch in any_of) for any_of in mine.any_ofs):
                return True
            if mine.values is not None and not any(theirs.may_be(value) for value in mine.values):
                return True
        common = first.types & second.types
        if common - {"object"}:
            return False
        return not common or any(
            self._exclude(ours, theirs, depth + 1)
            for name in first.required | second.required
            for ours in first.properties_called(name)
            for theirs in second.properties_called(name)
        )

    def _facts(self, schema: Any) -> "_Facts":
        """What follows from a schema, its references, and all parts of its allOf."""
        facts = _Facts(schema)
        pending, num_parts = [schema], 0
        while pending and num_parts < _MAX_ALTERNATIVES:
            part = pending.pop()
            num_parts += 1
            if not isinstance(part, dict):
                continue
            if "$ref" in part:
                pending += [target for _, target in referred(self.schema, part)]
                if self._draft <= _REF_ALONE_UNTIL:
                    continue
            pending += part.get("allOf", ())
            facts.add(part, self._draft)
        return facts


# -- what a schema says --------------------------------------------------------------

_OPPOSITE_BOUNDS = {
    "minimum": "exclusiveMaximum",
    "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum",
    "exclusiveMaximum": "minimum",
}
_SIZES = {"Length": "string", "Items": "array", "Properties": "object"}

# Every keyword that restricts instances in some draft.
_CONSTRAINING = frozenset(
    "$ref $dynamicRef $recursiveRef type enum const allOf anyOf oneOf not if then else "
    "properties required additionalProperties patternProperties propertyNames minProperties maxProperties "
    "dependencies dependentRequired dependentSchemas unevaluatedProperties "
    "items prefixItems additionalItems unevaluatedItems minItems maxItems uniqueItems contains minContains maxContains "
    "minLength maxLength pattern format minimum maximum exclusiveMinimum exclusiveMaximum multipleOf "
    "disallow divisibleBy extends".split()
)
_MAY_BE_TRUE = ("additionalProperties", "items", "additionalItems")


class _Facts:
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
        self.types = _split_numbers(_TYPES)
        self.values: list[Any] | None = None
        self.required: set[str] = set()
        self.any_ofs: list[list[Any]] = []
        self._objects: list[Node] = []

    def add(self, node: Node, draft: int) -> None:
        self.types &= _split_numbers(_types(node))
        values = _values(node, draft)
        if values is not None and (self.values is None or len(values) < len(self.values)):
            self.values = values
        required = node.get("required")
        self.required.update(required if isinstance(required, list) else ())
        if isinstance(node.get("anyOf"), list):
            self.any_ofs.append(node["anyOf"])
        self._objects.append(node)

    def may_be(self, value: Any) -> bool:
        """Whether an instance may equal ``value``, as far as types and values say."""
        return bool(_split_numbers(_types_of(value)) & self.types) and (
            self.values is None or _key(value) in map(_key, self.values)
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


def _constraining(schema: Node) -> dict[str, Any]:
    """The keywords of a schema that restrict its instances."""
    found = {key: value for key, value in schema.items() if key in _CONSTRAINING and not is_no_op(key, schema)}
    for keyword in _MAY_BE_TRUE:
        if found.get(keyword) in (True, {}):
            del found[keyword]
    return found


def _leave_ref_alone(node: Any) -> None:
    """Remove what a draft ignores beside ``$ref``, since engines read it."""
    for keyword in _CONSTRAINING & node.keys() - {"$ref"}:
        del node[keyword]


def _types(node: Node) -> frozenset[str]:
    """The names of the types that ``type`` allows."""
    given = node.get("type")
    if isinstance(given, list) and not all(isinstance(name, str) for name in given):
        return frozenset(_TYPES)  # schemas, in draft 3
    return frozenset(_TYPES if given is None else given if isinstance(given, list) else [given])


def _split_numbers(types: Iterable[str]) -> frozenset[str]:
    """``types`` with "number" written as "number" and "integer"."""
    return frozenset(types) | ({"integer"} if "number" in types else frozenset())


def _types_of(value: Any) -> frozenset[str]:
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int | float):
        return frozenset({"integer" if float(value).is_integer() else "number"})
    for type_, name in ((str, "string"), (dict, "object"), (list, "array")):
        if isinstance(value, type_):
            return frozenset({name})
    return frozenset({"null"})


def _values(node: Node, draft: int) -> list[Any] | None:
    """All values that ``enum`` or ``const`` allows, or None."""
    if "const" in node and draft >= DRAFT_OF_KEYWORD["const"]:
        return [node["const"]]
    values = node.get("enum")
    return values if isinstance(values, list) else None


def _key(value: Any) -> str:
    """Equal for values that JSON Schema counts as equal, such as 1 and 1.0."""
    return json.dumps(_with_integers(value), sort_keys=True)


def _with_integers(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_integers(part) for part in value]
    if isinstance(value, dict):
        return {name: _with_integers(part) for name, part in value.items()}
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _is_one_item(node: Node) -> bool:
    most = node.get("maxItems")
    return node.get("uniqueItems") is True and isinstance(most, int) and most <= 1


# -- new schemas -----------------------------------------------------------------------


def _any_of(schemas_: list[Any]) -> Any:
    alternatives = [schema for schema in schemas_ if schema is not False]
    if any(schema is True or schema == {} for schema in alternatives):
        return True
    if len(alternatives) < 2:
        return alternatives[0] if alternatives else False
    return {"anyOf": alternatives}


def _all_of(schemas_: list[Any]) -> Any:
    parts = [schema for schema in schemas_ if schema is not True and schema != {}]
    if any(schema is False for schema in parts):
        return False
    if len(parts) < 2:
        return parts[0] if parts else True
    return {"allOf": parts}


def _of_objects(node: Node, schema: Node) -> Node:
    """``schema`` with the type of ``node``, if that is "object"."""
    return {"type": "object", **schema} if node.get("type") == "object" else schema


def _present_and_absent(present: Sequence[str], absent: str) -> Node:
    schema = {"type": "object", "properties": {absent: False}}
    return {**schema, "required": present} if present else schema


def _num_alternatives(schema: Any) -> int:
    """How many alternatives are left of a schema without ``anyOf`` inside ``allOf``."""
    if not isinstance(schema, dict):
        return 1
    number = sum(map(_num_alternatives, schema["anyOf"])) if isinstance(schema.get("anyOf"), list) else 1
    for part in schema.get("allOf", ()):
        number *= _num_alternatives(part)
    return number


def _other_types(names: Any, types: frozenset[str]) -> Any:
    """The negation of ``type`` for instances that have one of ``types``."""
    excluded = frozenset([names] if isinstance(names, str) else names)
    if "integer" in excluded and "number" not in excluded and "number" in types:
        raise _CannotNegateError  # numbers that are not integers
    if "number" in excluded:
        excluded |= {"integer"}
    return _of_types([name for name in (*_TYPES, "integer") if name in types - excluded])


def _of_types(names: list[str]) -> Any:
    return {"type": names[0] if len(names) == 1 else names} if names else False


def _other_texts(excluded: list[str]) -> Node:
    if len(excluded) > _MAX_TEXTS or max(map(len, excluded)) > _MAX_TEXT:
        raise _CannotNegateError
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
