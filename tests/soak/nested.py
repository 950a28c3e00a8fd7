"""Random grammars inside of each other, in C++: as many as a second allows.

A seed is a chain of grammars, each of which may contain earlier ones and JSON schemas.
``tests/native/grammar_fuzz.cpp`` reads texts of each: the mask must equal a walk over
whole places and what is accepted, and no text may get stuck.
"""

from __future__ import annotations

import subprocess

from soak.allocations import FLAGS
from soak.hunt import Hunter, Tally
from support.builds import compiled_engine
from support.locations import NATIVE

_NUM_GRAMMARS = 200
_SECONDS = 60  # of CPU time; chains of grammars may be slow


class Nested(Hunter):
    def __init__(self) -> None:
        self._program = compiled_engine("grammar_fuzz", NATIVE / "grammar_fuzz.cpp", FLAGS)

    def hunt(self, seed: int, tally: Tally) -> None:
        command = [str(self._program), str(seed), str(_NUM_GRAMMARS), str(_SECONDS)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=20 * _SECONDS)
        if run.returncode != 0:
            last_lines = " ".join(run.stderr.splitlines()[-2:])
            tally.findings.append(f"the process ended with {run.returncode}: {last_lines}")
            return
        num_with_texts, num_refused = map(int, run.stdout.split())
        tally.executions["grammars with texts"] += num_with_texts
        tally.executions["grammars that are refused"] += num_refused


make = Nested
