r"""The characters of classes in regular expressions, as ECMA-262 defines them.

A class is a list of ranges of code points, each with its first and its last member.
"""

import re
from itertools import pairwise

Ranges = list[tuple[int, int]]

_DIGITS = [(0x30, 0x39)]
_WORD = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_SPACES = [(0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)]
_SPACES += [(0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]
_LINE_ENDS = [(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]
_LAST = 0x10FFFF


def _all_but(ranges: Ranges) -> Ranges:
    bounds = [(-1, -1), *ranges, (_LAST + 1, _LAST + 1)]
    gaps = ((before[1] + 1, after[0] - 1) for before, after in pairwise(bounds))
    return [(first, last) for first, last in gaps if first <= last]


SHORT_NAMES: dict[str, Ranges] = {
    r"\d": _DIGITS,
    r"\w": _WORD,
    r"\s": _SPACES,
    r"\D": _all_but(_DIGITS),
    r"\W": _all_but(_WORD),
    r"\S": _all_but(_SPACES),
    ".": _all_but(_LINE_ENDS),
}

_MEMBER = re.compile(r"\\u\{[0-9a-fA-F]+\}|\\x\{[0-9a-fA-F]+\}|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\?.", re.DOTALL)
_CONTROLS = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B, "b": 0x08, "0": 0x00}


def members_of(inside: str) -> list[Ranges]:
    """The members of a class: ranges, characters, and the ranges of short names.

    A hyphen beside a short name stands for itself.

    Args:
        inside: what stands between ``[`` or ``[^`` and ``]``.
    """
    parts: list[str] = _MEMBER.findall(inside)
    members: list[Ranges] = []
    at = 0
    while at < len(parts):
        ends = (parts[at], parts[at + 2]) if parts[at + 1 : at + 2] == ["-"] and at + 2 < len(parts) else None
        if is_short_name(parts[at]):
            members.append(SHORT_NAMES[parts[at]])
        elif ends is not None and not is_short_name(ends[1]):
            members.append([(_code(ends[0]), _code(ends[1]))])
            at += 2
        else:
            members.append([(_code(parts[at]), _code(parts[at]))])
        at += 1
    return members


def ranges_of(part: str) -> Ranges:
    """The characters of a class or of one character of a pattern, in order and without
    overlaps."""
    if not part.startswith("["):
        return SHORT_NAMES.get(part, [(_code(part), _code(part))])
    is_negated = part.startswith("[^")
    merged: Ranges = []
    for first, last in sorted(found for member in members_of(part[1 + is_negated : -1]) for found in member):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return _all_but(merged) if is_negated else merged


def is_short_name(part: str) -> bool:
    """Whether a part of a class is the short name of another class."""
    return part in SHORT_NAMES and part != "."


def written(ranges: Ranges) -> str:
    """The ranges as they stand in a class. No character stands for itself, so that none
    has a meaning."""
    return "".join(_escape(first) if first == last else f"{_escape(first)}-{_escape(last)}" for first, last in ranges)


def _code(part: str) -> int:
    if len(part) > 2:
        return int(part[2:].strip("{}"), 16)
    return _CONTROLS.get(part[1], ord(part[1])) if part.startswith("\\") and len(part) == 2 else ord(part)


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\u{{{code:x}}}"
