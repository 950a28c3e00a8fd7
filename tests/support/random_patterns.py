"""Random regular expressions in ECMA-262's syntax, each with an equivalent for Python's
``re``, with texts that match it, and with a judge in linear time."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, reduce

# ECMA-262 defines them over code points, without regard to a locale:
# WhiteSpace and LineTerminator; [0-9]; [A-Za-z0-9_].
_SPACES = "\t\n\v\f\r \xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000\ufeff"
_DIGITS = "0123456789"
_LETTERS = "abcxyzABZ"
_WORD = _LETTERS + _DIGITS + "_"
_LINE_TERMINATORS = "\n\r\u2028\u2029"

# Characters that implementations are known to class in different ways, or to escape.
HOSTILE = (
    '"\\/\n\r\t\b\f\v\x1c\x1f\x7f\x85\xa0\u1680\u2003\u200b\u2028\u2029\ufeff\u180e'
    "é\u0301東🦊\u0663\u212aſ\ud7ff\ue000\uffff\U0010ffff"
)
PLAIN = "abcxyzABZ0129_ -.,:{}[]()!/+*?|^$#&~<>="
_METACHARACTERS = set("\\^$.|?*+()[]{}/")
_PYTHON_METACHARACTERS = _METACHARACTERS | set("-&~#")


Ends = Callable[[str, set[int]], set[int]]


@dataclass(frozen=True)
class Pattern:
    """A regular expression.

    Attributes:
        text: in ECMA-262's syntax.
        python: the same for ``re``, with explicit classes.
        ends: returns where matches of the pattern in a text end that begin at one of
            some positions. ``re`` itself may backtrack for ever.
        sample: draws a text that matches as a whole, except for rare texts of negated
            classes.
        at_start, at_end: whether it is anchored there.
    """

    text: str
    python: str
    ends: Ends
    sample: Callable[[random.Random], str]
    at_start: bool = False
    at_end: bool = False

    def matches(self, text: str) -> bool:
        """Whether the whole of ``text`` matches."""
        return len(text) in self.ends(text, {0})

    def is_found_in(self, text: str) -> bool:
        ends = self.ends(text, {0} if self.at_start else set(range(len(text) + 1)))
        return len(text) in ends if self.at_end else bool(ends)


def random_pattern(rng: random.Random, depth: int = 3) -> Pattern:
    """Draw a pattern without anchors."""
    kind = rng.random()
    if depth == 0 or kind < 0.35:
        return _atom(rng)
    if kind < 0.6:
        return _sequence([random_pattern(rng, depth - 1) for _ in range(rng.randint(2, 4))])
    if kind < 0.75:
        return _alternatives([random_pattern(rng, depth - 1) for _ in range(rng.randint(2, 3))], rng)
    return _repeated(random_pattern(rng, depth - 1), rng)


def anchored(pattern: Pattern, at_start: bool, at_end: bool) -> Pattern:
    """``pattern`` with ``^`` in front of it, ``$`` after it, or both."""
    start, end = "^" if at_start else "", "$" if at_end else ""
    needs_group = "|" in pattern.text and (at_start or at_end)
    text = f"{start}(?:{pattern.text}){end}" if needs_group else start + pattern.text + end
    python = (r"\A" if at_start else "") + f"(?:{pattern.python})" + (r"\Z" if at_end else "")
    return Pattern(text, python, pattern.ends, pattern.sample, at_start, at_end)


def mutated(text: str, rng: random.Random) -> str:
    """``text`` with a character inserted, deleted, replaced or repeated."""
    at = rng.randint(0, len(text))
    other = rng.choice(HOSTILE if rng.random() < 0.4 else PLAIN)
    match rng.randrange(5):
        case 0:
            return text[:at] + other + text[at:]
        case 1:
            return text[:at] + text[at + 1 :]
        case 2:
            return text[:at] + other + text[at + 1 :]
        case 3:
            return text[:at] + text[max(0, at - 3) :]
    return text[:at]


def _sequence(parts: list[Pattern]) -> Pattern:
    return Pattern(
        "".join(_grouped(part.text) if "|" in part.text else part.text for part in parts),
        "".join(f"(?:{part.python})" for part in parts),
        lambda text, starts: reduce(lambda ends, part: part.ends(text, ends), parts, starts),
        lambda rng: "".join(part.sample(rng) for part in parts),
    )


def _alternatives(parts: list[Pattern], rng: random.Random) -> Pattern:
    opening = rng.choice(["(", "(?:", f"(?<n{rng.randrange(10**6)}>", ""])  # ECMA-262 allows a name once
    text = "|".join(part.text for part in parts)
    return Pattern(
        f"{opening}{text})" if opening else text,
        "|".join(f"(?:{part.python})" for part in parts),
        lambda text, starts: set().union(*(part.ends(text, starts) for part in parts)),
        lambda rng: rng.choice(parts).sample(rng),
    )


def _repeated(part: Pattern, rng: random.Random) -> Pattern:
    low = rng.randint(0, 3)
    high = low + rng.randint(0, 3)
    bounded = [(f"{{{low}}}", low, low), (f"{{{low},}}", low, low + 2), (f"{{{low},{high}}}", low, high)]
    suffix, low, high = rng.choice([("*", 0, 3), ("+", 1, 3), ("?", 0, 1), *bounded])
    lazy = "?" if rng.random() < 0.1 else ""
    most = None if suffix in ("*", "+") or suffix.endswith(",}") else high

    def ends(text: str, starts: set[int]) -> set[int]:
        found, reached, count = set(), starts, 0
        while reached and (most is None or count <= most):
            if count >= low:
                if reached <= found:
                    break
                found |= reached
            reached, count = part.ends(text, reached), count + 1
        return found

    return Pattern(
        _grouped(part.text) + suffix + lazy,
        f"(?:{part.python}){suffix}",
        ends,
        lambda rng: "".join(part.sample(rng) for _ in range(rng.randint(low, high))),
    )


def _grouped(text: str) -> str:
    return f"(?:{text})"


def _atom(rng: random.Random) -> Pattern:
    kind = rng.random()
    if kind < 0.4:
        return _text("".join(rng.choices(PLAIN, k=rng.randint(1, 3))), rng)
    if kind < 0.5:
        return _text(rng.choice(HOSTILE), rng)
    if kind < 0.6:
        return _dot()
    if kind < 0.75:
        text, python, sample = _shorthand(rng)
        return _one_of(text, f"[{python}]", sample)
    return _class(rng)


def _text(text: str, rng: random.Random) -> Pattern:
    written = "".join(_written(character, rng, _METACHARACTERS) for character in text)
    return Pattern(
        written,
        re.escape(text),
        lambda other, starts: {at + len(text) for at in starts if other.startswith(text, at)},
        lambda rng: text,
    )


def _written(character: str, rng: random.Random, metacharacters: set[str]) -> str:
    code = ord(character)
    if code <= 0xFF and rng.random() < 0.15:
        return f"\\x{code:02x}"
    if code <= 0xFFFF and rng.random() < 0.15:
        return f"\\u{code:04X}"
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", "\v": "\\v"}
    if character in named and rng.random() < 0.8:
        return named[character]
    return "\\" + character if character in metacharacters else character


def _dot() -> Pattern:
    return _one_of(".", f"[^{_LINE_TERMINATORS}]", lambda rng: _other_than(_LINE_TERMINATORS, rng))


def _one_of(text: str, python: str, sample: Callable[[random.Random], str]) -> Pattern:
    """A pattern of one character."""
    judge = re.compile(python)
    return Pattern(text, python, lambda text, starts: {at + 1 for at in starts if judge.match(text, at)}, sample)


def _shorthand(rng: random.Random) -> tuple[str, str, Callable[[random.Random], str]]:
    """A shorthand class, the inside of an equivalent class for ``re``, and a sampler of
    its characters."""
    letter, inside, members = rng.choice(
        [("d", "0-9", _DIGITS), ("w", "A-Za-z0-9_", _WORD), ("s", _ranges(_SPACES), _SPACES)]
    )
    if rng.random() < 0.6:
        return "\\" + letter, inside, lambda rng: rng.choice(members)
    return "\\" + letter.upper(), _complement(inside), lambda rng: _other_than(members, rng)


def _class(rng: random.Random) -> Pattern:
    text, python, samplers = "", "", []
    for _ in range(rng.randint(1, 3)):
        kind = rng.random()
        if kind < 0.3:
            first, last = sorted(rng.sample("abcxyz", 2))
            text, python = text + f"{first}-{last}", python + f"{first}-{last}"
            samplers.append(lambda rng, first=first, last=last: chr(rng.randint(ord(first), ord(last))))
        elif kind < 0.4:
            first, last = sorted(rng.sample("\x01\x1f\x7f\xa0é\u2003東\ue000", 2))
            text += f"\\u{ord(first):04x}-\\u{ord(last):04x}"
            python += f"{re.escape(first)}-{re.escape(last)}"
            samplers.append(lambda rng, first=first, last=last: rng.choice([first, last]))
        elif kind < 0.6:
            shorthand, inside, sample = _shorthand(rng)
            text, python = text + shorthand, python + inside
            samplers.append(sample)
        else:
            character = rng.choice(HOSTILE if rng.random() < 0.4 else PLAIN)
            text += _written(character, rng, _METACHARACTERS | {"-"})
            python += "\\" + character if character in _PYTHON_METACHARACTERS else character
            samplers.append(lambda rng, character=character: character)
    if rng.random() < 0.25:
        judge = re.compile(f"[^{python}]")

        def sample_other(rng: random.Random) -> str:
            return next(filter(judge.match, rng.choices(HOSTILE + PLAIN, k=30)), "q")

        return _one_of(f"[^{text}]", f"[^{python}]", sample_other)
    return _one_of(f"[{text}]", f"[{python}]", lambda rng: rng.choice(samplers)(rng))


def _other_than(members: str, rng: random.Random) -> str:
    return next(c for c in iter(lambda: rng.choice(HOSTILE if rng.random() < 0.5 else PLAIN), "") if c not in members)


def _ranges(characters: str) -> str:
    return "".join(map(re.escape, characters))


@cache
def _complement(inside: str) -> str:
    """The inside of the class of all characters that are not in ``[inside]``."""
    excluded = re.compile(f"[{inside}]")
    codes = [0, *(code + 1 for code in range(0x10000) if excluded.match(chr(code)))]
    ends = [*(code - 2 for code in codes[1:]), 0x10FFFF]
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in zip(codes, ends, strict=True) if first <= last)
