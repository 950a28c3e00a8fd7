"""How large a constraint may be. Checked before any native code sees it, without recursion."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from structout.errors import GrammarError, GrammarLimitError


@dataclass(frozen=True)
class Limits:
    """The defaults admit more than 99.9% of the 9,556 schemas of JSONSchemaBench, each.

    Attributes:
        spec_bytes: of the constraint as UTF-8 text.
        nesting: of JSON objects and arrays, of brackets in a regex or grammar.
        alternatives: of one enum or choice.
        pattern_length: of one regular expression, in characters.
        repetition: the largest bound of a repetition in a pattern, and the product of nested ones.
        length_bound: of minLength, maxItems and their kin.
        properties: of one object schema.
        branches: of one anyOf, oneOf or allOf.
        references: ``$ref`` in one schema.
        compiled_bytes: of a compiled grammar.
    """

    spec_bytes: int = 256 << 10
    nesting: int = 64
    alternatives: int = 5_000
    pattern_length: int = 1_024
    repetition: int = 1_024
    length_bound: int = 2**31 - 1
    properties: int = 1_000
    branches: int = 256
    references: int = 2_048
    compiled_bytes: int = 128 << 20


_LENGTH_BOUNDS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_BRANCHES = ("anyOf", "oneOf", "allOf")


def check_limits(kind: str, value: object, text: str, limits: Limits) -> None:
    """
    Args:
        kind: of the constraint, as the values of StructuredOutputOptions.
        value: the constraint as Python values.
        text: the constraint as text.

    Raises:
        GrammarLimitError: naming the limit, what came and what is taken.
    """
    _check("spec_bytes", len(text.encode()), limits)
    if kind == "regex":
        _check("pattern_length", len(text), limits)
    if kind in ("regex", "grammar"):
        _check("nesting", _bracket_depth(text), limits)
    if kind == "regex":
        _check_pattern(text, limits)
    elif kind == "grammar":
        _check("repetition", _largest_repetition(text), limits)
    elif kind == "choice" and isinstance(value, Sequence):
        _check("alternatives", len(value), limits)
    else:
        _check("nesting", _json_depth(value), limits)
        _check_schema(value, limits)


def _check(limit: str, got: int, limits: Limits) -> None:
    most = getattr(limits, limit)
    if got > most:
        raise GrammarLimitError(limit, got, most)


def _check_schema(schema: object, limits: Limits) -> None:
    num_references = 0
    for part in schemas(schema):
        num_references += "$ref" in part
        if isinstance(part.get("enum"), list):
            _check("alternatives", len(part["enum"]), limits)
        if isinstance(part.get("properties"), Mapping):
            _check("properties", len(part["properties"]), limits)
        for keyword in _BRANCHES:
            if isinstance(part.get(keyword), list):
                _check("branches", len(part[keyword]), limits)
        for keyword in _LENGTH_BOUNDS:
            bound = part.get(keyword)
            if isinstance(bound, int | float) and not isinstance(bound, bool):
                if bound < 0:
                    raise GrammarError(f"{keyword} must not be negative, got {bound}")
                _check("length_bound", int(min(bound, 2**63)), limits)
        if isinstance(part.get("pattern"), str):
            _check_pattern(part["pattern"], limits)
        if isinstance(part.get("patternProperties"), Mapping):
            for pattern in part["patternProperties"]:
                _check_pattern(pattern, limits)
    _check("references", num_references, limits)


def _check_pattern(pattern: str, limits: Limits) -> None:
    _check("pattern_length", len(pattern), limits)
    _check("nesting", _bracket_depth(pattern), limits)
    _check("repetition", _largest_repetition(pattern), limits)


# An escape, a class, a bound, or a character. What is not closed runs to the end: time is linear in the text.
_REGEX_PART = re.compile(r"\\.|\[\^?\]?[^\]\\]*(?:\\(?:.|\Z)[^\]\\]*)*(?:\]|\Z)|\{(\d+)(?:,(\d*))?\}|[()]|.", re.DOTALL)
_MOST_DIGITS = 18  # a bound of more is beyond any limit, and Python refuses to read one of 4,300


def _largest_repetition(pattern: str) -> int:
    """The largest product of bounds of repetitions inside each other: ((a{10}){20})* has 200."""
    largest = 1
    open_groups: list[int] = []  # for each open parenthesis, the largest product inside
    inside = 1  # the largest product within the group that is open
    last = 1  # of the item just read, which a bound would multiply
    for match in _REGEX_PART.finditer(pattern):
        part = match.group()
        if part == "(":
            open_groups.append(inside)
            inside = last = 1
        elif part == ")" and open_groups:
            last = inside
            inside = max(open_groups.pop(), last)
        elif match.group(1) is not None:
            last *= max(_bound(digits) for digits in match.groups() if digits)
            inside = max(inside, last)
        elif part not in "*+?":
            last = 1
        largest = max(largest, inside)
    return largest


def _bound(digits: str) -> int:
    return int(digits) if len(digits) <= _MOST_DIGITS else 2**63


def _bracket_depth(text: str) -> int:
    depth = deepest = 0
    for match in _REGEX_PART.finditer(text):
        depth = max(0, depth + {"(": 1, ")": -1}.get(match.group(), 0))
        deepest = max(deepest, depth)
    return deepest


def _json_depth(value: object) -> int:
    deepest = 0
    pending = [(value, 1)]
    while pending:
        part, depth = pending.pop()
        children = part.values() if isinstance(part, dict) else part if isinstance(part, list) else None
        if children is not None:
            deepest = max(deepest, depth)
            pending += [(child, depth + 1) for child in children]
    return deepest


_MAPS_OF_SCHEMAS = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
_DATA = {"const", "enum", "default", "examples"}


def schemas(schema: object) -> Iterator[dict[str, Any]]:
    """A JSON schema that is an object, and all schemas within it; not the data within it, which may look like some."""
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            yield part
            for keyword, value in part.items():
                if keyword in _MAPS_OF_SCHEMAS and isinstance(value, dict):
                    pending += value.values()
                elif keyword not in _DATA:
                    pending.append(value)


def parts(value: object) -> Iterator[object]:
    """A JSON value, and all keys and values within it."""
    pending = [value]
    while pending:
        part = pending.pop()
        yield part
        if isinstance(part, dict):
            pending += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple):
            pending += part
