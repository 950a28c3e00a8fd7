"""Which constraints xgrammar enforces in full, and which it may compile for seconds.

One known deviation is not counted: where text is free, in JSON strings and in classes
such as ``[^"]``, xgrammar's masks allow the bytes ED A0 80 to ED BF BF. They are
surrogates, which no tokenizer writes for text. llguidance refuses them, but takes up to
750 us for the mask of such a class, where xgrammar takes 4 us.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from structout.exact_json import is_integer
from structout.grammar.ecma_regex import with_explicit_classes
from structout.grammar.engine_versions import XGRAMMAR_NEGATED_CLASSES, is_at_least
from structout.grammar.regex_features import Feature, escapes_by_number, regex_features, regex_parts
from structout.grammar.support import (
    Support,
    counts_unchecked_keys,
    features_in,
    formats_beyond,
    is_gbnf,
    largest_integer,
    may_be,
    patterns_with,
    unreadable_schema,
    weakened_in_schema,
)
from structout.json_schema import Node, Nodes, draft_of, is_no_op, patterns_of
from structout.params import Constraint, StructuredOutputOptions
from structout.structural_tag import TagSchema, tag_parts

FORMATS = frozenset(  # the values of `format` that it enforces
    "time duration email hostname ipv6 uuid uri uri-reference uri-template json-pointer relative-json-pointer".split()
)
_MISREADS = {
    Feature.LOOKAROUND,
    Feature.BACKREFERENCE,
    Feature.WORD_BOUNDARY,
    Feature.INNER_ANCHOR,
    Feature.POSSESSIVE,
    Feature.FLAGS,
    Feature.UNICODE_CLASS,
    Feature.UNKNOWN_ESCAPE,
    Feature.INCOMPLETE_ESCAPE,
    Feature.HEX_BEFORE_HEX_DIGIT,
    Feature.NESTED_REPETITION,
    Feature.BRACKET_FIRST_IN_CLASS,
    Feature.CARET_FIRST_IN_CLASS,
    Feature.MIXED_CLASS,
}
# Line ends that the dot takes, and spaces beyond ASCII.
_NOT_ECMA = {Feature.ANY_CHARACTER, Feature.SPACE_CLASS}
# In the patterns of schemas: an optional group that contains a repetition of a class,
# such as (b[a-z]*|ac)?, is read as if its first part were optional.
_MISREADS_IN_JSON = {Feature.NEEDS_JSON_ESCAPE, Feature.OPTIONAL_REPETITION}
# Beside one of these, xgrammar reads nothing else of the schema.
_READS_ALONE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
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
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
_NAMES_KEYWORDS = {"type", "pattern", "enum", "const", "format"}
_LARGEST_MULTIPLE = 1_000
_LARGEST_INTEGER = 2**63 - 1
_EXACT_IN_DOUBLE = 2**53
_LONG_PATTERN = 64
_PREFIX_ITEMS_SINCE = 2020

# xgrammar takes 0.3 s for 100 optional properties, 0.3 s for an enum of 1,000 strings,
# and 3 s for maxLength 100. The times grow quadratically.
_LONG = 16
_MANY_ALTERNATIVES = 500
_MANY_PROPERTIES = 60
_MANY_ITEMS = 1_000
_DEEP = 12
# Repeated up to 16 times, a class of letters or a group takes xgrammar 5 to 25 ms for a
# mask of 150,000 tokens, and llguidance 1 to 4 ms. Digits and single characters take
# both less than 0.2 ms.
_COSTLY_BOUND = 4
_DIGITS_OR_ONE_CHARACTER = re.compile(r"\[[0-9a-fA-F-]*\]|\\[^wWDsS]|[^.)\]]", re.DOTALL)
_BOUND = re.compile(r"\{(\d+)(?:,(\d*))?\}")


def xgrammar_support(constraint: Constraint) -> Support:
    """How xgrammar would serve the constraint."""
    weakened: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    unproved: tuple[str, ...] = ()
    is_slow = is_costly = False
    match constraint.kind:
        case StructuredOutputOptions.JSON:
            nodes = constraint.nodes
            refusal = unreadable_schema(constraint.value, constraint.spec, dict(constraint.schemas), nodes)
            if refusal:
                return Support(refusal=refusal)
            weakened = weakened_in_schema(nodes, draft_of(constraint.value), _ignored_keywords)
            formats = formats_beyond(nodes, FORMATS)
            unproved = tuple(_unproved(constraint.value, nodes))
            is_slow = _is_slow(nodes)
        case StructuredOutputOptions.REGEX:
            weakened = features_in(constraint.spec, _misread_features() | _NOT_ECMA)
            is_slow = _has_large_bound(constraint.spec)
            is_costly = _repeats_texts(constraint.spec)
        case StructuredOutputOptions.CHOICE:
            is_slow = len(constraint.value) > _MANY_ALTERNATIVES
        case StructuredOutputOptions.GRAMMAR:
            if not is_gbnf(constraint.spec):  # which xgrammar reads without a lexer
                unproved = ("grammar",)
            is_slow = _has_large_bound(constraint.spec)
        case StructuredOutputOptions.STRUCTURAL_TAG:
            schemas = constraint.tag_schemas
            weakened = tuple(_weakened_in_tag(constraint.value, schemas))
            formats = tuple(
                place for schema in schemas for place in formats_beyond(schema.nodes, FORMATS, schema.pointer)
            )
            is_slow = any(_is_slow(schema.nodes) for schema in schemas)
    if constraint.whitespace_pattern is not None:
        weakened += ("whitespace_pattern",)
    return Support(weakened=weakened, formats=formats, unproved=unproved, is_slow=is_slow, is_costly=is_costly)


def _misread_features() -> set[Feature]:
    if is_at_least("xgrammar", XGRAMMAR_NEGATED_CLASSES):
        return _MISREADS
    return _MISREADS | {Feature.NEGATED_CLASS_BEYOND_ASCII}


def _ignored_keywords(node: Node, draft: int) -> Iterator[str]:
    if "prefixItems" in node and draft < _PREFIX_ITEMS_SINCE:
        yield "prefixItems"  # which xgrammar reads, though it is no keyword
    alone = next((keyword for keyword in _READS_ALONE if keyword in node), None)
    if alone is not None:
        yield from _ignored_beside(alone, node)
        return
    if "type" not in node:
        implied = any(keyword in node for keyword in _IMPLIES_A_TYPE)
        yield from (key for key in _ALL_KEYWORDS if key in node and not (implied and key in _IMPLIES_A_TYPE))
        if implied:
            yield from _ignored_in_objects(node)
        return
    yield from _ignored_in_numbers(node)
    yield from _ignored_in_strings(node)
    yield from _ignored_in_objects(node)


def _ignored_beside(alone: str, node: Node) -> Iterator[str]:
    for keyword in (*_READS_ALONE, *_ALL_KEYWORDS, *_UNEVALUATED):
        if keyword in node and keyword != alone and not _repeats_the_type(keyword, alone, node):
            yield keyword
    if alone in ("const", "enum") and largest_integer(node[alone]) > _LARGEST_INTEGER:
        yield alone
    if alone == "oneOf" and isinstance(node["oneOf"], list) and not _differ_by_type(node["oneOf"]):
        yield "oneOf"
    if alone == "allOf" and isinstance(node["allOf"], list) and len(node["allOf"]) > 1:
        yield "allOf"


def _repeats_the_type(keyword: str, alone: str, node: Node) -> bool:
    """Whether ``keyword`` is a type beside values that all have it."""
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
        return {"number", "integer"} if is_integer(value) else {"number"}
    return {"null"}


def _differ_by_type(branches: list[Any]) -> bool:
    types = [branch.get("type") if isinstance(branch, dict) else None for branch in branches]
    names = ["number" if name == "integer" else name for name in types if isinstance(name, str)]
    return len(branches) == 1 or len(names) == len(branches) == len(set(names))


def _ignored_in_numbers(node: Node) -> Iterator[str]:
    if may_be(node, "number"):  # whose bounds are doubles
        yield from (bound for bound in _BOUNDS if largest_integer(node.get(bound)) > _EXACT_IN_DOUBLE)
    multiple = node.get("multipleOf")
    if multiple is None:
        return
    is_read = node["type"] == "integer" and isinstance(multiple, int) and 0 < multiple <= _LARGEST_MULTIPLE
    if not is_read or any(bound in node for bound in _BOUNDS):
        yield "multipleOf"


def _ignored_in_strings(node: Node) -> Iterator[str]:
    if not may_be(node, "string"):
        return
    has_format = node.get("format") in FORMATS
    if has_format and "pattern" in node:
        yield "pattern"
    if has_format or "pattern" in node:
        yield from (key for key in ("minLength", "maxLength") if key in node)
    yield from patterns_with(node, _misread_features() | _MISREADS_IN_JSON)
    if any(map(_loses_json_escapes, patterns_of(node))):
        yield "pattern"


def _ignored_in_objects(node: Node) -> Iterator[str]:
    if not may_be(node, "object"):
        return
    properties = node.get("properties", {})
    required = node.get("required", [])
    if isinstance(required, list) and any(name not in properties for name in required):
        yield "required"
    if "patternProperties" in node:  # read as alternatives, where all that match must hold
        yield "patternProperties"
    if node.get("additionalProperties", True) is not False and not all(map(_PLAIN_NAME.fullmatch, properties)):
        yield "properties"  # other keys could spell the name with an escape
    names = node.get("propertyNames", {})
    is_read = isinstance(names, dict) and names.keys() <= _NAMES_KEYWORDS and len(names.keys() - {"type"}) <= 1
    is_closed = node.get("additionalProperties", True) is False
    if names and (properties or is_closed or "patternProperties" in node or not is_read):
        yield "propertyNames"
    if counts_unchecked_keys(node):
        yield "minProperties"


# What comparisons with jsonschema and llguidance have covered: closed objects, arrays
# and scalars without further conditions.
_ANNOTATIONS = frozenset(
    "$schema $id id $defs definitions $comment title description default examples deprecated readOnly writeOnly".split()
)
_DESCRIBES = ("type", "enum", "const", "anyOf", "$ref")
_PLAIN_NAME = re.compile(r"[!#-\[\]-~]*")  # as _PLAIN_TEXT, without spaces
_PLAIN_TEXT = re.compile(r"[ !#-\[\]-~]*")  # printable ASCII that JSON does not escape


def _unproved(schema: Any, nodes: Nodes) -> Iterator[str]:
    if not isinstance(schema, dict):
        yield "#"
    schemas_of_names = set()
    for pointer, node in nodes:
        if pointer in schemas_of_names:
            continue
        if node.get("type") == "object" and node.keys() - _ANNOTATIONS == {"type", "propertyNames"}:
            schemas_of_names.add(f"{pointer}/propertyNames")
            continue
        if not any(keyword in node for keyword in _DESCRIBES):
            yield f"#{pointer}"
        if (node.get("type") == "object" or "properties" in node) and node.get("additionalProperties") is not False:
            yield f"#{pointer}/additionalProperties"
        for keyword, value in node.items():
            if keyword not in _ANNOTATIONS and not is_no_op(keyword, node) and not _is_proved(keyword, value):
                yield f"#{pointer}/{keyword}"


def _is_proved(keyword: str, value: Any) -> bool:
    match keyword:
        case "type":
            return isinstance(value, str)
        case "const":
            return _is_plain(value)
        case "enum":
            return isinstance(value, list) and all(map(_is_plain, value))
        case "properties":
            return all(_is_plain(name) and isinstance(node, dict) for name, node in value.items())
        case "items":
            return isinstance(value, dict)
        case "additionalProperties":
            return value is False
    return keyword in ("required", "anyOf", "$ref", "minProperties", "maxProperties", "format")


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return _PLAIN_TEXT.fullmatch(value) is not None
    return value is None or (isinstance(value, int) and abs(value) <= _LARGEST_INTEGER)


def _loses_json_escapes(pattern: str) -> bool:
    """Whether a class of the pattern would take raw quotes and control characters.

    xgrammar's classes do beside characters other than ASCII or escaped by number, and
    in large automata.
    """
    is_unusual = not pattern.isascii() or escapes_by_number(pattern)
    is_large = len(pattern) > _LONG_PATTERN or _has_large_bound(pattern)
    return (is_unusual or is_large) and Feature.MAY_NEED_JSON_ESCAPE in regex_features(pattern)


def _is_slow(nodes: Nodes) -> bool:
    return any(
        pointer.count("/") > _DEEP
        or any(_is_above(node.get(key), _LONG) for key in ("minLength", "maxLength"))
        or any(_is_above(node.get(key), _MANY_ITEMS) for key in ("minItems", "maxItems"))
        or any(_is_above(node.get(key), 1) for key in ("minProperties", "maxProperties"))
        or len(node.get("enum") or ()) > _MANY_ALTERNATIVES
        or len(node.get("properties") or ()) > _MANY_PROPERTIES
        or _has_large_bound(str(node.get("pattern", "")))
        for pointer, node in nodes
    )


def _is_above(value: Any, bound: int) -> bool:
    return isinstance(value, int | float) and value > bound


def _is_long(digits: str, bound: int = _LONG) -> bool:
    digits = digits.lstrip("0") or "0"
    return len(digits) > len(str(bound)) or int(digits) > bound


def _has_large_bound(pattern: str) -> bool:
    return any(_is_long(bound) for match in _BOUND.finditer(pattern) for bound in match.groups() if bound)


def _repeats_texts(pattern: str) -> bool:
    """Whether a bounded repetition may take several characters of one token, in many
    ways."""
    repeated = ""
    for match in regex_parts(pattern):
        part, kind = match.group(), match.lastgroup
        bound = _BOUND.match(part) if kind == "repeat" else None
        if bound and _is_long(bound[2] or bound[1], _COSTLY_BOUND) and not _DIGITS_OR_ONE_CHARACTER.fullmatch(repeated):
            return True
        repeated = part if kind in ("cls", "escape") else part[-1]
    return False


def _weakened_in_tag(tag: Any, schemas: Sequence[TagSchema]) -> Iterator[str]:
    for pointer, part in tag_parts(tag):
        if part.get("type") == "regex" and isinstance(part.get("pattern"), str):
            found = features_in(with_explicit_classes(part["pattern"]), _misread_features())
            yield from (f"{pointer}/pattern: {feature}" for feature in found)
    for schema in schemas:
        yield from weakened_in_schema(schema.nodes, draft_of(schema.schema), _ignored_keywords, root=schema.pointer)
        for below, node in schema.nodes:
            # xgrammar allows control characters in bounded strings. The backend
            # corrects that in the grammar of a schema, but not in that of a tag.
            ignored = [key for key in ("minLength", "maxLength") if key in node]
            ignored += patterns_with(node, _NOT_ECMA)
            yield from (f"{schema.pointer}{below}/{keyword}" for keyword in ignored)
