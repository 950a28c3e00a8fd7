"""Measures how well a real model writes the values of a schema that it is told of.

    python bench/bench_descriptions.py [--quick]

SmolLM2-135M-Instruct answers all prompts of value_items.py greedily, without examples:
the system message has nothing but the description. A field is a leaf of the right
answer. Intervals are 95% ones of a bootstrap over the prompts.
"""

import json
import statistics
from collections.abc import Callable
from typing import Any

import harness
import torch
from bench_selection import interval
from bench_values import MAX_NEW_TOKENS, first_object, right_fields
from value_items import SETS

from structout import describe
from structout.cli.demo_model import load_demo_model
from structout.integrations.transformers import generate

NUM_PROMPTS = 25  # of each kind
WORDINGS: dict[str, Callable[[Any], str]] = {
    "nothing": lambda schema: "Answer with JSON.",
    "the schema": lambda schema: f"Answer with JSON that matches this schema:\n{json.dumps(schema)}",
    "describe": lambda schema: f"Answer with JSON in this form:\n{describe(schema)}",
}


def main() -> None:
    arguments = harness.argument_parser("descriptions of schemas", quick="one prompt of one kind").parse_args()
    torch.set_num_threads(1)
    results = harness.ResultsFile("descriptions", torch.device("cpu"), arguments)
    model, tokenizer, directory = load_demo_model()
    kinds = [kind for kinds in SETS.values() for kind in kinds]
    kinds, num_prompts = (kinds[:1], 1) if arguments.quick else (kinds, NUM_PROMPTS)
    for wording, write in WORDINGS.items():
        shares: list[float] = []
        lengths: list[int] = []
        for kind in kinds:
            items = kind.items()[:num_prompts]
            system = {"role": "system", "content": write(kind.schema)}
            lengths.append(len(tokenizer(system["content"])["input_ids"]))
            chats = [[system, chat[-1]] for chat, _ in items]
            found = generate(model, tokenizer, chats, json=kind.schema, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
            right = [right_fields(a, first_object(text)) for text, (_, a) in zip(found.texts, items, strict=True)]
            shares += [sum(each) / len(each) for each in right]
        row = {"wording": wording, "model": directory.name, "prompts": len(shares), "kinds": len(kinds)}
        row |= {"right_fields": round(100 * statistics.mean(shares), 1), "interval": interval(shares)}
        results.add(row | {"tokens": round(statistics.mean(lengths), 1)})
        print(row, flush=True)
    results.close()


if __name__ == "__main__":
    main()
