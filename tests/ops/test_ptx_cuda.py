"""Every CUDA kernel as nvcc compiles it for release, executed by the machine of
tests/native/ptx_vm: results of random cases, and how much of each kernel they
execute."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from support import host_cuda, ptx, ptx_coverage
from support.locations import ROOT

pytestmark = ptx.NEEDS_NVCC

# The number of random cases of each program: by default, and under --long. Under --full
# there are 20 times as many.
COUNTS = {
    "apply_bitmask": (100, 4000),
    "fsm_states": (20, 400),
    "listed_logits": (60, 3000),
    "masked_sample": (60, 800),
    "verify_drafts": (40, 400),
}
CHECKS = {"races": 1, "undefined": 1}
MIN_COVERAGE = 0.95

# What no call can reach, by the beginning of the source line as ptx_coverage.unexecuted
# names it. Those of its instructions that are not executed do not count.
NO_MISSING_PLACE = "of a row in which more than 3,072 tokens tie, none of the 64 likeliest is missing"
UNROLLED = "the loop has a number of rounds for each size of a block; NVVM has code for any"
UNREACHABLE = {
    "token_logprobs.h: for (int64_t place = first_place; place < num_top;": NO_MISSING_PLACE,
    "token_logprobs.h: top_ids[row * num_top + place] = token;": NO_MISSING_PLACE,
    "token_logprobs.h: top_logits[row * num_top + place] = logit;": NO_MISSING_PLACE,
    "select.cuh: for (unsigned bin = 4 * threadIdx.x;": UNROLLED,
    "select.cuh: *reinterpret_cast<uint4*>(low + bin) = *reinterpret_cast<uint4*>(high + bin) = zeros;": UNROLLED,
}


def run(name: str, architecture: int, *arguments: object, report: Path, **options: int) -> Counter[tuple[str, int]]:
    """Run a program, and return how often each line of each kernel was executed."""
    configuration = ptx.configuration(name, architecture, **options)
    result = host_cuda.run(ptx.program(name), *arguments, ptx=configuration, report=report)
    assert result.returncode == 0, result.stdout + result.stderr
    executions: Counter[tuple[str, int]] = Counter()
    for kernel, of_kernel in ptx.read_report(report).items():
        executions.update({(kernel, line): count for line, count in of_kernel.executions.items()})
    return executions


def check_coverage(name: str, architecture: int, executions: Counter[tuple[str, int]]) -> None:
    """Fail for a kernel of which too little runs, with the source lines that do not."""
    files = [ptx.ptx_of(source, architecture) for source in ptx.PROGRAMS[name]]
    for kernel in sorted({kernel for kernel, _ in executions}):
        of_kernel = {key: count for key, count in executions.items() if key[0] == kernel}
        lines = ptx_coverage.unexecuted(of_kernel, files)
        missed = Counter({line: n for line, n in lines.items() if not line.startswith(tuple(UNREACHABLE))})
        if missed.total() > (1 - MIN_COVERAGE) * len(of_kernel):
            pytest.fail(
                f"{missed.total()} of {len(of_kernel)} instructions of {kernel} do not run: {missed.most_common(20)}"
            )


@pytest.mark.parametrize(
    # nvcc takes half a minute for each; other tests have compiled for 90.
    "architecture",
    [pytest.param(each, marks=[pytest.mark.long] * (each != 90)) for each in ptx.ARCHITECTURES],
)
@pytest.mark.parametrize("name", COUNTS)
def test_compiled_kernels_match_the_loop_and_all_of_their_code_runs(
    name: str, architecture: int, num_cases: Callable[..., int], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """In the order that compilers intend, and in random orders with every check."""
    default, long = COUNTS[name]
    count = num_cases(default, long=long, full=20 * long)
    shapes = [num_cases(0, long=30)] if name == "masked_sample" else []
    executions = run(name, architecture, count, 3, *shapes, report=tmp_path / "fixed")
    executions += run(name, architecture, count // 3, 4, report=tmp_path / "random", seed=architecture, **CHECKS)
    if pytestconfig.getoption("--long"):
        check_coverage(name, architecture, executions)


@pytest.mark.parametrize("architecture", [80, 90, pytest.param(100, marks=pytest.mark.long)])  # 100 has the code of 90
def test_compiled_push_kernels_deliver_bytes_and_all_of_their_code_runs(
    architecture: int, num_cases: Callable[..., int], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Ranks are threads of one process. With checks, data races are found between their
    devices, too."""
    epochs = num_cases(20, long=60)
    executions = run("push", architecture, "mixed", epochs, 1, 1, 2, 3, 8, report=tmp_path / "fixed")
    for seed in range(num_cases(1, long=6)):
        options = {"seed": seed + 1} | CHECKS
        executions += run("push", architecture, "mixed", epochs, seed, 2, 3, 4, report=tmp_path / "mixed", **options)
        executions += run("push", architecture, "gather", epochs, seed, 2, 5, report=tmp_path / "gather", **options)
    failures = [[3], *([3, element_bytes, calls] for element_bytes in (2, 4) for calls in (0, 1))]
    for failure, arguments in itertools.product(("absent", "mismatch"), failures[: num_cases(2, long=len(failures))]):
        executions += run("push", architecture, failure, *arguments, report=tmp_path / "failure", **CHECKS)
    if pytestconfig.getoption("--long"):
        check_coverage("push", architecture, executions)


def test_nvcc_gets_the_flags_of_the_release() -> None:
    setup = (ROOT / "setup.py").read_text()
    assert all(f'"{flag}"' in setup for flag in ptx.RELEASE_FLAGS), ptx.RELEASE_FLAGS


def test_every_cuda_source_is_executed() -> None:
    sources = {source for sources in ptx.PROGRAMS.values() for source in sources}
    assert {path.stem for path in (ROOT / "csrc" / "cuda").glob("*.cu")} <= sources
