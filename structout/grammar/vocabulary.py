"""The bytes of every token id of a tokenizer, which is all that a grammar engine needs
of it."""

import json
import operator
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, Protocol, TypeGuard

from structout.grammar.mistral import Encoding, mistral_tokenizer, mistral_tokens
from structout.grammar.native.extension import core


@dataclass(frozen=True)
class Vocabulary:
    """The token ids of a model.

    Attributes:
        token_bytes: one entry per id, up to the width of the model's lm_head. Empty for
            special tokens, padding ids and unused ids. These are never allowed inside
            constrained text, whatever their printed form looks like.
        stop_token_ids: the ids that end a text.
        special_tokens: names of tokens that stand beside the text, with their ids: a
            grammar may ask for them.
    """

    token_bytes: tuple[bytes, ...]
    stop_token_ids: tuple[int, ...]
    special_tokens: tuple[tuple[str, int], ...] = ()

    @cached_property
    def size(self) -> int:
        return len(self.token_bytes)

    @cached_property
    def trie(self) -> Any:
        """The texts of all tokens in the form that the C++ core walks. Equal
        vocabularies share one."""
        return _trie(self)

    def text_of(self, token_ids: Iterable[int], *, with_names: bool = False) -> str:
        """The text of the tokens. Unlike a tokenizer's decoder, it changes no spaces.

        Args:
            token_ids: the tokens.
            with_names: write special tokens as their names. By default they add
                nothing.
        """
        return self.bytes_of(token_ids, with_names=with_names).decode(errors="replace")

    def bytes_of(self, token_ids: Iterable[int], *, with_names: bool = False) -> bytes:
        """The bytes that tokens stand for, as :meth:`text_of` decodes them."""
        names = self._names if with_names else {}
        return b"".join(self.token_bytes[i] or names.get(i, b"") for i in token_ids)

    @cached_property
    def _names(self) -> dict[int, bytes]:
        return {token: name.encode() for name, token in self.special_tokens}

    def token_of_byte(self, byte: int) -> int | None:
        """The first token whose text is one byte, or None if there is none."""
        return self._tokens_of_bytes.get(bytes([byte]))

    @cached_property
    def _tokens_of_bytes(self) -> dict[bytes, int]:
        return {data: token for token, data in reversed([*enumerate(self.token_bytes)]) if len(data) == 1}

    def spell(self, text: str) -> list[int] | None:
        """The shortest tokens that spell ``text``, or None if no tokens do."""
        data = text.encode()
        ids = {token: i for i, token in enumerate(self.token_bytes) if token}
        longest = max(map(len, ids), default=0)
        last_length: list[int | None] = [0]  # length of the last token of data[:end]; None if nothing spells it
        for end in range(1, len(data) + 1):
            lengths = (n for n in range(1, min(longest, end) + 1) if last_length[end - n] is not None)
            last_length.append(next((n for n in lengths if data[end - n : end] in ids), None))
        spelling: list[int] = []
        end = len(data)
        while end:
            length = last_length[end]
            if length is None:
                return None
            spelling.append(ids[data[end - length : end]])
            end -= length
        return spelling[::-1]

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Any, vocab_size: int | None = None, stop_token_ids: Sequence[int] | None = None
    ) -> "Vocabulary":
        """Read the vocabulary of a Hugging Face tokenizer, or of one of mistral-common.

        Args:
            tokenizer: a tokenizer that stores tokens byte-level (GPT-2 style) or with
                byte fallback (SentencePiece style), one of mistral-common, or a
                :class:`VocabularyTokenizer`.
            vocab_size: the width of the model's lm_head, padding included. Default: the
                highest id + 1.
            stop_token_ids: tokens that end a text. Default: the tokenizer's
                eos_token_id.

        Raises:
            TypeError: not a tokenizer, but its name, for example.
            ValueError: vocab_size is too small for the tokenizer, stop ids are missing
                or out of range, or the bytes of the tokens cannot be determined.
        """
        mistral = mistral_tokenizer(tokenizer)
        if mistral is not None:
            tokens = mistral_tokens(mistral)
            own = cls(tuple(data or b"" for data in tokens.token_bytes), (tokens.eos_token_id,), tokens.names)
            return own._with(vocab_size, stop_token_ids)
        if has_vocabulary(tokenizer):
            return tokenizer.vocabulary._with(vocab_size, stop_token_ids)
        if isinstance(tokenizer, str | os.PathLike) or not hasattr(tokenizer, "get_vocab"):
            given = f"the {type(tokenizer).__name__} {tokenizer!r}" if isinstance(tokenizer, str) else repr(tokenizer)
            raise TypeError(
                f"expected a Hugging Face tokenizer, got {given}; "
                "load one with transformers.AutoTokenizer.from_pretrained"
            )
        ids = tokenizer.get_vocab()
        size = _size(max(ids.values()), vocab_size)
        if stop_token_ids is None:
            stop_token_ids = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        if not stop_token_ids:
            raise ValueError("the tokenizer has no eos_token, so that no text could end: pass stop_token_ids")
        _check_stops(stop_token_ids, size)
        added = tokenizer.added_tokens_decoder
        special = set(tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}
        to_bytes = _token_decoder(tokenizer)
        token_bytes = [b""] * size
        for token, i in ids.items():
            if i not in special:
                token_bytes[i] = added[i].content.encode() if i in added else to_bytes(token)
        named = special | added.keys()
        names = sorted(((token, i) for token, i in ids.items() if i in named), key=lambda each: each[1])
        return cls(tuple(token_bytes), tuple(sorted(set(stop_token_ids))), tuple(names))

    def _with(self, vocab_size: int | None, stop_token_ids: Sequence[int] | None) -> "Vocabulary":
        """The same tokens with padding up to a size, and with other stop tokens."""
        size = _size(self.size - 1, vocab_size)
        stops = self.stop_token_ids if stop_token_ids is None else stop_token_ids
        _check_stops(stops, size)
        padding = [b""] * (size - self.size)
        return Vocabulary((*self.token_bytes, *padding), tuple(sorted(set(stops))), self.special_tokens)


class VocabularyTokenizer(Protocol):
    """A tokenizer of another library that knows its vocabulary."""

    vocabulary: Vocabulary

    def encode(self, text: str, *, add_special_tokens: bool) -> Encoding:
        """Tokenize text that continues other text: nothing is added in front."""


def has_vocabulary(tokenizer: Any) -> TypeGuard[VocabularyTokenizer]:
    """True for a :class:`VocabularyTokenizer`."""
    return isinstance(getattr(tokenizer, "vocabulary", None), Vocabulary)


@lru_cache(4)
def _trie(vocabulary: Vocabulary) -> Any:
    return core().VocabularyTrie(text_bytes(vocabulary))


def text_bytes(vocabulary: Vocabulary) -> list[bytes]:
    """The bytes of each token inside a text. Stop tokens have none: they end one."""
    texts = list(vocabulary.token_bytes)
    for stop in vocabulary.stop_token_ids:
        texts[stop] = b""
    return texts


# Its tokens are single bytes, so that texts can be read without a tokenizer.
BYTES = Vocabulary((*(bytes([byte]) for byte in range(256)), b""), stop_token_ids=(256,))


def _size(highest: int, vocab_size: int | None) -> int:
    size = highest + 1 if vocab_size is None else vocab_size
    if highest >= size:
        raise ValueError(f"vocab_size is {size}, but the tokenizer has a token of id {highest}")
    return size


def _check_stops(stop_token_ids: Sequence[int], size: int) -> None:
    bad = [stop for stop in stop_token_ids if not 0 <= stop < size]
    if bad:
        raise ValueError(f"stop_token_ids must be in [0, {size}), got {bad}")


def token_id(token: object, vocab_size: int) -> int | None:
    """``token`` as an int in ``[0, vocab_size)``.

    None if it is out of range, a bool, a tensor without data or not an integer.
    """
    if token is True or token is False:
        return None
    try:
        value = operator.index(token)  # type: ignore[arg-type]  # it may be anything
    except (TypeError, RuntimeError):
        return None
    return value if 0 <= value < vocab_size else None


def _token_decoder(tokenizer: Any) -> Any:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(
            f"{type(tokenizer).__name__} is not backed by the tokenizers library; load it with use_fast=True"
        )
    spec = json.loads(backend.to_str())
    parts = {part["type"]: part for part in _parts(spec.get("decoder")) + _parts(spec.get("pre_tokenizer"))}
    if "ByteLevel" in parts:
        return byte_level_bytes
    if spec["model"].get("byte_fallback") or "Metaspace" in parts:
        return byte_fallback_bytes
    raise ValueError(
        f"cannot determine the bytes of this tokenizer's tokens: its decoder is {sorted(parts) or 'absent'}, "
        "neither byte-level nor byte-fallback"
    )


def _parts(component: dict[str, Any] | None) -> list[dict[str, Any]]:
    """A tokenizer component and, if it is a sequence, its members."""
    if component is None:
        return []
    members = component.get("decoders") or component.get("pretokenizers") or []
    return [component, *(part for member in members for part in _parts(member))]


@cache
def _byte_of_character() -> dict[str, int]:
    """GPT-2's printable stand-ins: printable Latin-1 bytes stand for themselves, the
    rest for U+0100 and up."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def byte_level_bytes(token: str) -> bytes:
    """The bytes of a byte-level token.

    A token with a character outside the table stands for its own text, as in the
    tokenizers library.
    """
    table = _byte_of_character()
    if all(character in table for character in token):
        return bytes(table[character] for character in token)
    return token.encode()


def byte_fallback_bytes(token: str) -> bytes:
    """The bytes of a token of SentencePiece: ``<0x0A>`` is a byte, ``▁`` a space."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace("▁", " ").encode()
