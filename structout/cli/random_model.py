"""A model without meaning, for tests and where the demo model cannot be had.

It is a small Llama with random weights and a byte-level BPE tokenizer, built in seconds
and then cached. It has learned nothing: its texts have a valid form only because of the
masks.
"""

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from structout import envs
from structout.cli.cached_model import load_or_build

NAME = "random-model-1"  # the number changes with the model
SEED = 0
TOKENIZER_VOCAB = 1000
LM_HEAD_WIDTH = 1024  # wider than the tokenizer, as in most real models
HIDDEN = 64
END = "<|end_of_text|>"
SPECIAL_TOKENS = [END, "<|im_start|>", "<|im_end|>"]

_NAMES = (
    "Ada Alan Barbara Claude Donald Edsger Frances Grace John Katherine Ken Linus Margaret Niklaus Radia Tim".split()
)
_WORDS = (
    "the a of and to in is was for on with by new old open small large red green blue first last next order price city "
    "street river garden letter coffee paper window train morning evening north south winter summer music book"
).split()
_KEYS = "id name email address city country items quantity price total status created tags notes active score".split()


def load_random_model(on_build: Callable[[], None] = lambda: None) -> tuple[Any, Any, Path]:
    """Load the random model from its cache. Build it first if it is missing or damaged.

    Args:
        on_build: called before the model is built.

    Returns:
        the model (float32, in eval mode), its tokenizer, and the directory that holds
        them.

    Raises:
        OSError: the cache cannot be read or written.
    """

    def build(directory: Path) -> None:
        on_build()
        corpus = _corpus()
        tokenizer = _train_tokenizer(corpus)
        tokenizer.save_pretrained(directory)
        _random_llama(tokenizer, corpus).save_pretrained(directory)

    directory = envs.cache_dir() / NAME
    return *load_or_build(directory, build), directory


def _corpus() -> list[str]:
    """JSON documents and sentences, from which the tokenizer learns merges and token
    frequencies."""
    rng = random.Random(SEED)  # noqa: S311 - text, not secrets

    def sentence() -> str:
        return " ".join(rng.choices(_WORDS, k=rng.randint(2, 6))).capitalize()

    def value(depth: int) -> Any:
        leaves = [sentence, lambda: rng.choice(_NAMES), lambda: rng.randint(0, 999), lambda: rng.random() < 0.5]
        if depth > 2 or rng.random() < 0.7:
            return rng.choice(leaves)()
        if rng.random() < 0.5:
            return [value(depth + 1) for _ in range(rng.randint(1, 3))]
        return {key: value(depth + 1) for key in rng.sample(_KEYS, rng.randint(1, 5))}

    documents = (json.dumps({key: value(1) for key in rng.sample(_KEYS, 5)}) for _ in range(2000))
    return list(itertools.chain(documents, (sentence() + "." for _ in range(1000))))


def _train_tokenizer(corpus: list[str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENIZER_VOCAB,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, bos_token=END, additional_special_tokens=SPECIAL_TOKENS[1:]
    )


def _random_llama(tokenizer: Any, corpus: list[str]) -> Any:
    """Random weights that prefer tokens by their frequency in the corpus.

    Without this preference a free string would go on for a thousand tokens, because no
    token, its closing quote included, would be likelier than another. Dimension 0 of
    the residual stream is made constant, so that its column of the lm_head adds a fixed
    bias to the logit of each token.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=LM_HEAD_WIDTH,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=4096,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    counts = Counter(token for text in corpus for token in tokenizer(text)["input_ids"])
    frequency = torch.tensor([counts[i] + 1.0 for i in range(LM_HEAD_WIDTH)])
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(SEED)  # of the CPU only; fork_rng restores it
        model = LlamaForCausalLM(config).eval()
        torch.nn.init.normal_(model.model.embed_tokens.weight)
        torch.nn.init.normal_(model.lm_head.weight, std=0.2)
    with torch.inference_mode():
        model.model.embed_tokens.weight[:, 0] = HIDDEN**0.5
        every_token = torch.arange(LM_HEAD_WIDTH).unsqueeze(1)
        constant = model.model(every_token).last_hidden_state[..., 0].mean()
        model.lm_head.weight[:, 0] = (frequency / frequency.sum()).log() / constant
    return model
