"""Inputs for apply_bitmask, and a bitwise comparison of its results."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from structout.masks.bitmask import bitmask_width
from structout.ops import reference

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
Op = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], None]


@dataclass
class Case:
    """The arguments of one call.

    ``logits`` is a view into the wider ``buffer``, so that stores outside the view are
    seen. ``origin`` says how to make the case again, for failure messages.
    """

    buffer: torch.Tensor
    logits: torch.Tensor
    bitmask: torch.Tensor
    rows: torch.Tensor | None
    origin: str = ""

    def expected_buffer(self) -> torch.Tensor:
        buffer = self.buffer.clone()
        logits = buffer.as_strided(self.logits.shape, self.logits.stride(), self.logits.storage_offset())
        reference.apply_bitmask(logits, self.bitmask, self.rows)
        return buffer

    def __str__(self) -> str:
        rows = "None" if self.rows is None else f"{self.rows.dtype} {self.rows.tolist()[:8]}"
        return (
            f"{self.origin} logits {self.logits.dtype} {list(self.logits.shape)} stride {self.logits.stride()} "
            f"offset {self.logits.storage_offset()}, "
            f"bitmask {list(self.bitmask.shape)} stride {self.bitmask.stride()}, rows {rows}"
        ).strip()


def check(op: Op, case: Case) -> None:
    """Assert that ``op`` writes the bits that the reference writes, and nothing
    else."""
    expected = case.expected_buffer()
    op(case.logits, case.bitmask, case.rows)
    assert_same_bits(case.buffer, expected, str(case))


def assert_same_bits(got: torch.Tensor, expected: torch.Tensor, description: str = "") -> None:
    """Compare bits, so that NaN payloads and the sign of zero count.

    The message names the first element that differs.
    """
    as_int = torch.int32 if got.element_size() == 4 else torch.int16
    differs = got.view(as_int) != expected.view(as_int)
    if differs.any():
        at = tuple(differs.nonzero()[0].tolist())
        raise AssertionError(
            f"{int(differs.sum())} elements differ, first at {at}: {got[at]} != {expected[at]}; {description}"
        )


def make_case(
    rng: random.Random,
    *,
    num_rows: int,
    vocab_size: int,
    dtype: torch.dtype,
    device: str = "cpu",
    num_masks: int | None = None,
    mask_words: int | None = None,
    row_gap: int = 0,
    mask_gap: int = 0,
    offset: int = 0,
    rows: str | None = None,
    density: float = 0.5,
) -> Case:
    """Make one case.

    Args:
        rows: None, "int32" or "int64", or either with a trailing "s" for a strided
            tensor.
        density: The share of tokens that a mask allows, apart from the words that
            ``random_words`` fills or clears.
    """
    generator = torch.Generator().manual_seed(rng.getrandbits(62))
    num_masks = num_rows if num_masks is None else num_masks
    mask_words = bitmask_width(vocab_size) if mask_words is None else mask_words

    stride = vocab_size + row_gap
    length = offset + max(num_rows, 1) * stride + 8
    buffer = random_logits(length, dtype, generator).to(device)
    logits = buffer.as_strided((num_rows, vocab_size), (stride, 1), offset)

    words = random_words(num_masks * (mask_words + mask_gap), density, generator)
    bitmask = words.to(device).view(num_masks, mask_words + mask_gap)[:, :mask_words]
    return Case(buffer, logits, bitmask, _row_map(rng, rows, num_rows, num_masks, device))


def random_logits(length: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Return normal values with NaN, infinities and zeros of both signs among them.

    The op must neither change these nor depend on them.
    """
    values = torch.randn(length, generator=generator).to(dtype)
    special = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, -0.0], dtype=dtype)
    at = torch.randint(0, max(length, 1), (length // 10,), generator=generator)
    values[at] = special[torch.randint(0, 5, (length // 10,), generator=generator)]
    return values


def random_words(count: int, density: float, generator: torch.Generator) -> torch.Tensor:
    """Return mask words of random bits, with words of all zeros and all ones among
    them."""
    bits = torch.rand(count, 32, generator=generator) < density
    words = (bits.long() << torch.arange(32)).sum(-1)
    kind = torch.randint(0, 4, (count,), generator=generator)
    words = torch.where(kind == 0, 0, torch.where(kind == 1, 2**32 - 1, words))
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def _row_map(rng: random.Random, kind: str | None, num_rows: int, num_masks: int, device: str) -> torch.Tensor | None:
    if kind is None:
        return None
    dtype = torch.int64 if kind.startswith("int64") else torch.int32
    out_of_range = [num_masks, num_masks + 7, -2, torch.iinfo(dtype).max, torch.iinfo(dtype).min]
    valid = list(range(num_masks)) * 3
    ids = [rng.choice([*valid, -1, -1, rng.choice(out_of_range)]) for _ in range(num_rows)]
    rows = torch.tensor(ids, dtype=dtype, device=device)
    return rows.repeat_interleave(3)[::3] if kind.endswith("s") else rows


def random_case(rng: random.Random, device: str = "cpu", max_vocab: int = 700) -> Case:
    rows = rng.choice([None, "int32", "int64", "int32s", "int64s"])
    num_rows = rng.choice([0, 1, 1, 2, 3, 5])
    vocab_size = rng.choice([rng.randint(1, 70), rng.randint(1, max_vocab), 32 * rng.randint(1, max_vocab // 32)])
    words = bitmask_width(vocab_size)
    return make_case(
        rng,
        num_rows=num_rows,
        vocab_size=vocab_size,
        dtype=rng.choice(DTYPES),
        device=device,
        num_masks=rng.randint(0, 4) if rows else num_rows,
        mask_words=rng.choice([words, words, words + rng.randint(1, 3), rng.randint(0, words)]),
        row_gap=rng.choice([0, 0, rng.randint(1, 40), 16]),
        mask_gap=rng.choice([0, 0, rng.randint(1, 9)]),
        offset=rng.choice([0, 0, rng.randint(1, 17)]),
        rows=rows,
        density=rng.choice([0.0, 0.01, 0.5, 0.97, 1.0]),
    )


def random_cases(seed: int, count: int, device: str = "cpu", max_vocab: int = 700) -> Iterator[Case]:
    rng = random.Random(seed)
    for i in range(count):
        yield replace(random_case(rng, device, max_vocab), origin=f"random case {i} of seed {seed}:")


def far_apart_rows(dtype: torch.dtype, device: str = "cpu") -> Case:
    """Return two rows that lie more than 2^31 elements apart.

    On the CPU only the pages that are touched become real memory.
    """
    generator = torch.Generator().manual_seed(0)
    vocab_size, stride = 4100, 2**31 + 64
    buffer = torch.empty(stride + vocab_size, dtype=dtype, device=device)
    logits = buffer.as_strided((2, vocab_size), (stride, 1))
    logits.copy_(random_logits(2 * vocab_size, dtype, generator).view(2, vocab_size))
    words = random_words(2 * bitmask_width(vocab_size), 0.5, generator).view(2, -1).to(device)
    return Case(buffer, logits, words, None)
