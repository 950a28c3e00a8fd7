"""csrc/cpu/masked_sample.cpp as a library: results and division of work for any number
of threads."""

from __future__ import annotations

import functools
import random
import re

import pytest
import torch

from support.builds import CSRC
from support.masked_sample_builds import CpuKernel
from support.masked_sample_cases import Case, check, check_part, random_cases, random_part


@pytest.fixture(scope="module")
def kernel() -> CpuKernel:
    return CpuKernel()


def free_case(n: int, vocab_size: int, **filters: float) -> Case:
    logits = torch.randn(n, vocab_size, generator=torch.Generator().manual_seed(n)) * 3
    top_k, top_p, min_p = (
        None if name not in filters else torch.full((n,), filters[name], dtype=dtype)
        for name, dtype in (("top_k", torch.int64), ("top_p", torch.float32), ("min_p", torch.float32))
    )
    return Case(logits, None, None, torch.full((n,), 0.8), top_k, top_p, min_p, torch.arange(n), torch.arange(n))


@pytest.mark.parametrize("num_threads", [2, 3, 7])
def test_cpu_kernel_with_any_num_threads_matches_reference(kernel, num_threads, num_cases):
    op = functools.partial(kernel.logprobs, num_threads=num_threads)
    long_rows = {"count": num_cases(3, long=12), "max_vocab": 150_000, "max_rows": 3}
    for limits in ({"count": num_cases(30, long=300)}, long_rows):
        for case in random_cases(num_threads, **limits):
            check(op, case)


def test_part_of_a_row_is_drawn_from_as_if_there_were_no_other_tokens(kernel, num_cases):
    rng = random.Random(0)
    for case in random_cases(4, count=num_cases(60, long=600)):
        begin, end = random_part(rng, case.logits.shape[1])
        check_part(kernel.logprobs, case, begin, end)


@pytest.mark.parametrize(
    ("n", "vocab_size", "filters", "num_threads", "tasks"),
    [
        pytest.param(1, 150_000, {}, 4, 4, id="one long row is shared"),
        pytest.param(1, 150_000, {"top_p": 0.9}, 4, 4, id="one long row with filters is shared"),
        pytest.param(1, 5000, {}, 4, 0, id="one short row is not shared"),
        pytest.param(2, 150_000, {}, 4, 4, id="twice as many threads as long rows share them"),
        pytest.param(2, 150_000, {"min_p": 0.1}, 4, 4, id="min_p needs no selection"),
        pytest.param(3, 150_000, {}, 4, 3, id="fewer than twice as many threads do not"),
        pytest.param(2, 150_000, {"top_p": 0.9}, 8, 2, id="top_p leaves most work to one thread"),
        pytest.param(2, 150_000, {"top_k": 50}, 8, 2, id="top_k leaves most work to one thread"),
        pytest.param(2, 30_000, {}, 8, 2, id="short rows are not shared"),
        pytest.param(9, 30_000, {}, 4, 9, id="many rows are dealt out"),
    ],
)
def test_cpu_kernel_cuts_work_into_expected_number_of_tasks(kernel, n, vocab_size, filters, num_threads, tasks):
    check(functools.partial(kernel.logprobs, num_threads=num_threads), free_case(n, vocab_size, **filters))
    assert kernel.first_tasks == tasks


def test_cpu_kernels_use_only_instructions_that_are_checked_for():
    """prfchw is a hint: every processor accepts it."""
    folder = CSRC / "cpu"
    sources = "".join(path.read_text() for path in folder.iterdir())
    compiled_with = {name for names in re.findall(r'target\("(.*?)"\)', sources) for name in names.split(",")}
    checked_for = set(re.findall(r'__builtin_cpu_supports\("(\w+)"\)', (folder / "capability.cpp").read_text()))
    assert {"avx2", "avx512bw"} <= checked_for
    assert compiled_with - checked_for == {"prfchw", "prefer-vector-width=512"}
