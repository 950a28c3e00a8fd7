"""STRUCTOUT_CPU_CAPABILITY: which values the CPU kernels accept."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import structout  # noqa: F401  (registers the ops)

SCRIPT = """
import torch

import structout

logits = torch.zeros(2, 64)
calls = {
    "_cpu_capability": lambda: torch.ops.structout._cpu_capability(),
    "apply_bitmask": lambda: structout.apply_bitmask(logits, torch.zeros(2, 2, dtype=torch.int32)),
    "masked_sample": lambda: structout.masked_sample(logits),
}
for name, call in calls.items():
    try:
        print(name, "gives", call())
    except ValueError as error:
        print(name, "refuses:", error)
print("logits written:", bool((logits != 0).any()))
"""


def run_with_capability(value: str) -> list[str]:
    environment = os.environ | {"STRUCTOUT_CPU_CAPABILITY": value}
    run = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


@pytest.mark.parametrize("value", ["avx1024", "AVX2"])
def test_unknown_cpu_capability_is_refused_by_every_kernel(value):
    message = (
        f"STRUCTOUT_CPU_CAPABILITY must be default, avx2 or avx512, got '{value}'; "
        "unset it to use the best that this machine has"
    )
    assert run_with_capability(value) == [
        f"_cpu_capability refuses: {message}",
        f"apply_bitmask refuses: {message}",
        f"masked_sample refuses: {message}",
        "logits written: False",
    ]


def test_empty_cpu_capability_counts_as_unset():
    lines = run_with_capability("")
    assert lines[0] in {f"_cpu_capability gives {name}" for name in ("default", "avx2", "avx512")}
    if not os.environ.get("STRUCTOUT_CPU_CAPABILITY"):
        assert lines[0] == f"_cpu_capability gives {torch.ops.structout._cpu_capability()}"
    assert lines[-1] == "logits written: True"
