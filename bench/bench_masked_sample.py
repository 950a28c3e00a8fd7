"""Measures masked_sample beside what engines do today. Checks its result before timing
it.

    python bench/bench_masked_sample.py [--device cpu|cuda] [--quick]

The peers draw from the same distribution in several steps: torch (masked_fill, filters
by sorting as in vLLM's torch path, softmax, multinomial), the same after xgrammar's
kernel, and Hugging Face's logits processors; on CUDA also FlashInfer after xgrammar's
kernel. "smallest op" is torch.add of one number: the least that a call costs here,
where the peers have just evicted everything from the caches.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import harness
import torch

import structout
from structout.ops import reference

VOCAB = 151_936
BATCHES = {"cpu": (1, 16, 64), "cuda": (1, 64, 128, 256)}
SECONDS = {"cpu": 0.15, "cuda": 0.01}  # for each call and state of the caches
CHECKED_ROWS = 8  # on CUDA: the reference is slow there
ALLOWED: dict[str, float | None] = {"1": 1, "16": 16, "1,000": 1000, "JSON string (96.8%)": 0.968 * VOCAB, "free": None}
FILTERS: dict[str, dict[str, float]] = {
    "none": {},
    "top-p 0.9": {"top_p": 0.9},
    "top-k 50, top-p 0.9": {"top_k": 50, "top_p": 0.9},
    "min-p 0.05": {"min_p": 0.05},
}
TEMPERATURE = 0.7
SMALLEST_OP = "torch.add of one number"
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
    generator = torch.Generator(device).manual_seed(0)

    def uniform() -> torch.Tensor:
        return torch.rand(n, VOCAB, generator=generator, device=device)

    logits = (torch.randn(n, VOCAB, generator=generator, device=device) * 3).to(dtype)
    if allowed is None:
        return Problem(logits, None, filters)
    if allowed > 1000:
        return Problem(logits, structout.pack_bitmask(uniform() < allowed / VOCAB), filters)
    mask = torch.zeros(n, VOCAB, dtype=torch.bool, device=device)
    mask.scatter_(1, uniform().topk(int(allowed)).indices, True)
    return Problem(logits, structout.pack_bitmask(mask), filters)


def ours(problem: Problem) -> Draw:
    arguments = (problem.logits, problem.bitmask, None, *problem.parameters())
    ids = torch.ops.structout.masked_sample(*arguments)
    n = len(ids)
    step = max(1, n // CHECKED_ROWS) if ids.is_cuda else 1
    checked: list[Any] = [None if value is None else value[::step] for value in arguments]
    if not torch.equal(ids[::step], reference.masked_sample(*checked)):
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
    import xgrammar

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
    """xgrammar's kernel and FlashInfer's sampler, which needs float32 and has no
    min-p."""
    if not problem.logits.is_cuda or "min_p" in problem.filters:
        return None
    import xgrammar
    from flashinfer import sampling

    def draw() -> torch.Tensor:
        scores = problem.logits.to(torch.float32, copy=True)
        if problem.bitmask is not None:
            xgrammar.apply_token_bitmask_inplace(scores, problem.bitmask)
        scores /= TEMPERATURE
        if not problem.filters:
            return sampling.sampling_from_logits(scores)
        if "top_k" not in problem.filters:
            return sampling.top_p_sampling_from_probs(scores.softmax(-1), problem.filters["top_p"])
        return sampling.top_k_top_p_sampling_from_logits(
            scores, int(problem.filters["top_k"]), problem.filters["top_p"]
        )

    return draw


def smallest_op(problem: Problem) -> Draw | None:
    """None on CUDA, where events do not see what a call costs the host."""
    one = torch.zeros(1)
    return None if problem.logits.is_cuda else lambda: torch.add(one, 1)


def read_logits(problem: Problem) -> Draw | None:
    """The bandwidth of reading every logit once."""
    bits = problem.logits.view(torch.int32 if problem.logits.element_size() == 4 else torch.int16)
    return bits.amax if problem.logits.is_cuda else None


PEERS = harness.Peers(
    {
        "structout": ours,
        "torch": torch_chain,
        "xgrammar + torch": xgrammar_chain,
        "transformers": hugging_face,
        "xgrammar + flashinfer": flashinfer,
        "smallest op": smallest_op,
        "read": read_logits,
    }
)


def run_case(n: int, dtype: torch.dtype, allowed: str, filters: str, device: str, seconds: float) -> dict[str, Any]:
    problem = make_problem(n, dtype, ALLOWED[allowed], FILTERS[filters], device)
    calls = dict(PEERS.calls(problem))

    def read_inputs() -> None:
        problem.logits.view(torch.int16).amax()
        if problem.bitmask is not None:
            problem.bitmask.amax()

    times = harness.time_calls(calls, torch.device(device), read_inputs=read_inputs, seconds=seconds)
    return {
        "batch": n,
        "vocab": VOCAB,
        "dtype": str(dtype)[6:],
        "allowed": allowed,
        "filters": filters,
        **times,
        "missing": dict(PEERS.missing),
    }


def warm_calls() -> Iterator[dict[str, Any]]:
    """Time calls for one row from Python, everything in the caches. Each does one thing
    more than the one before."""
    problem = make_problem(1, torch.float32, 1, {}, "cpu")
    assert problem.bitmask is not None
    few_tokens = Problem(problem.logits[:, :64], torch.tensor([[4, 0]], dtype=torch.int32), {})
    calls = {
        "no row: dispatch, checks, result": Problem(problem.logits[:0], problem.bitmask[:0], {}),
        "and the row, of 64 tokens": few_tokens,
        "and 151,936 bits to search, 1 allowed": problem,
        "and 16 tokens to draw from": make_problem(1, torch.float32, 16, {}, "cpu"),
        "and 1,000 tokens to draw from": make_problem(1, torch.float32, 1000, {}, "cpu"),
    }
    smallest = smallest_op(problem)
    assert smallest is not None
    yield {"warm_call": SMALLEST_OP, "microseconds": harness.host_microseconds(smallest)}
    for name, of_call in calls.items():
        yield {"warm_call": name, "microseconds": harness.host_microseconds(ours(of_call))}


def host_time(device: str) -> dict[str, Any]:
    """Time one call of the op from Python, on one allowed token."""
    problem = make_problem(1, torch.float32, 1, FILTERS["top-k 50, top-p 0.9"], device)
    call = ours(problem)
    return {"call_overhead_us": harness.host_microseconds(call)}


def main() -> None:
    parser = harness.argument_parser("masked_sample beside its peers", quick="a few cases")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    arguments = parser.parse_args()
    PEERS.may_fail = not arguments.quick
    device = arguments.device
    cases = list(itertools.product(BATCHES[device], (torch.float32, torch.bfloat16), ALLOWED, FILTERS))
    if arguments.quick:
        cases = [(1, torch.float32, "16", "none"), (2, torch.bfloat16, "free", "top-k 50, top-p 0.9")]
    results = harness.ResultsFile("masked_sample", torch.device(device), arguments)
    with torch.inference_mode():
        for case in cases:
            row = run_case(*case, device=device, seconds=0.02 if arguments.quick else SECONDS[device])
            results.add(row)
            mine = row["us"]["structout"]
            beside = "  ".join(
                f"{name} {us:,.0f} ({us / mine:.{0 if us > mine else 1}f}x)"
                for name, us in row["us"].items()
                if us != mine
            )
            missing = "".join(f"  NOT MEASURED: {name} ({why})" for name, why in row["missing"].items())
            shape = f"{row['dtype']} [{row['batch']}, {VOCAB}]"
            print(
                f"{shape:<24}{row['allowed']:<22}{row['filters']:<22}structout {mine:,.1f} us  {beside}{missing}",
                flush=True,
            )
        for row in (host_time(device), *(warm_calls() if device == "cpu" else ())):
            results.add(row)
            print(row)
    results.close()


if __name__ == "__main__":
    main()
