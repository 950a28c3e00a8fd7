"""The Triton ops of sharded_masked_sample equal the CPU ops, bit for bit.

Runs on a GPU if there is one, else under Triton's interpreter with fewer cases.
"""

from __future__ import annotations

import inspect
import itertools
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from triton.runtime import interpreter

from structout.masks.bitmask import bitmask_width
from structout.ops import kernels
from structout.triton_kernels import masked_sample, shards, token_logprobs
from support.apply_bitmask_cases import DTYPES, random_words
from support.devices import HAS_GPU, TRITON_DEVICE as DEVICE
from support.masked_sample_cases import TRITON_FORMS, Case, random_case
from support.refusals import REFUSED
from support.seeds import for_each_seed
from support.triton_ptx import Kernel, assert_operations_are_rounded_once, compile_for, masked_sample_kernel

CPU_OPS = torch.ops.structout  # called with CPU tensors
TOKEN = 2  # the only field of a shard result that is not a float

pytestmark = [
    pytest.mark.triton,
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # NumPy warns of infinities under the interpreter
]


@pytest.fixture(params=[None, 256], ids=["", "small_tile"])
def tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small tile makes the tests' shards take the paths of long ones."""
    if request.param is not None:
        monkeypatch.setattr(masked_sample, "TILE", request.param)
        monkeypatch.setattr(token_logprobs, "TILE", request.param)


# ---- whole shards


def check(case: Case, cuts: Sequence[int]) -> None:
    """Check a case without filters, divided at ascending ``cuts``."""
    about = f"cuts {cuts}; " + "; ".join(case.describe_row(row) for row in range(len(case.logits)))
    shard_args = [shard_arguments(case, begin, end) for begin, end in itertools.pairwise(cuts)]
    shard_results = torch.stack([shards.sample_shard(*arguments) for arguments in shard_args])
    for arguments, shard_result in zip(shard_args, shard_results, strict=True):
        assert_same(shard_result, CPU_OPS._sample_shard(*on_cpu(*arguments)), f"shard from {arguments[-1]}, {about}")

    ids, merged = check_merge(shard_results, case.temperature)
    assert_same(check_merge(shard_results[:, :3].contiguous(), case.temperature)[0], ids, about)
    totals = torch.stack([check_totals(arguments, merged, about) for arguments in shard_args])
    logprobs = check_merge_of_totals(totals, merged, case.temperature)

    expected_ids, expected_logprobs = CPU_OPS.masked_sample_logprobs(*on_cpu(*case.arguments()))
    assert_same(ids, expected_ids, about)
    assert_same(logprobs, expected_logprobs, about)


def check_merge(shard_results: torch.Tensor, temperature: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    ids, merged = shards.merge_shard_results(shard_results, temperature)
    expected_ids, expected_merged = CPU_OPS._merge_shard_results(*on_cpu(shard_results, temperature))
    assert_same(ids, expected_ids)
    assert_same(merged, expected_merged)
    return ids, merged


def check_totals(arguments: tuple[object, ...], merged: torch.Tensor, about: str = "") -> torch.Tensor:
    *masked_logits, _, _, begin = arguments
    highest, token_logits = merged[0].view(torch.float32), merged[3].view(torch.float32)
    totals = token_logprobs.row_totals(*masked_logits, highest, token_logits, begin)
    expected = CPU_OPS._row_totals(*on_cpu(*masked_logits, highest, token_logits, begin))
    assert_same(totals, expected, f"shard from {begin}, {about}")
    return totals


def check_merge_of_totals(totals: torch.Tensor, merged: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    highest, token_logits = merged[0].view(torch.float32), merged[3].view(torch.float32)
    top_logits = torch.stack([highest, token_logits, token_logits - 3], dim=1)
    arguments = (totals, temperature, highest, token_logits, top_logits)
    results = token_logprobs.merge_totals(*arguments)
    for result, expected in zip(results, CPU_OPS._merge_totals(*on_cpu(*arguments)), strict=True):
        assert_same(result, expected)
    return results[0]


def shard_arguments(case: Case, begin: int, end: int) -> tuple[object, ...]:
    columns = case.logits[:, begin:end]
    return columns, case.bitmask, case.rows, case.temperature, case.seed, case.position, begin


def on_cpu(*arguments: object) -> list[object]:
    return [argument.cpu() if isinstance(argument, torch.Tensor) else argument for argument in arguments]


def assert_same(got: torch.Tensor, expected: torch.Tensor, about: str = "") -> None:
    """Compare bit for bit, except that all NaN of shard results are equal."""
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape), about
    differs = _comparable(got) != _comparable(expected)
    if differs.any():
        at = tuple(differs.nonzero()[0].tolist())
        count = int(differs.sum())
        raise AssertionError(f"{count} differ, first at {at}: got {got[at]}, expected {expected[at]}; {about}")


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.cpu()
    if tensor.dtype == torch.int64:
        return tensor
    bits = tensor.view(torch.int32)
    if tensor.dtype == torch.float32:
        return bits
    is_nan = bits.view(torch.float32).isnan()
    is_nan[TOKEN] = False
    return bits.masked_fill(is_nan, 0x7FC00000)


def random_cuts(rng: random.Random, vocab_size: int) -> list[int]:
    """Return ascending cuts; shards are often uneven, some empty or of one token."""
    inner = [rng.randint(0, vocab_size) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
    neighbors = [rng.choice([cut, min(cut + 1, vocab_size)]) for cut in inner if rng.random() < 0.3]
    return sorted([0, *inner, *neighbors, vocab_size])


def plain_case(n: int, vocab_size: int, density: float = 0.4, dtype: torch.dtype = torch.float32) -> Case:
    """Return a case whose first row is greedy and whose others are not."""
    generator = torch.Generator().manual_seed(n * 1000 + vocab_size)
    words = bitmask_width(vocab_size)
    logits = torch.randn(n, vocab_size, generator=generator) * 4
    bitmask = random_words(n * words, density, generator).view(n, words)
    row = torch.arange(n)
    temperature, seed, position = (values.to(DEVICE) for values in (0.7 * row, 77 * row - 5, 3 + row))
    return Case(logits.to(dtype).to(DEVICE), bitmask.to(DEVICE), None, temperature, None, None, None, seed, position)


def case_of(logits: list[list[float]], temperature: list[float]) -> Case:
    """Return a case without masks."""
    seeds = torch.arange(len(logits), device=DEVICE)
    temperatures = torch.tensor(temperature, device=DEVICE)
    return Case(torch.tensor(logits, device=DEVICE), None, None, temperatures, None, None, None, seeds, seeds)


@pytest.mark.usefixtures("tile")
@for_each_seed(3, long=6)
def test_random_cases_equal_cpu_ops(seed):
    rng = random.Random(seed)
    # On a GPU a kernel is compiled for each form and each alignment of a cut.
    count, max_vocab, forms = (30, 3000, TRITON_FORMS[:3]) if HAS_GPU else (4, 700, ())
    for _ in range(count):
        case = random_case(rng, DEVICE, max_vocab, max_rows=4, forms=forms)
        case.top_k = case.top_p = case.min_p = None
        check(case, random_cuts(rng, case.logits.shape[1]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_shards_narrower_than_a_mask_byte_equal_cpu_ops(dtype):
    check(plain_case(2, 75, density=0.7, dtype=dtype), [0, 0, 1, 3, 8, 31, 33, 64, 75])


@pytest.mark.usefixtures("tile")
def test_more_allowed_tokens_than_the_list_holds_equal_cpu_ops():
    case = plain_case(2, 2700, density=1.0)
    case.bitmask.fill_(-1)
    check(case, [0, 333, 2700])


def test_merge_with_ties_takes_the_lowest_id():
    case = case_of([[0.5] * 40, [0.5] * 40, [-0.0] * 20 + [0.0] * 20, [1e37] * 40], [0.0, 1e-9, 0.0, 1e-30])
    check(case, [0, 13, 26, 40])
    ids, _ = shards.merge_shard_results(
        torch.stack([shards.sample_shard(*shard_arguments(case, begin, begin + 20)) for begin in (20, 0)]),
        case.temperature,
    )
    assert ids[:3].tolist() == [0, 0, 0]


def test_shards_that_overflow_where_their_row_does_not_equal_cpu_ops():
    """A shard's scaled highest logit may overflow where the row's does not."""
    inf = torch.inf
    falling, rising = [-1e37, -2e37, -1.0, -0.9], [1e37, 2e37, 3e37, 3e37]
    infinite, negative = [inf, 1.0, inf, 2.0], [-1e37, -2e37, -3e37, -1e37]
    rows = [falling, falling, rising, rising, infinite, infinite, negative, negative]
    check(case_of(rows, [1e-2, 0.0, 1e-30, 1.0, 1.0, 0.0, 1e-30, 1e-45]), [0, 2, 4])


def test_one_shard_with_nan_or_nothing_drawable_equals_cpu_ops():
    rows = [[1.0, torch.nan, 2.0, 3.0], [-torch.inf] * 4, [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, -torch.inf, -torch.inf]]
    check(case_of(rows * 2, [1.0, 0.0, -1.0, torch.nan, 0.0, 1.0, torch.inf, 1.0]), [0, 2, 4])


def test_shard_at_the_end_of_the_largest_vocabulary_equals_cpu_ops():
    end = 2**23 - 1
    case = plain_case(2, 701, density=0.9)
    case.bitmask = random_words(2 * 2**18, 0.9, torch.Generator().manual_seed(0)).view(2, 2**18).to(DEVICE)
    arguments = (*shard_arguments(case, 0, 701)[:-1], end - 701)
    shard_results = shards.sample_shard(*arguments)
    assert_same(shard_results, CPU_OPS._sample_shard(*on_cpu(*arguments)))
    assert shard_results[TOKEN].min() >= end - 701
    check_totals(arguments, shard_results)


def test_no_rows_and_one_dimensional_logits_equal_cpu_ops():
    empty = plain_case(0, 5)
    check(empty, [0, 2, 5])
    case = plain_case(1, 100)
    case.temperature = case.temperature + 1
    arguments = (case.logits[0, 40:], case.bitmask[0], None, case.temperature, case.seed, case.position, 40)
    shard_results = shards.sample_shard(*arguments)
    assert_same(shard_results, shards.sample_shard(*shard_arguments(case, 40, 100)))
    check_totals(arguments, shard_results)


# ---- merges


def test_merges_of_many_rows_equal_cpu_ops():
    """More rows than one program takes; few values, so that ties are common."""
    num_rows, num_shards = shards.MERGE_ROWS + 7, 5
    generator = torch.Generator().manual_seed(0)

    def pick(values: list[float], *shape: int) -> torch.Tensor:
        return torch.tensor(values)[torch.randint(len(values), shape, generator=generator)]

    logits = pick([0.0, 1.0, 1.0, -2e37, 3e38, torch.inf], 2, num_shards, num_rows)
    scores = pick([0.0, 1.5, 1.5, 2.5, -torch.inf], num_shards, num_rows)
    tokens = torch.rand(num_shards, num_rows, generator=generator).argsort(0).to(torch.int32)
    shard_results = torch.stack(
        [logits.amax(0).view(torch.int32), scores.view(torch.int32), tokens, logits[0].view(torch.int32)], 1
    )
    minus_infinity = torch.tensor(-torch.inf).view(torch.int32).item()
    nothing = torch.tensor([minus_infinity, minus_infinity, -1, minus_infinity], dtype=torch.int32)
    is_nothing = torch.rand(num_shards, 1, num_rows, generator=generator) < 0.3
    shard_results = torch.where(is_nothing, nothing[:, None], shard_results)
    shard_results[0, 0, ::11] = 0x7FC00000
    temperature = pick([0.0, 1.0, 1e-30, 1e-45], 2 * num_rows).to(DEVICE)[::2]

    for count in (num_shards, 1):
        _, merged = check_merge(shard_results[:count].to(DEVICE), temperature)
        totals = torch.randint(1, 2**55, (count, 2, num_rows), generator=generator).to(DEVICE)
        check_merge_of_totals(totals, merged, temperature)
    check_merge(shard_results.to(DEVICE), temperature[:1].expand(num_rows))


def test_invalid_arguments_raise():
    case = plain_case(2, 100)
    arguments = shard_arguments(case, 0, 100)
    with pytest.raises(REFUSED, match="vocab_begin must be in"):
        shards.sample_shard(*arguments[:-1], -1)
    with pytest.raises(ValueError, match=r"temperature must be torch.float32 \[5\], got torch.float32 \[2\]"):
        shards.merge_shard_results(torch.zeros(1, 4, 5, dtype=torch.int32, device=DEVICE), case.temperature)


# ---- reads, launches, registration and PTX


@pytest.mark.interpreter  # which can list the reads of a kernel
@pytest.mark.parametrize(("begin", "end"), [(0, 150), (77, 78), (333, 700), (64, 64), (690, 1000)])
def test_kernels_read_only_the_shard_and_its_masks(begin, end, monkeypatch):
    """Logits lie between other shards' columns, masks between other words; some masks
    are too short.
    """
    case = plain_case(3, 1000, density=0.9)
    case.rows = torch.tensor([1, -1, 7])
    words = torch.full((5, 40), -1, dtype=torch.int32)
    case.bitmask = words[1:4, 3:25].copy_(case.bitmask[:, :22])
    reads: list[np.ndarray] = []
    load = interpreter.InterpreterBuilder.create_masked_load

    def recorded_load(self, ptrs, mask, *others):
        reads.append(np.asarray(ptrs.data)[np.asarray(mask.data)])
        return load(self, ptrs, mask, *others)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_masked_load", recorded_load)
    arguments = shard_arguments(case, begin, end)
    check_totals(arguments, shards.sample_shard(*arguments))
    columns, bitmask, rows, temperature, *_ = arguments
    token_logprobs.top_tokens(columns, bitmask, rows, temperature, torch.full((3,), begin), begin, 2)
    at = np.unique(np.concatenate([np.ravel(addresses) for addresses in reads]).astype(np.int64))
    for view, storage in ((arguments[0], case.logits), (case.bitmask, words)):
        rows = [range(row.data_ptr(), row.data_ptr() + row.nbytes) for row in view]
        inside = at[(at >= storage.data_ptr()) & (at < storage.data_ptr() + storage.nbytes)]
        assert all(any(address in row for row in rows) for address in inside)
    assert len(at) > 0


def test_launches_disable_fp_fusion(monkeypatch):
    case = plain_case(2, 10)
    arguments = shard_arguments(case, 0, 10)
    shard_results = shards.sample_shard(*arguments)
    launched: dict[str, object] = {}

    def recorder(name: str) -> object:
        class Recorder:
            def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
                return lambda *arguments, **keywords: launched.update({name: keywords["enable_fp_fusion"]})

        return Recorder()

    names = {name: module for module in (masked_sample, shards) for name in vars(module) if name.endswith("_kernel")}
    for name, module in names.items():
        monkeypatch.setattr(module, name, recorder(name))
    shards.sample_shard(*arguments)
    shards.merge_shard_results(shard_results[None], case.temperature)
    assert len(names) == 2
    assert launched == dict.fromkeys(names, False)


def test_every_shard_op_is_registered_with_its_schema(monkeypatch):
    registered: dict[str, object] = {}

    class Library:
        def __init__(self, *arguments: object) -> None: ...

        def impl(self, name: str, function: object, key: str) -> None:
            registered[name] = function

    monkeypatch.setattr(torch.library, "Library", Library)
    assert kernels._register_triton() is None
    for module, names in (
        (shards, ("_sample_shard", "_merge_shard_results")),
        (token_logprobs, ("_top_tokens", "_row_totals", "_merge_totals", "token_logprobs", "masked_sample_topn")),
    ):
        for name in names:
            kernel = getattr(module, name.removeprefix("_"))
            assert registered[name] is kernel
            arguments = [argument.name for argument in getattr(torch.ops.structout, name).default._schema.arguments]
            assert list(inspect.signature(kernel).parameters) == arguments


@pytest.mark.parametrize(("architecture", "logits"), [(80, "fp32"), (90, "bf16"), (100, "fp16")])
def test_ptx_rounds_every_operation_once(architecture, logits):
    shard_results = Kernel(
        "shards",
        "merge_shard_results_kernel",
        {"shard_results": "i32", "temperatures": "fp32", "ids": "i64", "merged": "i32"},
        {"HAS_LOGITS": True, "BLOCK": shards.MERGE_ROWS},
    )
    shard = masked_sample_kernel(logits, has_all=False, is_shard=True)
    ptx = compile_for(architecture, shard, shard_results)
    assert_operations_are_rounded_once(ptx)
    assert ptx.count("ld.global.v4.b32") >= 2  # one for each pass over aligned logits: survey and draw
