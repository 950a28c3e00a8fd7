"""Look up process groups by name, as ops do in compiled code."""

import torch.distributed as dist


def resolve_group(group_name: str) -> dist.ProcessGroup:
    """Return the process group whose ``group.group_name`` is ``group_name``.

    Raises:
        ValueError: this process has no such group, or it was destroyed.
    """
    try:
        return dist.distributed_c10d._resolve_process_group(group_name)  # type: ignore[attr-defined,arg-type]
    except RuntimeError as error:
        raise ValueError(
            f"this process has no process group named {group_name!r} (any more); pass group.group_name of a group "
            "that torch.distributed has created and not destroyed"
        ) from error


def group_name_of(group: dist.ProcessGroup | str | None) -> str:
    """Return the name of a group (given as is, by name, or None for the default group).

    ``""`` is the name of a rank without a group: None where torch.distributed is not
    initialized.
    """
    if isinstance(group, str):
        return group
    if group is None:
        if not dist.is_available() or not dist.is_initialized():
            return ""
        group = dist.group.WORLD
    assert group is not None
    return str(group.group_name)


def world_size_of(group_name: str) -> int:
    """Return the number of ranks in the group; 1 for ``""``."""
    return 1 if group_name == "" else int(resolve_group(group_name).size())
