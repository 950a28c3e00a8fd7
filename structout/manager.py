"""StructuredOutputManager: the scheduler's half of a structured request, from its constraint to its last token."""

import enum
import heapq
import threading
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from structout.bitmask import allocate_token_bitmask
from structout.compile_pool import CompilePool
from structout.config import StructuredOutputsConfig
from structout.errors import (
    DuplicateRequestError,
    GrammarError,
    GrammarTimeoutError,
    StructOutError,
    UnknownRequestError,
)
from structout.grammar.interface import StructuredOutputGrammar
from structout.grammar.vocabulary import Vocabulary
from structout.grammar.xgrammar_backend import XgrammarBackend
from structout.mask_batch import MaskBatch
from structout.params import StructuredOutputsParams


class GrammarStatus(enum.Enum):
    WAITING = "waiting"  # its grammar is being compiled: the scheduler passes it over
    READY = "ready"
    FAILED = "failed"


@dataclass(eq=False)
class _Request:
    request_id: str
    status: GrammarStatus = GrammarStatus.WAITING
    slot: int = -1
    grammar: StructuredOutputGrammar | None = None
    error: GrammarError | None = None
    withdrawn: StructOutError | None = None  # what to tell those who still wait: it has left the manager


class StructuredOutputManager:
    """
    Args:
        tokenizer: a Hugging Face tokenizer.
        vocab_size: the width of the model's lm_head, padding included.
        config: see :class:`StructuredOutputsConfig`.

    ``add_request``, ``status``, ``error``, ``poll_ready``, ``wait_ready`` and ``finish_request`` may be called from any
    thread; ``grammar_bitmask`` and ``accept_tokens`` belong to the one thread that schedules. A bad constraint fails
    its own request. No step waits for a compilation, and no request waits for another's as long as fewer than
    ``compile_workers`` slow constraints are being compiled; there is no deadline yet that would end one.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, config: StructuredOutputsConfig | None = None):
        self.config = config or StructuredOutputsConfig()
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer, vocab_size)
        self._backend = XgrammarBackend(
            self.vocabulary, any_whitespace=self.config.any_whitespace, cache_bytes=self.config.cache_bytes
        )
        self._compilers = CompilePool(self.config.compile_workers)
        self._changed = threading.Condition()  # guards what follows, down to the slots
        self._is_closed = False
        self._requests: dict[str, _Request] = {}
        self._newly_ready: dict[str, None] = {}  # an ordered set of ids in _requests
        self._free_slots: list[int] = []
        self._num_slots = 0
        self._buffers = deque(allocate_token_bitmask(0, vocab_size) for _ in range(self.config.num_mask_buffers))

    # -- a request's life ---------------------------------------------------------------------------------------------

    def add_request(
        self,
        request_id: str,
        params: StructuredOutputsParams,
        *,
        stop_token_ids: Sequence[int] | None = None,
        output_token_ids: Sequence[int] = (),
    ) -> GrammarStatus:
        """Start compiling; return at once. A malformed constraint makes the request FAILED, it does not raise.

        Args:
            request_id: unique among the requests that are with the manager.
            params: the constraint.
            stop_token_ids: tokens that end this request's text. Default: the tokenizer's.
            output_token_ids: tokens generated before (a preempted request): the grammar starts after them.

        Raises:
            DuplicateRequestError: the id is in use; that request is untouched.
            StructOutError: the manager is closed.
        """
        stops = None if stop_token_ids is None else list(stop_token_ids)
        request = _Request(request_id)
        compilation = partial(self._compile, request, params, stops, list(output_token_ids))
        with self._changed:
            if self._is_closed:
                raise StructOutError("the manager is closed", request_id)
            if request_id in self._requests:
                raise DuplicateRequestError(f"request {request_id!r} is already with the manager", request_id)
            self._compilers.submit(compilation)  # before the request is known: this may fail for want of a thread
            request.slot = self._take_slot()
            self._requests[request_id] = request
        return request.status

    def status(self, request_id: str) -> GrammarStatus:
        """WAITING, READY or FAILED. Never raises for a failed compilation."""
        return self._known(request_id).status

    def error(self, request_id: str) -> GrammarError | None:
        """Why the request FAILED."""
        return self._known(request_id).error

    def poll_ready(self) -> list[str]:
        """The requests that became READY or FAILED since the last call, in that order. Does not wait."""
        with self._changed:
            ready = list(self._newly_ready)
            self._newly_ready.clear()
        return ready

    def wait_ready(self, request_id: str, timeout: float | None = None) -> None:
        """Block until the request is READY.

        Raises:
            GrammarError: its constraint failed.
            GrammarTimeoutError: not ready after ``timeout`` seconds; it goes on compiling.
            UnknownRequestError: it was finished, before or meanwhile.
            StructOutError: the manager was closed meanwhile.
        """
        with self._changed:
            request = self._known(request_id)
            settled = self._changed.wait_for(
                lambda: request.withdrawn is not None or request.status is not GrammarStatus.WAITING, timeout
            )
            problem = request.withdrawn or request.error
        if not settled:
            raise GrammarTimeoutError(f"request {request_id!r} is still compiling after {timeout} s", request_id)
        if problem is not None:
            raise problem

    def is_terminated(self, request_id: str) -> bool:
        """Whether a stop token has been accepted: the text is complete."""
        grammar = self._known(request_id).grammar
        return grammar is not None and grammar.is_terminated()

    def slot(self, request_id: str) -> int:
        """A small integer that is this request's as long as it lives, for tables on the device."""
        return self._known(request_id).slot

    def finish_request(self, request_id: str) -> None:
        """Forget the request, at any moment, also while it compiles. Unknown ids are fine."""
        with self._changed:
            request = self._requests.pop(request_id, None)
            if request is None:
                return
            request.withdrawn = _unknown(request_id)
            self._newly_ready.pop(request_id, None)
            heapq.heappush(self._free_slots, request.slot)
            self._changed.notify_all()

    # -- a decoding step ----------------------------------------------------------------------------------------------

    def grammar_bitmask(self, request_ids: Sequence[str]) -> MaskBatch:
        """The masks of the next token for the structured requests among ``request_ids``.

        Terminated and unknown requests get no row, so that their logits stay free. A request that is not READY, or that
        has reached a dead end, gets a row that allows nothing and an entry in ``errors``; the others are unaffected.
        """
        grammars: list[StructuredOutputGrammar] = []
        filled_rows: list[int] = []
        closed_rows: list[int] = []
        errors: dict[str, str] = {}
        row_indptr = np.zeros(len(request_ids) + 1, dtype=np.int32)
        owner: list[str] = []
        for i, request_id in enumerate(request_ids):
            request = self._requests.get(request_id)
            if request is not None and request.grammar is None:
                errors[request_id] = str(request.error or "scheduled before its grammar was ready")
                closed_rows.append(len(owner))
                owner.append(request_id)
            elif request is not None and request.grammar is not None and not request.grammar.is_terminated():
                grammars.append(request.grammar)
                filled_rows.append(len(owner))
                owner.append(request_id)
            row_indptr[i + 1] = len(owner)

        buffer = self._next_buffer(len(owner))
        if grammars:
            self._backend.fill_bitmask_batch(grammars, buffer, filled_rows)
        bitmask = buffer.numpy()[: len(owner)]
        bitmask[closed_rows] = 0
        for row in np.flatnonzero(~bitmask.any(axis=1)):
            errors.setdefault(
                owner[row], "the grammar allows no token here: the vocabulary cannot spell what must follow"
            )
        return MaskBatch(tuple(request_ids), bitmask, row_indptr, errors)

    def accept_tokens(self, request_id: str, token_ids: Sequence[int]) -> bool:
        """Advance by all of ``token_ids``; if one is not allowed, by none and return False.

        What is no token at all (-1, an id out of range, None) is not allowed, and never raises. After a stop token, in
        the same call or an earlier one, every token is accepted and none has an effect.
        """
        request = self._known(request_id)
        if request.grammar is None:
            return False
        return request.grammar.accept_tokens(request_id, list(token_ids))

    # -- the manager itself -------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, int]:
        """How many requests are waiting, ready and failed."""
        with self._changed:
            count = Counter(request.status for request in self._requests.values())
        return {status.value: count[status] for status in GrammarStatus}

    def close(self) -> None:
        """Let go of everything, at once: whoever waits is told, and compilations under way end in the background."""
        with self._changed:
            self._is_closed = True
            self._compilers.discard_waiting()
            for request in self._requests.values():
                request.withdrawn = StructOutError("the manager was closed", request.request_id)
            self._requests.clear()
            self._newly_ready.clear()
            self._changed.notify_all()
            self._compilers.submit(self._backend.destroy)

    def __enter__(self) -> "StructuredOutputManager":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _compile(
        self,
        request: _Request,
        params: StructuredOutputsParams,
        stop_token_ids: list[int] | None,
        output_token_ids: list[int],
    ) -> None:
        if request.withdrawn is not None:
            return
        grammar, error = None, None
        try:
            self._check_stop_tokens(stop_token_ids)
            grammar = self._backend.compile_grammar(*params.constraint(), stop_token_ids)
            if not grammar.accept_tokens(request.request_id, output_token_ids):
                raise GrammarError("output_token_ids do not satisfy the constraint")
        except Exception as problem:
            error = problem if isinstance(problem, GrammarError) else GrammarError(f"compilation failed: {problem!r}")
            error.request_id = request.request_id
        with self._changed:
            if request.withdrawn is not None:
                return
            if error is None:
                request.grammar, request.status = grammar, GrammarStatus.READY
            else:
                request.error, request.status = error, GrammarStatus.FAILED
            self._newly_ready[request.request_id] = None
            self._changed.notify_all()

    def _check_stop_tokens(self, stop_token_ids: list[int] | None) -> None:
        if stop_token_ids is None:
            return
        if not stop_token_ids:
            raise GrammarError("stop_token_ids is empty: no text could ever end")
        bad = [token for token in stop_token_ids if not 0 <= token < self.vocabulary.size]
        if bad:
            raise GrammarError(f"stop_token_ids must be in [0, {self.vocabulary.size}), got {bad}")

    def _known(self, request_id: str) -> _Request:
        request = self._requests.get(request_id)
        if request is None:
            raise _unknown(request_id)
        return request

    def _take_slot(self) -> int:
        if self._free_slots:
            return heapq.heappop(self._free_slots)
        self._num_slots += 1
        return self._num_slots - 1

    def _next_buffer(self, num_rows: int) -> Any:
        buffer = self._buffers.popleft()
        if buffer.shape[0] < num_rows:
            buffer = allocate_token_bitmask(max(num_rows, 2 * buffer.shape[0]), self.vocabulary.size)
        self._buffers.append(buffer)
        return buffer


def _unknown(request_id: str) -> UnknownRequestError:
    return UnknownRequestError(f"request {request_id!r} is not with the manager", request_id)
