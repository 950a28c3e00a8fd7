"""Allocations of the engine fail, each once: an error of the one text, and nothing
else.

Not yet true of the whole engine: see "Open" in ``docs/volumes.md``.

A seed is a constraint. ``tests/native/allocation_faults.cpp`` lets each allocation of
compiling it and of reading a text fail in turn, or a sample of them where there are
many. Texts that were there before, the one that met the fault among them, must have
the masks that they had.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from soak.hunt import Hunter, Tally
from support import corpus
from support.builds import compiled_engine
from support.locations import NATIVE

FLAGS = ["-std=c++17", "-O1", "-pthread"]  # as another test builds the engine

_SECONDS = 120


class Allocations(Hunter):
    def __init__(self) -> None:
        self._program = compiled_engine("allocation_faults", NATIVE / "allocation_faults.cpp", FLAGS)
        self._folder = tempfile.TemporaryDirectory()
        self._schemas = Path(self._folder.name) / "schemas"
        self._schemas.write_text("".join(f"{json.dumps(line['schema'])}\n" for line in corpus.LINES))

    def hunt(self, seed: int, tally: Tally) -> None:
        command = [str(self._program), str(seed), "0", str(self._schemas)]
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
        except subprocess.TimeoutExpired:  # reading what one large schema allows may take long 450 times
            tally.executions["constraints that took too long"] += 1
            return
        if run.returncode != 0:
            tally.findings.append(f"the process ended with {run.returncode}: {run.stderr[:1500]}")
            return
        counts, *findings = run.stdout.splitlines()
        num_constraints, num_refused, num_faults, _ = map(int, counts.split())
        tally.executions["constraints"] += num_constraints
        tally.executions["constraints that are refused without a fault"] += num_refused
        tally.executions["allocations that failed"] += num_faults
        tally.findings += findings

    def close(self) -> None:
        self._folder.cleanup()


make = Allocations
