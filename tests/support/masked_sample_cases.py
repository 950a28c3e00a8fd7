"""Inputs for masked_sample, and a bitwise comparison of ids and logprobs."""

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from structout.masks.bitmask import bitmask_width
from structout.ops import kernels, reference
from structout.ops.token_bitmask import pack_bitmask
from support.apply_bitmask_cases import DTYPES, random_words

# masked_sample_logprobs, as a function of the op's own signature.
Op = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@dataclass
class Case:
    """The arguments of one call, in the op's order.

    ``origin`` says how to make the case again, for failure messages.
    """

    logits: torch.Tensor
    bitmask: torch.Tensor | None
    rows: torch.Tensor | None
    temperature: torch.Tensor
    top_k: torch.Tensor | None
    top_p: torch.Tensor | None
    min_p: torch.Tensor | None
    seed: torch.Tensor
    position: torch.Tensor
    origin: str = ""

    def arguments(self) -> tuple[torch.Tensor | None, ...]:
        return tuple(getattr(self, field.name) for field in fields(self)[:-1])

    def describe_row(self, row: int) -> str:
        values = {f.name: getattr(self, f.name) for f in fields(self)[2:-1] if getattr(self, f.name) is not None}
        described = ", ".join(f"{name}={value[row].item()!r}" for name, value in values.items())
        mask = "no mask" if self.bitmask is None else f"mask {list(self.bitmask.shape)}"
        return f"{self.origin} row {row}: logits {self.logits.dtype} {list(self.logits.shape)}, {mask}, {described}"


def check(op: Op, case: Case) -> torch.Tensor:
    """Assert that ids and logprobs have the bits of the reference's.

    Return the ids.
    """
    ids, logprobs = op(*case.arguments())
    expected_ids, expected_logprobs = reference.masked_sample_logprobs(*case.arguments())
    assert ids.dtype == torch.int64
    assert logprobs.dtype == torch.float32
    differs = (ids != expected_ids) | (logprobs.view(torch.int32) != expected_logprobs.view(torch.int32))
    if differs.any():
        row = int(differs.nonzero()[0])
        got = (int(ids[row]), float(logprobs[row]).hex())
        wanted = (int(expected_ids[row]), float(expected_logprobs[row]).hex())
        raise AssertionError(f"{int(differs.sum())} rows differ: {got} != {wanted}; {case.describe_row(row)}")
    return ids


def check_part(op: Op, case: Case, begin: int, end: int) -> None:
    """Assert that an op that gets only the logits of tokens ``begin`` to ``end - 1``,
    and ``vocab_begin``, has the bits of the reference where all others are -inf.

    Beside the op's logits there is NaN, so that it shows if it reads that.
    """
    logits = case.logits.clone()
    logits[:, :begin] = logits[:, end:] = -math.inf
    expected = reference.masked_sample_logprobs(logits, *case.arguments()[1:])
    logits[:, :begin] = logits[:, end:] = math.nan
    got = op(logits[:, begin:end], *case.arguments()[1:], vocab_begin=begin)
    for name, wanted, found in zip(("ids", "logprobs"), expected, got, strict=True):
        assert torch.equal(wanted.view(torch.int32), found.view(torch.int32)), f"{name} {begin} {end} {case.origin}"


def random_part(rng: random.Random, vocab_size: int) -> tuple[int, int]:
    """Return a range of tokens, which need not begin or end at a word of a mask."""
    begin, end = sorted(rng.randint(0, vocab_size) for _ in range(2))
    return rng.choice([(begin, end), (begin, vocab_size), (0, end)])


def _beside(value: float) -> tuple[float, float, float]:
    """Return the float32 neighbours of a value, and the value between them."""
    x = np.float32(value)
    return float(np.nextafter(x, np.float32(-np.inf))), float(x), float(np.nextafter(x, np.float32(np.inf)))


# Common values, then edges: zeros of both signs, the smallest and largest values, where
# 1/T becomes subnormal or infinite, and the neighbours of each threshold.
USUAL = {
    "temperature": (0.0, 1.0, 0.7, 0.7, 1.3, 1e-3, 50.0),
    "top_p": (1.0, 1.0, 0.9, 0.5, 0.999),
    "min_p": (0.0, 0.0, 0.05, 0.5),
}
EDGES = {
    "temperature": (-0.0, 1e-30, 1e30, *_beside(2.0**-128), 2.0**-126, 1e-40, 1e-45, 2.0**127, 3.4028234663852886e38),
    "top_p": (*_beside(1.0), 0.0, -0.0, 1e-45, 1e-12, 1e-9, 0.99999, 2.0, math.inf),
    "min_p": (*_beside(2.0**-126), *_beside(1.0), -0.0, 1e-45, 1e-39, 1e-20, 1e-13, 3.0, math.inf),
}
INVALID = {
    "temperature": (-1.0, -1e-45, math.nan, math.inf),
    "top_p": (-0.5, -1e-45, math.nan),
    "min_p": (-1e-9, math.nan),
}
SEEDS = (0, -1, 2**63 - 1, -(2**63))


@dataclass(frozen=True)
class Form:
    """What Triton compiles a kernel for: dtypes, absent arguments and alignment.

    A dtype of None: the argument is absent.
    """

    logits: torch.dtype
    has_mask: bool
    rows: torch.dtype | None
    top_k: torch.dtype | None
    has_top_p: bool
    has_min_p: bool
    vocab_multiple: int  # 16: rows of a whole number of 16-byte vectors; 1: any width
    gaps: tuple[int, int]  # elements before and after each row of logits


def random_form(rng: random.Random) -> Form:
    has_mask = rng.random() < 0.8
    return Form(
        rng.choice(DTYPES),
        has_mask,
        rows=rng.choice([torch.int32, torch.int64]) if has_mask and rng.random() < 0.6 else None,
        top_k=rng.choice([torch.int32, torch.int64]) if rng.random() < 0.6 else None,
        has_top_p=rng.random() < 0.6,
        has_min_p=rng.random() < 0.6,
        vocab_multiple=1,
        gaps=(rng.choice([0, 0, 1, 3]), rng.choice([0, 0, 1, 16])),
    )


def _triton_forms() -> tuple[Form, ...]:
    """Each dtype with each number of optional arguments, aligned and not."""
    i32, i64 = torch.int32, torch.int64
    arguments = (
        (True, i32, i64, True, True),
        (True, i64, None, False, False),
        (True, None, i32, True, False),
        (False, None, None, False, True),
    )
    layouts = itertools.cycle([(16, (16, 0)), (2, (0, 1))])
    return tuple(Form(dtype, *chosen, *next(layouts)) for chosen in arguments for dtype in DTYPES)


TRITON_FORMS = _triton_forms()


def random_case(
    rng: random.Random,
    device: str = "cpu",
    max_vocab: int = 3000,
    max_rows: int = 6,
    forms: Sequence[Form] | None = None,
) -> Case:
    """Return a case of one of ``forms``.

    Without ``forms`` it has any form; or one of TRITON_FORMS where Triton serves the
    ops on a GPU, because compiling a kernel takes seconds there.
    """
    if forms is None and device == "cuda" and kernels.load().cuda == "triton":
        forms = TRITON_FORMS
    form = rng.choice(forms) if forms else random_form(rng)
    generator = torch.Generator().manual_seed(rng.getrandbits(62))
    n = rng.choice([1, 1, 2, rng.randint(1, max_rows)])
    vocab_size = rng.choice([1, rng.randint(1, 70), rng.randint(1, max_vocab), rng.randint(1, max_vocab)])
    vocab_size += -vocab_size % form.vocab_multiple
    logits = strange_logits(rng, n, vocab_size, form.logits, form.gaps, generator, device)
    bitmask, rows = _mask(rng, n, vocab_size, form.rows, generator, device) if form.has_mask else (None, None)

    def row_values(draw: Callable[[], float], dtype: torch.dtype) -> torch.Tensor:
        if rng.random() < 0.2:
            return torch.tensor([draw()], dtype=dtype, device=device).expand(n)
        stride = rng.choice([1, 1, 2])
        values = [value for _ in range(n) for value in [draw(), *([7] * (stride - 1))]]
        return torch.tensor(values, dtype=dtype, device=device)[::stride]

    def floats(name: str) -> torch.Tensor:
        def draw() -> float:
            kind = rng.choices([USUAL, EDGES, INVALID], [0.7, 0.28, 0.02])[0]
            return rng.choice(kind[name])

        return row_values(draw, torch.float32)

    blocks = (vocab_size + 63) // 64
    usual_ks = [0, 0, 1, 2, 5, 50, 1000, -1]
    edge_ks = [vocab_size - 1, vocab_size, vocab_size + 1, vocab_size // 2, vocab_size // 8, blocks, blocks + 1]
    edge_ks += [2**31 - 1, -(2**31)] if form.top_k == torch.int32 else [2**32, 2**32 + 1, 2**63 - 1, -(2**63)]
    return Case(
        logits,
        bitmask,
        rows,
        floats("temperature"),
        row_values(lambda: rng.choice(rng.choice([usual_ks, edge_ks])), form.top_k) if form.top_k else None,
        floats("top_p") if form.has_top_p else None,
        floats("min_p") if form.has_min_p else None,
        row_values(lambda: rng.choice([*SEEDS, *(rng.getrandbits(64) - 2**63 for _ in range(8))]), torch.int64),
        row_values(lambda: rng.choice([*SEEDS, 1, rng.getrandbits(40), 2**62]), torch.int64),
    )


def strange_logits(
    rng: random.Random,
    n: int,
    vocab_size: int,
    dtype: torch.dtype,
    gaps: tuple[int, int],
    generator: torch.Generator,
    device: str,
) -> torch.Tensor:
    """Return logits, sometimes with ties, zeros of both signs, infinities and NaN.

    They lie in a buffer that is NaN in the gaps before and after each row.
    """
    logits = _values(rng, n, vocab_size, generator).to(dtype)
    for value, probability in ((0.0, 0.1), (-0.0, 0.1), (-math.inf, 0.15), (math.inf, 0.08), (math.nan, 0.04)):
        if rng.random() < probability:
            logits[torch.rand(n, vocab_size, generator=generator) < rng.choice([0.002, 0.2])] = value
    before, after = gaps
    buffer = torch.full((n, before + vocab_size + after), math.nan, dtype=dtype)
    buffer[:, before : before + vocab_size] = logits
    return buffer.to(device)[:, before : before + vocab_size]


def _values(rng: random.Random, n: int, vocab_size: int, generator: torch.Generator) -> torch.Tensor:
    """Return logits, float32 ``[n, vocab_size]``."""
    kind = rng.choices(["normal", "neighbours", "subnormal", "equal", "steep", "far"], [10, 1, 1, 1, 1, 1])[0]
    if kind == "neighbours":
        base = torch.tensor(rng.choice([1.0, -1.0, 100.0, 1e-3, 5e4]))
        steps = torch.randint(-6, 7, (n, vocab_size), generator=generator, dtype=torch.int32)
        return (base.view(torch.int32) + steps).view(torch.float32)
    if kind == "subnormal":
        return torch.randint(-20, 20, (n, vocab_size), generator=generator).to(torch.float32) * 2.0**-149
    if kind == "equal":
        return torch.full((n, vocab_size), rng.choice([0.0, -0.0, 3.4e38, -3.4e38, 1e-45, -7.25]))
    if kind == "steep":
        order = torch.randperm(vocab_size, generator=generator)
        return -order.to(torch.float32).repeat(n, 1) * rng.choice([1e-4, 0.01, 0.3])
    values = torch.randn(n, vocab_size, generator=generator)
    if kind == "far":
        return 1000 + values * 0.01
    values *= rng.choice([0.0, 1.0, 3.0, 8.0, 1e37])
    return (values * 2).round() / 2 if rng.random() < 0.3 else values


def _mask(
    rng: random.Random,
    n: int,
    vocab_size: int,
    rows_dtype: torch.dtype | None,
    generator: torch.Generator,
    device: str,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    num_masks = n if rows_dtype is None else rng.randint(0, 3)
    words = max(0, bitmask_width(vocab_size) + rng.choice([0, 0, 0, 2, -1]))
    padding = rng.choice([0, 0, 3])
    buffer = torch.full((num_masks, words + padding), -1, dtype=torch.int32)
    buffer[:, :words] = _mask_words(rng, num_masks, words, vocab_size, generator)
    bitmask = buffer.to(device)[:, :words]
    if rows_dtype is None:
        return bitmask, None
    unknown = [num_masks, -2, 2**31 - 1, -(2**31)]
    ids = [rng.choice([-1, *range(num_masks), rng.choice(unknown)]) for _ in range(n)]
    stride = rng.choice([1, 2])
    spread = [value for row in ids for value in [row, *([5] * (stride - 1))]]
    return bitmask, torch.tensor(spread, dtype=rows_dtype, device=device)[::stride]


def _mask_words(
    rng: random.Random, num_masks: int, words: int, vocab_size: int, generator: torch.Generator
) -> torch.Tensor:
    """Return mask words with a random density, or near a count at which a backend
    changes its path."""
    if rng.random() < 0.2:
        turning_points = [1, 2, vocab_size // 8, vocab_size // 8 + 1, 2048, 2049, 3072, 3073, 4096, 4097]
        allowed = torch.zeros(num_masks, words * 32, dtype=torch.bool)
        for row in allowed:
            row[torch.randperm(words * 32, generator=generator)[: rng.choice(turning_points)]] = True
        return pack_bitmask(allowed)
    density = rng.choice([0.0, 0.0005, 0.01, 0.3, 0.97, 1.0])
    bitmask = random_words(num_masks * words, density, generator).view(num_masks, words)
    if density < 1 and rng.random() < 0.7:
        bitmask = torch.where(bitmask == -1, 0, bitmask)  # whole words of ones would leave no sparse row
    return bitmask


def random_cases(seed: int, count: int, **limits: object) -> Iterator[Case]:
    rng = random.Random(seed)
    for i in range(count):
        yield replace(random_case(rng, **limits), origin=f"random case {i} of seed {seed}:")


def turning_cases(device: str = "cpu") -> Iterator[Case]:
    """Cases that random ones rarely meet, where a small change of a filter shows: top_p
    whose target the first token has exactly, and a small top_k of many flat blocks."""
    n = 16
    met = torch.full((n, 200), -math.inf)
    met[:, 150], met[:, 151] = 1.0, _beside(1.0)[0]
    flat = torch.randn(n, 3000, generator=torch.Generator().manual_seed(7)).to(device)
    numbers = torch.arange(n, device=device)
    halves, temperature = torch.full((n,), 0.5, device=device), torch.full((n,), 30.0, device=device)
    yield Case(met.to(device), None, None, temperature, None, halves, None, numbers, numbers, "exact top_p:")
    yield Case(flat, None, None, temperature, numbers + 1, None, None, numbers, numbers, "flat top_k:")
