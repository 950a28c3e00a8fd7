"""Constrained generation with a transformers model: the manager fills masks, masked_sample draws."""

import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

from structout.errors import GrammarTimeoutError
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.integrations.transformers.kv_cache import CachedModel
from structout.jump_forward import JumpForward, jump
from structout.params import StructuredOutputsParams
from structout.sampler import DeviceMasks, MaskedSampler, SamplingParams
from structout.scheduler.manager import StructuredOutputManager

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
    num_passes: int
    times: StepTimes
    seconds: float

    @property
    def num_tokens(self) -> int:
        return sum(len(ids) for ids in self.token_ids)

    @property
    def num_passes_saved(self) -> int:
        """Forward passes fewer than one for each token of the longest sample, its stop token included."""
        lengths = (len(ids) + complete for ids, complete in zip(self.token_ids, self.is_complete, strict=True))
        return max(lengths) - self.num_passes


class DeadEndError(RuntimeError):
    """A grammar reached a state from which the vocabulary cannot go on."""


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
    jump_forward: JumpForward = JumpForward.OFF,
    canonical_tokenizer: CanonicalTokenizer | None = None,
    on_slow_compile: Callable[[], None] = lambda: None,
    on_step: Callable[[list[list[int]], int], None] = lambda token_ids, num_complete: None,
) -> Generation:
    """Draw ``n`` texts that satisfy ``params``, as one batch.

    Args:
        model: a transformers causal LM in eval mode.
        manager: one made for the model's tokenizer and lm_head width.
        prompt_ids: at least one token.
        temperature: 0 is greedy.
        jump_forward: how to go over text that must follow. ``DRAFT`` draws the very tokens that ``OFF`` does, but for
            the rounding of the model's forward passes over several tokens.
        canonical_tokenizer: of the model; needed unless ``jump_forward`` is off.
        on_slow_compile: called once if the constraint takes more than a moment to compile.
        on_step: called after each step with the tokens so far and how many samples are complete.

    Raises:
        GrammarError: the constraint is bad.
        ValueError: ``jump_forward`` without a ``canonical_tokenizer``, or with a model that cannot unread tokens.
        DeadEndError: the grammar and the vocabulary have no way on.
    """
    jump_over = _jump_over(model, jump_forward, canonical_tokenizer)
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
        samples = [
            _Sample(manager, request_id, max_tokens, sample_seed)
            for request_id, sample_seed in zip(request_ids, _seeds(seed, n), strict=True)
        ]
        return _Decoding(model, samples, temperature, jump_over).run(prompt_ids, on_step)
    finally:
        for request_id in request_ids:
            manager.finish_request(request_id)


class _Sample:
    """One text. For ``jump`` it is a position in its constraint."""

    def __init__(self, manager: StructuredOutputManager, request_id: str, max_tokens: int, seed: int):
        self.manager = manager
        self.request_id = request_id
        self.max_tokens = max_tokens
        self.seed = seed
        self.token_ids: list[int] = []
        self.drafts: list[int] = []
        self.num_read = 0  # of token_ids, by the model
        self.is_complete = False

    @property
    def is_live(self) -> bool:
        return not self.is_complete and len(self.token_ids) < self.max_tokens

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return self.manager.accept_tokens(self.request_id, tokens)

    def rollback(self, num_tokens: int) -> None:
        self.manager.rollback(self.request_id, num_tokens)

    def find_jump_forward_string(self) -> str:
        return self.manager.find_jump_forward_string(self.request_id)

    def compute_ff_tokens(self) -> list[int]:
        return self.manager.compute_ff_tokens(self.request_id)

    @property
    def unread(self) -> list[int]:
        return [*self.token_ids[self.num_read :], *self.drafts]

    def jump(self, mode: JumpForward, tokenizer: CanonicalTokenizer) -> int:
        """Jump over what must follow. How many tokens the model has to forget."""
        forced = jump(mode, self, tokenizer, self.token_ids)
        if mode is JumpForward.DRAFT:
            self.drafts = list(forced.token_ids[: self.max_tokens - len(self.token_ids) - 1])
            return 0
        num_kept = len(self.token_ids) - forced.num_dropped
        self.token_ids = [*self.token_ids[:num_kept], *forced.token_ids][: self.max_tokens]
        num_forgotten = max(0, self.num_read - num_kept)
        self.num_read -= num_forgotten
        return num_forgotten

    def take(self, drawn: list[int]) -> int:
        """Append the tokens drawn after the text and after each draft, as far as the drafts were the ones to draw. How
        many tokens the model, which has read all drafts, has to forget."""
        num_right = 0
        self.num_read = len(self.token_ids)
        for token, draft in zip(drawn, [*self.drafts, None], strict=True):
            self._append(token)
            if self.is_complete or token != draft:
                break
            num_right += 1
        num_wrong = len(self.drafts) - num_right
        self.num_read += num_right
        self.drafts = []
        return num_wrong

    def _append(self, token: int) -> None:
        if token < 0:
            raise DeadEndError("nothing can be drawn: the model gave NaN or no finite logit to any allowed token")
        if not self.manager.accept_tokens(self.request_id, [token]):
            raise AssertionError(f"the mask allowed token {token}, the grammar refused it")
        self.is_complete = self.manager.is_terminated(self.request_id)
        if not self.is_complete:
            self.token_ids.append(token)


class _Decoding:
    """A batch of samples. Those that are done stay in it and read anything, so that the others see no difference.

    Args:
        temperature: greedy where float32 cannot hold it.
        jump_forward: called with a sample; returns how many tokens the model has to forget.
    """

    def __init__(self, model: Any, samples: list[_Sample], temperature: float, jump_forward: Callable[[_Sample], int]):
        self.device = model.device
        self.model = CachedModel(model, len(samples))
        self.samples = samples
        self.temperature = temperature if temperature >= torch.finfo(torch.float32).tiny else 0.0
        self.jump_forward = jump_forward
        self.sampler = MaskedSampler()
        self.times = StepTimes(self.device)

    def run(self, prompt_ids: list[int], on_step: Callable[[list[list[int]], int], None]) -> Generation:
        start = time.perf_counter()
        self._jump()
        while any(sample.is_live for sample in self.samples):
            self._step(prompt_ids if self.model.num_passes == 0 else [])
            self._jump()
            on_step([sample.token_ids for sample in self.samples], sum(sample.is_complete for sample in self.samples))
        return Generation(
            [sample.token_ids for sample in self.samples],
            [sample.is_complete for sample in self.samples],
            self.model.num_passes,
            self.times,
            time.perf_counter() - start,
        )

    def _jump(self) -> None:
        for i, sample in enumerate(self.samples):
            if sample.is_live:
                self.model.forget(i, self.jump_forward(sample))

    def _step(self, prompt_ids: list[int]) -> None:
        live = {i: sample for i, sample in enumerate(self.samples) if sample.is_live}
        drawn = iter(self._draw(live, self._forward(live, prompt_ids)))
        for i, sample in live.items():
            self.model.forget(i, sample.take(list(islice(drawn, 1 + len(sample.drafts)))))

    def _forward(self, live: dict[int, _Sample], prompt_ids: list[int]) -> torch.Tensor:
        """The logits after each live sample and after each of its drafts: [N, V]."""
        inputs = {i: [*prompt_ids, *sample.unread] for i, sample in live.items()}
        anything = [0] * max(map(len, inputs.values()))
        with self.times.measure("forward"):
            logits = self.model.forward([inputs.get(i, anything) for i in range(len(self.samples))])
        places = [
            (i, column) for i, tokens in inputs.items() for column in range(len(tokens))[-1 - len(live[i].drafts) :]
        ]
        rows, columns = torch.tensor(places, device=self.device).unbind(1)
        return logits[rows, columns]

    def _draw(self, live: dict[int, _Sample], logits: torch.Tensor) -> list[int]:
        samples = live.values()
        request_ids = [sample.request_id for sample in samples]
        counts = [1 + len(sample.drafts) for sample in samples]
        with self.times.measure("mask fill"):
            drafts = {sample.request_id: sample.drafts for sample in samples if sample.drafts}
            batch = self.samples[0].manager.grammar_bitmask(request_ids, drafts)
        if batch.errors:
            raise DeadEndError(next(iter(batch.errors.values())))
        with self.times.measure("mask copy"):
            masks = DeviceMasks.of(batch, request_ids, self.device, counts)
        draws = [(sample.seed, len(sample.token_ids) + j) for sample in samples for j in range(1 + len(sample.drafts))]
        seed, position = torch.tensor(draws, device=self.device).unbind(1)
        sampling = SamplingParams(self.temperature, seed=seed, position=position)
        with self.times.measure("mask and draw"):
            drawn: torch.Tensor = self.sampler(logits, masks, sampling)
        return drawn.tolist()


def _seeds(first: int | None, n: int) -> list[int]:
    """Sample i draws with first + i, as int64."""
    start = secrets.randbits(62) if first is None else first
    return [(start + i + 2**63) % 2**64 - 2**63 for i in range(n)]


def _jump_over(model: Any, mode: JumpForward, tokenizer: CanonicalTokenizer | None) -> Callable[[_Sample], int]:
    if mode is JumpForward.OFF:
        return lambda sample: 0
    if tokenizer is None:
        raise ValueError(f"jump_forward={mode.value} needs a canonical_tokenizer")
    if getattr(model, "_is_stateful", False):  # as transformers marks recurrent models
        raise ValueError(f"{type(model).__name__} cannot forget tokens: jump_forward must be off")
    return lambda sample: sample.jump(mode, tokenizer)
