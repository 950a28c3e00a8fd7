"""Sends random texts through one manager, to see that a schema serves any number of
them and that memory stays flat.

    python bench/bench_schema_traffic.py [--texts N] [--schemas N] [--quick]

First N texts (100,000) of one schema with 80 optional keys, in the declared and in any
order, then 1,000 texts for each of N schemas (1,000), of which the cache holds some
dozens. Each text is accepted in two parts, with a mask after each. Exits with status 1
if a request fails.
"""

import gc
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any

import harness
import torch
from large_tokenizer import trained_tokenizer

from structout import StructuredOutputManager, StructuredOutputsConfig, StructuredOutputsParams

NUM_KEYS = 80
NUM_KEYS_OF_MANY = 12
CACHE_MB_OF_MANY = 16  # less than all of them take, so that memory is flat only if it is given back
VALUES = ("true", "false", "null", "17", '"text"')


class Texts:
    """Random texts of a schema whose keys are optional.

    Args:
        tokenizer: of the model.
        name: that the keys begin with.
        num_keys: of the schema.
    """

    def __init__(self, tokenizer: Any, name: str, num_keys: int):
        self.names = [f"{name}_{i}" for i in range(num_keys)]
        self.schema = {"type": "object", "properties": {key: {} for key in self.names}, "additionalProperties": False}
        self._pieces: dict[str, list[int]] = {}
        self._tokenizer = tokenizer

    def draw(self, rng: random.Random, key_order: str) -> list[int]:
        names = rng.sample(self.names, rng.randint(1, len(self.names)))
        if key_order == "declared":
            names.sort(key=self.names.index)
        tokens = list(self._tokens("{"))
        for i, key in enumerate(names):
            separator = ", " if i else ""
            tokens += self._tokens(f'{separator}"{key}": ')
            tokens += self._tokens(rng.choice(VALUES))
        return tokens + self._tokens("}")

    def _tokens(self, text: str) -> list[int]:
        if text not in self._pieces:
            self._pieces[text] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return self._pieces[text]


def send(manager: StructuredOutputManager, params: StructuredOutputsParams, tokens: list[int], cut: int) -> bool:
    manager.add_request("r", params)
    manager.wait_ready("r")
    is_accepted = manager.accept_tokens("r", tokens[:cut])
    manager.grammar_bitmask(["r"])
    is_accepted = is_accepted and manager.accept_tokens("r", tokens[cut:])
    is_complete = bool(manager.grammar_bitmask(["r"]).bitmask.any())
    manager.finish_request("r")
    return is_accepted and is_complete


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def measure(tokenizer: Any, all_texts: list[Texts], num_texts: int, config: StructuredOutputsConfig) -> dict[str, Any]:
    """Send the texts of each schema in turn, and read the memory ten times."""
    key_order = config.key_order
    rng = random.Random(0)
    num_failed = num_sent = num_tokens = 0
    sizes: list[float] = []
    total = num_texts * len(all_texts)
    with StructuredOutputManager(tokenizer, len(tokenizer), config) as manager:
        start = time.process_time()
        for texts in all_texts:
            params = StructuredOutputsParams(json=texts.schema)
            for _ in range(num_texts):
                tokens = texts.draw(rng, key_order)
                num_failed += not send(manager, params, tokens, rng.randrange(1, len(tokens)))
                num_tokens += len(tokens)
                num_sent += 1
                if num_sent % max(total // 10, 1) == 0:
                    gc.collect()
                    sizes.append(resident_mb())
        seconds = time.process_time() - start
    return {
        "schemas": len(all_texts),
        "keys": len(all_texts[0].names),
        "key_order": key_order,
        "cache_mb": config.cache_bytes >> 20,
        "texts": total,
        "failed": num_failed,
        "us_per_text": seconds / total * 1e6,
        "tokens_per_text": num_tokens / total,
        "resident_mb": [round(size, 1) for size in sizes],
    }


def main() -> None:
    parser = harness.argument_parser("texts of one schema, and of many", quick="few texts")
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--schemas", type=int, default=1_000)
    arguments = parser.parse_args()
    num_texts, num_schemas, num_each = (200, 5, 20) if arguments.quick else (arguments.texts, arguments.schemas, 1_000)
    tokenizer = trained_tokenizer(2000, 1_000_000)
    results = harness.ResultsFile("schema_traffic", torch.device("cpu"), arguments)
    rows = []
    for key_order in ("declared", "any"):
        config = StructuredOutputsConfig(key_order=key_order)
        rows.append(measure(tokenizer, [Texts(tokenizer, "property", NUM_KEYS)], num_texts, config))
    many = [Texts(tokenizer, f"schema_{i}_key", NUM_KEYS_OF_MANY) for i in range(num_schemas)]
    rows.append(measure(tokenizer, many, num_each, StructuredOutputsConfig(cache_bytes=CACHE_MB_OF_MANY << 20)))
    for row in rows:
        results.add(row)
        growth = row["resident_mb"][-1] - row["resident_mb"][0]
        print(
            f"{row['schemas']} schemas of {row['keys']} keys, {row['key_order']:8}  {row['texts']} texts, "
            f"{row['failed']} failed  {row['us_per_text']:.0f} us a text  memory {growth:+.1f} MB"
        )
    results.close()
    sys.exit(any(row["failed"] for row in rows))


if __name__ == "__main__":
    main()
