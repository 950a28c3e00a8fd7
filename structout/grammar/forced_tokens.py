"""Forced text as the tokens that the model would write itself.

A token that ends where forced text ends is often not the one that the tokenizer would
write: a forced ``"`` may be the first half of ``":``. Models rarely saw such halves and
continue badly after them. So the last tokens are dropped if a longer token could
replace them: "healing", as in llguidance's fast-forward tokens
(https://github.com/guidance-ai/llguidance/blob/main/docs/fast_forward.md).
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from structout.grammar.mistral import MistralEncoder, mistral_tokenizer
from structout.grammar.vocabulary import Vocabulary, has_vocabulary

NUM_CONTEXT_TOKENS = 4  # the last token, and those before it that hold the start of its first character
_LONGEST_JUMP = 1024  # bytes: bounds the time of a call and, with the number of texts, the memory of the cache
_CACHED_TEXTS = 1 << 13
_CACHED_SUFFIXES = 1 << 16


class ByteMatcher(Protocol):
    """A grammar whose forced text a :class:`CanonicalTokenizer` can tokenize."""

    def forced_bytes(self) -> bytes: ...

    def accept_bytes(self, data: bytes) -> bool:
        """Advance by ``data`` as one step. If it is not allowed, do nothing and return
        False."""

    def undo_bytes(self) -> None:
        """Undo the last step."""


class _Branch(NamedTuple):
    """Tokens ``_sorted[first:end]``, which all continue with the same byte."""

    byte: bytes
    first: int
    end: int


class _Extensions(NamedTuple):
    """Tokens that could replace the last forced ones.

    Attributes:
        num_kept: number of forced tokens before the replaced ones.
        length: number of bytes of such a token that are forced. It continues after
            them.
    """

    num_kept: int
    length: int
    branches: tuple[_Branch, ...]


class _ForcedText(NamedTuple):
    """The part of the work on a forced text that no grammar changes, so it is cached.

    Attributes:
        data: the forced bytes that the tokens spell.
        token_ids: the tokens, as the tokenizer writes them.
        extensions: tokens that could replace the last ones, if the grammar allows them.
    """

    data: bytes
    token_ids: tuple[int, ...]
    extensions: tuple[_Extensions, ...]  # those that replace most tokens first


class CanonicalTokenizer:
    """Tokenizes forced text canonically. Threads may share it.

    A cache holds recent forced texts, each after the token in front of it. For one of
    them, only the grammar must tell which of the longer tokens it allows.

    Args:
        tokenizer: the tokenizer that ``vocabulary`` was made from.
        vocabulary: the token ids of the model.
        lookback: number of the last forced tokens that a longer token may replace. Two
            suffice on MaskBench with the vocabularies of Llama 3 and Qwen. With 0, no
            token is dropped.
    """

    def __init__(self, tokenizer: Any, vocabulary: Vocabulary, *, lookback: int = 4):
        self.vocabulary = vocabulary
        self._lookback = lookback
        self._encoder = _encoder_inside_a_text(tokenizer)
        self._sorted = sorted(set(vocabulary.token_bytes) - {b""})
        self._longest = max(map(len, self._sorted), default=0)
        self._analyse = lru_cache(_CACHED_TEXTS)(self._analyse_anew)
        self._longer_tokens = lru_cache(_CACHED_SUFFIXES)(self._find_longer_tokens)

    def encode(self, text: str) -> list[int] | None:
        """Tokenize text that continues other text.

        Nothing is added in front, and special tokens are not recognized.

        None if they spell something else, as those of tokenizers that normalize do.
        """
        token_ids: list[int] = self._encoder.encode(text, add_special_tokens=False).ids
        pieces = [self.vocabulary.token_bytes[token] for token in token_ids]
        return token_ids if b"".join(pieces) == text.encode() and all(pieces) else None

    def ff_tokens(self, matcher: ByteMatcher, recent_tokens: Sequence[int]) -> list[int]:
        """Return the tokens of the forced text that no longer allowed token could
        replace.

        Args:
            matcher: the grammar, which is not changed.
            recent_tokens: tokens with text before the forced text, any number of them.
                Only the last one counts, unless it begins inside a character; at most
                ``NUM_CONTEXT_TOKENS`` do.
        """
        forced = matcher.forced_bytes()
        if not forced:
            return []
        text = self._analyse(self._context(recent_tokens), forced[:_LONGEST_JUMP])
        if not text.extensions or not matcher.accept_bytes(text.data):
            return list(text.token_ids)
        try:
            return list(text.token_ids[: self._num_certain(text, matcher)])
        finally:
            matcher.undo_bytes()

    def _context(self, recent_tokens: Sequence[int]) -> tuple[int, ...]:
        """The shortest end of ``recent_tokens`` that begins with a whole character."""
        for count in range(1, min(NUM_CONTEXT_TOKENS, len(recent_tokens)) + 1):
            text = self.vocabulary.token_bytes[recent_tokens[-count]]
            if not 0x80 <= text[0] < 0xC0:
                return tuple(recent_tokens[-count:])
        return ()

    def _analyse_anew(self, context: tuple[int, ...], forced: bytes) -> _ForcedText:
        token_ids = self._encode_after(context, forced)
        lengths = [len(self.vocabulary.token_bytes[token]) for token in token_ids]
        data = forced[: sum(lengths)]
        return _ForcedText(data, tuple(token_ids), tuple(self._find_extensions(data, lengths)))

    def _encode_after(self, context: tuple[int, ...], forced: bytes) -> list[int]:
        """Tokenize the whole characters of ``forced``.

        The context is included if that does not change the tokens of the context.
        """
        before = b"".join(self.vocabulary.token_bytes[token] for token in context)
        together = self.encode(whole_characters(before + forced))
        if together is not None and tuple(together[: len(context)]) == context:
            return together[len(context) :]
        return self.encode(whole_characters(forced)) or []

    def _find_extensions(self, data: bytes, lengths: list[int]) -> Iterator[_Extensions]:
        num_kept = max(0, len(lengths) - self._lookback)
        start = sum(lengths[:num_kept])
        for length in lengths[num_kept:]:
            for suffix_start in range(max(start, len(data) - self._longest + 1), start + length):
                branches = self._longer_tokens(data[suffix_start:])
                if branches:
                    yield _Extensions(num_kept, len(data) - suffix_start, branches)
            start += length
            num_kept += 1

    def _find_longer_tokens(self, prefix: bytes) -> tuple[_Branch, ...]:
        """The tokens that begin with ``prefix`` and are longer."""
        branches = []
        first = bisect_right(self._sorted, prefix)
        while first < len(self._sorted) and self._sorted[first].startswith(prefix):
            byte = self._sorted[first][len(prefix) : len(prefix) + 1]
            end = self._end_of_prefix(prefix + byte, first, len(self._sorted))
            branches.append(_Branch(byte, first, end))
            first = end
        return tuple(branches)

    def _end_of_prefix(self, prefix: bytes, first: int, end: int) -> int:
        """The end of the tokens in ``_sorted[first:end]`` that begin with ``prefix``.
        They come first there."""
        after = prefix.rstrip(b"\xff")
        return bisect_left(self._sorted, after[:-1] + bytes([after[-1] + 1]), first, end) if after else end

    def _num_certain(self, text: _ForcedText, matcher: ByteMatcher) -> int:
        """The number of tokens that no other can replace, for a matcher that has
        accepted ``text.data``."""
        seen: dict[bytes, bool] = {}

        def accepts(data: bytes) -> bool:
            accepted = seen[data] = matcher.accept_bytes(data)
            if accepted:
                matcher.undo_bytes()
            return accepted

        for num_kept, length, branches in text.extensions:
            for byte, first, end in branches:
                accepted = seen.get(byte)
                if accepted is None:
                    accepted = accepts(byte)
                if accepted and self._one_is_accepted(first, end, length, accepts):
                    return num_kept
        return len(text.token_ids)

    def _one_is_accepted(self, first: int, end: int, num_forced: int, accepts: Callable[[bytes], bool]) -> bool:
        """True if the grammar allows one of ``_sorted[first:end]``.

        It has accepted ``num_forced`` bytes of them, and would accept one more. A
        prefix that it refuses rules out all tokens which begin so.
        """
        while first < end:
            token = self._sorted[first]
            for length in range(num_forced + 2, len(token) + 1):
                if not accepts(token[num_forced:length]):
                    first = self._end_of_prefix(token[:length], first, end)
                    break
            else:
                return True
        return False


def whole_characters(data: bytes) -> str:
    """The longest prefix of ``data`` that is UTF-8 text."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode()


def _encoder_inside_a_text(tokenizer: Any) -> Any:
    """A deterministic copy of the tokenizer that treats the start of a text like any
    other position."""
    mistral = mistral_tokenizer(tokenizer)
    if mistral is not None:
        return MistralEncoder(mistral)
    if has_vocabulary(tokenizer):
        return tokenizer
    from tokenizers import Tokenizer

    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    spec |= {"post_processor": None, "truncation": None, "padding": None}
    spec["normalizer"] = _without_prefix_space(spec["normalizer"])
    spec["pre_tokenizer"] = _without_prefix_space(spec["pre_tokenizer"])
    if "dropout" in spec["model"]:
        spec["model"]["dropout"] = None
    encoder = Tokenizer.from_str(json.dumps(spec))
    encoder.encode_special_tokens = True
    return encoder


def _without_prefix_space(component: dict[str, Any] | None) -> dict[str, Any] | None:
    """A normalizer or pre-tokenizer that adds no space before a text."""
    if component is None or component["type"] == "Prepend":
        return None
    changed = dict(component)
    for name in ("normalizers", "pretokenizers"):
        if name in component:
            changed[name] = [part for part in map(_without_prefix_space, component[name]) if part is not None]
    if component["type"] == "Metaspace":
        changed["prepend_scheme"] = "never"
    if component["type"] == "ByteLevel":
        changed["add_prefix_space"] = False
    return changed
