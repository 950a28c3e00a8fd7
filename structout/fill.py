"""The masks of one decoding step: which rows there are, and one native call to fill them."""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from structout.bitmask import allocate_token_bitmask
from structout.grammar.interface import StructuredOutputBackend, StructuredOutputGrammar
from structout.mask_batch import MaskBatch
from structout.request import Request

Drafts = Mapping[str, Sequence[int]]
Bounds = Mapping[str, tuple[int, int]]
Trees = Mapping[str, tuple[Sequence[int], Sequence[int]]]

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
        self._vocab_size = vocab_size
        self._num_threads = num_threads
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="structout-fill")
        self._row_seconds = 0.0  # what a row took of one thread, in the last steps
        self._buffers = deque(allocate_token_bitmask(0, vocab_size) for _ in range(num_buffers))
        self.seconds: deque[float] = deque(maxlen=1024)  # that the last steps took
        self.num_rows_filled = 0

    def fill(
        self,
        request_ids: Sequence[str],
        requests: Mapping[str, Request],
        drafts: Drafts | None,
        bounds: Bounds | None,
        trees: Trees | None,
    ) -> MaskBatch:
        """See ``StructuredOutputManager.grammar_bitmask``."""
        start = time.perf_counter()
        step = _Step(len(request_ids))
        for request_id in request_ids:
            request = requests.get(request_id)
            tokens = drafts.get(request_id, ()) if drafts else ()
            tree = trees.get(request_id) if trees else None
            bound = bounds.get(request_id) if bounds else None
            if request is None:
                step.skip()
            elif request.grammar is None:
                why = str(request.error or "scheduled before its grammar was ready")
                step.close(len(tokens) + (tree is None), why)
            elif request.grammar.is_terminated():
                step.skip()
            elif tokens or bound:
                step.speculate(request, tokens, bound, tree)
            elif request.grammar.is_unconstrained():
                step.skip()
            else:
                step.add(request)
        batch = self._run(step, tuple(request_ids))
        self.seconds.append(time.perf_counter() - start)
        self.num_rows_filled += len(batch.bitmask)
        return batch

    def _run(self, step: "_Step", request_ids: tuple[str, ...]) -> MaskBatch:
        buffer = self._next_buffer(step.num_rows)
        self._share(step.tasks(self._backend, buffer, self._num_tasks(step.num_rows)), step.num_rows)
        bitmask = buffer.numpy()[: step.num_rows]
        bitmask[list(step.closed_rows)] = 0
        row_indptr = np.array(step.row_indptr, dtype=np.int32)
        errors: dict[str, str] = {}
        for row in _empty_rows(bitmask):
            owner = request_ids[int(np.searchsorted(row_indptr, row, side="right")) - 1]
            errors.setdefault(owner, step.closed_rows.get(row, _NO_WAY_ON))
        return MaskBatch(request_ids, bitmask, row_indptr, errors, step.num_acceptable)

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    def _num_tasks(self, num_rows: int) -> int:
        """Rows differ a hundredfold in cost, so there are more tasks than threads."""
        is_short = num_rows * self._row_seconds < _WORTH_SHARING_SECONDS
        return 1 if is_short or self._num_threads == 1 else min(num_rows, 4 * self._num_threads)

    def _share(self, tasks: Sequence[Callable[[], None]], num_rows: int) -> None:
        """The native fills let go of Python's lock, so threads do run side by side."""
        run = map if len(tasks) == 1 else self._threads.map
        seconds = sum(run(_seconds_of, tasks))
        if num_rows:
            self._row_seconds += _NEW_STEP_WEIGHT * (seconds / num_rows - self._row_seconds)

    def _next_buffer(self, num_rows: int) -> torch.Tensor:
        buffer = self._buffers.popleft()
        if buffer.shape[0] < num_rows:
            with torch.inference_mode(False):  # the threads that fill it are not in whatever mode the caller is in
                buffer = allocate_token_bitmask(max(num_rows, 2 * buffer.shape[0]), self._vocab_size)
        self._buffers.append(buffer)
        return buffer


def _empty_rows(bitmask: npt.NDArray[np.int32]) -> list[int]:
    """Rows that allow nothing. Ids are low for common tokens, so that nearly all other rows show it in a few words."""
    suspects = np.flatnonzero(bitmask[:, :_FIRST_WORDS].view(np.uint32).max(axis=1, initial=0) == 0)
    return [row for row in suspects.tolist() if not bitmask[row].any()]


def _seconds_of(task: Callable[[], None]) -> float:
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


class _Speculation:
    """The rows of one request with drafts."""

    def __init__(
        self,
        grammar: StructuredOutputGrammar,
        index: int,
        first_row: int,
        tokens: Sequence[int],
        bounds: tuple[int, int] | None,
        tree: tuple[Sequence[int], Sequence[int]] | None,
    ):
        self.grammar = grammar
        self.index = index
        self.first_row = first_row
        self.tokens = tokens
        self.bounds = bounds
        self.tree = tree
        self.num_rows = len(tokens) + (tree is None)

    def fill(self, bitmask: torch.Tensor, num_acceptable: npt.NDArray[np.int32]) -> None:
        num_acceptable[self.index] = self._fill(bitmask)

    def _fill(self, bitmask: torch.Tensor) -> int:
        if self.tree is not None:
            next_token, next_sibling = self.tree
            if not len(next_token) == len(next_sibling) == len(self.tokens):
                raise ValueError(
                    f"a tree of {len(self.tokens)} drafts needs as many next_token and next_sibling, "
                    f"got {len(next_token)} and {len(next_sibling)}"
                )
            return self.grammar.fill_bitmask_tree(bitmask, self.first_row, self.tokens, next_token, next_sibling)
        grammar_start, constraint_start = self.bounds or (0, 0)
        if not 0 <= grammar_start <= len(self.tokens) or constraint_start < 0:
            raise ValueError(f"bounds must lie in [0, {len(self.tokens)}], got {self.bounds}")
        num_allowed = self.grammar.fill_bitmask_drafts(
            bitmask, self.first_row + grammar_start, self.tokens[grammar_start:]
        )
        if self.bounds is not None:
            num_free = min(self.num_rows, max(grammar_start, constraint_start))
            bitmask[self.first_row : self.first_row + num_free] = -1
        return grammar_start + num_allowed


class _Step:
    """What one step has to fill."""

    def __init__(self, num_requests: int):
        self.plain: dict[str, tuple[list[StructuredOutputGrammar], list[int]]] = defaultdict(lambda: ([], []))
        self.speculations: list[_Speculation] = []
        self.closed_rows: dict[int, str] = {}  # and why
        self.row_indptr = [0]
        self.num_rows = 0
        self.num_acceptable: npt.NDArray[np.int32] = np.zeros(num_requests, dtype=np.int32)

    def skip(self) -> None:
        self.row_indptr.append(self.num_rows)

    def add(self, request: Request) -> None:
        grammars, rows = self.plain[request.backend_name]
        grammars.append(request.engine)  # type: ignore[arg-type]  # READY requests have one
        rows.append(self.num_rows)
        self._take_rows(1)

    def close(self, num_rows: int, why: str) -> None:
        self.closed_rows |= dict.fromkeys(range(self.num_rows, self.num_rows + num_rows), why)
        self._take_rows(num_rows)

    def tasks(
        self, backend: Callable[[str], StructuredOutputBackend], bitmask: torch.Tensor, num_tasks: int
    ) -> list[Callable[[], None]]:
        """The step in about ``num_tasks`` parts, in any order."""
        tasks: list[Callable[[], None]] = []
        for name, (grammars, rows) in self.plain.items():
            for part in _parts(len(rows), num_tasks):
                tasks.append(partial(self._fill_plain, backend(name), grammars[part], rows[part], bitmask))
        for part in _parts(len(self.speculations), num_tasks):
            tasks.append(partial(self._fill_speculations, self.speculations[part], bitmask))
        return tasks

    def _fill_plain(
        self,
        backend: StructuredOutputBackend,
        grammars: Sequence[StructuredOutputGrammar],
        rows: Sequence[int],
        bitmask: torch.Tensor,
    ) -> None:
        try:
            backend.fill_bitmask_batch(grammars, bitmask, rows)
        except Exception:  # whatever a native library throws: find the row it is about, and serve the others
            for grammar, row in zip(grammars, rows, strict=True):
                self._fill_or_close(row, 1, partial(grammar.fill_bitmask, bitmask, row))

    def _fill_speculations(self, speculations: Sequence[_Speculation], bitmask: torch.Tensor) -> None:
        for speculation in speculations:
            fill = partial(speculation.fill, bitmask, self.num_acceptable)
            self._fill_or_close(speculation.first_row, speculation.num_rows, fill)

    def _fill_or_close(self, first_row: int, num_rows: int, fill: Callable[[], None]) -> None:
        """Rows that cannot be filled allow nothing."""
        try:
            fill()
        except Exception as problem:  # from native code, or from what an engine handed over
            self.closed_rows |= dict.fromkeys(range(first_row, first_row + num_rows), str(problem))

    def speculate(
        self,
        request: Request,
        tokens: Sequence[int],
        bounds: tuple[int, int] | None,
        tree: tuple[Sequence[int], Sequence[int]] | None,
    ) -> None:
        assert request.grammar is not None
        index = len(self.row_indptr) - 1
        self.speculations.append(_Speculation(request.grammar, index, self.num_rows, tokens, bounds, tree))
        self._take_rows(self.speculations[-1].num_rows)

    def _take_rows(self, count: int) -> None:
        self.num_rows += count
        self.row_indptr.append(self.num_rows)


def _parts(count: int, num_parts: int) -> list[slice]:
    """``range(count)`` in up to ``num_parts`` parts of about the same length, none of them empty."""
    size = -(-count // num_parts)
    return [slice(begin, begin + size) for begin in range(0, count, max(1, size))]
