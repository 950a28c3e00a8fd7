"""Measures the answers of decide and its confidence, beside constrained draws.

    python bench/bench_decide.py [--quick]

SmolLM2-135M-Instruct says what 200 texts are about, after three examples: one of eight
topics, by its name or by a letter that the prompt gives it. "whole": the likeliest
text, "drawn": the likeliest end of a constrained draw, "greedy": what ``generate``
writes. The expected calibration error is that of Guo et al. (arXiv:1706.04599), with
ten bins of equally many texts. "over_forward": the time of decide for one prompt, over
that of a plain forward pass over as many tokens with as many logits; the median of
twenty.
"""

import math
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import harness
import torch
from value_items import LABELS, topic

from structout.cli.demo_model import load_demo_model
from structout.integrations.transformers import decide, generate

NUM_TEXTS, NUM_BINS, NUM_EXAMPLES, NUM_TIMED = 200, 10, 3, 20
LETTERS = dict(zip(LABELS, "ABCDEFGH", strict=True))
NAMINGS: dict[str, Callable[[str], str]] = {"names": str, "letters": LETTERS.__getitem__}


def chats(naming: str, count: int) -> list[tuple[list[dict[str, str]], str]]:
    """Prompts with their right answers."""
    rng, name = random.Random("decide"), NAMINGS[naming]
    listed = ", ".join(LABELS if naming == "names" else (f"{LETTERS[label]}: {label}" for label in LABELS))
    messages = [{"role": "system", "content": f"Say what the text is about, in one word or letter of: {listed}."}]
    for _ in range(NUM_EXAMPLES):
        text, answer = topic(rng)
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": name(answer["topic"])}]
    drawn = [topic(rng) for _ in range(count)]
    return [([*messages, {"role": "user", "content": text}], name(answer["topic"])) for text, answer in drawn]


def bins_of(confidences: list[float], are_right: list[bool]) -> list[tuple[float, float]]:
    """The mean confidence and the accuracy of bins of equally many texts."""
    pairs = sorted(zip(confidences, are_right, strict=True))
    bins = [pairs[i * len(pairs) // NUM_BINS : (i + 1) * len(pairs) // NUM_BINS] for i in range(NUM_BINS)]
    return [
        (round(statistics.mean(c for c, _ in each), 4), statistics.mean(right for _, right in each)) for each in bins
    ]


def row_of(shares: list[dict[str, float]], answers: list[str]) -> dict[str, Any]:
    best = [max(share, key=share.__getitem__) for share in shares]
    are_right = [given == answer for given, answer in zip(best, answers, strict=True)]
    bins = bins_of([max(share.values()) for share in shares], are_right)
    return {
        "right": sum(are_right),
        "of_right_answer": round(statistics.mean(s[a] for s, a in zip(shares, answers, strict=True)), 4),
        "calibration_error": round(statistics.mean(abs(right - confidence) for confidence, right in bins), 4),
        "bins": bins,
    }


def over_forward(model: Any, decide_one: Callable[[], Any]) -> float:
    """The time of ``decide_one`` over that of a plain pass of the same size."""
    passes: list[Any] = []
    hook = model.register_forward_hook(lambda _, __, inputs, ___: passes.append(inputs), with_kwargs=True)
    started = time.perf_counter()
    decide_one()
    seconds = time.perf_counter() - started
    hook.remove()
    (inputs,) = passes
    started = time.perf_counter()
    with torch.inference_mode():
        model(input_ids=inputs["input_ids"], use_cache=False, logits_to_keep=inputs["logits_to_keep"])
    return seconds / (time.perf_counter() - started)


def main() -> None:
    arguments = harness.argument_parser("answers and confidence of decide", quick="ten texts").parse_args()
    torch.set_num_threads(1)
    results = harness.ResultsFile("decide", torch.device("cpu"), arguments)
    model, tokenizer, directory = load_demo_model()
    count = NUM_BINS if arguments.quick else NUM_TEXTS
    for naming, name in NAMINGS.items():
        prompts, answers = map(list, zip(*chats(naming, count), strict=True))
        choices = [name(label) for label in LABELS]
        texts = [generate(model, tokenizer, prompt, choice=choices).texts[0] for prompt in prompts]
        are_right = sum(text == answer for text, answer in zip(texts, answers, strict=True))
        rows = [{"tokens": "all", "reading": "greedy", "right": are_right}]
        for tokens in ("all", "canonical"):
            started = time.process_time()
            decisions = decide(model, tokenizer, prompts, choices, tokenizations=tokens)
            costs = {"ms_per_text": round((time.process_time() - started) / count * 1e3, 1)}
            decide_one = partial(decide, model, tokenizer, choice=choices, tokenizations=tokens)
            ratios = [over_forward(model, partial(decide_one, prompt)) for prompt in prompts[:NUM_TIMED]]
            costs["over_forward"] = round(statistics.median(ratios), 3)
            costs["kept"] = round(math.exp(statistics.median(each.log_kept for each in decisions)), 3)
            readings = {
                "whole": [dict(zip(each.answers, each.probabilities, strict=True)) for each in decisions],
                "drawn": [dict(zip(each.answers, each.drawn, strict=True)) for each in decisions],
            }
            rows += [
                {"tokens": tokens, "reading": reading, **row_of(shares, answers), **costs}
                for reading, shares in readings.items()
            ]
        for row in rows:
            results.add({"naming": naming, "texts": count, "model": directory.name} | row)
            print(naming, row, flush=True)
    results.close()


if __name__ == "__main__":
    main()
