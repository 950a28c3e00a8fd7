"""transformers: constrained decoding of its causal language models."""

from structout.integrations.transformers.custom_generate import masked_generate

__all__ = ["masked_generate"]
