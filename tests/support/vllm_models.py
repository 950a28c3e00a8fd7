"""Models on disk, in the form that vLLM loads: a small one of random weights, and
SmolLM2-135M-Instruct."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from structout.cli import demo_model
from support.tokenizers_on_the_spot import byte_level

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Tools stand in the system message, and a request asks for thinking, as with Qwen. A
# model without thinking tokens would be confused by an empty thought at the end of the
# prompt, where Qwen has it. vLLM's parsers find it anywhere.
_REAL_CHAT_TEMPLATE = """\
{% if messages[0]['role'] != 'system' %}<|im_start|>system
{% if tools %}Call a function with the right arguments.
{% for tool in tools %}{{ tool['function'] | tojson }}
{% endfor %}{% else %}You are a helpful AI assistant named SmolLM, trained by Hugging Face\
{% endif %}<think></think><|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking %}<think>{% endif %}{% endif %}"""
# No chat has these tokens of SmolLM2's, which separate files of code.
_RENAMED = {"<file_sep>": "<think>", "<filename>": "</think>"}


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


def save_real_model(folder: Path) -> Path:
    """Save SmolLM2-135M-Instruct with thinking tokens and a chat template that has
    tools.

    Args:
        folder: where; it must exist. The weights are a link.
    """
    _, tokenizer, source = demo_model.load_demo_model()
    assert source.name == demo_model.NAME, "make test-vllm installs the model"
    tokenizer.chat_template = _REAL_CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    saved = json.loads((folder / "tokenizer.json").read_text())
    for token in saved["added_tokens"]:
        if token["content"] in _RENAMED:
            saved["model"]["vocab"][_RENAMED[token["content"]]] = saved["model"]["vocab"].pop(token["content"])
            token |= {"content": _RENAMED[token["content"]], "special": False}
    (folder / "tokenizer.json").write_text(json.dumps(saved))
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (folder / name).symlink_to(source / name)
    return folder
