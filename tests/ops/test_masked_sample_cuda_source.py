"""csrc/cuda/masked_sample.cu without a GPU: its results on CPU threads, and its machine
code."""

import ctypes
import functools
import re

import pytest
import torch

from support import host_cuda, masked_sample_builds, ptx
from support.gpu_code import NEEDS_NVCC, compiled_architectures, ptx_of_source, stack_bytes
from support.masked_sample_builds import cuda_library
from support.masked_sample_cases import check, random_cases

PATHS = ("none", "one", "few", "many", "many_split")


def _rows_per_path() -> dict[str, int]:
    return {path: cuda_library().masked_sample_rows_of_path(i) for i, path in enumerate(PATHS)}


def _on_host(*arguments, device, logprobs=True):
    """Compute masked_sample_logprobs with the CUDA source compiled for the CPU."""

    def kernel(params):
        cuda_library().masked_sample_on_host(ctypes.byref(params), *device)

    return masked_sample_builds.run(kernel, *arguments, logprobs=logprobs)


@pytest.mark.parametrize("device", [(80, 0), (80, 100), (90, 0), (90, 200)])
def test_cuda_source_on_random_long_rows_matches_reference(device, num_cases):
    for case in random_cases(sum(device), num_cases(2, long=12), max_vocab=40_000, max_rows=2):
        check(functools.partial(_on_host, device=device), case)


@ptx.NEEDS_NVCC
@pytest.mark.parametrize("device", [(80, 0), (80, 100), (90, 0), (90, 200)])
def test_compiled_kernels_on_random_cases_match_reference(device, num_cases):
    op = ptx.on_ptx(functools.partial(_on_host, device=device), cuda_library, "masked_sample")
    for case in random_cases(sum(device), num_cases(4, long=400), max_vocab=40_000, max_rows=2):
        check(op, case)


@pytest.mark.parametrize("shared_kilobytes", [0, 200])  # rows are read again, rows are kept
@pytest.mark.parametrize(
    ("compute_capability", "max_vocab", "count", "paths"),
    [(80, 3000, 200, {"none", "one", "few"}), (80, 9000, 100, {"few", "many"}), (90, 9000, 150, {"few", "many_split"})],
)
def test_cuda_source_on_random_cases_matches_reference(
    compute_capability, max_vocab, count, paths, shared_kilobytes, num_cases
):
    before = _rows_per_path()
    op = functools.partial(_on_host, device=(compute_capability, shared_kilobytes))
    count = num_cases(count // 2, long=count)
    for case in random_cases(compute_capability + shared_kilobytes, count, max_vocab=max_vocab):
        expected = check(op, case)
        ids, untouched = op(*case.arguments(), logprobs=False)
        assert torch.equal(ids, expected)
        assert untouched.isnan().all()
    num_rows = {path: rows - before[path] for path, rows in _rows_per_path().items()}
    assert all(num_rows[path] >= 10 for path in paths), num_rows


def test_cuda_source_sets_shared_memory_limit_once_and_never_in_a_launch():
    """The limit holds for the process: a launch that set it would race with other
    threads."""
    times = cuda_library().masked_sample_times_shared_memory_was_allowed
    assert times() == 18  # three formats; draws with and without filters, and logprobs; blocks and clusters
    for case in random_cases(5, 20, max_vocab=9000):
        check(functools.partial(_on_host, device=(90, 200)), case)
    assert times() == 18


@pytest.mark.parametrize("sanitize", [None, "address", "thread"])
def test_cuda_source_under_sanitizer_matches_reference(sanitize, num_cases):
    count = {
        None: num_cases(40, long=200),
        "address": num_cases(6, long=250),
        "thread": num_cases(3, long=60),
    }[sanitize]
    result = host_cuda.run(ptx.program("masked_sample", sanitize), count, 1)
    assert (result.returncode, result.stdout) == (0, f"{count} cases agree\n"), result.stderr


@NEEDS_NVCC
def test_cuda_machine_code_spills_no_registers():
    stacks = stack_bytes("sample_by_")
    # Three formats, with and without filters, blocks and clusters.
    assert len(stacks) == len(compiled_architectures()) * 12
    assert set(stacks) == {0}


@NEEDS_NVCC
def test_cuda_machine_code_rounds_every_float_operation():
    """Reads PTX: in machine code a correctly rounded division consists of fused
    operations."""
    ptx = ptx_of_source("sample_by_")
    instructions = set(re.findall(r"^\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)[\s;]", ptx, re.MULTILINE))
    assert {"mul.rn.f32", "add.rn.f32", "rcp.rn.f32"} <= instructions
    assert instructions & {"ld.global.nc.v4.u32", "ld.global.nc.v4.b32"}
    assert "barrier.cluster.arrive" in " ".join(instructions)
    forbidden = re.compile(r"fma\.|\.ftz|\.approx|div\.full|mad\.\S*f32|(mul|add|sub)\.f32")
    assert not [name for name in instructions if forbidden.search(name)]
