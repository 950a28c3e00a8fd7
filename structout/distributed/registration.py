"""Register the collective ops.

Their implementations load at the first call.

The ops are implemented in Python, because libtorch's stable ABI cannot reach a process
group.
"""

from typing import Any

import torch

from structout.ops.row_parameters import empty_ids
from structout.ops.token_logprobs import empty_token_logprobs

_library = torch.library.Library("structout", "IMPL")


def _all_gather_bitmask(shard: torch.Tensor, group_name: str) -> torch.Tensor:
    from structout.distributed import collectives

    return collectives.all_gather_bitmask_impl(shard, group_name)


def _sharded_masked_sample(*arguments: Any) -> torch.Tensor:
    from structout.distributed import collectives

    return collectives.sharded_masked_sample_impl(*arguments, return_logprobs=False)[0]


def _sharded_masked_sample_logprobs(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    from structout.distributed import collectives

    return collectives.sharded_masked_sample_impl(*arguments, return_logprobs=True)


def _sharded_masked_sample_topn(*arguments: Any) -> tuple[torch.Tensor, ...]:
    from structout.distributed import collectives

    return collectives.sharded_masked_sample_topn_impl(*arguments)


def _sharded_token_logprobs(*arguments: Any) -> tuple[torch.Tensor, ...]:
    from structout.distributed import collectives

    return collectives.sharded_token_logprobs_impl(*arguments)


for _device in ("CPU", "CUDA"):
    _library.impl("all_gather_bitmask", _all_gather_bitmask, _device)
    _library.impl("sharded_masked_sample", _sharded_masked_sample, _device)
    _library.impl("sharded_masked_sample_logprobs", _sharded_masked_sample_logprobs, _device)
    _library.impl("sharded_masked_sample_topn", _sharded_masked_sample_topn, _device)
    _library.impl("sharded_token_logprobs", _sharded_token_logprobs, _device)


@torch.library.register_fake("structout::all_gather_bitmask")
def _(shard: torch.Tensor, group_name: str) -> torch.Tensor:
    from structout.distributed.process_groups import world_size_of

    return shard.new_empty(world_size_of(group_name) * shard.shape[0], shard.shape[1])


@torch.library.register_fake("structout::sharded_masked_sample")
def _(logits: torch.Tensor, *_: object) -> torch.Tensor:
    return empty_ids(logits)


@torch.library.register_fake("structout::sharded_masked_sample_logprobs")
def _(logits: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
    ids = empty_ids(logits)
    return ids, ids.new_empty(ids.shape, dtype=torch.float32)


@torch.library.register_fake("structout::sharded_token_logprobs")
def _(logits: torch.Tensor, *arguments: object) -> tuple[torch.Tensor, ...]:
    top_n = arguments[-2]
    assert isinstance(top_n, int)
    return empty_token_logprobs(logits, top_n)


@torch.library.register_fake("structout::sharded_masked_sample_topn")
def _(logits: torch.Tensor, *arguments: object) -> tuple[torch.Tensor, ...]:
    top_n = arguments[-3]
    assert isinstance(top_n, int)
    return empty_ids(logits), *empty_token_logprobs(logits, top_n)
