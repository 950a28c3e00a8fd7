"""The result of a check: the first byte that a text may not have, and the causes."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Cause:
    """One thing that forbids a text to go on as it does, or to end.

    Attributes:
        kind: "keyword" of a JSON Schema, "rule" of a grammar, "format" of a structural
            tag, "option" of the request, "json" where no JSON text goes on so,
            "regex", "choice", or "end" where the text is complete and nothing follows.
        place: where it stands: a JSON pointer into the schema or the tag, as in
            ``#/properties/age/maximum``, the name of the rule or of the option, the
            regular expression. Empty for the others.
        message: a sentence about it.
    """

    kind: str
    place: str
    message: str


@dataclass(frozen=True)
class Continuation:
    """Characters that may come next in a text, and an example.

    Attributes:
        characters: what may come next, as people write it: ``a-z``, ``0-9 space``, or
            the name of a special token.
        example: a shortest text that begins with one of them and completes the text.
            None if none was found soon.
        rule: the innermost rule of the grammar that they belong to, or JSON pointer to
            the format of the tag. Empty for other constraints.
    """

    characters: str
    example: str | None
    rule: str


@dataclass(frozen=True)
class TextCheck:
    """The verdict on a text, and the ways in which its allowed part may go on.

    Attributes:
        text: the text.
        status: "complete"; "incomplete", where the constraint allows the text, but not
            its end; or "forbidden".
        offset: how many bytes of the text in UTF-8 the constraint allows, which is
            where the first byte stands that it forbids.
        causes: what forbids that byte or the end, together. Empty if the text is
            complete, or if it took too long to find out.
        may_follow: how the text may go on after the allowed part.
        may_end: whether it may end there.
        completion: a shortest text that completes the allowed part. None if none was
            found soon.
        path: JSON pointer to the value in which the allowed part ends. None if that is
            not in JSON.
        open_rules: the rules of a grammar, or the formats of a tag, that have begun and
            not ended, the outermost first.
        token_ids: the tokens of the text. None without a tokenizer.
        token_index: which of them has the first byte that is forbidden. None if none
            has, or without a tokenizer.
        num_allowed_tokens: how many tokens the constraint allows in place of that
            token, or at the end of the text. None without a tokenizer.
        num_needed: the least number of tokens that complete the text, its stop token
            included: at its start and after each allowed token. None without a
            tokenizer, and where no end is known.
    """

    text: str
    status: str
    offset: int
    causes: tuple[Cause, ...]
    may_follow: tuple[Continuation, ...]
    may_end: bool
    completion: str | None
    path: str | None
    open_rules: tuple[str, ...]
    token_ids: tuple[int, ...] | None
    token_index: int | None
    num_allowed_tokens: int | None
    num_needed: tuple[int, ...] | None

    @property
    def is_complete(self) -> bool:
        return self.status == "complete"

    @property
    def allowed_text(self) -> str:
        """The part of the text that is allowed, without an incomplete character."""
        return self.text.encode()[: self.offset].decode(errors="ignore")

    @property
    def line(self) -> int:
        """The line of ``offset``, from 1."""
        return self.allowed_text.count("\n") + 1

    @property
    def column(self) -> int:
        """The character of ``offset`` in its line, from 1."""
        return len(self.allowed_text) - self.allowed_text.rfind("\n")

    def as_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        return asdict(self) | {"line": self.line, "column": self.column}
