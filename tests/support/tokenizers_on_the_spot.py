"""Real tokenizers, trained in a second: byte-level (GPT-2, Llama 3, Qwen) and
byte-fallback (Llama 2, Gemma)."""

import copy
import functools
import json
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    '{"name": "Ada", "age": 36, "tags": ["math", "engine"], "city": "London"}',
    '{"orderId": "A-17", "items": [{"sku": "X1", "quantity": 2, "price": 9.5}], "paid": true}',
    "The quick brown fox jumps over the lazy dog; naïve café, 東京 and emoji 🦊.",
] * 20
SPECIAL = ["<|end|>", "<|im_start|>", "<|im_end|>"]


def _wrap(tokenizer: Tokenizer) -> Any:
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=SPECIAL[0], additional_special_tokens=SPECIAL[1:]
    )
    wrapped.add_tokens([AddedToken("<tool_call>", special=False)])
    return wrapped


def with_tokens(tokenizer: Any, tokens: list[AddedToken]) -> Any:
    """A copy of a tokenizer that has more tokens."""
    wrapped = copy.deepcopy(tokenizer)
    wrapped.add_tokens(tokens)
    return wrapped


@functools.cache
def byte_level() -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _wrap(tokenizer)


@functools.cache
def byte_fallback() -> Any:
    trained = Tokenizer(models.BPE())
    words = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(prepend_scheme="never"), pre_tokenizers.Punctuation()])
    trained.pre_tokenizer = words
    trained.train_from_iterator(CORPUS[:2], trainers.BpeTrainer(vocab_size=200, show_progress=False))
    learned = json.loads(trained.to_str())["model"]
    pieces = ["<unk>", *SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *learned["vocab"]]
    merges = [tuple(merge) for merge in learned["merges"]]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))  # noqa: S106
    tokenizer.pre_tokenizer = words
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return _wrap(tokenizer)


@functools.cache
def of_two_letters() -> Any:
    """The tokens 0 to 2 are ``<end>``, "a" and "b"; no others spell a text."""
    tokenizer = Tokenizer(models.BPE({"<end>": 0, "a": 1, "b": 2}, []))
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")  # noqa: S106 - no password
