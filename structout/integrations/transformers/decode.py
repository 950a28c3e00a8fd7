"""The decoding loop: a forward pass, fused sampling and jump-forward in each step."""

import itertools
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from structout.integrations.transformers.constrained_sampler import ConstrainedSampler, Row
from structout.integrations.transformers.model_feed import ModelFeed
from structout.jump_forward import JumpForward, jump
from structout.masks.batch import MaskBatch
from structout.scheduler.manager import StructuredOutputManager

if TYPE_CHECKING:
    from structout.integrations.transformers.population import Population


class Monitor:
    """Watches a decoding loop. This one does nothing; derive from it."""

    def measure(self, stage: str) -> AbstractContextManager[None]:
        """A context around each stage of each step: "forward", "mask fill", "mask copy"
        and "mask and draw"."""
        return nullcontext()

    def after_step(self, texts: "Sequence[Text]") -> None:
        """Called after each step, which is one forward pass."""


class Text:
    """One text of a batch. :func:`structout.jump_forward.jump` takes it as a position.

    Args:
        manager: the manager of its request.
        start: its row before the first draw.
        max_tokens: the limit on its length.
        end_tokens: end the text if it is free.

    Attributes:
        token_ids: what has been generated, a stop token included.
        drafts: tokens that the next step verifies.
        is_terminated: whether a stop token of its constraint, or an end token of a free
            text, has been drawn.
        is_complete: whether it is whole: terminated, or cut off where it may end.
        is_cut: whether it was cut off where it might have gone on.
        is_stopped: whether a stopping criterion has ended it.
    """

    def __init__(
        self,
        manager: StructuredOutputManager,
        start: Row,
        max_tokens: int | None,
        end_tokens: Collection[int] = (),
    ):
        self._manager = manager
        self._start = start
        self._end_tokens = end_tokens if start.request_id is None else ()
        self._max_tokens = sys.maxsize if max_tokens is None else max_tokens
        self._num_fed = 0  # of token_ids
        self.token_ids: list[int] = []
        self.drafts: list[int] = []
        self.is_terminated = False
        self.is_complete = False
        self.is_cut = False
        self.is_stopped = False

    @property
    def request_id(self) -> str:
        """The id of its request; free texts have none and do not jump."""
        assert self._start.request_id is not None
        return self._start.request_id

    @property
    def is_live(self) -> bool:
        return not self.is_terminated and not self.is_stopped and len(self.token_ids) < self._max_tokens

    @property
    def row(self) -> Row:
        return replace(self._start, position=self._start.position + len(self.token_ids), drafts=self.drafts)

    @property
    def content(self) -> list[int]:
        """The tokens without the stop token."""
        return self.token_ids[:-1] if self.is_terminated else self.token_ids

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return self._manager.accept_tokens(self.request_id, tokens)

    def rollback(self, num_tokens: int) -> None:
        self._manager.rollback(self.request_id, num_tokens)

    def find_jump_forward_string(self) -> str:
        return self._manager.find_jump_forward_string(self.request_id)

    def compute_ff_tokens(self) -> list[int]:
        return self._manager.compute_ff_tokens(self.request_id)

    def take_unread(self) -> list[int]:
        """The tokens and drafts that the model has yet to read. It is fed them now."""
        unread = [*self.token_ids[self._num_fed :], *self.drafts]
        self._num_fed = len(self.token_ids)
        return unread

    def become(self, other: "Text") -> None:
        """Continue another text of the same prompt and constraint in place of this."""
        if self._start.request_id is not None:
            self._manager.finish_request(self.request_id)
            self._manager.fork(other.request_id, self.request_id)
        self._num_fed = other._num_fed
        self.token_ids = [*other.token_ids]
        self.is_terminated = other.is_terminated
        self.is_complete = other.is_complete
        self.is_stopped = other.is_stopped

    def jump(self, mode: JumpForward) -> int:
        """Skip forced text. Return how many tokens the model has to forget."""
        if self._start.request_id is None:
            return 0
        forced = jump(mode, self, self._manager.canonical_tokenizer(), self.token_ids)
        if mode is JumpForward.DRAFT:
            self.drafts = list(forced.token_ids[: self._max_tokens - len(self.token_ids) - 1])
            return 0
        num_kept = len(self.token_ids) - forced.num_dropped
        self.token_ids = [*self.token_ids[:num_kept], *forced.token_ids]
        if len(self.token_ids) > self._max_tokens:
            self.rollback(len(self.token_ids) - self._max_tokens)
            del self.token_ids[self._max_tokens :]
        num_forgotten = max(0, self._num_fed - num_kept)
        self._num_fed -= num_forgotten
        return num_forgotten

    def take_back_misfit(self) -> None:
        """Take back the tokens from the first on after which the text cannot end within
        the limit of its request."""
        if self._manager.fits(self.request_id):
            return
        drawn, num_kept = self.token_ids, 0
        for count in range(len(drawn) - 1, 0, -1):
            self.rollback(1)
            num_kept = num_kept or count if self._manager.fits(self.request_id) else 0
        self.rollback(1)
        self.token_ids = drawn[:num_kept]
        self.accept_tokens(self.request_id, self.token_ids)
        self.is_terminated = self.is_complete = False

    def append(self, drawn: list[int], accept: Callable[[Row, int], bool]) -> int:
        """Append drawn tokens up to the first that differs from its draft.

        Args:
            drawn: the tokens after the text and after each draft.
            accept: see :meth:`ConstrainedSampler.accept`.

        Returns:
            how many tokens the model, which has read all drafts, has to forget.
        """
        num_right = 0
        for token, draft in zip(drawn, [*self.drafts, None], strict=True):
            self.is_terminated = self.is_complete = accept(self.row, token) or token in self._end_tokens
            self.token_ids.append(token)
            if self.is_terminated or token != draft:
                break
            num_right += 1
        self._num_fed += num_right
        num_wrong = len(self.drafts) - num_right
        self.drafts = []
        return num_wrong


class DecodingLoop:
    """Decodes a batch of texts to their ends.

    Texts that are done stay in the batch. They read padding beside single tokens, so
    that they leave no gaps among the columns, and nothing beside jumps and drafts.

    Args:
        feed: holds the prompts.
        texts: one for each row.
        sampler: draws the tokens.
        processors: transformers' logits processors, called before the mask. They see
            the columns, so they go with ``JumpForward.OFF`` only.
        stopping_criteria: called after each step as transformers calls them. With
            jump-forward they see the last token of each row only. None: there are none.
        jump_forward: how forced text is skipped.
        padding: what texts that are done read.
        monitor: watches the loop.
        population: weighs the texts and replaces light ones. The model is asked for
            every token then, also where only one is allowed.
        on_tokens: called with one new token of each text, several times after a step
            that has brought several; padding for those that are done. Not called with
            ``JumpForward.RETOKENIZE``, which takes tokens back.
    """

    def __init__(
        self,
        feed: ModelFeed,
        texts: Sequence[Text],
        sampler: ConstrainedSampler,
        processors: Sequence[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]],
        stopping_criteria: Callable[[torch.Tensor, Any], torch.Tensor] | None,
        jump_forward: JumpForward,
        padding: int,
        monitor: Monitor,
        population: "Population | None" = None,
        on_tokens: Callable[[list[int]], None] | None = None,
    ):
        self._feed = feed
        self._texts = texts
        self._sampler = sampler
        self._processors = processors
        self._stopping_criteria = stopping_criteria
        self._jump_forward = jump_forward
        self._padding = padding
        self._monitor = monitor
        self._population = population
        self._on_tokens = on_tokens
        self._new: list[list[int]] = []  # the tokens of each row that the next pass reads
        self._num_reported = [0] * len(texts)

    def run(self) -> None:
        """Decode until every text is terminated, stopped or at its limit.

        Raises:
            DeadEndError: a grammar has no way on, or nothing can be drawn from a row.
        """
        self._jump()
        masks = self._fill()
        self._report()
        while live := [i for i, text in enumerate(self._texts) if text.is_live]:
            self._step(live, masks)
            self._resample()
            masks = self._fill()
            self._report()
            self._monitor.after_step(self._texts)

    def _resample(self) -> None:
        if self._population is not None:
            ancestors = self._population.resample(is_last=not any(text.is_live for text in self._texts))
            if ancestors is not None:
                self._feed.reorder(ancestors)

    def _fill(self) -> MaskBatch:
        """Fill the masks of the live texts, and end those that can only stop: for their
        stop token the model is not asked."""
        rows = [text.row for text in self._texts if text.is_live]
        masks = self._sampler.fill(rows)
        if self._population is not None:
            return masks
        for row, stop in zip(rows, self._sampler.stops(rows, masks), strict=True):
            if stop is not None and stop.is_forced:
                self._texts[row.index].append([stop.token], self._sampler.accept)
        return masks

    def _step(self, live: Sequence[int], masks: MaskBatch) -> None:
        self._feed_unread()
        with self._monitor.measure("forward"):
            logits = self._forward(live)
        drawn = self._sampler.draw(logits, [self._texts[i].row for i in live], masks)
        for i, tokens in zip(live, drawn, strict=True):
            self._feed.forget(i, self._texts[i].append(tokens, self._sampler.accept))
        self._jump()
        self._check_criteria()

    def _forward(self, live: Sequence[int]) -> torch.Tensor:
        """Return the logits after each live text and after each of its drafts: ``[T,
        V]``."""
        lengths = [len(self._new[i]) - len(self._texts[i].drafts) for i in live]
        logits = self._feed.forward(1 + max(map(len, self._new)) - min(lengths))
        if self._processors:
            scores = logits[:, -1]
            for process in self._processors:
                scores = process(self._feed.columns, scores)
            logits = scores.unsqueeze(1)
        if logits.shape[1] == 1:
            return logits[:, 0] if len(live) == len(self._texts) else logits[live, 0]
        # The logits end with those of the new columns; each row's tokens are the first
        # of these.
        first = logits.shape[1] - max(map(len, self._new))
        places = []
        for i in live:
            end = first + len(self._new[i])
            places += [(i, column) for column in range(end - 1 - len(self._texts[i].drafts), end)]
        rows, columns = torch.tensor(places, device=logits.device).unbind(1)
        return logits[rows, columns]

    def _jump(self) -> None:
        """Skip forced text."""
        if self._jump_forward is not JumpForward.OFF:
            for i, text in enumerate(self._texts):
                if text.is_live:
                    self._feed.forget(i, text.jump(self._jump_forward))

    def _feed_unread(self) -> None:
        """Feed the tokens that the model has not read."""
        self._new = [text.take_unread() if text.is_live else [] for text in self._texts]
        if all(len(new) == 1 for new, text in zip(self._new, self._texts, strict=True) if text.is_live):
            self._new = [new or [self._padding] for new in self._new]
        if any(self._new):
            self._feed.append(self._new)

    def _check_criteria(self) -> None:
        if self._stopping_criteria is None:
            return
        columns = self._feed.columns  # without the last tokens, which are not fed yet
        token_ids = torch.tensor([text.token_ids[-1:] for text in self._texts], device=columns.device)
        if self._jump_forward is JumpForward.OFF:
            token_ids = torch.cat([columns, token_ids], dim=1)
        for text, is_stopped in zip(self._texts, self._stopping_criteria(token_ids, None).tolist(), strict=True):
            text.is_stopped |= is_stopped

    def _report(self) -> None:
        if self._on_tokens is None:
            return
        texts = zip(self._texts, self._num_reported, strict=True)
        new = [text.token_ids[num_reported:] for text, num_reported in texts]
        for tokens in itertools.zip_longest(*new, fillvalue=self._padding):
            self._on_tokens(list(tokens))
        self._num_reported = [len(text.token_ids) for text in self._texts]


def mark_complete(texts: Sequence[Text], sampler: ConstrainedSampler) -> None:
    """Find out which of the texts that were not terminated are whole, and which were
    cut off."""
    rows = [text.row for text in texts if not text.is_terminated]
    for row, stop in zip(rows, sampler.stops_after(rows), strict=True):
        texts[row.index].is_complete = stop is not None
        texts[row.index].is_cut = stop is None or not stop.is_forced
