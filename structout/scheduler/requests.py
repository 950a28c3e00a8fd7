"""The table of a manager's requests: their slots, states, and who waits for them."""

import enum
import heapq
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, cast

from structout.constraints.limits import check_num_tokens
from structout.errors import (
    CompileCrashError,
    DuplicateRequestError,
    GrammarError,
    GrammarErrorKind,
    GrammarTimeoutError,
    StructOutError,
    UnknownRequestError,
)
from structout.grammar.interface import CompiledConstraint, StructuredOutputGrammar
from structout.grammar.vocabulary import token_id
from structout.scheduler.process_lock import ProcessLock

REQUEST_WORK = 60_000_000  # of masks, outside of decoding steps, in steps of the engine's work

_log = logging.getLogger("structout.scheduler")


class GrammarStatus(enum.Enum):
    """The state of a request's grammar."""

    WAITING = "waiting"  # for its grammar: the scheduler skips the request
    READY = "ready"
    FAILED = "failed"

    UNREADY = "waiting"  # the name in vLLM's RFC


OnSettled = Callable[[str, GrammarStatus], object]
Start = Callable[[CompiledConstraint], StructuredOutputGrammar | GrammarError]


def checked_limit(max_tokens: object) -> int:
    """Raises ``GrammarError`` unless ``max_tokens`` is a positive int."""
    if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1:
        raise GrammarError(f"max_tokens must be an int of at least 1, got {max_tokens!r}")
    return max_tokens


def least_tokens(grammar: StructuredOutputGrammar) -> int:
    """The least number of tokens of the whole text. 0 if it is unknown, or if the text
    has ended."""
    num_left = grammar.num_needed
    return grammar.num_tokens + num_left if num_left else 0


def limit_tokens(grammar: StructuredOutputGrammar, max_tokens: int, fit: str) -> None:
    """Let the whole text end within ``max_tokens``. Raises ``GrammarError`` if it needs
    more."""
    check_num_tokens(least_tokens(grammar), max_tokens)
    grammar.end_within(max_tokens, is_fair=fit == "on")


def checked_tokens(name: str, tokens: Sequence[int] | None, vocab_size: int) -> list[int] | None:
    """A copy of the tokens. Raises ``GrammarError`` if there are none, or if one is
    outside of the vocabulary."""
    if tokens is None:
        return None
    ids = [token_id(token, vocab_size) for token in tokens]
    if not ids:
        raise GrammarError(f"{name} is empty: pass None for the default")
    if None in ids:
        raise GrammarError(f"{name} must be in [0, {vocab_size}), got {list(tokens)}")
    return cast(list[int], ids)


@dataclass(eq=False, slots=True)
class Request:
    """One request of a manager.

    Attributes:
        request_id: the engine's name for the request.
        slot: a small integer, unique among live requests.
        on_settled: called when the request becomes READY or FAILED, the first time.
        status: WAITING until its constraint has compiled or failed.
        grammar: the request's position in its constraint; None unless it is READY.
        compiled: the constraint, once it has compiled.
        error: why the request FAILED.
        is_removed: True once it has left the table.
        compilation: of its constraint, until it is over.
        work_left: the work that its masks may still take outside of steps.
        limit: the tokens within which the text has to end; None if it may be cut off.
        fit: how the limit is part of the constraint, as in the params.
    """

    request_id: str
    slot: int
    on_settled: OnSettled | None = None
    status: GrammarStatus = GrammarStatus.WAITING
    grammar: StructuredOutputGrammar | None = None
    compiled: CompiledConstraint | None = None
    error: GrammarError | None = None
    is_removed: bool = False
    compilation: Future[CompiledConstraint] | None = None
    work_left: int = REQUEST_WORK
    limit: int | None = None
    fit: str = "on"

    def cancel_compilation(self) -> None:
        """Cancel it, unless it is over; other requests may wait for it."""
        compilation = self.compilation
        if compilation is not None:
            compilation.cancel()

    def start(
        self,
        compiled: CompiledConstraint,
        *,
        stop_token_ids: Sequence[int] | None,
        constrain_after: Sequence[int] | None,
        output_token_ids: list[int],
    ) -> StructuredOutputGrammar | GrammarError:
        """A grammar at the request's position, or why there is none. The arguments are
        those of ``StructuredOutputManager.add_request``."""
        try:
            grammar = compiled.grammar.copy(stop_token_ids)
            if constrain_after is not None:
                grammar.begin_after(constrain_after)
            if self.limit is not None:
                limit_tokens(grammar, self.limit, self.fit)
            if not grammar.accept_tokens("", output_token_ids):
                return GrammarError("output_token_ids do not satisfy the constraint", kind=GrammarErrorKind.REPLAY)
            if self.limit is not None:
                check_num_tokens(least_tokens(grammar), self.limit)
            return grammar
        except GrammarError as error:  # of the limit
            return error
        except Exception as error:  # whatever a native library raises: the request must not wait forever
            return CompileCrashError(f"the grammar could not be started: {error!r}")


class RequestTable:
    """The requests of one manager.

    Every method may be called from any thread. The lock guards the table and the states
    of its requests, and wakes those who wait for a request.

    Attributes:
        by_id: the requests by id. Only this class changes it.
        matchers: by request id, what a native step follows; None unless the request
            has a grammar. A request never has the matcher of an earlier one.
        num_served: how many requests have compiled, by backend name.
    """

    def __init__(self, lock: ProcessLock) -> None:
        self._lock = lock  # guards the fields below
        self.by_id: dict[str, Request] = {}
        self.matchers: dict[str, Any] = {}
        self.num_served: Counter[str] = Counter()
        self._changes: dict[str, None] = {}  # an ordered set of ids in by_id
        self._free_slots: list[int] = []  # a heap
        self._num_slots = 0
        self._is_closed = False

    def __len__(self) -> int:
        return len(self.by_id)

    def __getitem__(self, request_id: str) -> Request:
        """Raises ``UnknownRequestError``."""
        request = self.by_id.get(request_id)
        if request is None:
            raise _unknown(request_id)
        return request

    def checked_ids(self, request_ids: Sequence[str], strict: bool) -> list[str]:
        """A copy of the ids of a step.

        Raises:
            ValueError: an id occurs twice.
            UnknownRequestError: with ``strict``, an id is unknown.
        """
        ids = list(request_ids)
        if len(set(ids)) < len(ids):
            repeated = next(request_id for request_id in ids if ids.count(request_id) > 1)
            raise ValueError(f"request_ids must be unique, got {repeated!r} more than once")
        if strict and not all(map(self.by_id.__contains__, ids)):
            unknown = [request_id for request_id in ids if request_id not in self.by_id]
            raise UnknownRequestError(
                f"requests {unknown} are not with the manager, so nothing would constrain them; "
                "strict=False leaves their rows free",
                unknown[0],
            )
        return ids

    def add(self, request_id: str, on_settled: OnSettled | None = None) -> Request:
        """Add a WAITING request in the lowest free slot.

        Raises:
            DuplicateRequestError: the id is in use.
            StructOutError: the manager is closed.
        """
        with self._lock:
            if self._is_closed:
                raise StructOutError("the manager is closed", request_id)
            if request_id in self.by_id:
                raise DuplicateRequestError(f"request {request_id!r} is already with the manager", request_id)
            request = self.by_id[request_id] = Request(request_id, self._take_slot(), on_settled)
            self.matchers[request_id] = None
        return request

    def begin(self, request: Request, start: Start, compilation: Future[CompiledConstraint]) -> None:
        """Settle a request whose compilation is over."""
        request.compilation = None
        if compilation.cancelled() or request.is_removed:
            return
        error = cast(GrammarError | None, compilation.exception())
        if error is not None:
            self.settle(request, error)
            return
        compiled = compilation.result()
        self.settle(request, start(compiled), compiled)

    def settle(
        self,
        request: Request,
        outcome: StructuredOutputGrammar | GrammarError,
        compiled: CompiledConstraint | None = None,
    ) -> None:
        """Make the request READY with a grammar, or FAILED with an error, unless it was
        removed. The first time, call its ``on_settled``.

        The request keeps a copy of the error: the traceback of a raised one keeps the
        frames of those who called, and what is in them.
        """
        error = outcome.copy() if isinstance(outcome, GrammarError) else None
        grammar = None if isinstance(outcome, GrammarError) else outcome
        with self._lock:
            if request.is_removed:
                return
            if error is not None:
                error.request_id = request.request_id
            request.error, request.grammar = error, grammar
            if compiled is not None and grammar is not None:
                request.compiled = compiled
                self.num_served[compiled.backend_name] += 1
            self.matchers[request.request_id] = None if grammar is None else grammar.matcher
            # Last: others read it without the lock.
            request.status = GrammarStatus.READY if error is None else GrammarStatus.FAILED
            self._changes.pop(request.request_id, None)  # it moves to the end
            self._changes[request.request_id] = None
            on_settled, request.on_settled = request.on_settled, None
            self._lock.notify_all()
        if on_settled is not None:
            try:
                on_settled(request.request_id, request.status)
            except Exception:
                _log.exception("on_settled of request %r raised", request.request_id)

    def wait_settled(self, request_id: str, timeout: float | None) -> Request:
        """Block until the request is READY or FAILED.

        Raises:
            GrammarTimeoutError: it is still WAITING after ``timeout`` seconds.
            UnknownRequestError: it was removed, before this call or during it.
            StructOutError: the manager was closed during this call.
        """
        with self._lock:
            request = self[request_id]
            is_over = self._lock.wait_for(
                lambda: request.is_removed or request.status is not GrammarStatus.WAITING, timeout
            )
        if not is_over:
            raise GrammarTimeoutError(f"request {request_id!r} is still compiling after {timeout} s", request_id)
        if request.is_removed:
            raise StructOutError("the manager was closed", request_id) if self._is_closed else _unknown(request_id)
        return request

    def pop_changes(self) -> list[tuple[str, GrammarStatus]]:
        """The requests whose status has changed since the last call, in that order."""
        with self._lock:
            changes = [(request_id, self.by_id[request_id].status) for request_id in self._changes]
            self._changes.clear()
        return changes

    def count_statuses(self) -> Counter[GrammarStatus]:
        with self._lock:
            return Counter(request.status for request in self.by_id.values())

    def remove(self, request_id: str) -> Request | None:
        """Remove the request, free its slot and wake its waiters. None: unknown id."""
        with self._lock:
            request = self.by_id.pop(request_id, None)
            if request is not None:
                request.is_removed = True
                del self.matchers[request_id]
                self._changes.pop(request_id, None)
                heapq.heappush(self._free_slots, request.slot)
                self._lock.notify_all()
        return request

    def close(self) -> None:
        """Remove all requests, wake their waiters, and accept no more."""
        with self._lock:
            self._is_closed = True
            for request_id in list(self.by_id):
                self.remove(request_id)

    def _take_slot(self) -> int:
        if self._free_slots:
            return heapq.heappop(self._free_slots)
        self._num_slots += 1
        return self._num_slots - 1


def _unknown(request_id: str) -> UnknownRequestError:
    return UnknownRequestError(f"request {request_id!r} is not with the manager", request_id)
