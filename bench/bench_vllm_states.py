"""Measures what structured output costs vLLM with asynchronous scheduling.

    python bench/bench_vllm_states.py [--quick]

Needs the environment of `make test-vllm`. Two engines in one process serve the same
numbers of free and of JSON requests in turn, with structout's sampler: one keeps the
states of grammars in its worker (STRUCTOUT_VLLM_WORKER_STATES=1), one in its scheduler.
The figures are medians and ranges of the rounds: tokens per second, and the
milliseconds a step that vLLM's engine core takes (schedule, get masks, read outputs).
"""

import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import harness
import torch
from bench_vllm import MODELS, SAMPLING, constraint, saved, shape_of, spreads

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

NUM_REQUESTS = 64
NUM_TOKENS = 72  # of each request: the shortest of the texts may end after 80
PLACES = ("scheduler", "worker")  # of the states
_PARTS = ("schedule", "get_grammar_bitmask", "update_from_output")


@contextmanager
def engines(folder: Path) -> Iterator[dict[str, Any]]:
    """The engines by the place of the states."""
    from support.vllm_engines import engine

    arguments = {
        "max_num_seqs": NUM_REQUESTS,
        "enable_prefix_caching": False,
        "dtype": "bfloat16",
        "disable_log_stats": True,
    }
    with (
        engine(folder, is_async=True, **arguments) as scheduler,
        engine(folder, is_async=True, keeps_states=True, **arguments) as worker,
    ):
        yield {"scheduler": scheduler, "worker": worker}


@contextmanager
def core_seconds(engine: Any) -> Iterator[list[float]]:
    """Collect the seconds of the engine core's own work, in single calls."""
    scheduler, seconds = engine.core.scheduler, []

    def timed(call: Any) -> Any:
        def timed_call(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            result = call(*arguments, **options)
            seconds.append(time.perf_counter() - begin)
            return result

        return timed_call

    for part in _PARTS:
        setattr(scheduler, part, timed(getattr(scheduler, part)))
    yield seconds
    for part in _PARTS:
        delattr(scheduler, part)


def run(engine: Any, sampling: dict[str, Any], kind: str) -> dict[str, float]:
    """Serve the requests once."""
    from vllm import SamplingParams

    params = [
        SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, structured_outputs=constraint(kind, i), **sampling)
        for i in range(NUM_REQUESTS)
    ]
    prompts = [{"prompt_token_ids": [40 + i, 41, 42]} for i in range(NUM_REQUESTS)]
    with core_seconds(engine) as seconds:
        begin = time.perf_counter()
        outputs = engine.llm.generate(prompts, params, use_tqdm=False)
        total = time.perf_counter() - begin
    lengths = {len(output.outputs[0].token_ids) for output in outputs}
    if lengths != {NUM_TOKENS}:
        raise AssertionError(f"texts of {lengths} tokens instead of {NUM_TOKENS}: nothing is timed on a wrong result")
    return {"tokens_per_second": NUM_REQUESTS * NUM_TOKENS / total, "core_ms": sum(seconds) / NUM_TOKENS * 1e3}


def compare(engines: dict[str, Any], sampling: dict[str, Any], num_rounds: int) -> dict[str, dict[str, Any]]:
    """Alternate the engines and the kinds of requests. Returns the median, least and
    largest value of each figure."""
    cases = [(place, kind) for place in PLACES for kind in ("free", "JSON")]
    runs: dict[str, list[dict[str, float]]] = {f"{place} {kind}": [] for place, kind in cases}
    for place, kind in cases:
        run(engines[place], sampling, kind)  # grammars are compiled
    for i in range(num_rounds):
        for place, kind in cases if i % 2 else reversed(cases):  # what came before changes the next run's time
            runs[f"{place} {kind}"].append(run(engines[place], sampling, kind))
    figures = spreads(runs)
    for place in PLACES:  # of neighbours in time, so that a busy machine slows both
        pairs = list(zip(runs[f"{place} JSON"], runs[f"{place} free"], strict=True))
        figures[f"{place} ratio"] = {
            figure: round(statistics.median(ours[figure] / free[figure] for ours, free in pairs), 3)
            for figure in pairs[0][0]
        }
    return figures


def say(row: dict[str, Any]) -> None:
    for place in PLACES:
        free, ours, ratio = (row[f"{place} {name}"] for name in ("free", "JSON", "ratio"))
        print(
            f"V = {row['vocab']:<8,} {row['sampling']:<10} states in the {place:<10} "
            f"tokens/s {free['tokens_per_second'][0]:,.0f} -> {ours['tokens_per_second'][0]:,.0f} "
            f"({ratio['tokens_per_second']:.2f}x)  "
            f"engine core {free['core_ms'][0]:.2f} -> {ours['core_ms'][0]:.2f} ms a step ({ratio['core_ms']:.2f}x)",
            flush=True,
        )


def main() -> None:
    parser = harness.argument_parser(__doc__.split("\n\n")[0], quick="a small vocabulary, one round")
    arguments = parser.parse_args()
    if harness.lacks_vllm():
        return
    os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR"}
    results = harness.ResultsFile("vllm_states", torch.device("cpu"), arguments)
    model = MODELS[-1] if arguments.quick else MODELS[0]
    with saved(model) as (folder, tokenizer), engines(folder) as running:
        torch.set_num_threads(1)
        for label in ("T=0", "T=1"):
            figures = compare(running, SAMPLING[label], 1 if arguments.quick else 31)
            row = {**shape_of(model, tokenizer, NUM_REQUESTS), "sampling": label, **figures}
            results.add(row)
            say(row)
    results.close()


if __name__ == "__main__":
    main()
