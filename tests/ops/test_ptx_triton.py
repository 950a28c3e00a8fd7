"""Every Triton kernel as Triton compiles it for a GPU, executed by the machine of
tests/native/ptx_vm, with its checks.

The calls are those of the first step of `make gpu-check`, so Triton compiles the
specializations that a GPU would get there, and masked_sample's forms of the tests. The
test runs this file as a program, whose Triton is not the interpreter.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import types

import pytest

from support.locations import ROOT, TESTS, importing

ARCHITECTURES = (80, 90, 100)
VOCAB = 3_008


def run_smoke_calls() -> None:
    """Compare one call of every op with the reference."""
    from smoke_calls import is_same, smoke_calls

    from structout.triton_kernels import (
        apply_bitmask,
        fsm_states,
        listed_logits,
        masked_sample,
        shards,
        token_logprobs,
        verify_drafts,
    )

    ops = types.SimpleNamespace()
    for module in (apply_bitmask, fsm_states, listed_logits, masked_sample, shards, token_logprobs, verify_drafts):
        for name, function in vars(module).items():
            if callable(function):
                setattr(ops, name, function)
                setattr(ops, f"_{name}", function)  # as the private ops are called
    for name, (call, wanted) in smoke_calls(ops, "cpu", VOCAB).items():
        got = call()
        assert is_same(got, wanted), (name, got, wanted)
        print(name, flush=True)


def run_forms(num_forms: int, num_cases: int) -> None:
    """Compare masked_sample on random values of each form with the reference."""
    from structout.triton_kernels.masked_sample import masked_sample_logprobs
    from support.masked_sample_cases import TRITON_FORMS, check, random_case

    for form in TRITON_FORMS[:num_forms]:
        rng = random.Random(str(form))
        for _ in range(num_cases):
            check(masked_sample_logprobs, random_case(rng, forms=[form], max_vocab=2000))
        print(form, flush=True)


def run_compiled(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script in a process whose Triton compiles kernels."""
    environment = importing(__file__)
    environment["PYTHONPATH"] += os.pathsep + str(ROOT / "bench")
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_triton_kernels_compiled_for_a_gpu_give_the_references_bits(architecture, num_cases):
    if architecture != 90 and num_cases(0, long=1) == 0:
        pytest.skip("compiles for minutes: make test-all")
    result = run_compiled(__file__, architecture, num_cases(0, long=12 if architecture == 90 else 3), 12)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "shards, merged" in result.stdout


def run_ranks(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_compiled(str(TESTS / "support" / "push_ranks_on_ptx.py"), *arguments)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_triton_push_all_gather_delivers_bytes_between_devices_without_a_race(architecture, num_cases):
    """Ranks are threads of one process, and devices of the machine."""
    if architecture != 90 and num_cases(0, long=1) == 0:
        pytest.skip("compiles for minutes: make test-all")
    for world_size in (3,) if num_cases(0, long=1) == 0 else (1, 2, 3, 5):
        failures = ("absent", "mismatch") if world_size == 3 else ()
        result = run_ranks(architecture, world_size, num_cases(4, long=30), architecture, *failures)
        assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.planted
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"release\.exch", "relaxed.exch"),
        (r"sys\.release", "gpu.release"),
        (r"acquire\.add", "relaxed.add"),
        (r"sys\.acquire", "gpu.acquire"),
    ],
)
def test_triton_push_all_gather_with_a_weaker_signal_is_a_race(old, new):
    result = run_ranks(90, 2, 4, 1, "--replace", old, new)
    assert result.returncode != 0
    assert "data race" in result.stderr, result.stdout + result.stderr


if __name__ == "__main__":
    from support import triton_on_ptx

    triton_on_ptx.install(int(sys.argv[1]), races=1, undefined=1, equal_stores=1)
    run_smoke_calls()
    run_forms(int(sys.argv[2]), int(sys.argv[3]))
