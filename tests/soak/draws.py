"""Draws of random forms on the CPU ops: none is illegal, and all backends agree.

A seed makes one batch: tiny vocabularies, where a draw is cheap, with every dtype,
masks per row or by row ids, filters, penalties, biases, drafts and shards. Each draw
must be allowed. Some rows of each batch are compared with the reference, and every
fourth batch with the kernels for other instruction sets, which run in processes of
their own."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch

import structout  # noqa: F401 (registers the ops)
from soak.hunt import Hunter, Tally
from structout import pack_bitmask
from structout.ops import reference
from support import builds, cpu_programs, masked_sample_cases
from support.locations import ROOT

OPS = torch.ops.structout
_NUM_COMPARED_ROWS = 24
_MAX_ELEMENTS = 1 << 23
_KINDS = ("plain", "plain", "logprobs", "drafts", "shards")


@dataclass
class Batch:
    """The arguments of one call: ``draws`` in the order of masked_sample.

    ``allowed`` is bool ``[M, V]``, and ``mask_of_row`` int64 ``[N]`` tells which of its
    rows holds for each row of logits.
    """

    kind: str
    draws: tuple[torch.Tensor | None, ...]
    allowed: torch.Tensor
    mask_of_row: torch.Tensor


def batch(seed: int) -> Batch:
    rng = random.Random(f"draws {seed}")
    generator = torch.Generator().manual_seed(rng.getrandbits(62))
    vocab_size = rng.choice([*[rng.randint(1, 40)] * 5, rng.randint(41, 300), rng.randint(301, 5000)])
    has_rows, shares_logits = rng.random() < 0.7, rng.random() < 0.7
    width = 1 if has_rows and shares_logits else vocab_size
    n = max(1, min(1 << 17, (1 << 23) // (vocab_size + 24), _MAX_ELEMENTS // width))
    num_masks = rng.choice([1, 3, 200]) if has_rows else n
    density = rng.choice([0.02, 0.1, 0.5, 0.97, 1.0])
    allowed = torch.rand(num_masks, vocab_size, generator=generator) < density
    mask_of_row = torch.randint(num_masks, (n,), generator=generator) if has_rows else torch.arange(n)
    logits = torch.randn(1 if shares_logits else n, vocab_size, generator=generator) * rng.choice([0.0, 1.0, 4.0, 30.0])
    if rng.random() < 0.3:
        logits = (logits * 2).round() / 2
    logits[torch.rand(logits.shape, generator=generator) < rng.choice([0.0, 0.0, 0.2])] = -torch.inf
    unused = ~allowed.any(0) if has_rows or shares_logits else ~allowed
    poison = rng.choice([torch.nan, torch.inf, 3e38])
    logits = logits.masked_fill(unused, poison).to(rng.choice(masked_sample_cases.DTYPES))
    if rng.random() < 0.3:
        _change_listed(rng, generator, logits)
    bitmask = pack_bitmask(allowed)
    rows = mask_of_row.to(rng.choice([torch.int32, torch.int64])) if has_rows else None

    def chosen(values: list[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype)[torch.randint(len(values), (n,), generator=generator)]

    def some(values: torch.Tensor) -> torch.Tensor | None:
        return values if rng.random() < 0.5 else None

    first = rng.getrandbits(40)
    draws = (
        logits.expand(n, -1),
        bitmask,
        rows,
        chosen([0.0, 0.3, 1.0, 1.0, 1.7]),
        some(chosen([0, 1, 3, 50], torch.int64)),
        some(chosen([1.0, 0.9, 0.1])),
        some(chosen([0.0, 0.0, 0.2])),
        torch.arange(first, first + n) // 1000,
        torch.arange(n) % 1000,
    )
    return Batch(rng.choice(_KINDS), draws, allowed, mask_of_row)


def _change_listed(rng: random.Random, generator: torch.Generator, logits: torch.Tensor) -> None:
    """Apply penalties and biases to two tokens of each row."""
    n, vocab_size = logits.shape
    ids = torch.randint(vocab_size, (2 * n,), generator=generator)
    indptr = torch.arange(0, 2 * n + 1, 2)
    if rng.random() < 0.5:
        counts = torch.randint(4, (2 * n,), generator=generator)
        OPS.apply_penalties(logits, indptr, ids, counts, *(torch.full((n,), value) for value in (1.2, 0.3, -0.5)))
    else:
        bias = torch.tensor([0.0, 1.5, -100.0])[torch.randint(3, (2 * n,), generator=generator)]
        OPS.apply_logit_bias(logits, indptr, ids, bias)


def drawn(batch: Batch) -> tuple[torch.Tensor, ...]:
    """Call the ops of the batch's kind. The first result is the ids."""
    if batch.kind == "logprobs":
        return OPS.masked_sample_logprobs(*batch.draws)
    ids = OPS.masked_sample(*batch.draws)
    if batch.kind == "drafts":
        n = len(ids)
        drafts = torch.where(torch.arange(n) % 7 == 0, 0, ids)
        row_indptr = torch.cat([torch.arange(0, n, 5), torch.tensor([n])])
        return ids, *OPS.verify_drafts(*batch.draws, drafts, row_indptr)
    if batch.kind == "shards":
        return ids, _drawn_by_shards(batch)
    return (ids,)


def _drawn_by_shards(batch: Batch) -> torch.Tensor:
    """Return ids without filters, from three shards of the vocabulary."""
    logits, bitmask, rows, temperature, *_, seed, position = batch.draws
    vocab_size = logits.shape[1]
    cuts = [0, vocab_size // 3, vocab_size // 2, vocab_size]
    shards = [
        OPS._sample_shard(logits[:, begin:end], bitmask, rows, temperature, seed, position, begin)
        for begin, end in pairwise(cuts)
    ]
    return OPS._merge_shard_results(torch.stack(shards), temperature)[0]


def check(batch: Batch, results: tuple[torch.Tensor, ...], rng: random.Random, tally: Tally) -> None:
    ids = results[0]
    n = len(ids)
    logits, *parameters = batch.draws
    vocab_size = logits.shape[1]
    chosen = ids.clamp(min=0)
    is_legal = batch.allowed[batch.mask_of_row, chosen] & (logits.gather(1, chosen[:, None])[:, 0] > -torch.inf)
    shared = logits.stride(0) == 0
    open_tokens = batch.allowed & (logits[:1] > -torch.inf) if shared else None
    can_draw = (
        open_tokens.any(1)[batch.mask_of_row]
        if open_tokens is not None
        else (batch.allowed[batch.mask_of_row] & (logits > -torch.inf)).any(1)
    )
    is_wrong = torch.where(can_draw, (ids < 0) | (ids >= vocab_size) | ~is_legal, ids != -1)
    if is_wrong.any():
        row = int(is_wrong.nonzero()[0])
        tally.findings.append(f"{int(is_wrong.sum())} illegal draws, first {int(ids[row])} in row {row}")
    tally.executions["tokens drawn"] += n
    _check_kind(batch, results, tally)
    index = torch.tensor([rng.randrange(n) for _ in range(_NUM_COMPARED_ROWS)])
    # Row ids choose of the whole bitmask. Without them it has a row for each row.
    per_row = [
        a if a is None or (i == 0 and batch.draws[2] is not None) else a[index] for i, a in enumerate(parameters)
    ]
    expected_ids, expected_logprobs = reference.masked_sample_logprobs(logits[index], *per_row)
    tally.executions["draws compared with the reference"] += len(index)
    if not torch.equal(expected_ids, ids[index]):
        tally.findings.append(
            f"reference draws {expected_ids.tolist()}, got {ids[index].tolist()}, rows {index.tolist()}"
        )
    if batch.kind == "logprobs" and not torch.equal(_bits(expected_logprobs), _bits(results[1][index])):
        tally.findings.append(f"logprobs differ from the reference in rows {index.tolist()}")


def _check_kind(batch: Batch, results: tuple[torch.Tensor, ...], tally: Tally) -> None:
    ids = results[0]
    if batch.kind == "drafts":
        _, verified, num_accepted = results
        begins = torch.arange(0, len(ids), 5)
        last = torch.arange(len(ids)) <= (begins + num_accepted)[torch.arange(len(ids)) // 5]
        if not torch.equal(verified, torch.where(last, ids, -1)):
            tally.findings.append("verify_drafts gives other tokens than masked_sample")
        tally.executions["draws that verified drafts"] += len(ids)
    if batch.kind == "shards":
        arguments = list(batch.draws)
        arguments[4:7] = [None, None, None]
        if not torch.equal(OPS.masked_sample(*arguments), results[1]):
            tally.findings.append("shards draw other tokens than the whole vocabulary")
        tally.executions["draws by shards"] += len(ids)


def _bits(values: torch.Tensor) -> torch.Tensor:
    return (values + 0.0).view(torch.int32)


def digest(results: tuple[torch.Tensor, ...]) -> str:
    """Return a digest of the results' bits."""
    of_all = hashlib.sha256()
    for result in results:
        of_all.update(result.contiguous().view(torch.uint8).numpy())
    return of_all.hexdigest()


class OtherInstructionSet:
    """A process that draws the same batches with another STRUCTOUT_CPU_CAPABILITY."""

    def __init__(self, capability: str):
        environment = {**os.environ, "STRUCTOUT_CPU_CAPABILITY": capability, "PYTHONPATH": str(ROOT / "tests")}
        command = [sys.executable, "-m", "soak.draws"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def ask(self, seed: int) -> None:
        """Let it begin with a batch."""
        assert self._process.stdin is not None
        print(seed, file=self._process.stdin, flush=True)

    def digest(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.communicate()


class Draws(Hunter):
    """Compares the tokens of all backends. Of 64 seeds, one is compared with Triton's
    interpreter and one with the portable lanes."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        own = OPS._cpu_capability()
        names = ("default", "avx2", "avx512")
        self._others = {name: OtherInstructionSet(name) for name in names[: names.index(own)]}
        self._portable_program: Path | None = None

    def hunt(self, seed: int, tally: Tally) -> None:
        made, rng = batch(seed), random.Random(seed)
        is_compared = seed % 4 == 0
        for other in self._others.values() if is_compared else ():
            other.ask(seed)
        results = drawn(made)
        check(made, results, rng, tally)
        for name, other in self._others.items() if is_compared else ():
            if other.digest() != digest(results):
                tally.findings.append(f"{name} draws other tokens than {OPS._cpu_capability()}")
            tally.executions[f"draws compared with {name}"] += len(results[0])
        for case in masked_sample_cases.random_cases(seed, count=4):
            tally.executions["draws compared with the reference"] += len(
                masked_sample_cases.check(OPS.masked_sample_logprobs, case)
            )
        if seed % 64 == 1:
            self._on_triton(seed, tally)
        if seed % 64 == 2:
            self._on_portable_lanes(seed, tally)

    def _on_triton(self, seed: int, tally: Tally) -> None:
        from structout.triton_kernels.masked_sample import masked_sample_logprobs

        for case in masked_sample_cases.random_cases(seed, count=2, max_vocab=300, max_rows=3):
            ids = masked_sample_cases.check(masked_sample_logprobs, case)
            tally.executions["draws compared with Triton's interpreter"] += len(ids)

    def _on_portable_lanes(self, seed: int, tally: Tally) -> None:
        if self._portable_program is None:
            self._portable_program = cpu_programs.compiled(builds.cxx(), "-DSTRUCTOUT_PORTABLE_LANES")
        with cpu_programs.CpuProgram([str(self._portable_program)]) as program:
            for case in masked_sample_cases.random_cases(seed + 1, count=20):
                ids = masked_sample_cases.check(program.masked_sample_logprobs, case)
                tally.executions["draws compared with portable lanes"] += len(ids)

    def close(self) -> None:
        for other in self._others.values():
            other.close()


def make() -> Hunter:
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are imported
    return Draws()


def _serve() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(digest(drawn(batch(int(line)))), flush=True)


if __name__ == "__main__":
    _serve()
