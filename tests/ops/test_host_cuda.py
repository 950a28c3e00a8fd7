"""CUDA kernels on the CPU under sanitizers: on random cases, and the harness, which
reports planted mistakes."""

from __future__ import annotations

import pytest

from support import host_cuda, ptx
from support.locations import CUDA_PROGRAMS as PROGRAMS


def run_program(name, sanitize, *plant):
    executable = host_cuda.build(name, [PROGRAMS / f"{name}.cu"], sanitize=sanitize, shared=False)
    return host_cuda.run(executable, *plant)


@pytest.mark.parametrize("sanitize", [None, "address", "thread"])
@pytest.mark.parametrize("name", ["block_sum", "builtins"])
def test_host_cuda_runs_correct_program(name, sanitize):
    result = run_program(name, sanitize)
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr


def test_host_cuda_threads_keep_their_asan_fake_stacks(monkeypatch):
    monkeypatch.setitem(host_cuda.ENVIRONMENT, "ASAN_OPTIONS", "detect_stack_use_after_return=1")
    result = run_program("builtins", "address")
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr


@pytest.mark.parametrize(
    ("plant", "sanitize", "report"),
    [
        ("MISSING_SYNC", "thread", "ThreadSanitizer: data race"),
        ("MISSING_FENCE", "thread", "ThreadSanitizer: data race"),
        ("CROSS_BLOCK_RACE", "thread", "ThreadSanitizer: data race"),
        ("OUT_OF_BOUNDS", "address", "AddressSanitizer: heap-buffer-overflow"),
        ("DYNAMIC_SHARED_OVERRUN", "address", "AddressSanitizer: heap-buffer-overflow"),
        ("LOCAL_OVERRUN", "address", "AddressSanitizer: stack-buffer-overflow"),
        ("STATIC_SHARED_OVERRUN", "address", "index 8 out of bounds for type 'unsigned int [8]'"),
        ("MISALIGNED", "address", "which requires 16 byte alignment"),
    ],
)
def test_host_cuda_with_planted_mistake_gets_sanitizer_report(plant, sanitize, report):
    result = run_program("block_sum", sanitize, plant)
    assert result.returncode != 0
    assert report in result.stderr
    # The report names the planted line, not the harness.
    assert "in block_sum(Params)" in result.stderr or "#0 block_sum(Params)" in result.stderr


def test_host_cuda_with_leak_gets_sanitizer_report():
    result = run_program("block_sum", "address", "LEAK")
    assert result.returncode != 0
    assert "LeakSanitizer: detected memory leaks" in result.stderr


def test_host_cuda_race_report_names_the_cuda_threads():
    result = run_program("block_sum", "thread", "CROSS_BLOCK_RACE")
    assert "'thread (100, 0, 0) of block (0, 0, 0)'" in result.stderr
    assert "'thread (100, 0, 0) of block (1, 0, 0)'" in result.stderr


def test_host_cuda_shuffle_does_not_order_memory():
    result = run_program("builtins", "thread", "SHUFFLE_FOR_A_BARRIER")
    assert "ThreadSanitizer: data race" in result.stderr
    assert "#0 undefined()" in result.stderr


@pytest.mark.parametrize(
    ("name", "plant", "message"),
    [
        (
            "block_sum",
            "DIVERGENT_BARRIER",
            "deadlock: thread 40 waits in __syncwarp(0xffffffff) for thread 32, which waits in __syncthreads()",
        ),
        (
            "builtins",
            "DIFFERENT_CALLS",
            "deadlock: thread 0 waits in __any_sync(0xffffffff) for thread 16, which waits in __all_sync(0xffffffff)",
        ),
        (
            "builtins",
            "DIFFERENT_MASKS",
            "deadlock: thread 0 waits in __syncwarp(0x0001ffff) for thread 16, which waits in __syncwarp(0xffffffff)",
        ),
        (
            "builtins",
            "SHUFFLE_FROM_EXITED_LANE",
            "thread 0 reads lane 5 in __shfl_sync(0xffffffff), where that lane takes no part",
        ),
        (
            "builtins",
            "SHUFFLE_FROM_OUTSIDE_MASK",
            "thread 0 reads lane 4 in __shfl_sync(0x0000000f), where that lane takes no part",
        ),
        ("builtins", "LANE_OUTSIDE_ITS_MASK", "thread 31 is not in the mask of its __ballot_sync(0x7fffffff)"),
    ],
)
def test_host_cuda_with_undefined_use_aborts_with_message(name, plant, message):
    result = run_program(name, None, plant)
    assert result.returncode < 0
    assert result.stderr == f"host_simt: block (0, 0, 0): {message}\n"


def test_host_cuda_store_past_multicast_address_aborts():
    result = run_program("builtins", None, "NO_MULTICAST_ADDRESS")
    assert result.returncode < 0
    assert "is no multicast address" in result.stderr


def test_host_cuda_build_failure_shows_compiler_output(tmp_path):
    source = tmp_path / "wrong.cu"
    source.write_text('#include "simt/host_simt.h"\n__global__ void kernel() { no_such_function(); }\n')
    with pytest.raises(RuntimeError, match="no_such_function"):
        host_cuda.build("wrong", [source], sanitize=None, shared=True)


def test_host_cuda_build_without_sanitizer_runtime_names_the_package(tmp_path, monkeypatch):
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho '/usr/bin/ld: cannot find libtsan_preinit.o: No such file' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(RuntimeError, match=r"has no runtime for sanitize='thread'; install it"):
        host_cuda.build("builtins", [PROGRAMS / "builtins.cu"], sanitize="thread", shared=False)


def test_host_cuda_build_is_reused_until_an_input_changes(tmp_path):
    source = tmp_path / "answer.cu"

    def build(answer, *defines):
        source.write_text(f'extern "C" int answer() {{ return {answer}; }}\n')
        return host_cuda.build("answer", [source], sanitize=None, shared=True, defines=defines)

    first = build(1)
    built_at = first.stat().st_mtime_ns
    assert build(1) == first
    assert first.stat().st_mtime_ns == built_at
    assert len({first, build(2), build(1, "SOME=1")}) == 3


# Races are found by tests/ops/test_ptx_cuda.py too, in seconds instead of a minute.
@pytest.mark.parametrize("sanitizer", ["address", pytest.param("thread", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("apply_bitmask", {"address": (150, 1000), "thread": (15, 60)}),
        ("fsm_states", {"address": (10, 400), "thread": (8, 100)}),
        ("listed_logits", {"address": (20, 400), "thread": (3, 40)}),
    ],
)
def test_cuda_source_under_sanitizer_matches_loop(name, counts, sanitizer, num_cases):
    default, long = counts[sanitizer]
    count = num_cases(default, long=long, full=3 * long)
    run = host_cuda.run(ptx.program(name, sanitizer), count, 1)
    assert (run.returncode, run.stdout) == (0, f"{count} cases agree\n"), run.stderr
