"""StructuredOutputManager: the scheduler's side of structured output requests."""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, cast

from structout.constraints.config import StructuredOutputsConfig
from structout.constraints.params import StructuredOutputsParams
from structout.errors import GrammarError, GrammarTimeoutError, StructOutError
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.interface import CompiledConstraint, DeviceTables, StructuredOutputGrammar
from structout.grammar.registry import BackendSet
from structout.grammar.vocabulary import Vocabulary
from structout.masks.batch import MaskBatch
from structout.scheduler.compile_pool import CompilePool
from structout.scheduler.decoding_step import Bounds, DecodingSteps, Drafts, Trees
from structout.scheduler.process_lock import ProcessLock
from structout.scheduler.requests import (
    GrammarStatus,
    OnSettled,
    RequestTable,
    checked_limit,
    checked_tokens,
    least_tokens,
    limit_tokens,
)
from structout.scheduler.stats import ManagerStats, percentiles


class StructuredOutputManager:
    """Compiles constraints, tracks each request's grammar, and fills the token masks.

    Every method may be called from any thread. Methods that read or advance grammars
    run one at a time. No step waits for a compilation, and a bad constraint fails only
    its own request. After a fork the child process must create its own manager.

    Methods that take a request's id raise ``UnknownRequestError`` if the manager does
    not know it. Those that need its grammar raise ``StructOutError`` unless it is
    READY, but ``accept_tokens``, ``is_terminated`` and ``was_fitted`` return False.

    Args:
        tokenizer: a Hugging Face tokenizer.
        vocab_size: V, the width of the model's lm_head, padding included.
        config: see :class:`StructuredOutputsConfig`.

    Attributes:
        config: the settings, with defaults if none were passed.
        vocabulary: the bytes of the tokenizer's tokens, and the stop tokens.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, config: StructuredOutputsConfig | None = None):
        self.config = config or StructuredOutputsConfig()
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer, vocab_size)
        self._backends = BackendSet(self.vocabulary, self.config, tokenizer)
        self._lock = ProcessLock("StructuredOutputManager")  # of requests and compilations
        self._requests = RequestTable(self._lock)
        self._compiler = CompilePool(self._backends.compile, self.config, self._lock)
        # Guards the states of grammars. A thread takes it before the other lock, never
        # after.
        self._grammar_lock = threading.RLock()
        self._steps = DecodingSteps(self._requests, vocab_size, self.config)
        self._step_thread = ThreadPoolExecutor(1, thread_name_prefix="structout-step")
        self._step_thread_id = -1
        self._pending_step: Future[MaskBatch] | None = None  # the last one that step() was asked for

    # -- the life of a request ---------------------------------------------------------

    def add_request(
        self,
        request_id: str,
        params: StructuredOutputsParams,
        *,
        stop_token_ids: Sequence[int] | None = None,
        output_token_ids: Sequence[int] = (),
        constrain_after: Sequence[int] | None = None,
        max_tokens: int | None = None,
        on_settled: OnSettled | None = None,
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
                before is free but a stop token, if the text may not be empty.
            max_tokens: a limit on the tokens of the whole text: the reasoning,
                ``output_token_ids`` and the stop token count. Masks then allow only
                tokens after which the text still ends within it. A request whose
                shortest text is longer is refused with kind ``limit``;
                ``GrammarError.num_needed`` has the number that it needs. No effect
                with ``fit="off"``, or on another engine than structout's own.
            on_settled: called once with the request's id and status when it has become
                READY or FAILED: from the thread that compiled, or from this one before
                the method returns. Not called for a request that is finished before.
                It should be quick; what it raises is logged.

        Returns:
            READY if the constraint was compiled before, FAILED if it was refused at
            once, else WAITING. A bad constraint never raises.

        Raises:
            DuplicateRequestError: the id is in use; that request is untouched.
            StructOutError: the manager is closed.
        """
        request = self._requests.add(request_id, on_settled)
        try:
            limit = None if max_tokens is None else checked_limit(max_tokens)
            request.fit, request.limit = params.fit, None if params.fit == "off" else limit
            start = partial(
                request.start,
                stop_token_ids=checked_tokens("stop_token_ids", stop_token_ids, self.vocabulary.size),
                constrain_after=checked_tokens("constrain_after", constrain_after, self.vocabulary.size),
                output_token_ids=list(output_token_ids),
            )
            request.compilation = compilation = self._compiler.submit(params.constraint(self.config))
            compilation.add_done_callback(partial(self._requests.begin, request, start))
        except GrammarError as error:
            self._requests.settle(request, error)
        except BaseException:
            self.finish_request(request_id)
            raise
        if request.is_removed:  # by another thread, perhaps before it had its future
            request.cancel_compilation()
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
        self._requests.settle(self._requests.add(request_id), error)

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
        remaining, errors = list(constraints), list[GrammarError | None]()
        # Stay well below the queue limits, which are meant for clients.
        window = max(1, self.config.queue_size // 2)
        for first in range(0, len(remaining), window):
            compilations = [self._compile_ahead(params) for params in remaining[first : first + window]]
            errors += [_error_within(timeout, compilation) for compilation in compilations]
        return errors

    def status(self, request_id: str) -> GrammarStatus:
        """WAITING, READY or FAILED. Never raises for a failed compilation."""
        return self._requests[request_id].status

    def error(self, request_id: str) -> GrammarError | None:
        """The reason for which the request FAILED; None unless it did. Each call
        returns another object, so that raising it keeps nothing of the request
        alive."""
        error = self._requests[request_id].error
        return None if error is None else error.copy()

    def compiled(self, request_id: str) -> CompiledConstraint:
        """The constraint as it was compiled: the engine that serves it, what that does
        not enforce of it, and how long the compilation took, be it for another
        request."""
        request = self._requests[request_id]
        if request.compiled is None:
            raise StructOutError(f"request {request_id!r} is not compiled: it is {request.status.value}", request_id)
        return request.compiled

    def poll_ready(self) -> list[str]:
        """The requests that became READY or FAILED since the last call, in that order.
        Never blocks.

        A request may be listed twice: READY, and FAILED later, if its tokens or masks
        turn out too slow. :meth:`poll_changed` tells which.
        """
        return [request_id for request_id, _ in self.poll_changed()]

    def poll_changed(self) -> list[tuple[str, GrammarStatus]]:
        """The requests whose status has changed since the last call of this method or
        of :meth:`poll_ready`, each once, with its present status. Never blocks."""
        return self._requests.pop_changes()

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
        error = self._requests.wait_settled(request_id, timeout).error
        if error is not None:
            raise error.copy()

    def wait_all(
        self, request_ids: Iterable[str] | None = None, timeout: float | None = None
    ) -> dict[str, GrammarStatus]:
        """Block until none of the requests is WAITING.

        Args:
            request_ids: requests of this manager. Default: all that it has now.
            timeout: seconds to wait for all of them together. Default: no limit.

        Returns:
            the status of each request. A failed one does not raise.

        Raises:
            GrammarTimeoutError: one is still WAITING after ``timeout`` seconds.
            UnknownRequestError: one was finished, before this call or during it.
            StructOutError: the manager was closed during this call.
        """
        end = None if timeout is None else time.monotonic() + timeout
        statuses = {}
        for request_id in list(self._requests.by_id if request_ids is None else request_ids):
            seconds_left = None if end is None else max(0.0, end - time.monotonic())
            statuses[request_id] = self._requests.wait_settled(request_id, seconds_left).status
        return statuses

    def is_terminated(self, request_id: str) -> bool:
        """True if the text is complete: a stop token has been accepted."""
        with self._lock_grammars():
            grammar = self._requests[request_id].grammar
            return grammar is not None and grammar.is_terminated()

    def end_within(self, request_id: str, max_tokens: int) -> None:
        """Limit a request as ``add_request(max_tokens=...)`` does. The lower one of two
        limits counts. No effect on a request that has tokens.

        Raises:
            GrammarError: the text needs more tokens. The request goes on as before.
        """
        with self._lock_grammars():
            request, grammar = self._requests[request_id], self._grammar(request_id)
            if grammar.num_tokens:
                return
            max_tokens = checked_limit(max_tokens)
            if request.fit != "off":
                limit = min(max_tokens, request.limit or max_tokens)
                limit_tokens(grammar, limit, request.fit)
                request.limit = limit

    def fits(self, request_id: str) -> bool:
        """False if the text can no longer end within its limit: some of its tokens did
        not follow the masks."""
        with self._lock_grammars():
            request, grammar = self._requests[request_id], self._grammar(request_id)
            return request.limit is None or least_tokens(grammar) <= request.limit

    def num_needed(self, request_id: str) -> int | None:
        """The least number of tokens that complete the text from here, the end of the
        reasoning and the stop token included. 0 after the stop token. None where no
        end is known: for other engines than structout's own."""
        with self._lock_grammars():
            return self._grammar(request_id).num_needed

    def was_fitted(self, request_id: str) -> bool:
        """True if the limit on the tokens has forbidden some token that the constraint
        allows: without the limit the text might be another one."""
        with self._lock_grammars():
            grammar = self._requests[request_id].grammar
            return grammar is not None and grammar.was_narrowed

    def slot(self, request_id: str) -> int:
        """The request's slot: a small integer, unique among live requests, for tables
        on the device."""
        return self._requests[request_id].slot

    def fork(self, request_id: str, new_id: str) -> None:
        """Add a request at the position of ``request_id``, for beams and n > 1.

        Raises:
            DuplicateRequestError: ``new_id`` is in use.
        """
        with self._lock_grammars():
            parent, grammar = self._requests[request_id], self._grammar(request_id).fork()
            request = self._requests.add(new_id)
            request.compiled, request.fit, request.limit = parent.compiled, parent.fit, parent.limit
            self._requests.settle(request, grammar)

    def finish_request(self, request_id: str) -> None:
        """Forget the request, in any state, also while it compiles. Ignores unknown
        ids.

        A finalizer (``__del__``, ``weakref.finalize``) may call it. If it interrupts a
        thread that reads or changes the requests, they change when that is over.
        """
        if self._lock.is_held():
            self._lock.defer(partial(self.finish_request, request_id))
            return
        request = self._requests.remove(request_id)
        if request is not None:
            request.cancel_compilation()

    @property
    def num_requests(self) -> int:
        """The number of requests, failed and terminated ones included."""
        return len(self._requests)

    def num_tokens(self, request_id: str) -> int:
        """The number of tokens that the request has accepted and :meth:`rollback` can
        undo."""
        with self._lock_grammars():
            return self._grammar(request_id).num_tokens

    # -- a decoding step ---------------------------------------------------------------

    def grammar_bitmask(
        self,
        request_ids: Sequence[str],
        draft_tokens: Drafts | None = None,
        *,
        bounds: Bounds | None = None,
        draft_trees: Trees | None = None,
        strict: bool = True,
    ) -> MaskBatch:
        """Fill the next token's masks for the structured requests among
        ``request_ids``.

        A request with k drafts has 1 + k rows: row j is the mask after j drafts. A
        draft of -1 ends the checking: later rows allow everything, as do rows after a
        stop token. After a draft that is not allowed, the last row repeats.

        Terminated requests get no row, so their logits stay free. A request that is not
        READY, or has reached a dead end, gets rows that allow nothing and an entry in
        ``errors``. The other requests are unaffected.

        Masks that need more work than a step has, about 3 ms for all requests and a
        quarter of that for one, are computed last, without Python's global lock. A
        request is FAILED with kind ``limit`` once all such masks of it together have
        taken about 2 s.

        Args:
            request_ids: the requests of the step, without duplicates.
            draft_tokens: the drafts of each request, by request id.
            bounds: ``(grammar_start, constraint_start)`` by request id. Drafts from
                ``grammar_start`` on advance the grammar; rows from ``constraint_start``
                on are masked; rows before ``grammar_start`` are free. Values above the
                number of drafts count as past the last row. For engines that detect the
                end of reasoning themselves; ``add_request(constrain_after=...)``
                detects it for them. Default: (0, 0).
            draft_trees: ``(next_token, next_sibling)`` by request id. The request's
                drafts are then the nodes of a tree, with one row per node:
                ``next_token`` is each node's first child and ``next_sibling`` its next
                sibling, -1 for none. Node 0 is the request's position; its token is
                not read.
            strict: whether an id that the manager does not know is an error. With
                False, its rows are free: for engines that pass the ids of all requests,
                or finish requests from other threads during a step.

        Returns:
            the masks, in a buffer that is reused by the ``num_mask_buffers``-th next
            call.

        Raises:
            ValueError: a request id occurs twice.
            UnknownRequestError: the manager does not know one of the ids.
        """
        with self._lock_grammars():
            ids = self._requests.checked_ids(request_ids, strict)
            return self._steps.fill(ids, draft_tokens, bounds, draft_trees)

    def step(
        self,
        tokens: Mapping[str, Sequence[int]],
        request_ids: Sequence[str],
        draft_tokens: Drafts | None = None,
        *,
        bounds: Bounds | None = None,
        draft_trees: Trees | None = None,
        strict: bool = True,
    ) -> "Future[MaskBatch]":
        """:meth:`accept_batch` and then :meth:`grammar_bitmask`, as one native call on
        the manager's own thread, while the engine goes on.

        Steps run in the order of the calls. Later calls that read or move grammars wait
        for them, so that :meth:`fork` and :meth:`rollback` find the tokens accepted.
        :meth:`finish_request` does not wait: a step skips a request that was finished
        before it, also if its id is in use again.

        Args:
            tokens: what each request has drawn. A request that does not allow its
                tokens is FAILED with kind ``replay``, since the engine goes on without
                an answer: its rows allow nothing, and ``errors`` has the reason.
            request_ids: as in :meth:`grammar_bitmask`, as are the others.

        Returns:
            the future of the masks. Their buffers are those of
            :meth:`grammar_bitmask`.

        Raises:
            ValueError: a request id occurs twice.
            UnknownRequestError: the manager does not know one of ``request_ids``.
            StructOutError: the manager is closed.
        """
        self._lock.check_process()
        given = (
            self._requests.checked_ids(request_ids, strict),
            _copied(draft_tokens or {}),
            dict(bounds or {}),
            dict(draft_trees or {}),
            _copied(tokens),
            self._requests.matchers.copy(),
        )
        try:
            self._pending_step = self._step_thread.submit(self._run_step, *given)
        except RuntimeError as error:
            raise StructOutError("the manager is closed") from error
        return self._pending_step

    def accept_tokens(self, request_id: str, token_ids: Sequence[int]) -> bool:
        """Advance by all of ``token_ids``, or by none if one of them is not allowed.

        Values that are no token (-1, an id out of range, None) are not allowed, and
        never raise. After a stop token, in this call or an earlier one, every token is
        accepted without effect.

        Returns:
            whether all tokens were accepted.
        """
        with self._lock_grammars():
            return self._steps.accept_alone(self._requests[request_id], token_ids)

    def accept_batch(self, token_ids: Mapping[str, Sequence[int]]) -> dict[str, bool]:
        """``accept_tokens`` for many requests. The result is False for unknown ids."""
        with self._lock_grammars():
            return self._steps.accept(token_ids)

    def validate_tokens(self, request_id: str, token_ids: Sequence[int]) -> list[int]:
        """The longest prefix of ``token_ids`` that the grammar allows. The request does
        not advance."""
        with self._lock_grammars():
            return self._grammar(request_id).validate_tokens(list(token_ids))

    def rollback(self, request_id: str, num_tokens: int) -> None:
        """Undo the last ``num_tokens`` accepted tokens, also across a stop token and
        the end of reasoning.

        Raises:
            ValueError: ``num_tokens`` is negative, or more than were accepted. Nothing
                is undone.
        """
        with self._lock_grammars():
            grammar = self._grammar(request_id)
            if not 0 <= num_tokens <= grammar.num_tokens:
                raise ValueError(f"num_tokens must be in [0, {grammar.num_tokens}], got {num_tokens}")
            grammar.rollback(num_tokens)

    def device_tables(self, request_id: str) -> DeviceTables | None:
        """The tables with which a :class:`structout.DeviceFSM` follows the request on a
        device. None if the engine that serves it has no tables."""
        with self._lock_grammars():
            return self._grammar(request_id).device_tables()

    # -- jump-forward decoding ---------------------------------------------------------

    def find_jump_forward_string(self, request_id: str) -> str:
        """The text that must follow, in whole characters; empty if there is a
        choice."""
        with self._lock_grammars():
            return self._grammar(request_id).find_jump_forward_string()

    def compute_ff_tokens(self, request_id: str) -> list[int]:
        """The tokens that must follow, split as the tokenizer splits the text."""
        with self._lock_grammars():
            return self._grammar(request_id).compute_ff_tokens()

    def canonical_tokenizer(self) -> CanonicalTokenizer:
        """The tokenizer that ``structout.jump_forward`` needs, made at the first
        call."""
        tokenizer = self._backends.canonical_tokenizer()
        assert tokenizer is not None  # the backends were given the manager's tokenizer
        return tokenizer

    # -- captures ----------------------------------------------------------------------

    def captures(self, request_id: str) -> list[tuple[str, bytes]]:
        """The texts of the rules of a grammar that have the attribute ``capture``, each
        with its name, in the order in which they end. Empty until the text is complete,
        and for other constraints.

        Raises:
            GrammarLimitError: to find them takes more than the limits.
        """
        with self._lock_grammars():
            return self._grammar(request_id).captures()

    # -- the manager itself ------------------------------------------------------------

    def stats(self) -> ManagerStats:
        """The counters of requests, compilations and masks."""
        count = self._requests.count_statuses()
        return ManagerStats(
            waiting=count[GrammarStatus.WAITING],
            ready=count[GrammarStatus.READY],
            failed=count[GrammarStatus.FAILED],
            compilation=self._compiler.stats(),
            rows_filled=self._steps.num_rows,
            fill_seconds=percentiles(self._steps.seconds),
            backends=dict(self._requests.num_served),
        )

    def close(self) -> None:
        """Forget all requests and release all grammars, after the step in progress.

        Threads in ``wait_ready`` raise ``StructOutError``. Compilations in progress end
        in the background. Does nothing in a forked process.
        """
        if self._lock.is_forked():
            return
        self._requests.close()
        self._compiler.close()
        self._step_thread.shutdown(wait=False, cancel_futures=True)
        with self._grammar_lock:
            self._backends.destroy()

    def __enter__(self) -> "StructuredOutputManager":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- private -----------------------------------------------------------------------

    def _compile_ahead(self, params: StructuredOutputsParams) -> Future[CompiledConstraint] | GrammarError:
        try:
            return self._compiler.submit(params.constraint(self.config))
        except GrammarError as error:
            return error.copy()

    def _lock_grammars(self) -> threading.RLock:
        """Wait for the steps of earlier calls, and return the lock of the grammars."""
        self._lock.check_process()
        pending = self._pending_step
        if pending is not None and not pending.done() and threading.get_ident() != self._step_thread_id:
            with suppress(CancelledError):
                pending.exception()  # waits
        return self._grammar_lock

    def _grammar(self, request_id: str) -> StructuredOutputGrammar:
        grammar = self._requests[request_id].grammar
        if grammar is None:
            status = self.status(request_id).value
            raise StructOutError(f"request {request_id!r} has no grammar: it is {status}", request_id)
        return grammar

    def _run_step(self, *given: Any) -> MaskBatch:
        self._step_thread_id = threading.get_ident()
        with self._grammar_lock:
            return self._steps.fill(*given)


def _error_within(timeout: float | None, compilation: Future[CompiledConstraint] | GrammarError) -> GrammarError | None:
    if isinstance(compilation, GrammarError):
        return compilation
    try:
        return cast(GrammarError | None, compilation.exception(timeout))
    except CancelledError as cancelled:
        raise StructOutError("the manager was closed") from cancelled
    except TimeoutError:
        return GrammarTimeoutError(f"still compiling after {timeout} s")


def _copied(tokens: Mapping[str, Sequence[int]]) -> dict[str, Sequence[int]]:
    """A copy that later changes of the tokens leave alone."""
    return {request_id: list(ids) if isinstance(ids, Iterable) else ids for request_id, ids in tokens.items()}
