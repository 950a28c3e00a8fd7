"""Constrained generation with a transformers model: the manager fills masks, masked_sample draws."""

import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from structout.errors import GrammarTimeoutError
from structout.manager import StructuredOutputManager
from structout.params import StructuredOutputsParams
from structout.sampler import DeviceMasks, MaskedSampler, SamplingParams

A_MOMENT = 0.3  # seconds


@dataclass
class StepTimes:
    """Seconds of each decoding step, by stage. Stages on a GPU are waited for, so that the time is theirs."""

    device: torch.device
    stages: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        start = self._now()
        yield
        self.stages.setdefault(stage, []).append(self._now() - start)

    def median(self, stage: str) -> float:
        return statistics.median(self.stages[stage])

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


@dataclass(frozen=True)
class Generation:
    """``token_ids`` and ``is_complete`` have one entry per sample; a sample that ran out of tokens is not complete."""

    token_ids: list[list[int]]
    is_complete: list[bool]
    times: StepTimes
    seconds: float

    @property
    def num_tokens(self) -> int:
        return sum(len(ids) for ids in self.token_ids)


class DeadEndError(RuntimeError):
    """A grammar reached a state from which the vocabulary cannot go on."""


@torch.inference_mode()
def generate(
    model: Any,
    manager: StructuredOutputManager,
    params: StructuredOutputsParams,
    prompt_ids: list[int],
    *,
    n: int = 1,
    max_tokens: int = 512,
    temperature: float = 1.0,
    seed: int | None = None,
    on_slow_compile: Callable[[], None] = lambda: None,
    on_step: Callable[[list[list[int]], int], None] = lambda token_ids, num_complete: None,
) -> Generation:
    """Draw ``n`` texts that satisfy ``params``, as one batch.

    Args:
        model: a transformers causal LM in eval mode.
        manager: one made for the model's tokenizer and lm_head width.
        prompt_ids: at least one token.
        temperature: 0 is greedy.
        on_slow_compile: called once if the constraint takes more than a moment to compile.
        on_step: called after each step with the tokens so far and how many samples are complete.

    Raises:
        GrammarError: the constraint is bad.
        DeadEndError: the grammar and the vocabulary have no way on.
    """
    device = model.device
    request_ids = [f"sample-{i}" for i in range(n)]
    for request_id in request_ids:
        manager.add_request(request_id, params)
    try:
        try:
            manager.wait_ready(request_ids[0], timeout=A_MOMENT)
        except GrammarTimeoutError:
            on_slow_compile()
        for request_id in request_ids:
            manager.wait_ready(request_id)
        return _decode(
            model, manager, request_ids, prompt_ids, max_tokens, _sampling(temperature, seed, n, device), on_step
        )
    finally:
        for request_id in request_ids:
            manager.finish_request(request_id)


def _decode(
    model: Any,
    manager: StructuredOutputManager,
    request_ids: list[str],
    prompt_ids: list[int],
    max_tokens: int,
    sampling: SamplingParams,
    on_step: Callable[[list[list[int]], int], None],
) -> Generation:
    device = model.device
    times = StepTimes(device)
    token_ids: list[list[int]] = [[] for _ in request_ids]
    complete = [False] * len(request_ids)
    inputs = torch.tensor([prompt_ids] * len(request_ids), device=device)
    cache = None
    start = time.perf_counter()
    sampler = MaskedSampler()
    for step in range(max_tokens):
        with times.measure("forward"):
            output = model(input_ids=inputs, past_key_values=cache, use_cache=True)
        cache, logits = output.past_key_values, output.logits[:, -1]
        with times.measure("mask fill"):
            batch = manager.grammar_bitmask(request_ids)
        if batch.errors:
            raise DeadEndError(next(iter(batch.errors.values())))
        with times.measure("mask copy"):
            masks = DeviceMasks.of(batch, request_ids, device)
        with times.measure("mask and draw"):
            drawn = sampler(logits, masks, replace(sampling, position=step))
        for i, token in enumerate(drawn.tolist()):
            if complete[i]:
                continue
            if token < 0:
                raise DeadEndError("nothing can be drawn: the model gave NaN or no finite logit to any allowed token")
            if not manager.accept_tokens(request_ids[i], [token]):
                raise AssertionError(f"the mask allowed token {token}, the grammar refused it")
            complete[i] = manager.is_terminated(request_ids[i])
            if not complete[i]:
                token_ids[i].append(token)
        inputs = drawn.clamp(min=0).unsqueeze(1)  # rows that are complete may draw anything, also nothing
        on_step(token_ids, sum(complete))
        if all(complete):
            break
    return Generation(token_ids, complete, times, time.perf_counter() - start)


def _sampling(temperature: float, seed: int | None, n: int, device: torch.device) -> SamplingParams:
    """Sample i draws with seed + i. Temperatures that float32 cannot hold are greedy."""
    first = secrets.randbits(62) if seed is None else seed
    seeds = torch.tensor([(first + i + 2**63) % 2**64 - 2**63 for i in range(n)], device=device)
    return SamplingParams(temperature if temperature >= torch.finfo(torch.float32).tiny else 0.0, seed=seeds)
