"""Tensor parallelism: everything for ranks that share a model. Importing this loads no grammar engine."""

import importlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from structout.distributed.cuda_communicator import SymmetricLink, known_link
from structout.errors import CollectiveError
from structout.distributed.cpu_communicator import Traffic, channel, name_of, world_size_of
from structout.mask_batch import MaskShard
from structout.sampler import VocabParallelSampler
from structout.distributed.ops import all_gather_bitmask, sharded_masked_sample, sharded_masked_sample_logprobs
from structout.distributed.vocab_parallel import shard_rows

if TYPE_CHECKING:
    from structout.distributed.manager import ShardedManager

__all__ = [
    "CollectiveError",
    "MaskShard",
    "ShardedManager",
    "Traffic",
    "VocabParallelSampler",
    "all_gather_bitmask",
    "check",
    "shard_rows",
    "sharded_masked_sample",
    "sharded_masked_sample_logprobs",
    "traffic",
]


def check(device: torch.device | str, group: dist.ProcessGroup | str | None = None) -> None:
    """Raise what went wrong between the ranks' devices. It waits for the device, so call it where ids of -1 have come,
    or now and then. On the CPU the ops raise by themselves.

    Raises:
        CollectiveError: a rank did not come in time, or came with other arguments; every later result is empty.
    """
    name = name_of(group)
    link = None if world_size_of(name) == 1 else known_link(name, torch.device(device))
    if isinstance(link, SymmetricLink):
        link.check()


def traffic(group: dist.ProcessGroup | str | None = None) -> Traffic:
    """What this rank has sent to the others of the group, by its exchanges on the CPU so far."""
    name = name_of(group)
    return Traffic() if world_size_of(name) == 1 else channel(name).traffic


def __getattr__(name: str) -> Any:
    if name == "ShardedManager":
        return importlib.import_module("structout.distributed.manager").ShardedManager
    raise AttributeError(f"module 'structout.distributed' has no attribute {name!r}")
