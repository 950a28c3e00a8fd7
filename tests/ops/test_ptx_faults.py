"""The machine finds faults that are planted in the PTX of the CUDA kernels: each makes
a program fail, by a check or by a wrong result. docs/testing_without_a_gpu.md lists the
kinds that it cannot find."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from support import host_cuda, ptx
from support.ptx_faults import Fault, planted

# What a program is called with, so that a second of it finds the faults.
ARGUMENTS = {
    "apply_bitmask": (120, 5),
    "fsm_states": (40, 5),
    "listed_logits": (80, 5),
    "masked_sample": (60, 7),
    "push": ("mixed", 40, 5, 2, 3),
}
CHECKS = {"seed": 1, "races": 1, "undefined": 1, "instructions": 20_000_000}
# AddressSanitizer knows the bounds of the programs' buffers.
SANITIZED = ("apply_bitmask", "fsm_states", "listed_logits", "push")

ENDS, THREE, FOUR = (0.0, 1.0), (0.0, 0.5, 1.0), (0.0, 0.33, 0.67, 1.0)
CLUSTERS = "sample_by_clustersILNS_11FloatFormatE0ELb1"
GATHER, ROWS = "push_all_gather", "push_rows_kernelIj"
PENALTIES, FSM_ROWS = "ILNS_11FloatFormatE1ENS_15PenaltiesParams", "fsm_rows"
TILES, VECTORS = "apply_bitmask_by_tilesIt", "apply_bitmask_by_vectorsIt"
PLACES: dict[tuple[str, str], dict[str, tuple[float, ...]]] = {
    ("push", GATHER): {
        "no barrier": THREE,
        "a store after the barrier": THREE,
        "no store to shared memory": THREE,
        "a vote without the last lane": (0.0,),
        "a store one element too far": (0.0,),
        "a bound that is one too small": (0.5, 1.0),
        "no fence": (0.0, 0.5),
        "a release that does not": (0.0,),
        "an acquire that does not": ENDS,
        "a release for its own device": (0.0,),
        "an acquire for its own device": ENDS,
    },
    ("push", ROWS): {
        "no barrier": THREE,
        "a store after the barrier": THREE,
        "no store to shared memory": (0.0, 0.5),
        "a vote without the last lane": ENDS,
        "a load one vector too far": THREE,
        "a misaligned load": ENDS,
        "a bound that is one too large": ENDS,
        "no fence": (0.5, 1.0),
        "a release that does not": ENDS,
        "an acquire that does not": THREE,
        "a release for its own device": ENDS,
        "an acquire for its own device": THREE,
    },
    ("listed_logits", PENALTIES): {
        "no barrier": THREE,
        "a store after the barrier": THREE,
        "no store to shared memory": THREE,
        "a store one element too far": THREE,
        "a load of shared memory one word too far": (0.0,),
        "a global access to shared memory": (0.0,),
    },
    ("fsm_states", FSM_ROWS): {
        "no barrier": THREE,
        "a store after the barrier": ENDS,
        "no store to shared memory": ENDS,
        "a vote without the last lane": (0.0,),
        "a store one element too far": ENDS,
        "a load of shared memory one word too far": ENDS,
        "a bound that is one too large": THREE,
        "a bound that is one too small": (0.0,),
        "an atomic that is none": (0.0,),
        "a global access to shared memory": ENDS,
    },
    ("apply_bitmask", TILES): {
        "a vote without the last lane": THREE,
        "a shuffle without the last lane": THREE,
        "a store one element too far": THREE,
        "a load one vector too far": THREE,
        "a misaligned load": THREE,
        "a bound that is one too large": (0.5, 1.0),
        "a bound that is one too small": (0.0,),
    },
    ("apply_bitmask", VECTORS): {
        "a store one element too far": THREE,
        "a load one vector too far": (0.0,),
        "a misaligned load": (0.0,),
        "a bound that is one too small": ENDS,
    },
    ("masked_sample", CLUSTERS): {
        "no barrier": (0.0, 0.67, 1.0),
        "no cluster barrier": FOUR,
        "no arrival at a cluster barrier": FOUR,
        "no wait at a cluster barrier": FOUR,
        "a store after the barrier": FOUR,
        "no store to shared memory": (0.0,),
        "a vote without the last lane": FOUR,
        "a shuffle without the last lane": ENDS,
    },
}  # fmt: skip
FAULTS = [
    Fault(program, kernel, kind, place)
    for (program, kernel), kinds in PLACES.items()
    for kind, places in kinds.items()
    for place in places
]
# Planted faults that make no program fail, and why.
NOT_FOUND: dict[Fault, str] = {}
# One of each program whose kernels are small.
ALWAYS = [
    Fault("push", GATHER, "a release that does not", 0.0),
    Fault("listed_logits", PENALTIES, "no barrier", 0.5),
    Fault("fsm_states", FSM_ROWS, "no store to shared memory", 0.0),
    Fault("apply_bitmask", TILES, "a vote without the last lane", 0.0),
]


def program(name: str) -> Path:
    return ptx.program(name, "address" if name in SANITIZED else None)


@functools.cache
def executed_lines(name: str, directory: Path) -> dict[str, set[int]]:
    """Return the lines that each kernel of the right program executes."""
    report = directory / f"{name}.json"
    configuration = ptx.configuration(name, 90, **CHECKS)
    result = host_cuda.run(program(name), *ARGUMENTS[name], ptx=configuration, report=report)
    assert result.returncode == 0, result.stdout + result.stderr
    reports = ptx.read_report(report).items()
    return {kernel: {line for line, count in of.executions.items() if count > 0} for kernel, of in reports}


def run_with(fault: Fault, directory: Path) -> str:
    """Run a program with a fault, and return what it prints when it fails; "" if it
    does not."""
    lines = executed_lines(fault.program, directory)
    kernel = next(name for name in lines if fault.kernel in name)
    files = [ptx.ptx_of(source, 90) for source in ptx.PROGRAMS[fault.program]]
    right = next(file for file in files if kernel in file.read_text())
    wrong = directory / f"{re.sub(r'[^a-z0-9]', '_', str(fault).lower())[-100:]}.ptx"
    wrong.write_text(planted(right.read_text(), lines[kernel], fault))
    configuration = ptx.configuration(
        fault.program, 90, ptx=[wrong if file == right else file for file in files], **CHECKS
    )
    result = host_cuda.run(program(fault.program), *ARGUMENTS[fault.program], ptx=configuration)
    wrong.unlink()
    return "" if result.returncode == 0 else result.stdout + result.stderr


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


def test_there_are_enough_faults():
    assert len(FAULTS) >= 60
    assert set(ALWAYS) <= set(FAULTS)


@ptx.NEEDS_NVCC
@pytest.mark.planted
@pytest.mark.parametrize("fault", ALWAYS, ids=lambda fault: f"{fault.kernel}, {fault.kind}")
def test_machine_finds_a_planted_fault(fault, directory):
    assert run_with(fault, directory)


@ptx.NEEDS_NVCC
@pytest.mark.planted
def test_machine_finds_planted_faults_except_those_of_the_list(directory, num_cases):
    """A part of them, unless under ``--full``."""
    planted_faults = FAULTS[:: len(FAULTS) // num_cases(1, long=16, full=len(FAULTS))]
    not_found = {fault for fault in planted_faults if not run_with(fault, directory)}
    assert not_found == NOT_FOUND.keys() & set(planted_faults)
