"""Tensor parallelism: ops, sampler and manager for ranks that share a model.

Each name is imported at its first use. So ``import structout`` on one GPU loads neither
sockets nor shared memory, and workers load no grammar engine.
"""

import importlib
from typing import TYPE_CHECKING, Any

from structout.distributed import registration as registration
from structout.errors import CollectiveError
from structout.masks.batch import MaskShard

if TYPE_CHECKING:
    from structout.distributed.collectives import (
        all_gather_bitmask,
        sharded_masked_sample,
        sharded_masked_sample_logprobs,
        sharded_masked_sample_topn,
        sharded_token_logprobs,
    )
    from structout.distributed.cpu_communicator import Traffic
    from structout.distributed.diagnostics import check, traffic
    from structout.distributed.sharded_manager import ShardedManager
    from structout.distributed.vocab_parallel_sampler import VocabParallelSampler, gather_device_masks
    from structout.distributed.vocab_shard import owned_rows

__all__ = [
    "CollectiveError",
    "MaskShard",
    "ShardedManager",
    "Traffic",
    "VocabParallelSampler",
    "all_gather_bitmask",
    "check",
    "gather_device_masks",
    "owned_rows",
    "sharded_masked_sample",
    "sharded_masked_sample_logprobs",
    "sharded_masked_sample_topn",
    "sharded_token_logprobs",
    "traffic",
]

_MODULE_OF = {
    "ShardedManager": "sharded_manager",
    "Traffic": "cpu_communicator",
    "VocabParallelSampler": "vocab_parallel_sampler",
    "all_gather_bitmask": "collectives",
    "check": "diagnostics",
    "gather_device_masks": "vocab_parallel_sampler",
    "owned_rows": "vocab_shard",
    "sharded_masked_sample": "collectives",
    "sharded_masked_sample_logprobs": "collectives",
    "sharded_masked_sample_topn": "collectives",
    "sharded_token_logprobs": "collectives",
    "traffic": "diagnostics",
}


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        module = importlib.import_module(f"structout.distributed.{_MODULE_OF[name]}")
        found = globals()[name] = getattr(module, name)
        return found
    raise AttributeError(f"module 'structout.distributed' has no attribute {name!r}")
