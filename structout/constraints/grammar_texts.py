"""Properties of a grammar that regular expressions can find, without a parser."""

import re

# Strings, classes and comments. Unclosed ones end at the end of their line, so that the
# time stays linear.
_STRING = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"?'
_CLASS = r"\[[^\]\\\n]*(?:\\.[^\]\\\n]*)*\]?"
_TEXT = re.compile(rf"{_STRING}|{_CLASS}|//[^\n]*|#[^\n]*")
_GBNF_PART = re.compile(rf"{_STRING}|#[^\n]*|(?P<kept>{_CLASS})")
_LARK_PART = re.compile(rf"{_STRING}|//[^\n]*|#[^\n]*|/(?P<kept>(?:[^/\\\n]|\\.)+)/?")


def is_gbnf(grammar: str) -> bool:
    """True if a grammar is GBNF: it uses ``::=``, which Lark has only inside
    strings."""
    return "::=" in _TEXT.sub("", grammar)


def expressions_of(grammar: str) -> str:
    """A grammar without its strings and comments. Lark's regular expressions become
    groups, in which brackets and bounds count as in the rules."""
    part, kept = (_GBNF_PART, "{}") if is_gbnf(grammar) else (_LARK_PART, "({})")
    return part.sub(lambda match: kept.format(match["kept"]) if match["kept"] else " ", grammar)
