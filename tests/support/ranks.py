"""Run a function on every rank of a gloo process group, each rank a process."""

from __future__ import annotations

import datetime
import functools
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from support.locations import TESTS

# The fork server has everything imported; a spawned process would import torch for
# seconds.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["support.rank_programs", "structout.distributed.collectives"])

JOIN_TIMEOUT_S = 600  # only ends ranks that hang: a busy machine must not fail a test


@dataclass(frozen=True)
class Outcome:
    """How a rank ended: with a result, with an error, or killed."""

    result: Any = None
    error: BaseException | None = None
    was_killed: bool = False


def run(world_size: int, program: Callable[..., Any], *arguments: Any, **options: Any) -> list[Any]:
    """Return program(rank, *arguments) of each rank, or raise the first error."""
    outcomes = collect_outcomes(world_size, program, *arguments, **options)
    for rank, outcome in enumerate(outcomes):
        if outcome.error is not None:
            raise AssertionError(f"rank {rank} of {world_size} failed") from outcome.error
        assert not outcome.was_killed, f"rank {rank} of {world_size} died"
    return [outcome.result for outcome in outcomes]


def collect_outcomes(
    world_size: int,
    program: Callable[..., Any],
    *arguments: Any,
    timeout: float = 120,
    wait_for: Collection[int] | None = None,
) -> list[Outcome]:
    """Return how each rank ended.

    Args:
        timeout: of the process group, in seconds.
        wait_for: the ranks to wait for (default: all). Others are killed in the end.
    """
    _start_fork_server()
    with tempfile.TemporaryDirectory() as directory:
        started = []
        for rank in range(world_size):
            receiver, sender = _context.Pipe(duplex=False)
            process = _context.Process(
                target=_run_rank,
                args=(sender, rank, world_size, f"{directory}/store", timeout, program, arguments),
                daemon=True,
            )
            process.start()
            sender.close()
            started.append((process, receiver))
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        awaited = range(world_size) if wait_for is None else wait_for
        outcomes = [
            _receive_outcome(receiver, deadline) if rank in awaited else Outcome(was_killed=True)
            for rank, (_, receiver) in enumerate(started)
        ]
        for process, _ in started:
            process.kill()
            process.join()
        return outcomes


@functools.cache
def _start_fork_server() -> None:
    """Start the server with tests/support on its path.

    It passes over modules that it cannot import, and Python 3.11's ignores the
    ``sys.path`` of this process.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
        forkserver.ensure_running()


def _receive_outcome(receiver: Connection, deadline: float) -> Outcome:
    if not receiver.poll(max(0.1, deadline - time.monotonic())):
        return Outcome(error=TimeoutError(f"the rank has not ended within {JOIN_TIMEOUT_S} s"))
    try:
        return receiver.recv()
    except EOFError:
        return Outcome(was_killed=True)


def _run_rank(
    sender: Connection,
    rank: int,
    world_size: int,
    store: str,
    timeout: float,
    program: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=JOIN_TIMEOUT_S),
    )
    dist.barrier()  # a timeout of the test must not end the start of a rank
    distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=timeout))
    try:
        sender.send(Outcome(program(rank, *arguments)))
    except BaseException as error:
        error.add_note(traceback.format_exc())
        sender.send(Outcome(error=error))
    sender.close()
    # Wait to be killed. A rank that left early would count as lost, and a group with a
    # dead rank cannot be destroyed in order.
    time.sleep(JOIN_TIMEOUT_S)
