"""Counts the calls of ten tools that vLLM's HTTP server returns at a temperature of 1:
those that are invalid against their schemas, and those that its parsers lose.

    python bench/bench_tool_calls_vllm.py [--quick]

Needs the environment of `make test-vllm`. The model is random, so that it never writes
what it was not made to write. Half of the answers are streamed, and where the format is
Qwen's, half of them begin with a reasoning; tool_choice is "auto", "required" or the
name of a tool, in turn.
"""

import asyncio
import itertools
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import harness
import torch

import structout  # noqa: F401 - registers the op that the description of the machine asks

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

PARSERS = ("hermes", "qwen3_coder", "kimi_k2", "glm47", "minimax_m2")
# The engine's parser of reasonings is Qwen's, which "<tool_call>" ends too: in texts of
# other formats this would be an error.
REASONING_PARSERS = ("hermes", "qwen3_coder", "glm47")
CHOICES = ("auto", "required", "book")
NUM_CLIENTS = 32


async def count(parser: str, url: str, tokenizer: Any, num_calls: int) -> dict[str, Any]:
    """Ask until as many calls were made.

    Returns:
        the number of requests, of calls, of calls that are invalid or lost, of answers
        that ran out of tokens, and of errors by HTTP status.
    """
    import httpx

    from support.tool_calls import TEN
    from support.tool_requests import MAX_TOKENS, ask, problems_of, tool_request

    counts = {"requests": 0, "calls": 0, "invalid or lost": 0, "cut off": 0, "HTTP errors": 0}
    kinds = [*itertools.product(CHOICES, (False, True) if parser in REASONING_PARSERS else (False,), (False, True))]
    cases = enumerate(itertools.cycle(kinds))
    limits = httpx.Limits(max_connections=NUM_CLIENTS)

    async def serve(client: Any) -> None:
        while counts["calls"] < num_calls:
            seed, (choice, thinks, is_stream) = next(cases)
            body = tool_request(tokenizer, parser, TEN, choice, seed, thinks=thinks)
            answer = await ask(client, url, body, is_stream=is_stream)
            counts["requests"] += 1
            if answer.status != 200:
                counts["HTTP errors"] += 1
                print(f"  {answer.status}: {answer.error[:300]}", flush=True)
                continue
            if len(answer.token_ids) >= MAX_TOKENS:
                counts["cut off"] += 1
                continue
            problems = problems_of(answer, parser, TEN, tokenizer)
            counts["calls"] += len(answer.calls)
            counts["invalid or lost"] += len(problems)
            for problem in problems:
                print(f"  {problem[:600]}", flush=True)

    async with httpx.AsyncClient(timeout=600, limits=limits) as client:
        await asyncio.gather(*(serve(client) for _ in range(NUM_CLIENTS)))
    return counts


def main() -> None:
    parser = harness.argument_parser(__doc__.split("\n\n")[0], quick="thirty calls in each format")
    arguments = parser.parse_args()
    if harness.lacks_vllm():
        return
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    from transformers import AutoTokenizer

    from support.vllm_tool_servers import save_tool_model, tool_servers

    results = harness.ResultsFile("tool_calls_vllm", torch.device("cpu"), arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_tool_model(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        with tool_servers(folder, PARSERS, folder / "log") as urls:
            for tool_parser, url in urls.items():
                counts = asyncio.run(count(tool_parser, url, tokenizer, 30 if arguments.quick else 1000))
                row = {"parser": tool_parser, "vllm_version": harness.vllm_version(), **counts}
                results.add(row)
                print(f"{tool_parser:<14}", "  ".join(f"{key} {value}" for key, value in counts.items()), flush=True)
    results.close()


if __name__ == "__main__":
    main()
