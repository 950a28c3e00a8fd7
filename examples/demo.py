"""What structout is for: one model reads an order, with a schema and without.

    python examples/demo.py

SmolLM2 has 135 million parameters. It understands the order, but not which form a
program expects; structout lets it write nothing else.
"""

import json
import time
from dataclasses import dataclass
from typing import Literal

import structout
from structout.cli.demo_model import load_demo_model
from structout.integrations.transformers import TextStream

ORDER = "I'd like three pears please, and wrap them as a gift."


@dataclass
class Order:
    item: Literal["apple", "pear", "plum"]
    quantity: int
    gift: bool


def show(title: str, pieces: TextStream) -> str:
    """Print a text as it is written, and how fast. Return it."""
    print(f"\n{title}:\n", flush=True)
    start = time.perf_counter()
    for piece in pieces:
        print(piece, end="", flush=True)
    seconds, tokens = time.perf_counter() - start, pieces.result.usage[0].completion_tokens
    print(f"\n\n({tokens} tokens, {tokens / seconds:.0f} tokens/s)", flush=True)
    return pieces.result.texts[0]


def main() -> None:
    model, tokenizer, _ = load_demo_model()
    print(f"the order, in plain English:\n\n{ORDER}")
    prompt = [{"role": "user", "content": f"Extract the order as JSON (item, quantity, gift): {ORDER}"}]
    with_structout = structout.stream(model, tokenizer, prompt, json=Order)
    show("the same order, read by SmolLM2-135M under structout", with_structout)
    print(f"as an object: {with_structout.result.parsed[0]}")
    without = structout.stream(model, tokenizer, prompt, params=[None], max_new_tokens=80)
    text = show("the same model and prompt without structout, 80 tokens at most", without)
    try:
        print(f"as JSON: {json.loads(text)}")
    except ValueError as error:
        print(f"as JSON: {error}")


if __name__ == "__main__":
    main()
