"""SharedRequests: the table of requests that all ranks have in common."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from structout.distributed.checksum import checksum_bytes
from structout.errors import DuplicateRequestError, GrammarError, StructOutError, UnknownRequestError
from structout.grammar.native.extension import core
from structout.scheduler.decoding_step import Drafts, Trees, as_dict
from structout.scheduler.manager import StructuredOutputManager
from structout.scheduler.requests import GrammarStatus

_MAX_IMBALANCE = 4  # requests


@dataclass(eq=False, slots=True)
class SharedRequest:
    """A request as all ranks know it.

    Attributes:
        owner: the rank that compiles its constraint and fills its masks.
        constraint_hash: equal for equal constraints.
        status: since the last exchange of statuses.
        error: why it FAILED.
        weakened: the parts of its constraint that are not enforced.
        annotations: JSON pointers to each ``format`` that constrains nothing.
        backend_name: the backend that serves it; empty until it is READY.
    """

    owner: int
    constraint_hash: int
    status: GrammarStatus = GrammarStatus.WAITING
    error: GrammarError | None = None
    weakened: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()
    backend_name: str = ""


@dataclass(frozen=True)
class StepLayout:
    """Which rows of a step's masks requests own if each has as many as it may need.

    Attributes:
        row_indptr: as in :class:`structout.MaskBatch`.
        rows_of_ranks: the rows of each rank's requests.
    """

    row_indptr: npt.NDArray[np.int32]
    rows_of_ranks: list[range]


class StepRequests:
    """The requests of a step in the order of their owners.

    Consecutive steps mostly have the same, and then share this object.

    Args:
        given_ids: the requests in the order in which they were given.
        ids_of_ranks: those of each rank.
        known: the requests that have rows, by id.

    Attributes:
        given_ids: as above.
        ids_of_ranks: as above.
        all_ids: the requests of all ranks.
        are_known: whether each of them is with the manager.
        checksum: depends on ``given_ids``.
    """

    def __init__(self, given_ids: tuple[str, ...], ids_of_ranks: list[list[str]], known: dict[str, SharedRequest]):
        self.given_ids, self.ids_of_ranks = given_ids, ids_of_ranks
        self.all_ids = tuple(chain.from_iterable(ids_of_ranks))
        self.are_known = all(request_id in known for request_id in given_ids)
        self.checksum = checksum_bytes("\0".join(given_ids).encode())
        self._known = known
        self._layout_without_drafts = self._lay_out({}, {})

    def layout(self, drafts: Drafts | None, trees: Trees | None) -> StepLayout:
        """Return which rows of the masks the requests own."""
        return self._lay_out(as_dict(drafts), as_dict(trees)) if drafts else self._layout_without_drafts

    def _lay_out(self, drafts: dict[str, Any], trees: dict[str, Any]) -> StepLayout:
        row_indptr = core().Step.layout(self._known, list(self.all_ids), drafts, trees)
        ends = row_indptr[[0, *accumulate(map(len, self.ids_of_ranks))]].tolist()
        return StepLayout(row_indptr, [range(*rows) for rows in pairwise(ends)])


class SharedRequests:
    """The requests of all ranks. Equal calls on all ranks make equal tables.

    Args:
        world_size: the number of ranks.

    Attributes:
        terminated: the requests whose text was complete in the last step that asked.
    """

    def __init__(self, world_size: int):
        self._world_size = world_size
        self._requests: dict[str, SharedRequest] = {}
        self.terminated: set[str] = set()
        self._newly_settled: dict[str, None] = {}  # in the order in which they were
        self._last_step: StepRequests | None = None  # as long as the requests are the same

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._requests

    def __iter__(self) -> Iterator[str]:
        return iter(self._requests)

    def __getitem__(self, request_id: str) -> SharedRequest:
        """Raises ``UnknownRequestError``."""
        request = self._requests.get(request_id)
        if request is None:
            raise UnknownRequestError(f"request {request_id!r} is not with the manager", request_id)
        return request

    def by_owner(self, request_ids: Sequence[str]) -> StepRequests:
        """Return a step's requests in the order of their owners.

        Unknown ones, which have no rows, count as rank 0's.

        Raises:
            ValueError: an id occurs twice.
        """
        given_ids = tuple(request_ids)
        if self._last_step is None or self._last_step.given_ids != given_ids:
            if len(set(given_ids)) < len(given_ids):
                raise ValueError(f"request_ids must not repeat an id, got {list(given_ids)}")
            ids_of_ranks: list[list[str]] = [[] for _ in range(self._world_size)]
            for request_id in given_ids:
                request = self._requests.get(request_id)
                ids_of_ranks[0 if request is None else request.owner].append(request_id)
            self._last_step = StepRequests(given_ids, ids_of_ranks, self._requests)
        return self._last_step

    @property
    def has_waiting(self) -> bool:
        """Whether a request is WAITING."""
        return any(request.status is GrammarStatus.WAITING for request in self._requests.values())

    def add(self, request_id: str, constraint_hash: int) -> SharedRequest:
        """Add a WAITING request and choose its owner.

        Raises:
            DuplicateRequestError: the id is in use.
        """
        self._check_unused(request_id)
        self._last_step = None
        request = self._requests[request_id] = SharedRequest(self._choose_owner(constraint_hash), constraint_hash)
        return request

    def fork(self, request_id: str, new_id: str) -> SharedRequest:
        """Add a request with the owner and the state of ``request_id``.

        Raises:
            DuplicateRequestError: ``new_id`` is in use.
            StructOutError: ``request_id`` is not READY.
        """
        request = self[request_id]
        self._check_unused(new_id)
        if request.status is not GrammarStatus.READY:
            raise StructOutError(
                f"request {request_id!r} must be ready to be forked, got {request.status.value}", request_id
            )
        self._last_step = None
        new_request = self._requests[new_id] = replace(request)
        if request_id in self.terminated:
            self.terminated.add(new_id)
        return new_request

    def remove(self, request_id: str) -> SharedRequest | None:
        """Remove the request. None: unknown id."""
        self._newly_settled.pop(request_id, None)
        self.terminated.discard(request_id)
        self._last_step = None
        return self._requests.pop(request_id, None)

    def settle(self, request_id: str, outcome: dict[str, Any]) -> None:
        """Make the request READY or FAILED.

        Args:
            request_id: one of the requests.
            outcome: what :func:`outcome_of` returned on its owner.
        """
        request, error = self[request_id], outcome["error"]
        request.status = GrammarStatus.READY if error is None else GrammarStatus.FAILED
        request.error = None if error is None else GrammarError.from_dict(error, request_id)
        request.weakened, request.annotations = tuple(outcome["weakened"]), tuple(outcome["annotations"])
        request.backend_name = outcome["backend_name"]
        self._newly_settled[request_id] = None

    def pop_changes(self) -> list[tuple[str, GrammarStatus]]:
        """Return the requests that were settled since the last call, in that order."""
        changes = [(request_id, self[request_id].status) for request_id in self._newly_settled]
        self._newly_settled.clear()
        return changes

    def _choose_owner(self, constraint_hash: int) -> int:
        """Choose a rank that has the constraint already, else the least busy rank.

        A rank with over ``_MAX_IMBALANCE`` requests more than the least busy is not
        chosen. What an engine learns about a grammar while it runs serves all requests
        of that grammar.
        """
        load = Counter(request.owner for request in self._requests.values())
        owners_of_equal = {
            request.owner for request in self._requests.values() if request.constraint_hash == constraint_hash
        }
        least_busy = min(range(self._world_size), key=lambda rank: (load[rank], rank))
        if not owners_of_equal:
            return least_busy
        candidate = min(owners_of_equal, key=lambda rank: (load[rank], rank))
        return candidate if load[candidate] - load[least_busy] <= _MAX_IMBALANCE else least_busy

    def _check_unused(self, request_id: str) -> None:
        if request_id in self._requests:
            raise DuplicateRequestError(f"request {request_id!r} is already with the manager", request_id)


def outcome_of(manager: StructuredOutputManager, request_id: str) -> dict[str, Any]:
    """Return what the other ranks need to know of a request that is READY or FAILED,
    as JSON."""
    error = manager.error(request_id)
    return {
        "error": None if error is None else error.as_dict(),
        "weakened": manager.weakened(request_id),
        "annotations": manager.annotations(request_id),
        "backend_name": manager.backend_name(request_id),
    }
