"""JSON with its numbers as they are written: ``json`` rounds them to doubles."""

import json
import marshal
import re
import secrets
from decimal import Decimal
from typing import Any

_PLACEHOLDER_BYTES = 12
_MAX_DIGITS = 4_000


class ExactNumber(float):
    """A number that no double has, such as 9007199254740993.25 and 1e400.

    It compares by its exact value. Arithmetic takes it for the nearest double.

    Args:
        text: the number in JSON.
    """

    __slots__ = ("decimal", "text")
    text: str
    decimal: Decimal

    def __new__(cls, text: str) -> "ExactNumber":
        number = super().__new__(cls, text)
        number.text, number.decimal = text, Decimal(text)
        return number

    def is_integer(self) -> bool:
        exponent = self.decimal.as_tuple().exponent
        digits = "".join(map(str, self.decimal.as_tuple().digits))
        assert isinstance(exponent, int)  # it is finite
        return exponent >= 0 or not digits[exponent:].strip("0")

    def __int__(self) -> int:
        if self.decimal.adjusted() > _MAX_DIGITS:
            raise OverflowError(f"{self.text[:100]} has too many digits for an integer")
        return int(self.decimal)

    def __abs__(self) -> "ExactNumber":
        return ExactNumber(self.text.removeprefix("-"))

    def __bool__(self) -> bool:
        return bool(self.decimal)

    def __hash__(self) -> int:
        return hash(self.decimal)

    def __eq__(self, other: object) -> bool:
        return self.decimal == _decimal(other) if isinstance(other, int | float) else False

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: float) -> bool:
        return self.decimal < _decimal(other)

    def __le__(self, other: float) -> bool:
        return self.decimal <= _decimal(other)

    def __gt__(self, other: float) -> bool:
        return self.decimal > _decimal(other)

    def __ge__(self, other: float) -> bool:
        return self.decimal >= _decimal(other)

    def __repr__(self) -> str:
        return self.text

    __str__ = __repr__

    def __reduce__(self) -> tuple[Any, ...]:
        return ExactNumber, (self.text,)


def loads(text: str) -> Any:
    """Parse a JSON text. A number that Python would write as another value is an
    :class:`ExactNumber`.

    Raises:
        ValueError: the text is not JSON, or has a number whose exponent has 18 digits.
    """
    return json.loads(text, parse_float=_number, parse_constant=_refuse_constant)


def dumps(value: Any, **options: Any) -> str:
    """Write a JSON value with its exact numbers.

    Args:
        value: what :func:`loads` returns.
        **options: of ``json.dumps``.

    Raises:
        TypeError: the value is not JSON.
        ValueError: it contains itself, or a number that is not finite.
    """
    if not has_exact_numbers(value):
        return json.dumps(value, allow_nan=False, **options)
    mark = secrets.token_hex(_PLACEHOLDER_BYTES)  # which no other string in the value has
    marked = json.dumps(_with_marks(value, mark), allow_nan=False, **options)
    return re.sub(f'"{mark}([^"]*)"', r"\1", marked)


def has_exact_numbers(value: Any) -> bool:
    """True if a JSON value contains an :class:`ExactNumber`. A value without one costs
    a single ``marshal.dumps``."""
    try:
        marshal.dumps(value)  # it takes no subclasses, and is as fast as a walk can be
    except ValueError:
        pending, seen = [value], set()
        while pending:
            part = pending.pop()
            if isinstance(part, ExactNumber):
                return True
            if isinstance(part, dict | list | tuple) and id(part) not in seen:
                seen.add(id(part))
                pending += part.values() if isinstance(part, dict) else part
    return False


def is_integer(value: float) -> bool:
    """True if a number has no fraction, such as 3 and 3.0."""
    return not isinstance(value, float) or value.is_integer()


def _number(text: str) -> float:
    value = float(text)
    if repr(value) == text:
        return value
    try:
        is_exact = Decimal(repr(value)) == Decimal(text)
    except ArithmeticError:
        raise ValueError(f"the exponent of {text[:100]} is too large") from None
    return value if is_exact else ExactNumber(text)


def _decimal(value: float) -> Decimal:
    return value.decimal if isinstance(value, ExactNumber) else Decimal(repr(value))


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _with_marks(value: Any, mark: str) -> Any:
    if isinstance(value, ExactNumber):
        return mark + value.text
    if isinstance(value, dict):
        return {name: _with_marks(part, mark) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_with_marks(part, mark) for part in value]
    return value
