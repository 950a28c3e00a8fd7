"""Counts the texts of vLLM that are whole and valid within `max_tokens`.

    python bench/bench_limits_vllm.py [--quick]

Needs the environment of `make test-vllm`. SmolLM2-135M-Instruct answers the prompts of
bench_limits.py, those for JSON also after a reasoning that it does not end by itself,
at T = 0 and 0.7, with each limit from 16 to 256 that the constraint's least number of
tokens fits.
"""

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import torch

from structout.cli.demo_model import NAME

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

NUM_TEXTS = 5
LIMITS = (16, 32, 64, 128, 256)
TEMPERATURES = (0.0, 0.7)


def cases(num_texts: int) -> Iterator[tuple[str, bool, dict[str, Any], list[Any]]]:
    """Names, whether the model thinks first, vLLM's structured outputs, and the
    requests for them."""
    from limit_items import tasks

    from support.real_model_cases import TAGS, Case

    for task in tasks(num_texts):
        name, constraint = task.name, task.constraint
        if "tools" in constraint:
            tags: dict[str, Any] = TAGS["format"]
            constraint = {"structural_tag": json.dumps(TAGS | {"format": tags | {"at_least_one": True}})}
        yield name, False, constraint, [Case(_with_ended_reasoning(chat), None) for chat in task.chats]
        if "json" in constraint:
            yield f"{name}, reasoning", True, constraint, [Case(chat, None, reasoning="any") for chat in task.chats]


def _with_ended_reasoning(chat: list[dict[str, str]]) -> list[dict[str, str]]:
    """The chat with a system message that ends the reasoning, as the template's own
    does."""
    first, *others = chat
    if first["role"] != "system":
        return chat
    return [first | {"content": first["content"] + "<think></think>"}, *others]


def least(engine: Any, prompt: str, constraint: dict[str, Any]) -> int:
    """The tokens that a text of the constraint needs, by the refusal of one token."""
    from vllm.exceptions import VLLMValidationError

    from support.vllm_requests import greedy, structured

    try:
        engine.generate([greedy(1, **structured(**constraint))], [prompt])
    except VLLMValidationError as error:
        return int(str(error).partition("needs at least ")[2].split()[0])
    return 1


def is_whole(completion: Any, limit: int, constraint: dict[str, Any], *, thinks: bool) -> bool:
    """True if a text ends by itself within the limit, and JSON, which follows a
    reasoning where the model thinks, is valid."""
    import jsonschema

    if completion.finish_reason != "stop" or len(completion.token_ids) > limit:
        return False
    if "json" not in constraint:
        return True
    answer = completion.text.partition("</think>")[2] if thinks else completion.text
    try:
        jsonschema.validate(json.loads(answer), constraint["json"])
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def count_whole(
    engine: Any,
    prompts: list[str],
    constraint: dict[str, Any],
    limits: list[int],
    temperature: float,
    *,
    thinks: bool,
) -> Counter[int]:
    """How many texts are whole within each limit. They are drawn in one batch."""
    from vllm import SamplingParams

    from support.vllm_requests import structured

    drawn = [(limit, seed) for limit in limits for seed in range(len(prompts))]
    params = [
        SamplingParams(max_tokens=limit, temperature=temperature, seed=seed, **structured(**constraint))
        for limit, seed in drawn
    ]
    outputs = engine.generate(params, [prompts[seed] for _, seed in drawn])
    pairs = zip(drawn, outputs, strict=True)
    return Counter(
        limit for (limit, _), output in pairs if is_whole(output.outputs[0], limit, constraint, thinks=thinks)
    )


def main() -> None:
    parser = harness.argument_parser(__doc__.split("\n\n")[0], quick="two texts of two kinds")
    arguments = parser.parse_args()
    if harness.lacks_vllm():
        return
    os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR"}
    from support.real_model_cases import OFFLINE, prompt_of
    from support.vllm_engines import engine
    from support.vllm_models import save_real_model
    from support.vllm_requests import greedy

    results = harness.ResultsFile("limits_vllm", torch.device("cpu"), arguments)
    asked = list(cases(2 if arguments.quick else NUM_TEXTS))
    if arguments.quick:
        asked = [case for case in asked if case[0] in ("tools", "topic, reasoning")]
    with (
        tempfile.TemporaryDirectory() as folder,
        engine(
            save_real_model(Path(folder)), **OFFLINE | {"max_model_len": 1024, "num_gpu_blocks_override": 512}
        ) as running,
    ):
        for name, thinks, constraint, requests in asked:
            prompts = [prompt_of(running.tokenizer, request) for request in requests]
            running.generate([greedy(1)] * len(prompts), prompts)  # each prompt is computed once
            needed = least(running, prompts[0], constraint) + thinks  # the end of the reasoning
            limits = [limit for limit in LIMITS if limit >= needed]
            for temperature in TEMPERATURES:
                whole = count_whole(running, prompts, constraint, limits, temperature, thinks=thinks)
                for limit in limits:
                    row = {"kind": name, "temperature": temperature, "least": needed, "limit": limit}
                    row |= {"texts": len(prompts), "whole": whole[limit]}
                    results.add(row | {"model": NAME, "vllm_version": harness.vllm_version()})
                total = len(prompts) * len(limits)
                print(f"{name:<14} T = {temperature}: {whole.total()} of {total} texts are whole", flush=True)
    results.close()


if __name__ == "__main__":
    main()
