"""The masks of one decoding step: which rows there are, and who fills them."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from structout.grammar.interface import StructuredOutputBackend, StructuredOutputGrammar
from structout.mask_batch import MaskBatch
from structout.mask_buffers import BufferRing
from structout.scheduler.requests import Request, RequestTable

Drafts = Mapping[str, Sequence[int]]
Bounds = Mapping[str, tuple[int, int]]
Trees = Mapping[str, tuple[Sequence[int], Sequence[int]]]

_Problems = dict[int, str]  # rows that cannot be filled, and why
_Task = Callable[[], _Problems]

_WORTH_SHARING_SECONDS = 5e-4
_NEW_STEP_WEIGHT = 0.2  # in the running mean of a row's seconds
_FIRST_WORDS = 64
_NO_WAY_ON = "the grammar allows no token here: the vocabulary cannot spell what must follow"


class MaskFiller:
    """Fills a ring of buffers, each used again after ``num_buffers`` steps.

    Args:
        backend: from a backend's name to the backend.
        vocab_size: of the model, in tokens.
        num_buffers: of the ring.
        num_threads: that share a step which would take one of them more than half a millisecond.
    """

    def __init__(
        self,
        backend: Callable[[str], StructuredOutputBackend],
        vocab_size: int,
        num_buffers: int,
        num_threads: int,
    ):
        self._backend = backend
        self._num_threads = num_threads
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="structout-fill")
        self._row_seconds = 0.0  # what a row took of one thread, in the last steps
        self._buffers = BufferRing(num_buffers, vocab_size)
        self.seconds: deque[float] = deque(maxlen=1024)  # that the last steps took
        self.num_rows_filled = 0

    def fill(
        self,
        request_ids: Sequence[str],
        requests: RequestTable,
        drafts: Drafts | None,
        bounds: Bounds | None,
        trees: Trees | None,
    ) -> MaskBatch:
        """See ``StructuredOutputManager.grammar_bitmask``."""
        if len(set(request_ids)) < len(request_ids):
            twice = next(name for name in request_ids if list(request_ids).count(name) > 1)
            raise ValueError(f"request_ids has {twice!r} more than once")
        start = time.perf_counter()
        plan = _Plan()
        if drafts or bounds or trees:
            for request_id in request_ids:
                tokens = drafts.get(request_id) if drafts else None
                bound = bounds.get(request_id) if bounds else None
                tree = trees.get(request_id) if trees else None
                plan.add_with_drafts(requests.get(request_id), tokens, bound, tree)
        else:
            for request_id in request_ids:
                plan.add(requests.get(request_id))
        batch = self._run(plan, tuple(request_ids))
        self.seconds.append(time.perf_counter() - start)
        self.num_rows_filled += len(batch.bitmask)
        return batch

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    def _run(self, plan: "_Plan", request_ids: tuple[str, ...]) -> MaskBatch:
        buffer = self._buffers.next_rows(plan.num_rows)
        closed = plan.closed | self._share(self._tasks(plan, buffer), plan.num_rows)
        bitmask = buffer.numpy()
        bitmask[list(closed)] = 0
        row_indptr = np.array(plan.row_indptr, dtype=np.int32)
        errors: dict[str, str] = {}
        for row in _empty_rows(bitmask):
            owner = int(np.searchsorted(row_indptr, row, side="right")) - 1
            if row in closed:
                errors[request_ids[owner]] = closed[row]
            elif row == row_indptr[owner]:  # a dead end behind a draft is for the sampler to avoid
                errors[request_ids[owner]] = plan.reason_of_empty_row(row)
        num_acceptable = np.zeros(len(request_ids), dtype=np.int32)
        for drafted in plan.drafted:
            num_acceptable[drafted.index] = drafted.num_acceptable
        return MaskBatch(
            request_ids=request_ids,
            row_indptr=row_indptr,
            errors=errors,
            num_acceptable_drafts=num_acceptable,
            bitmask=bitmask,
        )

    def _tasks(self, plan: "_Plan", bitmask: torch.Tensor) -> list[_Task]:
        """The step in parts, in any order. Rows differ a hundredfold in cost, so there are more parts than threads."""
        is_short = plan.num_rows * self._row_seconds < _WORTH_SHARING_SECONDS
        num_parts = 1 if is_short or self._num_threads == 1 else 4 * self._num_threads
        tasks: list[_Task] = []
        for name, (grammars, rows) in plan.plain.items():
            for part in _parts(len(rows), num_parts):
                tasks.append(partial(self._fill_plain, name, grammars[part], rows[part], bitmask))
        for part in _parts(len(plan.drafted), num_parts):
            tasks.append(partial(_fill_drafted, plan.drafted[part], bitmask))
        return tasks

    def _share(self, tasks: Sequence[_Task], num_rows: int) -> _Problems:
        """The native fills let go of Python's lock, so threads do run side by side."""
        run = map if len(tasks) == 1 else self._threads.map
        problems: _Problems = {}
        seconds = 0.0
        for of_task, problems_of_task in run(_timed, tasks):
            seconds += of_task
            problems |= problems_of_task
        if num_rows:
            self._row_seconds += _NEW_STEP_WEIGHT * (seconds / num_rows - self._row_seconds)
        return problems

    def _fill_plain(
        self, name: str, grammars: Sequence[StructuredOutputGrammar], rows: Sequence[int], bitmask: torch.Tensor
    ) -> _Problems:
        try:
            self._backend(name).fill_bitmask_batch(grammars, bitmask, rows)
            return {}
        except Exception:  # whatever a native library throws: find the row it is about, and serve the others
            problems: _Problems = {}
            for grammar, row in zip(grammars, rows, strict=True):
                try:
                    grammar.fill_bitmask(bitmask, row)
                except Exception as problem:
                    problems[row] = str(problem)
            return problems


@dataclass
class _Drafted:
    """One request with drafts, or with bounds.

    Attributes:
        index: of the request in the step.
        num_acceptable: how many drafts the grammar allows, once its rows are filled.
    """

    grammar: StructuredOutputGrammar
    index: int
    first_row: int
    num_rows: int
    tokens: Sequence[int]
    bounds: tuple[int, int] | None
    tree: tuple[Sequence[int], Sequence[int]] | None
    num_acceptable: int = 0

    def fill(self, bitmask: torch.Tensor) -> int:
        tokens = list(self.tokens)
        if self.tree is not None:
            return self._fill_tree(bitmask, tokens, *self.tree)
        if self.bounds is None:
            return self.grammar.fill_bitmask_drafts(bitmask, self.first_row, tokens)
        grammar_start, constraint_start = self.bounds
        if not 0 <= grammar_start <= len(tokens) or constraint_start < 0:
            raise ValueError(f"bounds must lie in [0, {len(tokens)}], got {self.bounds}")
        num_allowed = self.grammar.fill_bitmask_drafts(bitmask, self.first_row + grammar_start, tokens[grammar_start:])
        num_free = min(self.num_rows, max(grammar_start, constraint_start))
        bitmask[self.first_row : self.first_row + num_free] = -1
        return grammar_start + num_allowed

    def _fill_tree(
        self, bitmask: torch.Tensor, tokens: list[int], next_token: Sequence[int], next_sibling: Sequence[int]
    ) -> int:
        if self.bounds is not None:
            raise ValueError("bounds go with chains of drafts, not with trees")
        if not len(next_token) == len(next_sibling) == len(tokens):
            raise ValueError(
                f"a tree of {len(tokens)} drafts needs as many next_token and next_sibling, "
                f"got {len(next_token)} and {len(next_sibling)}"
            )
        return self.grammar.fill_bitmask_tree(bitmask, self.first_row, tokens, next_token, next_sibling)


@dataclass
class _Plan:
    """Which rows a step has, in the order of its requests.

    Attributes:
        plain: from a backend's name to grammars and the rows of their masks.
        drafted: requests with more than one row.
        closed: rows that allow nothing, and why.
    """

    plain: dict[str, tuple[list[StructuredOutputGrammar], list[int]]] = field(default_factory=dict)
    drafted: list[_Drafted] = field(default_factory=list)
    closed: _Problems = field(default_factory=dict)
    row_indptr: list[int] = field(default_factory=lambda: [0])
    num_rows: int = 0

    def add(self, request: Request | None) -> None:
        """A request without drafts."""
        if request is not None:
            grammar = request.grammar
            if grammar is None:
                self.closed[self.num_rows] = _why_not_ready(request)
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
        tokens = () if tokens is None else tokens
        num_rows = max(1, len(tokens) if tree is not None else len(tokens) + 1)
        grammar = None if request is None else request.grammar
        if request is None or (len(tokens) == 0 and bounds is None):
            self.add(request)
        elif grammar is None:
            self.closed |= dict.fromkeys(range(self.num_rows, self.num_rows + num_rows), _why_not_ready(request))
            self._take(num_rows)
        elif grammar.is_terminated():
            self._take(0)
        else:
            index = len(self.row_indptr) - 1
            tree = tree if len(tokens) else None
            self.drafted.append(_Drafted(grammar, index, self.num_rows, num_rows, tokens, bounds, tree))
            self._take(num_rows)

    def reason_of_empty_row(self, row: int) -> str:
        for grammars, rows in self.plain.values():
            if row in rows:
                return grammars[rows.index(row)].error_reason or _NO_WAY_ON
        return _NO_WAY_ON

    def _take(self, num_rows: int) -> None:
        self.num_rows += num_rows
        self.row_indptr.append(self.num_rows)


def _fill_drafted(drafted: Sequence[_Drafted], bitmask: torch.Tensor) -> _Problems:
    problems: _Problems = {}
    for each in drafted:
        try:
            each.num_acceptable = each.fill(bitmask)
        except Exception as problem:  # from native code, or from what an engine handed over
            problems |= dict.fromkeys(range(each.first_row, each.first_row + each.num_rows), str(problem))
    return problems


def _why_not_ready(request: Request) -> str:
    return str(request.error or "scheduled before its grammar was ready")


def _empty_rows(bitmask: npt.NDArray[np.int32]) -> list[int]:
    """Rows that allow nothing. Ids are low for common tokens, so that nearly all other rows show it in a few words."""
    suspects = np.flatnonzero(bitmask[:, :_FIRST_WORDS].view(np.uint32).max(axis=1, initial=0) == 0)
    return [row for row in suspects.tolist() if not bitmask[row].any()]


def _timed(task: _Task) -> tuple[float, _Problems]:
    start = time.perf_counter()
    problems = task()
    return time.perf_counter() - start, problems


def _parts(count: int, num_parts: int) -> list[slice]:
    """``range(count)`` in up to ``num_parts`` parts of about the same length, none of them empty."""
    size = max(1, -(-count // num_parts))
    return [slice(begin, begin + size) for begin in range(0, count, size)]
