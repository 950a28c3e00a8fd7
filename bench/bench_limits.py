"""Counts the texts that are whole at their limit of tokens, and the right fields in
them.

    python bench/bench_limits.py [--texts FILE] [--quick]

SmolLM2-135M-Instruct answers, at T = 0.7, 20 prompts of each kind of value_items.py and
those of limit_items.py 20 times, with each limit that its constraint's least number of
tokens fits; where it does not, generate refuses. At T = 0, each prompt once, with the
default fit.
`fit` is "off" (the limit cuts texts off), "exact" (only what cannot end in time is
forbidden) or "on" (values share what is left). Without a fit a text at a lower limit is
the beginning of the one at the highest, so that is drawn once.
"""

import argparse
import json
from typing import Any, Literal

import harness
import torch
from bench_values import Passes, right_fields
from limit_items import Task, tasks

from structout import GrammarError
from structout.cli.demo_model import load_demo_model
from structout.integrations.transformers import Generation, generate

NUM_TEXTS = 20
LIMITS: tuple[int, ...] = (16, 24, 32, 48, 64, 96, 128)
SAMPLING: dict[str, Any] = {"do_sample": True, "temperature": 0.7, "top_k": 0, "top_p": 1.0}
GREEDY = "on, T = 0"


def judged(task: Task, result: Generation, limit: int) -> dict[str, int]:
    """How many texts are whole within the limit, and how many fields are right."""
    fits = [
        is_complete and usage.completion_tokens <= limit
        for is_complete, usage in zip(result.is_complete, result.usage, strict=True)
    ]
    right = [
        is_right
        for text, is_whole, answer in zip(result.texts, fits, task.answers, strict=True)
        if answer is not None
        for is_right in right_fields(answer, json.loads(text) if is_whole else None)
    ]
    return {"texts": len(fits), "whole": sum(fits), "right_fields": sum(right), "fields": len(right)}


def main() -> None:
    parser = harness.argument_parser("texts under a limit of tokens", quick="two texts of two kinds, one limit")
    parser.add_argument("--texts", type=argparse.FileType("w"), metavar="FILE", help="write each text, as JSON lines")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = harness.ResultsFile("limits", torch.device("cpu"), arguments)
    model, tokenizer, directory = load_demo_model()
    Passes(model)  # reads the prompts of a task once
    asked, limits = list(tasks(NUM_TEXTS)), LIMITS
    if arguments.quick:
        asked, limits = [task for task in tasks(2) if task.name in ("topic", "tools")], (24,)

    def texts(task: Task, limit: int, fit: Literal["off", "exact", "on"], **sampling: Any) -> Generation | None:
        """None if no text fits the limit."""
        torch.manual_seed(0)
        try:
            return generate(
                model,
                tokenizer,
                task.chats,
                **task.constraint,
                fit=fit,
                max_new_tokens=limit,
                describe="json" in task.constraint or "tools" in task.constraint,
                **sampling,
            )
        except GrammarError as error:
            if error.num_needed is None:
                raise
            return None

    for task in asked:
        once = task.once()
        cut_off = texts(task, max(limits), "off", **SAMPLING)
        assert cut_off is not None
        for limit in limits:
            of_fits = {
                "off": cut_off,
                "exact": texts(task, limit, "exact", **SAMPLING),
                "on": texts(task, limit, "on", **SAMPLING),
                GREEDY: texts(once, limit, "on"),
            }
            for fit, result in of_fits.items():
                if of_fits["on"] is None or result is None:
                    continue
                row = {"kind": task.name, "limit": limit, "fit": fit, "model": directory.name}
                row |= judged(once if fit == GREEDY else task, result, limit)
                results.add(row)
                print(
                    f"{task.name:<12}{limit:4} tokens, fit {fit:<10}{row['whole']:3} of {row['texts']} whole, "
                    f"{row['right_fields']:3} of {row['fields']} fields right",
                    flush=True,
                )
                for text in result.texts if arguments.texts is not None else []:
                    print(json.dumps(row | {"text": text}), file=arguments.texts, flush=True)
    results.close()


if __name__ == "__main__":
    main()
