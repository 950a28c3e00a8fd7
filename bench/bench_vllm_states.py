"""Measures what structured output costs vLLM with asynchronous scheduling.

    python bench/bench_vllm_states.py [--quick]

Needs the environment of `make test-vllm`. Two engines in one process serve the same
numbers of free and of JSON requests in turn, with structout's sampler: one keeps the
states of grammars in its worker (STRUCTOUT_VLLM_WORKER_STATES=1), one in its scheduler.
The figures are medians and ranges of the rounds: tokens per second, and the
milliseconds of CPU time a step that vLLM's engine core takes (schedule, get masks, read
outputs). The models are a tiny one with a large vocabulary, and SmolLM2-135M-Instruct.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import harness
import torch
from bench_vllm import MODELS, SAMPLING, Model, constraint, saved, shape_of, spreads

from structout.cli.demo_model import NAME

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

# Models, and how many requests each serves at a time. The shortest of the texts may end
# after 80 tokens.
SMALL, LARGE = ((replace(model, num_tokens=72), 64) for model in (MODELS[-1], MODELS[0]))
REAL = (Model("SmolLM2-135M", 49_152, 24, {}), 16)
PLACES = ("scheduler", "worker")  # of the states
_PARTS = ("schedule", "get_grammar_bitmask", "update_from_output")


@contextmanager
def real_model() -> Iterator[tuple[Path, Any]]:
    """A folder with SmolLM2-135M-Instruct, and its tokenizer."""
    from transformers import AutoTokenizer

    from support.vllm_models import save_real_model

    with tempfile.TemporaryDirectory() as name:
        folder = save_real_model(Path(name))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.name_or_path = NAME
        yield folder, tokenizer


@contextmanager
def engines(folder: Path, num_requests: int) -> Iterator[dict[str, Any]]:
    """The engines by the place of the states."""
    from support.vllm_engines import engine

    arguments = {
        "max_num_seqs": num_requests,
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
    """Collect the CPU seconds of the engine core's own work, in single calls."""
    scheduler, seconds = engine.core.scheduler, []

    def timed(call: Any) -> Any:
        def timed_call(*arguments: Any, **options: Any) -> Any:
            begin = time.thread_time()
            result = call(*arguments, **options)
            seconds.append(time.thread_time() - begin)
            return result

        return timed_call

    for part in _PARTS:
        setattr(scheduler, part, timed(getattr(scheduler, part)))
    yield seconds
    for part in _PARTS:
        delattr(scheduler, part)


def run(engine: Any, num_requests: int, num_tokens: int, sampling: dict[str, Any], kind: str) -> dict[str, float]:
    """Serve the requests once."""
    from vllm import SamplingParams

    params = [
        SamplingParams(max_tokens=num_tokens, ignore_eos=True, structured_outputs=constraint(kind, i), **sampling)
        for i in range(num_requests)
    ]
    prompts = [{"prompt_token_ids": [40 + i, 41, 42]} for i in range(num_requests)]
    with core_seconds(engine) as seconds:
        begin = time.perf_counter()
        outputs = engine.llm.generate(prompts, params, use_tqdm=False)
        total = time.perf_counter() - begin
    lengths = {len(output.outputs[0].token_ids) for output in outputs}
    if lengths != {num_tokens}:
        raise AssertionError(f"texts of {lengths} tokens instead of {num_tokens}: nothing is timed on a wrong result")
    return {"tokens_per_second": num_requests * num_tokens / total, "core_ms": sum(seconds) / num_tokens * 1e3}


def compare(
    engines: dict[str, Any], num_requests: int, num_tokens: int, sampling: dict[str, Any], num_rounds: int
) -> dict[str, dict[str, Any]]:
    """Alternate the engines and the kinds of requests. Returns the median, least and
    largest value of each figure."""
    cases = [(place, kind) for place in PLACES for kind in ("free", "JSON")]
    runs: dict[str, list[dict[str, float]]] = {f"{place} {kind}": [] for place, kind in cases}
    for place, kind in cases:
        run(engines[place], num_requests, num_tokens, sampling, kind)  # grammars are compiled
    for i in range(num_rounds):
        for place, kind in cases if i % 2 else reversed(cases):  # what came before changes the next run's time
            runs[f"{place} {kind}"].append(run(engines[place], num_requests, num_tokens, sampling, kind))
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
            f"{row['model']}, V = {row['vocab']:<8,} {row['sampling']:<10} states in the {place:<10} "
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
    for model, num_requests in [SMALL] if arguments.quick else [LARGE, REAL]:
        loaded = real_model() if model is REAL[0] else saved(model)
        with loaded as (folder, tokenizer), engines(folder, num_requests) as running:
            torch.set_num_threads(1)
            for label in ("T=0", "T=1"):
                figures = compare(
                    running, num_requests, model.num_tokens, SAMPLING[label], 1 if arguments.quick else 31
                )
                row = {**shape_of(model, tokenizer, num_requests), "sampling": label, **figures}
                results.add(row)
                say(row)
    results.close()


if __name__ == "__main__":
    main()
