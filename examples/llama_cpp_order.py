"""Structured output of a GGUF model, with llama-cpp-python.

python examples/llama_cpp_order.py MODEL.gguf
"""

import sys
from dataclasses import dataclass
from typing import Literal

from llama_cpp import Llama

from structout.integrations.llama_cpp import StructuredLogitsProcessor, generate


@dataclass
class Order:
    item: Literal["tea", "coffee"]
    cups: int


def main(model: str) -> None:
    llama = Llama(model, n_ctx=1024, verbose=False)
    chat = [{"role": "user", "content": "I would like two cups of tea, please. Answer as JSON with item and cups."}]
    print(generate(llama, chat, json=Order).parsed[0])

    date = StructuredLogitsProcessor(llama, regex=r"\d{4}-\d{2}-\d{2}", max_tokens=16)
    chat = [{"role": "user", "content": "Write the date March 15, 2024 as YYYY-MM-DD."}]
    answer = llama.create_chat_completion(chat, max_tokens=16, temperature=0, logits_processor=[date])
    print(date.parse(answer["choices"][0]["message"]["content"]))


if __name__ == "__main__":
    main(sys.argv[1])
