"""csrc/cpu/masked_sample.cpp as a library of its own: with any number of threads, and which work they share."""

from __future__ import annotations

import functools
import re

import pytest
import torch
from masked_sample_builds import ROOT, CpuKernel
from masked_sample_cases import Case, check, random_cases


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> CpuKernel:
    return CpuKernel(tmp_path_factory.mktemp("cpu"))


def free_case(n: int, vocab_size: int, **filters: float) -> Case:
    logits = torch.randn(n, vocab_size, generator=torch.Generator().manual_seed(n)) * 3
    top_k, top_p, min_p = (
        None if name not in filters else torch.full((n,), filters[name], dtype=dtype)
        for name, dtype in (("top_k", torch.int64), ("top_p", torch.float32), ("min_p", torch.float32))
    )
    return Case(logits, None, None, torch.full((n,), 0.8), top_k, top_p, min_p, torch.arange(n), torch.arange(n))


@pytest.mark.parametrize("num_threads", [2, 3, 7])
def test_any_number_of_threads_draws_the_same(kernel, num_threads):
    op = functools.partial(kernel.logprobs, num_threads=num_threads)
    for limits in ({"count": 300}, {"count": 12, "max_vocab": 150_000, "max_rows": 3}):
        for case in random_cases(num_threads, **limits):
            check(op, case)


@pytest.mark.parametrize(
    ("n", "vocab_size", "filters", "num_threads", "tasks"),
    [
        pytest.param(1, 150_000, {}, 4, 4, id="a row alone is shared"),
        pytest.param(1, 150_000, {"top_p": 0.9}, 4, 4, id="with filters too"),
        pytest.param(1, 5000, {}, 4, 0, id="but not if it is short"),
        pytest.param(2, 150_000, {}, 4, 4, id="long rows are shared by twice as many threads"),
        pytest.param(2, 150_000, {"min_p": 0.1}, 4, 4, id="min_p is nothing to be selected"),
        pytest.param(3, 150_000, {}, 4, 3, id="not by fewer"),
        pytest.param(2, 150_000, {"top_p": 0.9}, 8, 2, id="nor where one thread would do most of the work"),
        pytest.param(2, 150_000, {"top_k": 50}, 8, 2, id="of either filter"),
        pytest.param(2, 30_000, {}, 8, 2, id="nor if they are short"),
        pytest.param(9, 30_000, {}, 4, 9, id="many rows go round"),
    ],
)
def test_who_does_what(kernel, n, vocab_size, filters, num_threads, tasks):
    check(functools.partial(kernel.logprobs, num_threads=num_threads), free_case(n, vocab_size, **filters))
    assert kernel.first_tasks == tasks


def test_instructions_are_used_only_where_the_machine_has_them():
    """prfchw is a hint, which every processor takes."""
    folder = ROOT / "csrc" / "cpu"
    sources = "".join(path.read_text() for path in folder.iterdir())
    compiled_with = {name for names in re.findall(r'target\("(.*?)"\)', sources) for name in names.split(",")}
    asked_for = set(re.findall(r'__builtin_cpu_supports\("(\w+)"\)', (folder / "capability.cpp").read_text()))
    assert {"avx2", "avx512bw"} <= asked_for
    assert compiled_with - asked_for == {"prfchw", "prefer-vector-width=512"}
