"""verify_drafts on every backend equals decoding one token at a time."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

import structout
from structout import pack_bitmask
from structout.ops import reference
from support.devices import DEVICES, TRITON_DEVICE
from support.refusals import REFUSED

BACKENDS = [
    pytest.param(("cpu", "cpu"), id="cpu"),
    pytest.param(("triton", TRITON_DEVICE), id="triton", marks=pytest.mark.triton),
    pytest.param(("cuda", "cuda"), id="cuda", marks=pytest.mark.gpu),
]


def op_of(backend: str) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    if backend == "triton":
        from structout.triton_kernels.verify_drafts import verify_drafts

        return verify_drafts
    return torch.ops.structout.verify_drafts.default


def make_arguments(rng: random.Random, device: str) -> tuple[torch.Tensor | None, ...]:
    """Make a batch of requests with 0 to 5 drafts, of which about half are what will be
    drawn."""
    num_drafts = [rng.choice([0, 1, 3, 5]) for _ in range(rng.randint(1, 6))]
    ends = torch.tensor([0, *(k + 1 for k in num_drafts)]).cumsum(0)
    num_rows, vocab_size = int(ends[-1]), rng.choice([5, 70, 300])
    generator = torch.Generator().manual_seed(rng.getrandbits(60))
    bitmask = rows = None
    if rng.random() < 0.7:
        bitmask = pack_bitmask(torch.rand(3, vocab_size, generator=generator) < rng.choice([0.0, 0.1, 0.7]))
        rows = torch.tensor([rng.choice([-1, 0, 1, 2]) for _ in range(num_rows)], dtype=torch.int32)
    draws = (
        torch.randn(num_rows, vocab_size, generator=generator) * 2,
        bitmask,
        rows,
        torch.tensor([rng.choice([0.0, 0.7, 1.0]) for _ in range(num_rows)]),
        rng.choice([None, torch.full((num_rows,), 3)]),
        rng.choice([None, torch.full((num_rows,), 0.9)]),
        None,
        torch.randint(2**40, (num_rows,), generator=generator),
        torch.arange(num_rows),
    )
    drafts = reference.masked_sample(*draws)
    is_wrong = torch.rand(num_rows, generator=generator) < 0.25
    drafts = torch.where(is_wrong, torch.randint(-1, vocab_size, (num_rows,), generator=generator), drafts)
    row_indptr = ends.to(rng.choice([torch.int32, torch.int64]))
    return tuple(a if a is None else a.to(device) for a in (*draws, drafts, row_indptr))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy warns of infinities
@pytest.mark.parametrize("backend", BACKENDS)
def test_verify_drafts_on_random_batches_matches_reference(backend, num_cases):
    rng, op = random.Random(1), op_of(backend[0])
    is_interpreted = backend == ("triton", "cpu")
    for _ in range(num_cases(2, long=30) if is_interpreted else num_cases(40, long=500)):
        arguments = make_arguments(rng, backend[1])
        for got, expected in zip(op(*arguments), reference.verify_drafts(*arguments), strict=True):
            assert got.dtype == expected.dtype
            assert torch.equal(got, expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("backend", BACKENDS)
def test_verify_drafts_with_bad_row_indptr_stays_inside_the_rows(backend):
    rng, (name, device) = random.Random(2), backend
    accept_drafts = torch.ops.structout._accept_drafts.default
    if name == "triton":
        from structout.triton_kernels.verify_drafts import accept_drafts
    for ends in ([-5, 3, 10**9], [4, 1, 2], [0, 2**31 - 1, 0]):
        *draws, drafts, _ = make_arguments(rng, device)
        row_indptr = torch.tensor(ends, device=device)
        expected_ids, expected_counts = reference.verify_drafts(*draws, drafts, row_indptr)
        ids = reference.masked_sample(*draws)
        assert torch.equal(accept_drafts(ids, drafts, row_indptr), expected_counts)
        assert torch.equal(ids, expected_ids)


class Model:
    """Logits as a function of the text, with masks that forbid some tokens."""

    def __init__(self, vocab_size: int, seed: int):
        self.vocab_size, self.seed = vocab_size, seed

    def logits(self, text: tuple[int, ...]) -> torch.Tensor:
        generator = torch.Generator().manual_seed(hash((self.seed, text)) % 2**60)
        return torch.randn(self.vocab_size, generator=generator) * 3

    def allowed(self, text: tuple[int, ...]) -> torch.Tensor:
        generator = torch.Generator().manual_seed(hash((self.seed + 1, text)) % 2**60)
        return torch.rand(self.vocab_size, generator=generator) < 0.4


PARAMETERS = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.0, "seed": 17},
    "filtered": {"temperature": 0.8, "seed": 5, "top_k": 6, "top_p": 0.9, "min_p": 0.01},
}


def decode(model: Model, parameters: dict[str, float], length: int) -> list[int]:
    text: tuple[int, ...] = ()
    while len(text) < length:
        mask = pack_bitmask(model.allowed(text)[None])
        token = structout.masked_sample(model.logits(text)[None], mask, **parameters, position=len(text))
        text = (*text, int(token))
    return list(text)


@pytest.mark.parametrize("kind", PARAMETERS)
@pytest.mark.parametrize("accuracy", [0.0, 0.6, 1.0])
def test_decoding_with_drafts_gives_the_tokens_of_decoding_one_by_one(kind, accuracy):
    """Drafts are wrong, forbidden by the mask, or -1 with the given probability."""
    rng, length, parameters = random.Random(3), 24, PARAMETERS[kind]
    models = [Model(50, seed) for seed in range(4)]
    expected = [decode(model, parameters, length + 8) for model in models]
    texts: list[tuple[int, ...]] = [()] * len(models)
    num_steps = 0
    while min(map(len, texts)) < length:
        num_steps += 1
        logits, masks, drafts, positions, ends = [], [], [], [], [0]
        for model, text, whole in zip(models, texts, expected, strict=True):
            proposal = [
                whole[len(text) + j] if rng.random() < accuracy else rng.randint(-1, 49)
                for j in range(rng.choice([0, 2, 4]) if len(text) < length else 0)
            ]
            for j in range(len(proposal) + 1):
                prefix = (*text, *proposal[:j])
                logits.append(model.logits(prefix))
                masks.append(model.allowed(prefix))
                positions.append(len(prefix))
            drafts += [*proposal, -7]  # the last entry is not read
            ends.append(len(logits))
        ids, num_accepted = structout.verify_drafts(
            torch.stack(logits), torch.tensor(drafts), torch.tensor(ends), pack_bitmask(torch.stack(masks)),
            **parameters, position=torch.tensor(positions),
        )  # fmt: skip
        for b in range(len(models)):
            begin, accepted = ends[b], int(num_accepted[b])
            assert (ids[begin : begin + accepted + 1] >= 0).all()
            assert (ids[begin + accepted + 1 : ends[b + 1]] == -1).all()
            texts[b] = (*texts[b], *ids[begin : begin + accepted + 1].tolist())
    for text, whole in zip(texts, expected, strict=True):
        assert list(text[:length]) == whole[:length]
    if accuracy == 1.0:
        assert num_steps < length


def test_drafter_with_the_same_noise_is_exact_and_accepted_more_often():
    """The target's tokens do not depend on the drafter; sharing the noise only makes
    more drafts right."""
    generator = torch.Generator().manual_seed(0)
    num_requests, vocab_size = 400, 64
    target = torch.randn(num_requests, vocab_size, generator=generator) * 2
    drafter = target + torch.randn(num_requests, vocab_size, generator=generator) * 0.5
    position = torch.arange(num_requests)
    accepted = {}
    expected = structout.masked_sample(target, seed=1, position=position)
    for noise in (1, 2):
        drafts = structout.masked_sample(drafter, seed=noise, position=position)
        both = torch.stack([drafts, torch.full_like(drafts, -1)], 1).flatten()
        ids, num_accepted = structout.verify_drafts(
            target.repeat_interleave(2, 0), both, torch.arange(0, 2 * num_requests + 1, 2),
            seed=1, position=torch.stack([position, position + num_requests], 1).flatten(),
        )  # fmt: skip
        assert torch.equal(ids[::2], expected)
        accepted[noise] = int(num_accepted.sum())
    assert accepted[1] > 1.5 * accepted[2]


def test_draft_of_minus_one_is_not_accepted_where_nothing_can_be_drawn():
    logits = torch.zeros(2, 4)
    bitmask = torch.zeros(1, 1, dtype=torch.int32)
    drafts = torch.tensor([-1, -1])
    ids, num_accepted = structout.verify_drafts(
        logits, drafts, torch.tensor([0, 2]), bitmask, torch.zeros(2, dtype=torch.int32)
    )
    assert ids.tolist() == [-1, -1]
    assert num_accepted.tolist() == [0]


@pytest.mark.parametrize("device", DEVICES)
def test_verify_drafts_passes_opcheck(device):
    rng = random.Random(4)
    for _ in range(2):
        torch.library.opcheck(torch.ops.structout.verify_drafts.default, make_arguments(rng, device))


@pytest.mark.parametrize("device", DEVICES)
def test_verify_drafts_compiles_to_one_graph(device):
    def step(logits, drafts, row_indptr, position):
        return structout.verify_drafts(logits * 2, drafts, row_indptr, temperature=0.5, seed=3, position=position)

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for num_requests in (2, 5):
        logits = torch.randn(3 * num_requests, 50, device=device)
        drafts = torch.randint(50, (3 * num_requests,), device=device)
        row_indptr = torch.arange(0, 3 * num_requests + 1, 3, device=device)
        inputs = logits, drafts, row_indptr, torch.arange(3 * num_requests, device=device)
        for got, expected in zip(compiled(*inputs), step(*inputs), strict=True):
            assert torch.equal(got, expected)


def test_verify_drafts_without_requests_or_rows():
    ids, num_accepted = structout.verify_drafts(
        torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    )
    assert ids.shape == (0,)
    assert num_accepted.shape == (0,)


@pytest.mark.parametrize(
    ("drafts", "row_indptr", "message"),
    [
        (torch.zeros(3, dtype=torch.int64), torch.tensor([0, 2]), r"drafts must have one entry .* \[2\]"),
        (torch.zeros(2, dtype=torch.int32), torch.tensor([0, 2]), "drafts must be int64"),
        (torch.zeros(2, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), "row_indptr must have one entry"),
        (torch.zeros(2, dtype=torch.int64), torch.tensor([0.0, 2.0]), "row_indptr must be int32 or int64"),
        (torch.zeros(2, dtype=torch.int64), torch.tensor([[0, 2]]), "row_indptr must have one entry"),
    ],
)
def test_verify_drafts_refuses_bad_arguments(drafts, row_indptr, message):
    with pytest.raises(REFUSED, match=f"^verify_drafts: {message}"):
        structout.verify_drafts(torch.zeros(2, 4), drafts, row_indptr)


def test_sampler_applies_penalties_and_bias_before_it_verifies_drafts():
    generator = torch.Generator().manual_seed(6)
    logits = torch.randn(4, 30, generator=generator)
    penalties = structout.Penalties(
        torch.tensor([0, 2, 2, 3, 3]), torch.tensor([4, 9, 7]), torch.tensor([1, 0, 2]), 1.7
    )
    bias = structout.LogitBias(torch.tensor([0, 0, 1, 1, 2]), torch.tensor([3, 8]), torch.tensor([-50.0, 50.0]))
    drafts = structout.Drafts(torch.tensor([8, -1, 2, -1]), torch.tensor([0, 2, 4]))
    params = structout.SamplingParams(temperature=0.7, seed=3, position=torch.arange(4))

    expected = logits.clone()
    structout.apply_penalties(
        expected, penalties.indptr, penalties.token_ids, penalties.output_counts, repetition=penalties.repetition
    )
    structout.apply_logit_bias(expected, bias.indptr, bias.token_ids, bias.bias)
    ids, num_accepted = structout.verify_drafts(
        expected, drafts.token_ids, drafts.row_indptr, temperature=0.7, seed=3, position=torch.arange(4)
    )
    assert int(structout.masked_sample(expected, temperature=0.0)[3]) == 8  # the bias decides

    for sampler in (structout.MaskedSampler(), structout.VocabParallelSampler(0, group="")):
        changed = logits.clone()
        got = sampler(changed, None, params, penalties=penalties, bias=bias, drafts=drafts)
        assert torch.equal(changed, expected)
        assert torch.equal(got.ids, ids)
        assert torch.equal(got.num_accepted, num_accepted)


def test_numbers_give_the_tokens_of_tensors_in_every_mode():
    """Numbers are kept as tensors between calls: not those of traced calls, and not
    confused where they compare equal."""
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(1))

    def draw(x):
        return structout.masked_sample(x, temperature=0.9, top_k=5, top_p=0.8, min_p=0.0, seed=1)

    tensors = [torch.full((3,), value) for value in (0.9, 0.8)]
    expected = structout.masked_sample(
        logits, temperature=tensors[0], top_k=torch.full((3,), 5), top_p=tensors[1], seed=1
    )
    torch._dynamo.reset()
    compiled = torch.compile(draw, fullgraph=True, backend="aot_eager")
    with torch.inference_mode():
        assert torch.equal(draw(logits), expected)
    for call in (draw, compiled, draw):
        assert torch.equal(call(logits), expected)
    with torch._subclasses.FakeTensorMode() as mode:
        assert draw(mode.from_tensor(logits)).shape == (3,)
    assert torch.equal(draw(logits), expected)
