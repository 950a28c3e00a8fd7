"""llama.cpp: constrained decoding of GGUF models with llama-cpp-python."""

import importlib
from typing import TYPE_CHECKING, Any

from structout.integrations.llama_cpp.llama_tokenizer import tokenizer_of, vocabulary_of
from structout.integrations.llama_cpp.numpy_processor import StructuredLogitsProcessor

if TYPE_CHECKING:
    from structout.integrations.llama_cpp.llama_generation import generate, stream

__all__ = ["StructuredLogitsProcessor", "generate", "stream", "tokenizer_of", "vocabulary_of"]


def __getattr__(name: str) -> Any:
    """Import what draws with torch when it is first used."""
    if name in ("generate", "stream"):
        return getattr(importlib.import_module("structout.integrations.llama_cpp.llama_generation"), name)
    raise AttributeError(f"module 'structout.integrations.llama_cpp' has no attribute {name!r}")
