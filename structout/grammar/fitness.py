"""Which constraints a backend enforces in full, as found by experiment: xgrammar 0.2.8 and llguidance 1.9.1.

What a backend refuses by itself needs no mention here, but saves a compilation. What it takes and then ignores does:
tests/test_fitness.py holds both against instances.

Two departures are not counted, since JSON Schema leaves them open: the keys of an object may repeat, unless its
properties are counted; and a ``format`` is enforced by its shape (February may have 29 days in any year).
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from structout.grammar.json_schema import Node, draft_of, escaped, subschemas
from structout.grammar.regex_features import Feature, regex_features
from structout.params import Constraint, StructuredOutputOptions


@dataclass(frozen=True)
class Fitness:
    """How a backend serves a constraint.

    Attributes:
        refusal: why it cannot at all; empty where it can.
        weakened: what it would not enforce, such as ``#/properties/age/not``.
        is_slow: it may compile for seconds.
    """

    refusal: str = ""
    weakened: tuple[str, ...] = ()
    is_slow: bool = False

    @property
    def enforces(self) -> bool:
        return not self.refusal and not self.weakened

    @property
    def reason(self) -> str:
        """What keeps the backend from enforcing the constraint."""
        return self.refusal or f"does not enforce {', '.join(self.weakened)}"


def llguidance_fitness(constraint: Constraint) -> Fitness:
    match constraint.kind:
        case StructuredOutputOptions.JSON:
            return Fitness(weakened=_weakened(json.loads(constraint.spec), _llguidance_ignores))
        case StructuredOutputOptions.REGEX:
            return Fitness(weakened=_in_regex(constraint.spec, _LLGUIDANCE_MISREADS))
        case StructuredOutputOptions.GRAMMAR if is_gbnf(constraint.spec):
            return Fitness(refusal="takes Lark grammars, not GBNF (::=)")
        case StructuredOutputOptions.STRUCTURAL_TAG:
            return Fitness(refusal="has no structural tags in xgrammar's format")
    return Fitness()


def xgrammar_fitness(constraint: Constraint) -> Fitness:
    weakened: tuple[str, ...] = ()
    is_slow = False
    match constraint.kind:
        case StructuredOutputOptions.JSON:
            schema = json.loads(constraint.spec)
            weakened = _weakened(schema, _xgrammar_ignores)
            is_slow = _is_slow_for_xgrammar(schema)
        case StructuredOutputOptions.REGEX:
            weakened = _in_regex(constraint.spec, _XGRAMMAR_MISREADS | {Feature.ANY_CHARACTER, Feature.SPACE_CLASS})
            is_slow = _has_large_bound(constraint.spec)
        case StructuredOutputOptions.CHOICE:
            is_slow = len(json.loads(constraint.spec)) > _MANY_ALTERNATIVES
        case StructuredOutputOptions.GRAMMAR:
            if not is_gbnf(constraint.spec):
                return Fitness(refusal="takes GBNF grammars (::=), not Lark")
            is_slow = _has_large_bound(constraint.spec)
        case StructuredOutputOptions.STRUCTURAL_TAG:
            tag = json.loads(constraint.spec)
            weakened = tuple(_weakened_in_tag(tag))
            is_slow = any(_is_slow_for_xgrammar(schema) for _, schema in _schemas_in_tag(tag))
    if constraint.whitespace_pattern is not None:
        weakened += ("whitespace_pattern",)
    return Fitness(weakened=weakened, is_slow=is_slow)


def is_gbnf(grammar: str) -> bool:
    """Whether a grammar is written with ``::=``, which Lark knows nowhere outside of text."""
    return "::=" in _QUOTED.sub("", grammar)


_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"|\[(?:[^\]\\\n]|\\.)*\]|//[^\n]*|#[^\n]*')


# -- JSON schemas -----------------------------------------------------------------------------------------------------

# Keywords that neither backend enforces, and the draft that introduced them: in a schema of an earlier draft they are
# no keywords.
_IGNORED_SINCE = {
    "not": 4,
    "uniqueItems": 4,
    "dependencies": 4,
    "contains": 6,
    "if": 7,
    "minContains": 2019,
    "maxContains": 2019,
    "dependentRequired": 2019,
    "dependentSchemas": 2019,
    "$recursiveRef": 2019,
    "$dynamicRef": 2020,
}
# Those of llguidance alone.
_LLGUIDANCE_IGNORES_SINCE = {"propertyNames": 6, "unevaluatedItems": 2019, "unevaluatedProperties": 2019}
# Values of these keywords that every instance satisfies.
_BINDS_NOTHING: dict[str, tuple[Any, ...]] = {
    "not": (False,),
    "uniqueItems": (False,),
    "propertyNames": (True, {}),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "dependencies": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
}


def _weakened(schema: Any, ignores: Callable[[Node], Iterable[str]], root: str = "#") -> tuple[str, ...]:
    """Pointers to the keywords that a backend ignores: those that bind nothing are no loss."""
    draft = draft_of(schema)
    found = []
    for pointer, node in subschemas(schema):
        keywords = [*_ignored_keywords(node, _IGNORED_SINCE, draft)]
        if ignores is _llguidance_ignores:
            keywords += _ignored_keywords(node, _LLGUIDANCE_IGNORES_SINCE, draft)
        found += [f"{root}{pointer}/{keyword}" for keyword in [*keywords, *ignores(node)]]
    return tuple(dict.fromkeys(found))


def _ignored_keywords(node: Node, since: Mapping[str, int], draft: int) -> list[str]:
    return [key for key in node if since.get(key, draft + 1) <= draft and not _binds_nothing(key, node)]


def _binds_nothing(keyword: str, node: Node) -> bool:
    return node[keyword] in _BINDS_NOTHING.get(keyword, ())


def _counts_free_keys(node: Node) -> bool:
    """minProperties counts keys that are not checked to differ."""
    least = node.get("minProperties")
    if not isinstance(least, int) or least < 2:
        return False
    return "patternProperties" in node or "propertyNames" in node or node.get("additionalProperties", True) is not False


# -- JSON schemas: llguidance -----------------------------------------------------------------------------------------

_EXACT_IN_DOUBLE = 2**53
_NUMBERS_AS_DOUBLES = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "const", "enum")
_LLGUIDANCE_FORMATS = frozenset("date-time time date duration email hostname ipv4 ipv6 uuid uri".split())
_LLGUIDANCE_MISREADS = {Feature.SET_OPERATION, Feature.POSSESSIVE, Feature.INCOMPLETE_ESCAPE}


def _llguidance_ignores(node: Node) -> Iterator[str]:
    yield from (key for key in _NUMBERS_AS_DOUBLES if key in node and not _is_exact_in_double(node[key]))
    if _counts_free_keys(node):
        yield "minProperties"
    if "format" in node and _may_be(node, "string") and node["format"] not in _LLGUIDANCE_FORMATS:
        yield "format"
    yield from _patterns_with(node, _LLGUIDANCE_MISREADS)


def _is_exact_in_double(value: Any) -> bool:
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, list | dict):
            pending += part.values() if isinstance(part, dict) else part
        elif isinstance(part, int) and abs(part) > _EXACT_IN_DOUBLE:
            return False
    return True


# -- JSON schemas: xgrammar -------------------------------------------------------------------------------------------

_XGRAMMAR_FORMATS = frozenset(
    "time duration email hostname ipv6 uuid uri uri-reference uri-template json-pointer relative-json-pointer".split()
)
_XGRAMMAR_MISREADS = {
    Feature.LOOKAROUND,
    Feature.BACKREFERENCE,
    Feature.WORD_BOUNDARY,
    Feature.INNER_ANCHOR,
    Feature.POSSESSIVE,
    Feature.FLAGS,
    Feature.UNICODE_CLASS,
    Feature.UNKNOWN_ESCAPE,
    Feature.INCOMPLETE_ESCAPE,
}
# Where one of these stands, xgrammar reads nothing else of the schema.
_XGRAMMAR_READS_ALONE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_KEYWORDS_OF = {
    "number": ("multipleOf", *_BOUNDS),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems"),
    "object": (
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
    ),
}
_IMPLIES_A_TYPE = ("properties", "additionalProperties", "patternProperties", "items", "prefixItems")
_ALL_KEYWORDS = ("type", *(keyword for keywords in _KEYWORDS_OF.values() for keyword in keywords))
_NAMES_KEYWORDS = {"type", "pattern", "enum", "const", "format"}
_LARGEST_MULTIPLE = 1_000
_LONG_PATTERN = 64


def _xgrammar_ignores(node: Node) -> Iterator[str]:
    alone = next((keyword for keyword in _XGRAMMAR_READS_ALONE if keyword in node), None)
    if alone is not None:
        yield from _ignored_beside(alone, node)
        return
    if "type" not in node:
        implied = any(keyword in node for keyword in _IMPLIES_A_TYPE)
        yield from (key for key in _ALL_KEYWORDS if key in node and not (implied and key in _IMPLIES_A_TYPE))
        return
    yield from _ignored_of_numbers(node)
    yield from _ignored_of_strings(node)
    yield from _ignored_of_objects(node)


def _ignored_beside(alone: str, node: Node) -> Iterator[str]:
    for keyword in (*_XGRAMMAR_READS_ALONE, *_ALL_KEYWORDS):
        if keyword in node and keyword != alone and not _says_the_same(keyword, alone, node):
            yield keyword
    if alone == "oneOf" and isinstance(node["oneOf"], list) and not _differ_by_type(node["oneOf"]):
        yield "oneOf"
    if alone == "allOf" and isinstance(node["allOf"], list) and len(node["allOf"]) > 1:
        yield "allOf"


def _says_the_same(keyword: str, alone: str, node: Node) -> bool:
    """A type beside values that are all of it."""
    if keyword != "type" or alone not in ("const", "enum"):
        return False
    values = node["enum"] if alone == "enum" else [node["const"]]
    types = node["type"] if isinstance(node["type"], list) else [node["type"]]
    return isinstance(values, list) and all(_type_of(value) & set(map(str, types)) for value in values)


def _type_of(value: Any) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    for type_, name in ((str, "string"), (dict, "object"), (list, "array")):
        if isinstance(value, type_):
            return {name}
    if isinstance(value, int | float):
        return {"number", "integer"} if value == int(value) else {"number"}
    return {"null"}


def _differ_by_type(branches: list[Any]) -> bool:
    types = [branch.get("type") if isinstance(branch, dict) else None for branch in branches]
    names = ["number" if name == "integer" else name for name in types if isinstance(name, str)]
    return len(branches) == 1 or len(names) == len(branches) == len(set(names))


def _ignored_of_numbers(node: Node) -> Iterator[str]:
    multiple = node.get("multipleOf")
    if multiple is None:
        return
    is_read = node["type"] == "integer" and isinstance(multiple, int) and 0 < multiple <= _LARGEST_MULTIPLE
    if not is_read or any(bound in node for bound in _BOUNDS):
        yield "multipleOf"


def _ignored_of_strings(node: Node) -> Iterator[str]:
    if not _may_be(node, "string"):
        return
    if "format" in node and node["format"] not in _XGRAMMAR_FORMATS:
        yield "format"
    if "format" in node and "pattern" in node:
        yield "pattern"
    if "format" in node or "pattern" in node:
        yield from (key for key in ("minLength", "maxLength") if key in node)
    yield from _patterns_with(node, _XGRAMMAR_MISREADS | {Feature.NEEDS_JSON_ESCAPE})
    if any(map(_loses_json_escapes, _patterns(node))):
        yield "pattern"


def _ignored_of_objects(node: Node) -> Iterator[str]:
    if not _may_be(node, "object"):
        return
    properties = node.get("properties", {})
    required = node.get("required", [])
    if isinstance(required, list) and any(name not in properties for name in required):
        yield "required"
    if properties and "patternProperties" in node:
        yield "patternProperties"
    names = node.get("propertyNames", {})
    is_read = isinstance(names, dict) and names.keys() <= _NAMES_KEYWORDS and len(names.keys() - {"type"}) <= 1
    if names and (properties or "patternProperties" in node or not is_read):
        yield "propertyNames"
    if _counts_free_keys(node):
        yield "minProperties"


def _loses_json_escapes(pattern: str) -> bool:
    """Beside other than ASCII, and in large automata, xgrammar's classes take raw quotes and control characters."""
    is_unusual = not pattern.isascii() or len(pattern) > _LONG_PATTERN or _has_large_bound(pattern)
    return is_unusual and Feature.MAY_NEED_JSON_ESCAPE in regex_features(pattern)


def _patterns(node: Node) -> Iterator[str]:
    if isinstance(node.get("pattern"), str):
        yield node["pattern"]
    if isinstance(node.get("patternProperties"), dict):
        yield from node["patternProperties"]


def _patterns_with(node: Node, features: set[Feature]) -> Iterator[str]:
    for pattern in _patterns(node):
        if regex_features(pattern) & features:
            yield "pattern" if node.get("pattern") == pattern else f"patternProperties/{escaped(pattern)}"


def _may_be(node: Node, name: str) -> bool:
    given = node.get("type", name)
    return name in given if isinstance(given, list) else name == given


# xgrammar takes 0.3 s for 100 optional properties, 0.3 s for an enum of 1,000 strings, and 3 s for maxLength 100: times
# grow with the squares.
_LONG = 16
_MANY_ALTERNATIVES = 500
_MANY_PROPERTIES = 60
_MANY_ITEMS = 1_000
_DEEP = 12
_BOUND = re.compile(r"\{(\d+)(?:,(\d*))?\}")


def _is_slow_for_xgrammar(schema: Any) -> bool:
    return any(
        pointer.count("/") > _DEEP
        or any(_is_above(node.get(key), _LONG) for key in ("minLength", "maxLength"))
        or any(_is_above(node.get(key), _MANY_ITEMS) for key in ("minItems", "maxItems"))
        or any(_is_above(node.get(key), 1) for key in ("minProperties", "maxProperties"))
        or len(node.get("enum") or ()) > _MANY_ALTERNATIVES
        or len(node.get("properties") or ()) > _MANY_PROPERTIES
        or _has_large_bound(str(node.get("pattern", "")))
        for pointer, node in subschemas(schema)
    )


def _is_above(value: Any, bound: int) -> bool:
    return isinstance(value, int | float) and value > bound


def _has_large_bound(pattern: str) -> bool:
    return any(int(bound) > _LONG for match in _BOUND.finditer(pattern) for bound in match.groups() if bound)


# -- regular expressions and structural tags ----------------------------------------------------------------------


_SCHEMAS_OF_TAGS = ("json_schema", "schema")


def _in_regex(pattern: str, features: set[Feature]) -> tuple[str, ...]:
    return tuple(sorted(feature.value for feature in regex_features(pattern) & features))


def _weakened_in_tag(tag: Any) -> Iterator[str]:
    for pointer, part in _parts_of_tag(tag):
        if part.get("type") == "regex" and isinstance(part.get("pattern"), str):
            found = _in_regex(part["pattern"], _XGRAMMAR_MISREADS)
            yield from (f"{pointer}/pattern: {feature}" for feature in found)
    for pointer, schema in _schemas_in_tag(tag):
        yield from _weakened(schema, _xgrammar_ignores, pointer)
        # The grammar that xgrammar prints for a schema is corrected where it lets control characters into bounded
        # strings; that of a tag is not.
        for below, node in subschemas(schema):
            yield from (f"{pointer}{below}/{key}" for key in ("minLength", "maxLength") if key in node)


def _schemas_in_tag(tag: Any) -> Iterator[tuple[str, Any]]:
    for pointer, part in _parts_of_tag(tag):
        for key in _SCHEMAS_OF_TAGS:
            yield f"{pointer}/{key}", _parsed(part.get(key))


def _parsed(schema: Any) -> Any:
    """A schema that may have come as text; what is none is left to the engine's own error."""
    try:
        return json.loads(schema) if isinstance(schema, str) else schema
    except (ValueError, RecursionError):
        return None


def _parts_of_tag(tag: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a tag with their pointers, but for the schemas."""
    pending = [("#", tag)]
    while pending:
        pointer, part = pending.pop()
        if isinstance(part, list):
            pending += [(f"{pointer}/{i}", child) for i, child in enumerate(part)]
        elif isinstance(part, dict):
            yield pointer, part
            pending += [(f"{pointer}/{key}", child) for key, child in part.items() if key not in _SCHEMAS_OF_TAGS]
