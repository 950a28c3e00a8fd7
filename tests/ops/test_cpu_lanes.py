"""The vectors of csrc/cpu on instruction sets that no machine of the tests runs by
itself: those of 64-bit Arm, by an emulator, and those that g++ finds for any
processor. And each instruction set of this machine under sanitizers, where every array
ends at memory that may not be read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import apply_bitmask_cases, builds, masked_sample_cases
from support.cpu_programs import ARM_COMPILER, ARM_EMULATOR, NEEDS_ARM, CpuProgram, compiled

PORTABLE = "-DSTRUCTOUT_PORTABLE_LANES"
TARGETS = [
    pytest.param("portable", id="portable"),
    pytest.param("arm", id="arm", marks=NEEDS_ARM),
    pytest.param("portable on arm", id="portable_on_arm", marks=[NEEDS_ARM, pytest.mark.long]),
]


@pytest.fixture(scope="module", params=TARGETS)
def program(request) -> Iterator[CpuProgram]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("STRUCTOUT_CPU_CAPABILITY", "default")
        flags = [PORTABLE] if "portable" in request.param else []
        if "arm" in request.param:
            command = [ARM_EMULATOR, str(compiled([ARM_COMPILER], "-static", *flags))]
        else:
            command = [str(compiled(builds.cxx(), *flags))]
        with CpuProgram(command) as running:
            yield running


@pytest.mark.parametrize("capability", ["default", "avx2", "avx512"])
def test_kernels_read_no_memory_beyond_their_arrays(monkeypatch, capability, num_cases):
    monkeypatch.setenv("STRUCTOUT_CPU_CAPABILITY", capability)
    # -O0 runs for half a second; -O1 would compile for half a minute longer.
    with CpuProgram([str(compiled(builds.cxx(), *builds.SANITIZED, "-O0"))]) as running:
        for case in masked_sample_cases.random_cases(34, count=num_cases(100, long=2000)):
            masked_sample_cases.check(running.masked_sample_logprobs, case)
        for case in masked_sample_cases.random_cases(35, count=num_cases(5, long=50), max_vocab=150_000, max_rows=3):
            masked_sample_cases.check(running.masked_sample_logprobs, case)
        for case in apply_bitmask_cases.random_cases(36, count=num_cases(300, long=5000)):
            apply_bitmask_cases.check(running.apply_bitmask, case)


def test_masked_sample_on_other_lanes_matches_reference(program, num_cases):
    for case in masked_sample_cases.random_cases(31, count=num_cases(400, long=4000)):
        masked_sample_cases.check(program.masked_sample_logprobs, case)
    for case in masked_sample_cases.random_cases(32, count=num_cases(20, long=200), max_vocab=150_000, max_rows=3):
        masked_sample_cases.check(program.masked_sample_logprobs, case)


def test_apply_bitmask_on_other_lanes_matches_reference(program, num_cases):
    for case in apply_bitmask_cases.random_cases(33, count=num_cases(1000, long=10_000)):
        apply_bitmask_cases.check(program.apply_bitmask, case)
