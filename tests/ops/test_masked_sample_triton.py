"""masked_sample in Triton: bits of its arithmetic, tokens and logprobs, compiled
instructions.

Runs on a GPU if there is one, else under Triton's interpreter with fewer cases.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl

from structout.masks.bitmask import bitmask_width
from structout.ops import sampling_math
from structout.triton_kernels import masked_sample as kernels, sampling_math as triton_math
from support import make_sampling_vectors as vectors, masked_sample_cases
from support.apply_bitmask_cases import DTYPES, random_words
from support.devices import HAS_GPU, TRITON_DEVICE as DEVICE
from support.masked_sample_cases import TRITON_FORMS, Case, check
from support.refusals import REFUSED
from support.triton_ptx import assert_operations_are_rounded_once, compile_for, masked_sample_kernel

COMMITTED = json.loads(vectors.VECTORS.read_text())
pytestmark = pytest.mark.triton


# ---- the bits of the arithmetic

MATH_BLOCK = 1024 if HAS_GPU else 1 << 16


@triton.jit
def math_kernel(inputs, results, count, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(inputs + i, mask=i < count)
    if FUNCTION == "gumbel":
        result = triton_math.gumbel(value.to(tl.uint32))
    elif FUNCTION == "mass":
        result = triton_math.mass(value)
    elif FUNCTION == "log":
        result = triton_math.log(value)
    elif FUNCTION == "log_of_mass":
        result = triton_math.log_of_mass(value)
    else:
        result = triton_math.order_key(value).to(tl.int64)
    tl.store(results + i, result, mask=i < count)


@triton.jit
def noise_kernel(ids, results, seed, position, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(ids + i, mask=i < count, other=0).to(tl.int32)
    seed, position = tl.load(seed), tl.load(position)
    coarse, fine = triton_math.coarse_noise(seed, position, token), triton_math.fine_noise(seed, position, token)
    tl.store(results + i, (coarse << 16 | fine).to(tl.int64), mask=i < count)


@triton.jit
def group_noise_kernel(results, seed, position, first_group, GROUPS: tl.constexpr):
    group = first_group + tl.arange(0, GROUPS)
    seed, position = tl.load(seed), tl.load(position)
    coarse = triton_math.coarse_noise_of_groups(seed, position, group)
    fine = triton_math.fine_noise_of_groups(seed, position, group)
    i = tl.arange(0, GROUPS)[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(results + i, (coarse << 16 | fine).to(tl.int64))


@triton.jit
def philox_kernel(key, counter, results, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    c0, c1, c2, c3 = triton_math.philox(
        tl.load(key),
        tl.load(counter + i).to(tl.uint32),
        tl.load(counter + BLOCK + i).to(tl.uint32),
        tl.load(counter + 2 * BLOCK + i).to(tl.uint32),
        tl.load(counter + 3 * BLOCK + i).to(tl.uint32),
    )
    tl.store(results + i, c0.to(tl.int64))
    tl.store(results + BLOCK + i, c1.to(tl.int64))
    tl.store(results + 2 * BLOCK + i, c2.to(tl.int64))
    tl.store(results + 3 * BLOCK + i, c3.to(tl.int64))


def triton_function(function: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function of triton_kernels/sampling_math.py that takes and returns CPU
    tensors."""

    def compute(values: torch.Tensor) -> torch.Tensor:
        values = values.contiguous().to(DEVICE)
        dtype = torch.int64 if function in ("mass", "order_key") else torch.float32
        results = torch.empty(values.shape, dtype=dtype, device=DEVICE)
        grid = (triton.cdiv(len(values), MATH_BLOCK),)
        math_kernel[grid](values, results, len(values), function, MATH_BLOCK, enable_fp_fusion=False)
        return results.cpu()

    return compute


@pytest.mark.parametrize("function", list(vectors.INPUTS))
def test_triton_math_on_millions_of_inputs_matches_checksum(function):
    inputs = vectors.INPUTS[function]()
    assert vectors.checksum(triton_function(function), inputs) == COMMITTED["checksums"][function]


def test_triton_gumbel_at_edges_matches_reference():
    bits = torch.tensor([0, 1, 2**30 - 1, 2**30, 2**30 + 1, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1])
    assert_same_bits(triton_function("gumbel")(bits), sampling_math.gumbel(bits))


def test_triton_mass_at_edges_matches_reference():
    t = torch.tensor([0.0, -0.0, -1e-45, -1e-38, -27.72, -27.73, -29.999998, -30.0, -30.000002, -1e30, -torch.inf])
    assert torch.equal(triton_function("mass")(t), sampling_math.mass(t))


def test_triton_log_of_mass_matches_listed_vectors():
    totals = torch.tensor([vector["total"] for vector in COMMITTED["log_of_mass"]])
    assert vectors.float_bits(triton_function("log_of_mass")(totals)) == [v["log"] for v in COMMITTED["log_of_mass"]]


def test_triton_order_keys_sort_like_floats():
    values = torch.cat([vectors.floats_of_bits(torch.arange(0, 2**32, 20011)), torch.tensor([0.0, -0.0])])
    values = values[~values.isnan()].sort().values
    keys = triton_function("order_key")(values)
    assert len(keys) > 200_000
    assert torch.equal(keys[1:] > keys[:-1], values[1:] > values[:-1])
    assert torch.equal(keys[1:] == keys[:-1], values[1:] == values[:-1])
    below_drawable, lowest_drawable = triton_function("order_key")(
        torch.tensor([-torch.inf, -3.4028234663852886e38])
    ).tolist()
    assert below_drawable < kernels.LOWEST_DRAWABLE_KEY.value <= lowest_drawable


def test_triton_noise_of_tokens_and_groups_matches_reference():
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        seed, position = torch.randint(-(2**63), 2**63 - 1, (2,), generator=generator)
        ids = torch.randint(2**23, (100_000,), generator=generator)
        results = torch.empty_like(ids, device=DEVICE)
        grid = (triton.cdiv(len(ids), MATH_BLOCK),)
        place = seed.to(DEVICE), position.to(DEVICE)
        noise_kernel[grid](ids.to(DEVICE), results, *place, len(ids), MATH_BLOCK)
        assert torch.equal(results.cpu(), sampling_math.noise_bits(int(seed), int(position), ids))

        results = torch.empty(256 * 8, dtype=torch.int64, device=DEVICE)
        group_noise_kernel[(1,)](results, *place, 1000, 256)
        assert torch.equal(results.cpu(), sampling_math.noise_bits(int(seed), int(position), 8000 + torch.arange(2048)))


def test_triton_philox_on_random_inputs_matches_reference():
    generator = torch.Generator().manual_seed(1)
    size = 1 << 14
    for _ in range(4):
        key = torch.randint(-(2**63), 2**63 - 1, (1,), generator=generator)
        counter = torch.randint(2**32, (4, size), generator=generator)
        counter[:, :2] = torch.tensor([0, 2**32 - 1])
        results = torch.empty_like(counter, device=DEVICE)
        philox_kernel[(1,)](key.to(DEVICE), counter.to(DEVICE), results, size)
        assert torch.equal(results.cpu(), torch.stack(sampling_math.philox(int(key), tuple(counter))))


def assert_same_bits(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert vectors.float_bits(got) == vectors.float_bits(expected)


# ---- tokens and logprobs


@pytest.fixture(params=[None, 256], ids=["", "small_tile"])
def tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small tile sends short rows through the code for long rows."""
    if request.param is not None:
        monkeypatch.setattr(kernels, "TILE", request.param)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy warns of infinities
@pytest.mark.usefixtures("tile")
class TestDraws:
    def test_triton_on_random_cases_matches_reference(self, num_cases):
        count, limits = num_cases(1, long=8), {"max_vocab": 900}
        if HAS_GPU:
            count, limits = num_cases(200, long=2000), {"max_vocab": 3000, "forms": TRITON_FORMS}
        for seed in range(10):
            for case in masked_sample_cases.random_cases(seed, count, device=DEVICE, **limits):
                check(kernels.masked_sample_logprobs, case)

    @pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 5000])
    def test_triton_with_edge_vocabulary_sizes_matches_reference(self, vocab_size):
        check(kernels.masked_sample_logprobs, plain_case(2, vocab_size))

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_triton_with_unaligned_rows_matches_reference(self, dtype):
        case = plain_case(3, 700, dtype=dtype)
        buffer = torch.full((4, 1001), torch.nan, dtype=dtype, device=DEVICE)
        case.logits = buffer[:3, 5:705].copy_(case.logits)
        check(kernels.masked_sample_logprobs, case)

    def test_triton_with_strided_parameters_matches_reference(self):
        case = plain_case(4, 600)
        for name in ("temperature", "top_k", "top_p", "min_p", "seed", "position"):
            setattr(case, name, getattr(case, name)[1].expand(4))
        case.bitmask = case.bitmask[:2].repeat(1, 2)[:, : case.bitmask.shape[1]]
        case.rows = torch.tensor([0, 9, -1, 9, 1, 9, 7, 9], device=DEVICE)[::2]
        check(kernels.masked_sample_logprobs, case)

    def test_triton_with_top_k_above_tile_and_ties_matches_reference(self):
        case = plain_case(2, 1500, density=1.0)
        case.logits = (case.logits * 4).round() / 4
        case.top_k = torch.tensor([300, 1200], device=DEVICE)
        check(kernels.masked_sample_logprobs, case)

    def test_triton_with_overflowing_draw_bound_matches_reference(self):
        """z is finite and z log2(e) is not: no token may be skipped because of that."""
        logits = torch.linspace(2.3e38, 3.4e38, 2000, device=DEVICE).repeat(2, 1)
        logits[1] = logits[1, 1000]
        check(kernels.masked_sample_logprobs, free_case(logits, 1.0))

    def test_triton_with_large_logits_at_low_temperature_matches_reference(self):
        """Scores are so far from zero that the noise keeps few bits and ties are
        common."""
        logits = 1000 + torch.randn(2, 1500, generator=torch.Generator().manual_seed(0)).to(DEVICE) * 1e-3
        check(kernels.masked_sample_logprobs, free_case(logits, 1e-2))
        check(kernels.masked_sample_logprobs, free_case(logits * 1e6, 3.0))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_triton_on_long_row_matches_reference(dtype):
    case = plain_case(1, 20_000, density=0.9, dtype=dtype)
    if dtype == torch.float32:
        case.bitmask = case.top_k = None
    else:
        case.top_k = torch.tensor([3000], device=DEVICE)
    check(kernels.masked_sample_logprobs, case)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_triton_with_no_rows_or_1d_logits_returns_matching_shapes():
    empty = plain_case(0, 5)
    ids, logprobs = kernels.masked_sample_logprobs(*empty.arguments())
    assert (ids.shape, ids.dtype, logprobs.shape, logprobs.dtype) == ((0,), torch.int64, (0,), torch.float32)
    assert kernels.masked_sample(*empty.arguments()).shape == (0,)
    case = plain_case(1, 100)
    case.logits, case.bitmask = case.logits[0], case.bitmask[0]
    check(kernels.masked_sample_logprobs, case)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_triton_ids_with_and_without_logprobs_are_equal():
    case = plain_case(2, 300)
    ids, _ = kernels.masked_sample_logprobs(*case.arguments())
    assert torch.equal(kernels.masked_sample(*case.arguments()), ids)


def test_triton_with_wrong_dtype_raises():
    case = plain_case(2, 100)
    case.seed = case.seed.to(torch.int32)
    with pytest.raises(REFUSED, match="seed must be int64, got int32"):
        kernels.masked_sample(*case.arguments())


def test_triton_launch_disables_fp_fusion(monkeypatch):
    options: dict[str, object] = {}

    class Recorder:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *arguments, **keywords: options.update(keywords)

    monkeypatch.setattr(kernels, "masked_sample_kernel", Recorder())
    kernels.masked_sample(*plain_case(1, 10).arguments())
    assert options["enable_fp_fusion"] is False


def plain_case(n: int, vocab_size: int, density: float = 0.4, dtype: torch.dtype = torch.float32) -> Case:
    """Return a case with every parameter, none of them at an edge."""
    generator = torch.Generator().manual_seed(n * 1000 + vocab_size)
    words = bitmask_width(vocab_size)
    logits = torch.randn(n, vocab_size, generator=generator) * 4
    bitmask = random_words(n * words, density, generator).view(n, words)
    row = torch.arange(n)
    parameters = (0.5 + 0.3 * row, 20 + 30 * row, 0.95 - 0.1 * row, 0.01 * row, 77 * row - 5, 3 + row)
    parameters = tuple(p.to(torch.float32 if p.is_floating_point() else torch.int64).to(DEVICE) for p in parameters)
    return Case(logits.to(dtype).to(DEVICE), bitmask.to(DEVICE), None, *parameters)


def free_case(logits: torch.Tensor, temperature: float) -> Case:
    n = len(logits)
    seeds = torch.arange(n, device=DEVICE)
    return Case(logits, None, None, torch.full((n,), temperature, device=DEVICE), None, None, None, seeds, seeds)


# ---- instructions


@pytest.mark.parametrize(
    ("architecture", "logits", "flags"),
    [
        (80, "fp32", "all"),
        (90, "bf16", "all"),
        (100, "fp16", "all"),
        (80, "bf16", "no"),
        (90, "fp32", "no"),
        (100, "bf16", "no"),
    ],
)
def test_triton_kernel_compiles_to_operations_that_round_once(architecture, logits, flags):
    ptx = compile_for(architecture, masked_sample_kernel(logits, has_all=flags == "all"))
    assert_operations_are_rounded_once(ptx)
    assert "ld.global.v4.b32" in ptx  # aligned logits are loaded 16 bytes at a time
