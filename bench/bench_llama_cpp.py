"""Measures mask and apply for llama.cpp, beside its own grammars and llguidance.

    python bench/bench_llama_cpp.py [--quick]

Needs the environment of `make test-llama-cpp`. The model writes a JSON text for each
schema, greedily. Each peer then follows the tokens of the same texts: it masks a row of
49,152 logits, and accepts the next token. A text counts up to the first token that one
of the peers does not allow. llama.cpp's grammar works on its own array of candidates,
the others on a numpy row.
"""

import ctypes
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import harness
import numpy as np
import torch

PROMPT = "Write an example as JSON."
STRING, INTEGER = {"type": "string"}, {"type": "integer"}


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


SCHEMAS: dict[str, dict[str, Any]] = {
    "person": closed(name=STRING, age=INTEGER, city=STRING),
    "enum": closed(item={"enum": ["tea", "coffee", "water"]}, cups={"type": "integer", "minimum": 1, "maximum": 9}),
    "array": closed(words={"type": "array", "items": STRING, "minItems": 2, "maxItems": 5}),
    "nested": closed(user=closed(name=STRING, address=closed(street=STRING, zip={"type": "string", "maxLength": 8}))),
    "union": closed(value={"anyOf": [INTEGER, STRING, {"type": "null"}, closed(x=INTEGER, y=INTEGER)]}),
    "pattern": closed(code={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}, note=STRING),
    "long string": closed(path=STRING, content={"type": "string", "maxLength": 200}),
}
Peer = Callable[[Any, dict[str, Any], list[int]], Iterator[float]]


def structout_peer(llama: Any, schema: dict[str, Any], tokens: list[int]) -> Iterator[float]:
    from structout.integrations.llama_cpp import StructuredLogitsProcessor

    process = StructuredLogitsProcessor(llama, json=schema)
    for count, token in enumerate(tokens):
        input_ids = np.array([1, *tokens[:count]], dtype=np.intc)
        scores = np.zeros(llama.n_vocab(), dtype=np.single)
        begin = time.perf_counter()
        process(input_ids, scores)
        yield time.perf_counter() - begin
        if scores[token] != 0:
            return


def llama_cpp_peer(llama: Any, schema: dict[str, Any], tokens: list[int]) -> Iterator[float]:
    import llama_cpp

    grammar = llama_cpp.LlamaGrammar.from_json_schema(json.dumps(schema), verbose=False)._grammar.encode()
    sampler = llama_cpp.llama_sampler_init_grammar(llama._model.vocab, grammar, b"root")
    candidates = (llama_cpp.llama_token_data * llama.n_vocab())()
    fields = np.dtype([("id", np.intc), ("logit", np.single), ("p", np.single)])
    rows: Any = np.frombuffer(candidates, dtype=fields)
    array = llama_cpp.llama_token_data_array(candidates, len(candidates), -1, False)
    try:
        for token in tokens:
            rows["id"], rows["logit"] = np.arange(len(rows)), 0
            begin = time.perf_counter()
            llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
            masked = time.perf_counter()
            if rows["logit"][token] != 0:
                return
            accepting = time.perf_counter()
            llama_cpp.llama_sampler_accept(sampler, token)
            yield masked - begin + time.perf_counter() - accepting
    finally:
        llama_cpp.llama_sampler_free(sampler)


def llguidance_peer(llama: Any, schema: dict[str, Any], tokens: list[int]) -> Iterator[float]:
    import llguidance.numpy as adapter
    from llguidance import LLMatcher

    matcher = LLMatcher(llguidance_tokenizer(llama), LLMatcher.grammar_from_json_schema(schema))
    mask = adapter.allocate_token_bitmask(1, llama.n_vocab())
    for token in tokens:
        scores = np.zeros(llama.n_vocab(), dtype=np.single)
        begin = time.perf_counter()
        adapter.fill_next_token_bitmask(matcher, mask)
        adapter.apply_token_bitmask_inplace(scores, mask)
        masked = time.perf_counter()
        if scores[token] != 0:
            return
        accepting = time.perf_counter()
        matcher.consume_token(token)
        yield masked - begin + time.perf_counter() - accepting


@cache
def llguidance_tokenizer(llama: Any) -> Any:
    from llguidance.llamacpp import lltokenizer_from_vocab

    return lltokenizer_from_vocab(llama._model.vocab)


PEERS: dict[str, Peer] = {"structout": structout_peer, "llama.cpp": llama_cpp_peer, "llguidance": llguidance_peer}


def main() -> None:
    parser = harness.argument_parser(__doc__.split("\n\n")[0], quick="two schemas, one round")
    arguments = parser.parse_args()
    if harness.version("llama-cpp-python") is None:
        print("llama-cpp-python is not installed: make test-llama-cpp")
        return
    from llama_cpp import Llama

    from structout.cli.smollm2 import find_gguf
    from structout.integrations.llama_cpp import generate

    llama = Llama(str(find_gguf(None)), n_ctx=1024, n_threads=1, n_threads_batch=1, verbose=False)
    torch.set_num_threads(1)
    results = harness.ResultsFile("llama_cpp", torch.device("cpu"), arguments)
    schemas = dict([*SCHEMAS.items()][: 2 if arguments.quick else None])
    texts = {name: generate(llama, PROMPT, json=each, max_tokens=100).token_ids[0] for name, each in schemas.items()}
    times: dict[str, list[float]] = {peer: [] for peer in PEERS}
    for _ in range(1 if arguments.quick else 5):
        for name, schema in schemas.items():
            followed = {peer: [*follow(llama, schema, texts[name])] for peer, follow in PEERS.items()}
            num_tokens = min(map(len, followed.values()))
            for peer, seconds in followed.items():
                times[peer] += seconds[:num_tokens]
    for peer, seconds in times.items():
        microseconds = sorted(1e6 * each for each in seconds)
        row = {
            "peer": peer,
            "schemas": len(schemas),
            "vocab": llama.n_vocab(),
            "tokens": len(seconds),
            "mean_us": round(statistics.fmean(microseconds), 1),
            "median_us": round(statistics.median(microseconds), 1),
            "p99_us": round(microseconds[int(0.99 * (len(microseconds) - 1))], 1),
        }
        results.add(row)
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    results.close()


if __name__ == "__main__":
    main()
