"""transformers: constrained decoding of its causal language models."""

import importlib
from typing import TYPE_CHECKING, Any

from structout.integrations.transformers.confidence import Confidence, LeafConfidence
from structout.integrations.transformers.custom_generate import masked_generate
from structout.integrations.transformers.decisions import Decision, decide
from structout.integrations.transformers.decode import Monitor
from structout.integrations.transformers.generation import Generation, Usage, generate
from structout.integrations.transformers.manager_cache import shared_manager
from structout.integrations.transformers.population import Population
from structout.integrations.transformers.streaming import TextStream, stream

if TYPE_CHECKING:
    from structout.integrations.transformers.continuous_batching import (
        StructuredBatchingProcessor,
        structured_batching,
    )
    from structout.integrations.transformers.logits_processor import StructuredLogitsProcessor

__all__ = [
    "Confidence",
    "Decision",
    "Generation",
    "LeafConfidence",
    "Monitor",
    "Population",
    "StructuredBatchingProcessor",
    "StructuredLogitsProcessor",
    "TextStream",
    "Usage",
    "decide",
    "generate",
    "masked_generate",
    "shared_manager",
    "stream",
    "structured_batching",
]

# Names that need transformers' classes, imported on first use. The command imports this
# package before it knows whether transformers is installed.
_MODULE_OF = {
    "StructuredBatchingProcessor": "continuous_batching",
    "StructuredLogitsProcessor": "logits_processor",
    "structured_batching": "continuous_batching",
}


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"structout.integrations.transformers.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'structout.integrations.transformers' has no attribute {name!r}")
