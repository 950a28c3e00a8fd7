"""apply_bitmask on every backend equals structout.ops.reference bit for bit."""

import os
import random

import pytest
import torch

import structout
from structout.masks.bitmask import bitmask_width
from structout.ops.token_bitmask import pack_bitmask
from support import apply_bitmask_backends, apply_bitmask_cases as cases, fresh_process
from support.devices import DEVICES
from support.locations import importing
from support.op_backends import BACKENDS
from support.refusals import REFUSED

by_dtype = pytest.mark.parametrize("dtype", cases.DTYPES, ids=lambda dtype: str(dtype)[6:])


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> tuple[cases.Op, str]:
    """An op and the device of its tensors."""
    name, device = request.param
    return apply_bitmask_backends.get(name), device


@pytest.fixture
def is_slow(request: pytest.FixtureRequest) -> bool:
    """Whether the backend interprets a kernel, or runs it on CPU threads."""
    name, device = request.node.callspec.params["backend"]
    return device == "cpu" and name != "cpu"


def test_reference_matches_loop_over_bits():
    for case in cases.random_cases(seed=1, count=300, max_vocab=90):
        expected = case.logits.clone()
        for i in range(expected.shape[0]):
            row = i if case.rows is None else int(case.rows[i])
            for token in range(expected.shape[1]):
                is_in_mask = 0 <= row < case.bitmask.shape[0] and token // 32 < case.bitmask.shape[1]
                allowed = row == -1 or (is_in_mask and int(case.bitmask[row, token // 32]) >> (token % 32) & 1)
                if not allowed:
                    expected[i, token] = float("-inf")
        structout.ops.reference.apply_bitmask(case.logits, case.bitmask, case.rows)
        cases.assert_same_bits(case.logits.contiguous(), expected, str(case))


@by_dtype
def test_apply_bitmask_with_every_vocabulary_residue_matches_reference(backend, is_slow, dtype):
    """Each residue modulo 32, with rows that are aligned and with others."""
    op, device = backend
    rng, layouts = random.Random(2), [(0, 0), (3, 1)]  # the gap between rows, and the first row's offset
    for i, vocab_size in enumerate([*range(1, 34), *range(128, 161), 4095, 4096, 4097]):
        for gap, offset in [layouts[(i + i // 33) % 2]] if is_slow else layouts:
            cases.check(op, cases.make_case(rng, num_rows=2, vocab_size=vocab_size, dtype=dtype, device=device,
                                            row_gap=gap, offset=offset))  # fmt: skip


@by_dtype
@pytest.mark.parametrize("density", [0.0, 0.001, 0.5, 0.999, 1.0])
def test_apply_bitmask_at_real_vocabulary_size_matches_reference(backend, dtype, density):
    op, device = backend
    rng = random.Random(3)
    cases.check(op, cases.make_case(rng, num_rows=3, vocab_size=50_257, dtype=dtype, device=device, density=density,
                                    num_masks=2, rows="int32"))  # fmt: skip


@pytest.mark.parametrize("rows", ["int32", "int64", "int32s", "int64s"])
def test_apply_bitmask_with_row_map_matches_reference(backend, rows):
    """Ids are -1, repeated or out of range; there are fewer masks than rows, or
    more."""
    op, device = backend
    rng = random.Random(4)
    for num_rows, num_masks in [(9, 3), (3, 9), (4, 0), (1, 1)]:
        cases.check(op, cases.make_case(rng, num_rows=num_rows, vocab_size=200, dtype=torch.float32, device=device,
                                        num_masks=num_masks, rows=rows))  # fmt: skip


@pytest.mark.parametrize("extra_words", [-3, -1, 1, 5])
def test_apply_bitmask_with_narrower_or_wider_mask_matches_reference(backend, extra_words):
    op, device = backend
    rng = random.Random(5)
    for vocab_size in (100, 128, 300):
        cases.check(op, cases.make_case(rng, num_rows=2, vocab_size=vocab_size, dtype=torch.float32, device=device,
                                        mask_words=bitmask_width(vocab_size) + extra_words))  # fmt: skip


def test_apply_bitmask_with_expanded_mask_matches_reference(backend):
    op, device = backend
    case = cases.make_case(
        random.Random(6), num_rows=4, vocab_size=77, dtype=torch.bfloat16, device=device, num_masks=1
    )
    case.bitmask = case.bitmask.expand(4, -1)
    cases.check(op, case)


def test_apply_bitmask_with_1d_logits_treats_them_as_one_row(backend):
    op, device = backend
    for mask_dim in (1, 2):
        case = cases.make_case(random.Random(7), num_rows=1, vocab_size=70, dtype=torch.float32, device=device)
        expected = case.expected_buffer()
        op(case.logits[0], case.bitmask[0] if mask_dim == 1 else case.bitmask, None)
        cases.assert_same_bits(case.buffer, expected)


@pytest.mark.parametrize(("num_rows", "vocab_size"), [(0, 40), (2, 0), (0, 0)])
def test_apply_bitmask_with_empty_logits_writes_nothing(backend, num_rows, vocab_size):
    op, device = backend
    cases.check(op, cases.make_case(random.Random(8), num_rows=num_rows, vocab_size=vocab_size, dtype=torch.float32,
                                    device=device))  # fmt: skip


@by_dtype
def test_apply_bitmask_with_rows_2_to_the_31_elements_apart_matches_reference(backend, dtype):
    op, device = backend
    case = cases.far_apart_rows(dtype, device)
    expected = case.logits.clone()
    structout.ops.reference.apply_bitmask(expected, case.bitmask)
    op(case.logits, case.bitmask, None)
    cases.assert_same_bits(case.logits.contiguous(), expected)


def test_apply_bitmask_on_random_cases_matches_reference(backend, request, num_cases):
    op, device = backend
    name = "gpu" if device == "cuda" else request.node.callspec.id
    count = {
        "cpu": num_cases(1_000, long=8_000, full=25_000),
        "cuda_on_cpu": num_cases(50, long=400),
        "ptx": num_cases(200, long=800, full=2_000),
        "triton": num_cases(20, long=150),
        "gpu": 5_000,
    }[name]
    for seed in range(100, 104):
        for case in cases.random_cases(seed, count, device=device):
            cases.check(op, case)


@pytest.mark.usefixtures("four_threads")
def test_apply_bitmask_on_random_long_rows_matches_reference(backend, is_slow, num_cases):
    """Rows longer than a tile of the CPU kernel, and more rows than threads."""
    op, device = backend
    rng = random.Random(11)
    for _ in range(num_cases(2, long=3) if is_slow else 60):
        vocab_size = rng.choice([32_769, 70_001, 131_072, 300_007])
        cases.check(op, cases.make_case(rng, num_rows=rng.choice([1, 3]) if is_slow else rng.randint(1, 20),
                                        vocab_size=vocab_size, dtype=rng.choice(cases.DTYPES), device=device,
                                        rows="int32", num_masks=3, row_gap=rng.choice([0, 5]),
                                        density=rng.choice([0.0, 0.001, 0.5, 0.999])))  # fmt: skip


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_apply_bitmask_with_fewer_cpu_instructions_matches_reference(capability, num_cases):
    script = (
        "import torch, structout\nfrom support import apply_bitmask_cases as cases\n"
        f"for case in cases.random_cases(seed=7, count={num_cases(1000, long=5000)}):\n"
        "    cases.check(torch.ops.structout.apply_bitmask, case)\n"
        "print(torch.ops.structout._cpu_capability())"
    )
    environment = importing(__file__) | {"STRUCTOUT_CPU_CAPABILITY": capability}
    run = fresh_process.run("-c", script, env=environment, timeout=1800)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == capability


READ_ONLY_ROWS = """
import mmap, torch, structout
vocab_size = 4096 + 5
memory = mmap.mmap(-1, 4 * vocab_size, prot=mmap.PROT_READ)
for dtype in (torch.float32, torch.bfloat16):
    logits = torch.frombuffer(memory, dtype=dtype, count=vocab_size).view(1, vocab_size)
    bitmask = torch.full((1, 129), -1, dtype=torch.int32)
    torch.ops.structout.apply_bitmask(logits, bitmask)
    torch.ops.structout.apply_bitmask(logits, torch.zeros_like(bitmask), torch.tensor([-1]))
print("ended")
"""


@pytest.mark.parametrize("capability", ["default", "avx2", "avx512"])
def test_apply_bitmask_writes_no_row_without_disallowed_tokens(capability):
    run = fresh_process.run("-c", READ_ONLY_ROWS, env=os.environ | {"STRUCTOUT_CPU_CAPABILITY": capability})
    assert (run.returncode, run.stdout) == (0, "ended\n"), run.stderr


def opcheck_inputs(device: str) -> list[tuple[torch.Tensor, ...]]:
    rng = random.Random(9)
    generated = [
        cases.make_case(rng, num_rows=n, vocab_size=v, dtype=dtype, device=device, num_masks=r, rows=rows, offset=o)
        for dtype in cases.DTYPES
        for n, v, r, rows, o in [
            (2, 40, 2, None, 0),
            (3, 33, 2, "int32", 1),
            (1, 64, 1, "int64", 0),
            (0, 8, 0, None, 0),
        ]
    ]
    return [(c.logits, c.bitmask) if c.rows is None else (c.logits, c.bitmask, c.rows) for c in generated]


@pytest.mark.parametrize("device", DEVICES)
def test_apply_bitmask_passes_opcheck(device):
    for inputs in opcheck_inputs(device):
        torch.library.opcheck(torch.ops.structout.apply_bitmask.default, inputs)


@pytest.mark.parametrize("device", DEVICES)
def test_apply_bitmask_compiles_to_one_graph_for_any_batch_size(device):
    def step(logits, bitmask, rows):
        scaled = logits * 2
        torch.ops.structout.apply_bitmask(scaled, bitmask, rows)
        return scaled.argmax(-1)

    graphs = []

    def count_graphs(graph, _):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    counted = torch.compile(step, fullgraph=True, dynamic=True, backend=count_graphs)
    compiled = torch.compile(step, fullgraph=True, dynamic=True)
    for num_rows in (3, 5, 6, 9):  # a size equal to another dimension would add a guard
        logits = torch.randn(num_rows, 50, device=device)
        bitmask = pack_bitmask(torch.rand(4, 50, device=device) < 0.3)
        rows = torch.arange(num_rows, device=device) % 4
        assert torch.equal(compiled(logits, bitmask, rows), step(logits, bitmask, rows))
        counted(logits, bitmask, rows)
    assert len(graphs) == 1


def test_apply_bitmask_on_logits_that_require_grad_raises_outside_no_grad():
    bitmask = torch.zeros(1, 1, dtype=torch.int32)
    with torch.inference_mode():
        logits = torch.ones(1, 8)
        structout.apply_bitmask(logits, bitmask)
        assert logits.isneginf().all()
    logits = torch.ones(1, 8, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"no gradient; call it under torch\.inference_mode"):
        structout.apply_bitmask(logits, bitmask)
    with torch.no_grad():
        structout.apply_bitmask(logits, bitmask)
    assert logits.isneginf().all()


def test_backward_raises_after_apply_bitmask_wrote_a_saved_tensor():
    leaf = torch.ones(1, 8, requires_grad=True)
    saved = leaf.exp()
    with torch.no_grad():
        structout.apply_bitmask(saved, torch.zeros(1, 1, dtype=torch.int32))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()


LOGITS, MASK = torch.zeros(3, 40), torch.zeros(3, 2, dtype=torch.int32)
INVALID_INPUTS = {
    "float64 logits": ((LOGITS.double(), MASK), "logits must be float32, float16 or bfloat16, got float64; convert"),
    "integer logits": ((LOGITS.int(), MASK), "logits must be float32, float16 or bfloat16, got int32"),
    "complex logits": ((LOGITS.to(torch.complex64), MASK), "logits must be float32, float16 or bfloat16"),
    "0-D logits": ((LOGITS[0, 0], MASK), r"logits must have 1 or 2 dimensions, got 0 \(shape \[\]\)"),
    "3-D logits": ((LOGITS[None], MASK), r"logits must have 1 or 2 dimensions, got 3 \(shape \[1, 3, 40\]\); flatten"),
    "transposed logits": ((torch.zeros(40, 3).t(), MASK), "last dimension of logits must be contiguous, got stride 3"),
    "expanded logits": (
        (LOGITS[:1].expand(3, -1), MASK),
        r"rows overlap \(row stride 0, row length 40\); use logits.con",
    ),
    "overlapping logits": ((torch.zeros(90).as_strided((3, 40), (20, 1)), MASK), r"rows overlap \(row stride 20"),
    "int64 mask": (
        (LOGITS, MASK.long()),
        "bitmask must be int32, got int64; pack a bool mask with structout.pack_bitmask",
    ),
    "bool mask": ((LOGITS, MASK.bool()), "bitmask must be int32, got bool"),
    "uint32 mask": ((LOGITS, MASK.view(torch.uint32)), "bitmask must be int32, got uint32"),
    "3-D mask": ((LOGITS, MASK[None]), "bitmask must have 1 or 2 dimensions, got 3"),
    "transposed mask": ((LOGITS, torch.zeros(2, 3, dtype=torch.int32).t()), "last dimension of bitmask must be contig"),
    "too few masks": (
        (LOGITS, MASK[:2]),
        "without rows, bitmask must have one row per logits row, 3, got 2",
    ),
    "float rows": ((LOGITS, MASK, torch.zeros(3)), "rows must be int32 or int64, got float32; convert with rows.int()"),
    "rows of another length": (
        (LOGITS, MASK, torch.zeros(2).int()),
        r"one entry per logits row, shape \[3\], got \[2\]",
    ),
    "2-D rows": ((LOGITS, MASK, torch.zeros(3, 1).int()), r"one entry per logits row, shape \[3\], got \[3, 1\]"),
    "mask in the logits": (
        (LOGITS, LOGITS.view(torch.int32)[:, :2]),
        "address range overlaps that of bitmask; clone one",
    ),
    "rows in the logits": (
        (LOGITS, MASK, LOGITS.view(torch.int32)[:, 0]),
        "address range overlaps that of rows; clone one",
    ),
}


@pytest.mark.parametrize("name", INVALID_INPUTS)
@pytest.mark.parametrize("backend_name", ["cpu", "triton", "wrapper"])
def test_apply_bitmask_with_invalid_input_raises_and_writes_nothing(backend_name, name):
    op = structout.apply_bitmask if backend_name == "wrapper" else apply_bitmask_backends.get(backend_name)
    inputs, message = INVALID_INPUTS[name]
    before = inputs[0].clone()
    with pytest.raises(REFUSED, match=f"^apply_bitmask: .*{message}"):
        op(*inputs)
    assert torch.equal(inputs[0], before)


@pytest.mark.gpu
@pytest.mark.parametrize("backend_name", ["cuda", pytest.param("triton", marks=pytest.mark.triton)])
def test_apply_bitmask_with_tensors_on_two_devices_raises(backend_name):
    op = apply_bitmask_backends.get(backend_name)
    with pytest.raises(REFUSED, match=r"bitmask must be on the device of logits \(cuda:0\), got cpu; move it"):
        op(LOGITS.cuda(), MASK)
    with pytest.raises(REFUSED, match=r"rows must be on the device of logits"):
        op(LOGITS.cuda(), MASK.cuda(), torch.zeros(3).int())
