"""StructuredOutputManager: the scheduler's side of structured output requests."""

import queue
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from structout.config import StructuredOutputsConfig
from structout.errors import CompileCrashError, GrammarError, GrammarErrorKind, GrammarTimeoutError, StructOutError
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.interface import CompiledConstraint, StructuredOutputGrammar
from structout.grammar.reasoning import ReasoningGrammar
from structout.grammar.router import BackendSet
from structout.grammar.vocabulary import Vocabulary, token_id
from structout.mask_batch import MaskBatch
from structout.mask_pool import MaskDeduplicator, MaskPoolStats
from structout.params import Constraint, StructuredOutputsParams
from structout.process_guard import ForkGuard
from structout.scheduler.bitmask_filler import Bounds, Drafts, MaskFiller, Trees
from structout.scheduler.compile_cache import copy_error
from structout.scheduler.compile_service import CompileService, CompileStats
from structout.scheduler.requests import GrammarStatus, Request, RequestTable

_MAX_SLOW_TOKENS = 3


@dataclass(frozen=True)
class ManagerStats:
    """A manager's counters at one moment.

    Attributes:
        waiting: how many requests are WAITING.
        ready: how many requests are READY.
        failed: how many requests have FAILED.
        compilation: see :class:`structout.scheduler.compile_service.CompileStats`.
        rows_filled: how many mask rows have been filled since the start.
        fill_seconds: percentiles 50 and 99 over the last 1,024 calls of
            ``grammar_bitmask``.
        mask_pool: the deduplicator's counters; None without a mask pool.
    """

    waiting: int
    ready: int
    failed: int
    compilation: CompileStats
    rows_filled: int
    fill_seconds: tuple[float, float]
    mask_pool: MaskPoolStats | None


class StructuredOutputManager:
    """Compiles constraints, tracks each request's grammar, and fills the token masks.

    Every method may be called from any thread. Methods that read or advance grammars
    run one at a time. No step waits for a compilation, and a bad constraint fails only
    its own request. After a fork the child process must create its own manager.

    Args:
        tokenizer: a Hugging Face tokenizer.
        vocab_size: V, the width of the model's lm_head, padding included.
        config: see :class:`StructuredOutputsConfig`.

    Attributes:
        deduplicator: the scheduler's side of the workers' MaskPool; None unless
            ``config.mask_pool_capacity`` is set.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, config: StructuredOutputsConfig | None = None):
        self.config = config or StructuredOutputsConfig()
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer, vocab_size)
        self._backends = BackendSet(self.vocabulary, self.config, tokenizer)
        self._compiler: CompileService[Constraint, CompiledConstraint] = CompileService(self._compile, self.config)
        self._filler = MaskFiller(
            self._backends.backend,
            vocab_size,
            self.config.num_mask_buffers,
            self.config.slow_token_seconds,
        )
        capacity = self.config.mask_pool_capacity
        self.deduplicator = MaskDeduplicator(capacity, vocab_size) if capacity else None
        self._fork_guard = ForkGuard("StructuredOutputManager")
        # Held while grammars are read or advanced; taken before the table's own lock,
        # never after.
        self._grammar_lock = threading.RLock()
        self._requests = RequestTable()

    # -- the life of a request ---------------------------------------------------------

    def add_request(
        self,
        request_id: str,
        params: StructuredOutputsParams,
        *,
        stop_token_ids: Sequence[int] | None = None,
        output_token_ids: Sequence[int] = (),
        constrain_after: Sequence[int] | None = None,
        tenant: str = "",
    ) -> GrammarStatus:
        """Start compiling the request's constraint, and return without waiting.

        Args:
            request_id: unique among the manager's requests.
            params: the constraint.
            stop_token_ids: the tokens that end this request's text. Default: the
                tokenizer's.
            output_token_ids: tokens generated earlier, for a preempted request. The
                grammar starts after them.
            constrain_after: the tokens that end the model's reasoning, such as those of
                ``</think>``. The constraint applies to the text after them; everything
                before is free.
            tenant: the name of the request's owner. Tenants take turns to compile.

        Returns:
            READY if the constraint was compiled before, FAILED if it is known to be
            bad, else WAITING. A bad constraint never raises.

        Raises:
            DuplicateRequestError: the id is in use; that request is untouched.
            StructOutError: the manager is closed.
        """
        try:
            start = _Start(
                list(output_token_ids),
                self._check_tokens("stop_token_ids", stop_token_ids),
                self._check_tokens("constrain_after", constrain_after),
            )
            constraint = params.constraint(self.config)
            known_result = self._compiler.get(constraint)
        except GrammarError as error:
            start, constraint, known_result = _Start([]), None, error
        request = self._requests.add(request_id)
        on_done = partial(self._start_request, request, start)
        try:
            if known_result is not None:
                on_done(known_result)
            elif constraint is not None:
                request.subscription = self._compiler.submit(constraint, tenant, on_done)
        except GrammarError as error:  # the compile queue is full
            on_done(error)
        except BaseException:
            self.finish_request(request_id)
            raise
        # Another thread may have finished the request before it had its subscription.
        if request.removal_error is not None and request.subscription is not None:
            request.subscription.cancel()
        return request.status

    def add_failed_request(self, request_id: str, error: GrammarError) -> None:
        """Add a request that has FAILED elsewhere, for example in a frontend process.

        Like every failed request it is reported by :meth:`poll_ready`, its mask rows
        allow nothing, and ``MaskBatch.errors`` has its message.

        Args:
            request_id: unique among the manager's requests.
            error: why it failed. The request keeps a copy with its own id.

        Raises:
            DuplicateRequestError: the id is in use; that request is untouched.
            StructOutError: the manager is closed.
        """
        self._requests.set_failed(self._requests.add(request_id), copy_error(error))

    def warm_up(
        self, constraints: Iterable[StructuredOutputsParams], timeout: float | None = None
    ) -> list[GrammarError | None]:
        """Compile constraints ahead of their requests, while a server starts.

        Blocks until all of them are compiled.

        Args:
            constraints: the constraints that later requests will use.
            timeout: seconds to wait for each constraint. Default: no limit.

        Returns:
            an error for each constraint, None where it compiled.
        """
        self._backends.prepare()
        errors: list[GrammarError | None] = []
        remaining = list(constraints)
        # Stay well below the queue limits, which are meant for clients.
        window = max(1, min(self.config.queue_size, self.config.tenant_queue_size) // 2)
        while remaining:
            results = [self._compile_ahead(params) for params in remaining[:window]]
            del remaining[:window]
            for result_queue in results:
                try:
                    result = result_queue.get(timeout=timeout)
                except queue.Empty:
                    result = GrammarTimeoutError(f"still compiling after {timeout} s")
                errors.append(result if isinstance(result, GrammarError) else None)
        return errors

    def status(self, request_id: str) -> GrammarStatus:
        """WAITING, READY or FAILED. Never raises for a failed compilation."""
        return self._requests[request_id].status

    def error(self, request_id: str) -> GrammarError | None:
        """Why the request FAILED; None unless it did."""
        return self._requests[request_id].error

    def weakened(self, request_id: str) -> tuple[str, ...]:
        """The parts of the constraint that are not enforced. Empty unless the
        constraint is ``lenient``."""
        return self._requests[request_id].weakened

    def annotations(self, request_id: str) -> tuple[str, ...]:
        """JSON pointers to each ``format`` that JSON Schema does not define. It
        constrains nothing."""
        return self._requests[request_id].annotations

    def backend_name(self, request_id: str) -> str:
        """The name of the backend that serves the request; empty until it is READY."""
        return self._requests[request_id].backend_name

    def poll_ready(self) -> list[str]:
        """The requests that became READY or FAILED since the last call, in that order.
        Never blocks."""
        return self._requests.pop_newly_settled()

    def wait_ready(self, request_id: str, timeout: float | None = None) -> None:
        """Block until the request is READY.

        Args:
            request_id: a request of this manager.
            timeout: seconds to wait. Default: no limit.

        Raises:
            GrammarError: its constraint failed.
            GrammarTimeoutError: it is not ready after ``timeout`` seconds; its
                compilation continues.
            UnknownRequestError: it was finished, before this call or during it.
            StructOutError: the manager was closed during this call.
        """
        self._requests.wait_ready(request_id, timeout)

    def is_terminated(self, request_id: str) -> bool:
        """Whether the text is complete: a stop token has been accepted."""
        with self._lock_grammars():
            grammar = self._requests[request_id].grammar
            return grammar is not None and grammar.is_terminated()

    def slot(self, request_id: str) -> int:
        """The request's slot: a small integer, unique among live requests, for tables
        on the device."""
        return self._requests[request_id].slot

    def fork(self, request_id: str, new_id: str) -> None:
        """Add a request at the position of ``request_id``, for beams and n > 1.

        Raises:
            DuplicateRequestError: ``new_id`` is in use.
            StructOutError: ``request_id`` is not READY.
        """
        with self._lock_grammars():
            request = self._requests[request_id]
            grammar = _grammar_of(request).fork()
            self._requests.set_ready(
                self._requests.add(new_id), grammar, request.backend_name, request.weakened, request.annotations
            )

    def finish_request(self, request_id: str) -> None:
        """Forget the request, in any state, also while it compiles. Ignores unknown
        ids."""
        request = self._requests.remove(request_id)
        if request is not None and request.subscription is not None:
            request.subscription.cancel()

    # -- a decoding step ---------------------------------------------------------------

    def grammar_bitmask(
        self,
        request_ids: Sequence[str],
        draft_tokens: Drafts | None = None,
        *,
        bounds: Bounds | None = None,
        draft_trees: Trees | None = None,
    ) -> MaskBatch:
        """Fill the next token's masks for the structured requests among
        ``request_ids``.

        A request with k drafts has 1 + k rows: row j is the mask after j drafts. A
        draft of -1 ends the checking: later rows allow everything, as do rows after a
        stop token. After a draft that is not allowed, the last row repeats.

        Terminated and unknown requests get no row, so their logits stay free. A request
        that is not READY, or has reached a dead end, gets rows that allow nothing and
        an entry in ``errors``. The other requests are unaffected.

        Args:
            request_ids: the requests of the step, without duplicates.
            draft_tokens: the drafts of each request, by request id.
            bounds: ``(grammar_start, constraint_start)`` by request id. Drafts from
                ``grammar_start`` on advance the grammar; rows from ``constraint_start``
                on are masked. For engines that detect the end of reasoning themselves;
                ``add_request(constrain_after=...)`` detects it for them. Default: (0,
                0).
            draft_trees: ``(next_token, next_sibling)`` by request id. The request's
                drafts are then the nodes of a tree, with one row per node:
                ``next_token`` is each node's first child and ``next_sibling`` its next
                sibling, -1 for none. Node 0 is the request's position; its token is
                not read.

        Returns:
            the masks, in a buffer that is reused by the ``num_mask_buffers``-th next
            call.

        Raises:
            ValueError: a request id occurs twice.
        """
        with self._lock_grammars():
            batch = self._filler.fill(request_ids, self._requests, draft_tokens, bounds, draft_trees)
            self._check_mask_times(self._filler.seconds_alone)
            return batch

    def accept_tokens(self, request_id: str, token_ids: Sequence[int]) -> bool:
        """Advance by all of ``token_ids``, or by none if one of them is not allowed.

        Values that are no token (-1, an id out of range, None) are not allowed, and
        never raise. After a stop token, in this call or an earlier one, every token is
        accepted without effect.

        Returns:
            whether all tokens were accepted.
        """
        with self._lock_grammars():
            return self._accept(self._requests[request_id], token_ids)

    def accept_batch(self, token_ids: Mapping[str, Sequence[int]]) -> dict[str, bool]:
        """``accept_tokens`` for many requests. The result is False for unknown ids."""
        with self._lock_grammars():
            return {
                request_id: (request := self._requests.get(request_id)) is not None and self._accept(request, tokens)
                for request_id, tokens in token_ids.items()
            }

    def validate_tokens(self, request_id: str, token_ids: Sequence[int]) -> list[int]:
        """The longest prefix of ``token_ids`` that the grammar allows. The request does
        not advance."""
        with self._lock_grammars():
            return _grammar_of(self._requests[request_id]).validate_tokens(list(token_ids))

    def rollback(self, request_id: str, num_tokens: int) -> None:
        """Undo the last ``num_tokens`` accepted tokens, also across a stop token and
        the end of reasoning.

        Raises:
            ValueError: ``num_tokens`` is negative, or more than were accepted. Nothing
                is undone.
        """
        with self._lock_grammars():
            grammar = _grammar_of(self._requests[request_id])
            if not 0 <= num_tokens <= grammar.num_tokens:
                raise ValueError(f"num_tokens must be in [0, {grammar.num_tokens}], got {num_tokens}")
            grammar.rollback(num_tokens)

    # -- jump-forward decoding ---------------------------------------------------------

    def find_jump_forward_string(self, request_id: str) -> str:
        """The text that must follow, in whole characters; empty if there is a
        choice."""
        with self._lock_grammars():
            return _grammar_of(self._requests[request_id]).find_jump_forward_string()

    def compute_ff_tokens(self, request_id: str) -> list[int]:
        """The tokens that must follow, split as the tokenizer splits the text."""
        with self._lock_grammars():
            return _grammar_of(self._requests[request_id]).compute_ff_tokens()

    def canonical_tokenizer(self) -> CanonicalTokenizer:
        """The tokenizer that ``structout.jump_forward`` needs, made at the first
        call."""
        tokenizer = self._backends.canonical_tokenizer()
        assert tokenizer is not None  # the backends were given the manager's tokenizer
        return tokenizer

    # -- the manager itself ------------------------------------------------------------

    def stats(self) -> ManagerStats:
        """The counters of requests, compilations and masks."""
        count = self._requests.count_statuses()
        seconds = list(self._filler.seconds) or [0.0]
        return ManagerStats(
            waiting=count[GrammarStatus.WAITING],
            ready=count[GrammarStatus.READY],
            failed=count[GrammarStatus.FAILED],
            compilation=self._compiler.stats(),
            rows_filled=self._filler.num_rows_filled,
            fill_seconds=(float(np.percentile(seconds, 50)), float(np.percentile(seconds, 99))),
            mask_pool=self.deduplicator.stats() if self.deduplicator is not None else None,
        )

    def close(self) -> None:
        """Forget all requests and release all grammars, after the step in progress.

        Threads in ``wait_ready`` raise ``StructOutError``. Compilations in progress end
        in the background.
        """
        self._requests.close()
        self._compiler.close()
        with self._grammar_lock:
            self._backends.destroy()

    def __enter__(self) -> "StructuredOutputManager":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- private -----------------------------------------------------------------------

    def _compile(self, constraint: Constraint) -> CompiledConstraint:
        return self._backends.compile(constraint)

    def _compile_ahead(self, params: StructuredOutputsParams) -> "queue.SimpleQueue[CompiledConstraint | GrammarError]":
        """A queue that will receive the result."""
        result_queue: queue.SimpleQueue[CompiledConstraint | GrammarError] = queue.SimpleQueue()
        try:
            constraint = params.constraint(self.config)
            known_result = self._compiler.get(constraint)
            if known_result is None:
                self._compiler.submit(constraint, "", result_queue.put)
        except GrammarError as error:
            known_result = error
        if known_result is not None:
            result_queue.put(known_result)
        return result_queue

    def _start_request(self, request: Request, start: "_Start", result: CompiledConstraint | GrammarError) -> None:
        """Make the request READY or FAILED. Runs on the thread that compiled."""
        if request.removal_error is not None:
            return
        if isinstance(result, GrammarError):
            self._requests.set_failed(request, result)
            return
        try:
            grammar = self._start_grammar(result, start)
            is_replayed = grammar.accept_tokens(request.request_id, start.output_token_ids)
        except Exception as error:  # whatever a native library raises: the request must not wait forever
            self._requests.set_failed(request, CompileCrashError(f"the grammar could not be started: {error!r}"))
            return
        if is_replayed:
            self._requests.set_ready(request, grammar, result.backend_name, result.weakened, result.annotations)
        else:
            message = "output_token_ids do not satisfy the constraint"
            self._requests.set_failed(request, GrammarError(message, kind=GrammarErrorKind.REPLAY))

    def _start_grammar(self, compiled: CompiledConstraint, start: "_Start") -> StructuredOutputGrammar:
        grammar = compiled.grammar.copy(start.stop_token_ids)
        if start.constrain_after is None:
            return grammar
        return ReasoningGrammar(grammar, start.constrain_after, self.vocabulary.size)

    def _lock_grammars(self) -> threading.RLock:
        self._fork_guard.check()
        return self._grammar_lock

    def _accept(self, request: Request, token_ids: Sequence[int]) -> bool:
        grammar = request.grammar
        if grammar is None:
            return False
        try:
            tokens = list(token_ids)
        except TypeError:
            return False
        start = time.thread_time()  # of the CPU: a busy machine makes no token slow
        is_accepted = grammar.accept_tokens(request.request_id, tokens)
        is_slow = time.thread_time() - start > self.config.slow_token_seconds * max(1, len(tokens))
        request.num_slow_tokens = request.num_slow_tokens + 1 if is_slow else 0
        self._fail_if_slow(request, request.num_slow_tokens, "tokens", "to accept")
        return is_accepted

    def _check_mask_times(self, seconds: Mapping[str, float]) -> None:
        for request_id, mask_seconds in seconds.items():
            request = self._requests.get(request_id)
            if request is not None:
                is_slow = mask_seconds > self.config.slow_token_seconds
                request.num_slow_masks = request.num_slow_masks + 1 if is_slow else 0
                self._fail_if_slow(request, request.num_slow_masks, "masks", "to fill")

    def _fail_if_slow(self, request: Request, num_slow: int, what: str, purpose: str) -> None:
        """Fail the request after several slow tokens or masks in a row."""
        if num_slow >= _MAX_SLOW_TOKENS and request.error is None:
            message = (
                f"each of the last {what} took more than {self.config.slow_token_seconds:g} s {purpose}: "
                "the grammar is too ambiguous for a text of this length"
            )
            self._requests.set_failed(request, GrammarError(message, kind=GrammarErrorKind.LIMIT))

    def _check_tokens(self, name: str, tokens: Sequence[int] | None) -> list[int] | None:
        if tokens is None:
            return None
        checked = [token_id(token, self.vocabulary.size) for token in tokens]
        ids = [token for token in checked if token is not None]
        if not checked:
            raise GrammarError(f"{name} is empty: pass None for the default")
        if len(ids) < len(checked):
            raise GrammarError(f"{name} must be in [0, {self.vocabulary.size}), got {list(tokens)}")
        return ids


@dataclass(frozen=True)
class _Start:
    """How a request's grammar starts; see ``add_request``."""

    output_token_ids: list[int]
    stop_token_ids: list[int] | None = None
    constrain_after: list[int] | None = None


def _grammar_of(request: Request) -> StructuredOutputGrammar:
    if request.grammar is None:
        raise StructOutError(
            f"request {request.request_id!r} has no grammar: it is {request.status.value}", request.request_id
        )
    return request.grammar
