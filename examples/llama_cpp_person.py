"""A person from a sentence, with a GGUF model in llama.cpp.

python examples/llama_cpp_person.py MODEL.gguf
"""

import sys
from dataclasses import dataclass

from llama_cpp import Llama

from structout.integrations.llama_cpp import StructuredLogitsProcessor, generate


@dataclass
class Person:
    name: str
    age: int
    city: str


def main(model: str) -> None:
    llama = Llama(model, n_ctx=1024, verbose=False)
    chat = [{"role": "user", "content": "Maria Lopez is 34 years old and lives in Madrid."}]
    print(generate(llama, chat, json=Person).parsed[0])

    # llama-cpp-python's own methods take a logits processor for each text.
    processor = StructuredLogitsProcessor(llama, json=Person, max_tokens=64)
    answer = llama.create_chat_completion(chat, max_tokens=64, temperature=0, logits_processor=[processor])
    print(processor.parse(answer["choices"][0]["message"]["content"]))


if __name__ == "__main__":
    main(sys.argv[1])
