"""Measures whether a real model writes the right values under structout's masks, beside
its peers.

    python bench/bench_values.py [--texts FILE] [--quick]

SmolLM2-135M-Instruct answers four sets of 100 prompts, greedy and at T = 0.7, on one
thread. All peers read the same prompts in batches of 25, each with its own defaults;
"no constraint" counts the first JSON object of its text. A field is a leaf of the right
answer, and right if the text has the same value there. The prompts of a batch are read
once for all peers, and this pass is not timed. Seconds are CPU seconds of all threads.
"""

import argparse
import dataclasses
import functools
import json
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, TextIO

import harness
import jsonschema
import torch
from transformers.modeling_outputs import CausalLMOutputWithPast
from value_items import SETS, Chat, Kind
from value_peers import Llguidance, Outlines, Peer, Structout, Unconstrained, Xgrammar

from structout.cli.demo_model import load_demo_model

BATCH = 25
MAX_NEW_TOKENS = 96
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "T=0.7": {"do_sample": True, "temperature": 0.7, "top_k": 0, "top_p": 1.0},
}
PEERS: dict[str, Callable[[Any, Any], Peer]] = {
    "structout": Structout,
    "outlines": Outlines,
    "xgrammar": Xgrammar,
    "llguidance": Llguidance,
    "no constraint": Unconstrained,
}


class Passes:
    """Counts and times the forward passes of a model. A pass over the same prompts as
    the one before is answered from memory.

    Attributes:
        count: all passes.
        seconds: of those after the prompt's.
        prompt_seconds: of those over prompts.
    """

    def __init__(self, model: Any):
        self._forward = forward = model.forward
        self._prompt: tuple[bytes, torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]] | None = None
        self.reset()

        @functools.wraps(forward)  # transformers reads the names of its parameters
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            is_prompt = kwargs["past_key_values"].get_seq_length() == 0
            output = self._read_prompt(**kwargs) if is_prompt else forward(*args, **kwargs)
            seconds = time.process_time() - start
            self.count += 1
            if is_prompt:
                self.prompt_seconds += seconds
            else:
                self.seconds += seconds
            return output

        model.forward = timed

    def reset(self) -> None:
        self.count, self.seconds, self.prompt_seconds = 0, 0.0, 0.0

    def _read_prompt(self, **kwargs: Any) -> Any:
        key, cache = kwargs["input_ids"].numpy().tobytes(), kwargs["past_key_values"]
        if self._prompt is None or self._prompt[0] != key:
            output = self._forward(**kwargs)
            self._prompt = key, output.logits[:, -1:].clone(), [(layer.keys, layer.values) for layer in cache.layers]
        else:
            for i, (keys, values) in enumerate(self._prompt[2]):
                cache.update(keys, values, i)
        return CausalLMOutputWithPast(logits=self._prompt[1].clone(), past_key_values=cache)


@dataclasses.dataclass
class Measured:
    """What one peer did with one set.

    Attributes:
        fields: for each field of each text, whether it is right.
        texts: for each text, whether all its fields are.
        cut_off: texts at the limit of tokens that are not valid.
        seconds: of decoding, without the passes over prompts.
        forward_seconds: part of them in the model.
        ready: seconds from each schema to its first mask.
    """

    fields: list[bool] = dataclasses.field(default_factory=list)
    texts: list[bool] = dataclasses.field(default_factory=list)
    valid: int = 0
    cut_off: int = 0
    tokens: int = 0
    batches: int = 0
    passes: int = 0
    seconds: float = 0.0
    forward_seconds: float = 0.0
    ready: list[float] = dataclasses.field(default_factory=list)

    def judge(self, text: str, schema: Any, answer: Any, is_at_limit: bool) -> None:
        value = first_object(text)
        is_valid = value is not None and jsonschema.Draft202012Validator(schema).is_valid(value)
        right = right_fields(answer, value)
        self.fields += right
        self.texts.append(all(right))
        self.valid += is_valid
        self.cut_off += is_at_limit and not is_valid

    def row(self) -> dict[str, Any]:
        return {
            "texts": len(self.texts),
            "fields": len(self.fields),
            "valid": self.valid,
            "cut_off": self.cut_off,
            "right_texts": sum(self.texts),
            "right_fields": sum(self.fields),
            "tokens_per_text": round(self.tokens / len(self.texts), 1),
            "passes_per_batch": round(self.passes / self.batches, 1),
            "tokens_per_second": round(self.tokens / self.seconds, 1),
            "ms_per_step_beside_forward": round((self.seconds - self.forward_seconds) / self.passes * 1e3, 2),
            "ready_ms": round(statistics.median(self.ready) * 1e3, 2),
        }


def first_object(text: str) -> Any:
    """The first JSON object in a text, None if there is none."""
    try:
        return json.JSONDecoder().raw_decode(text, text.index("{"))[0]
    except ValueError:
        return None


def right_fields(answer: Any, value: Any) -> list[bool]:
    """For each leaf of ``answer``, whether ``value`` has the same there. A list is one
    leaf."""
    if not isinstance(answer, dict):
        return [answer == value]
    found = value if isinstance(value, dict) else {}
    return [right for key, part in answer.items() for right in right_fields(part, found.get(key))]


def mcnemar(ours: list[bool], theirs: list[bool]) -> dict[str, Any]:
    """How many only one of two has right, and the exact two-sided p of McNemar's
    test."""
    pairs = list(zip(ours, theirs, strict=True))
    only_ours, only_theirs = pairs.count((True, False)), pairs.count((False, True))
    num = only_ours + only_theirs
    tail = sum(math.comb(num, k) for k in range(min(only_ours, only_theirs) + 1)) / 2**num
    return {"only_structout": only_ours, "only_peer": only_theirs, "p": float(f"{min(1.0, 2 * tail):.2g}")}


class Bench:
    """The model, its peers, and where texts are written."""

    def __init__(self, texts: TextIO | None):
        model, self._tokenizer, directory = load_demo_model()
        self.model_name = directory.name
        self._passes = Passes(model)
        self._texts = texts
        self.peers: dict[str, Peer] = {}
        self.setup_ms: dict[str, float] = {}
        for name, make in PEERS.items():
            start = time.process_time()
            self.peers[name] = make(model, self._tokenizer)
            self.setup_ms[name] = round((time.process_time() - start) * 1e3, 1)

    def warm_up(self) -> None:
        """Two peers apply masks with torch.compile, which compiles here."""
        schema = {"type": "object", "properties": {"warm": {"const": "up"}}, "required": ["warm"]}
        for peer in self.peers.values():
            peer.generate(peer.compile(schema), [[{"role": "user", "content": "Hi"}]] * BATCH, {"max_new_tokens": 2})

    def measure(self, kinds: list[Kind], options: dict[str, Any]) -> dict[str, Measured]:
        measured = {name: Measured() for name in self.peers}
        for kind in kinds:
            compiled = {}
            for name, peer in self.peers.items():
                start = time.process_time()
                compiled[name] = peer.compile(kind.schema)
                measured[name].ready.append(time.process_time() - start)
            items = kind.items()
            for begin in range(0, len(items), BATCH):
                for name, peer in self.peers.items():
                    torch.manual_seed(begin)
                    generate = functools.partial(peer.generate, compiled[name], options=options)
                    self._batch(name, generate, kind, items[begin : begin + BATCH], measured[name])
        return measured

    def _batch(
        self,
        name: str,
        generate: Callable[[list[Chat]], list[list[int]]],
        kind: Kind,
        items: list[tuple[Chat, Any]],
        result: Measured,
    ) -> None:
        self._passes.reset()
        start = time.process_time()
        rows = generate([chat for chat, _ in items])
        result.seconds += time.process_time() - start - self._passes.prompt_seconds
        result.forward_seconds += self._passes.seconds
        result.passes += self._passes.count
        result.batches += 1
        stop = self._tokenizer.eos_token_id
        for (_, answer), row in zip(items, rows, strict=True):
            tokens = row[: row.index(stop) + 1] if stop in row else row
            text = self._tokenizer.decode(tokens, skip_special_tokens=True)
            result.tokens += len(tokens)
            result.judge(text, kind.schema, answer, stop not in row)
            if self._texts is not None:
                line = {"kind": kind.name, "peer": name, "text": text, "answer": answer}
                print(json.dumps(line), file=self._texts, flush=True)


def main() -> None:
    parser = harness.argument_parser("values beside the peers'", quick="one prompt of each set, greedy, cut off early")
    parser.add_argument("--texts", type=argparse.FileType("w"), metavar="FILE", help="write each text, as JSON lines")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sets, sampling, limit = SETS, SAMPLING, MAX_NEW_TOKENS
    if arguments.quick:
        torch.compiler.set_stance("force_eager")  # two peers would compile for longer than they run
        sets = {name: [dataclasses.replace(kinds[0], count=1)] for name, kinds in SETS.items()}
        sampling, limit = {"greedy": SAMPLING["greedy"]}, 3
    results = harness.ResultsFile("values", torch.device("cpu"), arguments)
    bench = Bench(arguments.texts)
    if not arguments.quick:
        bench.warm_up()
    for sampling_name, options in sampling.items():
        for set_name, kinds in sets.items():
            measured = bench.measure(kinds, {"max_new_tokens": limit} | options)
            ours = measured["structout"]
            for name, result in measured.items():
                row = {"set": set_name, "sampling": sampling_name, "peer": name, "setup_ms": bench.setup_ms[name]}
                row |= {"model": bench.model_name, "batch": BATCH, "max_new_tokens": limit} | result.row()
                test = mcnemar(ours.fields, result.fields)
                results.add(row | {"mcnemar_fields": test, "mcnemar_texts": mcnemar(ours.texts, result.texts)})
                print(
                    f"{set_name:<15}{sampling_name:<7}{name:<14}{row['right_fields']:4} of {row['fields']} fields "
                    f"(p = {test['p']}), {row['valid']:3} valid, {row['cut_off']:2} cut off, "
                    f"{row['tokens_per_text']:5.1f} tokens a text, {row['tokens_per_second']:6.1f} tokens/s, "
                    f"ready in {row['ready_ms']:.1f} ms",
                    flush=True,
                )
    results.close()


if __name__ == "__main__":
    main()
