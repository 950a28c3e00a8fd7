"""A tokenizer with a vocabulary of realistic size, without a download while a bench
runs.

    pip install --no-deps dashscope

installs Qwen's vocabulary (``dashscope/resources/qwen.tiktoken``, 151,643 tokens).
Without it a byte-level BPE of the same size is trained on the Python sources of this
machine; its vocabulary is that of programs.
"""

import base64
import functools
import importlib.util
import itertools
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

VOCAB_SIZE = 151_936  # the width of Qwen's lm_head: its tokens, then padding

_NUM_QWEN_TOKENS = 151_643
_SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))]
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TRAINING_CHARACTERS = 40_000_000


@functools.cache
def large_tokenizer() -> Any:
    """Return a fast Hugging Face tokenizer for ``VOCAB_SIZE`` logits. ``name_or_path``
    names its vocabulary."""
    vocabulary = _qwen_vocabulary()
    if vocabulary is None:
        print("dashscope is not installed: training a vocabulary on Python sources, some ten seconds", flush=True)
        return trained_tokenizer(_NUM_QWEN_TOKENS)
    return _wrapped(Tokenizer(_byte_pair_encoding(vocabulary)), "qwen.tiktoken of dashscope")


def trained_tokenizer(num_tokens: int, num_characters: int = _TRAINING_CHARACTERS) -> Any:
    """Train a byte-level BPE of ``num_tokens`` and the special tokens on Python sources
    of this machine."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _words()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=num_tokens, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_sources(num_characters), trainer)
    return _wrapped(tokenizer, f"BPE of {tokenizer.get_vocab_size():,} tokens trained on Python sources")


def _sources(num_characters: int) -> Iterator[str]:
    folders = [sysconfig.get_path(name) for name in ("stdlib", "purelib")]
    for path in itertools.chain.from_iterable(sorted(Path(folder).rglob("*.py")) for folder in folders):
        if num_characters <= 0:
            return
        text = path.read_text(errors="replace")[:num_characters]
        num_characters -= len(text)
        yield text


def _qwen_vocabulary() -> Path | None:
    package = importlib.util.find_spec("dashscope")
    if package is None or package.origin is None:
        return None
    path = Path(package.origin).parent / "resources" / "qwen.tiktoken"
    return path if path.exists() else None


def _byte_pair_encoding(path: Path) -> models.BPE:
    """Derive the merges from a tiktoken file, which stores tokens by rank.

    Each token merges the two that its bytes reduce to if only tokens of a lower rank
    may be merged.
    """
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(str.split, path.read_text().splitlines())}
    printable = bytes_to_unicode()
    spelling = {token: "".join(printable[byte] for byte in token) for token in ranks}
    halves = [_halves(token, ranks) for token in ranks if len(token) > 1]
    merges = [(spelling[left], spelling[right]) for left, right in halves]
    return models.BPE({spelling[token]: rank for token, rank in ranks.items()}, merges)


def _halves(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    parts = [token[i : i + 1] for i in range(len(token))]
    limit = ranks[token]
    while len(parts) > 2:
        pairs = [ranks.get(parts[i] + parts[i + 1], limit) for i in range(len(parts) - 1)]
        at = pairs.index(min(pairs))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


def _words() -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(_QWEN_WORDS), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _wrapped(tokenizer: Tokenizer, name: str) -> Any:
    tokenizer.pre_tokenizer = _words()
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        name_or_path=name,
        eos_token=_SPECIAL_TOKENS[0],
        additional_special_tokens=_SPECIAL_TOKENS[1:],
        clean_up_tokenization_spaces=False,
    )
