"""The life of a server: one manager for all seeds, with clients on threads of their
own.

Three clients add requests of all kinds, cancel some while they compile, fork some, and
leave. One in ten is hostile. A fourth thread steps: it fills masks, with drafts for
some requests, takes tokens that the masks allow, offers tokens that they forbid, rolls
back, and preempts requests, which come again with the tokens that they had.

At the end of a seed no request is left, so counts must agree. Over all seeds memory may
not grow once the caches are full: the slopes of the resident memory and of the heap in
use over requests, by least squares on the second half of the run, are given with their
95% intervals, and a lower end above ``MOST_BYTES_PER_REQUEST`` is a finding. The heap
in use is what the allocator has given out: it shows a leak ten times as early. Threads
and descriptors that are left are findings, too.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import threading
import time
from array import array
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from soak.hunt import Hunter, Tally
from structout import (
    GrammarStatus,
    StructuredOutputManager,
    StructuredOutputsConfig,
    StructuredOutputsParams,
)
from support import tokenizers_on_the_spot
from support.random_grammars import random_lexed_grammar, random_scannerless_grammar
from support.random_patterns import random_pattern
from support.random_schemas import RandomSchema
from support.random_tags import random_format

V = 525
NUM_CLIENTS, REQUESTS_PER_CLIENT = 3, 60
NUM_KEPT_CONSTRAINTS = 300
MOST_TOKENS, MOST_ROLLED_BACK = 24, 4
MOST_BYTES_PER_REQUEST = 64
SLOWEST_STEP_SECONDS = 0.5  # of 999 in 1,000, on a machine that is busy with other things
_DEADLINE_SECONDS = 120.0
_POINTS_FOR_A_SLOPE = 24
_WARM_UP_REQUESTS = 40_000  # while the caches fill, memory grows by kilobytes a request

HOSTILE: list[dict[str, Any]] = [
    {"json": "{"},
    {"json": '{"type": "integer", "minimum": 2, "maximum": 1}'},
    {"json": json.dumps({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})},
    {"json": '{"items":' * 300 + "true" + "}" * 300},
    {"json": json.dumps({"enum": list(range(20_000))})},
    {"json": json.dumps({"not": {"pattern": "(a|b)*a(a|b){18}"}, "type": "string"})},
    {"regex": "(a{1000}){1000}"},
    {"regex": "(" * 2_000},
    {"regex": "(a|b)*a(a|b){30}"},
    {"regex": "\\p{NoSuch}"},
    {"grammar": "root ::= root"},
    {"grammar": "root ::= missing"},
    {"grammar": 'root ::= root root | "a" | ""'},
    {"grammar": "start: " + "A" * 3_000},
    {"structural_tag": "{}"},
    {"structural_tag": json.dumps({"type": "structural_tag", "format": {"type": "tag"}})},
    {"choice": [""]},
    {"choice": ["a" * 5_000] * 50},
]


def random_constraint(rng: random.Random) -> dict[str, Any]:
    kind = rng.randrange(6)
    if kind == 0:
        return {"regex": random_pattern(rng).text}
    if kind == 1:
        return {"grammar": random_scannerless_grammar(rng).gbnf()}
    if kind == 2:
        return {"grammar": random_lexed_grammar(rng).lark()}
    if kind == 3:
        tag = {"type": "structural_tag", "format": random_format(rng, 2)}
        return {"structural_tag": json.dumps(tag)}
    if kind == 4:
        return {"choice": rng.sample(["yes", "no", "maybe", "naïve", "東京", '{"a": 1}'], 3)}
    return {"json": RandomSchema(rng).text}


class Client(threading.Thread):
    """Adds requests and cancels some. Those that become READY go to the stepper."""

    def __init__(self, server: Server, name: str, seed: str):
        super().__init__(name=f"soak-client-{name}")
        self.server, self.client, self.shift, self.rng = server, name, seed, random.Random(seed)
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            for number in range(REQUESTS_PER_CLIENT):
                self._request(f"{self.shift}-{self.client}-{number}")
        except BaseException as error:
            self.problem = error

    def _request(self, name: str) -> None:
        rng, server = self.rng, self.server
        is_hostile = rng.random() < 0.1
        constraint = rng.choice(HOSTILE) if is_hostile else server.constraint(rng)
        thinks = [260, 261] if rng.random() < 0.1 else None
        params = StructuredOutputsParams(**constraint)
        server.manager.add_request(name, params, constrain_after=thinks)
        with server.lock:
            server.counts["requests"] += 1
            server.counts["hostile requests"] += is_hostile
        if rng.random() < 0.15:  # perhaps while it compiles
            time.sleep(rng.random() * 0.002)
            server.manager.finish_request(name)
            with server.lock:
                server.counts["requests cancelled"] += 1
            return
        with server.lock:
            server.asked[name] = (params, thinks)
            server.added[name] = []
        if rng.random() < 0.1:
            time.sleep(0.003)


class Server(Hunter):
    def __init__(self) -> None:
        self.start = (threading.active_count(), _num_descriptors())
        config = StructuredOutputsConfig(
            cache_bytes=4 << 20,
            failures_kept=64,
            failure_ttl=0.5,
            compile_timeout=2.0,
            queue_size=64,
        )
        self.manager = StructuredOutputManager(tokenizers_on_the_spot.byte_level(), V, config)
        self._stop = self.manager.vocabulary.stop_token_ids[0]
        self.lock = threading.Lock()
        self.counts: Tally = Tally()  # replaced in hunt
        self.asked: dict[str, tuple[StructuredOutputsParams, list[int] | None]] = {}
        self.added: dict[str, list[int]] = {}  # requests that wait, with the tokens that they have
        self._constraints: deque[dict[str, Any]] = deque(maxlen=NUM_KEPT_CONSTRAINTS)
        self._seconds = array("f")  # of each step; a list of floats would be half of what the heap grows by
        self._memory: dict[str, list[tuple[int, int]]] = {"resident memory": [], "heap in use": []}
        self._num_requests = self._num_rows = 0

    def constraint(self, rng: random.Random) -> dict[str, Any]:
        """A new constraint, or one that was asked for before."""
        with self.lock:
            if len(self._constraints) > 20 and rng.random() < 0.6:
                return self._constraints[rng.randrange(len(self._constraints))]
        made = random_constraint(rng)
        with self.lock:
            self._constraints.append(made)
        return made

    def hunt(self, seed: int, tally: Tally) -> None:
        rng = random.Random(f"soak server {seed}")
        self.counts = tally.executions
        clients = [Client(self, str(i), f"soak server {seed} {i}") for i in range(NUM_CLIENTS)]
        for client in clients:
            client.start()
        live: dict[str, list[int]] = {}
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while any(client.is_alive() for client in clients) or self.added or live:
            if time.monotonic() > deadline:
                tally.findings.append(f"requests do not end: {list(self.added)[:5]} {list(live)[:5]}")
                break
            self._admit(live, rng, tally)
            if live:
                self._step(live, rng, tally)
            else:
                time.sleep(0.001)
        for client in clients:
            client.join(_DEADLINE_SECONDS)
            if client.problem is not None:
                raise client.problem
        self._check_counts(tally)

    def _admit(self, live: dict[str, list[int]], rng: random.Random, tally: Tally) -> None:
        """Take requests that have become READY, and drop those that have failed."""
        self.manager.poll_changed()
        with self.lock:
            names = list(self.added)
        for name in names:
            status = self.manager.status(name)
            if status is GrammarStatus.WAITING:
                continue
            with self.lock:
                tokens = self.added.pop(name)
            if status is GrammarStatus.FAILED:
                tally.executions["requests that failed"] += 1
                error = self.manager.error(name)
                if error is None or not str(error):
                    tally.findings.append(f"{name} has failed without an error")
                if error is not None and error.kind.value == "crash":
                    tally.findings.append(f"a compilation crashed: {error}")
                self._leave(live, name)
            else:
                live[name] = tokens

    def _step(self, live: dict[str, list[int]], rng: random.Random, tally: Tally) -> None:
        names = rng.sample(sorted(live), min(len(live), 64))
        drafts = {name: [rng.randrange(V) for _ in range(rng.randint(1, 3))] for name in names if rng.random() < 0.2}
        begin = time.perf_counter()
        batch = self.manager.grammar_bitmask(names, drafts)
        self._seconds.append(time.perf_counter() - begin)
        tally.executions["steps"] += 1
        self._num_rows += len(batch.bitmask)
        masks = np.unpackbits(batch.bitmask.view(np.uint8), axis=1, bitorder="little", count=V)
        for i, name in enumerate(names):
            first, last = batch.row_indptr[i : i + 2]
            if name in batch.errors:
                tally.executions["requests that failed in a step"] += 1
                self._leave(live, name)
            elif first == last:  # it has terminated
                self._leave(live, name)
            else:
                self._continue(live, name, masks[first], rng, tally)

    def _preempt(self, live: dict[str, list[int]], name: str) -> None:
        """Finish the request, and add it again with its tokens."""
        params, thinks = self.asked[name]
        self.manager.finish_request(name)
        self.manager.add_request(name, params, output_token_ids=live[name], constrain_after=thinks)
        tokens = live.pop(name)
        with self.lock:
            self.added[name] = tokens

    def _leave(self, live: dict[str, list[int]], name: str) -> None:
        self.manager.finish_request(name)
        live.pop(name, None)
        with self.lock:
            self.asked.pop(name, None)

    def _continue(
        self, live: dict[str, list[int]], name: str, mask: np.ndarray, rng: random.Random, tally: Tally
    ) -> None:
        manager = self.manager
        allowed = np.flatnonzero(mask)
        if not len(allowed):
            tally.findings.append(f"the mask of {name} allows nothing")
            return self._leave(live, name)
        if rng.random() < 0.1 and len(allowed) < V:
            forbidden = int(rng.choice(np.flatnonzero(mask == 0)))
            tally.executions["forbidden tokens offered"] += 1
            if manager.accept_tokens(name, [forbidden]):
                tally.findings.append(f"{name} takes {forbidden}, which its mask forbids")
        token = self._stop if mask[self._stop] and rng.random() < 0.3 else int(rng.choice(allowed))
        if not manager.accept_tokens(name, [token]):
            if manager.status(name) is not GrammarStatus.FAILED:  # a limit is an error of its own
                tally.findings.append(f"{name} refuses {token}, which its mask allows")
            return self._leave(live, name)
        tally.executions["tokens"] += 1
        live[name].append(token)
        kind = rng.random()
        if len(live[name]) >= MOST_TOKENS or kind < 0.02:
            return self._leave(live, name)
        if kind < 0.08:
            count = rng.randint(1, min(MOST_ROLLED_BACK, len(live[name])))
            manager.rollback(name, count)
            del live[name][-count:]
            tally.executions["rollbacks"] += 1
        elif kind < 0.12 and not name.endswith("+"):
            fork = f"{name}-{tally.executions['forks']}+"
            manager.fork(name, fork)
            live[fork], self.asked[fork] = list(live[name]), self.asked[name]
            tally.executions["forks"] += 1
        elif kind < 0.15:
            self._preempt(live, name)
            tally.executions["preemptions"] += 1
        return None

    def _check_counts(self, tally: Tally) -> None:
        stats = self.manager.stats()
        self._num_requests += tally.executions["requests"]
        if self.manager.num_requests or stats.waiting or stats.ready or stats.failed:
            tally.findings.append(f"requests are left: {stats}")
        if not 0 < stats.rows_filled <= self._num_rows:
            tally.findings.append(f"{stats.rows_filled} rows were filled, {self._num_rows} were given")
        if stats.compilation.cache_bytes > 4 << 20:
            tally.findings.append(f"the cache exceeds its bound: {stats.compilation}")
        gc.collect()
        if self._num_requests > _WARM_UP_REQUESTS:
            self._memory["resident memory"].append((self._num_requests, _resident_bytes()))
            self._memory["heap in use"].append((self._num_requests, _heap_bytes()))

    def finish(self, tally: Tally) -> None:
        slowest = float(np.quantile(self._seconds, 0.999))
        tally.measures["p50 of a step, ms"] = round(float(np.median(self._seconds)) * 1e3, 3)
        tally.measures["p99.9 of a step, ms"] = round(slowest * 1e3, 3)
        if slowest > SLOWEST_STEP_SECONDS:
            tally.findings.append(f"p99.9 of a step is {slowest:.3f} s")
        for name, points in self._memory.items():
            if len(points) >= _POINTS_FOR_A_SLOPE:
                slope, half_width = slope_with_interval(points[len(points) // 2 :])
                tally.measures[f"{name}, bytes per request"] = round(slope, 1)
                tally.measures[f"{name}, half of the 95% interval"] = round(half_width, 1)
                if slope - half_width > MOST_BYTES_PER_REQUEST:
                    tally.findings.append(f"{name} grows by {slope:.0f} +- {half_width:.0f} bytes per request")
        self.manager.close()
        left = _left_after(self.start)
        if left:
            tally.findings.append(left)

    def close(self) -> None:
        self.manager.close()


def slope_with_interval(points: list[tuple[int, int]]) -> tuple[float, float]:
    """The slope of a line through points by least squares, and half of its 95%
    interval for independent errors."""
    x, y = np.array(points, dtype=float).T
    x = x - x.mean()
    slope = float((x * y).sum() / (x * x).sum())
    residuals = y - y.mean() - slope * x
    deviation = float(np.sqrt((residuals**2).sum() / (len(x) - 2) / (x * x).sum()))
    return slope, 2.2 * deviation  # Student's t of 10 or more degrees of freedom


def _left_after(start: tuple[int, int]) -> str:
    """What is left of threads and descriptors; an empty text after some seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        now = (threading.active_count(), _num_descriptors())
        if now[0] <= start[0] and now[1] <= start[1]:
            return ""
        time.sleep(0.05)
    names = [thread.name for thread in threading.enumerate()]
    return f"threads and descriptors are left: {now} after {start}, {names}"


def _num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class _Mallinfo2(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def _heap_bytes() -> int:
    """What malloc has given out, large blocks that it has mapped included."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)


make = Server
