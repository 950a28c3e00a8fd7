"""DecodingSteps: a step's tokens and masks, in single native calls for all requests."""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from structout.constraints.config import StructuredOutputsConfig
from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.native.extension import core
from structout.masks.batch import MaskBatch
from structout.masks.buffers import BufferRing
from structout.scheduler.requests import REQUEST_WORK, Request, RequestTable

Drafts = Mapping[str, Sequence[int]]
Bounds = Mapping[str, tuple[int, int]]
Trees = Mapping[str, tuple[Sequence[int], Sequence[int]]]

STEP_WORK = 100_000  # in steps of the engine's work, some 30,000 of which take a millisecond
DEAD_END = "the grammar allows no token here: the vocabulary cannot spell what must follow"
EXHAUSTED = f"the masks of this request take more than {REQUEST_WORK:,} steps of work outside of decoding steps"


class DecodingSteps:
    """Runs decoding steps, in a ring of mask buffers. One at a time.

    A native step fills all rows: stored masks first, then masks to compute, within a
    budget of ``STEP_WORK`` for all requests, about 3 ms. Those of other engines come
    last.

    Args:
        requests: the manager's requests.
        vocab_size: V, the number of tokens that a mask covers.
        config: its ``num_mask_buffers`` and ``fill_threads``.

    Attributes:
        work: what the masks of the last step took within it, in steps of the engine's
            work.
        seconds: the durations of the last 1,024 steps.
        num_rows: how many rows were filled since the start.
    """

    def __init__(self, requests: RequestTable, vocab_size: int, config: StructuredOutputsConfig):
        self._requests = requests
        self._buffers = BufferRing(config.num_mask_buffers, vocab_size, core().MaskBuffer)
        self._pool = core().ThreadPool(config.fill_threads - 1) if config.fill_threads > 1 else None
        self.work = 0
        self.seconds: deque[float] = deque(maxlen=1024)
        self.num_rows = 0

    def accept(self, tokens: Mapping[str, Sequence[int]]) -> dict[str, bool]:
        """Advance each request by all of its tokens, or by none. False for unknown
        ids."""
        step = core().Step(self._requests.matchers, [])
        step.feed(_as_dict(tokens) or {})
        accepted: dict[str, bool]
        accepted, exhausted = step.accept()
        for request_id in exhausted:
            self._fail_exhausted(request_id)
        return accepted

    def accept_alone(self, request: Request, tokens: Sequence[int]) -> bool:
        """``accept`` for one request, without a native step."""
        if request.grammar is None or not isinstance(tokens, Iterable):
            return False
        is_accepted = request.grammar.accept_tokens(request.request_id, [*tokens])
        if not is_accepted:
            self._fail_exhausted(request.request_id)
        return is_accepted

    def fill(
        self,
        request_ids: list[str],
        drafts: Drafts | None,
        bounds: Bounds | None,
        trees: Trees | None,
        tokens: dict[str, Sequence[int]] | None = None,
        expected: dict[str, Any] | None = None,
    ) -> MaskBatch:
        """Fill the masks of ``StructuredOutputManager.grammar_bitmask``.

        Args:
            request_ids: the requests, without duplicates.
            drafts: by request id, as are the others.
            bounds: where grammars and masks start.
            trees: the shapes of drafts that are trees.
            tokens: accepted first. Such a step has a thread of its own, so it gives
                Python's global lock away from the start.
            expected: the matchers of an earlier time: requests that have others now
                were finished, and their ids given to others.
        """
        started = time.perf_counter()
        step = core().Step(
            self._requests.matchers, request_ids, _as_dict(drafts), _as_dict(bounds), _as_dict(trees), expected
        )
        step.feed(tokens or {})
        buffer = self._buffers.next(step.max_rows)
        self.work = step.run(STEP_WORK, buffer.native, tokens is not None, self._pool)
        row_indptr = step.row_indptr
        errors = {request_ids[index]: problem for index, problem in step.problems}
        for index in step.blocked:
            request = self._requests.by_id.get(request_ids[index])
            error = None if request is None else request.error
            errors[request_ids[index]] = str(error or "scheduled before its grammar was ready")
        for index in step.unfinished:  # they took more work than the step has
            request = self._requests.by_id.get(request_ids[index])
            if request is None or request.grammar is None:  # finished by another thread meanwhile
                continue
            work = step.finish(index, request.work_left, buffer.native)
            request.work_left -= request.work_left if work is None else work
            if work is None:
                self._requests.settle(request, GrammarError(EXHAUSTED, kind=GrammarErrorKind.LIMIT))
                errors[request_ids[index]] = EXHAUSTED
        num_allowed = step.num_allowed  # also of the requests that were finished last
        for index in step.dead_ends:
            errors[request_ids[index]] = self._fail_exhausted(request_ids[index]) or DEAD_END
        refused = self._fail_refused(step.accept()[0], tokens, expected or {}) if tokens else {}
        for index, request_id in enumerate(request_ids) if refused else ():
            if request_id in refused:
                errors[request_id] = refused[request_id]
                buffer.native.clear(row_indptr[index], row_indptr[index + 1])
        num_rows = int(row_indptr[-1])
        self.num_rows += num_rows
        self.seconds.append(time.perf_counter() - started)
        return MaskBatch(
            request_ids=tuple(request_ids),
            row_indptr=row_indptr,
            errors=errors,
            num_acceptable_drafts=num_allowed,
            bitmask=buffer.array[:num_rows],
            lease=buffer.lease,
        )

    def _fail_exhausted(self, request_id: str) -> str:
        """Make the request FAILED if its engine has reached a limit. Return which, or
        nothing."""
        request = self._requests.by_id.get(request_id)
        reason = request.grammar.error_reason if request is not None and request.grammar is not None else ""
        if request is not None and reason:
            self._requests.settle(request, GrammarError(reason, kind=GrammarErrorKind.LIMIT))
        return reason

    def _fail_refused(
        self, accepted: dict[str, bool], tokens: dict[str, Sequence[int]], expected: dict[str, Any]
    ) -> dict[str, str]:
        """Make the requests FAILED that have refused the tokens of a step, but not one
        that has the id of a finished request. Return why, by id."""
        reasons = {}
        for request_id in [request_id for request_id, is_accepted in accepted.items() if not is_accepted]:
            request, matcher = self._requests.by_id.get(request_id), self._requests.matchers.get(request_id)
            if request is not None and matcher is not None and matcher is expected.get(request_id):
                message = f"the grammar does not allow the tokens {tokens[request_id]}"
                if not self._fail_exhausted(request_id):
                    self._requests.settle(request, GrammarError(message, kind=GrammarErrorKind.REPLAY))
                reasons[request_id] = str(request.error or message)
        return reasons


def _as_dict(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The mapping as a dict, which native steps take. A dict is not copied. None if it
    is empty."""
    return (values if isinstance(values, dict) else dict(values or {})) or None
