"""STRUCTOUT_CPU_CAPABILITY: which values the CPU kernels accept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import structout
from support import fresh_process

SCRIPT = """
import sys

import torch

# The library alone: importing structout would refuse the value before a kernel sees it.
torch.ops.load_library(sys.argv[1])
ops = torch.ops.structout
logits = torch.zeros(2, 64)
numbers = torch.zeros(2, dtype=torch.int64)
calls = {
    "_cpu_capability": lambda: ops._cpu_capability(),
    "apply_bitmask": lambda: ops.apply_bitmask(logits, torch.zeros(2, 2, dtype=torch.int32)),
    "masked_sample": lambda: ops.masked_sample(
        logits, None, None, torch.ones(2), None, None, None, numbers, numbers
    ),
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
    library = str(Path(structout.__file__).with_name("_C.so"))
    run = fresh_process.run("-c", SCRIPT, library, env=environment)
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
