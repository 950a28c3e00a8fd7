"""Refusals of engines in structout's own words."""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from structout.errors import GrammarError, GrammarErrorKind
from structout.json_schema import Node, Nodes
from structout.params import StructuredOutputOptions

PATTERN_KEYWORDS = ("pattern", "patternProperties")

_MAX_TRIED = 64  # subschemas that are compiled alone to find the one that is refused
_MAX_SECONDS = 0.25
_NAMES = {
    StructuredOutputOptions.JSON: "JSON schema",
    StructuredOutputOptions.JSON_OBJECT: "constraint",
    StructuredOutputOptions.REGEX: "regular expression",
    StructuredOutputOptions.CHOICE: "choice",
    StructuredOutputOptions.GRAMMAR: "grammar",
    StructuredOutputOptions.STRUCTURAL_TAG: "structural tag",
}


@dataclass(frozen=True)
class Rule:
    """What some messages of an engine mean.

    Attributes:
        pattern: what such a message contains.
        kind: of the error.
        sentence: says it to a client. ``{0}`` stands for the first group of the
            pattern, and ``{constraint}`` for the kind of constraint.
        keywords: JSON Schema keywords, one of which is at fault; or ``{0}``.
    """

    pattern: str
    kind: GrammarErrorKind
    sentence: str
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """Why an engine refuses a constraint.

    Attributes:
        kind: of the error.
        sentence: says it to a client.
        keywords: JSON Schema keywords, one of which is at fault. Empty if unknown.
    """

    kind: GrammarErrorKind
    sentence: str
    keywords: tuple[str, ...] = ()

    def as_error(self, pointer: str | None = None, keyword: str | None = None) -> GrammarError:
        place = "" if pointer in (None, "#") else f"{pointer}: "
        return GrammarError(place + self.sentence, kind=self.kind, pointer=pointer, keyword=keyword)


def explain(rules: Iterable[Rule], message: str, kind: StructuredOutputOptions) -> Refusal:
    """Say what an engine's message means, by the first rule that matches it.

    A message that no rule knows is quoted behind a sentence of our own.
    """
    constraint = _NAMES[kind]
    for rule in rules:
        match = re.search(rule.pattern, message)
        if match:
            sentence = rule.sentence.format(*match.groups(), constraint=constraint)
            keywords = tuple(keyword.format(*match.groups()) for keyword in rule.keywords)
            return Refusal(rule.kind, sentence, keywords)
    if kind is StructuredOutputOptions.JSON:
        return Refusal(GrammarErrorKind.UNSUPPORTED, f"the {constraint} cannot be compiled: {message}")
    return Refusal(GrammarErrorKind.MALFORMED, f"the {constraint} does not parse: {message}")


def locate(refusal: Refusal, nodes: Nodes, is_refused_alone: Callable[[Node], bool]) -> tuple[str | None, str | None]:
    """Find the innermost subschema that an engine refuses.

    Args:
        refusal: why it refuses the whole schema.
        nodes: the subschemas, inner ones after outer ones.
        is_refused_alone: whether the engine refuses a subschema alone, with the same
            message.

    Returns:
        JSON pointer to the subschema or to its keyword at fault, and that keyword. None
        for what is not known.
    """
    suspects = [(pointer, node) for pointer, node in nodes if not refusal.keywords or _first(refusal.keywords, node)]
    deadline = time.monotonic() + _MAX_SECONDS
    found = suspects[0] if len(suspects) == 1 and refusal.keywords else None
    for pointer, node in suspects[: -_MAX_TRIED - 1 : -1]:
        if found or time.monotonic() > deadline:
            break
        if is_refused_alone(node):
            found = pointer, node
    if found is None:
        return None, None
    pointer, node = found
    keyword = _first(refusal.keywords, node)
    return f"#{pointer}" if keyword is None else f"#{pointer}/{keyword}", keyword


def _first(keywords: Sequence[str], node: Node) -> str | None:
    return next((keyword for keyword in keywords if keyword in node), None)
