"""Text that a grammar leaves no choice about needs no forward pass of its own: three ways to jump over it.

``ff_tokens`` appends the tokens that must follow (llguidance's fast-forward tokens); ``retokenize`` appends the text,
and tokenizes everything again (SGLang's jump-forward decoding, https://lmsys.org/blog/2024-02-05-compressed-fsm/);
``draft`` offers the tokens to the model for one forward pass to judge, and so changes no text.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from structout.grammar.forced_tokens import CanonicalTokenizer


class JumpForward(enum.Enum):
    OFF = "off"
    FF_TOKENS = "ff_tokens"
    RETOKENIZE = "retokenize"
    DRAFT = "draft"


@dataclass(frozen=True)
class Jump:
    """What becomes of a request's tokens.

    Attributes:
        num_dropped: how many of the last tokens to take off, and out of the KV cache.
        token_ids: to append then, without drawing them; or, as drafts, to have judged.
        text: what that adds to the request's text.
    """

    num_dropped: int = 0
    token_ids: tuple[int, ...] = ()
    text: str = ""


NO_JUMP = Jump()


class Position(Protocol):
    """One request in its constraint: a :class:`structout.grammar.interface.StructuredOutputGrammar`, for one."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool: ...

    def rollback(self, num_tokens: int) -> None: ...

    def find_jump_forward_string(self) -> str: ...

    def compute_ff_tokens(self) -> list[int]: ...


def jump(mode: JumpForward, position: Position, tokenizer: CanonicalTokenizer, token_ids: Sequence[int]) -> Jump:
    """Jump over what must follow ``token_ids``.

    Args:
        position: after ``token_ids``. It moves as the request's tokens do; with drafts it stays.
        token_ids: of the constrained text so far, from its start.
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
    """Append the tokens that must follow."""
    forced = draft(position, tokenizer)
    return forced if position.accept_tokens("", list(forced.token_ids)) else NO_JUMP


def draft(position: Position, tokenizer: CanonicalTokenizer) -> Jump:
    """Offer the tokens that must follow. The model may still split their text in another way, so they have to be
    verified like other drafts; then no text changes."""
    token_ids = position.compute_ff_tokens()
    return Jump(0, tuple(token_ids), tokenizer.vocabulary.text_of(token_ids)) if token_ids else NO_JUMP


def retokenize(position: Position, tokenizer: CanonicalTokenizer, token_ids: Sequence[int]) -> Jump:
    """Append the forced text, and tokenize the whole text again: tokens before it may change with it.

    The last tokens are what the tokenizer makes of a text that ends here; the next jump may change them. No jump where
    the text cannot be tokenized as it is, or the grammar refuses its new tokens.
    """
    forced = position.find_jump_forward_string()
    if not forced:
        return NO_JUMP
    old = list(token_ids)
    data = b"".join(tokenizer.vocabulary.token_bytes[token] for token in old)
    try:
        new = tokenizer.encode(data.decode() + forced)
    except UnicodeDecodeError:  # the text so far ends inside a character
        return NO_JUMP
    if new is None:
        return NO_JUMP
    num_kept = _length_of_common_prefix(old, new)
    position.rollback(len(old) - num_kept)
    if position.accept_tokens("", new[num_kept:]):
        return Jump(len(old) - num_kept, tuple(new[num_kept:]), forced)
    if not position.accept_tokens("", old[num_kept:]):
        raise AssertionError("the grammar refused tokens that it had accepted before")
    return NO_JUMP


def _length_of_common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
