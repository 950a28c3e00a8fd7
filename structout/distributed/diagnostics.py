"""Errors of CUDA exchanges, and how much a rank has sent."""

import torch
import torch.distributed as dist

from structout.distributed.cpu_communicator import Traffic, cpu_communicator
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


def traffic(group: dist.ProcessGroup | str | None = None) -> Traffic:
    """Return what this rank has sent to the others of the group, on the CPU, so far."""
    name = group_name_of(group)
    return Traffic() if world_size_of(name) == 1 else cpu_communicator(name).traffic
