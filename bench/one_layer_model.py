"""The smallest model of benches that measure what stands around a forward pass."""

from transformers import LlamaConfig


def one_layer_config(vocab_size: int) -> LlamaConfig:
    """The config of a Llama of one layer and 16 channels."""
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=4096,
    )
