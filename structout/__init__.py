"""Structured output for LLM inference in PyTorch. Importing this registers ``torch.ops.structout.*``."""

from typing import TYPE_CHECKING, Any

from structout._version import __version__
from structout.bitmask import (
    allocate_token_bitmask,
    bitmask_dtype,
    bitmask_width,
    count_allowed,
    get_bitmask_shape,
    pack_bitmask,
    reset_token_bitmask,
    unpack_bitmask,
)
from structout.errors import DuplicateRequestError, GrammarError, StructOutError, UnknownRequestError
from structout.mask_batch import MaskBatch
from structout.ops import apply_bitmask, apply_token_bitmask_inplace
from structout.params import StructuredOutputOptions, StructuredOutputsParams

if TYPE_CHECKING:
    from structout.manager import GrammarStatus, StructuredOutputManager, StructuredOutputsConfig

__all__ = [
    "DuplicateRequestError",
    "GrammarError",
    "GrammarStatus",
    "MaskBatch",
    "StructOutError",
    "StructuredOutputManager",
    "StructuredOutputOptions",
    "StructuredOutputsConfig",
    "StructuredOutputsParams",
    "UnknownRequestError",
    "__version__",
    "allocate_token_bitmask",
    "apply_bitmask",
    "apply_token_bitmask_inplace",
    "bitmask_dtype",
    "bitmask_width",
    "count_allowed",
    "get_bitmask_shape",
    "pack_bitmask",
    "reset_token_bitmask",
    "unpack_bitmask",
]

_SCHEDULER_SIDE = ("GrammarStatus", "StructuredOutputManager", "StructuredOutputsConfig")


def __getattr__(name: str) -> Any:
    """Workers need no grammar engine, so the manager is imported when it is first asked for."""
    if name in _SCHEDULER_SIDE:
        from structout import manager

        return getattr(manager, name)
    raise AttributeError(f"module 'structout' has no attribute {name!r}")
