"""Requests whose tokens or masks take long: the slowest are named, and those that would
hold up all others are failed."""

import heapq
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from structout.errors import GrammarError, GrammarErrorKind
from structout.scheduler.requests import CpuTime, Request, RequestTable

_MAX_SLOW = 3  # tokens or masks in a row


@dataclass(frozen=True)
class SlowRequest:
    """A request among the slowest of a manager. Times above ``slow_token_seconds`` are
    CPU seconds of one thread, so a busy machine makes none of them that long.

    Attributes:
        request_id: the request.
        backend_name: the backend that serves it.
        token_seconds: what its slowest token took to accept. 0 if it was never timed:
            engines that accept a step's tokens in one call need microseconds for them.
        mask_seconds: what its slowest mask took to fill. 0 if it was never timed: only
            a step that is slow as a whole is followed by one that times each mask.
    """

    request_id: str
    backend_name: str
    token_seconds: float
    mask_seconds: float


class SlowRequests:
    """Times requests, and fails those with several slow tokens or masks in a row.

    Args:
        requests: the manager's requests.
        slow_seconds: CPU seconds above which a token or a mask is slow.
    """

    def __init__(self, requests: RequestTable, slow_seconds: float):
        self._requests = requests
        self._slow_seconds = slow_seconds

    def clock(self, request: Request) -> Callable[[], float]:
        """The clock that times the request's next tokens.

        To read a thread's CPU time takes microseconds, so it is read for requests only
        that have had a slow token by the wall clock.
        """
        return time.thread_time if request.tokens.may_be_slow else time.perf_counter

    def note_tokens(self, request: Request, seconds: float, num_tokens: int) -> None:
        """Note that the request took ``seconds`` of its clock to accept so many
        tokens."""
        token_seconds = seconds / max(1, num_tokens)
        if token_seconds > self._slow_seconds and not request.tokens.may_be_slow:
            request.tokens.may_be_slow = True  # or the machine was busy
        else:
            self._note(request, request.tokens, token_seconds, "tokens", "to accept")

    def note_masks(self, seconds: Mapping[str, float]) -> None:
        """Note the seconds per mask of requests that were filled alone."""
        for request_id, mask_seconds in seconds.items():
            request = self._requests.get(request_id)
            if request is not None:
                self._note(request, request.masks, mask_seconds, "masks", "to fill")

    def slowest(self, count: int) -> tuple[SlowRequest, ...]:
        """The slowest requests, the slowest first."""
        requests = heapq.nlargest(count, self._requests.snapshot(), key=_seconds)
        return tuple(
            SlowRequest(request.request_id, request.backend_name, request.tokens.slowest, request.masks.slowest)
            for request in requests
            if _seconds(request)
        )

    def _note(self, request: Request, times: CpuTime, seconds: float, what: str, purpose: str) -> None:
        times.slowest = max(times.slowest, seconds)
        times.num_slow = times.num_slow + 1 if seconds > self._slow_seconds else 0
        if times.num_slow >= _MAX_SLOW and request.error is None:
            message = (
                f"each of the last {what} took more than {self._slow_seconds:g} s {purpose}: "
                "the grammar is too ambiguous for a text of this length"
            )
            self._requests.set_failed(request, GrammarError(message, kind=GrammarErrorKind.LIMIT))


def _seconds(request: Request) -> float:
    return max(request.tokens.slowest, request.masks.slowest)
