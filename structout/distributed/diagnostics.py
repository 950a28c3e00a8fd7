"""Errors of CUDA exchanges."""

import torch
import torch.distributed as dist

from structout.distributed.cuda_communicator import SymmetricMemoryCommunicator, existing_cuda_communicator
from structout.distributed.process_groups import group_name_of, world_size_of


def check(device: torch.device | str, group: dist.ProcessGroup | str | None = None) -> None:
    """Raise the error of an earlier exchange among the ranks' GPUs, if there was one.

    This waits for the device. Call it after ids of -1, or now and then. Ops on CPU
    tensors raise by themselves.

    Args:
        device: this rank's device.
        group: as in :func:`structout.distributed.all_gather_bitmask`.

    Raises:
        CollectiveError: a rank did not arrive in time, or made a call with other
            arguments. Every later result of the group is empty.
    """
    name = group_name_of(group)
    communicator = None if world_size_of(name) == 1 else existing_cuda_communicator(name, torch.device(device))
    if isinstance(communicator, SymmetricMemoryCommunicator):
        communicator.check()
