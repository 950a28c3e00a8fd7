"""Measures the manager's decoding step while another thread of the process runs Python
code, as an engine's own loop or server may.

    python bench/bench_busy_thread.py [--quick]
"""

import itertools
import random
import statistics
import threading
import time

import harness
import torch
from bench_manager import Text, own_texts
from large_tokenizer import VOCAB_SIZE, large_tokenizer, trained_tokenizer

from structout import StructuredOutputManager, StructuredOutputsConfig, StructuredOutputsParams

Samples = dict[tuple[int, bool], list[float]]  # seconds by drafts, and whether a thread is busy
NUM_REQUESTS = 64


class Loop:
    """Decoding steps of requests that replay texts. A request at the end of its text is
    replaced, which is not timed."""

    def __init__(self, manager: StructuredOutputManager, texts: list[Text], num_drafts: int):
        self._manager = manager
        self._num_drafts = num_drafts
        self._texts = itertools.cycle(text for text in texts if len(text.token_ids) > num_drafts + 1)
        chance = random.Random(0)
        self._running = {f"{num_drafts} {i}": self._start(chance.random()) for i in range(NUM_REQUESTS)}
        for request_id, (text, position) in self._running.items():
            self._add(request_id, text, position)

    def step(self) -> float:
        """Return the seconds of one step."""
        ahead = {name: text.token_ids[at : at + 1 + self._num_drafts] for name, (text, at) in self._running.items()}
        drafts = {name: tokens[:-1] for name, tokens in ahead.items()} if self._num_drafts else None
        start = time.perf_counter()
        self._manager.grammar_bitmask(list(ahead), drafts)
        accepted = self._manager.accept_batch(ahead)
        seconds = time.perf_counter() - start
        if not all(accepted.values()):
            raise AssertionError("a token of a valid text was refused: nothing is timed on a wrong result")
        for name, (text, at) in self._running.items():
            at += 1 + self._num_drafts
            if len(text.token_ids) - at <= self._num_drafts:
                self._manager.finish_request(name)
                text, at = self._start(0)
                self._add(name, text, at)
            self._running[name] = text, at
        return seconds

    def close(self) -> None:
        for name in self._running:
            self._manager.finish_request(name)

    def _start(self, share: float) -> tuple[Text, int]:
        text = next(self._texts)
        return text, int(share * (len(text.token_ids) - self._num_drafts - 1))

    def _add(self, name: str, text: Text, position: int) -> None:
        params = StructuredOutputsParams(**text.constraint)
        self._manager.add_request(name, params, output_token_ids=text.token_ids[:position])
        self._manager.wait_ready(name)


def measure(is_quick: bool) -> Samples:
    """Time steps alone and beside a busy thread, in this process."""
    tokenizer = trained_tokenizer(2_000, 1_000_000) if is_quick else large_tokenizer()
    vocab_size = 2_304 if is_quick else VOCAB_SIZE
    num_steps = 3 if is_quick else 200
    samples: Samples = {}
    config = StructuredOutputsConfig(compile_timeout=120)  # for a busy machine
    with StructuredOutputManager(tokenizer, vocab_size, config) as manager:
        texts = own_texts(tokenizer)
        for num_drafts in (0, 3):
            loop = Loop(manager, texts, num_drafts)
            for _ in range(len(texts) * 10):
                loop.step()
            samples[num_drafts, False] = [loop.step() for _ in range(num_steps)]
            with BusyThread():
                samples[num_drafts, True] = [loop.step() for _ in range(num_steps)]
            loop.close()
    return samples


class BusyThread:
    """A thread that runs Python code without a pause, as long as the context is
    open."""

    def __enter__(self) -> None:
        self._stopped = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self._thread.join()

    def _run(self) -> None:
        count = 0
        while not self._stopped:
            count += 1


def main() -> None:
    parser = harness.argument_parser("decoding steps beside a busy Python thread", quick="few steps")
    arguments = parser.parse_args()
    results = harness.ResultsFile("busy_thread", torch.device("cpu"), arguments)
    for (num_drafts, is_busy), seconds in measure(arguments.quick).items():
        row = {
            "requests": NUM_REQUESTS,
            "drafts": num_drafts,
            "busy": is_busy,
            "steps": len(seconds),
            "us": round(statistics.median(seconds) * 1e6, 1),
            "us_mean": round(statistics.mean(seconds) * 1e6, 1),
        }
        results.add(row)
        print(row)
    results.close()


if __name__ == "__main__":
    main()
