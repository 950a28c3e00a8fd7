"""JSON texts of values, and what of a schema a text may have to contain."""

from __future__ import annotations

import json
import random
import re
from decimal import Decimal
from typing import Any

_MAX_DIGITS, _MAX_ZEROS = 17, 17
_STRING_OR_NUMBER = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*')


def compact(value: Any, rng: random.Random) -> str:
    """A JSON text without spaces, with keys in random order, and with exponents in some
    numbers of large or small magnitude."""
    if isinstance(value, dict):
        names = list(value)
        rng.shuffle(names)
        members = (f"{json.dumps(name, ensure_ascii=False)}:{compact(value[name], rng)}" for name in names)
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(compact(item, rng) for item in value) + "]"
    if isinstance(value, Decimal):
        return scientific(value) if has_exponent(value) and rng.random() < 0.5 else f"{value:f}"
    return json.dumps(value, ensure_ascii=False)


def has_exponent(value: Decimal) -> bool:
    """Whether a number may be written with an exponent."""
    is_large_or_small = value.adjusted() >= 16 or value.adjusted() <= -5
    return bool(value) and is_large_or_small and len(value.normalize().as_tuple().digits) <= _MAX_DIGITS


def scientific(value: Decimal) -> str:
    """The number as Python writes it if it is a large or a small float."""
    sign, digits, _ = value.normalize().as_tuple()
    fraction = "".join(map(str, digits[1:]))
    mantissa = f"{'-' * sign}{digits[0]}{'.' + fraction if fraction else ''}"
    return f"{mantissa}e{'-' if value.adjusted() < 0 else '+'}{abs(value.adjusted()):02}"


def with_short_numbers(text: str) -> str | None:
    """A JSON text with its numbers in their shortest spelling, ``1`` for ``1.0``. None
    if one has more digits than are written."""
    is_short = True

    def shortest(match: re.Match[str]) -> str:
        nonlocal is_short
        if match[0].startswith('"'):
            return match[0]
        value = Decimal(match[0])
        spelled = f"{value.normalize() + 0:f}" if value else "0"
        digits = spelled.lstrip("-").replace(".", "")
        zeros = len(digits) - len(digits.lstrip("0")) - 1
        if len(digits.lstrip("0")) > _MAX_DIGITS or zeros > _MAX_ZEROS:
            is_short = is_short and has_exponent(value) and "e" in match[0]
            return scientific(value)
        return spelled

    respelled = _STRING_OR_NUMBER.sub(shortest, text)
    return respelled if is_short else None


def texts_named_in(part: Any, rng: random.Random) -> list[bytes]:
    """The required names of a schema, then its other names and constants, as they may
    be written."""
    required: list[Any] = []
    others: list[Any] = []
    pending = [part]
    while pending:
        part = pending.pop()
        pending += part.values() if isinstance(part, dict) else part if isinstance(part, list) else []
        if not isinstance(part, dict):
            continue
        for keyword, values in (("required", required), ("properties", others), ("enum", others)):
            given = part.get(keyword)
            values += given if isinstance(given, list | dict) else []
        for keyword in ("dependentRequired", "dependencies"):
            given = part.get(keyword)
            for needed in given.values() if isinstance(given, dict) else ():
                required += needed if isinstance(needed, list) else []
        others += [part["const"]] if "const" in part else []
    return list(dict.fromkeys(compact(value, rng).encode() for value in required + others))
