"""Regular expressions of Lark grammars, which llguidance reads as Rust does."""

import re

from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.native.letter_case import other_forms

_PART = re.compile(r"\\[pP]\{[^}]*\}|\\.|\[\^?\]?(?:[^\]\\]|\\.)*\]|\(\?[a-zA-Z]*(?:-[a-zA-Z]+)?[:)]|.", re.DOTALL)
_MEMBER = re.compile(r"\\[pP]\{[^}]*\}|\\.|&&|--|~~|.", re.DOTALL)
_CONTROLS = {r"\t": "\t", r"\n": "\n", r"\r": "\r", r"\f": "\f", r"\v": "\v"}
_SET_OPERATORS = ("[", "&&", "--", "~~")
# The insides of Rust's classes. \s is the property White_Space; ECMA-262 has U+FEFF
# instead of U+0085. \w is Alphabetic (letters, letter numbers, some marks, and letters
# in circles and boxes), all marks, decimal digits, connectors and joiners.
_MEMBERS = {
    r"\d": r"\p{Nd}",
    r"\s": r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000",
    r"\w": r"\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\u200c\u200d\u24b6-\u24e9"
    r"\u{1f130}-\u{1f149}\u{1f150}-\u{1f169}\u{1f170}-\u{1f189}",
}
# The insides of \D and \S as members of a class, where [^...] cannot stand.
_OTHER_MEMBERS = {
    r"\D": r"\P{Nd}",
    r"\S": r"\0-\x08\x0e-\x1f!-\x84\x86-\x9f\xa1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e"
    r"\u2060-\u2fff\u3001-\u{10ffff}",
}
_SYNTAX = frozenset(("(?:", *"()|*+?{}^$."))


def ecma_from_rust(pattern: str, flags: str = "") -> str:
    r"""Rewrite a regular expression of Rust for the dialect of docs/native.md.

    Parts that mean the same in both dialects stay as they are, supported or not.

    Args:
        pattern: the regular expression.
        flags: the letters after it, of which ``i`` and ``s`` are supported.

    Raises:
        GrammarError: it uses what means something else there, and what cannot be
            rewritten.
    """
    open_flags = [_with_flags(frozenset(), flags)]  # of the open groups
    parts = []
    for part in _PART.findall(pattern):
        if part == ".":
            parts.append(r"[\s\S]" if "s" in open_flags[-1] else r"[^\n]")
            continue
        if part.startswith("(?") and part != "(?:" and part[-1] in ":)":
            inside = _with_flags(open_flags[-1], part[2:-1])
            if part[-1] == ")":  # up to the end of the group
                open_flags[-1] = inside
                continue
            open_flags.append(inside)
            part = "(?:"
        elif part in ("(", "(?:"):
            open_flags.append(open_flags[-1])
        elif part == ")" and len(open_flags) > 1:
            open_flags.pop()
        ignores_case = "i" in open_flags[-1]
        if part[0] == "[":
            parts.append(_class(part, ignores_case))
        else:
            parts.append(_any_case(part) if ignores_case and part not in _SYNTAX else _escape(part))
    return "".join(parts)


def _with_flags(outer: frozenset[str], written: str) -> frozenset[str]:
    """The flags inside of a group: those around it, with letters that are switched on,
    and off after a ``-``."""
    on, _, off = written.partition("-")
    for flag in on + off:
        if flag not in "is":
            raise _unsupported(f"the flag {flag}")
    return (outer | set(on)) - set(off)


def _any_case(part: str) -> str:
    """A character or an escape, in any case."""
    if len(part) > 1:
        _check_has_no_case(part)
        return _escape(part)
    others = "".join(other_forms(part, part))
    return f"[{part}{others}]" if others else part


def _check_has_no_case(escape: str) -> None:
    """Refuse an escape that may stand for letters, unless it has all their forms."""
    if escape[1] in "pPxuU" or (escape[1] in "bBAz" and escape not in _CONTROLS):
        raise _unsupported(f"{escape} without regard to case")


def _escape(part: str) -> str:
    if part in (r"\<", r"\>"):
        raise _unsupported("a word boundary")
    members = _MEMBERS.get(part.lower())
    if members is None:
        return part
    return f"[{members}]" if part.islower() else f"[^{members}]"


def _class(part: str, ignores_case: bool) -> str:
    opening = "[^" if part.startswith("[^") else "["
    written = _MEMBER.findall(part[len(opening) : -1])
    members = []
    for member in written:
        if member in _SET_OPERATORS or member == r"\W":
            raise _unsupported(f"{member} in a class")
        if member in (r"\D", r"\S"):
            members.append(_OTHER_MEMBERS[member])
        else:
            members.append(_MEMBERS[member] if member in _MEMBERS else _escape(member))
    if ignores_case:
        members += _members_in_other_case(written)
    return opening + "".join(members) + "]"


def _members_in_other_case(written: list[str]) -> list[str]:
    """The members that a class must gain to have all of its own in any case."""
    others: list[str] = []
    i = 0
    while i < len(written):
        if written[i] not in _MEMBERS and written[i] not in _OTHER_MEMBERS and len(written[i]) > 1:
            _check_has_no_case(written[i])
        is_range = written[i + 1 : i + 2] == ["-"] and i + 2 < len(written)
        last = i + 2 if is_range else i
        if len(written[i]) == len(written[last]) == 1:
            others += other_forms(written[i], written[last])
        elif is_range:
            raise _unsupported(f"the range {''.join(written[i : last + 1])} without regard to case")
        i = last + 1
    return others


def _unsupported(feature: str) -> GrammarError:
    message = f"a regular expression cannot be compiled: {feature} is not supported"
    return GrammarError(message, kind=GrammarErrorKind.UNSUPPORTED)
