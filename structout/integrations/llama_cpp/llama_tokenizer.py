"""The tokens of a GGUF model, as structout reads them."""

import ctypes
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

from structout.grammar.mistral import Encoding
from structout.grammar.vocabulary import Vocabulary, byte_fallback_bytes, byte_level_bytes
from structout.scheduler.manager import StructuredOutputManager

_tokenizers: weakref.WeakKeyDictionary[Any, "LlamaTokenizer"] = weakref.WeakKeyDictionary()


def tokenizer_of(llama: Any) -> "LlamaTokenizer":
    """The tokenizer of a ``llama_cpp.Llama``, made at the first call. It and its
    manager live as long as the model.

    Raises:
        TypeError: not a model, but its path, for example.
        ValueError: see :func:`vocabulary_of`.
    """
    if not hasattr(llama, "tokenizer_"):
        raise TypeError(f"expected a llama_cpp.Llama, got {llama!r:.80}")
    if llama not in _tokenizers:
        # A tokenizer that held its model would keep its own key alive.
        _tokenizers[llama] = LlamaTokenizer(weakref.proxy(llama))
    return _tokenizers[llama]


def vocabulary_of(llama: Any) -> Vocabulary:
    """Read the vocabulary of a ``llama_cpp.Llama``: byte-level BPE, or SentencePiece
    with byte fallback.

    The bytes of each token are decoded from its text in the file, and compared with
    those that llama.cpp writes for it. Where these differ the token has none, like
    control tokens and unused ones, so that no text has it. Every token that llama.cpp
    takes for an end of generation ends a text.

    Raises:
        ValueError: the bytes of more than one token in a hundred differ, or no token
            ends a text.
    """
    import llama_cpp

    vocab = llama._model.vocab

    def written_for(token: int) -> bytes:
        size = -llama_cpp.llama_token_to_piece(vocab, token, None, 0, 0, False)
        buffer = ctypes.create_string_buffer(size)
        llama_cpp.llama_token_to_piece(vocab, token, buffer, size, 0, False)
        return buffer.raw

    ids = range(llama_cpp.llama_vocab_n_tokens(vocab))
    texts = [llama_cpp.llama_vocab_get_text(vocab, token) for token in ids]
    kinds = [llama_cpp.llama_vocab_get_attr(vocab, token) for token in ids]
    written = [*map(written_for, ids)]
    added = llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED

    def differing(decode: Callable[[str], bytes]) -> list[int]:
        decoded = (text if kind & added else decode(text.decode()) for text, kind in zip(texts, kinds, strict=True))
        return [token for token, data in enumerate(decoded) if written[token] not in (b"", data)]

    wrong = min(map(differing, (byte_level_bytes, byte_fallback_bytes)), key=len)
    if len(wrong) > len(ids) // 100:
        token = wrong[0]
        raise ValueError(
            "cannot determine the bytes of the model's tokens: expected byte-level BPE, or SentencePiece with byte "
            f"fallback, but llama.cpp writes {written[token]!r} for token {token}, in the file {texts[token]!r}"
        )
    for token in wrong:
        written[token] = b""
    stops = tuple(token for token in ids if llama_cpp.llama_vocab_is_eog(vocab, token))
    if not stops:
        raise ValueError("the model has no token that ends a generation, so that no text could end")
    is_named = added | llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
    names = tuple((texts[token].decode(), token) for token in ids if kinds[token] & is_named)
    return Vocabulary(tuple(written), stops, names)


class LlamaTokenizer:
    """A GGUF model's own tokenizer and chat template, under the names of Hugging
    Face's, as far as structout needs them."""

    def __init__(self, llama: Any):
        self.vocabulary = vocabulary_of(llama)
        self._llama = llama
        # SentencePiece puts a space in front of a text. So a line end, which no other
        # character joins, is tokenized before it, and taken away.
        adds_space = self.vocabulary.bytes_of(llama.tokenize(b"a", add_bos=False)) == b" a"
        self._before = llama.tokenize(b"\n", add_bos=False) if adds_space else []
        names = {token: name for name, token in self.vocabulary.special_tokens}
        self.eos_token, self._bos_token = (names.get(each(), "") for each in (llama.token_eos, llama.token_bos))
        self.chat_template: str | None = llama.metadata.get("tokenizer.chat_template")

    def encode(self, text: str, *, add_special_tokens: bool = False) -> Encoding:
        """Tokenize text that continues other text, without special tokens."""
        data = b"\n" + text.encode() if self._before else text.encode()
        return Encoding(self._llama.tokenize(data, add_bos=False)[len(self._before) :])

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, Sequence[int]]:
        """Tokenize a prompt. Special tokens in it are recognized."""
        return {"input_ids": self._llama.tokenize(text.encode(), add_bos=add_special_tokens, special=True)}

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens. Special ones are written as their names."""
        return self.vocabulary.text_of(token_ids, with_names=True)

    def apply_chat_template(
        self, messages: Any, *, tools: Any = None, add_generation_prompt: bool = True, **options: Any
    ) -> str:
        """The text of chat messages, with the beginning of the model's answer."""
        if self.chat_template is None:
            raise ValueError("the model has no chat template: give prompts that are texts or token ids")
        return self._formatters[add_generation_prompt](messages=messages, tools=tools).prompt

    @cached_property
    def manager(self) -> StructuredOutputManager:
        """The manager that all users of the model share."""
        return StructuredOutputManager(self, self.vocabulary.size)

    @cached_property
    def _formatters(self) -> dict[bool, Any]:
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        form = partial(Jinja2ChatFormatter, self.chat_template, self.eos_token, self._bos_token)
        return {is_prompt: form(add_generation_prompt=is_prompt) for is_prompt in (True, False)}
