"""What went wrong between ranks, and what they have sent."""

import torch
import torch.distributed as dist

from structout.distributed.cpu_communicator import Traffic, channel, name_of, world_size_of
from structout.distributed.cuda_communicator import SymmetricLink, known_link


def check(device: torch.device | str, group: dist.ProcessGroup | str | None = None) -> None:
    """Raise what went wrong between the ranks' devices.

    This waits for the device: call it where ids of -1 have come, or now and then. On
    the CPU the ops raise by themselves.

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
