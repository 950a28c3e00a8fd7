"""What a hunter is, and the loop that runs one in a process of its own."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

HUNTERS = (
    "draws",
    "distributions",
    "schemas",
    "universes",
    "patterns",
    "grammars",
    "nested",
    "tags",
    "masks",
    "server",
    "days",
    "allocations",
    "forks",
    "coverage",
    "parsers",
    "mutants",
    "vllm",
)
_MAX_FINDING_LETTERS = 2000


@dataclass
class Tally:
    """What one seed, or a whole run, has done and found.

    Attributes:
        executions: how often each thing was done.
        measures: what was measured once over the run, such as a p-value.
        notes: what a reader should look at, and is no fault by itself.
        findings: what broke a promise, each with what is needed to see it again.
    """

    executions: Counter[str] = field(default_factory=Counter)
    measures: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.executions.update(other.executions)
        self.measures.update(other.measures)
        self.notes += other.notes
        self.findings += other.findings


class Hunter:
    """A random test that goes from seed to seed.

    What is made once for all seeds, such as a vocabulary or a process, belongs in
    ``__init__``. A hunter that gathers over seeds judges in :meth:`finish`.
    """

    def hunt(self, seed: int, tally: Tally) -> None:
        """Do what this seed asks for, in a few seconds at most.

        An exception is a finding, as is what is added to ``tally.findings``.
        """
        raise NotImplementedError

    def finish(self, tally: Tally) -> None:
        """Judge what all seeds gave together."""

    def close(self) -> None:
        """End processes and remove files."""


@contextlib.contextmanager
def hunter(name: str) -> Iterator[Hunter]:
    """Make the hunter of the module ``soak.NAME``."""
    made = importlib.import_module(f"soak.{name}").make()
    try:
        yield made
    finally:
        made.close()


def hunted(hunter: Hunter, seed: int) -> Tally:
    """Return what one seed does and finds. Exceptions count as findings."""
    return hunted_by(hunter.hunt, seed)


def hunted_by(hunt: Callable[[int, Tally], None], seed: int) -> Tally:
    tally = Tally()
    try:
        hunt(seed, tally)
    except Exception:
        tally.findings.append(traceback.format_exc()[-_MAX_FINDING_LETTERS:])
    return tally


def short_run(name: str, seconds: float, first_seed: int = 0) -> Tally:
    """Hunt for some seconds, at least one seed, and judge. For the tests."""
    total = Tally()
    deadline = time.monotonic() + seconds
    with hunter(name) as running:
        seed = first_seed
        while seed == first_seed or time.monotonic() < deadline:
            found = hunted(running, seed)
            total.add(found)
            if found.findings:
                total.findings.append(f"seed {seed}: {command(name, seed)}")
                break
            seed += 1
        running.finish(total)
    return total


def command(name: str, seed: int) -> str:
    """Return the command that shows a finding again."""
    target = "soak-vllm" if name == "vllm" else f"soak ONLY={name}"  # it has an environment of its own
    return f"make {target} SEED={seed} SECONDS=0"


def main() -> None:
    """Hunt from a seed on, and print a JSON object before and after each seed."""
    name, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    deadline = time.monotonic() + seconds
    report = sys.stdout
    sys.stdout = sys.stderr  # what a hunter prints is no report
    with hunter(name) as running:
        while True:
            print(json.dumps({"begins": seed}), file=report, flush=True)
            found = hunted(running, seed)
            print(json.dumps(vars(found)), file=report, flush=True)
            seed += 1
            if time.monotonic() >= deadline:
                break
        last = Tally()
        try:
            running.finish(last)
        except Exception:
            last.findings.append(traceback.format_exc()[-_MAX_FINDING_LETTERS:])
        print(json.dumps(vars(last)), file=report, flush=True)


if __name__ == "__main__":
    main()
