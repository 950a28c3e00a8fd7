"""Jump-forward decoding: forced text needs no forward pass of its own.

Text is forced where the grammar allows only one continuation. There are three modes:

- ``ff_tokens`` appends the forced tokens.
- ``retokenize`` appends the forced text and tokenizes the whole text again.
- ``draft`` offers the forced tokens as drafts, which the model verifies in one forward
  pass. It changes no text.

Source: llguidance's fast-forward tokens, and SGLang's jump-forward decoding
(https://lmsys.org/blog/2024-02-05-compressed-fsm/).
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from structout.grammar.forced_tokens import CanonicalTokenizer


class JumpForward(enum.Enum):
    """The modes of jump-forward decoding."""

    OFF = "off"
    FF_TOKENS = "ff_tokens"
    RETOKENIZE = "retokenize"
    DRAFT = "draft"


@dataclass(frozen=True)
class Jump:
    """A change to a request's tokens.

    Attributes:
        num_dropped: how many tokens to remove first, from the end of the request and
            from its KV cache.
        token_ids: the tokens to append without sampling, or, in the draft mode, the
            drafts to verify.
        text: the text that this adds to the request.
    """

    num_dropped: int = 0
    token_ids: tuple[int, ...] = ()
    text: str = ""


NO_JUMP = Jump()


class Position(Protocol):
    """A request's position in its constraint, such as a
    :class:`structout.grammar.interface.StructuredOutputGrammar`."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool: ...

    def rollback(self, num_tokens: int) -> None: ...

    def find_jump_forward_string(self) -> str: ...

    def compute_ff_tokens(self) -> list[int]: ...


def jump(mode: JumpForward, position: Position, tokenizer: CanonicalTokenizer, token_ids: Sequence[int]) -> Jump:
    """Jump over the text that must follow ``token_ids``.

    Args:
        mode: how to jump.
        position: the position after ``token_ids``. It advances with the jump, except in
            the draft mode.
        tokenizer: see :meth:`StructuredOutputManager.canonical_tokenizer`.
        token_ids: the constrained tokens so far, from their start.

    Returns:
        what to change; ``NO_JUMP`` if nothing is forced.
    """
    match mode:
        case JumpForward.OFF:
            return NO_JUMP
        case JumpForward.FF_TOKENS:
            return ff_tokens(position, tokenizer)
        case JumpForward.RETOKENIZE:
            return retokenize(position, tokenizer, token_ids)
        case JumpForward.DRAFT:
            return draft(position, tokenizer)


def ff_tokens(position: Position, tokenizer: CanonicalTokenizer) -> Jump:
    """Append the forced tokens, and advance ``position`` over them."""
    forced = draft(position, tokenizer)
    return forced if position.accept_tokens("", list(forced.token_ids)) else NO_JUMP


def draft(position: Position, tokenizer: CanonicalTokenizer) -> Jump:
    """Offer the forced tokens as drafts.

    Verify them like any other drafts, because the model may split their text
    differently. The generated text does not change.
    """
    token_ids = position.compute_ff_tokens()
    return Jump(0, tuple(token_ids), tokenizer.vocabulary.text_of(token_ids)) if token_ids else NO_JUMP


def retokenize(position: Position, tokenizer: CanonicalTokenizer, token_ids: Sequence[int]) -> Jump:
    """Append the forced text, and tokenize the whole text again.

    Tokens before the forced text may change, and the next jump may change the last
    tokens again. There is no jump if the text so far ends inside a character, has no
    canonical tokens, or the grammar refuses the new tokens.
    """
    forced = position.find_jump_forward_string()
    if not forced:
        return NO_JUMP
    old_ids = list(token_ids)
    text_bytes = b"".join(tokenizer.vocabulary.token_bytes[token] for token in old_ids)
    try:
        new_ids = tokenizer.encode(text_bytes.decode() + forced)
    except UnicodeDecodeError:  # the text so far ends inside a character
        return NO_JUMP
    if new_ids is None:
        return NO_JUMP
    num_kept = _common_prefix_length(old_ids, new_ids)
    position.rollback(len(old_ids) - num_kept)
    if position.accept_tokens("", new_ids[num_kept:]):
        return Jump(len(old_ids) - num_kept, tuple(new_ids[num_kept:]), forced)
    if not position.accept_tokens("", old_ids[num_kept:]):
        raise AssertionError("the grammar refused tokens that it had accepted before")
    return NO_JUMP


def _common_prefix_length(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
