"""Tensor parallelism: ops and a sampler for ranks that share a model.

Each name is imported at its first use, so that ``import structout`` on one GPU loads no
communicators.
"""

import importlib
from typing import TYPE_CHECKING, Any

import torch  # noqa: F401 - in front of the modules: see structout.torch_import

from structout.distributed import registration as registration
from structout.errors import CollectiveError

if TYPE_CHECKING:
    from structout.distributed.collectives import (
        all_gather_bitmask,
        sharded_log_kept,
        sharded_masked_sample,
        sharded_masked_sample_logprobs,
        sharded_masked_sample_topn,
        sharded_token_logprobs,
    )
    from structout.distributed.diagnostics import check
    from structout.distributed.vocab_parallel_sampler import VocabParallelSampler
    from structout.distributed.vocab_shard import owned_rows

__all__ = [
    "CollectiveError",
    "VocabParallelSampler",
    "all_gather_bitmask",
    "check",
    "owned_rows",
    "sharded_log_kept",
    "sharded_masked_sample",
    "sharded_masked_sample_logprobs",
    "sharded_masked_sample_topn",
    "sharded_token_logprobs",
]

_MODULE_OF = {
    "VocabParallelSampler": "vocab_parallel_sampler",
    "all_gather_bitmask": "collectives",
    "check": "diagnostics",
    "owned_rows": "vocab_shard",
    "sharded_log_kept": "collectives",
    "sharded_masked_sample": "collectives",
    "sharded_masked_sample_logprobs": "collectives",
    "sharded_masked_sample_topn": "collectives",
    "sharded_token_logprobs": "collectives",
}


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        module = importlib.import_module(f"structout.distributed.{_MODULE_OF[name]}")
        found = globals()[name] = getattr(module, name)
        return found
    raise AttributeError(f"module 'structout.distributed' has no attribute {name!r}")
