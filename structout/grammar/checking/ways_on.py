"""Which rules a text has begun, and how it may go on."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from structout.errors import GrammarError
from structout.grammar.checking.spelled_text import Piece
from structout.grammar.native.extension import grammar_errors
from structout.grammar.native.grammars import ContextFreeGrammar, GrammarIndex
from structout.grammar.native.rules import RuleSet
from structout.grammar.vocabulary import Vocabulary

_SPACE = b" \t\r\n"
_MAX_WAYS = 24  # each is parsed
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
        first: the bytes that may come next on this way.
        end: what completes the text after the first of them.
        spans: the rules of the completed text, inner ones first.
    """

    first: bytes
    end: bytes
    spans: tuple[Span, ...] = ()

    @property
    def example(self) -> bytes:
        """A shortest text on this way, which begins with a readable character if it
        may."""
        readable = bytes(byte for byte in self.first if 0x20 < byte < 0x7F)
        return (readable or self.first)[:1] + self.end

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
            GrammarIndex(rules, vocabulary), vocabulary.size, vocabulary.stop_token_ids, None
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
        firsts: dict[tuple[bool, bytes], list[int]] = {}  # by whether they are space, and what completes the text
        for byte in range(256):
            if self._grammar.accept_bytes(bytes([byte])):
                end = self._grammar.shortest_end()
                self._grammar.undo_bytes()
                firsts.setdefault((byte in _SPACE, b"" if end is None else end), []).append(byte)
        for (_, end), first in sorted(firsts.items(), key=lambda item: item[0][0])[:_MAX_WAYS]:
            way = Way(bytes(first), end)
            yield replace(way, spans=self.spans(way.example))
