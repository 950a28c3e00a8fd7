"""Measures which of several texts of a real model has the right values.

    python bench/bench_selection.py [--quick]

SmolLM2-135M-Instruct answers ten prompts of each kind in value_items.py at T = 0.7,
with four texts a prompt, and once greedily. "best of 4": ``select="best"``; "resample":
``select="resample"``; "described": ``describe=True``; the others are averages over the
four texts. A field is a leaf of the right answer. Intervals are 95% ones of a bootstrap
over the prompts, those of differences to "plain" as well.
"""

import random
import statistics
from dataclasses import dataclass, field
from typing import Any

import harness
import torch
from bench_values import MAX_NEW_TOKENS, first_object, right_fields
from value_items import SETS, Chat

from structout.cli.demo_model import load_demo_model
from structout.integrations.transformers import generate

NUM_TEXTS, NUM_PROMPTS, NUM_BOOTSTRAPS = 4, 10, 2_000
SAMPLED = {"do_sample": True, "temperature": 0.7, "top_k": 0, "top_p": 1.0, "num_return_sequences": NUM_TEXTS}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "plain": SAMPLED,
    "described": SAMPLED | {"describe": True},
    "best of 4": SAMPLED | {"select": "best"},
    "resample": SAMPLED | {"select": "resample"},
}


@dataclass
class Measured:
    """One way, over all prompts.

    Attributes:
        fields: the share of right fields of each prompt's texts.
        texts: the share of right texts.
        tokens: decoded for one prompt.
    """

    fields: list[float] = field(default_factory=list)
    texts: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def judge(self, texts: list[str], answer: Any, num_tokens: int) -> None:
        right = [right_fields(answer, first_object(text)) for text in texts]
        self.fields.append(statistics.mean(sum(each) / len(each) for each in right))
        self.texts.append(statistics.mean(all(each) for each in right))
        self.tokens.append(num_tokens)


def interval(values: list[float]) -> list[float]:
    """The 95% interval of the mean, in percent."""
    rng = random.Random(0)
    means = sorted(statistics.mean(rng.choices(values, k=len(values))) for _ in range(NUM_BOOTSTRAPS))
    return [round(100 * means[int(share * NUM_BOOTSTRAPS)], 1) for share in (0.025, 0.975)]


def main() -> None:
    arguments = harness.argument_parser("right values of several texts", quick="one prompt, few tokens").parse_args()
    torch.set_num_threads(1)
    results = harness.ResultsFile("selection", torch.device("cpu"), arguments)
    model, tokenizer, directory = load_demo_model()
    kinds = [kind for kinds in SETS.values() for kind in kinds]
    kinds, num_prompts, limit = (kinds[:1], 1, 48) if arguments.quick else (kinds, NUM_PROMPTS, MAX_NEW_TOKENS)
    measured = {way: Measured() for way in WAYS}
    for kind in kinds:
        items = kind.items()[:num_prompts]
        chats: list[Chat] = [chat for chat, _ in items]
        for way, options in WAYS.items():
            found = generate(model, tokenizer, chats, json=kind.schema, max_new_tokens=limit, **options)
            size = len(found.texts) // len(chats)
            drawn = options.get("num_return_sequences", 1)
            for i, (_, answer) in enumerate(items):
                texts = found.texts[size * i : size * (i + 1)]
                tokens = sum(usage.completion_tokens for usage in found.usage[size * i : size * (i + 1)])
                measured[way].judge(texts, answer, tokens * drawn // size)
        print(kind.name, {way: round(statistics.mean(each.fields), 3) for way, each in measured.items()}, flush=True)
    plain = measured["plain"].fields
    for way, each in measured.items():
        row = {"way": way, "model": directory.name, "prompts": len(plain), "kinds": len(kinds)}
        row |= {"right_fields": round(100 * statistics.mean(each.fields), 1), "fields_interval": interval(each.fields)}
        row |= {"right_texts": round(100 * statistics.mean(each.texts), 1), "texts_interval": interval(each.texts)}
        row["more_fields_than_plain"] = interval([a - b for a, b in zip(each.fields, plain, strict=True)])
        results.add(row | {"tokens_per_prompt": round(statistics.mean(each.tokens), 1)})
        print(row, flush=True)
    results.close()


if __name__ == "__main__":
    main()
