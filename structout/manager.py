"""StructuredOutputManager: the scheduler's half of a structured request, from its constraint to its last token."""

import enum
import heapq
import threading
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from structout.bitmask import allocate_token_bitmask
from structout.errors import DuplicateRequestError, GrammarError, UnknownRequestError
from structout.grammar.interface import StructuredOutputGrammar
from structout.grammar.vocabulary import Vocabulary
from structout.grammar.xgrammar_backend import XgrammarBackend
from structout.mask_batch import MaskBatch
from structout.params import StructuredOutputsParams


class GrammarStatus(enum.Enum):
    WAITING = "waiting"  # its grammar is being compiled: the scheduler passes it over
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True)
class StructuredOutputsConfig:
    """
    Attributes:
        compile_workers: constraints compiled at the same time.
        cache_bytes: bound on the cache of compiled grammars.
        num_mask_buffers: calls of ``grammar_bitmask`` until a MaskBatch's memory is used again. 2 lets one step be
            copied to the device while the next one is filled.
        any_whitespace: whether generated JSON may have whitespace anywhere between its tokens.
    """

    compile_workers: int = 2
    cache_bytes: int = 256 << 20
    num_mask_buffers: int = 2
    any_whitespace: bool = True


@dataclass(eq=False)
class _Request:
    request_id: str
    slot: int
    status: GrammarStatus = GrammarStatus.WAITING
    grammar: StructuredOutputGrammar | None = None
    error: GrammarError | None = None
    compilation: Future[None] | None = None


class StructuredOutputManager:
    """
    Args:
        tokenizer: a Hugging Face tokenizer.
        vocab_size: the width of the model's lm_head, padding included.
        config: see :class:`StructuredOutputsConfig`.

    ``add_request``, ``status``, ``error``, ``poll_ready``, ``wait_ready`` and ``finish_request`` may be called from any
    thread; ``grammar_bitmask`` and ``accept_tokens`` belong to the one thread that schedules. A bad constraint fails
    its own request; no other request waits for a compilation.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, config: StructuredOutputsConfig | None = None):
        self.config = config or StructuredOutputsConfig()
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer, vocab_size)
        self._backend = XgrammarBackend(
            self.vocabulary, any_whitespace=self.config.any_whitespace, cache_bytes=self.config.cache_bytes
        )
        self._compilers = ThreadPoolExecutor(self.config.compile_workers, thread_name_prefix="structout-compile")
        self._requests: dict[str, _Request] = {}
        self._newly_ready: deque[str] = deque()
        self._changed = threading.Condition()  # guards the three above and the slots
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
        """
        with self._changed:
            if request_id in self._requests:
                raise DuplicateRequestError(f"request {request_id!r} is already with the manager", request_id)
            request = _Request(request_id, self._take_slot())
            self._requests[request_id] = request
            request.compilation = self._compilers.submit(
                self._compile, request, params, stop_token_ids, list(output_token_ids)
            )
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
            ready = [request_id for request_id in self._newly_ready if request_id in self._requests]
            self._newly_ready.clear()
        return ready

    def wait_ready(self, request_id: str, timeout: float | None = None) -> None:
        """Block until the request is READY.

        Raises:
            GrammarError: its constraint failed.
            TimeoutError: not ready after ``timeout`` seconds; it goes on compiling.
        """
        request = self._known(request_id)
        with self._changed:
            if not self._changed.wait_for(lambda: request.status is not GrammarStatus.WAITING, timeout):
                raise TimeoutError(f"request {request_id!r} is still compiling after {timeout} s")
        if request.error is not None:
            raise request.error

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
            heapq.heappush(self._free_slots, request.slot)
        if request.compilation is not None:
            request.compilation.cancel()

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
        """Advance by all of ``token_ids``; if one is not allowed, by none and return False. True after termination."""
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
        """Stop compiling and let go of everything. Compilations under way end in the background."""
        self._compilers.shutdown(wait=False, cancel_futures=True)
        with self._changed:
            self._requests.clear()
        self._backend.destroy()

    def __enter__(self) -> "StructuredOutputManager":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _compile(
        self,
        request: _Request,
        params: StructuredOutputsParams,
        stop_token_ids: Sequence[int] | None,
        output_token_ids: list[int],
    ) -> None:
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
            if error is None:
                request.grammar, request.status = grammar, GrammarStatus.READY
            else:
                request.error, request.status = error, GrammarStatus.FAILED
            self._newly_ready.append(request.request_id)
            self._changed.notify_all()

    def _check_stop_tokens(self, stop_token_ids: Sequence[int] | None) -> None:
        bad = [token for token in stop_token_ids or () if not 0 <= token < self.vocabulary.size]
        if bad:
            raise GrammarError(f"stop_token_ids must be in [0, {self.vocabulary.size}), got {bad}")

    def _known(self, request_id: str) -> _Request:
        request = self._requests.get(request_id)
        if request is None:
            raise UnknownRequestError(f"request {request_id!r} is not with the manager", request_id)
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
