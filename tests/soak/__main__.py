"""Runs hunters by time, and writes what they did and found into bench/results.

    PYTHONPATH=tests python -m soak --seconds 600 [--only NAME] [--seed N]
    [--results FOLDER] [--quick]

Each hunter runs in a process of its own. If that process dies, its seed is a finding
and the hunt goes on at the next one. Without ``--seed`` a hunter goes on where its
committed results end, and its row has what the runs before have done, too: nights add
up."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import torch

import structout  # noqa: F401 (the ops name the instruction set)
from soak import coverage, node
from soak.hunt import HUNTERS, Tally, command
from support.locations import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import harness

_START_SECONDS = 5.0  # a hunter that dies sooner is not started again


def run(name: str, first_seed: int, seconds: float) -> tuple[Tally, int]:
    """Hunt in processes until the time is over.

    Returns:
        what was done and found, and the seed after the last one.
    """
    total, seed = Tally(), first_seed
    deadline = time.monotonic() + seconds
    while True:
        left = max(0.0, deadline - time.monotonic())
        arguments = [sys.executable, "-m", "soak.hunt", name, str(seed), str(left)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        for line in process.stdout:
            message = json.loads(line)
            if "begins" in message:
                seed = message["begins"]
                continue
            found = Tally(**message)
            total.add(found)
            for finding in found.findings:
                print(f"{name}, seed {seed}: {finding}\n  {command(name, seed)}", flush=True)
        code = process.wait()
        if code != 0:
            total.findings.append(f"the process ended with {code} in seed {seed}: {command(name, seed)}")
            print(f"{name}: {total.findings[-1]}", flush=True)
        seed += 1
        if code == 0 or time.monotonic() + _START_SECONDS > deadline:
            return total, seed


def row(
    name: str, first_seed: int, next_seed: int, seconds: float, total: Tally, before: dict[str, int]
) -> dict[str, object]:
    return {
        "hunter": name,
        "first_seed": first_seed,
        "next_seed": next_seed,
        "seconds": round(seconds),
        "executions": dict(sorted(total.executions.items())),
        "executions_before": dict(sorted(before.items())),
        "measures": total.measures,
        "notes": total.notes,
        "findings": len(total.findings),
        "first_findings": total.findings[:5],
    }


def earlier(name: str, folder: Path) -> tuple[int, Counter[str]]:
    """Return the seed after those of the committed results, and what was done in all
    runs so far."""
    if not harness.results_path(f"soak_{name}", "cpu", folder).exists():
        return 0, Counter()
    last = harness.read_results(f"soak_{name}", "cpu", folder)["rows"][-1]
    return last["next_seed"], Counter(last["executions"]) + Counter(last.get("executions_before", {}))


def main() -> int:
    parser = harness.argument_parser("hunt for faults by time", quick="run as told")
    parser.add_argument("--only", choices=HUNTERS, help="one hunter; default: all, each for its share of the time")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, help="the first seed; then one seed runs at least, and nothing is written")
    arguments: argparse.Namespace = parser.parse_args()
    names = [arguments.only] if arguments.only else list(HUNTERS)
    arguments.quick |= arguments.seed is not None
    if "schemas" in names:
        node.install_ajv()
    if "coverage" in names and coverage.clang() is None:
        print("coverage: skipped, needs clang with libFuzzer, as in Debian's clang and libclang-rt-dev")
        names.remove("coverage")
    if "parsers" in names and importlib.util.find_spec("atheris") is None:
        print("parsers: skipped, needs Atheris")
        names.remove("parsers")
    if "vllm" in names and importlib.util.find_spec("vllm") is None:
        print("vllm: skipped, needs vLLM: make soak-vllm")
        names.remove("vllm")
    num_findings = 0
    for name in names:
        first, before = earlier(name, arguments.results)
        first = first if arguments.seed is None else arguments.seed
        results = harness.ResultsFile(f"soak_{name}", torch.device("cpu"), arguments)
        start = time.monotonic()
        total, after = run(name, first, arguments.seconds / len(names))
        results.add(row(name, first, after, time.monotonic() - start, total, before))
        results.close()
        print(f"{name}: seeds {first} to {after - 1}, {len(total.findings)} findings")
        print(*(f"  {what}: {count:,}" for what, count in sorted(total.executions.items())), sep="\n")
        print(*(f"  {what}: {value:g}" for what, value in total.measures.items()), sep="\n", flush=True)
        num_findings += len(total.findings)
    return 1 if num_findings else 0


if __name__ == "__main__":
    sys.exit(main())
