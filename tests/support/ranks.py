"""Processes that form a gloo group and each run a function, for tests of what needs several ranks."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

# A server that has everything imported forks the ranks: a spawned one would import torch for seconds.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["torch", "torch.distributed", "structout", "structout.distributed.ops", "rank_programs", "manager_rank_programs"]
)

JOIN_S = 120


@dataclass(frozen=True)
class Ended:
    """How a rank ended: with a result or an error, or killed."""

    result: Any = None
    error: BaseException | None = None
    was_killed: bool = False


def run(world_size: int, program: Callable[..., Any], *arguments: Any, **options: Any) -> list[Any]:
    """The results of program(rank, *arguments) of all ranks; the first error of one is raised."""
    ended = run_to_the_end(world_size, program, *arguments, **options)
    for rank, one in enumerate(ended):
        if one.error is not None:
            raise AssertionError(f"rank {rank} of {world_size} failed") from one.error
        assert not one.was_killed, f"rank {rank} of {world_size} died"
    return [one.result for one in ended]


def run_to_the_end(
    world_size: int,
    program: Callable[..., Any],
    *arguments: Any,
    timeout: float = 30,
    wait_for: Collection[int] | None = None,
    shared_memory: bool = True,
) -> list[Ended]:
    """How each rank ended, whatever happened. `timeout` (in seconds) is the process group's; ranks that are not waited
    for are killed in the end."""
    with tempfile.TemporaryDirectory() as directory:
        started = []
        for rank in range(world_size):
            mine, theirs = _context.Pipe(duplex=False)
            process = _context.Process(
                target=_rank,
                args=(theirs, rank, world_size, f"{directory}/store", timeout, shared_memory, program, arguments),
                daemon=True,
            )
            process.start()
            theirs.close()
            started.append((process, mine))
        deadline = time.monotonic() + JOIN_S
        awaited = range(world_size) if wait_for is None else wait_for
        ended = [
            _end_of(connection, deadline) if rank in awaited else Ended(was_killed=True)
            for rank, (_, connection) in enumerate(started)
        ]
        for process, _ in started:
            process.kill()
            process.join()
        return ended


def _end_of(connection: Connection, deadline: float) -> Ended:
    if not connection.poll(max(0.1, deadline - time.monotonic())):
        return Ended(error=TimeoutError(f"no end within {JOIN_S} s"))
    try:
        return connection.recv()
    except EOFError:
        return Ended(was_killed=True)


def _rank(
    connection: Connection,
    rank: int,
    world_size: int,
    store: str,
    timeout: float,
    shared_memory: bool,
    program: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    os.environ["STRUCTOUT_SHARED_MEMORY"] = "1" if shared_memory else "0"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=timeout),
    )
    try:
        connection.send(Ended(program(rank, *arguments)))
    except BaseException as error:
        error.add_note(traceback.format_exc())
        connection.send(Ended(error=error))
    connection.close()
    # Until all are done and this is killed: a rank that left early would be missed, and a group with a dead rank in it
    # cannot be taken down in order.
    time.sleep(JOIN_S)
