"""DecodingSteps: a step's tokens and masks, in single native calls for all requests."""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from structout.constraints.config import StructuredOutputsConfig
from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.native.extension import core
from structout.masks.batch import MaskBatch
from structout.masks.buffers import BufferRing, MaskBuffer
from structout.scheduler.requests import REQUEST_WORK, Request, RequestTable, check_known

Drafts = Mapping[str, Sequence[int]]
Bounds = Mapping[str, tuple[int, int]]
Trees = Mapping[str, tuple[Sequence[int], Sequence[int]]]

STEP_WORK = 100_000  # in steps of the engine's work, some 30,000 of which take a millisecond
DEAD_END = "the grammar allows no token here: the vocabulary cannot spell what must follow"
EXHAUSTED = f"the masks of this request take more than {REQUEST_WORK:,} steps of work outside of decoding steps"


@dataclass(frozen=True)
class StepInput:
    """The arguments of a decoding step; see ``StructuredOutputManager.grammar_bitmask``
    and ``StructuredOutputManager.step``.

    Attributes:
        request_ids: the requests whose masks are wanted.
        drafts: by request id, as are the others.
        bounds: where grammars and masks start.
        trees: the shapes of drafts that are trees.
        tokens: accepted before the masks are filled. Such a step is on a thread of its
            own, so it gives Python's global lock away from the start.
        matchers: if not None, the requests that are meant: those that have another
            matcher than here were finished, and their ids given to others.
    """

    request_ids: tuple[str, ...]
    drafts: dict[str, Sequence[int]]
    bounds: dict[str, tuple[int, int]]
    trees: dict[str, tuple[Sequence[int], Sequence[int]]]
    tokens: dict[str, Sequence[int]] | None = None
    matchers: dict[str, Any] | None = None

    @classmethod
    def checked(
        cls,
        requests: RequestTable,
        request_ids: Sequence[str],
        drafts: Drafts | None,
        bounds: Bounds | None,
        trees: Trees | None,
        strict: bool,
    ) -> "StepInput":
        """Raises ``ValueError`` if an id occurs twice, and with ``strict``
        ``UnknownRequestError`` if one is unknown."""
        names = tuple(request_ids)
        if len(set(names)) < len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"request_ids must be unique, got {repeated!r} more than once")
        if strict:
            check_known(names, requests.by_id)
        return cls(names, _as_dict(drafts), _as_dict(bounds), _as_dict(trees))


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

    # -- tokens ------------------------------------------------------------------------

    def accept(self, tokens: Mapping[str, Sequence[int]]) -> dict[str, bool]:
        """Advance each request by all of its tokens, or by none. False for unknown
        ids."""
        step = core().Step(self._requests.matchers, [])
        step.feed(tokens if isinstance(tokens, dict) else dict(tokens))
        accepted: dict[str, bool]
        accepted, exhausted = step.accept()
        for name in exhausted:
            self._fail_exhausted(name)
        return accepted

    def accept_alone(self, request: Request | None, tokens: Sequence[int]) -> bool:
        """``accept`` for one request, without a native step."""
        grammar = None if request is None else request.grammar
        if request is None or grammar is None or not isinstance(tokens, Iterable):
            return False
        is_accepted = grammar.accept_tokens(request.request_id, [*tokens])
        if not is_accepted:
            self._fail_exhausted(request.request_id)
        return is_accepted

    # -- masks -------------------------------------------------------------------------

    def fill(self, given: StepInput) -> MaskBatch:
        """Accept a step's tokens, and fill its masks."""
        started = time.perf_counter()
        tokens = given.tokens or {}
        options = (given.drafts or None, given.bounds or None, given.trees or None, given.matchers)
        step = core().Step(self._requests.matchers, [*given.request_ids], *options)
        step.feed(tokens)
        buffer = self._buffers.next(step.max_rows)
        self.work = step.run(STEP_WORK, buffer.native, given.tokens is not None, self._pool)
        row_indptr = step.row_indptr
        errors = self._errors(step, given.request_ids)
        self._finish(step, given, buffer, errors)
        num_allowed = step.num_allowed  # also of the requests that were finished last
        for index in step.dead_ends:
            errors[given.request_ids[index]] = self._fail_exhausted(given.request_ids[index])
        refused = self._fail_refused(step.accept()[0], given) if tokens else {}
        for index, name in enumerate(given.request_ids) if refused else ():
            if name in refused:
                errors[name] = refused[name]
                buffer.native.clear(row_indptr[index], row_indptr[index + 1])
        num_rows = int(row_indptr[-1])
        self.num_rows += num_rows
        self.seconds.append(time.perf_counter() - started)
        return MaskBatch(
            request_ids=given.request_ids,
            row_indptr=row_indptr,
            errors=errors,
            num_acceptable_drafts=num_allowed,
            bitmask=buffer.array[:num_rows],
            lease=buffer.lease,
        )

    def _errors(self, step: Any, request_ids: Sequence[str]) -> dict[str, str]:
        """The reason for each request that gets no masks in this step, so far as it
        shows before masks are computed."""
        errors = {request_ids[index]: problem for index, problem in step.problems}
        for index in step.blocked:
            request = self._requests.by_id.get(request_ids[index])
            error = None if request is None else request.error
            errors[request_ids[index]] = str(error or "scheduled before its grammar was ready")
        return errors

    # -- masks that take more work than a step has -------------------------------------

    def _finish(self, step: Any, given: StepInput, buffer: MaskBuffer, errors: dict[str, str]) -> None:
        """Compute the masks that took more work than the step has, without Python's
        global lock."""
        for index in step.unfinished:
            name = given.request_ids[index]
            request = self._requests.by_id.get(name)
            if request is None or request.grammar is None:  # finished by another thread meanwhile
                continue
            work = step.finish(index, request.work_left, buffer.native)
            request.work_left -= request.work_left if work is None else work
            if work is None:
                errors[name] = self._fail(request, EXHAUSTED)

    # -- requests that fail ------------------------------------------------------------

    def _fail(self, request: Request, reason: str) -> str:
        self._requests.set_failed(request, GrammarError(reason, kind=GrammarErrorKind.LIMIT))
        return reason

    def _fail_exhausted(self, request_id: str) -> str:
        """Make the request FAILED if its engine has reached a limit. Return why it
        allows nothing."""
        return self._fail_at_limit(request_id) or DEAD_END

    def _fail_at_limit(self, request_id: str) -> str | None:
        """Make the request FAILED if its engine has reached a limit. Return which."""
        request = self._requests.by_id.get(request_id)
        if request is None or request.grammar is None or not request.grammar.error_reason:
            return None
        return self._fail(request, request.grammar.error_reason)

    def _fail_refused(self, accepted: dict[str, bool], given: StepInput) -> dict[str, str]:
        """Make the requests FAILED that have refused the tokens of a step, but not one
        that has the id of a finished request. Return why, by id."""
        reasons = {}
        now, then = self._requests.matchers, given.matchers or {}
        for name in [name for name, is_accepted in accepted.items() if not is_accepted]:
            request, matcher = self._requests.by_id.get(name), now.get(name)
            if request is not None and matcher is not None and matcher is then.get(name):
                message = f"the grammar does not allow the tokens {(given.tokens or {})[name]}"
                if self._fail_at_limit(name) is None:
                    self._requests.set_failed(request, GrammarError(message, kind=GrammarErrorKind.REPLAY))
                reasons[name] = str(request.error or message)
        return reasons


def _as_dict(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """The mapping as a dict, which native steps take. A dict is not copied."""
    return values if isinstance(values, dict) else dict(values or {})
