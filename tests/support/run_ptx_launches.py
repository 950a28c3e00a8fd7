"""Runs random launches of the compiled CUDA kernels, and stops at the first wrong
result: what `make test-all` does, for longer. Needs nvcc, and no GPU.

    python tests/support/run_ptx_launches.py [--launches 100000] [--seed 1]

Prints how many launches agreed so far and how fast the machine of tests/native/ptx_vm
executes them on one thread. Every third run of a program has all checks, in a random
order.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections import Counter
from pathlib import Path

from support import host_cuda, ptx

CASES = {"apply_bitmask": 200, "fsm_states": 20, "listed_logits": 200, "masked_sample": 60, "verify_drafts": 40}
CHECKS = {"races": 1, "undefined": 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--launches", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    done: Counter[str] = Counter()
    seeds = itertools.count(asked.seed)
    runs = (
        (seed, architecture, place)
        for seed in seeds
        for architecture in ptx.ARCHITECTURES
        for place in enumerate(CASES)
    )
    for seed, architecture, (place, name) in runs:
        checks = {"seed": seed} | CHECKS if (seed + place) % 3 == 2 else {}
        with tempfile.NamedTemporaryFile() as report:
            configuration = ptx.configuration(name, architecture, **checks)
            arguments = (CASES[name] // (3 if checks else 1), 1000 * seed + architecture)
            result = host_cuda.run(ptx.program(name), *arguments, ptx=configuration, report=Path(report.name))
            if result.returncode != 0:
                sys.exit(f"sm_{architecture}: {name} {arguments} {checks}: {result.stdout}{result.stderr}")
            for kernel in ptx.read_report(Path(report.name)).values():
                kind = "checked" if checks else "plain"
                done["launches"] += int(kernel.counters["launches"])
                done[f"{kind} instructions"] += int(kernel.counters["instructions"])
                done[f"{kind} us"] += int(1e6 * kernel.counters["seconds"])
        speeds = [done[f"{kind} instructions"] / max(1, done[f"{kind} us"]) for kind in ("plain", "checked")]
        print(
            f"sm_{architecture} {name}, seed {seed}: {done['launches']} launches agree, "
            f"{speeds[0]:.1f} million warp instructions a second, {speeds[1]:.1f} with all checks",
            flush=True,
        )
        if done["launches"] >= asked.launches:
            break


if __name__ == "__main__":
    main()
