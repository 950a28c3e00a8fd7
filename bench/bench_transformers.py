"""Measures structout inside transformers' generate beside xgrammar's own processor.

    python bench/bench_transformers.py [--quick]

A batch of 16 JSON requests with a schema each, through ``model.generate``, on one
thread. The model is a Llama of one layer with random weights, whose logits are raised
at the next token of a given document: so every peer writes the same 16 documents,
greedy or sampled, and is checked to do so. The time of its forward passes is measured
and taken off: what is left is the mask fill, the grammars' steps, the mask, the sampler
and transformers' loop around them. One round runs each peer once.
"""

import dataclasses
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import harness
import torch
import xgrammar
import xgrammar.contrib.hf
from large_tokenizer import VOCAB_SIZE, large_tokenizer, trained_tokenizer
from one_layer_model import one_layer_config
from transformers import LlamaForCausalLM

from structout import StructuredOutputManager, StructuredOutputsParams
from structout.integrations.transformers import StructuredLogitsProcessor, masked_generate

BATCH = 16
NUM_TOKENS = 48
ROUNDS = 5
PROMPT = "Answer with the list of orders as JSON: "
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "T=1": {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0},
    "top_p=0.9": {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 0.9},
}
RAISED_BY = 60.0  # logits: then no other token is ever drawn


class ScriptedModel(LlamaForCausalLM):  # type: ignore[misc]  # mypy does not read transformers
    """Writes given tokens, and measures its forward passes.

    Attributes:
        script: int64 ``[N, steps]``.
        seconds: of all forward passes since it was set to 0.
    """

    script: torch.Tensor
    seconds = 0.0
    num_prompt_tokens = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        output = super().forward(*args, **kwargs)
        step = output.past_key_values.get_seq_length() - self.num_prompt_tokens
        rows = torch.arange(len(self.script))
        output.logits[rows, -1, self.script[:, step]] += RAISED_BY
        self.seconds += time.perf_counter() - start
        return output


def scripted_model(vocab_size: int, script: torch.Tensor, num_prompt_tokens: int) -> ScriptedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = ScriptedModel(one_layer_config(vocab_size)).eval()
        torch.nn.init.normal_(model.lm_head.weight, std=0.75)  # logits of the usual spread, about 3
    model.script, model.num_prompt_tokens = script, num_prompt_tokens
    return model


def schema(rng: random.Random) -> dict[str, Any]:
    """The schema of a long list of orders."""
    fields = {
        "customer": {"type": "string"},
        "quantity": {"type": "integer"},
        "price": {"type": "number"},
        "status": {"enum": ["pending", "paid", "shipped"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            "required": ["street", "city"],
            "additionalProperties": False,
        },
    }
    names = rng.sample(list(fields), 5)
    order = {
        "type": "object",
        "properties": {name: fields[name] for name in names},
        "required": names,
        "additionalProperties": False,
    }
    return {"type": "array", "items": order, "minItems": 8}


def instance(part: dict[str, Any], rng: random.Random) -> Any:
    words = "Ada Lovelace of London sends the engine by train and pays in three months".split()
    if "enum" in part:
        return rng.choice(part["enum"])
    match part["type"]:
        case "array":
            return [instance(part["items"], rng) for _ in range(part.get("minItems", 3))]
        case "object":
            return {name: instance(value, rng) for name, value in part["properties"].items()}
        case "string":
            return " ".join(rng.choices(words, k=rng.randint(1, 6)))
        case "integer":
            return rng.randint(0, 999)
    return round(rng.random() * 100, 2)


@dataclasses.dataclass
class Problem:
    """What all peers share."""

    model: ScriptedModel
    tokenizer: Any
    prompt_ids: torch.Tensor
    schemas: list[dict[str, Any]]
    manager: StructuredOutputManager
    compiled: list[Any]  # xgrammar's

    def generate(self, **options: Any) -> torch.Tensor:
        ids: torch.Tensor = self.model.generate(
            self.prompt_ids,
            attention_mask=torch.ones_like(self.prompt_ids),
            max_new_tokens=self.model.script.shape[1],
            eos_token_id=self.tokenizer.eos_token_id,
            pad_token_id=self.tokenizer.eos_token_id,
            **options,
        )
        return ids[:, self.prompt_ids.shape[1] :]


def make_problem(tokenizer: Any, vocab_size: int, num_tokens: int) -> Problem:
    rng = random.Random(0)
    schemas = [schema(rng) for _ in range(BATCH)]
    documents = [json.dumps(instance(part, rng)) for part in schemas]
    script = torch.tensor([tokenizer(text)["input_ids"][:num_tokens] for text in documents])
    prompt_ids = torch.tensor([tokenizer(PROMPT)["input_ids"]] * BATCH)
    manager = StructuredOutputManager(tokenizer, vocab_size)
    manager.warm_up([StructuredOutputsParams(json=part) for part in schemas])
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size)
    compiler = xgrammar.GrammarCompiler(info)
    compiled = [compiler.compile_json_schema(json.dumps(part)) for part in schemas]
    model = scripted_model(vocab_size, script, prompt_ids.shape[1])
    return Problem(model, tokenizer, prompt_ids, schemas, manager, compiled)


def with_masked_generate(problem: Problem, sampling: dict[str, Any]) -> torch.Tensor:
    with requests(problem) as request_ids:
        return problem.generate(
            custom_generate=masked_generate, manager=problem.manager, request_ids=request_ids, **sampling
        )


def with_structout_processor(problem: Problem, sampling: dict[str, Any]) -> torch.Tensor:
    with requests(problem) as request_ids:
        processor = StructuredLogitsProcessor(manager=problem.manager, request_ids=request_ids)
        return problem.generate(logits_processor=[processor], **sampling)


def with_xgrammar_processor(problem: Problem, sampling: dict[str, Any]) -> torch.Tensor:
    processor = xgrammar.contrib.hf.LogitsProcessor(problem.compiled)
    return problem.generate(logits_processor=[processor], **sampling)


class requests:
    """A request for each row, finished at the end."""

    def __init__(self, problem: Problem):
        self._problem = problem

    def __enter__(self) -> list[str]:
        self._ids = [f"row {i}" for i in range(BATCH)]
        for request_id, part in zip(self._ids, self._problem.schemas, strict=True):
            self._problem.manager.add_request(request_id, StructuredOutputsParams(json=part, fit="off"))
        return self._ids

    def __exit__(self, *_: object) -> None:
        for request_id in self._ids:
            self._problem.manager.finish_request(request_id)


PEERS: dict[str, Callable[[Problem, dict[str, Any]], torch.Tensor]] = {
    "structout masked_generate": with_masked_generate,
    "structout processor": with_structout_processor,
    "xgrammar processor": with_xgrammar_processor,
}


def measure(problem: Problem, sampling: dict[str, Any], num_rounds: int) -> dict[str, Any]:
    """Return for each peer the milliseconds of a step, whole and without its forward
    pass, and how many times structout's peers are as fast as xgrammar's."""
    for name, run in PEERS.items():
        if not torch.equal(run(problem, sampling), problem.model.script):
            raise AssertionError(f"{name} did not write the documents: nothing is timed on a wrong result")
    num_steps = problem.model.script.shape[1]
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in PEERS}
    order = list(PEERS)
    for _ in range(num_rounds):
        random.shuffle(order)
        for name in order:
            problem.model.seconds = 0.0
            start = time.perf_counter()
            PEERS[name](problem, sampling)
            whole = time.perf_counter() - start
            samples[name].append((whole * 1e3 / num_steps, (whole - problem.model.seconds) * 1e3 / num_steps))
    row: dict[str, Any] = {"ms_whole": {}, "ms_beside_forward": {}, "times_as_fast": {}}
    for name, pairs in samples.items():
        wholes, rests = zip(*pairs, strict=True)
        row["ms_whole"][name] = round(statistics.median(wholes), 3)
        row["ms_beside_forward"][name] = round(statistics.median(rests), 3)
        ratios = [theirs[1] / ours[1] for ours, theirs in zip(pairs, samples["xgrammar processor"], strict=True)]
        row["times_as_fast"][name] = summary_of(ratios)
    return row


def summary_of(values: Sequence[float]) -> list[float]:
    """Median, least and greatest."""
    return [round(value, 2) for value in (statistics.median(values), min(values), max(values))]


def main() -> None:
    arguments = harness.argument_parser(
        "structout in transformers' generate beside xgrammar's processor", quick="a small vocabulary, one round"
    ).parse_args()
    torch.set_num_threads(1)
    vocab_size, num_tokens, num_rounds = (4096, 8, 1) if arguments.quick else (VOCAB_SIZE, NUM_TOKENS, ROUNDS)
    tokenizer = trained_tokenizer(2000, 400_000) if arguments.quick else large_tokenizer()
    problem = make_problem(tokenizer, vocab_size, num_tokens)
    results = harness.ResultsFile("transformers", torch.device("cpu"), arguments)
    for name, sampling in SAMPLING.items():
        row = {
            "sampling": name,
            "batch": BATCH,
            "tokens": num_tokens,
            "vocab": vocab_size,
            "vocabulary": tokenizer.name_or_path,
            "rounds": num_rounds,
        } | measure(problem, sampling, num_rounds)
        results.add(row)
        for peer in PEERS:
            median, least, greatest = row["times_as_fast"][peer]
            print(
                f"{name:<10} {peer:<28} {row['ms_beside_forward'][peer]:8.3f} ms a step beside the forward pass, "
                f"{row['ms_whole'][peer]:8.3f} ms with it  {median:.1f}x ({least:.1f} to {greatest:.1f})",
                flush=True,
            )
    results.close()


if __name__ == "__main__":
    main()
