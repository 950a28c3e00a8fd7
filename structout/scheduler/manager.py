"""StructuredOutputManager: the scheduler's half of a structured request, from its constraint to its last token."""

import heapq
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from structout.config import StructuredOutputsConfig
from structout.errors import (
    DuplicateRequestError,
    GrammarError,
    GrammarTimeoutError,
    StructOutError,
    UnknownRequestError,
)
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.interface import StructuredOutputGrammar
from structout.grammar.reasoning import ReasoningGrammar
from structout.grammar.router import BackendSet, CompiledConstraint
from structout.grammar.vocabulary import Vocabulary, token_id
from structout.mask_batch import MaskBatch
from structout.mask_pool import MaskDeduplicator, MaskPoolStats
from structout.params import Constraint, StructuredOutputsParams
from structout.process_guard import ForkGuard
from structout.scheduler.bitmask_filler import Bounds, Drafts, MaskFiller, Trees
from structout.scheduler.compile_service import CompileService, CompileStats
from structout.scheduler.requests import GrammarStatus, Request

_MOST_SLOW_TOKENS = 3


@dataclass(frozen=True)
class ManagerStats:
    """
    Attributes:
        waiting, ready, failed: requests in each state.
        compilation: see :class:`structout.scheduler.compile_service.CompileStats`.
        rows_filled: mask rows since the start.
        fill_seconds: percentiles 50 and 99 over the last 1,024 calls of ``grammar_bitmask``.
        mask_pool: what the deduplicator sent and reused; None without one.
    """

    waiting: int
    ready: int
    failed: int
    compilation: CompileStats
    rows_filled: int
    fill_seconds: tuple[float, float]
    mask_pool: MaskPoolStats | None


class StructuredOutputManager:
    """
    Args:
        tokenizer: a Hugging Face tokenizer.
        vocab_size: the width of the model's lm_head, padding included.
        config: see :class:`StructuredOutputsConfig`.

    Every method may be called from any thread; those that read or move a grammar (masks, accept, rollback and their
    kin) wait for each other. No step waits for a compilation. A bad constraint fails its own request. A process that is
    forked from the manager's must make a manager of its own.

    Attributes:
        deduplicator: for the workers' MaskPool; None unless ``mask_pool_capacity`` is set.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, config: StructuredOutputsConfig | None = None):
        self.config = config or StructuredOutputsConfig()
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer, vocab_size)
        self._backends = BackendSet(self.vocabulary, self.config, tokenizer)
        self._compiler: CompileService[Constraint, CompiledConstraint] = CompileService(self._compile, self.config)
        self._filler = MaskFiller(
            self._backends.backend, vocab_size, self.config.num_mask_buffers, self.config.fill_threads
        )
        capacity = self.config.mask_pool_capacity
        self.deduplicator = MaskDeduplicator(capacity, vocab_size) if capacity else None
        self._fork_guard = ForkGuard("StructuredOutputManager")
        self._step = threading.RLock()  # held by whoever reads or moves grammars, see _grammars
        self._changed = threading.Condition()  # guards what follows; taken after _step, never before
        self._is_closed = False
        self._requests: dict[str, Request] = {}
        self._newly_ready: dict[str, None] = {}  # an ordered set of ids in _requests
        self._free_slots: list[int] = []
        self._num_slots = 0

    # -- a request's life ---------------------------------------------------------------------------------------------

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
        """Start compiling, and return at once: READY where the constraint is known already, else WAITING. A malformed
        constraint makes the request FAILED, it does not raise.

        Args:
            request_id: unique among the requests that are with the manager.
            params: the constraint.
            stop_token_ids: tokens that end this request's text. Default: the tokenizer's.
            output_token_ids: tokens generated before (a preempted request): the grammar starts after them.
            constrain_after: tokens that end the model's thinking, such as those of ``</think>``: the constraint holds
                from the token after them on, and everything before is free.
            tenant: whose request it is. Tenants take turns in compiling.

        Raises:
            DuplicateRequestError: the id is in use; that request is untouched.
            StructOutError: the manager is closed.
        """
        try:
            start = _Start(
                list(output_token_ids),
                self._checked_tokens("stop_token_ids", stop_token_ids),
                self._checked_tokens("constrain_after", constrain_after),
            )
            constraint = params.constraint(self.config)
            known = self._compiler.get(constraint)
        except GrammarError as problem:
            start, constraint, known = _Start([]), None, problem
        request = self._enter(request_id)
        settle = partial(self._settle, request, start)
        try:
            if known is not None:
                settle(known)
            elif constraint is not None:
                request.subscription = self._compiler.submit(constraint, tenant, settle)
        except GrammarError as problem:  # too many wait already
            settle(problem)
        except BaseException:
            self.finish_request(request_id)
            raise
        if (
            request.withdrawn is not None and request.subscription is not None
        ):  # finished before it had its subscription
            request.subscription.cancel()
        return request.status

    def warm_up(
        self, constraints: Iterable[StructuredOutputsParams], timeout: float | None = None
    ) -> list[GrammarError | None]:
        """Compile what is known to come before it comes, while a server starts. Waits for all of it.

        Args:
            constraints: what later requests will ask for.
            timeout: in seconds, for each of them.

        Returns:
            for each constraint what is wrong with it, None if nothing.
        """
        self._backends.prepare()
        problems: list[GrammarError | None] = []
        remaining = list(constraints)
        window = max(1, min(self.config.queue_size, self.config.tenant_queue_size) // 2)
        while remaining:
            outcomes = [self._compile_ahead(params) for params in remaining[:window]]
            del remaining[:window]
            for outcome in outcomes:
                try:
                    compiled = outcome.get(timeout=timeout)
                except queue.Empty:
                    compiled = GrammarTimeoutError(f"still compiling after {timeout} s")
                problems.append(compiled if isinstance(compiled, GrammarError) else None)
        return problems

    def status(self, request_id: str) -> GrammarStatus:
        """WAITING, READY or FAILED. Never raises for a failed compilation."""
        return self._known(request_id).status

    def error(self, request_id: str) -> GrammarError | None:
        """Why the request FAILED."""
        return self._known(request_id).error

    def weakened(self, request_id: str) -> tuple[str, ...]:
        """What of the constraint is not enforced: empty unless its ``lenient`` is set."""
        return self._known(request_id).weakened

    def backend_name(self, request_id: str) -> str:
        """Which backend serves the request; empty until it is READY."""
        return self._known(request_id).backend_name

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
        with self._grammars():
            grammar = self._known(request_id).grammar
            return grammar is not None and grammar.is_terminated()

    def slot(self, request_id: str) -> int:
        """A small integer that is this request's as long as it lives, for tables on the device."""
        return self._known(request_id).slot

    def fork(self, request_id: str, new_id: str) -> None:
        """A new request where ``request_id`` stands, for beams and n > 1.

        Raises:
            DuplicateRequestError: ``new_id`` is in use.
            StructOutError: ``request_id`` is not READY.
        """
        with self._grammars():
            request = self._known(request_id)
            grammar = self._grammar(request).fork()
            fork = self._enter(new_id)
            fork.weakened = request.weakened
            with self._changed:
                self._make_ready(fork, grammar, request.backend_name)

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
        if request.subscription is not None:
            request.subscription.cancel()

    # -- a decoding step ----------------------------------------------------------------------------------------------

    def grammar_bitmask(
        self,
        request_ids: Sequence[str],
        draft_tokens: Drafts | None = None,
        *,
        bounds: Bounds | None = None,
        draft_trees: Trees | None = None,
    ) -> MaskBatch:
        """The masks of the next token for the structured requests among ``request_ids``.

        A request with k drafts has 1 + k rows: row j is the mask after j drafts. A draft of -1 ends the checking: later
        rows allow everything, as do those after a stop token. After a draft that is not allowed the last row repeats.

        Terminated and unknown requests get no row, so that their logits stay free. A request that is not READY, or that
        has reached a dead end, gets rows that allow nothing and an entry in ``errors``; the others are unaffected.

        Args:
            draft_tokens: from request id to its drafts.
            bounds: from request id to ``(grammar_start, constraint_start)``: the drafts from ``grammar_start`` on feed
                the grammar, the rows from ``constraint_start`` on are masked. For engines that watch for the end of
                thinking themselves; ``add_request(constrain_after=...)`` does it for them. Default: (0, 0).
            draft_trees: from request id to ``(next_token, next_sibling)`` of its drafts, which then are the nodes of a
                tree, one row a node: of each node the first node below it, and the next one beside it; -1 where there
                is none. Node 0 is where the request stands; its token is not read.
        """
        with self._grammars():
            return self._filler.fill(request_ids, self._requests, draft_tokens, bounds, draft_trees)

    def accept_tokens(self, request_id: str, token_ids: Sequence[int]) -> bool:
        """Advance by all of ``token_ids``; if one is not allowed, by none and return False.

        What is no token at all (-1, an id out of range, None) is not allowed, and never raises. After a stop token, in
        the same call or an earlier one, every token is accepted and none has an effect.
        """
        with self._grammars():
            return self._accept(self._known(request_id), token_ids)

    def accept_batch(self, token_ids: Mapping[str, Sequence[int]]) -> dict[str, bool]:
        """``accept_tokens`` for many requests; False for those that are not with the manager."""
        with self._grammars():
            return {
                request_id: request_id in self._requests and self._accept(self._requests[request_id], tokens)
                for request_id, tokens in token_ids.items()
            }

    def validate_tokens(self, request_id: str, token_ids: Sequence[int]) -> list[int]:
        """The longest prefix of ``token_ids`` that would be accepted; the request stays where it is."""
        with self._grammars():
            return self._grammar(self._known(request_id)).validate_tokens(list(token_ids))

    def rollback(self, request_id: str, num_tokens: int) -> None:
        """Take back the last ``num_tokens`` accepted tokens, also across termination and the end of thinking.

        Raises:
            ValueError: ``num_tokens`` is negative or more than were accepted; nothing is taken back.
        """
        with self._grammars():
            grammar = self._grammar(self._known(request_id))
            if not 0 <= num_tokens <= grammar.num_tokens:
                raise ValueError(f"num_tokens must be in [0, {grammar.num_tokens}], got {num_tokens}")
            grammar.rollback(num_tokens)

    # -- jump-forward -------------------------------------------------------------------------------------------------

    def find_jump_forward_string(self, request_id: str) -> str:
        """The text that must follow, whole characters only; empty where there is a choice."""
        with self._grammars():
            return self._grammar(self._known(request_id)).find_jump_forward_string()

    def compute_ff_tokens(self, request_id: str) -> list[int]:
        """The tokens that must follow, as the tokenizer itself would write them."""
        with self._grammars():
            return self._grammar(self._known(request_id)).compute_ff_tokens()

    def canonical_tokenizer(self) -> CanonicalTokenizer:
        """What ``structout.jump_forward`` takes; made when it is first asked for."""
        tokenizer = self._backends.canonical_tokenizer()
        assert tokenizer is not None  # the backends have the manager's tokenizer
        return tokenizer

    # -- the manager itself -------------------------------------------------------------------------------------------

    def stats(self) -> ManagerStats:
        with self._changed:
            count = Counter(request.status for request in self._requests.values())
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
        """Let go of everything, at once: whoever waits is told, and compilations under way end in the background."""
        with self._changed:
            self._is_closed = True
            for request in self._requests.values():
                request.withdrawn = StructOutError("the manager was closed", request.request_id)
            self._requests.clear()
            self._newly_ready.clear()
            self._changed.notify_all()
        self._compiler.close()
        with self._step:  # a step that is under way ends first
            self._filler.close()
            self._backends.destroy()

    def __enter__(self) -> "StructuredOutputManager":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _compile(self, constraint: Constraint) -> CompiledConstraint:
        return self._backends.compile(constraint)

    def _compile_ahead(self, params: StructuredOutputsParams) -> "queue.SimpleQueue[CompiledConstraint | GrammarError]":
        """Where the outcome will be."""
        outcome: queue.SimpleQueue[CompiledConstraint | GrammarError] = queue.SimpleQueue()
        try:
            constraint = params.constraint(self.config)
            known = self._compiler.get(constraint)
            if known is None:
                self._compiler.submit(constraint, "", outcome.put)
        except GrammarError as problem:
            known = problem
        if known is not None:
            outcome.put(known)
        return outcome

    def _enter(self, request_id: str) -> Request:
        with self._changed:
            if self._is_closed:
                raise StructOutError("the manager is closed", request_id)
            if request_id in self._requests:
                raise DuplicateRequestError(f"request {request_id!r} is already with the manager", request_id)
            request = self._requests[request_id] = Request(request_id, self._take_slot())
        return request

    def _settle(self, request: Request, start: "_Start", outcome: CompiledConstraint | GrammarError) -> None:
        """The end of a compilation, on whatever thread it ended."""
        if request.withdrawn is not None:
            return
        grammar = None
        if not isinstance(outcome, GrammarError):
            try:
                grammar = self._started(outcome, start)
                if not grammar.accept_tokens(request.request_id, start.output_token_ids):
                    outcome = GrammarError("output_token_ids do not satisfy the constraint")
            except Exception as problem:  # from a native library; a request must not wait for ever
                outcome = GrammarError(f"the grammar could not be started: {problem!r}")
        with self._changed:
            if request.withdrawn is not None:
                return
            if isinstance(outcome, GrammarError):
                self._make_failed(request, outcome)
            elif grammar is not None:
                request.weakened = outcome.weakened
                self._make_ready(request, grammar, outcome.backend_name)

    def _started(self, compiled: CompiledConstraint, start: "_Start") -> StructuredOutputGrammar:
        grammar = compiled.grammar.copy(start.stop_token_ids)
        if start.constrain_after is None:
            return grammar
        return ReasoningGrammar(grammar, start.constrain_after, self.vocabulary.size)

    def _make_ready(self, request: Request, grammar: StructuredOutputGrammar, backend_name: str) -> None:
        request.backend_name = backend_name
        request.grammar = grammar  # from here on a step may take it
        self._note(request, GrammarStatus.READY)

    def _make_failed(self, request: Request, error: GrammarError) -> None:
        error.request_id = request.request_id
        request.error = error
        request.grammar = None
        self._note(request, GrammarStatus.FAILED)

    def _note(self, request: Request, status: GrammarStatus) -> None:
        request.status = status
        self._newly_ready[request.request_id] = None
        self._changed.notify_all()

    def _grammars(self) -> threading.RLock:
        """The lock of whoever reads or moves grammars."""
        self._fork_guard.check()
        return self._step

    def _accept(self, request: Request, tokens: Sequence[int]) -> bool:
        grammar = request.grammar
        if grammar is None:
            return False
        try:
            listed = list(tokens)
        except TypeError:
            return False
        start = time.perf_counter()
        is_accepted = grammar.accept_tokens(request.request_id, listed)
        if time.perf_counter() - start > self.config.slow_token_seconds * max(1, len(listed)):
            self._note_slow_token(request)
        else:
            request.num_slow_tokens = 0
        return is_accepted

    def _note_slow_token(self, request: Request) -> None:
        """Once may be the machine's fault."""
        request.num_slow_tokens += 1
        if request.num_slow_tokens < _MOST_SLOW_TOKENS:
            return
        seconds = self.config.slow_token_seconds
        problem = f"a token takes more than {seconds:g} s to accept: the grammar is too ambiguous for a text so long"
        with self._changed:
            if request.withdrawn is None:
                self._make_failed(request, GrammarError(problem))

    def _checked_tokens(self, name: str, tokens: Sequence[int] | None) -> list[int] | None:
        if tokens is None:
            return None
        known = [token_id(token, self.vocabulary.size) for token in tokens]
        ids = [token for token in known if token is not None]
        if not known:
            raise GrammarError(f"{name} is empty: pass None for the default")
        if len(ids) < len(known):
            raise GrammarError(f"{name} must be in [0, {self.vocabulary.size}), got {list(tokens)}")
        return ids

    def _known(self, request_id: str) -> Request:
        request = self._requests.get(request_id)
        if request is None:
            raise _unknown(request_id)
        return request

    def _grammar(self, request: Request) -> StructuredOutputGrammar:
        if request.grammar is None:
            raise StructOutError(f"request {request.request_id!r} is {request.status.value}", request.request_id)
        return request.grammar

    def _take_slot(self) -> int:
        if self._free_slots:
            return heapq.heappop(self._free_slots)
        self._num_slots += 1
        return self._num_slots - 1


def _unknown(request_id: str) -> UnknownRequestError:
    return UnknownRequestError(f"request {request_id!r} is not with the manager", request_id)


@dataclass(frozen=True)
class _Start:
    """Where a request begins: see ``add_request``."""

    output_token_ids: list[int]
    stop_token_ids: list[int] | None = None
    constrain_after: list[int] | None = None
