"""Splits Lark grammars into tokens."""

import json
import re
from typing import Any

from structout.errors import GrammarLimitError
from structout.grammar.native.rules import malformed_error

_PARENTHESES = r"\([^()\n]*\)"
for _ in range(5):  # inside each other
    _PARENTHESES = rf"\((?:[^()\n]|{_PARENTHESES})*\)"
_TOKEN = re.compile(
    r"""(?:(?P<space>[ \t]+|(?:\#|//)[^\n]*)
      | (?P<newline>\r?\n)
      | (?P<bracket>[()\[\]|])
      | (?P<text>"(?:[^"\\\x00-\x1f\x7f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}))*"i?)
      | (?P<regex>/(?P<pattern>(?:[^/\\]|\\.)+)/(?P<flags>[imslux]*))
      | (?P<name>_?[a-z][_a-z0-9-]*|_?[A-Z][_A-Z0-9-]*)
      | (?P<parameter>::[ \t]*(?P<expression>\w+(?:\([^()\n]*\))?))
      | (?P<condition>%if[ \t]+(?P<tested>\w+[ \t]*(?:"""
    + _PARENTHESES
    + r""")?))
      | (?P<statement>%[a-z]+)
      | (?P<alias>->[ \t]*(?P<alias_name>\w+))
      | (?P<times>~[ \t]*(?P<low>[0-9]+)(?:[ \t]*\.\.[ \t]*(?P<high>[0-9]+))?)
      | (?P<bounds>\{[ \t]*(?P<from>[0-9]*)[ \t]*(?P<comma>,[ \t]*(?P<to>[0-9]*)[ \t]*)?\})
      | (?P<range>\.\.)
      | (?P<priority>\.[ \t]*(?P<priority_value>[+-]?[0-9]+))
      | (?P<token><[^<>\s]+>)
      | (?P<grammar>@[A-Za-z0-9_-]+)
      | (?P<number>[0-9]+(?:\.[0-9]+)?)
      | (?P<sign>[{}*+?&~:!.,=]))[ \t]*""",
    re.VERBOSE,
)
_JSON = json.JSONDecoder()
_JSON_STATEMENTS = frozenset(("%llguidance", "%json", "%regex"))
_MAX_GRAMMARS_INSIDE = 20


class Token:
    """``value`` and ``json``: what comes after a statement, and how it is written."""

    __slots__ = ("json", "kind", "match", "start", "text", "value")

    def __init__(self, kind: str, text: str, start: int, match: re.Match[str], value: Any = None, json: str = ""):
        self.kind, self.text, self.start, self.match, self.value, self.json = kind, text, start, match, value, json


def tokens_of(text: str) -> list[Token]:
    """Split a grammar into tokens, without spaces, comments and the line ends before
    ``|``. The value of ``%lark`` is the tokens of the grammar inside.

    Raises:
        GrammarError: something is no token, or is not closed.
        GrammarLimitError: grammars are nested too deep.
    """
    return _tokens_of(text, 0, 0)[0]


def _tokens_of(text: str, at: int, depth: int) -> tuple[list[Token], int]:
    """Split a grammar that may stand inside of others.

    Args:
        at: where it begins.
        depth: the number of grammars around it. If there are some, it ends with ``}``.

    Returns:
        the tokens, and where the grammar ends.
    """
    tokens: list[Token] = []
    begin = at
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise malformed_error(text, at, f"unexpected {text[at]!r}, or what it opens is not closed")
        kind, start, at = match.lastgroup or "", at, match.end()
        if kind == "space":
            continue
        token = Token(kind, match[kind], start, match)
        if token.text in _JSON_STATEMENTS:
            json_begin = _end_of_space(text, at)
            try:
                token.value, at = _JSON.raw_decode(text, json_begin)
            except (ValueError, RecursionError):
                raise malformed_error(text, at, f"expected a JSON value after {token.text}") from None
            token.json = text[json_begin:at]
        elif token.text == "%lark":
            at = _end_of_space(text, at)
            if text[at : at + 1] != "{":
                raise malformed_error(text, at, "expected { after %lark")
            if depth == _MAX_GRAMMARS_INSIDE:
                raise GrammarLimitError("nesting", depth + 1, _MAX_GRAMMARS_INSIDE)
            token.value, at = _tokens_of(text, at + 1, depth + 1)
        elif token.text == "}" and depth:
            return tokens, at
        elif token.text == "|":
            while tokens and tokens[-1].kind == "newline":
                tokens.pop()
        tokens.append(token)
    if depth:
        raise malformed_error(text, begin, "the { after %lark is not closed")
    return tokens, at


def _end_of_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at
