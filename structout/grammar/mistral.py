"""Tokenizers of mistral-common, alone or wrapped by transformers or vLLM."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class MistralTokens(NamedTuple):
    """The tokens of a tokenizer.

    Attributes:
        token_bytes: one entry per id; None for special tokens.
        names: of the special tokens, with their ids: ``[INST]`` and, as grammars write
            it, ``<INST>``.
        eos_token_id: what ends a text.
    """

    token_bytes: list[bytes | None]
    names: tuple[tuple[str, int], ...]
    eos_token_id: int


def mistral_tokenizer(tokenizer: Any) -> Any:
    """The Tekken or SentencePiece tokenizer of mistral-common that a tokenizer is made
    of, or None.

    Args:
        tokenizer: ``MistralTokenizer`` of mistral-common or of vLLM,
            ``MistralCommonBackend`` of transformers, what they consist of, or any other
            tokenizer.
    """
    for attribute in ("mistral", "tokenizer", "instruct_tokenizer", "tokenizer"):
        if _is_from_mistral_common(tokenizer) and hasattr(tokenizer, "id_to_piece"):
            return tokenizer
        tokenizer = getattr(tokenizer, attribute, tokenizer)
    return tokenizer if _is_from_mistral_common(tokenizer) and hasattr(tokenizer, "id_to_piece") else None


def _is_from_mistral_common(value: Any) -> bool:
    return any(each.__module__.partition(".")[0] == "mistral_common" for each in type(value).__mro__)


def mistral_tokens(tokenizer: Any) -> MistralTokens:
    """Read the tokens of what ``mistral_tokenizer`` returns."""
    special = {i for i in range(tokenizer.n_words) if tokenizer.is_special(i)}
    names = [(tokenizer.id_to_piece(i), i) for i in sorted(special)]
    names += [(f"<{name[1:-1]}>", i) for name, i in names if name.startswith("[") and name.endswith("]")]
    texts = [None if i in special else _bytes_of(tokenizer, i) for i in range(tokenizer.n_words)]
    return MistralTokens(texts, tuple(names), tokenizer.eos_id)


def _bytes_of(tokenizer: Any, token: int) -> bytes | None:
    if hasattr(tokenizer, "id_to_byte_piece"):  # Tekken
        data: bytes = tokenizer.id_to_byte_piece(token)
        return data
    if token == tokenizer.unk_id:
        return None
    piece = tokenizer.id_to_piece(token)
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("▁", " ").encode()


class Encoding(NamedTuple):
    ids: Sequence[int]


class MistralEncoder:
    """The interface of Hugging Face's tokenizers, as far as forced text needs it.

    SentencePiece puts a space in front of a text. So a line end, which no other
    character of its vocabularies joins, is encoded before the text, and taken away.

    Args:
        tokenizer: what ``mistral_tokenizer`` returns.
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._before = "" if hasattr(tokenizer, "id_to_byte_piece") else "\n"
        self._num_before = len(tokenizer.encode(self._before, bos=False, eos=False))

    def encode(self, text: str, *, add_special_tokens: bool) -> Encoding:
        token_ids = self._tokenizer.encode(self._before + text, bos=False, eos=False)
        return Encoding(token_ids[self._num_before :])
