"""The ops on logits: their wrappers, their meaning in plain torch, and the modules of
an engine's sampler."""

import torch  # noqa: F401 - in front of the modules: see structout.torch_import
