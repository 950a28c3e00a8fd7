"""Tokens that a request's sampling parameters or its reasoning forbid, as mask rows.

Bad words, ``min_tokens`` and ``allowed_token_ids`` rule tokens out, just as a grammar
does. They are bits of the mask, so that no logit has to be written.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from structout.integrations.vllm.layout import Layout
from structout.masks.batch import MaskBatch
from structout.masks.bitmask import bitmask_width

_Masks = npt.NDArray[np.int32]


def edits_masks(sampling_params: Any) -> bool:
    """True if the parameters may forbid tokens in some step."""
    p = sampling_params
    return bool(p.allowed_token_ids is not None or p.bad_words_token_ids or p.min_tokens)


class MaskEdits:
    """Edits the masks of a vLLM worker's steps.

    Args:
        vocab_size: V.
    """

    def __init__(self, vocab_size: int):
        self._vocab_size = vocab_size
        self._allowed: dict[str, _Masks] = {}  # by request id

    def edited(
        self, layout: Layout, requests: Sequence[Any], masks: _Masks | None, rows: npt.NDArray[np.int32] | None
    ) -> tuple[_Masks | None, npt.NDArray[np.int32] | None]:
        """Append a mask for each row of the requests that forbids what they forbid.

        Args:
            layout: the rows of the step.
            requests: those of the batch whose parameters forbid tokens.
            masks: int32 ``[R, W]``, the masks of the grammars. None if there are none.
            rows: int32 ``[N]``, the mask row of each logits row, -1 for none.

        Returns:
            masks, and the mask row of each logits row.
        """
        self._allowed = {r.req_id: self._allowed[r.req_id] for r in requests if r.req_id in self._allowed}
        requests = [request for request in requests if _forbids_now(request)]
        if not requests:
            return masks, rows
        if masks is None:
            masks = np.zeros((0, bitmask_width(self._vocab_size)), dtype=np.int32)
        rows = np.full(layout.num_rows, -1, dtype=np.int32) if rows is None else rows.copy()
        appended: list[_Masks] = []
        for request, row, drafts in layout.rows_of(requests):
            is_free = rows[row] < 0
            mask = np.full(masks.shape[1], -1, dtype=np.int32) if is_free else masks[rows[row]].copy()
            self._forbid(mask, request, drafts, is_free)
            rows[row] = len(masks) + len(appended)
            appended.append(mask)
        return np.concatenate([masks, np.stack(appended)]), rows

    def _forbid(self, mask: _Masks, request: Any, drafts: Sequence[int], is_free: bool) -> None:
        p = request.sampling_params
        if p.allowed_token_ids is not None:
            mask &= self._allowed_mask(request)
        _clear(mask, _completed_bad_words(p.bad_words_token_ids or (), request.output_token_ids, drafts))
        if len(request.output_token_ids) + len(drafts) < p.min_tokens:
            without_stops = mask.copy()
            _clear(without_stops, p.all_stop_token_ids)
            # A grammar that can only end must end.
            if is_free or without_stops.any():
                mask[:] = without_stops

    def _allowed_mask(self, request: Any) -> _Masks:
        mask = self._allowed.get(request.req_id)
        if mask is None:
            is_allowed = np.zeros(32 * bitmask_width(self._vocab_size), dtype=np.uint8)
            is_allowed[request.sampling_params.allowed_token_ids] = 1
            mask = self._allowed[request.req_id] = np.packbits(is_allowed, bitorder="little").view(np.int32)
        return mask


@dataclass(frozen=True)
class ReasoningRules:
    """How the reasoning of a request may end.

    Attributes:
        ends: the tokens that end it.
        wrong_ends: the tokens with which it must not end.
        max_tokens: how many tokens it may have before its end. None without a limit.
    """

    ends: Sequence[int] = ()
    wrong_ends: Sequence[int] = ()
    max_tokens: int | None = None


@dataclass(frozen=True)
class Reasoning:
    """The rows of a request that reasons.

    Attributes:
        bounds: ``(grammar_start, constraint_start)``, as the manager takes them. The
            rows before ``constraint_start`` are free.
        rules: how the reasoning may end.
        num_tokens: the tokens that it has.
    """

    bounds: tuple[int, int]
    rules: ReasoningRules = ReasoningRules()
    num_tokens: int = 0

    def edit(self, rows: _Masks) -> None:
        """Write what the reasoning forbids into the rows of a request, ``[R, W]``."""
        free = rows[: self.bounds[1]]
        for row in free:
            _clear(row, self.rules.wrong_ends)
        if self._must_end:
            is_end = np.full_like(rows[0], -1)
            _clear(is_end, self.rules.ends)
            free[self._num_left :] = ~is_end

    @property
    def edits_masks(self) -> bool:
        return bool(self.rules.wrong_ends) or self._must_end

    @property
    def _must_end(self) -> bool:
        """True if the reasoning must end in one of the rows."""
        return bool(self.rules.ends) and self._num_left < self.bounds[1]

    @property
    def _num_left(self) -> int:
        """The first rows in which the reasoning may go on."""
        max_tokens = self.rules.max_tokens
        return self.bounds[1] if max_tokens is None else max(0, max_tokens - self.num_tokens)


def with_reasonings(masks: MaskBatch, reasonings: Mapping[str, Reasoning]) -> MaskBatch:
    """The masks of a step with what the reasonings of its requests forbid, by request
    id. If that is nothing, nothing is copied."""
    if not any(reasoning.edits_masks for reasoning in reasonings.values()):
        return masks
    bitmask = masks.bitmask.copy()
    for index, request_id in enumerate(masks.request_ids):
        first, last = masks.row_indptr[index : index + 2]
        if first < last and request_id in reasonings:
            reasonings[request_id].edit(bitmask[first:last])
    return replace(masks, bitmask=bitmask, lease=None)


def _forbids_now(request: Any) -> bool:
    p = request.sampling_params
    is_short = len(request.output_token_ids) < p.min_tokens
    return bool(p.allowed_token_ids is not None or p.bad_words_token_ids or is_short)


def _completed_bad_words(
    bad_words: Sequence[Sequence[int]], output_token_ids: Sequence[int], drafts: Sequence[int]
) -> Iterator[int]:
    """The last token of each bad word of which all others end the text."""
    longest = max((len(word) for word in bad_words), default=0)
    tail = [*output_token_ids[max(0, len(output_token_ids) - longest) :], *drafts]
    for *prefix, last in bad_words:
        if tail[len(tail) - len(prefix) :] == prefix:
            yield last


def _clear(mask: _Masks, token_ids: Iterable[int]) -> None:
    """Forbid the tokens. Ids past the mask are ignored."""
    bits = mask.view(np.uint32)
    for token in token_ids:
        if token >> 5 < len(bits):
            bits[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)
