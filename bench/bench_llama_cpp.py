"""Measures mask and apply for llama.cpp, beside its own grammars, llguidance and
outlines, and how fast structured text is beside free text.

    python bench/bench_llama_cpp.py [--quick]

Needs the environment of `make test-llama-cpp`. The model writes a JSON value for each
schema, greedily. Each peer then follows the tokens of its text, as json.dumps writes
it: it masks a row of 49,152 logits, and accepts the next token. A text counts up to the
first token that one of the peers does not allow; a peer that refuses a schema has no
tokens of it. llama.cpp's grammar works on its own array of candidates, the others on a
numpy row.

Free text is what llama-cpp-python's own loop writes from the same prompt, greedily, as
many tokens as the structured text has. The prompt is in the cache.
"""

import ctypes
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
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


def array(items: dict[str, Any], **bounds: int) -> dict[str, Any]:
    return {"type": "array", "items": items, **bounds}


def one_of(*values: str) -> dict[str, Any]:
    return {"enum": [*values]}


def text(max_length: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": max_length}


NUMBER, BOOLEAN, DATE = {"type": "number"}, {"type": "boolean"}, {"type": "string", "format": "date"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "person": closed(name=STRING, age=INTEGER, city=STRING),
    "enum": closed(item=one_of("tea", "coffee", "water"), cups={"type": "integer", "minimum": 1, "maximum": 9}),
    "array": closed(words=array(STRING, minItems=2, maxItems=5)),
    "nested": closed(user=closed(name=STRING, address=closed(street=STRING, zip=text(8)))),
    "union": closed(value={"anyOf": [INTEGER, STRING, {"type": "null"}, closed(x=INTEGER, y=INTEGER)]}),
    "pattern": closed(code={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}, note=STRING),
    "long string": closed(path=STRING, content=text(200)),
    "file tool": closed(name={"const": "write"}, arguments=closed(path=STRING, content=text(2_000), append=BOOLEAN)),
    "weather tool": closed(name={"const": "weather"}, arguments=closed(city=STRING, unit=one_of("celsius", "kelvin"))),
    "invoice": closed(
        number={"type": "string", "pattern": "^INV-[0-9]{6}$"},
        lines=array(closed(article=text(40), count=INTEGER, price=NUMBER), minItems=1, maxItems=3),
        total=NUMBER,
        currency=one_of("EUR", "USD", "JPY"),
    ),
    "appointment": closed(title=text(60), day=DATE, start={"type": "string", "format": "time"}, guests=array(STRING)),
    "recipe": closed(
        dish=STRING, ingredients=array(closed(name=STRING, grams=INTEGER), minItems=2), steps=array(STRING)
    ),
    "contact": closed(
        name=STRING, phone={"type": "string", "pattern": "^\\+[0-9]{2} [0-9]{6,10}$"}, is_customer=BOOLEAN
    ),
    "product": closed(name=text(50), price={"type": "number"}, tags=array(text(12), maxItems=4), in_stock=BOOLEAN),
    "report of a bug": closed(
        title=text(80), severity=one_of("low", "high", "critical"), steps=array(STRING, minItems=1)
    ),
    "sentiment": closed(label=one_of("positive", "neutral", "negative"), reason=text(120)),
    "search": closed(query=STRING, filters=closed(language=one_of("en", "de", "es"), since=DATE), limit=INTEGER),
    "events": closed(
        events=array(
            {
                "anyOf": [
                    closed(kind={"const": "click"}, x=INTEGER, y=INTEGER),
                    closed(kind={"const": "key"}, key=text(1)),
                ]
            },
            minItems=1,
            maxItems=4,
        )
    ),
    "matrix": closed(rows=array(array(NUMBER, minItems=2, maxItems=2), minItems=2, maxItems=3)),
    "tree": {
        **closed(tree={"$ref": "#/$defs/node"}),
        "$defs": {"node": closed(label=text(20), children=array({"$ref": "#/$defs/node"}, maxItems=2))},
    },
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
    if not sampler:
        raise ValueError("llama.cpp does not parse its grammar")  # and would go on without one
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


def outlines_peer(llama: Any, schema: dict[str, Any], tokens: list[int]) -> Iterator[float]:
    process = outlines_processor(llama, json.dumps(schema))
    process.reset()
    for count, token in enumerate(tokens):
        input_ids = np.array([1, *tokens[:count]], dtype=np.intc)
        scores = np.zeros(llama.n_vocab(), dtype=np.single)
        begin = time.perf_counter()
        masked = process(input_ids, scores)
        yield time.perf_counter() - begin
        if masked.reshape(-1)[token] != 0:
            return


@cache
def outlines_processor(llama: Any, schema: str) -> Any:
    return outlines_backend(llama).get_json_schema_logits_processor(schema)


@cache
def outlines_backend(llama: Any) -> Any:
    import outlines
    from outlines.backends.outlines_core import OutlinesCoreBackend

    return OutlinesCoreBackend(outlines.from_llamacpp(llama))


@cache
def llguidance_tokenizer(llama: Any) -> Any:
    from llguidance.llamacpp import lltokenizer_from_vocab

    return lltokenizer_from_vocab(llama._model.vocab)


PEERS: dict[str, Peer] = {
    "structout": structout_peer,
    "llama.cpp": llama_cpp_peer,
    "llguidance": llguidance_peer,
    "outlines": outlines_peer,
}


def seconds_of_tokens(peer: Peer, llama: Any, schema: dict[str, Any], tokens: list[int]) -> list[float] | None:
    """The seconds of each token that a peer follows. None if it refuses the schema."""
    try:
        return [*peer(llama, schema, tokens)]
    except Exception as error:
        if peer is structout_peer or isinstance(error, ImportError):
            raise
        return None


def seconds_of_texts(llama: Any, prompt: list[int], schema: dict[str, Any], num_tokens: int) -> dict[str, float]:
    """The seconds of a free text and of structured texts, of the same number of tokens,
    in random order."""
    from llama_cpp import LogitsProcessorList

    from structout.integrations.llama_cpp import StructuredLogitsProcessor, generate

    def draw(processors: list[Any]) -> None:
        drawn = llama.generate(
            prompt, temp=0.0, logits_processor=LogitsProcessorList(processors) if processors else None
        )
        assert len([*islice(drawn, num_tokens)]) == num_tokens

    calls: dict[str, Callable[[], object]] = {
        "free": lambda: draw([]),
        "StructuredLogitsProcessor": lambda: draw([StructuredLogitsProcessor(llama, json=schema)]),
        "generate": lambda: generate(llama, prompt, json=schema, max_tokens=num_tokens, fit="off"),
    }
    seconds = {}
    for name in random.sample([*calls], len(calls)):
        begin = time.perf_counter()
        calls[name]()
        seconds[name] = time.perf_counter() - begin
    return seconds


def main() -> None:
    parser = harness.argument_parser(__doc__.split("\n\n")[0], quick="two schemas, one round")
    arguments = parser.parse_args()
    if harness.version("llama-cpp-python") is None:
        print("llama-cpp-python is not installed: make test-llama-cpp")
        return
    from llama_cpp import Llama

    from structout.cli.smollm2 import find_gguf
    from structout.integrations.llama_cpp import generate, tokenizer_of

    llama = Llama(str(find_gguf(None)), n_ctx=1024, n_threads=1, n_threads_batch=1, verbose=False)
    torch.set_num_threads(1)
    results = harness.ResultsFile("llama_cpp", torch.device("cpu"), arguments)
    schemas = dict([*SCHEMAS.items()][: 2 if arguments.quick else None])
    written = {name: generate(llama, PROMPT, json=each, max_tokens=100) for name, each in schemas.items()}
    texts = {
        name: [*tokenizer_of(llama).encode(json.dumps(each.parsed[0], ensure_ascii=False)).ids]
        for name, each in written.items()
    }
    for follow in PEERS.values():  # outlines compiles its kernel
        seconds_of_tokens(follow, llama, SCHEMAS["person"], texts["person"])
    times: dict[str, list[float]] = {peer: [] for peer in PEERS}
    served: dict[str, set[str]] = {peer: set() for peer in PEERS}
    for _ in range(1 if arguments.quick else 5):
        for name, schema in schemas.items():
            found = {peer: seconds_of_tokens(follow, llama, schema, texts[name]) for peer, follow in PEERS.items()}
            followed = {peer: seconds for peer, seconds in found.items() if seconds is not None}
            num_tokens = min(map(len, followed.values()))
            for peer, seconds in followed.items():
                served[peer].add(name)
                times[peer] += seconds[:num_tokens]
    for peer, seconds in times.items():
        microseconds = sorted(1e6 * each for each in seconds)
        row = {
            "peer": peer,
            "schemas": len(served[peer]),
            "vocab": llama.n_vocab(),
            "tokens": len(seconds),
            "mean_us": round(statistics.fmean(microseconds), 1),
            "median_us": round(statistics.median(microseconds), 1),
            "p99_us": round(microseconds[int(0.99 * (len(microseconds) - 1))], 1),
        }
        results.add(row)
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    prompt = llama.tokenize(PROMPT.encode())
    next(llama.generate(prompt))  # keeps the prompt
    rates: dict[str, list[float]] = {}
    for _ in range(1 if arguments.quick else 5):
        for name, schema in schemas.items():
            num_tokens = len(written[name].token_ids[0])
            for way, spent in seconds_of_texts(llama, prompt, schema, num_tokens).items():
                rates.setdefault(way, []).append(num_tokens / spent)
    for way, of_way in rates.items():
        ratios = [rate / free for rate, free in zip(of_way, rates["free"], strict=True)]
        row = {
            "text": way,
            "texts": len(of_way),
            "tokens_per_second": round(statistics.median(of_way), 2),
            "ratio": round(statistics.median(ratios), 4),
        }
        results.add(row)
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    results.close()


if __name__ == "__main__":
    main()
