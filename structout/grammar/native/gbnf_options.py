"""Options of rules in GBNF, as xgrammar reads them: ``name[lazy, max_chars=9] ::=``."""

import re
from dataclasses import dataclass

from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.native.captures import CapturedRule
from structout.grammar.native.rules import RuleSet, bounded_int

_OPTION = re.compile(
    r"""[ \t]*(?P<name>lazy|max_chars|max_tokens|temperature|capture)[ \t]*
        (?:=[ \t]*(?:(?P<number>[0-9]+(?:\.[0-9]+)?)|"(?P<text>[^"\\]*)")[ \t]*)?(?:,|$)""",
    re.VERBOSE,
)
_ANY = "(?:.|[\\n\\r\\u2028\\u2029])"  # a regular expression's . is no end of a line


@dataclass(frozen=True)
class RuleOptions:
    """The options of one rule.

    Attributes:
        is_lazy: whether a text of the rule ends as soon as it may.
        max_chars: the number of characters of a text. None without a limit.
        capture: under which name the texts are captured. None if they are not.
    """

    is_lazy: bool = False
    max_chars: int | None = None
    capture: str | None = None

    @staticmethod
    def parse(written: str, rule: str) -> "RuleOptions":
        """Parse what stands in brackets after the name of a rule.

        Raises:
            GrammarError: an option is unknown, or not supported.
        """
        found: dict[str, re.Match[str]] = {}
        at = 0
        while at < len(written):
            option = _OPTION.match(written, at)
            if option is None:
                raise GrammarError(f'expected options such as lazy, max_chars=9, capture="n", got {written[at:]}')
            found[option["name"]] = option
            at = option.end()
        if "max_tokens" in found:  # a text of bytes may have many tokenizations
            message = "max_tokens in GBNF is not supported, only in Lark, for rules that are one terminal"
            raise GrammarError(message, kind=GrammarErrorKind.UNSUPPORTED)
        chars = found["max_chars"]["number"] if "max_chars" in found else None
        if "max_chars" in found and (chars is None or "." in chars):
            raise GrammarError("max_chars must be an integer")
        capture = (found["capture"]["text"] or rule) if "capture" in found else None
        return RuleOptions("lazy" in found, None if chars is None else bounded_int(chars), capture)

    def applied(self, rules: RuleSet, reference: int, body: int) -> int:
        """The expression of the rule with these options.

        Args:
            rules: where expressions are added.
            reference: of the rule.
            body: what the rule matches without them.
        """
        native = rules.native
        if self.is_lazy:
            more = native.add_sequence([body, rules.add_regex(f"{_ANY}+")])
            body = native.add_intersection([body, native.add_complement(more)])
        if self.max_chars is not None:
            body = native.add_intersection([body, rules.add_regex(f"{_ANY}{{0,{self.max_chars}}}")])
        if self.capture is not None:
            rules.captured.append(CapturedRule(reference, self.capture))
        return body
