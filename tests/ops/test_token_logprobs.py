"""token_logprobs and masked_sample_topn on every backend equal their reference bit for
bit, and what torch computes."""

from __future__ import annotations

import ctypes
import functools
import random
from collections.abc import Callable

import pytest
import torch

import structout
from structout.ops import reference
from structout.ops.token_logprobs import log_kept_by
from support import ptx
from support.devices import DEVICES, TRITON_DEVICE
from support.gpu_code import NEEDS_NVCC, compiled_architectures, stack_bytes
from support.masked_sample_builds import MaskedLogits, cuda_library, strided
from support.masked_sample_cases import Case, random_case
from support.op_backends import BACKENDS
from support.refusals import REFUSED

Op = Callable[..., tuple[torch.Tensor, ...]]

DEVICE = (90, 200)  # compute capability, KB of shared memory; tests/native/cuda launches for others, too
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy warns of infinities


def cuda_on_cpu(
    logits: torch.Tensor,
    bitmask: torch.Tensor | None,
    rows: torch.Tensor | None,
    temperature: torch.Tensor | None,
    token_ids: torch.Tensor,
    top_n: int,
) -> tuple[torch.Tensor, ...]:
    num_rows = len(logits)
    token_ids = token_ids.contiguous()
    results = (
        torch.full((num_rows,), torch.nan),
        torch.full((num_rows,), 77),
        torch.full((num_rows, top_n), 77),
        torch.full((num_rows, top_n), torch.nan),
    )
    cuda_library().token_logprobs_on_host(
        ctypes.byref(MaskedLogits.of(logits, bitmask, rows)),
        strided(temperature),
        ctypes.c_void_p(token_ids.data_ptr()),
        ctypes.c_int64(top_n),
        *(ctypes.c_void_p(result.data_ptr()) for result in results),
        *(ctypes.c_int(fact) for fact in DEVICE),
    )
    return results


def op_of(backend: str) -> Op:
    if backend == "cuda_on_cpu":
        return cuda_on_cpu
    if backend == "ptx":
        return ptx.on_ptx(cuda_on_cpu, cuda_library, "masked_sample")
    if backend == "triton":
        from structout.triton_kernels.token_logprobs import token_logprobs

        return token_logprobs
    return torch.ops.structout.token_logprobs.default


NOT_INTERPRETED = [backend for backend in BACKENDS if backend.id != "triton"]


def check(op: Op, *arguments: object, about: str = "") -> tuple[torch.Tensor, ...]:
    """Assert that results have the bits of the reference's, and return them."""
    results, expected = op(*arguments), reference.token_logprobs(*arguments)
    for name, got, wanted in zip(structout.TokenLogprobs._fields, results, expected, strict=True):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), name
        bits = [x.view(torch.int32) if x.is_floating_point() else x for x in (got, wanted)]
        assert torch.equal(*bits), f"{about} {name}: {got} != {wanted}"
    return results


def random_arguments(rng: random.Random, case: Case) -> tuple[object, ...]:
    """Tokens that are likely, drawn, disallowed, out of range or absent."""
    num_rows, vocab_size = case.logits.shape
    tokens = [rng.choice([-1, rng.randrange(vocab_size), rng.randrange(vocab_size), vocab_size + 3]) for _ in "ab"]
    tokens = torch.tensor([rng.choice(tokens) for _ in range(num_rows)], device=case.logits.device)
    if rng.random() < 0.6:
        tokens = case.logits.nan_to_num(nan=-torch.inf).float().argmax(1)
    temperature = case.temperature if rng.random() < 0.8 else None
    masks = (case.bitmask, case.rows) if rng.random() < 0.8 else (None, None)
    return case.logits, *masks, temperature, tokens, rng.choice([0, 1, 2, 5, 20, 64])


@pytest.mark.parametrize("backend", NOT_INTERPRETED)
def test_token_logprobs_on_random_cases_matches_reference(backend, num_cases):
    rng, (name, device) = random.Random(1), backend
    for i in range(num_cases(150 if name == "cpu" else 40, long=1000)):
        case = random_case(rng, device, max_vocab=rng.choice([200, 9000]))
        check(op_of(name), *random_arguments(rng, case), about=f"case {i}")


@pytest.mark.triton
def test_token_logprobs_in_triton_on_random_cases_matches_reference(num_cases, monkeypatch):
    """A small tile makes the rows take the paths of long ones."""
    from structout.triton_kernels import token_logprobs

    rng = random.Random(2)
    is_interpreted = TRITON_DEVICE == "cpu"
    monkeypatch.setattr(token_logprobs, "TILE", 256)
    for i in range(num_cases(12, long=150) if is_interpreted else 500):
        case = random_case(rng, TRITON_DEVICE, max_vocab=700, max_rows=2)
        *masked_logits, tokens, top_n = random_arguments(rng, case)
        top_n = min(top_n, 5) if is_interpreted else top_n  # each takes a pass
        check(token_logprobs.token_logprobs, *masked_logits, tokens, top_n, about=f"case {i}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_more_tied_tokens_than_a_list_holds_rank_by_id(backend):
    name, device = backend
    logits = torch.zeros(2, 5000, device=device)
    logits[0, 4000] = 1
    logits[1, ::2] = 2
    tokens = torch.tensor([7, 4998], device=device)
    _, ranks, top_ids, _ = check(op_of(name), logits, None, None, None, tokens, 3)
    assert top_ids.tolist() == [[4000, 0, 1], [0, 2, 4]]
    assert ranks.tolist() == [2, 1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_without_a_result(backend):
    """NaN, -inf, empty masks, invalid temperatures, disallowed tokens."""
    name, device = backend
    inf, nan = torch.inf, torch.nan
    logits = torch.tensor([[1.0, 2.0, nan, 0.0]] * 7 + [[-inf] * 4, [nan] * 4, [inf, 1, inf, nan]], device=device)
    bitmask = structout.pack_bitmask(torch.tensor([[True, False, True, True], [False] * 4], device=device))
    rows = torch.tensor([0, 0, 0, 1, 0, 0, -1, -1, -1, -1], device=device)
    temperature = torch.tensor([1.0, 1, 1, 1, nan, -1, 0, 1, 1, 1], device=device)
    tokens = torch.tensor([0, 1, 2, 0, 0, 0, 2, 0, 0, 1], device=device)
    logprobs, ranks, top_ids, top_logprobs = check(op_of(name), logits, bitmask, rows, temperature, tokens, 3)
    assert ranks.tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 0, 3]
    assert torch.equal(logprobs[1:], torch.full((9,), -inf, device=device))
    nothing = [-1, -1, -1]
    assert top_ids.tolist() == [*[[0, 3, -1]] * 3, *[nothing] * 3, [1, 0, 3], nothing, nothing, [0, 2, 1]]
    assert top_logprobs[-1].tolist() == pytest.approx([-0.6931472, -0.6931472, -inf])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("device", DEVICES)
def test_token_logprobs_agree_with_torch(device, dtype):
    generator = torch.Generator().manual_seed(3)
    logits = (torch.randn(9, 32_003, generator=generator) * 4).to(dtype).to(device)
    allowed = (torch.rand(9, 32_003, generator=generator) < torch.tensor([0.001, 0.2, 1.0] * 3)[:, None]).to(device)
    temperature = torch.linspace(0.3, 2, 9, device=device)
    tokens = structout.masked_sample(logits, structout.pack_bitmask(allowed), temperature=temperature)
    found = structout.token_logprobs(logits, tokens, structout.pack_bitmask(allowed), temperature=temperature, top_n=20)
    x = logits.double().masked_fill(~allowed, -torch.inf)
    expected = (x / temperature.double()[:, None]).log_softmax(-1)
    torch.testing.assert_close(found.logprobs.double(), expected.gather(1, tokens[:, None])[:, 0], atol=2e-5, rtol=1e-6)
    assert torch.equal(found.ranks, 1 + (x > x.gather(1, tokens[:, None])).sum(1))
    top_logprobs, _ = expected.topk(20)
    torch.testing.assert_close(found.top_logprobs.double(), top_logprobs, atol=2e-5, rtol=1e-6)
    assert torch.equal(x.gather(1, found.top_ids), x.topk(20).values)
    assert (found.top_ids[:, 1:] != found.top_ids[:, :-1]).all()


def log_kept_on(backend, logits, bitmask, rows, temperature):
    """``log_kept`` by the ``token_logprobs`` of a backend."""
    op = reference.token_logprobs if backend == "reference" else op_of(backend)

    def compute(token_ids, bitmask=None, rows=None, top_n=0):
        return structout.TokenLogprobs(*op(logits, bitmask, rows, temperature, token_ids, top_n))

    return log_kept_by(compute, logits, bitmask, rows)


@pytest.mark.parametrize("backend", BACKENDS)
def test_log_kept_on_random_cases_has_the_bits_of_the_reference(backend, num_cases):
    rng, (name, device) = random.Random(5), backend
    for i in range(num_cases(6 if name == "triton" and device == "cpu" else 60, long=1000)):
        case = random_case(rng, device, max_vocab=rng.choice([200, 3000]), max_rows=3)
        arguments = (case.logits, case.bitmask, case.rows, case.temperature)
        found, expected = log_kept_on(name, *arguments), log_kept_on("reference", *arguments)
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32)), f"case {i}: {found} != {expected}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("device", DEVICES)
def test_log_kept_agrees_with_float64(device, dtype):
    """Down to masks that leave one token in 32,003, and to e^-30 of the probability."""
    generator = torch.Generator().manual_seed(6)
    logits = (torch.randn(300, 32_003, generator=generator) * 4).to(dtype).to(device)
    shares = torch.logspace(-4.5, 0, 300)[:, None]
    allowed = (torch.rand(300, 32_003, generator=generator) < shares).to(device)
    allowed[:, 5] = True
    temperature = torch.linspace(0.3, 2, 300, device=device)
    found = structout.log_kept(logits, structout.pack_bitmask(allowed), temperature=temperature)
    probabilities = (logits.double() / temperature.double()[:, None]).softmax(-1)
    expected = (probabilities * allowed).sum(-1).log()
    assert expected.min() < -30
    torch.testing.assert_close(found.double(), expected, atol=2e-6, rtol=2e-7)


@pytest.mark.parametrize("device", DEVICES)
def test_log_kept_is_zero_without_a_mask_and_minus_infinity_where_nothing_is_allowed(device):
    logits = torch.randn(4, 40, device=device)
    logits[3] = -torch.inf
    bitmask = structout.pack_bitmask(torch.tensor([[False] * 40, [True] * 40], device=device))
    rows = torch.tensor([-1, 1, 0, 1], device=device)
    kept = structout.log_kept(logits, bitmask, rows, temperature=0.5)
    assert kept.tolist() == [0, 0, -torch.inf, -torch.inf]
    assert structout.log_kept(logits, None).tolist() == [0, 0, 0, -torch.inf]


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("backend", ["cpu", pytest.param("triton", marks=pytest.mark.triton)])
def test_masked_sample_topn_equals_its_two_steps(backend, raw, num_cases):
    rng = random.Random(4)
    device = TRITON_DEVICE if backend == "triton" else "cpu"
    if backend == "triton":
        from structout.triton_kernels.token_logprobs import masked_sample_topn as op
    else:
        op = torch.ops.structout.masked_sample_topn.default
    for _ in range(num_cases(3, long=30) if backend == "triton" else num_cases(60, long=1000)):
        arguments = (*random_case(rng, device, max_vocab=600).arguments(), rng.choice([0, 1, 4]), raw)
        for got, expected in zip(op(*arguments), reference.masked_sample_topn(*arguments), strict=True):
            assert torch.equal(got, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_disallowed_nan_does_not_affect_raw_logprobs_of_others(device):
    logits = torch.tensor([[1.0, torch.nan, 3.0, 2.0]], device=device)
    mask = structout.pack_bitmask(torch.tensor([[True, False, False, True]], device=device))
    sample = structout.masked_sample_topn(logits, mask, top_n=2, raw=True, temperature=0.0)
    assert (sample.ids.tolist(), sample.ranks.tolist(), sample.top_ids.tolist()) == ([3], [2], [[2, 3]])
    expected = torch.tensor([1.0, 3.0, 2.0]).log_softmax(0)
    assert sample.logprobs.tolist() == pytest.approx([expected[2].item()])
    assert sample.top_logprobs.tolist() == [pytest.approx([expected[1].item(), expected[2].item()])]


@pytest.mark.parametrize("device", DEVICES)
def test_token_logprobs_pass_opcheck(device):
    case = random_case(random.Random(5), device, max_vocab=100)
    tokens = torch.zeros(len(case.logits), dtype=torch.int64, device=device)
    masked_logits = (case.logits, case.bitmask, case.rows, case.temperature)
    for top_n in (0, 3):
        torch.library.opcheck(torch.ops.structout.token_logprobs.default, (*masked_logits, tokens, top_n))
        torch.library.opcheck(torch.ops.structout.masked_sample_topn.default, (*case.arguments(), top_n, False))
        torch.library.opcheck(torch.ops.structout.masked_sample_topn.default, (*case.arguments(), top_n, True))


@pytest.mark.gpu
def test_masked_sample_topn_in_a_cuda_graph_equals_reference():
    arguments = (torch.randn(6, 20_000, device="cuda"), None, None, torch.ones(6, device="cuda"), *[None] * 3)
    arguments = (*arguments, torch.arange(6, device="cuda"), torch.arange(6, device="cuda"), 5)
    op = torch.ops.structout.masked_sample_topn.default
    for raw in (False, True):
        op(*arguments, raw)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = op(*arguments, raw)
        for _ in range(20):
            arguments[0].normal_()
            graph.replay()
            assert all(map(torch.equal, results, reference.masked_sample_topn(*arguments, raw)))


def test_no_rows_and_one_row_of_one_dimension():
    nothing = structout.token_logprobs(torch.empty(0, 7), torch.empty(0, dtype=torch.int64), top_n=3)
    assert [tuple(part.shape) for part in nothing] == [(0,), (0,), (0, 3), (0, 3)]
    logits = torch.randn(50)
    one = structout.token_logprobs(logits, torch.tensor([3]), temperature=0.5, top_n=1)
    assert one.top_ids.tolist() == [[int(logits.argmax())]]
    torch.testing.assert_close(one.logprobs[0], (logits / 0.5).log_softmax(0)[3])
    sample = structout.masked_sample_topn(logits, top_n=0, temperature=0.0)
    assert (sample.ids.tolist(), sample.ranks.tolist(), sample.top_ids.shape) == (one.top_ids[0].tolist(), [1], (1, 0))


def test_bad_arguments_are_refused():
    logits, tokens = torch.zeros(2, 9), torch.zeros(2, dtype=torch.int64)
    for top_n in (-1, 65):
        with pytest.raises(REFUSED, match=rf"top_n must be in \[0, 64\], got {top_n}"):
            structout.token_logprobs(logits, tokens, top_n=top_n)
        with pytest.raises(REFUSED, match=rf"top_n must be in \[0, 64\], got {top_n}"):
            structout.masked_sample_topn(logits, top_n=top_n)
        with pytest.raises(ValueError, match=rf"MaskedSampler: top_n must be in \[0, 64\], got {top_n}"):
            structout.MaskedSampler(top_n=top_n)
    with pytest.raises(REFUSED, match="token_ids must be int64, got int32"):
        structout.token_logprobs(logits, tokens.int())
    with pytest.raises(REFUSED, match="token_ids must have one entry per logits row"):
        structout.token_logprobs(logits, tokens[:1])
    with pytest.raises(REFUSED, match="logits must be float32, float16 or bfloat16"):
        structout.token_logprobs(logits.double(), tokens)
    with pytest.raises(ValueError, match="temperature must be a finite number"):
        structout.token_logprobs(logits, tokens, temperature=-1.0)
    with pytest.raises(RuntimeError, match="token_logprobs has no gradient"):
        structout.token_logprobs(logits.clone().requires_grad_(), tokens)


def test_sampler_gives_logprobs_of_drafts_and_raw_logprobs_before_penalties():
    generator = torch.Generator().manual_seed(6)
    logits = torch.randn(4, 30, generator=generator)
    lists = (torch.tensor([0, 1, 2, 3, 4]), torch.tensor([4, 9, 7, 2]))
    bias = structout.LogitBias(*lists, torch.tensor([50.0, 50.0, -50.0, 0.0]))
    drafts = structout.Drafts(torch.tensor([4, -1, 2, -1]), torch.tensor([0, 2, 4]))
    params = structout.SamplingParams(temperature=0.7, seed=3, position=torch.arange(4))
    for sampler_of in (structout.MaskedSampler, functools.partial(structout.VocabParallelSampler, 0, "")):
        changed = logits.clone()
        processed = sampler_of(top_n=2)(changed, None, params, bias=bias, drafts=drafts)
        assert processed.ids[:2].tolist() == [4, 9]
        assert processed.num_accepted.tolist()[0] == 1
        expected = structout.token_logprobs(changed, processed.ids, temperature=0.7, top_n=2)
        assert all(map(torch.equal, processed[1:5], expected))
        raw = sampler_of(top_n=2, raw=True)(logits.clone(), None, params, bias=bias, drafts=drafts)
        assert torch.equal(raw.ids, processed.ids)
        assert all(map(torch.equal, raw[1:5], structout.token_logprobs(logits, raw.ids, top_n=2)))
        assert (raw.ranks[raw.ids == -1] == 0).all()
        plain = sampler_of()(logits.clone(), None, params, bias=bias)
        assert plain[1:] == (None,) * 5


@NEEDS_NVCC
@pytest.mark.parametrize("kernel", ["rank_by_blocks", "rank_by_clusters", "row_totals_kernel"])
def test_cuda_machine_code_spills_no_registers(kernel):
    stacks = stack_bytes(kernel)
    assert len(stacks) == len(compiled_architectures()) * 3  # formats
    assert set(stacks) == {0}


@pytest.mark.triton
@pytest.mark.parametrize(("architecture", "logits"), [(80, "fp32"), (90, "bf16"), (100, "fp16")])
def test_ptx_rounds_every_operation_once(architecture, logits):
    from structout.triton_kernels import token_logprobs
    from support.triton_ptx import Kernel, assert_operations_are_rounded_once, compile_for

    masks = {"HAS_MASK": True, "HAS_ROWS": True, "HAS_TEMPERATURE": True}
    inputs = {"logits": logits, "bitmask": "i32", "rows": "i32", "temperatures": "fp32", "lists": "i32"}
    aligned = ("logits", "lists", "vocab_begin", "vocab_end", "logits_row_stride")
    idle_bits = {"fp32": 0, "fp16": 12, "bf16": 16}[logits]
    ptx = compile_for(
        architecture,
        Kernel(
            "token_logprobs",
            "top_tokens_kernel",
            inputs | {"token_ids": "i64", "top_ids": "i64", "top_logits": "fp32", "token_logits": "fp32"},
            masks | {"IDLE_KEY_BITS": idle_bits, "TILE": token_logprobs.TILE},
            aligned,
            token_logprobs.NUM_WARPS,
        ),
        Kernel(
            "token_logprobs",
            "row_totals_kernel",
            inputs | {"highest": "fp32", "token_logits": "fp32", "totals": "i64"},
            masks | {"TILE": token_logprobs.TILE},
            aligned,
            token_logprobs.NUM_WARPS,
        ),
        Kernel(
            "token_logprobs",
            "merge_totals_kernel",
            {"totals": "i64", "ranks": "i64"}
            | dict.fromkeys(("temperatures", "highest", "token_logits", "top_logits"), "fp32")
            | dict.fromkeys(("logprobs", "top_logprobs"), "fp32"),
            {"HAS_TEMPERATURE": True, "BLOCK": 64},
            num_warps=1,
        ),
    )
    assert_operations_are_rounded_once(ptx)
    assert ptx.count("ld.global.v4.b32") >= 2  # at least one for each pass over aligned logits
