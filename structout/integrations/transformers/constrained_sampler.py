"""The step that both decoding loops share: fill masks, draw tokens, advance
grammars."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch

from structout.masks.batch import MaskBatch
from structout.ops.masked_sample import masked_sample
from structout.ops.sampler import DeviceMasks, SamplingParams, op_arguments
from structout.ops.token_logprobs import log_kept
from structout.scheduler.manager import StructuredOutputManager


@dataclass(frozen=True)
class Row:
    """The state of one text of a batch before a draw.

    Attributes:
        index: its place in the batch, for error messages.
        request_id: the manager's request that constrains it, None if it is free.
        seed: int64. Rows of one batch have different seeds, see :func:`row_seeds`.
        position: the index of the next token in this text. The prompt counts, padding
            does not, so that a row draws the same tokens in any batch.
        drafts: tokens that are verified in this step.
    """

    index: int
    request_id: str | None
    seed: int
    position: int
    drafts: Sequence[int] = ()


class Stop(NamedTuple):
    """A stop token of the tokenizer that may follow a text, and whether nothing else
    may."""

    token: int
    is_forced: bool


class DeadEndError(RuntimeError):
    """No token can be drawn for a row.

    Attributes:
        reason: the cause alone. The message also names the row.
    """

    def __init__(self, row: Row, reason: str):
        request = "no constraint" if row.request_id is None else f"request {row.request_id!r}"
        super().__init__(f"row {row.index} ({request}): {reason}")
        self.reason = reason


class ConstrainedSampler:
    """Draws tokens under the masks of a manager's requests.

    Args:
        manager: its requests are READY.
        params: temperature and filters of all rows. Seeds and positions come with each
            draw.
        measure: ``measure(stage)`` is a context around each stage of a draw.
        log_weights: for each row of the batch, to which its draws add the log of the
            probability that their mask has kept.
    """

    def __init__(
        self,
        manager: StructuredOutputManager,
        params: SamplingParams,
        measure: Callable[[str], AbstractContextManager[None]] = lambda stage: nullcontext(),
        log_weights: list[float] | None = None,
    ):
        self._manager = manager
        self._arguments = op_arguments(None, params)
        self._is_greedy = not isinstance(params.temperature, torch.Tensor) and params.temperature == 0
        self._measure = measure
        self._log_weights = log_weights

    def fill(self, rows: Sequence[Row]) -> MaskBatch:
        """Fill the masks of the next token of each row, and after each of its drafts.

        Raises:
            DeadEndError: a grammar allows no token.
        """
        constrained = {row.request_id: row for row in rows if row.request_id is not None}
        with self._measure("mask fill"):
            drafts = {request_id: row.drafts for request_id, row in constrained.items() if row.drafts}
            masks = self._manager.grammar_bitmask(list(constrained), drafts)
        for request_id, reason in masks.errors.items():
            raise DeadEndError(constrained[request_id], reason)
        return masks

    def stops_after(self, rows: Sequence[Row]) -> list[Stop | None]:
        """For each row the stop token that may follow its text. A dead end has none."""
        return self.stops(rows, self._manager.grammar_bitmask([row.request_id for row in rows if row.request_id]))

    def stops(self, rows: Sequence[Row], masks: MaskBatch) -> list[Stop | None]:
        """For each row the stop token that its mask allows: None if the text may not
        end here, or is free.

        Args:
            rows: the rows.
            masks: as :meth:`fill` has filled them for these rows.
        """
        ranges: dict[str | None, tuple[int, int]] = dict(
            zip(masks.request_ids, pairwise(masks.row_indptr.tolist()), strict=True)
        )
        bitmask = masks.bitmask.view(np.uint32)
        return [self._stop_in(bitmask[slice(*ranges.get(row.request_id, (0, 0)))]) for row in rows]

    def _stop_in(self, masks: npt.NDArray[np.uint32]) -> Stop | None:
        """``masks``: the rows of one text, its next token's first; none if it is
        free."""
        stop_tokens = self._manager.vocabulary.stop_token_ids
        allowed = [stop for stop in stop_tokens if len(masks) and masks[0, stop >> 5] >> (stop & 31) & 1]
        if not allowed:
            return None
        others = masks[0].copy()
        for stop in allowed:
            others[stop >> 5] ^= np.uint32(1 << (stop & 31))
        return Stop(allowed[0], not others.any())

    def draw(self, logits: torch.Tensor, rows: Sequence[Row], masks: MaskBatch) -> list[list[int]]:
        """Draw the next token of each row, and the token after each of its drafts.

        Args:
            logits: ``[T, V]``. Each row of the batch owns ``1 + len(drafts)`` of them,
                in order.
            rows: the rows.
            masks: as :meth:`fill` has filled them for these rows, and maybe for others.

        Returns:
            for each row ``1 + len(drafts)`` token ids. -1 means that nothing can be
            drawn.
        """
        counts = [1 + len(row.drafts) for row in rows]
        with self._measure("mask copy"):
            # An id without a mask, None among them, leaves its row free.
            request_ids = cast("list[str]", [row.request_id for row in rows])
            device_masks = DeviceMasks.of(masks, request_ids, logits.device, counts)
        noise = {} if self._is_greedy else _noise_of(rows, counts, logits.device)
        with self._measure("mask and draw"):
            drawn = masked_sample(logits, device_masks.bitmask, device_masks.rows, **self._arguments | noise)
        if self._log_weights is not None:
            kept = log_kept(logits, device_masks.bitmask, device_masks.rows, temperature=self._arguments["temperature"])
            for row, log_weight in zip(rows, kept.tolist(), strict=True):  # without drafts
                self._log_weights[row.index] += log_weight
        token_ids = iter(drawn.tolist())
        return [[next(token_ids) for _ in range(count)] for count in counts]

    def accept(self, row: Row, token: int) -> bool:
        """Advance the row's grammar by a drawn token.

        Returns:
            whether the text is now complete. False for a free row.

        Raises:
            DeadEndError: ``token`` is -1.
        """
        if token < 0:
            raise DeadEndError(row, "nothing can be drawn: the model gave NaN or no finite logit to any allowed token")
        if row.request_id is None:
            return False
        if not self._manager.accept_tokens(row.request_id, [token]):
            raise AssertionError(f"the mask allowed token {token}, the grammar refused it")
        return self._manager.is_terminated(row.request_id)


def _noise_of(rows: Sequence[Row], counts: Sequence[int], device: torch.device) -> dict[str, torch.Tensor]:
    """Where the noise of each draw comes from."""
    draws = [(row.seed, row.position + i) for row, count in zip(rows, counts, strict=True) for i in range(count)]
    seed, position = torch.tensor(draws, device=device).unbind(1)
    return {"seed": seed, "position": position}


def row_seeds(seed: int, num_rows: int) -> list[int]:
    """Return one int64 seed per row: ``mix(mix(seed) + i)`` for row i.

    Neither the rows of one batch nor those of neighbouring seeds share their noise.

    Args:
        seed: any integer. Its last 64 bits count.
    """
    seeds = [_mix(_mix(seed) + row) for row in range(num_rows)]
    return [number - 2**64 if number >= 2**63 else number for number in seeds]


def _mix(number: int) -> int:
    """Permute 64-bit integers so that the output shows no pattern of the input
    (SplitMix64).

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
    OOPSLA 2014.
    """
    number = (number + 0x9E3779B97F4A7C15) % 2**64
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    number = (number ^ number >> 27) * 0x94D049BB133111EB % 2**64
    return number ^ number >> 31
