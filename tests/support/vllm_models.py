"""A small model on disk, in the form that vLLM loads, with a real tokenizer and random
weights."""

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from support.tokenizers_on_the_spot import byte_level

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def save_small_model(
    folder: Path, tokenizer: Any = None, vocab_size: int = 512, chat_template: str = _CHAT_TEMPLATE, **config: Any
) -> Path:
    """Save a random Llama and its tokenizer.

    Args:
        folder: where; it must exist.
        tokenizer: a Hugging Face tokenizer. Default: one of 420 byte-level tokens.
        vocab_size: the width of the lm_head.
        chat_template: how the tokenizer writes messages.
        config: changes to the model's config. vLLM's CPU attention needs a head_dim of
            at least 32.
    """
    tokenizer = tokenizer or byte_level()
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)
    shape = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab_size,
            max_position_embeddings=4096,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
            tie_word_embeddings=False,
            **shape | config,
        )
    )
    model.lm_head.weight.data *= 20  # random weights give flat logits: this spreads them
    model.to(torch.float32).save_pretrained(folder)
    return folder
