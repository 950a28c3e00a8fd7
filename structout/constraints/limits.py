"""Limits on the size of a constraint.

They are checked before native code sees the constraint, without recursion.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from structout.constraints.grammar_texts import expressions_of
from structout.constraints.schema_walks import escaped
from structout.errors import GrammarError, GrammarErrorKind, GrammarLimitError

_MAPS_OF_SCHEMAS = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
_DATA = {"const", "enum", "default", "examples"}


@dataclass(frozen=True)
class Limits:
    """Largest sizes that a constraint may have.

    Each default admits more than 99.9% of the 9,556 schemas of JSONSchemaBench.

    Attributes:
        spec_bytes: length of the constraint as UTF-8 text.
        nesting: depth of JSON objects and arrays, or of groups in a regex or grammar.
        alternatives: number of values in one enum or choice.
        pattern_length: characters of one regular expression.
        repetition: largest bound of a repetition in a pattern. Bounds of nested
            repetitions are multiplied.
        length_bound: largest value of maxLength, maxItems and maxProperties.
        required_length: largest value of minLength, minItems and minProperties. A text
            that has to be longer would never end.
        properties: number of properties of one object schema.
        branches: number of schemas in one anyOf, oneOf or allOf.
        references: number of ``$ref`` in one schema.
        compiled_bytes: memory of one compiled grammar.
    """

    spec_bytes: int = 4 << 20
    nesting: int = 64
    alternatives: int = 100_000
    pattern_length: int = 1_024
    repetition: int = 16_384
    length_bound: int = 2**31 - 1
    required_length: int = 1_000_000
    properties: int = 1_000
    branches: int = 400
    references: int = 16_384
    compiled_bytes: int = 128 << 20


def check_limits(kind: str, value: object, text: str, limits: Limits) -> None:
    """Check a constraint against all limits that apply to its kind.

    Args:
        kind: a value of StructuredOutputOptions, such as "json".
        value: the constraint as Python values.
        text: the constraint as text.
        limits: what to check against.

    Raises:
        GrammarLimitError: naming the limit, the size and the largest size allowed.
        GrammarError: a bound of the schema is negative.
    """
    check_size(text, limits)
    if kind == "regex":
        _check("pattern_length", len(text), limits)
        _check_pattern(text, limits)
    elif kind == "grammar":
        expressions = expressions_of(text)
        _check("nesting", _bracket_depth(expressions), limits)
        _check("repetition", _largest_repetition(expressions), limits)
    elif kind == "choice" and isinstance(value, Sequence):
        _check("alternatives", len(value), limits)
    else:
        _check("nesting", _depth(value), limits)
        _check_schema(value, limits)


def check_num_tokens(num_needed: int, max_tokens: int) -> None:
    """Raise ``GrammarError`` if a text needs more than ``max_tokens`` tokens."""
    if num_needed > max_tokens:
        message = f"the text needs at least {num_needed:,} tokens, max_tokens is {max_tokens:,}"
        raise GrammarError(message, kind=GrammarErrorKind.LIMIT, num_needed=num_needed)


def check_size(text: str, limits: Limits) -> None:
    """Check the length of a constraint alone.

    Raises:
        GrammarLimitError: as ``check_limits``.
    """
    _check("spec_bytes", len(text.encode()), limits)


def _check(limit: str, got: int, limits: Limits) -> None:
    largest = getattr(limits, limit)
    if got > largest:
        raise GrammarLimitError(limit, got, largest)


def _check_schema(schema: object, limits: Limits) -> None:
    num_references = 0
    for part in schemas(schema):
        num_references += "$ref" in part
        for keyword, value in part.items():
            if keyword not in _CHECKS:
                continue
            try:
                _CHECKS[keyword](value, limits)
            except GrammarError as error:
                pointer = f"{_pointer_to(schema, part)}/{keyword}"
                raise error.at(pointer, keyword) from None
    _check("references", num_references, limits)


def schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield ``schema``, if it is an object, and every schema written inside it.

    It skips data that may look like a schema (const, enum, default, examples).
    """
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            yield part
            for keyword, value in part.items():
                if not isinstance(value, dict | list):
                    continue
                if keyword in _MAPS_OF_SCHEMAS and isinstance(value, dict):
                    pending += value.values()
                elif keyword not in _DATA:
                    pending.append(value)


def _pointer_to(document: object, part: object) -> str:
    """JSON pointer to a part of a JSON value, told by its identity."""
    pending = [("#", document)]
    while pending:
        pointer, found = pending.pop()
        if found is part:
            return pointer
        if isinstance(found, dict):
            pending += [(f"{pointer}/{escaped(name)}", child) for name, child in found.items()]
        elif isinstance(found, list):
            pending += [(f"{pointer}/{i}", child) for i, child in enumerate(found)]
    raise ValueError("the value has no such part")


def _depth(value: object) -> int:
    """The nesting depth of a JSON value: 0 for a scalar, 2 for ``[[1], 2]``."""
    num_levels = 0
    level = [value]
    while level := [part for part in level if isinstance(part, dict | list)]:
        num_levels += 1
        level = [child for part in level for child in (part.values() if isinstance(part, dict) else part)]
    return num_levels


def _check_size_of(limit: str, type_: type[list[Any]] | type[dict[str, Any]]) -> Callable[[Any, Limits], None]:
    return lambda value, limits: _check(limit, len(value), limits) if isinstance(value, type_) else None


def _check_bound(limit: str) -> Callable[[Any, Limits], None]:
    def check(bound: Any, limits: Limits) -> None:
        if isinstance(bound, int | float) and not isinstance(bound, bool):
            if bound < 0:
                raise GrammarError(f"must not be negative, got {bound}")
            _check(limit, int(min(bound, 2**63)), limits)

    return check


def _check_patterns(patterns: Any, limits: Limits) -> None:
    """Check the pattern of a string, or the patterns of property names."""
    for pattern in [patterns] if isinstance(patterns, str) else patterns if isinstance(patterns, dict) else ():
        _check_pattern(pattern, limits)


def _check_pattern(pattern: str, limits: Limits) -> None:
    _check("pattern_length", len(pattern), limits)
    _check("nesting", _bracket_depth(pattern), limits)
    _check("repetition", _largest_repetition(pattern), limits)


# An escape, a class, a bound, or a character. An unclosed class runs to the end of the
# text, so that the time stays linear.
_REGEX_PART = re.compile(
    r"\\(?:[uxpP]\{[^{}]*\}|.)|\[\^?\]?[^\]\\]*(?:\\(?:.|\Z)[^\]\\]*)*(?:\]|\Z)|\{(\d+)(?:,(\d*))?\}|[()]|.", re.DOTALL
)
_MAX_DIGITS = 18  # a longer bound exceeds any limit; int() refuses more than 4,300 digits


def _largest_repetition(pattern: str) -> int:
    """The largest product of the bounds of nested repetitions: 200 for
    ``((a{10}){20})*``."""
    largest = 1
    outer_products: list[int] = []  # for each open group, the largest product before it
    inside = 1  # the largest product in the innermost open group
    last = 1  # the product of the item just read, which a following bound multiplies
    for match in _REGEX_PART.finditer(pattern):
        part = match.group()
        if part == "(":
            outer_products.append(inside)
            inside = last = 1
        elif part == ")" and outer_products:
            last = inside
            inside = max(outer_products.pop(), last)
        elif match.group(1) is not None:
            last *= max(_bound(digits) for digits in match.groups() if digits)
            inside = max(inside, last)
        elif part not in "*+?":
            last = 1
        largest = max(largest, inside)
    return largest


_CHECKS: dict[str, Callable[[Any, Limits], None]] = {
    "enum": _check_size_of("alternatives", list),
    "properties": _check_size_of("properties", dict),
    **dict.fromkeys(("anyOf", "oneOf", "allOf"), _check_size_of("branches", list)),
    **dict.fromkeys(("maxLength", "maxItems", "maxProperties"), _check_bound("length_bound")),
    **dict.fromkeys(("minLength", "minItems", "minProperties"), _check_bound("required_length")),
    **dict.fromkeys(("pattern", "patternProperties"), _check_patterns),
}


def _bound(digits: str) -> int:
    return int(digits) if len(digits) <= _MAX_DIGITS else 2**63


def _bracket_depth(text: str) -> int:
    num_open = deepest = 0
    for match in _REGEX_PART.finditer(text):
        num_open = max(0, num_open + {"(": 1, ")": -1}.get(match.group(), 0))
        deepest = max(deepest, num_open)
    return deepest
