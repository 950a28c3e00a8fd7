"""Adapters for engines, each imported when it is first asked for."""

import importlib
from types import ModuleType

__all__ = ["llama_cpp", "sglang", "transformers", "vllm"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"structout.integrations.{name}")
    raise AttributeError(f"module 'structout.integrations' has no attribute {name!r}")
