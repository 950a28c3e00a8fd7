"""The table of a manager's requests: their slots, states, and who waits for them."""

import enum
import heapq
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from structout.errors import (
    DuplicateRequestError,
    GrammarError,
    GrammarTimeoutError,
    StructOutError,
    UnknownRequestError,
)
from structout.grammar.interface import StructuredOutputGrammar


class GrammarStatus(enum.Enum):
    """The state of a request's grammar."""

    WAITING = "waiting"  # being compiled: the scheduler skips the request
    READY = "ready"
    FAILED = "failed"

    UNREADY = "waiting"  # the name in vLLM's RFC


@dataclass(eq=False, slots=True)
class Request:
    """One request of a manager.

    Attributes:
        request_id: the engine's name for the request.
        slot: a small integer, unique among live requests.
        status: WAITING until its constraint has compiled or failed.
        grammar: the request's position in its constraint; None unless READY. It is set
            after all other fields, because a step may read it at once.
        backend_name: the backend that compiled the constraint.
        weakened: the parts of the constraint that are not enforced.
        annotations: the parts of the constraint that constrain nothing by definition.
        error: why the request FAILED.
        removal_error: what its waiters raise once it has left the table.
        num_slow_tokens: how many of the last accepted tokens, without a break, each
            took too long.
        num_slow_masks: the same for masks.
        subscription: the request's place in the compile queue.
    """

    request_id: str
    slot: int
    status: GrammarStatus = GrammarStatus.WAITING
    grammar: StructuredOutputGrammar | None = None
    backend_name: str = ""
    weakened: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()
    error: GrammarError | None = None
    removal_error: StructOutError | None = None
    num_slow_tokens: int = 0
    num_slow_masks: int = 0
    subscription: Any = field(default=None, repr=False)


class RequestTable:
    """The requests of one manager.

    Every method may be called from any thread. One condition variable guards the table
    and the states of its requests, and wakes those who wait for a request.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards the fields below
        self._requests: dict[str, Request] = {}
        self._newly_settled: dict[str, None] = {}  # an ordered set of ids in _requests
        self._free_slots: list[int] = []  # a heap
        self._num_slots = 0
        self._is_closed = False

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def __getitem__(self, request_id: str) -> Request:
        """Raises ``UnknownRequestError``."""
        request = self._requests.get(request_id)
        if request is None:
            raise _unknown(request_id)
        return request

    def get(self, request_id: str) -> Request | None:
        return self._requests.get(request_id)

    def add(self, request_id: str) -> Request:
        """Add a WAITING request in the lowest free slot.

        Raises:
            DuplicateRequestError: the id is in use.
            StructOutError: the manager is closed.
        """
        with self._changed:
            if self._is_closed:
                raise StructOutError("the manager is closed", request_id)
            if request_id in self._requests:
                raise DuplicateRequestError(f"request {request_id!r} is already with the manager", request_id)
            request = self._requests[request_id] = Request(request_id, self._take_slot())
        return request

    def set_ready(
        self,
        request: Request,
        grammar: StructuredOutputGrammar,
        backend_name: str,
        weakened: tuple[str, ...],
        annotations: tuple[str, ...],
    ) -> None:
        """Make the request READY, unless it has been removed."""
        with self._changed:
            if request.removal_error is not None:
                return
            request.backend_name = backend_name
            request.weakened, request.annotations = weakened, annotations
            request.grammar = grammar
            self._settle(request, GrammarStatus.READY)

    def set_failed(self, request: Request, error: GrammarError) -> None:
        """Make the request FAILED, unless it has been removed."""
        with self._changed:
            if request.removal_error is not None:
                return
            error.request_id = request.request_id
            request.error = error
            request.grammar = None
            self._settle(request, GrammarStatus.FAILED)

    def wait_ready(self, request_id: str, timeout: float | None) -> None:
        """Block until the request is READY; see
        ``StructuredOutputManager.wait_ready``."""
        with self._changed:
            request = self[request_id]
            is_over = self._changed.wait_for(
                lambda: request.removal_error is not None or request.status is not GrammarStatus.WAITING, timeout
            )
            error = request.removal_error or request.error
        if not is_over:
            raise GrammarTimeoutError(f"request {request_id!r} is still compiling after {timeout} s", request_id)
        if error is not None:
            raise error

    def pop_newly_settled(self) -> list[str]:
        """The ids that became READY or FAILED since the last call, in that order."""
        with self._changed:
            request_ids = list(self._newly_settled)
            self._newly_settled.clear()
        return request_ids

    def count_statuses(self) -> Counter[GrammarStatus]:
        with self._changed:
            return Counter(request.status for request in self._requests.values())

    def remove(self, request_id: str) -> Request | None:
        """Remove the request, free its slot and wake its waiters. None: unknown id."""
        with self._changed:
            request = self._requests.pop(request_id, None)
            if request is not None:
                request.removal_error = _unknown(request_id)
                self._newly_settled.pop(request_id, None)
                heapq.heappush(self._free_slots, request.slot)
                self._changed.notify_all()
        return request

    def close(self) -> None:
        """Remove all requests, wake their waiters, and accept no more."""
        with self._changed:
            self._is_closed = True
            for request in self._requests.values():
                request.removal_error = StructOutError("the manager was closed", request.request_id)
            self._requests.clear()
            self._newly_settled.clear()
            self._changed.notify_all()

    def _settle(self, request: Request, status: GrammarStatus) -> None:
        request.status = status
        self._newly_settled[request.request_id] = None
        self._changed.notify_all()

    def _take_slot(self) -> int:
        if self._free_slots:
            return heapq.heappop(self._free_slots)
        self._num_slots += 1
        return self._num_slots - 1


def _unknown(request_id: str) -> UnknownRequestError:
    return UnknownRequestError(f"request {request_id!r} is not with the manager", request_id)
