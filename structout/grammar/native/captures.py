"""The texts that rules of a grammar have read."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from structout.grammar.native.extension import grammar_errors
from structout.grammar.vocabulary import Vocabulary

if TYPE_CHECKING:
    from structout.grammar.native.rules import RuleSet


@dataclass(frozen=True)
class CapturedRule:
    """A rule whose texts the grammar captures.

    Attributes:
        reference: of the rule.
        name: of its captures. None if only its ending has captures.
        ending_name: the name of the captures of its ending. None without one.
        body: what stands in front of the ending. None if there is no ending.
        ending: the expression of a suffix or a stop, which belongs to no capture of the
            rule.
    """

    reference: int
    name: str | None
    ending_name: str | None = None
    body: int | None = None
    ending: int | None = None


class CaptureReader:
    """Reads texts of a grammar for the second time, once they are complete.

    Args:
        rules: of the grammar.
        vocabulary: the token ids of the model.

    Raises:
        GrammarLimitError: the rules exceed one of their limits.
    """

    def __init__(self, rules: "RuleSet", vocabulary: Vocabulary):
        self._rules, self._vocabulary = rules, vocabulary
        self._captured = {rule.reference: rule for rule in rules.captured}
        self._parser = rules.capture_parser()

    def captures(self, tokens: Sequence[int]) -> list[tuple[str, bytes]]:
        """Return names and texts, in the order in which they end. Empty if the text is
        not complete.

        Args:
            tokens: of the text, without what ends it.

        Raises:
            GrammarLimitError: that takes more than the limits.
        """
        texts = [self._vocabulary.token_bytes[token] for token in tokens]
        with grammar_errors("the grammar"):
            found = self._parser.captures(list(zip(tokens, texts, strict=True))) or []
        whole = b"".join(texts)
        captures: list[tuple[str, bytes]] = []
        for reference, begin, end in found:
            rule = self._captured[reference]
            split = self._begin_of_ending(rule, whole[begin:end])
            if rule.ending_name is not None and split is not None:
                captures.append((rule.ending_name, whole[begin + split : end]))
            if rule.name is not None:
                captures.append((rule.name, whole[begin : end if split is None else begin + split]))
        return captures

    def _begin_of_ending(self, rule: CapturedRule, text: bytes) -> int | None:
        """The offset of a rule's ending in its text: the first place where the body may
        end and the ending begin. None if the rule has no ending."""
        if rule.ending is None:
            return None
        body, ending = (self._automata[part] for part in (rule.body, rule.ending))
        splits = (i for i in range(len(text) + 1) if body.matches(text[:i]) and ending.matches(text[i:]))
        return next(splits, None)

    @cached_property
    def _automata(self) -> dict[int | None, Any]:
        """The automata of rule bodies and endings, by part."""
        native_limits = self._rules.limits.native
        parts = {part for rule in self._captured.values() for part in (rule.body, rule.ending) if part is not None}
        return {part: self._rules.native.compile(part, native_limits) for part in parts}
