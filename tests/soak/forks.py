"""Forks of a process whose other threads compile, fill masks and sample.

A forked process has one thread, and every lock is as it was. What it makes anew, a
manager of its own, must work there: it compiles constraints of all kinds, some of which
the parent compiles too, and follows a text of each. What it has inherited refuses. The
parent goes on as if nothing had happened.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial

import torch

import structout
from soak.hunt import Hunter, Tally
from soak.server import V, random_constraint
from structout import GrammarStatus, StructuredOutputManager, StructuredOutputsParams
from structout.errors import StructOutError
from structout.masks.buffers import BufferRing
from support import tokenizers_on_the_spot

_NUM_THREADS = 3
_FORKS = 10  # of each seed
_CHILD_SECONDS = 20
_KINDS = [
    {"json": '{"type": "number", "minimum": 0.5}'},
    {"json": '{"type": "object", "properties": {"name": {"type": "string", "format": "date"}}, "required": ["name"]}'},
    {"regex": "[a-c]{2,9}x"},
    {"grammar": 'root ::= "(" root ")" | "x"'},
    {"choice": ["yes", "no"]},
]


class Worker(threading.Thread):
    """Adds requests of random kinds, follows each for some tokens, and draws tokens."""

    def __init__(self, seed: str):
        super().__init__(name=f"soak-{seed}", daemon=True)
        self.rng = random.Random(seed)
        self.is_over = threading.Event()
        self.problem: BaseException | None = None
        self.num_texts = 0

    def run(self) -> None:
        try:
            with StructuredOutputManager(tokenizers_on_the_spot.byte_level(), V) as manager:
                while not self.is_over.is_set():
                    constraint = random_constraint(self.rng) if self.rng.random() < 0.5 else self.rng.choice(_KINDS)
                    follow(manager, constraint, self.rng)
                    self.num_texts += 1
        except BaseException as error:
            self.problem = error


def follow(manager: StructuredOutputManager, constraint: dict[str, object], rng: random.Random) -> int:
    """Follow a text of a constraint for some tokens. Return how many, 0 if the
    constraint is refused."""
    name = f"{rng.random()}"
    manager.add_request(name, StructuredOutputsParams(**constraint))
    manager.wait_all([name], _CHILD_SECONDS)
    num_tokens = 0
    while manager.status(name) is GrammarStatus.READY and num_tokens < 8:
        masks = manager.grammar_bitmask([name])
        if not len(masks.bitmask):
            break
        if not manager.accept_tokens(name, [draw(masks.to("cpu"), rng)]):
            break
        num_tokens += 1
    manager.finish_request(name)
    return num_tokens


def draw(bitmask: torch.Tensor, rng: random.Random) -> int:
    seed = rng.randrange(1 << 30)
    logits = torch.rand(1, V, generator=torch.Generator().manual_seed(seed))
    return int(structout.masked_sample(logits, bitmask, seed=seed))


def child(inherited: StructuredOutputManager, seed: str) -> int:
    """What the forked process does. Return its exit code."""
    faulthandler.dump_traceback_later(_CHILD_SECONDS, exit=True)
    rng = random.Random(seed)
    try:
        inherited.grammar_bitmask([])
        return 2
    except StructOutError as error:
        if "forked" not in str(error):
            return 3
    with StructuredOutputManager(tokenizers_on_the_spot.byte_level(), V) as manager:
        for constraint in [*_KINDS, random_constraint(rng)]:
            if not follow(manager, constraint, rng) and constraint in _KINDS:
                return 4
    return 0


class Forks(Hunter):
    """Never uses the engine in its own process, so that each seed begins with one that
    has not been used: what it makes at its first use may be half made in a fork."""

    def hunt(self, seed: int, tally: Tally) -> None:
        reader, writer = os.pipe()
        with os.fdopen(reader) as result:
            code = _exit_code_of_fork(partial(_write_tally, writer, seed))
            os.close(writer)
            if code != 0:
                tally.findings.append(f"the process whose threads go on ended with {code}")
                return
            tally.add(Tally(**json.load(result)))


def _write_tally(writer: int, seed: int) -> int:
    with os.fdopen(writer, "w") as result:
        json.dump(vars(_with_threads(seed)), result)
    return 0


def _with_threads(seed: int) -> Tally:
    # Torch makes its operators at their first calls, and its thread pool anew after a
    # fork. Neither is safe beside other threads, so it is done before there are any.
    torch.set_num_threads(torch.get_num_threads())
    draw(torch.from_numpy(BufferRing(1, V).next(1).array).to("cpu"), random.Random(0))
    tally = Tally()
    rng = random.Random(f"soak forks {seed}")
    workers = [Worker(f"soak forks {seed} {i}") for i in range(_NUM_THREADS)]
    with StructuredOutputManager(tokenizers_on_the_spot.byte_level(), V) as inherited:
        for worker in workers:
            worker.start()
        for number in range(_FORKS):
            time.sleep(rng.random() * 0.02)
            code = _exit_code_of_fork(partial(child, inherited, f"{seed} {number}"))
            tally.executions["forks"] += 1
            if code != 0:
                tally.findings.append(f"a forked process ended with {code}")
        for worker in workers:
            worker.is_over.set()
        for worker in workers:
            worker.join(_CHILD_SECONDS)
    for worker in workers:
        tally.executions["texts of the process that forks"] += worker.num_texts
        if worker.problem is not None:
            tally.findings.append(f"a thread beside the forks failed: {worker.problem!r}")
        if worker.is_alive():
            tally.findings.append("a thread beside the forks does not end")
    return tally


def _exit_code_of_fork(program: Callable[[], int]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = program()
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


make = Forks
