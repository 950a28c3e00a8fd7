"""MaskFiller: plans and fills the mask rows of a decoding step."""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from structout.grammar.interface import StepPlan, StructuredOutputBackend, StructuredOutputGrammar, batch_class
from structout.masks.batch import MaskBatch, MaskRows
from structout.masks.bitmask import allocate_token_bitmask
from structout.masks.buffers import BufferRing
from structout.masks.pool import MaskDeduplicator, PooledMaskBatch
from structout.scheduler.late_masks import EXHAUSTED, STEP_WORK, finish_rows
from structout.scheduler.requests import Request, RequestTable, check_known

Drafts = Mapping[str, Sequence[int]]
Bounds = Mapping[str, tuple[int, int]]
Trees = Mapping[str, tuple[Sequence[int], Sequence[int]]]

_RowErrors = dict[int, str]  # the rows that cannot be filled, and why

_NUM_SCANNED_WORDS = 64
_STEPS_BETWEEN_CHECKS = 16
_DEAD_END = "the grammar allows no token here: the vocabulary cannot spell what must follow"


@dataclass(frozen=True)
class BackendFills:
    """What the fills of one backend have taken.

    Attributes:
        rows: how many rows it has filled.
        seconds: how long that took, by the clock.
    """

    rows: int = 0
    seconds: float = 0.0


class MaskFiller:
    """Fills the masks of decoding steps, in a ring of buffers.

    Args:
        backend: returns the backend of a name.
        vocab_size: V, the number of tokens that a mask covers.
        num_buffers: the number of buffers in the ring.
        slow_seconds: once a step takes longer, the next one fills each request alone,
            until no mask takes that long. A busy machine makes steps longer too, so
            there are ``_STEPS_BETWEEN_CHECKS`` steps between two such checks.

    Attributes:
        seconds_alone: by request id, the CPU seconds per mask of those requests that
            the last step filled alone. A busy machine makes none of them longer.
        work: what the masks of the last step took within it, in steps of the engine's
            work; see :mod:`structout.scheduler.late_masks`.
        exhausted: the requests of the last step whose masks take more work than a
            request may take.
        seconds: the durations of the last 1,024 steps.
        fills: by backend name, what its fills have taken since the start.
        num_rows_filled: the number of rows filled since the start.
    """

    def __init__(
        self,
        backend: Callable[[str], StructuredOutputBackend],
        vocab_size: int,
        num_buffers: int,
        slow_seconds: float = float("inf"),
    ):
        self._backend = backend
        self._vocab_size = vocab_size
        self._buffers = BufferRing(num_buffers, vocab_size)
        self._slow_seconds = slow_seconds
        self._fills_alone = False
        self._steps_until_check = 0
        self._row_cpu_seconds: dict[int, float] = {}  # of the rows that this step has filled alone
        self.seconds_alone: dict[str, float] = {}
        self.work = 0
        self.exhausted: list[str] = []
        self.seconds: deque[float] = deque(maxlen=1024)
        self.fills: dict[str, BackendFills] = {}
        self.num_rows_filled = 0

    def fill(
        self,
        request_ids: Sequence[str],
        requests: RequestTable,
        drafts: Drafts | None,
        bounds: Bounds | None,
        trees: Trees | None,
        strict: bool = True,
        wait: bool = True,
    ) -> MaskBatch:
        """Fill one step's masks; see ``StructuredOutputManager.grammar_bitmask``."""
        _check_ids(request_ids, requests, strict)
        start = time.perf_counter()
        names = tuple(request_ids)
        self.exhausted = []
        step = None if bounds or trees else self._plan_at_once(names, requests, drafts)
        batch = (
            self._fill_at_once(names, step, requests, wait)
            if step is not None
            else self._fill_planned(names, _planned(names, requests, drafts, bounds, trees))
        )
        self.seconds.append(time.perf_counter() - start)
        self.num_rows_filled += len(batch.bitmask)
        return batch

    def fill_pooled(
        self,
        request_ids: Sequence[str],
        requests: RequestTable,
        drafts: Drafts | None,
        deduplicator: MaskDeduplicator,
        strict: bool,
    ) -> PooledMaskBatch | None:
        """Name a step's masks by their slots, and fill only those that the pools do not
        hold. None if the step's masks have no numbers to know them by."""
        _check_ids(request_ids, requests, strict)
        started = time.perf_counter()
        names = tuple(request_ids)
        self.exhausted = []
        step = self._plan_at_once(names, requests, drafts)
        if step is None:
            return None
        plan = step.plan

        def fill(rows: list[int]) -> npt.NDArray[np.int32]:
            masks = allocate_token_bitmask(len(rows), self._vocab_size, pin_memory=False)
            plan.fill(masks, rows)
            return masks.numpy()

        rows = MaskRows(request_ids=names, row_indptr=plan.row_indptr, num_acceptable_drafts=plan.num_allowed)
        pooled = deduplicator.deduplicate_by_key(rows, plan.distinct_masks(), fill)
        dead_ends = _owners_at_start(names, pooled.row_indptr, deduplicator.empty_rows(pooled).tolist())
        if dead_ends:
            pooled = replace(pooled, errors=step.errors(dead_ends))
        self._note_step(step, started)
        return pooled

    def _plan_at_once(
        self, request_ids: Sequence[str], requests: RequestTable, drafts: Drafts | None
    ) -> "_StepAtOnce | None":
        """Plan the step in one native call, if all its requests are READY and their
        grammars have such a call in common. Otherwise return None."""
        if self._fills_alone:
            return None
        members = [*map(requests.by_id.get, request_ids)]
        grammars = [request.grammar for request in members if request is not None and request.grammar is not None]
        if len(grammars) < len(members) or (grammar_class := batch_class(grammars)) is None:
            return None
        assert members[0] is not None  # as many grammars as members
        # What is wrong with drafts fails their own request, when it is filled alone.
        with suppress(Exception):
            plan = grammar_class.plan_step(grammars, [*map(drafts.get, request_ids)] if drafts else None)
            return _StepAtOnce(plan, members[0].backend_name, request_ids, grammars)
        return None

    def _fill_at_once(
        self, request_ids: tuple[str, ...], step: "_StepAtOnce", requests: RequestTable, wait: bool
    ) -> MaskBatch:
        started = time.perf_counter()
        plan = step.plan
        buffer = self._buffers.next_rows(plan.num_rows)
        empty_rows, unfinished, self.work = plan.fill_within(buffer, STEP_WORK)
        self._note_step(step, started)
        left = []
        for index in unfinished:
            request, first_row = requests.get(request_ids[index]), int(plan.row_indptr[index])
            if request is None:  # finished by another thread meanwhile
                empty_rows.append(first_row)
            elif not wait and request.finished_position != step.grammars[index].num_tokens:
                left.append(request_ids[index])
            elif not finish_rows(plan, buffer, index, request):
                self.exhausted.append(request_ids[index])
            elif not buffer[first_row].any():
                empty_rows.append(first_row)
        errors = step.errors(_owners_at_start(request_ids, plan.row_indptr, empty_rows))
        errors |= dict.fromkeys(self.exhausted, EXHAUSTED)
        return self._batch(request_ids, buffer, plan.row_indptr, plan.num_allowed, errors, tuple(left))

    def _note_step(self, step: "_StepAtOnce", started: float) -> None:
        seconds = time.perf_counter() - started
        self._note_fill(step.backend_name, step.plan.num_rows, seconds)
        self._choose_next_way(seconds)
        self.seconds_alone = {}

    def _fill_planned(self, request_ids: tuple[str, ...], plan: "_Plan") -> MaskBatch:
        buffer = self._buffers.next_rows(plan.num_rows)
        row_errors = plan.row_errors | self._fill_rows(plan, buffer)
        bitmask = buffer.numpy()
        if row_errors:
            bitmask[list(row_errors)] = 0
        row_indptr = np.array(plan.row_indptr, dtype=np.int32)
        self.seconds_alone = {
            request_ids[_owner(row, row_indptr)]: seconds for row, seconds in self._row_cpu_seconds.items()
        }
        num_acceptable = np.zeros(len(request_ids), dtype=np.int32)
        for drafted in plan.drafted:
            num_acceptable[drafted.index] = drafted.num_acceptable
        errors = {request_ids[_owner(row, row_indptr)]: error for row, error in row_errors.items()}
        empty_rows = [row for row in _empty_rows(bitmask) if row not in row_errors]
        for name, row in _owners_at_start(request_ids, row_indptr, empty_rows).items():
            errors.setdefault(name, plan.empty_row_error(row))
        return self._batch(request_ids, buffer, row_indptr, num_acceptable, errors)

    def _batch(
        self,
        request_ids: tuple[str, ...],
        buffer: torch.Tensor,
        row_indptr: npt.NDArray[np.int32],
        num_acceptable: npt.NDArray[np.int32],
        errors: Mapping[str, str],
        unfinished: tuple[str, ...] = (),
    ) -> MaskBatch:
        return MaskBatch(
            request_ids=request_ids,
            row_indptr=row_indptr,
            errors=errors,
            num_acceptable_drafts=num_acceptable,
            unfinished=unfinished,
            bitmask=buffer.numpy(),
            lease=self._buffers.lease,
        )

    def _fill_rows(self, plan: "_Plan", bitmask: torch.Tensor) -> _RowErrors:
        row_errors: _RowErrors = {}
        self._row_cpu_seconds = {}
        started = time.perf_counter()
        for name, (grammars, rows) in plan.plain.items():
            with self._timed(name, len(rows)):
                row_errors |= self._fill_plain(name, grammars, rows, bitmask)
        for name, drafted in plan.drafted_by_backend().items():
            with self._timed(name, sum(request.num_rows for request in drafted)):
                row_errors |= self._fill_drafted(name, drafted, bitmask)
        self._choose_next_way(time.perf_counter() - started)
        return row_errors

    @contextmanager
    def _timed(self, backend_name: str, num_rows: int) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._note_fill(backend_name, num_rows, time.perf_counter() - started)

    def _note_fill(self, backend_name: str, num_rows: int, seconds: float) -> None:
        before = self.fills.get(backend_name, BackendFills())
        self.fills[backend_name] = BackendFills(before.rows + num_rows, before.seconds + seconds)

    def _choose_next_way(self, step_seconds: float) -> None:
        """Decide whether the next step fills each request alone."""
        if self._fills_alone:
            self._fills_alone = max(self._row_cpu_seconds.values(), default=0.0) > self._slow_seconds
            self._steps_until_check = _STEPS_BETWEEN_CHECKS
        elif self._steps_until_check > 0:
            self._steps_until_check -= 1
        else:
            self._fills_alone = step_seconds > self._slow_seconds

    def _fill_plain(
        self, name: str, grammars: Sequence[StructuredOutputGrammar], rows: Sequence[int], bitmask: torch.Tensor
    ) -> _RowErrors:
        if not self._fills_alone:
            # After an error of a native library each row is filled alone, to find the
            # bad ones.
            with suppress(Exception):
                self._backend(name).fill_bitmask_batch(grammars, bitmask, rows)
                return {}
        row_errors: _RowErrors = {}
        for grammar, row in zip(grammars, rows, strict=True):
            started = time.thread_time()
            try:
                grammar.fill_bitmask(bitmask, row)
            except Exception as error:
                row_errors[row] = str(error)
            self._row_cpu_seconds[row] = time.thread_time() - started
        return row_errors

    def _fill_drafted(self, name: str, drafted: "Sequence[_Drafted]", bitmask: torch.Tensor) -> _RowErrors:
        chains = [] if self._fills_alone else [request for request in drafted if request.is_chain]
        alone = drafted
        with suppress(Exception):  # as in _fill_plain
            nums_allowed = self._backend(name).fill_bitmask_drafts_batch(
                [request.grammar.unwrapped for request in chains],
                bitmask,
                [request.first_row + request.grammar_start for request in chains],
                [request.tokens[request.grammar_start :] for request in chains],
            )
            for request, num_allowed in zip(chains, nums_allowed, strict=True):
                request.finish_chain(bitmask, num_allowed)
            alone = drafted if self._fills_alone else [request for request in drafted if not request.is_chain]
        row_errors: _RowErrors = {}
        for request in alone:
            started = time.thread_time()
            try:
                request.fill(bitmask)
            except Exception as error:  # from native code, or about malformed drafts
                rows = range(request.first_row, request.first_row + request.num_rows)
                row_errors |= dict.fromkeys(rows, str(error))
            self._row_cpu_seconds[request.first_row] = (time.thread_time() - started) / request.num_rows
        return row_errors


@dataclass(eq=False)
class _Drafted:
    """A request with drafts or bounds.

    Attributes:
        grammar: the request's grammar.
        backend_name: the backend that compiled it.
        index: the request's index in the step.
        first_row: the first of its rows.
        num_rows: the number of its rows.
        tokens: its drafts.
        bounds: see ``StructuredOutputManager.grammar_bitmask``.
        tree: the same.
        num_acceptable: how many leading drafts the grammar allows, once the rows are
            filled.
    """

    grammar: StructuredOutputGrammar
    backend_name: str
    index: int
    first_row: int
    num_rows: int
    tokens: Sequence[int]
    bounds: tuple[int, int] | None
    tree: tuple[Sequence[int], Sequence[int]] | None
    num_acceptable: int = 0

    @property
    def grammar_start(self) -> int:
        """The index of the first draft that feeds the grammar."""
        return 0 if self.bounds is None else min(self.bounds[0], len(self.tokens))

    @property
    def is_chain(self) -> bool:
        """Whether the backend can fill the rows together with those of others."""
        return self.tree is None and self._has_valid_bounds() and not self.grammar.is_unconstrained()

    def fill(self, bitmask: torch.Tensor) -> None:
        """Fill the request's rows.

        Raises:
            ValueError: the bounds or the tree are malformed.
        """
        tokens = list(self.tokens)
        if self.tree is not None:
            self.num_acceptable = self._fill_tree(bitmask, tokens, *self.tree)
            return
        if not self._has_valid_bounds():
            raise ValueError(f"bounds must not be negative, got {self.bounds}")
        start = self.grammar_start
        self.finish_chain(bitmask, self.grammar.fill_bitmask_drafts(bitmask, self.first_row + start, tokens[start:]))

    def finish_chain(self, bitmask: torch.Tensor, num_allowed: int) -> None:
        """Free the rows before the bounds, once the others are filled."""
        self.num_acceptable = self.grammar_start + num_allowed
        if self.bounds is not None:
            num_free = min(self.num_rows, max(self.bounds))
            bitmask[self.first_row : self.first_row + num_free] = -1

    def _has_valid_bounds(self) -> bool:
        return self.bounds is None or min(self.bounds) >= 0

    def _fill_tree(
        self, bitmask: torch.Tensor, tokens: list[int], next_token: Sequence[int], next_sibling: Sequence[int]
    ) -> int:
        if self.bounds is not None:
            raise ValueError("bounds apply to chains of drafts, got a tree; pass bounds or draft_trees, not both")
        if not len(next_token) == len(next_sibling) == len(tokens):
            raise ValueError(
                f"a tree of {len(tokens)} drafts needs {len(tokens)} entries in next_token and in next_sibling, "
                f"got {len(next_token)} and {len(next_sibling)}"
            )
        return self.grammar.fill_bitmask_tree(bitmask, self.first_row, tokens, next_token, next_sibling)


class _StepAtOnce(NamedTuple):
    """A step whose requests are all of one engine.

    Attributes:
        plan: its rows.
        backend_name: the engine.
        request_ids: the requests.
        grammars: their grammars.
    """

    plan: StepPlan
    backend_name: str
    request_ids: Sequence[str]
    grammars: Sequence[StructuredOutputGrammar]

    def errors(self, dead_ends: Collection[str]) -> dict[str, str]:
        """Why the requests that are at dead ends allow nothing."""
        if not dead_ends:
            return {}
        grammar_of = dict(zip(self.request_ids, self.grammars, strict=True))
        return {request_id: grammar_of[request_id].error_reason or _DEAD_END for request_id in dead_ends}


@dataclass
class _Plan:
    """The rows of a step, in the order of its requests.

    Attributes:
        plain: by backend name, the grammars without drafts and their rows.
        drafted: the requests with drafts or bounds.
        row_errors: the rows of requests that are not ready, and why.
        row_indptr: see :class:`structout.masks.batch.MaskRows`.
        num_rows: the number of rows so far.
    """

    plain: dict[str, tuple[list[StructuredOutputGrammar], list[int]]] = field(default_factory=dict)
    drafted: list[_Drafted] = field(default_factory=list)
    row_errors: _RowErrors = field(default_factory=dict)
    row_indptr: list[int] = field(default_factory=lambda: [0])
    num_rows: int = 0

    def add(self, request: Request | None) -> None:
        """Add a request without drafts; None if the manager does not know it."""
        if request is not None:
            grammar = request.grammar
            if grammar is None:
                self.row_errors[self.num_rows] = _not_ready_error(request)
                self.num_rows += 1
            elif not grammar.is_unconstrained():
                grammars, rows = self.plain.setdefault(request.backend_name, ([], []))
                grammars.append(grammar.unwrapped)
                rows.append(self.num_rows)
                self.num_rows += 1
        self.row_indptr.append(self.num_rows)

    def add_with_drafts(
        self,
        request: Request | None,
        tokens: Sequence[int] | None,
        bounds: tuple[int, int] | None,
        tree: tuple[Sequence[int], Sequence[int]] | None,
    ) -> None:
        """Add a request that may have drafts or bounds."""
        tokens = () if tokens is None else tokens
        num_rows = max(1, len(tokens) if tree is not None else len(tokens) + 1)
        grammar = None if request is None else request.grammar
        if request is None or (len(tokens) == 0 and bounds is None):
            self.add(request)
        elif grammar is None:
            rows = range(self.num_rows, self.num_rows + num_rows)
            self.row_errors |= dict.fromkeys(rows, _not_ready_error(request))
            self._append_rows(num_rows)
        elif grammar.is_terminated():
            self._append_rows(0)
        else:
            index = len(self.row_indptr) - 1
            tree = tree if len(tokens) else None
            drafted = _Drafted(grammar, request.backend_name, index, self.num_rows, num_rows, tokens, bounds, tree)
            self.drafted.append(drafted)
            self._append_rows(num_rows)

    def drafted_by_backend(self) -> dict[str, list[_Drafted]]:
        by_backend: dict[str, list[_Drafted]] = {}
        for request in self.drafted:
            by_backend.setdefault(request.backend_name, []).append(request)
        return by_backend

    def empty_row_error(self, row: int) -> str:
        """Why the grammar of a filled row allows nothing."""
        for grammars, rows in self.plain.values():
            if row in rows:
                return grammars[rows.index(row)].error_reason or _DEAD_END
        return _DEAD_END

    def _append_rows(self, num_rows: int) -> None:
        self.num_rows += num_rows
        self.row_indptr.append(self.num_rows)


def _check_ids(request_ids: Sequence[str], requests: RequestTable, strict: bool) -> None:
    if len(set(request_ids)) < len(request_ids):
        repeated = next(name for name in request_ids if list(request_ids).count(name) > 1)
        raise ValueError(f"request_ids must be unique, got {repeated!r} more than once")
    if strict:
        check_known(request_ids, requests.by_id)


def _planned(
    request_ids: Sequence[str],
    requests: RequestTable,
    drafts: Drafts | None,
    bounds: Bounds | None,
    trees: Trees | None,
) -> _Plan:
    plan = _Plan()
    if drafts or bounds or trees:
        for request_id in request_ids:
            tokens = drafts.get(request_id) if drafts else None
            bound = bounds.get(request_id) if bounds else None
            tree = trees.get(request_id) if trees else None
            plan.add_with_drafts(requests.get(request_id), tokens, bound, tree)
    else:
        for request in map(requests.by_id.get, request_ids):
            plan.add(request)
    return plan


def _owners_at_start(
    request_ids: Sequence[str], row_indptr: npt.NDArray[np.int32], rows: Iterable[int]
) -> dict[str, int]:
    """The requests whose first row is one of ``rows``, with that row. A dead end after
    a draft only means that the draft is bad."""
    owners = ((_owner(row, row_indptr), row) for row in rows)
    return {request_ids[index]: row for index, row in owners if row == row_indptr[index]}


def _owner(row: int, row_indptr: npt.NDArray[np.int32]) -> int:
    """The index of the request that owns a row."""
    return int(np.searchsorted(row_indptr, row, side="right")) - 1


def _not_ready_error(request: Request) -> str:
    return str(request.error or "scheduled before its grammar was ready")


def _empty_rows(bitmask: npt.NDArray[np.int32]) -> list[int]:
    """The rows that allow nothing. Common tokens have low ids, so the first words rule
    out nearly all other rows."""
    candidates = np.flatnonzero(bitmask[:, :_NUM_SCANNED_WORDS].view(np.uint32).max(axis=1, initial=0) == 0)
    return [row for row in candidates.tolist() if not bitmask[row].any()]
