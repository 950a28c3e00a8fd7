"""Measures masked_sample beside what engines do today. Checks its result before timing
it.

    python bench/bench_masked_sample.py [--device cpu|cuda] [--quick]

The peers draw from the same distribution in several steps: torch (masked_fill, filters
by sorting as in vLLM's torch path, softmax, multinomial), the same after xgrammar's
kernel, and Hugging Face's logits processors. On CUDA also FlashInfer, if it is
installed. "smallest op" is torch.add of one number: the least that a call costs here,
where the peers have just evicted everything from the caches.
"""

import argparse
import importlib.util
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import harness
import torch
import xgrammar

import structout
from structout import reference

VOCAB = 151_936
BATCHES = {"cpu": (1, 16, 64), "cuda": (1, 8, 64, 256, 512)}
ALLOWED: dict[str, float | None] = {"1": 1, "16": 16, "1,000": 1000, "JSON string (96.8%)": 0.968 * VOCAB, "free": None}
FILTERS: dict[str, dict[str, float]] = {
    "none": {},
    "top-p 0.9": {"top_p": 0.9},
    "top-k 50, top-p 0.9": {"top_k": 50, "top_p": 0.9},
    "min-p 0.05": {"min_p": 0.05},
}
TEMPERATURE = 0.7
Draw = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Problem:
    logits: torch.Tensor
    bitmask: torch.Tensor | None
    filters: dict[str, float]

    def parameters(self) -> tuple[Any, ...]:
        n, device = self.logits.shape[0], self.logits.device

        def per_row(name: str, dtype: torch.dtype) -> torch.Tensor | None:
            value = self.filters.get(name)
            return None if value is None else torch.full((n,), value, dtype=dtype, device=device)

        seed = torch.arange(n, device=device)
        filters = (per_row("top_k", torch.int32), per_row("top_p", torch.float32), per_row("min_p", torch.float32))
        return (torch.full((n,), TEMPERATURE, device=device), *filters, seed, seed + 1)


def make_problem(n: int, dtype: torch.dtype, allowed: float | None, filters: dict[str, float], device: str) -> Problem:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(n, VOCAB, generator=generator) * 3).to(dtype)
    bitmask = None
    if allowed is not None:
        mask = torch.rand(n, VOCAB, generator=generator) < allowed / VOCAB
        if allowed <= 1000:
            mask = torch.zeros(n, VOCAB, dtype=torch.bool)
            mask.scatter_(1, torch.rand(n, VOCAB, generator=generator).topk(int(allowed)).indices, True)
        bitmask = structout.pack_bitmask(mask).to(device)
    return Problem(logits.to(device), bitmask, filters)


def ours(problem: Problem) -> Draw:
    arguments = (problem.logits, problem.bitmask, None, *problem.parameters())
    ids = torch.ops.structout.masked_sample(*arguments)
    if not torch.equal(ids, reference.masked_sample(*arguments)):
        raise AssertionError("structout differs from the reference: nothing is timed on a wrong result")
    return lambda: torch.ops.structout.masked_sample(*arguments)


def filter_by_sorting(scores: torch.Tensor, filters: dict[str, float]) -> torch.Tensor:
    """min-p, then top-k and top-p from one sort of the vocabulary."""
    if "min_p" in filters:
        probabilities = scores.softmax(-1)
        scores = scores.masked_fill(probabilities < filters["min_p"] * probabilities.amax(-1, True), float("-inf"))
    if "top_k" not in filters and "top_p" not in filters:
        return scores
    ascending, order = scores.sort(-1)
    if "top_k" in filters:
        kth = ascending[:, -int(filters["top_k"]), None]
        ascending = ascending.masked_fill(ascending < kth, float("-inf"))
    if "top_p" in filters:
        cumulative = ascending.softmax(-1).cumsum(-1)
        out = cumulative <= 1 - filters["top_p"]
        out[:, -1] = False
        ascending = ascending.masked_fill(out, float("-inf"))
    return scores.scatter(-1, order, ascending)


def torch_chain(problem: Problem) -> Draw:
    disallowed = None if problem.bitmask is None else ~structout.unpack_bitmask(problem.bitmask, VOCAB)

    def draw() -> torch.Tensor:
        scores = problem.logits.float()
        if disallowed is not None:
            scores = scores.masked_fill(disallowed, float("-inf"))
        scores = filter_by_sorting(scores / TEMPERATURE, problem.filters)
        return torch.multinomial(scores.softmax(-1), 1)

    return draw


def xgrammar_chain(problem: Problem) -> Draw | None:
    bitmask = problem.bitmask
    if bitmask is None:
        return None

    def draw() -> torch.Tensor:
        scores = problem.logits.to(torch.float32, copy=True)
        xgrammar.apply_token_bitmask_inplace(scores, bitmask)
        scores = filter_by_sorting(scores / TEMPERATURE, problem.filters)
        return torch.multinomial(scores.softmax(-1), 1)

    return draw


def hugging_face(problem: Problem) -> Draw:
    from transformers.generation import logits_process as hf

    chain: list[Any] = [hf.TemperatureLogitsWarper(TEMPERATURE)]
    if "top_k" in problem.filters:
        chain.append(hf.TopKLogitsWarper(int(problem.filters["top_k"])))
    if "top_p" in problem.filters:
        chain.append(hf.TopPLogitsWarper(problem.filters["top_p"]))
    if "min_p" in problem.filters:
        chain.append(hf.MinPLogitsWarper(problem.filters["min_p"]))
    processors = hf.LogitsProcessorList(chain)
    disallowed = None if problem.bitmask is None else ~structout.unpack_bitmask(problem.bitmask, VOCAB)
    no_tokens = torch.empty(problem.logits.shape[0], 0, dtype=torch.int64, device=problem.logits.device)

    def draw() -> torch.Tensor:
        scores = problem.logits.to(torch.float32, copy=True)
        if disallowed is not None:
            scores = scores.masked_fill(disallowed, float("-inf"))
        return torch.multinomial(processors(no_tokens, scores).softmax(-1), 1)

    return draw


def flashinfer(problem: Problem) -> Draw | None:
    if (
        problem.logits.device.type != "cuda"
        or importlib.util.find_spec("flashinfer") is None
        or "min_p" in problem.filters
    ):
        return None
    from flashinfer import sampling

    def draw() -> torch.Tensor:
        scores = problem.logits.to(torch.float32, copy=True)
        if problem.bitmask is not None:
            xgrammar.apply_token_bitmask_inplace(scores, problem.bitmask)
        scores /= TEMPERATURE
        if not problem.filters:
            return sampling.sampling_from_logits(scores)
        top_k, top_p = int(problem.filters.get("top_k", VOCAB)), problem.filters["top_p"]
        return sampling.top_k_top_p_sampling_from_logits(scores, top_k, top_p)

    return draw


def smallest_op(device: str) -> Draw | None:
    """None on CUDA, where events do not see what a call costs the host."""
    one = torch.zeros(1)
    return None if device == "cuda" else lambda: torch.add(one, 1)


def run_case(n: int, dtype: torch.dtype, allowed: str, filters: str, device: str, seconds: float) -> dict[str, Any]:
    problem = make_problem(n, dtype, ALLOWED[allowed], FILTERS[filters], device)
    candidates = {
        "structout": ours(problem),
        "torch": torch_chain(problem),
        "xgrammar + torch": xgrammar_chain(problem),
        "transformers": hugging_face(problem),
        "xgrammar + flashinfer": flashinfer(problem),
        "smallest op": smallest_op(device),
    }
    calls = {name: call for name, call in candidates.items() if call is not None}
    medians = harness.interleaved_medians(calls, torch.device(device), seconds=seconds)
    return {
        "batch": n,
        "vocab": VOCAB,
        "dtype": str(dtype)[6:],
        "allowed": allowed,
        "filters": filters,
        "us": {name: round(median * 1e6, 2) for name, median in medians.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="masked_sample beside its peers")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--quick", action="store_true", help="a few cases; writes nothing")
    arguments = parser.parse_args()
    cases = list(itertools.product(BATCHES[arguments.device], (torch.float32, torch.bfloat16), ALLOWED, FILTERS))
    if arguments.quick:
        cases = [(1, torch.float32, "16", "none"), (2, torch.bfloat16, "free", "top-k 50, top-p 0.9")]
    rows = []
    with torch.inference_mode():
        for case in cases:
            row = run_case(*case, device=arguments.device, seconds=0.02 if arguments.quick else 0.15)
            rows.append(row)
            mine = row["us"]["structout"]
            beside = "  ".join(
                f"{name} {us:,.0f} ({us / mine:.{0 if us > mine else 1}f}x)"
                for name, us in row["us"].items()
                if us != mine
            )
            shape = f"{row['dtype']} [{row['batch']}, {VOCAB}]"
            print(f"{shape:<24}{row['allowed']:<22}{row['filters']:<22}structout {mine:,.1f} us  {beside}", flush=True)
    if not arguments.quick:
        print("wrote", harness.write_results("masked_sample", torch.device(arguments.device), rows))


if __name__ == "__main__":
    main()
