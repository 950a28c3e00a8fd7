"""Measures what surrounds the draw in a decoding step: penalties over listed tokens,
verified drafts, and logprobs with ranks and the likeliest tokens. Checks each result
before timing it.

    python bench/bench_step_ops.py [--device cpu|cuda] [--quick]

The peers are the dense chains of engines in plain torch. Penalties: counts of all
tokens over [N, V], masks, and the formula over every logit. Drafts: rejection sampling
against a drafter without probabilities (an n-gram): softmax over all rows, comparison
with a uniform number, and a draw from what is left of the distribution. Logprobs:
mask, temperature, softmax and exponential noise for the draw, log_softmax over all
logits, topk, and a count of the tokens that are likelier.
"""

import functools
from typing import Any

import harness
import torch

from structout import pack_bitmask
from structout.ops import reference

VOCAB = 151_936
SECONDS = {"cpu": 0.3, "cuda": 0.05}


def penalties_problem(n: int, num_listed: int, dtype: torch.dtype, device: str) -> dict[str, Any]:
    generator = torch.Generator(device).manual_seed(0)
    order = torch.rand(n, VOCAB, generator=generator, device=device).topk(num_listed).indices
    counts = torch.randint(0, 3, (n, num_listed), generator=generator, device=device)
    return {
        "logits": (torch.randn(n, VOCAB, generator=generator, device=device) * 3).to(dtype),
        "indptr": torch.arange(0, n * num_listed + 1, num_listed, device=device),
        "tokens": order,
        "counts": counts,
        "repetition": torch.full((n,), 1.1, device=device),
        "frequency": torch.full((n,), 0.2, device=device),
        "presence": torch.full((n,), 0.3, device=device),
    }


def penalties_of_lists(problem: dict[str, Any]) -> harness.Call:
    lists = (problem["indptr"], problem["tokens"].flatten(), problem["counts"].flatten())
    others = (*lists, problem["repetition"], problem["frequency"], problem["presence"])
    got, expected = problem["logits"][:2].clone(), problem["logits"][:2].clone()
    few = (others[0][:3], *others[1:3], *(values[:2] for values in others[3:]))
    torch.ops.structout.apply_penalties(got, *few)
    reference.apply_penalties(expected, *few)
    if not torch.equal(got, expected):
        raise AssertionError("structout differs from the reference: nothing is timed on a wrong result")
    scratch = problem["logits"].clone()
    return lambda: torch.ops.structout.apply_penalties(scratch, *others)


def dense_penalties(problem: dict[str, Any]) -> harness.Call:
    """The chain of vLLM's apply_penalties: prompt and output as padded lists."""
    n = len(problem["logits"])
    scratch = problem["logits"].clone()
    prompt, outputs = problem["tokens"], problem["tokens"].repeat(1, 2)
    repetition, frequency, presence = (problem[name].unsqueeze(1) for name in ("repetition", "frequency", "presence"))

    def counts_of(tokens: torch.Tensor) -> torch.Tensor:
        counts = torch.zeros(n, VOCAB + 1, dtype=torch.int64, device=scratch.device)
        return counts.scatter_add_(1, tokens, torch.ones_like(tokens))[:, :VOCAB]

    def apply() -> None:
        in_prompt = counts_of(prompt) > 0
        counts = counts_of(outputs)
        penalty = torch.where(in_prompt | (counts > 0), repetition, 1.0)
        scratch.mul_(torch.where(scratch > 0, 1.0 / penalty, penalty))
        scratch.sub_(frequency * counts)
        scratch.sub_(presence * (counts > 0))

    return apply


def drafts_problem(num_requests: int, num_drafts: int, dtype: torch.dtype, device: str) -> dict[str, Any]:
    generator = torch.Generator(device).manual_seed(0)
    rows_each = num_drafts + 1
    n = num_requests * rows_each
    logits = (torch.randn(n, VOCAB, generator=generator, device=device) * 3).to(dtype)
    position = torch.arange(n, device=device)
    draws = (logits, None, None, torch.ones(n, device=device), None, None, None, torch.zeros_like(position), position)
    drafts = torch.ops.structout.masked_sample(*draws)
    is_wrong = torch.rand(n, generator=generator, device=device) < 0.3
    drafts = torch.where(is_wrong, torch.randint(VOCAB, (n,), generator=generator, device=device), drafts)
    row_indptr = torch.arange(0, n + 1, rows_each, device=device)
    return {"draws": draws, "drafts": drafts, "row_indptr": row_indptr, "rows_each": rows_each}


def verified_drafts(problem: dict[str, Any]) -> harness.Call:
    arguments = (*problem["draws"], problem["drafts"], problem["row_indptr"])
    rows = 2 * problem["rows_each"]
    few = (*(None if a is None else a[:rows] for a in arguments[:-1]), problem["row_indptr"][:3])
    results = zip(torch.ops.structout.verify_drafts(*few), reference.verify_drafts(*few), strict=True)
    if not all(torch.equal(got, expected) for got, expected in results):
        raise AssertionError("structout differs from the reference: nothing is timed on a wrong result")
    return lambda: torch.ops.structout.verify_drafts(*arguments)


def four_calls(problem: dict[str, Any]) -> harness.Call:
    """masked_sample once for the rows of each draft position."""
    step = problem["rows_each"]
    parts = [tuple(None if a is None else a[first::step] for a in problem["draws"]) for first in range(step)]
    return lambda: [torch.ops.structout.masked_sample(*part) for part in parts]


def rejection_sampling(problem: dict[str, Any]) -> harness.Call:
    logits, drafts, step = problem["draws"][0], problem["drafts"], problem["rows_each"]
    requests = len(logits) // step
    rows = torch.arange(len(logits), device=logits.device)

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        probabilities = logits.float().softmax(-1)
        is_accepted = torch.rand(len(logits), device=logits.device) <= probabilities[rows, drafts]
        is_accepted = is_accepted.view(requests, step)
        is_accepted[:, -1] = False
        num_accepted = is_accepted.int().cumprod(-1).sum(-1)
        rest = probabilities.index_put((rows, drafts), torch.zeros((), device=logits.device))
        others = rest.div_(torch.empty_like(rest).exponential_()).argmax(-1).view(requests, step)
        return torch.where(is_accepted, drafts.view(requests, step), others), num_accepted

    return draw


def topn_problem(n: int, top_n: int, dtype: torch.dtype, device: str, num_allowed: int | None) -> dict[str, Any]:
    """Raw logprobs of all tokens, or those among ``num_allowed`` tokens of each row."""
    generator = torch.Generator(device).manual_seed(0)
    logits = (torch.randn(n, VOCAB, generator=generator, device=device) * 3).to(dtype)
    allowed = torch.ones(n, VOCAB, dtype=torch.bool, device=device)
    if num_allowed is not None:
        order = torch.rand(n, VOCAB, generator=generator, device=device).topk(num_allowed).indices
        allowed = torch.zeros_like(allowed).scatter_(1, order, True)
    temperature = torch.full((n,), 0.8, device=device)
    seeds = torch.arange(n, device=device)
    draws = (logits, pack_bitmask(allowed), None, temperature, None, None, None, seeds, seeds)
    return {"draws": draws, "allowed": allowed, "top_n": top_n, "raw": num_allowed is None}


def sample_topn(problem: dict[str, Any]) -> harness.Call:
    arguments = (*problem["draws"], problem["top_n"], problem["raw"])
    few = (*(None if a is None else a[:2] for a in problem["draws"]), problem["top_n"], problem["raw"])
    results = zip(torch.ops.structout.masked_sample_topn(*few), reference.masked_sample_topn(*few), strict=True)
    if not all(torch.equal(got, expected) for got, expected in results):
        raise AssertionError("structout differs from the reference: nothing is timed on a wrong result")
    return lambda: torch.ops.structout.masked_sample_topn(*arguments)


def dense_topn(problem: dict[str, Any]) -> harness.Call:
    """The draw and the logprobs of engines: softmax and exponential noise, log_softmax,
    the rank by comparing, topk."""
    logits, temperature = problem["draws"][0], problem["draws"][3].unsqueeze(1)
    is_disallowed = ~problem["allowed"]

    def draw() -> tuple[torch.Tensor, ...]:
        raw = logits.float()
        x = raw.masked_fill(is_disallowed, float("-inf")).div_(temperature)
        probabilities = x.softmax(-1)
        ids = probabilities.div_(torch.empty_like(probabilities).exponential_()).argmax(-1, keepdim=True)
        logprobs = (raw if problem["raw"] else x).log_softmax(-1)
        chosen = logprobs.gather(1, ids)
        return ids, chosen, (logprobs >= chosen).sum(-1), *logprobs.topk(problem["top_n"])

    return draw


def dense_logprobs(problem: dict[str, Any]) -> harness.Call:
    """The same for ids that are known, without the draw: beside it, structout still
    draws."""
    logits = problem["draws"][0]
    ids = torch.ops.structout.masked_sample(*problem["draws"]).unsqueeze(1)

    def compute() -> tuple[torch.Tensor, ...]:
        logprobs = logits.float().log_softmax(-1)
        chosen = logprobs.gather(1, ids)
        return chosen, (logprobs >= chosen).sum(-1), *logprobs.topk(problem["top_n"])

    return compute


OPS: dict[str, tuple[Any, dict[str, Any], list[tuple[Any, ...]]]] = {
    "apply_penalties": (
        penalties_problem,
        {"structout": penalties_of_lists, "dense torch chain": dense_penalties},
        [(64, 1000, torch.float32), (64, 100, torch.float32), (1, 1000, torch.float32)],
    ),
    "verify_drafts": (
        drafts_problem,
        {"structout": verified_drafts, "masked_sample per draft": four_calls, "torch rejection": rejection_sampling},
        [(64, 3, torch.float32), (64, 3, torch.bfloat16), (1, 3, torch.float32)],
    ),
    "masked_sample_topn, raw": (
        functools.partial(topn_problem, num_allowed=None),
        {"structout": sample_topn, "torch draw and logprobs": dense_topn, "log_softmax, topk, rank": dense_logprobs},
        [(64, 5, torch.float32), (64, 5, torch.bfloat16), (64, 20, torch.float32), (1, 5, torch.float32)],
    ),
    "masked_sample_topn, 100 allowed": (
        functools.partial(topn_problem, num_allowed=100),
        {"structout": sample_topn, "torch draw and logprobs": dense_topn, "log_softmax, topk, rank": dense_logprobs},
        [(64, 5, torch.float32), (64, 5, torch.bfloat16), (1, 5, torch.float32)],
    ),
}


def main() -> None:
    parser = harness.argument_parser("penalties and drafts beside dense chains", quick="one small case of each")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    results = harness.ResultsFile("step_ops", device, arguments)
    with torch.inference_mode():
        for op, (make_problem, makers, cases) in OPS.items():
            peers = harness.Peers(makers)
            peers.may_fail = not arguments.quick
            for batch, count, dtype in [(2, 3, torch.float32)] if arguments.quick else cases:
                problem = make_problem(batch, count, dtype, arguments.device)
                calls = dict(peers.calls(problem))
                seconds = 0.02 if arguments.quick else SECONDS[arguments.device]
                times = harness.time_calls(calls, device, read_inputs=lambda: None, seconds=seconds, max_rounds=60)
                row = {"op": op, "batch": batch, "count": count, "vocab": VOCAB, "dtype": str(dtype)[6:]}
                results.add(row | times | {"missing": dict(peers.missing)})
                ours = times["us"]["structout"]
                beside = "  ".join(f"{name} {us:,.1f} us ({us / ours:.1f}x)" for name, us in times["us"].items())
                print(f"{op:<32}{row['dtype']:<9}{batch:>3} x {count:<5}{beside}", flush=True)
    results.close()


if __name__ == "__main__":
    main()
