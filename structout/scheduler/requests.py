"""The table of a manager's requests: their slots, states, and who waits for them."""

import enum
import heapq
import time
from collections import Counter
from collections.abc import Collection, Container, Iterable
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
from structout.scheduler.owned_condition import OwnedCondition

REQUEST_WORK = 60_000_000  # of masks, outside of decoding steps, in steps of the engine's work


class GrammarStatus(enum.Enum):
    """The state of a request's grammar."""

    WAITING = "waiting"  # for its grammar or its mask: the scheduler skips the request
    READY = "ready"
    FAILED = "failed"

    UNREADY = "waiting"  # the name in vLLM's RFC


@dataclass(eq=False, slots=True)
class Request:
    """One request of a manager.

    Attributes:
        request_id: the engine's name for the request.
        slot: a small integer, unique among live requests.
        status: WAITING until its constraint has compiled or failed, and while a mask is
            computed outside of a step.
        grammar: the request's position in its constraint; None until it has compiled,
            and if it has FAILED. It is set after all other fields, because a step may
            read it at once.
        backend_name: the backend that compiled the constraint.
        compile_seconds: the CPU time that this took.
        weakened: the parts of the constraint that are not enforced.
        annotations: the parts of the constraint that constrain nothing by definition.
        error: why the request FAILED.
        removal_error: what its waiters raise once it has left the table.
        work_left: what its masks may still take outside of steps; see
            :mod:`structout.scheduler.late_masks`.
        finished_position: the number of tokens after which masks were last computed
            outside of a step; -1 without any.
        subscription: the request's place in the compile queue.
    """

    request_id: str
    slot: int
    status: GrammarStatus = GrammarStatus.WAITING
    grammar: StructuredOutputGrammar | None = None
    backend_name: str = ""
    compile_seconds: float = 0.0
    weakened: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()
    error: GrammarError | None = None
    removal_error: StructOutError | None = None
    work_left: int = REQUEST_WORK
    finished_position: int = -1
    subscription: Any = field(default=None, repr=False)


class RequestTable:
    """The requests of one manager.

    Every method may be called from any thread. One condition variable guards the table
    and the states of its requests, and wakes those who wait for a request.

    Attributes:
        by_id: the requests by id. Only this class changes it.
        positions: by request id, what a native step follows; None unless the request
            has a grammar. A request never has the position of an earlier one.
        foreign: the ids of requests that other engines serve.
    """

    def __init__(self) -> None:
        self.changed = OwnedCondition()  # guards the fields below
        self.by_id: dict[str, Request] = {}
        self.positions: dict[str, Any] = {}
        self.foreign: set[str] = set()
        self._newly_settled: dict[str, None] = {}  # an ordered set of ids in _requests
        self._free_slots: list[int] = []  # a heap
        self._num_slots = 0
        self._is_closed = False

    def __contains__(self, request_id: object) -> bool:
        return request_id in self.by_id

    def __len__(self) -> int:
        return len(self.by_id)

    def __getitem__(self, request_id: str) -> Request:
        """Raises ``UnknownRequestError``."""
        request = self.by_id.get(request_id)
        if request is None:
            raise _unknown(request_id)
        return request

    def get(self, request_id: str) -> Request | None:
        return self.by_id.get(request_id)

    def add(self, request_id: str) -> Request:
        """Add a WAITING request in the lowest free slot.

        Raises:
            DuplicateRequestError: the id is in use.
            StructOutError: the manager is closed.
        """
        with self.changed:
            if self._is_closed:
                raise StructOutError("the manager is closed", request_id)
            if request_id in self.by_id:
                raise DuplicateRequestError(f"request {request_id!r} is already with the manager", request_id)
            request = self.by_id[request_id] = Request(request_id, self._take_slot())
            self.positions[request_id] = None
        return request

    def set_ready(
        self,
        request: Request,
        grammar: StructuredOutputGrammar,
        backend_name: str,
        weakened: tuple[str, ...],
        annotations: tuple[str, ...],
    ) -> bool:
        """Make the request READY. Return False if it has been removed."""
        with self.changed:
            if request.removal_error is not None:
                return False
            request.backend_name = backend_name
            request.weakened, request.annotations = weakened, annotations
            request.grammar = grammar
            self.positions[request.request_id] = grammar.position
            if grammar.position is grammar:
                self.foreign.add(request.request_id)
            self._settle(request, GrammarStatus.READY)
        return True

    def set_waiting(self, request: Request) -> bool:
        """Make a READY request WAITING. Return False if it is not READY any more."""
        with self.changed:
            if request.removal_error is not None or request.status is not GrammarStatus.READY:
                return False
            request.status = GrammarStatus.WAITING
            self._newly_settled.pop(request.request_id, None)
        return True

    def set_ready_again(self, request: Request) -> None:
        """Make the request READY, unless it has failed or was removed meanwhile."""
        with self.changed:
            if request.removal_error is None and request.status is GrammarStatus.WAITING:
                self._settle(request, GrammarStatus.READY)

    def set_failed(self, request: Request, error: GrammarError) -> bool:
        """Make the request FAILED. Return False if it has been removed.

        The request keeps a copy: the traceback of a raised error keeps the frames of
        those who called, and what is in them.
        """
        with self.changed:
            if request.removal_error is not None:
                return False
            request.error = error.copy()
            request.error.request_id = request.request_id
            request.grammar = None
            self.positions[request.request_id] = None
            self.foreign.discard(request.request_id)
            self._settle(request, GrammarStatus.FAILED)
        return True

    def wait_settled(self, request_id: str, timeout: float | None) -> Request:
        """Block until the request is READY or FAILED.

        Raises:
            GrammarTimeoutError: it is still WAITING after ``timeout`` seconds.
            UnknownRequestError: it was removed, before this call or during it.
            StructOutError: the manager was closed during this call.
        """
        with self.changed:
            request = self[request_id]
            is_over = self.changed.wait_for(
                lambda: request.removal_error is not None or request.status is not GrammarStatus.WAITING, timeout
            )
        if not is_over:
            raise GrammarTimeoutError(f"request {request_id!r} is still compiling after {timeout} s", request_id)
        if request.removal_error is not None:
            raise type(request.removal_error)(str(request.removal_error), request_id)
        return request

    def wait_all_settled(self, request_ids: Iterable[str] | None, timeout: float | None) -> dict[str, GrammarStatus]:
        """Block until none of the requests is WAITING; see
        ``StructuredOutputManager.wait_all``."""
        deadline = None if timeout is None else time.monotonic() + timeout
        names = list(self.by_id) if request_ids is None else list(request_ids)
        statuses = {}
        for name in names:
            seconds_left = None if deadline is None else max(0.0, deadline - time.monotonic())
            statuses[name] = self.wait_settled(name, seconds_left).status
        return statuses

    def pop_changes(self) -> list[tuple[str, GrammarStatus]]:
        """The requests whose status has changed since the last call, in that order."""
        with self.changed:
            changes = [(request_id, self.by_id[request_id].status) for request_id in self._newly_settled]
            self._newly_settled.clear()
        return changes

    def count_statuses(self) -> Counter[GrammarStatus]:
        with self.changed:
            return Counter(request.status for request in self.by_id.values())

    def remove(self, request_id: str) -> Request | None:
        """Remove the request, free its slot and wake its waiters. None: unknown id."""
        with self.changed:
            request = self.by_id.pop(request_id, None)
            if request is not None:
                request.removal_error = _unknown(request_id)
                del self.positions[request_id]
                self.foreign.discard(request_id)
                self._newly_settled.pop(request_id, None)
                heapq.heappush(self._free_slots, request.slot)
                self.changed.notify_all()
        return request

    def close(self) -> None:
        """Remove all requests, wake their waiters, and accept no more."""
        with self.changed:
            self._is_closed = True
            for request in self.by_id.values():
                request.removal_error = StructOutError("the manager was closed", request.request_id)
            self.by_id.clear()
            self.positions.clear()
            self.foreign.clear()
            self._newly_settled.clear()
            self.changed.notify_all()

    def _settle(self, request: Request, status: GrammarStatus) -> None:
        request.status = status
        self._newly_settled.pop(request.request_id, None)  # it moves to the end
        self._newly_settled[request.request_id] = None
        self.changed.notify_all()

    def _take_slot(self) -> int:
        if self._free_slots:
            return heapq.heappop(self._free_slots)
        self._num_slots += 1
        return self._num_slots - 1


def _unknown(request_id: str) -> UnknownRequestError:
    return UnknownRequestError(f"request {request_id!r} is not with the manager", request_id)


def check_known(request_ids: Collection[str], known: Container[str]) -> None:
    """Raise ``UnknownRequestError`` if one of the ids is not known."""
    if not all(map(known.__contains__, request_ids)):
        unknown = [request_id for request_id in request_ids if request_id not in known]
        raise UnknownRequestError(
            f"requests {unknown} are not with the manager, so nothing would constrain them; "
            "strict=False leaves their rows free",
            unknown[0],
        )
