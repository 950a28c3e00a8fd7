"""Constrained decoding of one prompt into n texts, with jump-forward."""

import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from structout.errors import GrammarTimeoutError
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.integrations.transformers.constrained_sampler import ConstrainedSampler, Row, row_seeds
from structout.integrations.transformers.kv_cache import CachedModel
from structout.jump_forward import JumpForward, jump
from structout.params import StructuredOutputsParams
from structout.sampler import SamplingParams
from structout.scheduler.manager import StructuredOutputManager

_SLOW_COMPILE_SECONDS = 0.3


@dataclass
class StepTimes:
    """Seconds of each decoding step, by stage.

    On a GPU a stage is waited for, so that its time is not counted to the next one.
    """

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
    """The result of :func:`generate`.

    Attributes:
        token_ids: the tokens of each text, without its stop token.
        is_complete: for each text whether it ended with a stop token. If not, it ran
            out of tokens.
        weakened: parts of the constraint that are not enforced, see
            ``StructuredOutputManager.weakened``.
        annotations: parts of the constraint that constrain nothing by definition, see
            ``StructuredOutputManager.annotations``.
        num_passes: forward passes of the model.
        times: of each decoding step.
        seconds: of all steps, compilation excluded.
    """

    token_ids: list[list[int]]
    is_complete: list[bool]
    weakened: tuple[str, ...]
    annotations: tuple[str, ...]
    num_passes: int
    times: StepTimes
    seconds: float

    @property
    def num_tokens(self) -> int:
        return sum(len(ids) for ids in self.token_ids)

    @property
    def num_passes_saved(self) -> int:
        """Tokens of the longest text, its stop token included, minus forward passes."""
        lengths = (len(ids) + complete for ids, complete in zip(self.token_ids, self.is_complete, strict=True))
        return max(lengths) - self.num_passes


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

    Without jump-forward the tokens are those of
    :func:`~structout.integrations.transformers.masked_generate` with the same seed.

    Args:
        model: a transformers causal LM in eval mode.
        manager: made for the model's tokenizer and lm_head width.
        prompt_ids: at least one token.
        max_tokens: the limit on each text. With the prompt it has to fit into the
            model's positions.
        temperature: 0 is greedy, and so is what float32 cannot represent.
        seed: any integer of 64 bits. None draws one.
        jump_forward: how text without a choice is skipped. ``DRAFT`` draws the same
            tokens as ``OFF``, except where the model's forward passes over several
            tokens round differently.
        canonical_tokenizer: needed unless ``jump_forward`` is off, see
            ``StructuredOutputManager.canonical_tokenizer``.
        on_slow_compile: called once if compiling the constraint takes more than 0.3 s.
        on_step: called after each step with the tokens so far and the number of
            complete texts.

    Raises:
        GrammarError: the constraint is bad.
        ValueError: the model has too few positions, ``canonical_tokenizer`` is missing,
            or the model cannot forget tokens as jump-forward requires.
        DeadEndError: the grammar has no way on, or nothing can be drawn.
    """
    _check_positions(model, len(prompt_ids), max_tokens)
    jump_over = _jump_over(model, jump_forward, canonical_tokenizer)
    request_ids = [f"sample-{i}" for i in range(n)]
    for request_id in request_ids:
        manager.add_request(request_id, params)
    try:
        try:
            manager.wait_ready(request_ids[0], timeout=_SLOW_COMPILE_SECONDS)
        except GrammarTimeoutError:
            on_slow_compile()
        for request_id in request_ids:
            manager.wait_ready(request_id)
        seeds = row_seeds(secrets.randbits(64) if seed is None else seed, n)
        samples = [_Sample(manager, Row(i, request_ids[i], seeds[i], len(prompt_ids)), max_tokens) for i in range(n)]
        return _Decoding(model, manager, samples, temperature, jump_over).run(prompt_ids, on_step)
    finally:
        for request_id in request_ids:
            manager.finish_request(request_id)


def max_positions(model: Any) -> int | None:
    """The number of positions of a transformers model, None if its config has no
    limit."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


class _Sample:
    """One text of a batch. :func:`structout.jump_forward.jump` takes it as a position.

    Args:
        start: its row before the first draw.
        max_tokens: the limit on its length.
    """

    def __init__(self, manager: StructuredOutputManager, start: Row, max_tokens: int):
        assert start.request_id is not None
        self._manager = manager
        self._start = start
        self._max_tokens = max_tokens
        self.request_id = start.request_id
        self.token_ids: list[int] = []
        self.drafts: list[int] = []
        self.is_complete = False
        self._num_cached = 0  # of token_ids, in the model's cache

    @property
    def is_live(self) -> bool:
        return not self.is_complete and len(self.token_ids) < self._max_tokens

    @property
    def row(self) -> Row:
        return replace(self._start, position=self._start.position + len(self.token_ids), drafts=self.drafts)

    @property
    def unread(self) -> list[int]:
        """The tokens that the model has yet to read."""
        return [*self.token_ids[self._num_cached :], *self.drafts]

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return self._manager.accept_tokens(self.request_id, tokens)

    def rollback(self, num_tokens: int) -> None:
        self._manager.rollback(self.request_id, num_tokens)

    def find_jump_forward_string(self) -> str:
        return self._manager.find_jump_forward_string(self.request_id)

    def compute_ff_tokens(self) -> list[int]:
        return self._manager.compute_ff_tokens(self.request_id)

    def jump(self, mode: JumpForward, tokenizer: CanonicalTokenizer) -> int:
        """Skip forced text. Return how many tokens the model has to forget."""
        forced = jump(mode, self, tokenizer, self.token_ids)
        if mode is JumpForward.DRAFT:
            self.drafts = list(forced.token_ids[: self._max_tokens - len(self.token_ids) - 1])
            return 0
        num_kept = len(self.token_ids) - forced.num_dropped
        self.token_ids = [*self.token_ids[:num_kept], *forced.token_ids][: self._max_tokens]
        num_forgotten = max(0, self._num_cached - num_kept)
        self._num_cached -= num_forgotten
        return num_forgotten

    def append(self, drawn: list[int], accept: Callable[[Row, int], bool]) -> int:
        """Append drawn tokens up to the first that differs from its draft.

        Args:
            drawn: the tokens after the text and after each draft.
            accept: see :meth:`ConstrainedSampler.accept`.

        Returns:
            how many tokens the model, which has read all drafts, has to forget.
        """
        num_right = 0
        self._num_cached = len(self.token_ids)
        for token, draft in zip(drawn, [*self.drafts, None], strict=True):
            self.is_complete = accept(self.row, token)
            if self.is_complete:
                break
            self.token_ids.append(token)
            if token != draft:
                break
            num_right += 1
        num_wrong = len(self.drafts) - num_right
        self._num_cached += num_right
        self.drafts = []
        return num_wrong


class _Decoding:
    """Decodes a batch of samples.

    Samples that are done stay in the batch. They read token 0 beside single tokens, so
    that they leave no gaps in the cache, and nothing beside jumps and drafts.

    Args:
        jump_over: jumps in a sample. Returns how many tokens the model has to forget.
    """

    def __init__(
        self,
        model: Any,
        manager: StructuredOutputManager,
        samples: list[_Sample],
        temperature: float,
        jump_over: Callable[[_Sample], int],
    ):
        self._device = model.device
        self._model = CachedModel(model, len(samples))
        self._samples = samples
        self._jump_over = jump_over
        self._times = StepTimes(self._device)
        temperature = temperature if temperature >= torch.finfo(torch.float32).tiny else 0.0
        self._sampler = ConstrainedSampler(manager, SamplingParams(temperature), self._times.measure)
        self._weakened = manager.weakened(samples[0].request_id)
        self._annotations = manager.annotations(samples[0].request_id)

    def run(self, prompt_ids: list[int], on_step: Callable[[list[list[int]], int], None]) -> Generation:
        start = time.perf_counter()
        self._jump()
        while any(sample.is_live for sample in self._samples):
            self._step(prompt_ids if self._model.num_passes == 0 else [])
            self._jump()
            on_step([sample.token_ids for sample in self._samples], sum(sample.is_complete for sample in self._samples))
        return Generation(
            token_ids=[sample.token_ids for sample in self._samples],
            is_complete=[sample.is_complete for sample in self._samples],
            weakened=self._weakened,
            annotations=self._annotations,
            num_passes=self._model.num_passes,
            times=self._times,
            seconds=time.perf_counter() - start,
        )

    def _jump(self) -> None:
        for i, sample in enumerate(self._samples):
            if sample.is_live:
                self._model.forget(i, self._jump_over(sample))

    def _step(self, prompt_ids: list[int]) -> None:
        live = {i: sample for i, sample in enumerate(self._samples) if sample.is_live}
        logits = self._forward(live, prompt_ids)
        drawn = self._sampler.draw(logits, [sample.row for sample in live.values()])
        for (i, sample), tokens in zip(live.items(), drawn, strict=True):
            self._model.forget(i, sample.append(tokens, self._sampler.accept))

    def _forward(self, live: dict[int, _Sample], prompt_ids: list[int]) -> torch.Tensor:
        """Return the logits after each live sample and after each of its drafts: ``[T,
        V]``."""
        inputs = {i: [*prompt_ids, *sample.unread] for i, sample in live.items()}
        filler = [0] if all(len(tokens) == 1 for tokens in inputs.values()) else []
        with self._times.measure("forward"):
            logits = self._model.forward([inputs.get(i, filler) for i in range(len(self._samples))])
        places = [
            (i, column) for i, tokens in inputs.items() for column in range(len(tokens))[-1 - len(live[i].drafts) :]
        ]
        rows, columns = torch.tensor(places, device=self._device).unbind(1)
        return logits[rows, columns]


def _check_positions(model: Any, num_prompt_tokens: int, max_tokens: int) -> None:
    limit = max_positions(model)
    if limit is not None and num_prompt_tokens + max_tokens > limit:
        raise ValueError(
            f"a prompt of {num_prompt_tokens:,} tokens and max_tokens={max_tokens:,} need "
            f"{num_prompt_tokens + max_tokens:,} positions, but the model has {limit:,}: "
            "shorten the prompt or lower max_tokens"
        )


def _jump_over(model: Any, mode: JumpForward, tokenizer: CanonicalTokenizer | None) -> Callable[[_Sample], int]:
    if mode is JumpForward.OFF:
        return lambda sample: 0
    if tokenizer is None:
        raise ValueError(f"jump_forward={mode.value} needs a canonical_tokenizer")
    if getattr(model, "_is_stateful", False):  # transformers' mark of recurrent models
        raise ValueError(f"{type(model).__name__} cannot forget tokens: jump_forward must be off")
    return lambda sample: sample.jump(mode, tokenizer)
