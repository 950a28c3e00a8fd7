"""Every CUDA kernel as nvcc compiles it for release, executed by the machine of
csrc/testing/ptx_vm: results of random cases, and how much of each kernel they
execute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import host_cuda
import ptx
import ptx_coverage
import pytest
from locations import ROOT

pytestmark = ptx.NEEDS_NVCC

# The number of random cases of each program: by default, and under --long.
COUNTS = {
    "apply_bitmask": (100, 4000),
    "fsm_states": (20, 400),
    "listed_logits": (60, 3000),
    "masked_sample": (60, 2500),
    "verify_drafts": (40, 400),
}
CHECKS = {"races": 1, "undefined": 1}


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
    """Fail for a kernel of which too little runs, and for a source line whose
    instructions do not all run, unless ``UNEXECUTED`` tells why."""
    executed, all_lines = Counter[str](), Counter[str]()
    for (kernel, _), count in executions.items():
        executed[kernel] += count > 0
        all_lines[kernel] += 1
    shares = {kernel: executed[kernel] / all_lines[kernel] for kernel in all_lines}
    assert min(shares.values()) >= ptx_coverage.MIN_SHARE, shares
    files = [ptx.ptx_of(source, architecture) for source in ptx.PROGRAMS[name]]
    unlisted = ptx_coverage.unexecuted(executions, files).keys() - ptx_coverage.UNEXECUTED.keys()
    assert not unlisted


@pytest.mark.parametrize("architecture", ptx.ARCHITECTURES)
@pytest.mark.parametrize("name", COUNTS)
def test_compiled_kernels_match_the_loop_and_all_of_their_code_runs(
    name: str, architecture: int, num_cases: Callable[..., int], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """In the order that compilers intend, and in random orders with every check."""
    default, long = COUNTS[name]
    count = num_cases(default, long=long)
    shapes = [num_cases(0, long=4)] if name == "masked_sample" else []
    executions = run(name, architecture, count, 3, *shapes, report=tmp_path / "fixed")
    executions += run(name, architecture, count // 3, 4, report=tmp_path / "random", seed=architecture, **CHECKS)
    if pytestconfig.getoption("--long"):
        check_coverage(name, architecture, executions)


@pytest.mark.parametrize("architecture", ptx.ARCHITECTURES)
def test_compiled_push_kernels_deliver_bytes_and_all_of_their_code_runs(
    architecture: int, num_cases: Callable[..., int], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Ranks are threads of one process. With checks, data races are found between their
    devices, too."""
    epochs = num_cases(20, long=150)
    executions = run("push", architecture, "mixed", epochs, 1, 1, 2, 3, 8, report=tmp_path / "fixed")
    for seed in range(num_cases(1, long=6)):
        options = {"seed": seed + 1} | CHECKS
        executions += run("push", architecture, "mixed", epochs, seed, 2, 3, 4, report=tmp_path / "mixed", **options)
        executions += run("push", architecture, "gather", epochs, seed, 2, 5, report=tmp_path / "gather", **options)
    for failure in (["absent", 3], ["mismatch", 3], ["absent", 3, 2], ["mismatch", 3, 4]):
        executions += run("push", architecture, *failure, report=tmp_path / "failure", **CHECKS)
    if pytestconfig.getoption("--long"):
        check_coverage("push", architecture, executions)


def test_nvcc_gets_the_flags_of_the_release() -> None:
    setup = (ROOT / "setup.py").read_text()
    assert all(f'"{flag}"' in setup for flag in ptx.RELEASE_FLAGS), ptx.RELEASE_FLAGS


def test_lines_of_the_list_of_unexecuted_code_exist() -> None:
    """A line that was changed or removed must leave the list."""
    for source in ptx_coverage.UNEXECUTED:
        name, _, text = source.partition(": ")
        files = [path for path in (ROOT / "csrc").glob("c*/*") if path.name == name]
        assert any(text in (line.strip() for line in file.read_text().split("\n")) for file in files), source


def test_every_cuda_source_is_executed() -> None:
    sources = {source for sources in ptx.PROGRAMS.values() for source in sources}
    assert {path.stem for path in (ROOT / "csrc" / "cuda").glob("*.cu")} <= sources
