"""llama.cpp: constrained decoding of GGUF models with llama-cpp-python."""

from structout.integrations.llama_cpp.llama_generation import generate
from structout.integrations.llama_cpp.llama_tokenizer import tokenizer_of, vocabulary_of
from structout.integrations.llama_cpp.numpy_processor import StructuredLogitsProcessor

__all__ = ["StructuredLogitsProcessor", "generate", "tokenizer_of", "vocabulary_of"]
