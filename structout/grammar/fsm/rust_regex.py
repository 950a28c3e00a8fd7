"""Regular expressions of Lark grammars, which llguidance reads as Rust does."""

import re

from structout.errors import GrammarError, GrammarErrorKind

_PART = re.compile(r"\\.|\[\^?\]?(?:[^\]\\]|\\.)*\]|\(\?s:|.", re.DOTALL)
_MEMBER = re.compile(r"\\.|&&|--|~~|.", re.DOTALL)
_SET_OPERATORS = ("[", "&&", "--", "~~")
# The property White_Space, which is \s in Rust. ECMA-262 has U+FEFF instead of U+0085.
_SPACES = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


def ecma_from_rust(pattern: str, flags: str = "") -> str:
    r"""Rewrite a regular expression of Rust for the dialect of docs/fsm.md.

    What both write in the same way stays, also if it is not supported.

    Args:
        pattern: the regular expression.
        flags: the letters behind it, of which only ``s`` is supported.

    Raises:
        GrammarError: it uses what means something else there, such as ``\d``, which has
            the digits of all scripts in Rust.
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
    match part:
        case r"\d" | r"\D" | r"\w" | r"\W":
            raise _unsupported(f"{part}, which has the characters of all scripts in Lark,")
        case r"\<" | r"\>":
            raise _unsupported("a word boundary")
        case r"\s" | r"\S":
            return f"[{'^' if part == chr(92) + 'S' else ''}{_SPACES}]"
    return part


def _class(part: str) -> str:
    opening = "[^" if part.startswith("[^") else "["
    members = []
    for member in _MEMBER.findall(part[len(opening) : -1]):
        if member in _SET_OPERATORS:
            raise _unsupported(f"{member} in a class")
        if member == r"\S":
            raise _unsupported(r"\S in a class")
        members.append(_SPACES if member == r"\s" else _escape(member))
    return opening + "".join(members) + "]"


def _unsupported(feature: str) -> GrammarError:
    message = f"a regular expression cannot be compiled: {feature} is not supported"
    return GrammarError(message, kind=GrammarErrorKind.UNSUPPORTED)
