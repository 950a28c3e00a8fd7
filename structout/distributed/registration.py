"""Registers the collective ops. Their implementations, and with them sockets and shared memory, load on the first call.

The ops are defined in Python over a process group, because libtorch's stable ABI cannot reach one.
"""

from typing import Any

import torch

from structout.ops import empty_ids

_library = torch.library.Library("structout", "IMPL")


def _all_gather_bitmask(shard: torch.Tensor, group_name: str) -> torch.Tensor:
    from structout.distributed import ops

    return ops.gather_on_device(shard, group_name)


def _sharded_masked_sample(*arguments: Any) -> torch.Tensor:
    from structout.distributed import ops

    return ops.sample_on_device(*arguments, return_logprobs=False)[0]


def _sharded_masked_sample_logprobs(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    from structout.distributed import ops

    return ops.sample_on_device(*arguments, return_logprobs=True)


for _device in ("CPU", "CUDA"):
    _library.impl("all_gather_bitmask", _all_gather_bitmask, _device)
    _library.impl("sharded_masked_sample", _sharded_masked_sample, _device)
    _library.impl("sharded_masked_sample_logprobs", _sharded_masked_sample_logprobs, _device)


@torch.library.register_fake("structout::all_gather_bitmask")
def _(shard: torch.Tensor, group_name: str) -> torch.Tensor:
    from structout.distributed.cpu_communicator import world_size_of

    return shard.new_empty(world_size_of(group_name) * shard.shape[0], shard.shape[1])


@torch.library.register_fake("structout::sharded_masked_sample")
def _(logits: torch.Tensor, *_: object) -> torch.Tensor:
    return empty_ids(logits)


@torch.library.register_fake("structout::sharded_masked_sample_logprobs")
def _(logits: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
    ids = empty_ids(logits)
    return ids, ids.new_empty(ids.shape, dtype=torch.float32)
