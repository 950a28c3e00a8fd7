"""Parameters of rules in Lark, which are 64-bit integers: ``name::_``, as llguidance
reads them."""

import re
from collections.abc import Callable

from structout.grammar.native.rules import bounded_int

_WORD = re.compile(r"[ \t]*([a-z_]+|\[[ \t]*[0-9]+[ \t]*:[ \t]*[0-9]+[ \t]*\]|0x[0-9a-fA-F]+|[0-9]+|[(),])[ \t]*")
_BITS = 64
_ALL_BITS = (0, _BITS)


class ParameterError(ValueError):
    """An expression is malformed."""


def value_of(expression: str, parameter: int | None) -> int:
    """Evaluate what follows ``::``.

    Args:
        parameter: of the rule around it. None if that has none.

    Raises:
        ParameterError: the expression is malformed, or uses the parameter of a rule
            that has none.
    """
    return _Evaluation(expression, parameter).value()


def holds(condition: str, parameter: int | None) -> bool:
    """Evaluate what follows ``%if``. Arguments and errors as of ``value_of``."""
    return _Evaluation(condition, parameter).condition()


_VALUES: dict[str, Callable[[int, int], int]] = {
    "set_bit": lambda p, k: p | 1 << k,
    "clear_bit": lambda p, k: p & ~(1 << k),
    "bit_and": lambda p, v: p & v,
    "bit_or": lambda p, v: p | v,
}
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": int.__eq__,
    "ne": int.__ne__,
    "lt": int.__lt__,
    "le": int.__le__,
    "gt": int.__gt__,
    "ge": int.__ge__,
}


class _Evaluation:
    def __init__(self, text: str, parameter: int | None):
        self._text, self._parameter = text, parameter
        self._words: list[str] = []
        at = 0
        while at < len(text.rstrip()):
            word = _WORD.match(text, at)
            if word is None:
                raise ParameterError(f"unexpected {text[at]!r} in {text.strip()}")
            self._words.append(word[1])
            at = word.end()
        self._at = 0

    def value(self) -> int:
        value = self._value()
        self._expect_end()
        return value & (1 << _BITS) - 1

    def condition(self) -> bool:
        holds = self._condition()
        self._expect_end()
        return holds

    def _value(self) -> int:
        word = self._take()
        if word == "_":
            return self._own()
        if word[:1].isdigit():
            return self._number(word)
        self._expect("(")
        if word in _VALUES:
            argument = self._bit() if word.endswith("_bit") else self._number(self._take())
            value = _VALUES[word](self._own(), argument)
        elif word in ("incr", "decr"):
            first, end = self._bits()
            bits, one = self._own_bits((first, end)), 1 << first
            limit = (1 << end - first) - 1 if word == "incr" else 0
            value = self._own() if bits == limit else self._own() + (one if word == "incr" else -one)
        else:
            raise ParameterError(f"unknown function {word}")
        self._expect(")")
        return value

    def _condition(self) -> bool:
        word = self._take()
        if word == "true":
            if self._next() == "(":
                self._expect("(")
                self._expect(")")
            return True
        self._expect("(")
        if word in ("and", "or"):
            left = self._condition()
            self._expect(",")
            right = self._condition()
            result = left and right if word == "and" else left or right
        elif word == "not":
            result = not self._condition()
        elif word in ("bit_set", "bit_clear"):
            result = (self._own() >> self._bit() & 1) == (word == "bit_set")
        elif word in ("is_ones", "is_zeros"):
            first, end = self._bits()
            result = self._own_bits((first, end)) == ((1 << end - first) - 1 if word == "is_ones" else 0)
        elif word.removeprefix("bit_count_") in _COMPARISONS:
            bits = self._own_bits(self._bits())
            self._expect(",")
            compared = bits.bit_count() if word.startswith("bit_count_") else bits
            result = _COMPARISONS[word.removeprefix("bit_count_")](compared, self._number(self._take()))
        else:
            raise ParameterError(f"unknown condition {word}")
        self._expect(")")
        return result

    def _own(self) -> int:
        if self._parameter is None:
            raise ParameterError("the rule has no parameter: its name must end with ::_")
        return self._parameter

    def _own_bits(self, bits: tuple[int, int]) -> int:
        first, end = bits
        return self._own() >> first & (1 << end - first) - 1

    def _bits(self) -> tuple[int, int]:
        word = self._take()
        if word == "_":
            return _ALL_BITS
        if not word.startswith("["):
            raise ParameterError(f"expected bits such as [0:3], or _, got {word}")
        first, end = (bounded_int(part.strip()) for part in word[1:-1].split(":"))
        if not first < end <= _BITS:
            raise ParameterError(f"expected bits in their order, up to {_BITS}, got {word}")
        return first, end

    def _bit(self) -> int:
        bit = self._number(self._take())
        if bit >= _BITS:
            raise ParameterError(f"there is no bit {bit}: there are {_BITS}")
        return bit

    def _number(self, word: str) -> int:
        if not word[:1].isdigit():
            raise ParameterError(f"expected a number, got {word}")
        value = int(word, 16) if word.startswith("0x") else bounded_int(word)
        if value >= 1 << _BITS:
            raise ParameterError(f"{word} has more than {_BITS} bits")
        return value

    def _next(self) -> str:
        return self._words[self._at] if self._at < len(self._words) else ""

    def _take(self) -> str:
        if self._at == len(self._words):
            raise ParameterError(f"{self._text.strip()} is not complete")
        self._at += 1
        return self._words[self._at - 1]

    def _expect(self, word: str) -> None:
        if self._take() != word:
            raise ParameterError(f"expected {word} in {self._text.strip()}")

    def _expect_end(self) -> None:
        if self._at < len(self._words):
            raise ParameterError(f"unexpected {self._words[self._at]} in {self._text.strip()}")
