"""Models on disk that draft for a Llama, in the forms that vLLM loads, made from its
first layers."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

_Weights = dict[str, torch.Tensor]
_Config = dict[str, Any]


def save_drafter(folder: Path, method: str, model: Path, num_layers: int = 1) -> Path:
    """Save a model that only drafts.

    Args:
        folder: where; it must exist.
        method: how vLLM drafts with it: ``draft_model``, ``eagle`` or ``medusa``.
        model: the Llama's folder.
        num_layers: how many of its layers draft. Medusa has none.
    """
    config, weights = _load(model)
    kept = ("embed_tokens", "norm", "lm_head", *(f"layers.{layer}." for layer in range(num_layers)))
    first = {name: weight for name, weight in weights.items() if name.removeprefix("model.").startswith(kept)}
    config["num_hidden_layers"] = num_layers
    if method == "draft_model":
        _save(folder, config, first)
    elif method == "eagle":
        _save(folder, config, _eagle(first))
    else:
        _save(folder, *_medusa(config, weights))
    return folder


def _load(model: Path) -> tuple[_Config, _Weights]:
    config = json.loads((model / "config.json").read_text()) | {"tie_word_embeddings": False, "dtype": "float32"}
    weights = {name: weight.float() for name, weight in load_file(model / "model.safetensors").items()}
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    return config, weights


def _save(folder: Path, config: _Config, weights: _Weights) -> None:
    (folder / "config.json").write_text(json.dumps(config))
    copies = {name: weight.clone().contiguous() for name, weight in weights.items()}
    save_file(copies, folder / "model.safetensors", {"format": "pt"})


def _eagle(weights: _Weights) -> _Weights:
    """An EAGLE head has no norm before its first layer and after its last, and draws
    with the lm_head of the model."""
    made = {name.removeprefix("model."): weight for name, weight in weights.items() if name != "lm_head.weight"}
    size = made.pop("norm.weight").numel()
    embedding_scale = made["embed_tokens.weight"].square().mean(1).sqrt().mean()
    norm = made.pop("layers.0.input_layernorm.weight") / embedding_scale
    for name in ("q_proj", "k_proj", "v_proj"):
        made[f"layers.0.self_attn.{name}.weight"] *= norm
    return made | {"fc.weight": torch.eye(size, 2 * size)}  # only the embeddings


def _medusa(config: _Config, weights: _Weights, num_heads: int = 4) -> tuple[_Config, _Weights]:
    """Medusa heads that all draft the model's last token again."""
    size = config["hidden_size"]
    blocks = {f"blocks.{head}.layers.0.weight": torch.zeros(size, size) for head in range(num_heads)}
    made = {"model_type": "medusa", "architectures": ["MedusaModel"], "num_heads": num_heads, "num_hidden_layers": 1}
    made |= {"hidden_size": size, "vocab_size": config["vocab_size"], "original_lm_head": True}
    return made, blocks | {"lm_heads.0.weight": weights["lm_head.weight"]}
