"""StructuredOutputManager: the scheduler's half of a structured request, from its constraint to its last token."""

import heapq
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from structout.compiler import CompileService, CompileStats
from structout.config import StructuredOutputsConfig
from structout.errors import (
    DuplicateRequestError,
    GrammarError,
    GrammarTimeoutError,
    StructOutError,
    UnknownRequestError,
)
from structout.fill import Bounds, Drafts, MaskFiller, Trees
from structout.grammar.backends import BackendSet, CompiledConstraint
from structout.grammar.gate import GatedGrammar
from structout.grammar.interface import StructuredOutputGrammar
from structout.grammar.tokens import token_id
from structout.grammar.vocabulary import Vocabulary
from structout.mask_batch import MaskBatch
from structout.params import Constraint, StructuredOutputsParams
from structout.request import GrammarStatus, Request

CompileKey = tuple[Constraint, tuple[int, ...] | None]  # what is compiled, and the tokens that end it


@dataclass(frozen=True)
class ManagerStats:
    """
    Attributes:
        waiting, ready, failed: requests in each state.
        compilation: see :class:`structout.compiler.CompileStats`.
        rows_filled: mask rows since the start.
        fill_seconds: percentiles 50 and 99 over the last 1,024 calls of ``grammar_bitmask``.
    """

    waiting: int
    ready: int
    failed: int
    compilation: CompileStats
    rows_filled: int
    fill_seconds: tuple[float, float]


class StructuredOutputManager:
    """
    Args:
        tokenizer: a Hugging Face tokenizer.
        vocab_size: the width of the model's lm_head, padding included.
        config: see :class:`StructuredOutputsConfig`.

    Every method may be called from any thread; those that read or move a grammar (masks, accept, rollback and their
    kin) wait for each other. No step waits for a compilation. A bad constraint fails its own request.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, config: StructuredOutputsConfig | None = None):
        self.config = config or StructuredOutputsConfig()
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer, vocab_size)
        self._backends = BackendSet(self.vocabulary, self.config, tokenizer)
        self._compiler: CompileService[CompileKey, CompiledConstraint] = CompileService(self._compile, self.config)
        self._filler = MaskFiller(
            self._backends.backend, vocab_size, self.config.num_mask_buffers, self.config.fill_threads
        )
        self._step = threading.RLock()  # held by whoever reads or moves grammars
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
            self._check_stop_tokens(stop_token_ids)
            self._check_opening(constrain_after)
            key = (params.constraint(self.config), None if stop_token_ids is None else tuple(stop_token_ids))
            known = self._compiler.get(key)
        except GrammarError as problem:
            key, known = None, problem
        output = list(output_token_ids)
        request = self._enter(request_id)
        settle = partial(self._settle, request, output, constrain_after)
        try:
            if known is not None:
                settle(known)
            elif key is not None:
                request.ticket = self._compiler.submit(key, tenant, settle)
        except GrammarError as problem:  # too many wait already
            settle(problem)
        except BaseException:
            self.finish_request(request_id)
            raise
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
        names = []
        for i, params in enumerate(constraints):
            names.append(f"warm-up {i} of {id(constraints)}")
            self.add_request(names[-1], params)
        problems: list[GrammarError | None] = []
        for name in names:
            try:
                self.wait_ready(name, timeout)
                problems.append(None)
            except GrammarError as problem:
                problems.append(problem)
            self.finish_request(name)
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
        with self._step:
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
        if request.ticket is not None:
            request.ticket.cancel()

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
        with self._step:
            return self._filler.fill(request_ids, self._requests, draft_tokens, bounds, draft_trees)

    def accept_tokens(self, request_id: str, token_ids: Sequence[int]) -> bool:
        """Advance by all of ``token_ids``; if one is not allowed, by none and return False.

        What is no token at all (-1, an id out of range, None) is not allowed, and never raises. After a stop token, in
        the same call or an earlier one, every token is accepted and none has an effect.
        """
        with self._step:
            grammar = self._known(request_id).grammar
            return grammar is not None and grammar.accept_tokens(request_id, list(token_ids))

    def accept_batch(self, token_ids: Mapping[str, Sequence[int]]) -> dict[str, bool]:
        """``accept_tokens`` for many requests; False for those that are not with the manager."""
        with self._step:
            accepted = {}
            for request_id, tokens in token_ids.items():
                request = self._requests.get(request_id)
                grammar = None if request is None else request.grammar
                accepted[request_id] = grammar is not None and grammar.accept_tokens(request_id, list(tokens))
            return accepted

    def validate_tokens(self, request_id: str, token_ids: Sequence[int]) -> list[int]:
        """The longest prefix of ``token_ids`` that would be accepted; the request stays where it is."""
        with self._step:
            return self._grammar(self._known(request_id)).validate_tokens(list(token_ids))

    def rollback(self, request_id: str, num_tokens: int) -> None:
        """Take back the last ``num_tokens`` accepted tokens, also across termination and the end of thinking.

        Raises:
            ValueError: ``num_tokens`` is negative or more than were accepted; nothing is taken back.
        """
        with self._step:
            grammar = self._grammar(self._known(request_id))
            if not 0 <= num_tokens <= grammar.num_tokens:
                raise ValueError(f"num_tokens must be in [0, {grammar.num_tokens}], got {num_tokens}")
            grammar.rollback(num_tokens)

    # -- jump-forward -------------------------------------------------------------------------------------------------

    def find_jump_forward_string(self, request_id: str) -> str:
        """The text that must follow, whole characters only; empty where there is a choice."""
        with self._step:
            return self._grammar(self._known(request_id)).find_jump_forward_string()

    def compute_ff_tokens(self, request_id: str) -> list[int]:
        """The tokens that must follow, as the tokenizer itself would write them."""
        with self._step:
            return self._grammar(self._known(request_id)).compute_ff_tokens()

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
        self._filler.close()
        self._compiler.close()
        self._backends.destroy()

    def __enter__(self) -> "StructuredOutputManager":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _compile(self, key: CompileKey) -> CompiledConstraint:
        return self._backends.compile(*key)

    def _enter(self, request_id: str) -> Request:
        with self._changed:
            if self._is_closed:
                raise StructOutError("the manager is closed", request_id)
            if request_id in self._requests:
                raise DuplicateRequestError(f"request {request_id!r} is already with the manager", request_id)
            request = self._requests[request_id] = Request(request_id, self._take_slot())
        return request

    def _settle(
        self,
        request: Request,
        output_token_ids: list[int],
        constrain_after: Sequence[int] | None,
        outcome: CompiledConstraint | GrammarError,
    ) -> None:
        """The end of a compilation, on whatever thread it ended."""
        if request.withdrawn is not None:
            return
        grammar = None
        if not isinstance(outcome, GrammarError):
            try:
                grammar = self._at_start(outcome, constrain_after)
                if not grammar.accept_tokens(request.request_id, output_token_ids):
                    outcome = GrammarError("output_token_ids do not satisfy the constraint")
            except Exception as problem:  # from a native library; a request must not wait for ever
                outcome = GrammarError(f"the grammar could not be started: {problem!r}")
        with self._changed:
            if request.withdrawn is not None:
                return
            if isinstance(outcome, GrammarError):
                outcome.request_id = request.request_id
                request.error, request.status = outcome, GrammarStatus.FAILED
                self._newly_ready[request.request_id] = None
                self._changed.notify_all()
            elif grammar is not None:
                request.weakened = outcome.weakened
                self._make_ready(request, grammar, outcome.backend_name)

    def _at_start(self, compiled: CompiledConstraint, constrain_after: Sequence[int] | None) -> StructuredOutputGrammar:
        grammar = compiled.grammar.copy()
        return grammar if constrain_after is None else GatedGrammar(grammar, constrain_after, self.vocabulary.size)

    def _make_ready(self, request: Request, grammar: StructuredOutputGrammar, backend_name: str) -> None:
        request.grammar = grammar
        request.engine = grammar.grammar if isinstance(grammar, GatedGrammar) else grammar
        request.backend_name = backend_name
        request.status = GrammarStatus.READY
        self._newly_ready[request.request_id] = None
        self._changed.notify_all()

    def _check_stop_tokens(self, stop_token_ids: Sequence[int] | None) -> None:
        if stop_token_ids is None:
            return
        if not stop_token_ids:
            raise GrammarError("stop_token_ids is empty: no text could ever end")
        self._check_tokens("stop_token_ids", stop_token_ids)

    def _check_opening(self, constrain_after: Sequence[int] | None) -> None:
        if constrain_after is None:
            return
        if not constrain_after:
            raise GrammarError("constrain_after is empty: pass None for a request that is constrained from the start")
        self._check_tokens("constrain_after", constrain_after)

    def _check_tokens(self, name: str, tokens: Sequence[int]) -> None:
        bad = [token for token in tokens if token_id(token, self.vocabulary.size) is None]
        if bad:
            raise GrammarError(f"{name} must be in [0, {self.vocabulary.size}), got {bad}")

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
