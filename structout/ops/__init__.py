"""The ops on logits: their wrappers, their meaning in plain torch, and the modules of
an engine's sampler."""
