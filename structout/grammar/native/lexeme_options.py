"""Options of the rules that a lexer reads as one terminal."""

from dataclasses import dataclass

from structout.grammar.native.captures import CapturedRule
from structout.grammar.native.rules import RuleSet


@dataclass
class LexemeOptions:
    """The attributes of a rule in Lark.

    Attributes:
        is_lexeme: whether the lexer reads the rule as one terminal.
        is_lazy: whether that ends as soon as it may.
        suffix: the expression that it ends with. None without one.
        stop: a text that it ends with, which belongs to what follows if that begins so.
        max_tokens: it ends after so many tokens, as soon as it may. None without a
            limit.
        capture_name: under which the texts of the rule are captured. None if they are
            not.
        ending_name: the same for its suffix or stop.
    """

    is_lexeme: bool = False
    is_lazy: bool = False
    suffix: int | None = None
    stop: str = ""
    max_tokens: int | None = None
    capture_name: str | None = None
    ending_name: str | None = None

    def ending(self, rules: RuleSet) -> int | None:
        """The expression of the suffix or the stop."""
        return rules.add_text(self.stop) if self.stop else self.suffix

    def capture(self, rules: RuleSet, name: str, body: int | None = None) -> None:
        """Add the rule to ``rules.captured`` if it or its ending has a capture name.

        Args:
            rules: of the grammar.
            name: of the rule.
            body: what it matches in front of its suffix or stop, if it is one terminal.
        """
        ending = None if body is None else self.ending(rules)
        if self.capture_name is not None or (self.ending_name is not None and ending is not None):
            reference = rules.reference(name)
            rules.captured.append(CapturedRule(reference, self.capture_name, self.ending_name, body, ending))

    def lexemes(self, rules: RuleSet, body: int) -> list[list[int]]:
        """The alternatives of a rule that is one terminal.

        Args:
            rules: where the expressions are added.
            body: what the terminal matches in front of its suffix or stop.
        """
        ending = self.ending(rules)
        whole = body if ending is None else rules.add_sequence([body, ending])
        add = rules.native.add_terminal
        lexemes = [[add(whole, self.is_lazy, self.stop.encode(), self.max_tokens)]]
        if ending is not None and self.max_tokens is not None:  # at the limit it ends without
            lexemes.append([add(body, max_tokens=self.max_tokens, ends_at_limit_only=True)])
        return lexemes
