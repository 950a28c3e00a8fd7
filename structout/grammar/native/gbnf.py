"""Parses GBNF, the notation of grammars that xgrammar reads."""

import re
from collections.abc import Callable
from typing import TypeVar

from structout.grammar.native.automaton import AutomatonLimits
from structout.grammar.native.gbnf_options import RuleOptions
from structout.grammar.native.grammar_context import GrammarContext
from structout.grammar.native.rules import (
    REPETITIONS,
    OpenGroups,
    RuleSet,
    Way,
    bounded_int,
    errors_placed,
    malformed_error,
    unsupported_error,
)
from structout.grammar.native.substrings import add_substrings

START = "root"
_Value = TypeVar("_Value")

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\r\n]*)
      | (?P<assign>::=)
      | (?P<name>[A-Za-z_.-][A-Za-z0-9_.-]*)
      | (?P<number>[0-9]+)
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
_MACROS = frozenset(("TagDispatch", "Token", "ExcludeToken", "Regex", "Substring"))
_OTHER_MACROS = frozenset(("TokenTagDispatch",))


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
        self._rules = RuleSet(START, limits, shared=shared, is_labelled=context.is_labelled)
        self._first_uses: dict[str, int] = {}
        self._tokens = self._all_tokens()
        self._at = 0  # the next token of the rule

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
        starts = [i - (i > 0 and self._tokens[i].lastgroup == "characters") for i in starts]
        if not starts or starts[0] != 0:
            raise malformed_error(self._text, 0, "expected a rule such as root ::= ...")
        for start, end in zip(starts, [*starts[1:], len(self._tokens)], strict=True):
            self._parse_rule(start, end)
        self._rules.check_complete("GBNF", self._text, self._first_uses)
        return self._rules

    def _parse_rule(self, start: int, end: int) -> None:
        name = self._tokens[start]
        if name.lastgroup != "name":
            raise malformed_error(self._text, name.start(), "expected the name of a rule before ::=")
        if start > 0 and "\n" not in self._text[self._tokens[start - 1].end() : name.start()].replace("\r", "\n"):
            raise malformed_error(self._text, name.start(), "a rule must begin on a new line")
        if self._rules.is_defined(name.group()):
            raise malformed_error(self._text, name.start(), f"the rule {name.group()} is defined twice")
        options = self._options(start)
        groups = OpenGroups(self._rules)
        may_repeat = False
        self._at = start + (2 if options is None else 3)
        while self._at < end:
            token = self._tokens[self._at]
            self._at += 1
            if token.lastgroup == "name" and token.group() in _MACROS:
                groups.add(self._parse_macro(token))
                may_repeat = True
            else:
                may_repeat = self._parse_token(token, groups, may_repeat)
        if groups.depth:
            raise malformed_error(self._text, self._tokens[end - 1].end(), "a ( is not closed")
        if groups.alternatives == [[]]:
            raise malformed_error(self._text, self._tokens[end - 1].end(), 'the rule is empty: write ""')
        alternatives = groups.close_alternatives()
        if options is not None:
            body = self._rules.add_alternatives(alternatives)
            alternatives = [[options.applied(self._rules, self._rules.reference(name.group()), body)]]
        self._rules.define(name.group(), alternatives)

    def _options(self, start: int) -> RuleOptions | None:
        """The options of the rule whose name is a token."""
        written = self._tokens[start + 1]
        if written.lastgroup != "characters":
            return None
        with errors_placed(self._text, written.start()):
            return RuleOptions.parse(written.group()[1:-1], self._tokens[start].group())

    def _parse_macro(self, name: re.Match[str]) -> int:
        """Parse the arguments of a macro of xgrammar."""
        self._expect("(")
        match name.group():
            case "Regex":
                part = self._rules.add_regex(self._expect_text())
            case "Substring":
                part = add_substrings(self._rules, {"substring_chunks": self._list_of(self._expect_text)})
            case "TagDispatch":
                part = self._parse_tag_dispatch()
            case kind:
                ids = self._list_of(self._expect_number)
                tokens = [self._context.token_of(token) for token in ids]
                part = self._rules.token(tokens if kind == "Token" else self._context.other_tokens(tokens))
        self._expect(")")
        return part

    def _parse_tag_dispatch(self) -> int:
        """Parse free text with tags: (text, rule) pairs, then options."""
        tags: dict[str, Way] = {}
        excluded: list[str] = []
        loops = True
        while not self._is_next(")"):
            if self._is_next("("):
                self._at += 1
                tag = self._expect_text()
                self._expect(",")
                rule = self._take("name", "the name of a rule")
                self._first_uses.setdefault(rule.group(), rule.start())
                tags[tag] = Way(self._rules.reference(rule.group()), returns=True)
                self._expect(")")
            else:
                option = self._take("name", "a tag or an option")
                self._expect("=")
                if option.group() == "excludes":
                    self._expect("(")
                    excluded = self._list_of(self._expect_text)
                    self._expect(")")
                elif option.group() == "loop_after_dispatch":
                    loops = self._take("name", "true or false").group() == "true"
                else:
                    feature = f"the option {option.group()} of TagDispatch is"
                    raise unsupported_error(self._text, option.start(), feature)
            if not self._is_next(")"):
                self._expect(",")
        nothing = Way(self._rules.add_text(""))
        ways = {tag: Way(way.part, returns=loops) for tag, way in tags.items()}
        return self._rules.add_free_text(ways, excluded, [nothing])

    def _list_of(self, parse: Callable[[], _Value]) -> list[_Value]:
        values = [parse()]
        while self._is_next(","):
            self._at += 1
            values.append(parse())
        return values

    def _is_next(self, sign: str) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at].group() == sign

    def _expect(self, sign: str) -> None:
        if not self._is_next(sign):
            raise malformed_error(self._text, self._offset(), f"expected {sign}")
        self._at += 1

    def _take(self, kind: str, what: str) -> re.Match[str]:
        if self._at == len(self._tokens) or self._tokens[self._at].lastgroup != kind:
            raise malformed_error(self._text, self._offset(), f"expected {what}")
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect_text(self) -> str:
        return self._text_of(self._take("text", "a text"))

    def _expect_number(self) -> int:
        return bounded_int(self._take("number", "the id of a token").group())

    def _offset(self) -> int:
        """The offset of the next token, or the end of the grammar."""
        return self._tokens[self._at].start() if self._at < len(self._tokens) else len(self._text)

    def _text_of(self, token: re.Match[str]) -> str:
        return "".join(map(chr, self._codes(token.group()[1:-1], token.start() + 1, _SELF_ESCAPES)))

    def _parse_token(self, token: re.Match[str], groups: OpenGroups, may_repeat: bool) -> bool:
        """Add a token to the open groups. Return whether a repetition may follow."""
        part, at = token.group(), token.start()
        match token.lastgroup:
            case "text":
                groups.add(self._rules.add_text(self._text_of(token)))
                return True
            case "characters":
                groups.add(self._add_class(token))
                return True
            case "name":
                if part == ".":  # llama.cpp's any character
                    groups.add(self._rules.native.add_characters([], True))
                    return True
                if part in _OTHER_MACROS:
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
        with errors_placed(self._text, token.start()):
            return self._context.add_token(self._rules, token["token"], is_negated=token["negation"] == "!")

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
