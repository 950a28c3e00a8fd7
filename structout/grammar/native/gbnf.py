"""Parses GBNF, the notation of grammars that xgrammar reads."""

import re

from structout.errors import GrammarError
from structout.grammar.native.automaton import AutomatonLimits
from structout.grammar.native.grammar_context import GrammarContext
from structout.grammar.native.rules import (
    REPETITIONS,
    OpenGroups,
    RuleSet,
    bounded_int,
    malformed_error,
    place,
    unsupported_error,
)

START = "root"

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\r\n]*)
      | (?P<assign>::=)
      | (?P<name>[A-Za-z_.-][A-Za-z0-9_.-]*)
      | (?P<text>"(?:[^"\\\r\n]|\\[^\r\n])*")
      | (?P<characters>\[(?:[^\]\\\r\n]|\\[^\r\n])*\])
      | (?P<bounds>\{[ \t\r\n]*(?P<low>[0-9]+)[ \t\r\n]*(?P<comma>,[ \t\r\n]*(?P<high>[0-9]*)[ \t\r\n]*)?\})
      | (?P<lookahead>\(=)
      | (?P<negation>!?)(?P<token><(?:\[[^\]<>\r\n]*\]|[^\[\]<>\s]+)>)
      | (?P<sign>[()|*+?,=])""",
    re.VERBOSE,
)
_CHARACTER = re.compile(r"\\x[0-9a-fA-F]+|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\.|[^\\]", re.DOTALL)
_CODES = {"a": 0x07, "b": 0x08, "t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D, "e": 0x1B, "0": 0x00}
_SELF_ESCAPES = "'\"?\\"
_SELF_ESCAPES_IN_CLASSES = _SELF_ESCAPES + "^$.*+()[]{}|/-"
_MACROS = frozenset(("TagDispatch", "Token", "ExcludeToken", "TokenTagDispatch", "Regex"))


def parse_gbnf(text: str, limits: AutomatonLimits, context: GrammarContext, shared: RuleSet | None = None) -> RuleSet:
    """Parse a grammar as xgrammar does, and tokens as llama.cpp does.

    Args:
        text: the grammar.
        limits: what it may cost.
        context: what it may refer to.
        shared: other rules, to whose expressions those of the grammar are added.

    Raises:
        GrammarError: the grammar is malformed or uses what is not supported.
    """
    return _Parser(text, limits, context, shared).parse()


class _Parser:
    def __init__(self, text: str, limits: AutomatonLimits, context: GrammarContext, shared: RuleSet | None):
        self._text = text
        self._context = context
        self._rules = RuleSet(START, limits, shared=shared)
        self._first_uses: dict[str, int] = {}
        self._tokens = self._all_tokens()

    def _all_tokens(self) -> list[re.Match[str]]:
        tokens, at = [], 0
        while at < len(self._text):
            token = _TOKEN.match(self._text, at)
            if token is None:
                problem = f"unexpected {self._text[at]!r}, or what it opens is not closed"
                raise malformed_error(self._text, at, problem)
            at = token.end()
            if token.lastgroup != "space":
                tokens.append(token)
        return tokens

    def parse(self) -> RuleSet:
        starts = [i - 1 for i, token in enumerate(self._tokens) if token.lastgroup == "assign"]
        if not starts or (starts[0] != 0 and self._tokens[max(starts[0], 0)].lastgroup != "characters"):
            raise malformed_error(self._text, 0, "expected a rule such as root ::= ...")
        for start, end in zip(starts, [*starts[1:], len(self._tokens)], strict=True):
            self._parse_rule(start, end)
        if not self._rules.is_defined(START):
            raise GrammarError(f"a GBNF grammar must have a rule named {START}")
        for name in self._rules.undefined_names:
            where = place(self._text, self._first_uses[name])
            raise GrammarError(f"{where}: the grammar uses {name}, which it does not define")
        return self._rules

    def _parse_rule(self, start: int, end: int) -> None:
        name = self._tokens[start]
        if name.lastgroup != "name":
            if name.lastgroup == "characters":  # name[capture] ::= ...
                raise unsupported_error(self._text, name.start(), "attributes of rules are")
            raise malformed_error(self._text, name.start(), "expected the name of a rule before ::=")
        if start > 0 and "\n" not in self._text[self._tokens[start - 1].end() : name.start()].replace("\r", "\n"):
            raise malformed_error(self._text, name.start(), "a rule must begin on a new line")
        if self._rules.is_defined(name.group()):
            raise malformed_error(self._text, name.start(), f"the rule {name.group()} is defined twice")
        groups = OpenGroups(self._rules)
        may_repeat = False
        for i in range(start + 2, end):
            may_repeat = self._parse_token(i, groups, may_repeat)
        if groups.depth:
            raise malformed_error(self._text, self._tokens[end - 1].end(), "a ( is not closed")
        if groups.alternatives == [[]]:
            raise malformed_error(self._text, self._tokens[end - 1].end(), 'the rule is empty: write ""')
        self._rules.define(name.group(), groups.close_alternatives())

    def _parse_token(self, index: int, groups: OpenGroups, may_repeat: bool) -> bool:
        """Add a token to the open groups. Return whether a repetition may follow."""
        token = self._tokens[index]
        part, at = token.group(), token.start()
        match token.lastgroup:
            case "text":
                groups.add(self._rules.add_text("".join(map(chr, self._codes(part[1:-1], at + 1, _SELF_ESCAPES)))))
                return True
            case "characters":
                groups.add(self._add_class(token))
                return True
            case "name":
                if part == ".":  # llama.cpp's any character
                    groups.add(self._rules.native.add_characters([], True))
                    return True
                if part in _MACROS:
                    raise unsupported_error(self._text, at, f"the macro {part} is")
                self._first_uses.setdefault(part, at)
                groups.add(self._rules.reference(part))
                return True
            case "token":
                groups.add(self._add_token(token))
                return True
            case "bounds" if may_repeat:
                groups.repeat_last(*self._bounds(token))
                return False
            case "lookahead":
                raise unsupported_error(self._text, at, "lookahead in a grammar is")
        if part in REPETITIONS and may_repeat:
            groups.repeat_last(*REPETITIONS[part])
            return False
        if part == "(":
            groups.open()
            return False
        if part == ")" and groups.depth:
            inside = groups.close()
            groups.add(inside)
            return True
        if part == "|":
            groups.begin_alternative()
            return False
        raise malformed_error(self._text, at, f"unexpected {part}")

    def _add_token(self, token: re.Match[str]) -> int:
        try:
            return self._context.add_token(self._rules, token["token"], is_negated=token["negation"] == "!")
        except GrammarError as error:
            raise GrammarError(f"{place(self._text, token.start())}: {error}", kind=error.kind) from None

    def _bounds(self, token: re.Match[str]) -> tuple[int, int | None]:
        low = bounded_int(token["low"])
        if token["comma"] is None:
            return low, low
        if not token["high"]:
            return low, None
        high = bounded_int(token["high"])
        if high < low:
            raise malformed_error(self._text, token.start(), "the bounds of a repetition are out of order")
        return low, high

    def _add_class(self, token: re.Match[str]) -> int:
        inside, at = token.group()[1:-1], token.start() + 1
        is_negated = inside.startswith("^")
        if is_negated:
            inside, at = inside[1:], at + 1
        written = _CHARACTER.findall(inside)
        codes = self._codes(inside, at, _SELF_ESCAPES_IN_CLASSES)
        ranges = []
        i = 0
        while i < len(codes):
            last = i + 2 if written[i + 1 : i + 2] == ["-"] and i + 2 < len(codes) else i
            if codes[i] > codes[last]:
                raise malformed_error(self._text, at, "the ends of a range are out of order")
            ranges.append((codes[i], codes[last]))
            i = last + 1
        return self._rules.native.add_characters(ranges, is_negated)

    def _codes(self, written: str, at: int, self_escapes: str) -> list[int]:
        """The code points of a text or of the members of a class."""
        codes = []
        for match in _CHARACTER.finditer(written):
            part = match.group()
            offset = at + match.start()
            if part[0] != "\\":
                code = ord(part)
            elif part[1] in "xuU" and len(part) > 2:
                code = int(part[2:], 16)
            elif part[1] in _CODES:
                code = _CODES[part[1]]
            elif part[1] in self_escapes:
                code = ord(part[1])
            elif part[1] in "dDsSwW" and self_escapes is _SELF_ESCAPES_IN_CLASSES:
                raise unsupported_error(self._text, offset, f"{part} in a class is")
            else:
                raise malformed_error(self._text, offset, f"unknown escape {part}")
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                raise unsupported_error(self._text, offset, f"the character U+{code:04X} is")
            codes.append(code)
        return codes
