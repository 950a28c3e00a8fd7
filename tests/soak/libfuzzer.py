"""Runs programs that have libFuzzer in them, and counts what they did."""

from __future__ import annotations

import base64
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from soak.hunt import Tally
from support.locations import ROOT

FOUND = ROOT / "build" / "fuzz"  # inputs that are kept for later seeds, by target


def fuzz(
    target: str,
    command: Sequence[str],
    inputs: str,
    seed: int,
    tally: Tally,
    *,
    seconds: int,
    input_seconds: int,
    max_bytes: int,
    options: Sequence[str] = (),
    environment: Mapping[str, str],
) -> None:
    """Fuzz a target. An input that ends the process is a finding.

    Args:
        target: its name.
        command: the program and its arguments, to which libFuzzer's are added.
        inputs: a folder with the inputs to begin with, beside those that earlier seeds
            have left.
        seed: of the hunter.
        tally: what is done and found.
        seconds: how long to go on after the inputs were read.
        input_seconds: after which an input hangs.
        max_bytes: of an input.
        options: more of libFuzzer's.
        environment: more variables of the program.
    """
    found, artifacts = FOUND / target, FOUND / "findings"
    for folder in (found, artifacts):
        folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "seed": seed + 1,  # 0 is a random one
        "max_total_time": seconds,
        "timeout": input_seconds,
        "max_len": max_bytes,
        "artifact_prefix": f"{artifacts}/{target}-",
        "print_final_stats": 1,
    }
    run = subprocess.run(
        [*command, *(f"-{name}={value}" for name, value in settings.items()), *options, str(found), inputs],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        errors="replace",
    )
    printed = run.stdout + run.stderr
    executed = re.findall(r"stat::number_of_executed_units: (\d+)", printed)
    tally.executions[f"inputs of {target}"] += int(executed[-1]) if executed else 0
    edges = re.findall(r"\bcov: (\d+)", printed)
    if edges:
        tally.measures[f"edges covered by {target}"] = int(edges[-1])
    if run.returncode != 0:
        tally.findings.append(finding(target, run.returncode, printed))


def finding(target: str, code: int, printed: str) -> str:
    """What does not hold, and the input, which need not fail again in the same seed."""
    _, _, exception = printed.partition("Uncaught Python exception")
    lines = printed.splitlines()
    causes = [line for line in lines if re.search(r"does not hold|runtime error|ERROR:|SUMMARY:", line)]
    cause = exception[:1500] or "\n".join(causes[:4]) or printed[-1500:]
    written = re.findall(r"Test unit written to (.+)", printed)
    read = base64.b64encode(Path(written[-1]).read_bytes()).decode() if written else "unknown"
    return f"{target} ended with {code}\n{cause}\ninput in base64: {read[:1000]}"
