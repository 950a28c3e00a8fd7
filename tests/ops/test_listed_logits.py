"""apply_penalties and apply_logit_bias on every backend equal their reference bit for
bit."""

from __future__ import annotations

import ctypes
import functools
import itertools
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

import structout
from structout.ops import reference
from support import ptx
from support.apply_bitmask_cases import DTYPES, assert_same_bits
from support.devices import DEVICES, on_device
from support.op_backends import BACKENDS, op_of
from support.refusals import REFUSED
from support.strided import Strided, StridedIntegers, strided, strided_integers

OPS = ("apply_penalties", "apply_logit_bias")


class Listed(ctypes.Structure):
    """ListedLogits of csrc/common/listed_logits.h."""

    _fields_ = [("logits", ctypes.c_void_p), ("num_rows", ctypes.c_int64), ("vocab_size", ctypes.c_int64),
                ("row_stride", ctypes.c_int64), ("format", ctypes.c_int32), ("indptr", StridedIntegers),
                ("token_ids", StridedIntegers), ("num_entries", ctypes.c_int64)]  # fmt: skip


class Penalties(ctypes.Structure):
    _fields_ = [("listed", Listed), ("output_counts", StridedIntegers), ("repetition", Strided), ("frequency", Strided),
                ("presence", Strided)]  # fmt: skip


class Bias(ctypes.Structure):
    _fields_ = [("listed", Listed), ("bias", Strided)]


@functools.cache
def cuda_library() -> ctypes.CDLL:
    return ctypes.CDLL(str(ptx.program("listed_logits")))


def run_cuda_on_cpu(
    name: str, logits: torch.Tensor, indptr: torch.Tensor, token_ids: torch.Tensor, *others: torch.Tensor
) -> None:
    getattr(torch.ops.structout, f"_check_{name}")(logits, indptr, token_ids, *others)
    matrix = logits if logits.dim() == 2 else logits.unsqueeze(0)
    listed = Listed(
        matrix.data_ptr(), *matrix.shape, matrix.stride(0), DTYPES.index(matrix.dtype),
        strided_integers(indptr), strided_integers(token_ids), len(token_ids),
    )  # fmt: skip
    if name == "apply_penalties":
        params: ctypes.Structure = Penalties(listed, strided_integers(others[0]), *map(strided, others[1:]))
    else:
        params = Bias(listed, strided(others[0]))
    getattr(cuda_library(), f"{name}_on_host")(ctypes.byref(params))


class Case(NamedTuple):
    """The logits are a view into a wider buffer, so that stores outside are seen."""

    buffer: torch.Tensor
    logits: torch.Tensor
    others: tuple[torch.Tensor, ...]


def make_case(rng: random.Random, name: str, dtype: torch.dtype, device: str, *, max_listed: int = 40) -> Case:
    """Make lists with and without repeated tokens, ids out of range, ends out of range,
    ties, infinities, NaN, and values that overflow or lose bits in the logits'
    dtype."""
    num_rows, vocab_size = rng.randint(1, 4), rng.randint(1, 300)
    gap, offset = rng.choice([0, 0, 3]), rng.choice([0, 1])
    generator = torch.Generator().manual_seed(rng.getrandbits(60))
    scale = rng.choice([1.0, 8.0, 3e4, 1e-6])
    buffer = (torch.randn(offset + num_rows * (vocab_size + gap), generator=generator) * scale).to(dtype)
    buffer[torch.rand(len(buffer), generator=generator) < 0.05] = rng.choice([float("inf"), -float("inf"), 0.0, -0.0])
    lists = []
    for _ in range(num_rows):
        length = rng.choice([0, 1, rng.randint(0, max_listed)])
        if rng.random() < 0.6:
            lists.append(rng.sample(range(vocab_size), min(length, vocab_size)))
        else:
            lists.append([rng.randint(-2, vocab_size + 1) for _ in range(length)])
    ends = [0, *itertools.accumulate(map(len, lists))]
    if rng.random() < 0.1:
        ends[rng.randrange(len(ends))] = rng.choice([-7, 10**6, 0])
    integers = rng.choice([torch.int32, torch.int64])
    indptr = torch.tensor(ends, dtype=integers)
    token_ids = torch.tensor(list(itertools.chain(*lists)), dtype=rng.choice([torch.int32, torch.int64]))
    count = len(token_ids)

    def reals(size: int, values: list[float]) -> torch.Tensor:
        chosen = torch.tensor([rng.choice(values) for _ in range(size)])
        return chosen * (1 + torch.rand(size, generator=generator) * 0.1)

    if name == "apply_penalties":
        counts = torch.tensor([rng.choice([0, 0, 1, 2, 17]) for _ in range(count)], dtype=integers)
        repetition = reals(num_rows, [1.0, 1.2, 0.7, 2.0, 0.0, float("inf")])
        others = (counts, repetition, reals(num_rows, [0.0, 0.3, -1.5]), reals(num_rows, [0.0, 0.9, -2.0]))
        if rng.random() < 0.3:
            others = (counts, repetition[:1].expand(num_rows), *others[2:])
    else:
        others = (reals(count, [0.0, 1.5, -100.0, -float("inf"), 7e4]),)
    buffer = buffer.to(device)
    logits = buffer[offset:].as_strided((num_rows, vocab_size), (vocab_size + gap, 1), offset)
    return Case(buffer, logits, tuple(on_device(tensor, device) for tensor in (indptr, token_ids, *others)))


def check(op: Callable[..., None], name: str, case: Case) -> None:
    expected = case.buffer.clone()
    view = expected.as_strided(case.logits.shape, case.logits.stride(), case.logits.storage_offset())
    getattr(reference, name)(view, *case.others)
    op(case.logits, *case.others)
    # A NaN may have any bits.
    is_nan = expected.isnan()
    assert torch.equal(is_nan, case.buffer.isnan())
    assert_same_bits(case.buffer.masked_fill(is_nan, 0), expected.masked_fill(is_nan, 0), str(case.others))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy warns of infinities
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_op_on_random_lists_matches_reference(backend, name, num_cases):
    rng = random.Random(5)
    op = op_of(backend[0], name, "listed_logits", run_cuda_on_cpu, cuda_library)
    for i in range(num_cases(60, long=800)):
        check(op, name, make_case(rng, name, DTYPES[i % 3], backend[1]))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_op_with_lists_longer_than_a_chunk_matches_reference(backend, name):
    rng = random.Random(6)
    op = op_of(backend[0], name, "listed_logits", run_cuda_on_cpu, cuda_library)
    for dtype in DTYPES:
        check(op, name, make_case(rng, name, dtype, backend[1], max_listed=1500))


def test_reference_of_penalties_matches_dense_formula():
    """The formula of vLLM's ``apply_penalties`` over [N, V] in float32."""
    generator = torch.Generator().manual_seed(1)
    num_rows, vocab_size = 5, 64
    logits = torch.randn(num_rows, vocab_size, generator=generator) * 5
    prompts = torch.randint(vocab_size, (num_rows, 9), generator=generator)
    outputs = torch.randint(vocab_size, (num_rows, 12), generator=generator)
    repetition = torch.rand(num_rows, 1, generator=generator) + 0.6
    frequency, presence = torch.randn(2, num_rows, 1, generator=generator)
    counts = torch.zeros(num_rows, vocab_size, dtype=torch.int64).scatter_add_(1, outputs, torch.ones_like(outputs))
    is_listed = (counts > 0).scatter_(1, prompts, True)

    penalty = torch.where(is_listed, repetition, 1.0)
    expected = torch.where(logits > 0, logits / penalty, logits * penalty)
    expected -= frequency * counts
    expected -= presence * (counts > 0)

    row, token = is_listed.nonzero(as_tuple=True)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), is_listed.sum(1).cumsum(0)])
    structout.apply_penalties(
        logits, indptr, token, counts[row, token],
        repetition=repetition[:, 0], frequency=frequency[:, 0], presence=presence[:, 0],
    )  # fmt: skip
    assert_same_bits(logits, expected)


def test_penalties_as_numbers_equal_tensors():
    rng = random.Random(8)
    case = make_case(rng, "apply_penalties", torch.float32, "cpu")
    indptr, token_ids, counts, *_ = case.others
    num_rows = len(case.logits)
    expected = case.logits.clone()
    values = {"repetition": 1.3, "frequency": -0.5, "presence": 0.25}
    tensors = {name: torch.full((num_rows,), value) for name, value in values.items()}
    structout.apply_penalties(expected, indptr, token_ids, counts, **tensors)
    structout.apply_penalties(case.logits, indptr, token_ids, counts, **values)
    assert torch.equal(case.logits, expected)


def test_logit_bias_of_minus_infinity_bans_a_token():
    logits = torch.tensor([[1.0, 5.0, 2.0]])
    structout.apply_logit_bias(logits, torch.tensor([0, 1]), torch.tensor([1]), torch.tensor([-float("inf")]))
    assert logits.argmax() == 2


def test_lists_shifted_by_a_shard_touch_its_own_columns_only():
    rng = random.Random(9)
    whole = make_case(rng, "apply_logit_bias", torch.float32, "cpu", max_listed=200)
    indptr, token_ids, bias = whole.others
    cut = whole.logits.shape[1] // 3
    shards = whole.logits[:, :cut].clone(), whole.logits[:, cut:].clone()
    structout.apply_logit_bias(whole.logits, indptr, token_ids, bias)
    for shard, begin in zip(shards, (0, cut), strict=True):
        structout.apply_logit_bias(shard, indptr, token_ids - begin, bias)
    assert torch.equal(torch.cat(shards, 1), whole.logits)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("device", DEVICES)
def test_op_passes_opcheck(name, device):
    rng = random.Random(3)
    for dtype in DTYPES:
        case = make_case(rng, name, dtype, device)
        torch.library.opcheck(getattr(torch.ops.structout, name).default, (case.logits.clone(), *case.others))


@pytest.mark.parametrize("device", DEVICES)
def test_ops_compile_to_one_graph(device):
    def step(logits, indptr, token_ids, counts, bias):
        scaled = logits * 2
        structout.apply_penalties(scaled, indptr, token_ids, counts, repetition=1.1, presence=0.5)
        structout.apply_logit_bias(scaled, indptr, token_ids, bias)
        return scaled

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for num_rows in (2, 5):
        inputs = (
            torch.randn(num_rows, 40, device=device),
            torch.arange(num_rows + 1, device=device),
            torch.arange(num_rows, device=device) * 3,
            torch.ones(num_rows, dtype=torch.int32, device=device),
            torch.full((num_rows,), -2.0, device=device),
        )
        assert torch.equal(compiled(*inputs), step(*inputs))


@pytest.mark.parametrize("device", DEVICES)
def test_ops_without_rows_or_entries_change_nothing(device):
    for num_rows, count in ((0, 0), (3, 0)):
        logits = torch.ones(num_rows, 8, device=device)
        indptr = torch.zeros(num_rows + 1, dtype=torch.int64, device=device)
        nothing = torch.zeros(count, dtype=torch.int64, device=device)
        structout.apply_penalties(logits, indptr, nothing, nothing, repetition=2.0)
        structout.apply_logit_bias(logits, indptr, nothing, nothing.float())
        assert bool((logits == 1).all())


ONE = torch.tensor([0])
REFUSALS = [
    (
        lambda: (torch.ones(2, 4, dtype=torch.int32), torch.tensor([0, 1, 1]), ONE, torch.ones(1)),
        "logits must be float",
    ),
    (lambda: (torch.ones(1, 4).expand(2, 4), torch.tensor([0, 1, 1]), ONE, torch.ones(1)), "rows overlap"),
    (lambda: (torch.ones(2, 4), torch.tensor([0, 1]), ONE, torch.ones(1)), r"indptr must have one entry .* \[3\]"),
    (lambda: (torch.ones(2, 4), torch.tensor([0.0, 1, 1]), ONE, torch.ones(1)), "indptr must be int32 or int64"),
    (lambda: (torch.ones(2, 4), torch.tensor([0, 1, 1]), ONE[None], torch.ones(1)), "token_ids must have 1 dimension"),
    (lambda: (torch.ones(2, 4), torch.tensor([0, 1, 1]), ONE.float(), torch.ones(1)), "token_ids must be int32"),
    (lambda: (torch.ones(2, 4), torch.tensor([0, 1, 1]), ONE, torch.ones(2)), r"bias must have one entry .* \[1\]"),
    (lambda: (torch.ones(2, 4), torch.tensor([0, 1, 1]), ONE, ONE), "bias must be float32"),
    (lambda: (torch.ones(2, 8)[:, ::2], torch.tensor([0, 1, 1]), ONE, torch.ones(1)), "must be contiguous"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSALS, ids=[message for _, message in REFUSALS])
def test_logit_bias_refuses_bad_arguments_and_writes_nothing(arguments, message):
    logits, *others = arguments()
    before = logits.clone()
    with pytest.raises(REFUSED, match=f"^apply_logit_bias: .*{message}"):
        structout.apply_logit_bias(logits, *others)
    assert torch.equal(logits, before)


def test_penalties_refuse_bad_arguments():
    good = (torch.ones(2, 4), torch.tensor([0, 1, 1]), ONE, ONE)
    for bad, message in [
        ({"repetition": "x"}, "repetition must be a number"),
        ({"frequency": float("nan")}, "frequency must be a finite number"),
        ({"presence": 1e39}, "presence must fit float32"),
        ({"repetition": torch.ones(3)}, r"repetition must have one entry per logits row, shape \[2\]"),
        ({"repetition": torch.ones(2, dtype=torch.float64)}, "repetition must be float32"),
    ]:
        with pytest.raises((REFUSED, TypeError) if isinstance(REFUSED, type) else (*REFUSED, TypeError), match=message):
            structout.apply_penalties(*good, **bad)
    with pytest.raises(REFUSED, match="output_counts must have one entry per listed token"):
        structout.apply_penalties(*good[:3], torch.tensor([1, 2]))
    with pytest.raises(RuntimeError, match="apply_penalties has no gradient"):
        structout.apply_penalties(torch.ones(2, 4, requires_grad=True), *good[1:])
    assert torch.equal(good[0], torch.ones(2, 4))


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPS)
def test_op_in_a_cuda_graph_reads_the_lists_of_each_replay(name):
    rng = random.Random(4)
    case = make_case(rng, name, torch.float32, "cuda", max_listed=200)
    op = getattr(torch.ops.structout, name)
    before = case.logits.clone()
    op(case.logits.clone(), *case.others)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        op(case.logits, *case.others)
    for shift in range(3):
        case.logits.copy_(before)
        case.others[1].copy_((case.others[1] + shift) % case.logits.shape[1])
        expected = before.clone()
        getattr(reference, name)(expected, *case.others)
        graph.replay()
        assert_same_bits(case.logits.contiguous(), expected)
