"""Measures vLLM with its own structured output and sampler, and with structout's.

    python bench/bench_vllm.py [--quick]

Needs the environment of `make test-vllm`. Two engines in one process serve the same
requests in turn, on one thread: the median and the range of the rounds are those of
tokens per second, and of the milliseconds a step that masks and sampling take (fill,
accept, apply, draw).
"""

import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import torch
from large_tokenizer import VOCAB_SIZE, large_tokenizer, trained_tokenizer

from structout.integrations.vllm import hooks

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0",  # one thread
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "STRUCTOUT_VLLM": "0",  # this bench puts the hooks in place and takes them away
}

NUM_REQUESTS = 32
_SHAPE_OF_HALF_A_BILLION = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
}


@dataclass(frozen=True)
class Model:
    """A model of random weights.

    Attributes:
        name: what the table calls it.
        vocab_size: the width of its lm_head.
        num_tokens: how many tokens each request gets in a round.
        config: its config, where it differs from the tests' model.
    """

    name: str
    vocab_size: int
    num_tokens: int
    config: dict[str, int]


MODELS = (
    Model("tiny", VOCAB_SIZE, 24, {}),
    Model("0.5B", VOCAB_SIZE, 12, _SHAPE_OF_HALF_A_BILLION),
    Model("tiny", 4_000, 48, {}),
)
SAMPLING: dict[str, dict[str, Any]] = {
    "T=0": {"temperature": 0.0},
    "T=1": {"temperature": 1.0},
    "top-p 0.9": {"temperature": 1.0, "top_p": 0.9},
}
KINDS = ("JSON", "tools", "free")
# No text of these ends in a round, so that every step serves every request.
_SCHEMAS: list[dict[str, Any]] = [
    {"type": "array", "items": {"type": "string"}, "minItems": 40},
    {"type": "array", "items": {"type": "integer"}, "minItems": 40},
    {"type": "array", "items": {"enum": ["open", "closed", "pending"]}, "minItems": 40},
    {
        "type": "array",
        "minItems": 20,
        "items": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "quantity": {"type": "integer"}, "paid": {"type": "boolean"}},
            "required": ["name", "quantity", "paid"],
            "additionalProperties": False,
        },
    },
]


_NUM_TOOLS = 10


def tool_calls(first: int) -> str:
    """The structural tag of an answer that calls tools, as vLLM makes it for hermes. No
    call ends in a round.

    Args:
        first: which of the schemas the first tool has.
    """
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionToolsParam
    from vllm.tool_parsers.structural_tag_registry import get_model_structural_tag

    tools = [
        ChatCompletionToolsParam(
            function={
                "name": f"tool_{number}",
                "parameters": {
                    "type": "object",
                    "properties": {"rows": _SCHEMAS[(first + number) % len(_SCHEMAS)]},
                    "required": ["rows"],
                    "additionalProperties": False,
                },
                "strict": True,
            }
        )
        for number in range(_NUM_TOOLS)
    ]
    return json.dumps(get_model_structural_tag("hermes", tools, "required", False).model_dump())


@dataclass(frozen=True)
class Engine:
    """An engine, and what has to be in place while it works."""

    llm: Any
    is_ours: bool

    @contextmanager
    def active(self) -> Iterator[None]:
        if self.is_ours:
            hooks.install()
        else:
            hooks.uninstall()
        yield


def start(folder: Path, *, is_ours: bool) -> Engine:
    from vllm import LLM

    (hooks.install if is_ours else hooks.uninstall)()
    llm = LLM(
        str(folder),
        max_model_len=512,
        max_num_seqs=NUM_REQUESTS,
        enforce_eager=True,
        enable_prefix_caching=False,
        dtype="bfloat16",
        disable_log_stats=True,
    )
    return Engine(llm, is_ours)


class StepTimes:
    """Seconds of an engine's steps that masks and sampling take, by part."""

    def __init__(self, engine: Engine):
        import vllm.v1.worker.gpu_model_runner as runner

        core = engine.llm.llm_engine.engine_core.engine_core
        manager = core.structured_output_manager
        self.seconds: dict[str, float] = defaultdict(float)
        self.num_steps = 0
        self._places = [
            ("fill", manager, "grammar_bitmask"),
            ("accept", manager, "accept_tokens"),
            ("mask", runner, "apply_grammar_bitmask"),
            ("draw", runner.GPUModelRunner, "_sample"),
        ]

    def __enter__(self) -> "StepTimes":
        self._originals = [getattr(owner, name) for _, owner, name in self._places]
        for (part, owner, name), original in zip(self._places, self._originals, strict=True):
            setattr(owner, name, self._timed(part, original))
        return self

    def __exit__(self, *exception: object) -> None:
        for (_, owner, name), original in zip(self._places, self._originals, strict=True):
            setattr(owner, name, original)

    @property
    def ms_per_step(self) -> float:
        return sum(self.seconds.values()) / self.num_steps * 1e3

    def _timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            result = call(*arguments, **options)
            self.seconds[part] += time.perf_counter() - begin
            self.num_steps += part == "draw"
            return result

        return timed


def constraint(kind: str, number: int) -> Any:
    """The constraint of a request, in vLLM's form."""
    from vllm.sampling_params import StructuredOutputsParams

    if kind == "tools":
        return StructuredOutputsParams(structural_tag=tool_calls(number % len(_SCHEMAS)))
    return StructuredOutputsParams(json=_SCHEMAS[number % len(_SCHEMAS)]) if kind == "JSON" else None


def run(engine: Engine, num_tokens: int, sampling: dict[str, Any], kind: str) -> dict[str, float]:
    """Serve the requests once. Returns tokens per second and milliseconds a step."""
    from vllm import SamplingParams

    params = [
        SamplingParams(
            max_tokens=num_tokens,
            ignore_eos=kind == "free",
            structured_outputs=constraint(kind, i),
            extra_args={"structout_fit": "off"},  # as in vLLM, texts may be cut off
            **sampling,
        )
        for i in range(NUM_REQUESTS)
    ]
    prompts = [{"prompt_token_ids": [40 + i, 41, 42]} for i in range(NUM_REQUESTS)]
    with engine.active(), StepTimes(engine) as times:
        begin = time.perf_counter()
        outputs = engine.llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - begin
    lengths = {len(output.outputs[0].token_ids) for output in outputs}
    if lengths != {num_tokens}:
        raise AssertionError(f"texts of {lengths} tokens instead of {num_tokens}: nothing is timed on a wrong result")
    parts = {part: round(value / times.num_steps * 1e3, 3) for part, value in times.seconds.items()}
    return {"tokens_per_second": NUM_REQUESTS * num_tokens / seconds, "ms_per_step": times.ms_per_step, **parts}


def compare(
    engines: dict[str, Engine], num_tokens: int, sampling: dict[str, Any], kind: str, num_rounds: int
) -> dict[str, dict[str, Any]]:
    """Alternate the engines. Returns the median, least and largest value of each
    figure by engine."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    for engine in engines.values():
        run(engine, num_tokens, sampling, kind)  # grammars are compiled
    for _ in range(num_rounds):
        for name, engine in engines.items():
            runs[name].append(run(engine, num_tokens, sampling, kind))
    return spreads(runs)


def spreads(runs: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, Any]]:
    """The median, least and largest value of each figure of the rounds, by name."""
    return {
        name: {
            figure: [round(f([one[figure] for one in rounds]), 3) for f in (statistics.median, min, max)]
            for figure in rounds[0]
        }
        for name, rounds in runs.items()
    }


@contextmanager
def saved(model: Model) -> Iterator[tuple[Path, Any]]:
    """A folder with the model, and its tokenizer."""
    from support.vllm_models import save_small_model

    is_large = model.vocab_size == VOCAB_SIZE
    tokenizer = large_tokenizer() if is_large else trained_tokenizer(model.vocab_size - 300, 2_000_000)
    with tempfile.TemporaryDirectory() as folder:
        save_small_model(Path(folder), tokenizer, model.vocab_size, **model.config)
        yield Path(folder), tokenizer


def shape_of(model: Model, tokenizer: Any, num_requests: int) -> dict[str, Any]:
    """What the rows of a model have in common."""
    return {
        "model": model.name,
        "vocab": model.vocab_size,
        "tokenizer": tokenizer.name_or_path,
        "batch": num_requests,
        "vllm_version": harness.vllm_version(),
    }


def say(row: dict[str, Any]) -> None:
    ours, stock = row["structout"], row["vllm"]
    tokens = stock["tokens_per_second"][0], ours["tokens_per_second"][0]
    ms = stock["ms_per_step"][0], ours["ms_per_step"][0]
    print(
        f"{row['model']:<5} V = {row['vocab']:<8,} {row['requests']:<5} {row['sampling']:<10} "
        f"tokens/s {tokens[0]:,.0f} -> {tokens[1]:,.0f} ({tokens[1] / tokens[0]:.2f}x)  "
        f"masks and sampling {ms[0]:.2f} -> {ms[1]:.2f} ms a step (1/{ms[0] / ms[1]:.1f})",
        flush=True,
    )


def main() -> None:
    parser = harness.argument_parser(__doc__.split("\n\n")[0], quick="a small vocabulary, one round")
    arguments = parser.parse_args()
    if harness.lacks_vllm():
        return
    os.environ.update(_ENVIRONMENT)
    torch.set_num_threads(1)
    results = harness.ResultsFile("vllm", torch.device("cpu"), arguments)
    for model in MODELS[-1:] if arguments.quick else MODELS:
        with saved(model) as (folder, tokenizer):
            engines = {label: start(folder, is_ours=label == "structout") for label in ("vllm", "structout")}
        for kind in KINDS:
            for label, sampling in SAMPLING.items():
                num_rounds = 1 if arguments.quick else 5
                figures = compare(engines, model.num_tokens, sampling, kind, num_rounds)
                shape = shape_of(model, tokenizer, NUM_REQUESTS)
                row = {**shape, "requests": kind, "sampling": label, **figures}
                results.add(row)
                say(row)
        del engines
        gc.collect()
    results.close()


if __name__ == "__main__":
    main()
