"""The rules that a text has begun, and the ways in which it may go on."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from structout.errors import GrammarError
from structout.grammar.checking.spelled_text import Piece
from structout.grammar.native.compiled_grammar import CompiledGrammar
from structout.grammar.native.extension import grammar_errors
from structout.grammar.native.grammars import ContextFreeGrammar
from structout.grammar.native.rules import RuleSet
from structout.grammar.vocabulary import Vocabulary

_SPACE = b" \t\r\n"
_MAX_WAYS = 24  # each is parsed
_SECONDS_FOR_ENDS = 0.5
_NO_TOKEN = (1 << 30) - 1  # of bytes that no token spells


class Span(NamedTuple):
    """A part of a text that one rule has read, from byte ``begin`` to ``end``."""

    name: str
    begin: int
    end: int


@dataclass(frozen=True)
class Way:
    """One way in which a text may go on.

    Attributes:
        first: the bytes that may come next on this way. Empty for a special token.
        end: what completes the text after them. None if that was not found soon.
        spans: the rules of the completed text, inner ones first.
        token: the name of a special token that may come next; empty for bytes.
    """

    first: bytes
    end: bytes | None
    spans: tuple[Span, ...] = ()
    token: str = ""

    @property
    def example(self) -> bytes | None:
        """A shortest text on this way, which begins with a readable character if it
        may. None if ``end`` is."""
        if self.end is None:
            return None
        readable = bytes(byte for byte in self.first if 0x20 < byte < 0x7F)
        return self.token.encode() + (readable or self.first)[:1] + self.end

    def rules_at(self, offset: int) -> list[Span]:
        """The rules that the byte at an offset belongs to, inner ones first."""
        return [span for span in self.spans if span.begin <= offset < span.end]


class WaysOn:
    """Follows a text in rules with labels.

    Args:
        rules: of the constraint, with labels.
        vocabulary: the token ids of the model.
    """

    def __init__(self, rules: RuleSet, vocabulary: Vocabulary):
        self._grammar = ContextFreeGrammar(
            CompiledGrammar(rules, vocabulary), vocabulary.size, vocabulary.stop_token_ids, None
        )
        self._labels = rules.labels or {}
        self._parser = rules.label_parser()
        self._vocabulary = vocabulary
        self._tokens: list[tuple[int, bytes]] = []  # what the parser reads

    def read(self, pieces: Iterable[Piece]) -> None:
        """Go on in the text. The constraint must allow the pieces."""
        for piece in pieces:
            if not piece.is_read_by(self._grammar):
                raise GrammarError(f"the rules with names do not allow {piece.written!r} where those without do")
            token = _NO_TOKEN if piece.token_id is None else piece.token_id
            data = piece.written if piece.token_id is None else self._vocabulary.token_bytes[piece.token_id]
            self._tokens.append((token, data))

    @property
    def text(self) -> bytes:
        """The text so far, as rules read it: special tokens have no bytes."""
        return b"".join(data for _, data in self._tokens)

    def shortest_end(self) -> bytes | None:
        """A shortest text that completes this one. None if none is found soon."""
        return self._grammar.shortest_end()

    def spans(self, end: bytes) -> tuple[Span, ...]:
        """The rules of the text together with an end that completes it, inner ones
        first. Empty if it does not."""
        with grammar_errors("the grammar"):
            found = self._parser.captures([*self._tokens, *((_NO_TOKEN, bytes([byte])) for byte in end)]) or ()
        return tuple(Span(self._labels[label], begin, end) for label, begin, end in found)

    def ways(self) -> Iterator[Way]:
        """Yield the ways in which the text may go on, by bytes. Whitespace comes
        last."""
        deadline = time.monotonic() + _SECONDS_FOR_ENDS
        firsts: dict[tuple[bool, bytes | None], list[int]] = {}  # by whether they are space, and the end after them
        for byte in range(256):
            if self._grammar.accept_bytes(bytes([byte])):
                end = self._end_before(deadline)
                self._grammar.undo_bytes()
                firsts.setdefault((byte in _SPACE, end), []).append(byte)
        for (_, end), first in sorted(firsts.items(), key=lambda item: item[0][0])[:_MAX_WAYS]:
            way = Way(bytes(first), end)
            yield replace(way, spans=() if way.example is None else self.spans(way.example))
        for name, token in self._vocabulary.special_tokens:
            has_bytes = bool(self._vocabulary.token_bytes[token]) or token in self._vocabulary.stop_token_ids
            if not has_bytes and self._grammar.accept_tokens("", [token]):
                yield Way(b"", self._end_before(deadline), token=name)
                self._grammar.rollback(1)

    def _end_before(self, deadline: float) -> bytes | None:
        return self._grammar.shortest_end() if time.monotonic() < deadline else None
