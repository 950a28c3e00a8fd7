"""masked_sample on CPU, and on CUDA with a GPU, equals structout.ops.reference bit for
bit."""

import json
import math
import os
import random
from pathlib import Path

import pytest
import torch

import structout
from structout.masks.bitmask import bitmask_width
from structout.ops import reference, sampling_math
from support import fresh_process, masked_sample_cases as cases
from support.devices import DEVICES
from support.locations import importing
from support.refusals import REFUSED

sample = torch.ops.structout.masked_sample.default
sample_logprobs = torch.ops.structout.masked_sample_logprobs.default


def case_of(logits, bitmask=None, rows=None, *, device="cpu", **parameters):
    """Return a case with the same parameters for all rows."""
    n = logits.shape[0]

    def expanded(name, dtype, default):
        value = parameters.get(name, default)
        return None if value is None else torch.full((1,), value, dtype=dtype, device=device).expand(n)

    return cases.Case(
        logits.to(device),
        None if bitmask is None else bitmask.to(device),
        None if rows is None else rows.to(device),
        expanded("temperature", torch.float32, 1.0),
        expanded("top_k", torch.int32, None),
        expanded("top_p", torch.float32, None),
        expanded("min_p", torch.float32, None),
        parameters.get("seed", torch.arange(n, device=device)),
        parameters.get("position", torch.arange(n, device=device) * 7),
    )


@pytest.mark.parametrize("device", DEVICES)
def test_masked_sample_on_random_cases_matches_reference(device, num_cases):
    for seed in range(200, 204):
        for case in cases.random_cases(seed, num_cases(300, long=5000 if device == "cuda" else 1500), device=device):
            ids = cases.check(sample_logprobs, case)
            assert torch.equal(sample(*case.arguments()), ids), case.origin


@pytest.mark.usefixtures("four_threads")
@pytest.mark.parametrize("device", DEVICES)
def test_masked_sample_on_random_long_rows_matches_reference(device, num_cases):
    """Rows of many blocks, candidate lists, and rows shared between threads."""
    for case in cases.random_cases(300, num_cases(100, long=500), device=device, max_vocab=40_000):
        cases.check(sample_logprobs, case)
    for case in cases.random_cases(301, num_cases(30, long=120), device=device, max_vocab=300_000, max_rows=3):
        cases.check(sample_logprobs, case)


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_masked_sample_with_fewer_cpu_instructions_matches_reference(capability, num_cases):
    if torch.ops.structout._cpu_capability() == "default" and capability == "avx2":
        pytest.skip(f"needs a CPU with {capability}")
    script = (
        "import torch, structout\nfrom support import masked_sample_cases as cases\n"
        f"small = {{'count': {num_cases(200, long=800)}}}\n"
        f"large = {{'count': {num_cases(25, long=100)}, 'max_vocab': 150_000, 'max_rows': 3}}\n"
        "for limits in (small, large):\n"
        "    for case in cases.random_cases(seed=9, **limits):\n"
        "        cases.check(torch.ops.structout.masked_sample_logprobs, case)\n"
        "print(torch.ops.structout._cpu_capability())"
    )
    environment = importing(__file__) | {"STRUCTOUT_CPU_CAPABILITY": capability}
    run = fresh_process.run("-c", script, env=environment, timeout=1800)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == capability


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("allowed", [1, 16, 1000, 0.968, None], ids=str)
def test_masked_sample_at_real_vocabulary_size_with_each_filter_matches_reference(device, dtype, allowed):
    generator = torch.Generator().manual_seed(5)
    vocab_size = 151_936
    logits = (torch.randn(2, vocab_size, generator=generator) * 3).to(dtype)
    bitmask = None
    if allowed is not None:
        share = allowed if allowed < 1 else allowed / vocab_size
        mask = torch.rand(2, vocab_size, generator=generator) < share
        mask[:, 77_777] = True
        bitmask = structout.pack_bitmask(mask)
    filters = [{}, {"top_p": 0.9}, {"top_k": 50, "top_p": 0.9}, {"min_p": 0.05}, {"top_k": 3000}, {"temperature": 0.0}]
    for chosen in filters:
        cases.check(sample_logprobs, case_of(logits, bitmask, device=device, **({"temperature": 0.7} | chosen)))


@pytest.mark.parametrize("device", DEVICES)
def test_masked_sample_on_longest_row_does_not_overflow_masses(device):
    """At this temperature every token has a mass of nearly 2^40."""
    logits = torch.randn(1, 2**23 - 1, generator=torch.Generator().manual_seed(0))
    logits[0, -1] = 9.0
    cases.check(sample_logprobs, case_of(logits, device=device, temperature=1e30, top_p=0.5))


@pytest.mark.parametrize("device", DEVICES)
def test_top_p_that_lacks_one_unit_of_mass_keeps_the_next_token(device):
    """A row has about 2^41 units of mass. top_p's target is rounded to float32, so the
    test searches for a logit with which the first 70,000 tokens miss it by one unit."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.empty(1, 100_001).uniform_(-11.8, -11.2, generator=generator)
    logits[0, 0], logits[0, 70_000:] = 0.0, -12.0
    choices = torch.empty(1 << 20).uniform_(-11.8, -11.2, generator=generator)
    masses = sampling_math.mass(logits[0])
    before = masses[:70_000].sum() - masses[1] + sampling_math.mass(choices)
    total = (before + masses[70_000:].sum()).float()
    top_p = (before + 1).float() / total
    found = ((top_p * total).to(torch.int64) == before + 1).nonzero()[0, 0]
    logits[0, 1] = choices[found]
    case = case_of(logits.repeat(16, 1), device=device, top_p=float(top_p[found]))
    assert (cases.check(sample_logprobs, case) >= 70_000).any()


@pytest.mark.parametrize("device", DEVICES)
def test_filters_turn_where_they_should(device):
    exact_top_p, flat_top_k = (cases.check(sample_logprobs, case) for case in cases.turning_cases(device))
    assert exact_top_p.unique().tolist() == [150]
    assert len(flat_top_k.unique()) > 3


@pytest.mark.parametrize("device", DEVICES)
def test_masked_sample_of_a_row_does_not_depend_on_its_batch(device):
    generator = torch.Generator().manual_seed(6)
    row = torch.randn(1, 3000, generator=generator)
    alone = case_of(
        row, device=device, seed=torch.tensor([11], device=device), position=torch.tensor([22], device=device)
    )
    alone.top_k = torch.tensor([40], device=device)
    expected = sample_logprobs(*alone.arguments())
    for n in (2, 3, 64, 4096):
        logits = torch.randn(n, 3000, generator=generator)
        at = random.Random(n).randrange(n)
        logits[at] = row[0]
        case = case_of(logits, device=device)
        case.seed = torch.arange(n, device=device).index_fill(0, torch.tensor([at], device=device), 11)
        case.position = torch.full((n,), 5, device=device).index_fill(0, torch.tensor([at], device=device), 22)
        case.top_k = torch.full((n,), 40, device=device)
        ids, logprobs = sample_logprobs(*case.arguments())
        assert ids[at] == expected[0][0], n
        assert logprobs[at] == expected[1][0], n


@pytest.mark.parametrize("num_threads", [3, 7])
def test_masked_sample_result_does_not_depend_on_num_threads(num_threads):
    """Rows shared by all threads, by pairs of threads, and rows dealt to threads."""
    generator = torch.Generator().manual_seed(8)
    inputs = [
        case_of(torch.randn(n, vocab_size, generator=generator) * 3, **({"temperature": 0.8} | filters))
        for n in (1, 2, 3, 5)
        for vocab_size in (5000, 150_000)
        for filters in ({}, {"min_p": 0.01}, {"top_p": 0.9}, {"top_k": 500, "top_p": 0.9}, {"temperature": 0.0})
    ]

    def draw_all(threads):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return [sample_logprobs(*case.arguments()) for case in inputs]
        finally:
            torch.set_num_threads(before)

    for case, (ids, logprobs), (expected_ids, expected_logprobs) in zip(
        inputs, draw_all(num_threads), draw_all(1), strict=True
    ):
        assert torch.equal(ids, expected_ids), case.describe_row(0)
        assert torch.equal(logprobs.view(torch.int32), expected_logprobs.view(torch.int32)), case.describe_row(0)


MEMORY_SCRIPT = """
import torch, structout

def resident_bytes():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

logits = torch.randn(1, 2**22)
structout.masked_sample(logits)
before = resident_bytes()
structout.masked_sample(logits, top_k=50)
print(resident_bytes() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_masked_sample_with_small_top_k_takes_little_memory():
    """Each thread keeps its candidate list: one for the whole vocabulary takes 8 bytes
    a token."""
    run = fresh_process.run("-c", MEMORY_SCRIPT, env=dict(os.environ), timeout=1800)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 2**22


def denormal_case(n, vocab_size):
    """Return subnormal logits, made from bits because arithmetic may flush them to
    zero.

    Divided by the temperature they reach 1/2.
    """
    generator = torch.Generator().manual_seed(n)
    signs = torch.randint(2, (n, vocab_size), generator=generator, dtype=torch.int32) << 31
    magnitudes = torch.randint(2**22, (n, vocab_size), generator=generator, dtype=torch.int32)
    return case_of((signs | magnitudes).view(torch.float32), temperature=2.0**-126)


DENORMAL_SCRIPT = """
import json, torch
assert torch.set_flush_denormal(True)
torch.set_num_threads(4)
from test_masked_sample import denormal_case, sample_logprobs
for shape in json.loads(input()):
    ids, logprobs = sample_logprobs(*denormal_case(*shape).arguments())
    print(json.dumps([ids.tolist(), logprobs.view(torch.int32).tolist()]))
"""


def test_masked_sample_on_threads_that_flush_denormals_keeps_them():
    """A thread inherits this setting. In one shape rows are dealt out, in the other a
    row is shared."""
    shapes = [(64, 3000), (1, 150_000)]
    run = fresh_process.run("-c", DENORMAL_SCRIPT, input=json.dumps(shapes), env=importing(__file__), timeout=1800)
    assert run.returncode == 0, run.stderr
    for shape, line in zip(shapes, run.stdout.splitlines(), strict=True):
        ids, logprobs = reference.masked_sample_logprobs(*denormal_case(*shape).arguments())
        assert json.loads(line) == [ids.tolist(), logprobs.view(torch.int32).tolist()], shape


def test_masked_sample_when_caller_flushes_denormals_keeps_them():
    case = case_of(torch.tensor([[1e-40, 3e-40, 2e-40]]), temperature=1e-40)
    expected = reference.masked_sample_logprobs(*case.arguments())
    assert torch.set_flush_denormal(True)
    try:
        ids, logprobs = sample_logprobs(*case.arguments())
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(ids, expected[0])
    assert torch.equal(logprobs, expected[1])


@pytest.mark.parametrize("device", DEVICES)
def test_masked_sample_of_an_undrawable_row_is_minus_one_for_that_row_alone(device):
    nan, inf = math.nan, math.inf
    logits = torch.tensor([[1.0, nan], [nan, 1.0], [-inf, -inf], [2.0, 1.0], [1.0, inf], [3.0, 4.0]])
    bitmask = torch.tensor([[1], [3], [0]], dtype=torch.int32)
    rows = torch.tensor([1, 0, 1, 2, 1, 9])
    case = case_of(logits, bitmask, rows, device=device)
    ids, logprobs = sample_logprobs(*case.arguments())
    assert ids.tolist() == [-1, -1, -1, -1, 1, -1]
    assert logprobs.tolist() == [-inf, -inf, -inf, -inf, 0.0, -inf]
    case.rows = torch.tensor([0, -1, 0, 0, 0, 0], device=device)
    assert sample(*case.arguments()).tolist() == [0, -1, -1, 0, 0, 0]


@pytest.mark.parametrize("device", DEVICES)
def test_masked_sample_passes_opcheck(device, num_cases):
    for seed in range(num_cases(4, long=12)):
        case = cases.random_case(random.Random(seed), device=device, max_vocab=100)
        for op in (sample, sample_logprobs):
            torch.library.opcheck(op, case.arguments())


@pytest.mark.parametrize("device", DEVICES)
def test_masked_sampler_compiles_to_one_graph(device):
    def step(logits, bitmask, rows, seed):
        sampler = structout.MaskedSampler(top_n=2)
        masks = structout.DeviceMasks(bitmask, rows)
        return sampler(logits * 2, masks, structout.SamplingParams(temperature=0.8, top_k=20, seed=seed))

    compiled = torch.compile(step, fullgraph=True, dynamic=True)
    for num_rows in (3, 5, 9):
        logits = torch.randn(num_rows, 50, device=device)
        bitmask = structout.pack_bitmask(torch.rand(4, 50, device=device) < 0.5)
        inputs = (logits, bitmask, torch.arange(num_rows, device=device) % 4, torch.arange(num_rows, device=device))
        for ours, eager in zip(compiled(*inputs)[:5], step(*inputs)[:5], strict=True):
            assert torch.equal(ours, eager)


def test_masked_sample_wrapper_accepts_scalars_and_1d_logits():
    logits = torch.randn(2000)
    with torch.inference_mode():
        greedy, logprob = structout.masked_sample_logprobs(logits, temperature=0)
        assert greedy.tolist() == [int(logits.argmax())]
        torch.testing.assert_close(logprob, logits.log_softmax(-1).max().unsqueeze(0))
        drawn = [structout.masked_sample(logits, top_k=3, top_p=0.9, min_p=0.01, seed=1, position=i) for i in range(50)]
    assert {int(token) for token in drawn} <= set(logits.topk(3).indices.tolist())
    assert structout.masked_sample(torch.empty(0, 5)).shape == (0,)


def test_masked_sample_wrapper_accepts_every_float32_and_64_bit_scalar():
    logits = torch.randn(1, 2000)
    for temperature in (1e-45, 2.0**-149, 3.4028234663852886e38):
        expected = case_of(logits, temperature=temperature)
        assert torch.equal(structout.masked_sample(logits, temperature=temperature), sample(*expected.arguments()))
    for as_unsigned in (2**63, 2**64 - 1, 2**63 + 12_345):
        as_signed = as_unsigned - 2**64
        drawn = [
            structout.masked_sample(logits, seed=s, position=i) for s in (as_unsigned, as_signed) for i in range(20)
        ]
        assert drawn[:20] == drawn[20:]
    structout.masked_sample(logits, seed=-(2**63), position=-(2**63), top_k=2**63 - 1)


def test_masked_sample_logprobs_on_logits_that_require_grad_raises():
    logits = torch.randn(2, 50, requires_grad=True)
    with pytest.raises(RuntimeError, match="masked_sample_logprobs has no gradient; call it under"):
        structout.masked_sample_logprobs(logits)
    with torch.no_grad():
        ids, _ = structout.masked_sample_logprobs(logits)
    assert torch.equal(structout.masked_sample(logits), ids)


LOGITS, MASK = torch.zeros(3, 40), torch.zeros(3, 2, dtype=torch.int32)
INVALID_INPUTS = {
    "float64 logits": ({"logits": LOGITS.double()}, "logits must be float32, float16 or bfloat16, got float64"),
    "3-D logits": ({"logits": LOGITS[None]}, "logits must have 1 or 2 dimensions, got 3"),
    "transposed logits": ({"logits": torch.zeros(40, 3).t()}, "last dimension of logits must be contiguous"),
    "no columns": ({"logits": torch.zeros(3, 0)}, r"logits must have at least one column, got shape \[3, 0\]"),
    "too many columns": ({"logits": torch.zeros(2**23)}, "logits must have at most 8388607 columns, got 8388608"),
    "bool mask": ({"bitmask": MASK.bool()}, "bitmask must be int32, got bool"),
    "too few masks": ({"bitmask": MASK[:2]}, "without rows, bitmask must have one row per logits row, 3, got 2"),
    "rows without mask": ({"rows": torch.zeros(3).int()}, "but there is no bitmask; pass both or neither"),
    "float rows": ({"bitmask": MASK, "rows": torch.zeros(3)}, "rows must be int32 or int64, got float32"),
    "float64 temperature": ({"temperature": torch.ones(3).double()}, "temperature must be float32, got float64"),
    "short temperature": (
        {"temperature": torch.ones(2)},
        r"temperature must have one entry per logits row, shape \[3\]",
    ),
    "float top_k": ({"top_k": torch.ones(3)}, "top_k must be int32 or int64, got float32"),
    "integer top_p": ({"top_p": torch.ones(3).int()}, "top_p must be float32, got int32"),
    "2-D min_p": ({"min_p": torch.ones(3, 1)}, r"min_p must have one entry per logits row, shape \[3\], got \[3, 1\]"),
    "int32 seed": ({"seed": torch.ones(3).int()}, "seed must be int64, got int32"),
    "float position": ({"position": torch.ones(3)}, "position must be int64, got float32"),
    "negative temperature": ({"temperature": -1.0}, "temperature must be a finite number of at least 0, got -1.0"),
    "infinite temperature": ({"temperature": math.inf}, "temperature must be a finite number"),
    "NaN top_p": ({"top_p": math.nan}, "top_p must be a finite number of at least 0, got nan"),
    "negative min_p": ({"min_p": -0.1}, "min_p must be a finite number of at least 0"),
    "infinite min_p": ({"min_p": math.inf}, "min_p must be a finite number of at least 0, got inf"),
    "infinite top_p": ({"top_p": math.inf}, "top_p must be a finite number of at least 0, got inf"),
    "huge temperature": (
        {"temperature": 1e39},
        r"temperature must fit float32: at most 3.402823e\+38, got 1e\+39",
    ),
    "huge top_p": ({"top_p": 3.5e38}, "top_p must fit float32"),
    "tiny temperature": ({"temperature": 7e-46}, "temperature 7e-46 rounds to 0 in float32, which is greedy"),
    "seed of 65 bits": ({"seed": 2**64}, r"seed must be from -2\^63 to 18446744073709551615, got 18446744073709551616"),
    "seed below int64": ({"seed": -(2**63) - 1}, r"seed must be from -2\^63"),
    "huge position": ({"position": 2**63}, r"position must be from -2\^63 to 9223372036854775807"),
    "huge top_k": ({"top_k": 2**63}, r"top_k must be from -2\^63 to 9223372036854775807"),
}


@pytest.mark.parametrize("name", INVALID_INPUTS)
def test_masked_sample_with_invalid_input_raises(name):
    arguments, message = INVALID_INPUTS[name]
    with pytest.raises(REFUSED, match=f"^masked_sample: .*{message}"):
        structout.masked_sample(**({"logits": LOGITS} | arguments))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("temperature", None, "a number or a float32 tensor with one value per row, got NoneType"),
        ("temperature", "0.5", "a number or a float32 tensor with one value per row, got str"),
        ("top_p", [0.5], "a number or a float32 tensor with one value per row, got list"),
        ("min_p", 1j, "a number or a float32 tensor with one value per row, got complex"),
        ("top_k", 2.0, "an int or an int64 tensor with one value per row, got float"),
        ("seed", None, "an int or an int64 tensor with one value per row, got NoneType"),
        ("seed", 1.5, "an int or an int64 tensor with one value per row, got float"),
        ("position", "3", "an int or an int64 tensor with one value per row, got str"),
    ],
)
def test_masked_sample_with_parameter_of_wrong_type_raises(name, value, expected):
    for op in (structout.masked_sample, structout.masked_sample_logprobs):
        with pytest.raises(TypeError, match=f"^masked_sample: {name} must be {expected}$"):
            op(LOGITS, **{name: value})


@pytest.mark.gpu
def test_masked_sample_in_captured_graph_reads_everything_anew():
    """Masks, rows and parameters change between replays, and each decides some ids."""
    num_rows, num_masks, vocab_size = 6, 3, 20_000
    case = case_of(
        torch.randn(num_rows, vocab_size),
        torch.zeros(num_masks, bitmask_width(vocab_size), dtype=torch.int32),
        torch.zeros(num_rows, dtype=torch.int64),
        device="cuda",
        **{name: 0 for name in ("temperature", "top_k", "top_p", "min_p")},
    )
    for name in ("temperature", "top_k", "top_p", "min_p"):
        setattr(case, name, getattr(case, name).contiguous())
    sample_logprobs(*case.arguments())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ids, logprobs = sample_logprobs(*case.arguments())
    generator = torch.Generator("cuda").manual_seed(0)
    drawn = []
    for step in range(1000):
        case.logits.normal_(generator=generator)
        allowed = torch.rand(num_masks, vocab_size, generator=generator, device="cuda") < (0.0002, 0.01, 0.9)[step % 3]
        case.bitmask.copy_(structout.pack_bitmask(allowed))
        case.rows.random_(-1, num_masks, generator=generator)
        case.seed.random_(generator=generator)
        case.position.fill_(step)
        case.temperature.uniform_(0.1, 1.5, generator=generator)
        case.top_k.random_(0, 100, generator=generator)
        case.top_p.uniform_(0.5, 1.0, generator=generator)
        case.min_p.uniform_(0.0, 0.1, generator=generator)
        graph.replay()
        expected = reference.masked_sample_logprobs(*case.arguments())
        assert torch.equal(ids, expected[0]), step
        assert torch.equal(logprobs, expected[1]), step
        drawn.append(ids[case.rows >= 0])
    assert len(torch.cat(drawn).unique()) > 500


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("num_rows", [1, 40, 300])
def test_masked_sample_on_every_path_matches_reference(num_rows, dtype):
    """One row takes a cluster, whose blocks share memory; 300 rows take a block each.

    Masks allow none, one, few and most of the tokens.
    """
    vocab_size = 40_000
    generator = torch.Generator("cuda").manual_seed(num_rows)
    logits = (torch.randn(num_rows, vocab_size, generator=generator, device="cuda") * 3).to(dtype)
    shares = torch.tensor([0.0, 1 / vocab_size, 0.01, 0.9], device="cuda")
    allowed = torch.rand(4, vocab_size, generator=generator, device="cuda") < shares[:, None]
    allowed[1:, 7] = True
    bitmask = structout.pack_bitmask(allowed)
    for first in (-1, 3, 2, 1, 0):  # the mask of the first row, which is the only one in a batch of one
        rows = (torch.arange(num_rows, device="cuda") + first + 1) % 5 - 1
        for filters in ({}, {"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.05}, {"top_k": 3500, "top_p": 0.95}):
            case = case_of(logits, bitmask, rows, device="cuda", **({"temperature": 0.7} | filters))
            cases.check(sample_logprobs, case)


@pytest.mark.gpu
@pytest.mark.parametrize("spread", [0.2, 1.5, 4.0, 12.0])  # of the logits: what top-p keeps fits in a list, or not
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_draws_of_whole_batches_on_cuda_equal_those_of_the_cpu(dtype, spread):
    """Clusters of 8, 2 and no blocks, at a size that the reference is too slow for."""
    generator = torch.Generator().manual_seed(3)
    for num_rows in (1, 60, 140):
        logits = (torch.randn(num_rows, 151_936, generator=generator) * spread).to(dtype)
        shares = torch.tensor([1e-5, 1e-3, 0.5, 0.97])
        allowed = torch.rand(4, 151_936, generator=generator) < shares[:, None]
        rows = torch.arange(num_rows) % 5 - 1
        for filters in (
            {},
            {"top_p": 0.9},
            {"top_p": 0.999},
            {"top_k": 50, "top_p": 0.9},
            {"min_p": 0.01, "top_p": 0.5},
        ):
            arguments = {"bitmask": structout.pack_bitmask(allowed), "rows": rows, "temperature": 0.9, **filters}
            expected = structout.masked_sample_topn(logits, top_n=20, **arguments)
            on_cuda = {
                name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()
            }
            results = structout.masked_sample_topn(logits.cuda(), top_n=20, **on_cuda)
            for name, got, wanted in zip(expected._fields, results, expected, strict=True):
                assert torch.equal(got.cpu(), wanted), (name, num_rows, filters)
