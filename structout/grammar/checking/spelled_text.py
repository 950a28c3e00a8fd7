"""A text as the steps of a grammar: its tokens, or its bytes where there is no
tokenizer."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.interface import StructuredOutputGrammar
from structout.grammar.vocabulary import Vocabulary


class Piece(NamedTuple):
    """A step of a text.

    Attributes:
        token_id: None for bytes that are no token.
        written: its bytes in the text. The name of a special token, which has no bytes
            for a grammar.
    """

    token_id: int | None
    written: bytes

    def is_read_by(self, grammar: StructuredOutputGrammar) -> bool:
        """Advance a grammar. If the piece is not allowed, do nothing and return
        False."""
        if self.token_id is not None:
            return grammar.accept_tokens("", [self.token_id])
        return grammar.accept_bytes(self.written)


def spelled(
    text: str, grammar: StructuredOutputGrammar, vocabulary: Vocabulary, tokenizer: CanonicalTokenizer | None
) -> list[Piece]:
    """Split a text into the tokens that the tokenizer makes of it.

    The name of a special token counts as that token where the grammar allows it, and as
    text elsewhere.

    Args:
        text: the text.
        grammar: at the start of the constraint. It does not change.
        vocabulary: the token ids of the model.
        tokenizer: None makes each byte a piece of its own.
    """
    pieces: list[Piece] = []
    plain = ""
    copy = grammar.fork()
    for part, token in parts_of(text, vocabulary):
        if token is not None and copy.accept_tokens("", [token]):
            pieces += [*_plain_pieces(plain, vocabulary, tokenizer), Piece(token, part.encode())]
            plain = ""
        else:
            plain += part
            if not copy.accept_bytes(part.encode()):
                break
    num_read = len(plain.encode()) + sum(len(piece.written) for piece in pieces)
    rest = text.encode()[num_read:].decode()
    return [*pieces, *_plain_pieces(plain + rest, vocabulary, tokenizer)]


def may_end(grammar: StructuredOutputGrammar, vocabulary: Vocabulary) -> bool:
    """True if the text may end at the grammar's position, which does not change."""
    if not grammar.accept_tokens("", [vocabulary.stop_token_ids[0]]):
        return False
    ends = grammar.is_terminated()
    grammar.rollback(1)
    return ends


def parts_of(text: str, vocabulary: Vocabulary) -> Iterator[tuple[str, int | None]]:
    """Yield the names of special tokens, with their ids, and the text between them."""
    ids = {name: token for name, token in vocabulary.special_tokens if name}
    if not ids:
        yield text, None
        return
    names = "|".join(map(re.escape, sorted(ids, key=len, reverse=True)))
    for part in re.split(f"({names})", text):
        if part:
            yield part, ids.get(part)


def _plain_pieces(text: str, vocabulary: Vocabulary, tokenizer: CanonicalTokenizer | None) -> list[Piece]:
    tokens = None
    if tokenizer is not None:
        tokens = tokenizer.encode(text)
        if tokens is None:  # of a tokenizer that normalizes
            tokens = vocabulary.spell(text)
    if tokens is None:
        return [Piece(None, bytes([byte])) for byte in text.encode()]
    return [Piece(token, vocabulary.token_bytes[token]) for token in tokens]
