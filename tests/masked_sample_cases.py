"""Inputs for masked_sample, and the bitwise comparison of ids and logprobs."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import torch
from apply_bitmask_cases import DTYPES, random_words

from structout import reference
from structout.bitmask import bitmask_width

# masked_sample_logprobs, as a function of the op's own signature.
Op = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@dataclass
class Case:
    """The op's arguments, in its order."""

    logits: torch.Tensor
    bitmask: torch.Tensor | None
    rows: torch.Tensor | None
    temperature: torch.Tensor
    top_k: torch.Tensor | None
    top_p: torch.Tensor | None
    min_p: torch.Tensor | None
    seed: torch.Tensor
    position: torch.Tensor

    def arguments(self) -> tuple[torch.Tensor | None, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))

    def describe_row(self, row: int) -> str:
        values = {f.name: getattr(self, f.name) for f in fields(self)[2:] if getattr(self, f.name) is not None}
        described = ", ".join(f"{name}={value[row].item()!r}" for name, value in values.items())
        mask = "no mask" if self.bitmask is None else f"mask {list(self.bitmask.shape)}"
        return f"row {row}: logits {self.logits.dtype} {list(self.logits.shape)}, {mask}, {described}"


def check(op: Op, case: Case) -> None:
    """Ids and logprobs equal the reference's, to the bit."""
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


TEMPERATURES = (0.0, 1.0, 0.7, 0.7, 1.3, 1e-3, 50.0, 1e-30, 1e-40, 1e30)
TOP_KS = (0, 0, 1, 2, 5, 50, 1000, -1, 2**31 - 1)
TOP_PS = (1.0, 1.0, 0.9, 0.5, 0.999, 0.0, 1e-9, 2.0)
MIN_PS = (0.0, 0.0, 0.05, 0.5, 1.0, 1e-39, 3.0)
INVALID = {
    "temperature": (-1.0, float("nan"), float("inf")),
    "top_p": (-0.5, float("nan")),
    "min_p": (-1e-9, float("nan")),
}


def random_case(rng: random.Random, device: str = "cpu", max_vocab: int = 3000, max_rows: int = 6) -> Case:
    generator = torch.Generator().manual_seed(rng.getrandbits(62))
    n = rng.choice([1, 1, 2, rng.randint(1, max_rows)])
    vocab_size = rng.choice([1, rng.randint(1, 70), rng.randint(1, max_vocab), rng.randint(1, max_vocab)])
    dtype = rng.choice(DTYPES)
    logits = strange_logits(rng, n, vocab_size, dtype, generator).to(device)
    bitmask, rows = _mask(rng, n, vocab_size, generator, device)

    def floats(name: str, usual: tuple[float, ...]) -> torch.Tensor:
        values = [rng.choice(INVALID[name]) if rng.random() < 0.02 else rng.choice(usual) for _ in range(n)]
        return torch.tensor(values, dtype=torch.float32, device=device)

    def maybe(tensor: torch.Tensor) -> torch.Tensor | None:
        return tensor if rng.random() < 0.6 else None

    top_k = torch.tensor(
        [rng.choice(TOP_KS) for _ in range(n)], dtype=rng.choice([torch.int32, torch.int64]), device=device
    )
    return Case(
        logits,
        bitmask,
        rows,
        floats("temperature", TEMPERATURES),
        maybe(top_k),
        maybe(floats("top_p", TOP_PS)),
        maybe(floats("min_p", MIN_PS)),
        torch.tensor([rng.getrandbits(64) - 2**63 for _ in range(n)], device=device),
        torch.tensor([rng.choice([0, 1, rng.getrandbits(40), -1, 2**62]) for _ in range(n)], device=device),
    )


def strange_logits(
    rng: random.Random, n: int, vocab_size: int, dtype: torch.dtype, generator: torch.Generator
) -> torch.Tensor:
    """Normal values of some scale; sometimes with ties, zeros of both signs, infinities and NaN; sometimes strided."""
    stride = vocab_size + rng.choice([0, 0, 1, 16])
    values = torch.randn(n, stride, generator=generator) * rng.choice([0.0, 1.0, 3.0, 8.0, 1e37])
    if rng.random() < 0.3:
        values = (values * 2).round() / 2
    logits = values.to(dtype)[:, :vocab_size]
    for value, probability in (
        (0.0, 0.1),
        (-0.0, 0.1),
        (float("-inf"), 0.15),
        (float("inf"), 0.08),
        (float("nan"), 0.04),
    ):
        if rng.random() < probability:
            logits[torch.rand(n, vocab_size, generator=generator) < rng.choice([0.002, 0.2])] = value
    return logits


def _mask(
    rng: random.Random, n: int, vocab_size: int, generator: torch.Generator, device: str
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    if rng.random() < 0.2:
        return None, None
    has_rows = rng.random() < 0.6
    num_masks = rng.randint(0, 3) if has_rows else n
    words = max(0, bitmask_width(vocab_size) + rng.choice([0, 0, 0, 2, -1]))
    density = rng.choice([0.0005, 0.01, 0.3, 0.97])
    bitmask = random_words(num_masks * words, density, generator).view(num_masks, words)
    if rng.random() < 0.7:  # random_words has whole words of ones, with which no row would allow only few tokens
        bitmask = torch.where(bitmask == -1, 0, bitmask)
    if not has_rows:
        return bitmask.to(device), None
    ids = [rng.choice([-1, *range(num_masks), rng.choice([num_masks, -2, 2**31 - 1])]) for _ in range(n)]
    return bitmask.to(device), torch.tensor(ids, dtype=rng.choice([torch.int32, torch.int64]), device=device)


def random_cases(seed: int, count: int, **limits: object) -> Iterator[Case]:
    rng = random.Random(seed)
    for _ in range(count):
        yield random_case(rng, **limits)
