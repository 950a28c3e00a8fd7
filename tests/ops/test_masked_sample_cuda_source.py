"""csrc/cuda/masked_sample.cu without a GPU: its results on CPU threads, and the instructions that nvcc makes of it."""

import ctypes
import functools
import re
import shutil
import subprocess
from pathlib import Path

import host_cuda
import masked_sample_builds as builds
import pytest
import torch
from locations import HOST_CUDA_PROGRAMS
from masked_sample_cases import check, random_cases

PROGRAM = HOST_CUDA_PROGRAMS / "masked_sample.cpp"
SOURCE = host_cuda.CSRC / "cuda" / "masked_sample.cu"
ARCHITECTURES = (80, 90, 100)
ARMS = ("none", "one", "few", "many", "many_split")
NEEDS_NVCC = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")


@functools.cache
def _library() -> ctypes.CDLL:
    path = host_cuda.build(
        "masked_sample_library", [PROGRAM], sanitize=None, shared=True, defines=["STRUCTOUT_COUNT_ARMS"]
    )
    library = ctypes.CDLL(str(path))
    library.masked_sample_rows_of_arm.restype = ctypes.c_uint
    return library


def _rows_of_arms() -> dict[str, int]:
    return {arm: _library().masked_sample_rows_of_arm(i) for i, arm in enumerate(ARMS)}


def _on_host(*arguments, device, logprobs=True):
    """masked_sample_logprobs by the CUDA source, compiled for the CPU."""

    def kernel(params):
        _library().masked_sample_on_host(ctypes.byref(params), *device)

    return builds.run(kernel, *arguments, logprobs=logprobs)


@pytest.mark.parametrize("device", [(80, 0), (80, 100), (90, 0), (90, 200)])
def test_long_rows(device):
    for case in random_cases(sum(device), 12, max_vocab=40_000, max_rows=2):
        check(functools.partial(_on_host, device=device), case)


@pytest.mark.parametrize("shared_kilobytes", [0, 200])  # rows are read again, rows are kept
@pytest.mark.parametrize(
    ("compute_capability", "max_vocab", "count", "arms"),
    [(80, 3000, 200, {"none", "one", "few"}), (80, 9000, 100, {"few", "many"}), (90, 9000, 150, {"few", "many_split"})],
)
def test_ids_and_logprobs_are_the_reference_s(compute_capability, max_vocab, count, arms, shared_kilobytes):
    before = _rows_of_arms()
    op = functools.partial(_on_host, device=(compute_capability, shared_kilobytes))
    for case in random_cases(compute_capability + shared_kilobytes, count, max_vocab=max_vocab):
        check(op, case)
        ids, untouched = op(*case.arguments(), logprobs=False)
        assert torch.equal(ids, op(*case.arguments())[0])
        assert untouched.isnan().all()
    went = {arm: rows - before[arm] for arm, rows in _rows_of_arms().items()}
    assert all(went[arm] >= 10 for arm in arms), went


def test_shared_memory_is_allowed_once_and_never_by_a_launch():
    """It holds for the process: a launch that set it would race with the launches and graphs of other threads."""
    times = _library().masked_sample_times_shared_memory_was_allowed
    assert times() == 12  # three formats, with and without filters, blocks and clusters
    for case in random_cases(5, 20, max_vocab=9000):
        check(functools.partial(_on_host, device=(90, 200)), case)
    assert times() == 12


@pytest.mark.parametrize(("sanitize", "count"), [(None, 1500), ("address", 250), ("thread", 60)])
def test_random_cases_under_sanitizers(sanitize, count):
    executable = host_cuda.build("masked_sample", [PROGRAM], sanitize=sanitize, shared=False)
    result = host_cuda.run(executable, count, 1)
    assert (result.returncode, result.stdout) == (0, f"{count} cases agree\n"), result.stderr


@pytest.fixture(scope="module")
def gpu_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Machine code for every architecture, and PTX for one."""
    output = tmp_path_factory.mktemp("gpu") / "masked_sample.fatbin"
    targets = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in ARCHITECTURES]
    command = ["nvcc", "-fatbin", "-O3", "-std=c++17", "-fmad=false", "--threads=0", *targets]
    command += ["-gencode=arch=compute_90,code=compute_90", str(SOURCE), "-o", str(output)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    return output


def _cuobjdump(option: str, path: Path) -> str:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return subprocess.run([tool, option, path], capture_output=True, text=True, check=True).stdout


@NEEDS_NVCC
def test_machine_code_spills_nothing(gpu_code):
    usage = _cuobjdump("--dump-resource-usage", gpu_code)
    for architecture in ARCHITECTURES:
        assert f"arch = sm_{architecture}" in usage
    stacks = re.findall(r"Function (\S*sample_by_\S*):\s+REG:\d+ STACK:(\d+)", usage)
    assert len(stacks) == len(ARCHITECTURES) * 12  # three formats, with and without filters, blocks and clusters
    assert {stack for _, stack in stacks} == {"0"}


@NEEDS_NVCC
def test_float_arithmetic_is_rounded_one_operation_at_a_time(gpu_code):
    """In PTX, not machine code: there a correct division is made of fused operations."""
    ptx = _cuobjdump("--dump-ptx", gpu_code)
    instructions = set(re.findall(r"^\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)[\s;]", ptx, re.MULTILINE))
    assert {"mul.rn.f32", "add.rn.f32", "rcp.rn.f32"} <= instructions
    assert instructions & {"ld.global.nc.v4.u32", "ld.global.nc.v4.b32"}
    assert "barrier.cluster.arrive" in " ".join(instructions)
    forbidden = re.compile(r"fma\.|\.ftz|\.approx|div\.full|mad\.\S*f32|(mul|add|sub)\.f32")
    assert not [name for name in instructions if forbidden.search(name)]
