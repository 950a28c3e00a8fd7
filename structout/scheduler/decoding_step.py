"""DecodingSteps: a step's tokens and masks, in single native calls for all requests."""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from structout.constraints.config import StructuredOutputsConfig
from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.native.extension import core
from structout.grammar.row_loop import RowLoop
from structout.masks.batch import MaskBatch, MaskRows
from structout.masks.bitmask import allocate_token_bitmask
from structout.masks.buffers import BufferRing, MaskBuffer
from structout.masks.pool import DistinctMasks, MaskDeduplicator, PooledMaskBatch
from structout.scheduler.late_masks import EXHAUSTED, LateMasks, finish_rows
from structout.scheduler.requests import Request, RequestTable, check_known

Drafts = Mapping[str, Sequence[int]]
Bounds = Mapping[str, tuple[int, int]]
Trees = Mapping[str, tuple[Sequence[int], Sequence[int]]]

STEP_WORK = 100_000  # in steps of the engine's work, some 30,000 of which take a millisecond
DEAD_END = "the grammar allows no token here: the vocabulary cannot spell what must follow"

_OWN = "fsm"


@dataclass(frozen=True)
class BackendFills:
    """What the fills of one backend have taken.

    Attributes:
        rows: how many rows it has filled.
        seconds: how long that took, by the clock.
    """

    rows: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class StepInput:
    """What a step is asked; see ``StructuredOutputManager.grammar_bitmask`` and
    ``StructuredOutputManager.step``.

    Attributes:
        request_ids: the requests whose masks are wanted.
        drafts: by request id, as are the others.
        bounds: where grammars and masks start.
        trees: the shapes of drafts that are trees.
        wait: whether the step finishes masks that take long.
        tokens: accepted before the masks are filled. Such a step is on a thread of its
            own, so it gives Python's global lock away from the start.
        positions: if not None, the requests that are meant: those that have another
            position than here were finished, and their ids given to others.
    """

    request_ids: tuple[str, ...]
    drafts: dict[str, Sequence[int]] | None = None
    bounds: dict[str, tuple[int, int]] | None = None
    trees: dict[str, tuple[Sequence[int], Sequence[int]]] | None = None
    wait: bool = True
    tokens: dict[str, Sequence[int]] | None = None
    positions: dict[str, Any] | None = None

    @classmethod
    def checked(
        cls,
        requests: RequestTable,
        request_ids: Sequence[str],
        drafts: Drafts | None,
        bounds: Bounds | None,
        trees: Trees | None,
        strict: bool,
        wait: bool = True,
    ) -> "StepInput":
        """Raises ``ValueError`` if an id occurs twice, and with ``strict``
        ``UnknownRequestError`` if one is unknown."""
        names = tuple(request_ids)
        if len(set(names)) < len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"request_ids must be unique, got {repeated!r} more than once")
        if strict:
            check_known(names, requests.by_id)
        return cls(names, _as_dict(drafts), _as_dict(bounds), _as_dict(trees), wait)

    def means(self, name: str, requests: RequestTable) -> bool:
        """Whether the request that has the id now is the one of the step."""
        now = requests.positions.get(name)
        return now is not None and (self.positions is None or self.positions.get(name) is now)


class DecodingSteps:
    """Runs decoding steps, in a ring of mask buffers. One at a time.

    A native step follows the requests of structout's own engine. Requests of other
    engines are called one by one, after them.

    Args:
        requests: the manager's requests.
        vocab_size: V, the number of tokens that a mask covers.
        config: its ``num_mask_buffers`` and ``slow_token_seconds``.

    Attributes:
        work: what the masks of the last step took within it, in steps of the engine's
            work.
        seconds: the durations of the last 1,024 steps.
        fills: by backend name, what its fills have taken since the start.
        num_rows_filled: the number of rows filled since the start.
    """

    def __init__(self, requests: RequestTable, vocab_size: int, config: StructuredOutputsConfig):
        self._requests = requests
        self._vocab_size = vocab_size
        self._buffers = BufferRing(config.num_mask_buffers, vocab_size)
        self._loop = RowLoop(config.slow_token_seconds)
        self._late_masks = LateMasks(requests, vocab_size)
        self.work = 0
        self.seconds: deque[float] = deque(maxlen=1024)
        self.fills: dict[str, BackendFills] = {}
        self.num_rows_filled = 0

    def close(self) -> None:
        """Drop the masks that are to be computed outside of steps."""
        self._late_masks.close()

    # -- tokens ------------------------------------------------------------------------

    def accept(self, tokens: Mapping[str, Sequence[int]]) -> dict[str, bool]:
        """Advance each request by all of its tokens, or by none. False for unknown
        ids."""
        step = core().Step(self._requests.positions, [])
        step.draw(tokens if isinstance(tokens, dict) else dict(tokens))
        accepted, foreign, exhausted = step.accept()
        for name in foreign:
            accepted[name] = self.accept_alone(self._requests.get(name), tokens[name])
        for name in exhausted:
            self._fail_exhausted(name)
        return accepted

    def accept_alone(self, request: Request | None, tokens: Sequence[int]) -> bool:
        """``accept`` for one request, without a native step."""
        grammar = None if request is None else request.grammar
        if request is None or grammar is None or not isinstance(tokens, Iterable):
            return False
        try:
            if grammar.position is grammar:
                is_accepted = self._loop.accept(grammar, request.request_id, [*tokens])
            else:
                is_accepted = grammar.accept_tokens(request.request_id, [*tokens])
        except GrammarError as error:  # it is too slow
            self._requests.set_failed(request, error)
            return False
        if not is_accepted:
            self._fail_exhausted(request.request_id)
        return is_accepted

    def _fail_exhausted(self, request_id: str) -> str:
        """Make the request FAILED if its engine has reached a limit. Return why it
        allows nothing."""
        request = self._requests.get(request_id)
        reason = request.grammar.error_reason if request is not None and request.grammar is not None else ""
        if request is not None and reason:
            self._requests.set_failed(request, GrammarError(reason, kind=GrammarErrorKind.LIMIT))
        return reason or DEAD_END

    # -- masks -------------------------------------------------------------------------

    def fill(self, given: StepInput) -> MaskBatch:
        """Accept a step's tokens, and fill its masks."""
        started = time.perf_counter()
        refused = self._accept_foreign(given)
        step = self._native_step(given)
        if given.tokens is not None:
            step.draw(given.tokens)
        buffer = self._buffers.next(step.max_rows)
        self.work = step.run(STEP_WORK, *buffer.memory, given.tokens is not None)
        native_seconds = time.perf_counter() - started
        row_indptr = step.row_indptr
        num_rows = int(row_indptr[-1])
        errors = self._errors(step, given.request_ids)
        unfinished = self._finish(step, given, buffer, errors)
        num_allowed = step.num_allowed  # also of the requests that were finished last
        for index in step.dead_ends:
            errors[given.request_ids[index]] = self._fail_exhausted(given.request_ids[index])
        num_foreign = self._fill_foreign(step, given, buffer, row_indptr, num_allowed, errors)
        if given.tokens is not None:
            refused += self._refused(step, given)
            for index, name in enumerate(given.request_ids) if refused else ():
                if name in refused:
                    errors[name] = self._fail_refused(name, given.tokens[name])
                    buffer.array[row_indptr[index] : row_indptr[index + 1]] = 0
        self._note(_OWN, num_rows - num_foreign, native_seconds)
        self.seconds.append(time.perf_counter() - started)
        self.num_rows_filled += num_rows
        return MaskBatch(
            request_ids=given.request_ids,
            row_indptr=row_indptr,
            errors=errors,
            num_acceptable_drafts=num_allowed,
            unfinished=tuple(unfinished),
            bitmask=buffer.array[:num_rows],
            lease=buffer.lease,
        )

    def fill_pooled(self, given: StepInput, deduplicator: MaskDeduplicator) -> PooledMaskBatch:
        """Name a step's masks by their slots, and fill only those that the pools do not
        hold. Steps with requests of other engines are filled first: their masks have no
        numbers."""
        started = time.perf_counter()
        step = self._native_step(given)
        if step.foreign:
            return deduplicator.deduplicate(self.fill(given))
        step.plan()

        def fill(rows: list[int]) -> npt.NDArray[np.int32]:
            masks = MaskBuffer(allocate_token_bitmask(len(rows), self._vocab_size, pin_memory=False))
            step.fill(rows, *masks.memory)
            return masks.array

        errors = self._errors(step, given.request_ids)
        rows = MaskRows(
            request_ids=given.request_ids,
            row_indptr=step.row_indptr,
            num_acceptable_drafts=step.num_allowed,
            errors=errors,
        )
        pooled = deduplicator.deduplicate_by_key(rows, DistinctMasks(*step.distinct_masks()), fill)
        empty_rows = set(deduplicator.empty_rows(pooled).tolist())
        for index in np.flatnonzero(np.diff(rows.row_indptr)) if empty_rows else ():
            name = given.request_ids[index]
            if rows.row_indptr[index] in empty_rows and name not in errors:
                errors[name] = self._fail_exhausted(name)
        self._note(_OWN, int(rows.row_indptr[-1]), time.perf_counter() - started)
        return pooled

    def _native_step(self, given: StepInput) -> Any:
        ids = [*given.request_ids]
        return core().Step(self._requests.positions, ids, given.drafts, given.bounds, given.trees, given.positions)

    def _errors(self, step: Any, request_ids: Sequence[str]) -> dict[str, str]:
        """Why rows of the step stay empty, as far as that is known before they are
        filled."""
        errors = {request_ids[index]: problem for index, problem in step.problems}
        for index in step.blocked:
            request = self._requests.get(request_ids[index])
            error = None if request is None else request.error
            errors[request_ids[index]] = str(error or "scheduled before its grammar was ready")
        return errors

    def _finish(self, step: Any, given: StepInput, buffer: MaskBuffer, errors: dict[str, str]) -> list[str]:
        """Finish the masks that take more work than a step has. Return the requests
        whose masks another thread computes instead."""
        left = []
        for index in step.unfinished:
            name = given.request_ids[index]
            request = self._requests.get(name)
            grammar = None if request is None else request.grammar
            if request is None or grammar is None:  # finished by another thread meanwhile
                continue
            if not given.wait and request.finished_position != grammar.num_tokens:
                left.append(name)
                self._late_masks.finish(request, (given.drafts or {}).get(name))
            elif not finish_rows(step, index, buffer.memory, request):
                errors[name] = EXHAUSTED
                self._requests.set_failed(request, GrammarError(EXHAUSTED, kind=GrammarErrorKind.LIMIT))
        return left

    # -- requests of other engines -----------------------------------------------------

    def _accept_foreign(self, given: StepInput) -> list[str]:
        """Accept the tokens of those before the step asks where they stand. Return
        those that refuse them."""
        names = self._requests.foreign.intersection(given.tokens or ())
        return [name for name in names if given.means(name, self._requests) and not self._accept_drawn(name, given)]

    def _accept_drawn(self, name: str, given: StepInput) -> bool:
        assert given.tokens is not None
        return self.accept_alone(self._requests.get(name), given.tokens[name])

    def _fill_foreign(
        self,
        step: Any,
        given: StepInput,
        buffer: MaskBuffer,
        row_indptr: npt.NDArray[np.int32],
        num_allowed: npt.NDArray[np.int32],
        errors: dict[str, str],
    ) -> int:
        """Fill their rows, and return how many there are."""
        num_rows = 0
        for index, grammar in step.foreign:
            name, rows = given.request_ids[index], buffer.rows[row_indptr[index] : row_indptr[index + 1]]
            request = self._requests.get(name)
            if request is None or not len(rows):
                continue
            started = time.perf_counter()
            drafts, bound, tree = (
                (given.drafts or {}).get(name),
                (given.bounds or {}).get(name),
                (given.trees or {}).get(name),
            )
            try:
                num_allowed[index] = self._loop.fill(grammar, rows, drafts, bound, tree)
                if not rows[0].any():
                    errors[name] = self._fail_exhausted(name)
            except Exception as error:  # from native code, or about malformed drafts
                rows.zero_()
                errors[name] = str(error)
                if isinstance(error, GrammarError):
                    self._requests.set_failed(request, error)
            self._note(request.backend_name, len(rows), time.perf_counter() - started)
            num_rows += len(rows)
        return num_rows

    # -- refused tokens, and counters --------------------------------------------------

    def _refused(self, step: Any, given: StepInput) -> list[str]:
        """The requests of structout's own engine that have refused their tokens."""
        accepted, foreign, _ = step.accept()
        refused = {name for name, is_accepted in accepted.items() if not is_accepted}.difference(foreign)
        return [name for name in refused if given.means(name, self._requests)]

    def _fail_refused(self, name: str, tokens: Sequence[int]) -> str:
        error = GrammarError(f"the grammar does not allow the tokens {tokens}", kind=GrammarErrorKind.REPLAY)
        request = self._requests.get(name)
        if request is not None and request.error is None:
            reason = "" if request.grammar is None else request.grammar.error_reason
            error = GrammarError(reason, kind=GrammarErrorKind.LIMIT) if reason else error
            self._requests.set_failed(request, error)
        return str(error if request is None else request.error)

    def _note(self, backend_name: str, num_rows: int, seconds: float) -> None:
        if num_rows:
            before = self.fills.get(backend_name, BackendFills())
            self.fills[backend_name] = BackendFills(before.rows + num_rows, before.seconds + seconds)


def _as_dict(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What a native step takes. None if it is empty."""
    return (values if isinstance(values, dict) else dict(values)) if values else None
