"""Rewrites JSON schemas into equivalent ones that engines enforce.

Engines read no ``not``, no conditions, and ``oneOf`` only where they can tell its
branches apart. Each rewrite here keeps the set of valid instances. What cannot be
written without such keywords stays as it is, and support tables refuse it by name.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from structout.grammar.schema_rewrites.facts import CONSTRAINING, REF_ALONE_UNTIL, constraining_keywords, listed_values
from structout.grammar.schema_rewrites.negation import CannotNegateError, SchemaLogic, all_of, any_of
from structout.json_schema import DRAFT_OF_KEYWORD, Node, Nodes, copied, draft_of, is_no_op, schemas, subschemas

_REWRITTEN = frozenset(
    "not oneOf if then else dependencies dependentRequired dependentSchemas propertyNames uniqueItems".split()
)
_NEGATING = frozenset({"not", "oneOf", "if", "maxContains"})
_UNEVALUATED = frozenset({"unevaluatedItems", "unevaluatedProperties"})
_LAST_DRAFT_WITH_DEPENDENCIES = 7
_FIRST_DRAFT = 4  # draft 3 writes required and type in other ways
_MAX_ALTERNATIVES = 256  # of one schema


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
    depends on which of them were evaluated. Where a schema has to fail, it matters that
    drafts after 7 have no ``dependencies``, although many validators read them."""
    if draft_of(schema) < _FIRST_DRAFT:
        return True
    if (
        draft_of(schema) > _LAST_DRAFT_WITH_DEPENDENCIES
        and _uses(schema, {"dependencies"})
        and _uses(schema, _NEGATING)
    ):
        return True
    for node in schemas(schema):
        reference = node.get("$ref")
        if isinstance(reference, str) and not _REWRITTEN.isdisjoint(reference.split("/")):
            return True
        if any(keyword in node and not is_no_op(keyword, node) for keyword in _UNEVALUATED):
            return True
    return False


def _uses(schema: Any, keywords: AbstractSet[str]) -> bool:
    return any(not keywords.isdisjoint(node) for node in schemas(schema))


class _Rewriter:
    """Rewrites one schema in place.

    Args:
        schema: what to change.
    """

    def __init__(self, schema: Any):
        self.schema = schema
        self._draft = draft_of(schema)
        self._logic = SchemaLogic(schema)
        self._given = list(subschemas(schema))
        self._origins = {id(node): pointer for pointer, node in self._given}

    def run(self) -> None:
        for pointer, node in reversed(self._given):  # inner schemas first
            if "$ref" not in node or self._draft > REF_ALONE_UNTIL:
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
            except CannotNegateError:
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
        keywords = constraining_keywords(names).keys()
        values = listed_values(names, self._draft)
        if keywords == {"pattern"}:
            allowed = {"patternProperties": {names["pattern"]: True}}
        elif keywords and keywords <= {"minLength", "maxLength"}:
            bounds = f"{names.get('minLength', 0)},{names.get('maxLength', '')}"
            allowed = {"patternProperties": {rf"^[\s\S]{{{bounds}}}$": True}}
        elif values is not None and len(keywords) == 1:
            allowed = {"properties": {value: True for value in values if isinstance(value, str)}}
        else:
            raise CannotNegateError
        return [allowed | {"additionalProperties": False}]

    def _dependencies(self, keyword: str, node: Node) -> list[Any]:
        added = []
        for name, needed in node[keyword].items():
            if isinstance(needed, str):  # in draft 3
                needed = [needed]
            if isinstance(needed, list):
                both: Any = {"required": list(dict.fromkeys([name, *needed]))}
            else:
                both = all_of([{"required": [name]}, needed])
            is_present = node.get("type") == "object" and name in (node.get("required") or ())
            added.append(both if is_present else any_of([_for_objects(node, {"properties": {name: False}}), both]))
        return added

    def _condition(self, _: str, node: Node) -> list[Any]:
        condition = node["if"]
        holds, fails = node.get("then", True), node.get("else", True)
        if holds is True and fails is True:
            return []
        otherwise = self._logic.negation(condition, node)
        return [any_of([all_of([condition, holds]), all_of([otherwise, fails])])]

    def _not(self, _: str, node: Node) -> list[Any]:
        return [self._logic.negation(node["not"], {key: value for key, value in node.items() if key != "not"})]

    def _one_of(self, _: str, node: Node) -> list[Any]:
        branches = node["oneOf"]
        alternatives = []
        for i, branch in enumerate(branches):
            beside = {**node, **self._logic.known(branch)}
            others = [
                other for j, other in enumerate(branches) if j != i and not self._logic.are_exclusive(branch, other)
            ]
            alternatives.append(all_of([branch, *(self._logic.negation(other, beside) for other in others)]))
        return [any_of(alternatives)]


def _leave_ref_alone(node: Any) -> None:
    """Remove what a draft ignores beside ``$ref``, since engines read it."""
    for keyword in CONSTRAINING & node.keys() - {"$ref"}:
        del node[keyword]


def _is_one_item(node: Node) -> bool:
    max_items = node.get("maxItems")
    return node.get("uniqueItems") is True and isinstance(max_items, int) and max_items <= 1


def _for_objects(node: Node, schema: Node) -> Node:
    """``schema`` with the type of ``node``, if that is "object"."""
    return {"type": "object", **schema} if node.get("type") == "object" else schema


def _num_alternatives(schema: Any) -> int:
    """How many alternatives are left of a schema without ``anyOf`` inside ``allOf``."""
    if not isinstance(schema, dict):
        return 1
    number = sum(map(_num_alternatives, schema["anyOf"])) if isinstance(schema.get("anyOf"), list) else 1
    for part in schema.get("allOf", ()):
        number *= _num_alternatives(part)
    return number
