"""Regular expressions of Lark grammars, which llguidance reads as Rust does."""

import re

from structout.errors import GrammarError, GrammarErrorKind

_PART = re.compile(r"\\[pP]\{[^}]*\}|\\.|\[\^?\]?(?:[^\]\\]|\\.)*\]|\(\?s:|.", re.DOTALL)
_MEMBER = re.compile(r"\\[pP]\{[^}]*\}|\\.|&&|--|~~|.", re.DOTALL)
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


def ecma_from_rust(pattern: str, flags: str = "") -> str:
    r"""Rewrite a regular expression of Rust for the dialect of docs/fsm.md.

    Parts that mean the same in both dialects stay as they are, supported or not.

    Args:
        pattern: the regular expression.
        flags: the letters behind it, of which only ``s`` is supported.

    Raises:
        GrammarError: it uses what means something else there, and what cannot be
            rewritten.
    """
    for flag in flags:
        if flag != "s":
            raise _unsupported(f"the flag {flag}")
    dot_takes_all = ["s" in flags]  # of the open groups
    parts = []
    for part in _PART.findall(pattern):
        match part:
            case ".":
                parts.append(r"[\s\S]" if dot_takes_all[-1] else r"[^\n]")
                continue
            case "(?s:":
                dot_takes_all.append(True)
                part = "(?:"
            case "(":
                dot_takes_all.append(dot_takes_all[-1])
            case ")" if len(dot_takes_all) > 1:
                dot_takes_all.pop()
        parts.append(_class(part) if part[0] == "[" else _escape(part))
    return "".join(parts)


def _escape(part: str) -> str:
    if part in (r"\<", r"\>"):
        raise _unsupported("a word boundary")
    members = _MEMBERS.get(part.lower())
    if members is None:
        return part
    return f"[{members}]" if part.islower() else f"[^{members}]"


def _class(part: str) -> str:
    opening = "[^" if part.startswith("[^") else "["
    members = []
    for member in _MEMBER.findall(part[len(opening) : -1]):
        if member in _SET_OPERATORS:
            raise _unsupported(f"{member} in a class")
        if member in (r"\D", r"\S", r"\W"):
            raise _unsupported(f"{member} in a class")
        members.append(_MEMBERS[member] if member in _MEMBERS else _escape(member))
    return opening + "".join(members) + "]"


def _unsupported(feature: str) -> GrammarError:
    message = f"a regular expression cannot be compiled: {feature} is not supported"
    return GrammarError(message, kind=GrammarErrorKind.UNSUPPORTED)
