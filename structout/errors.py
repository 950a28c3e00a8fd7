"""Errors of the scheduler side and of the ranks of a group. Each names its request or
rank."""

import enum
from collections.abc import Mapping
from typing import Any, ClassVar


class StructOutError(Exception):
    """Base class of all errors of the manager.

    Attributes:
        request_id: the request that failed, or None if no single request is at fault.
    """

    def __init__(self, message: str, request_id: str | None = None):
        super().__init__(message)
        self.request_id = request_id


class GrammarErrorKind(enum.Enum):
    """Why a request failed.

    Attributes:
        MALFORMED: the constraint is not well-formed, such as a regular expression with
            an unclosed bracket or a schema with an unknown type.
        UNSUPPORTED: the constraint is well-formed, but no engine that may serve it
            enforces all of it.
        IMPOSSIBLE: the constraint allows no text at all.
        LIMIT: the constraint exceeds a limit of the configuration, such as a size of
            ``Limits`` or ``slow_token_seconds``; or its shortest text exceeds the
            request's ``max_tokens``.
        TIMEOUT: the constraint did not compile before its deadline.
        CRASH: the compilation crashed or ran out of memory.
        OVERLOADED: too many constraints wait, or too many compilations are overdue.
        CLOSED: the manager is closed.
        REPLAY: ``output_token_ids``, or the tokens of ``manager.step``, do not satisfy
            the constraint.
    """

    MALFORMED = "malformed"
    UNSUPPORTED = "unsupported"
    IMPOSSIBLE = "impossible"
    LIMIT = "limit"
    TIMEOUT = "timeout"
    CRASH = "crash"
    OVERLOADED = "overloaded"
    CLOSED = "closed"
    REPLAY = "replay"

    @property
    def client_fault(self) -> bool:
        """True if the request is at fault: MALFORMED, UNSUPPORTED, IMPOSSIBLE or
        LIMIT."""
        return self in _CLIENT_FAULTS


_CLIENT_FAULTS = frozenset(
    {
        GrammarErrorKind.MALFORMED,
        GrammarErrorKind.UNSUPPORTED,
        GrammarErrorKind.IMPOSSIBLE,
        GrammarErrorKind.LIMIT,
    }
)


class GrammarError(StructOutError, ValueError):
    """The constraint of a request is refused, or could not be compiled.

    The message is one sentence that a client may be shown.

    Attributes:
        kind: why, as one of a few values.
        pointer: JSON pointer to the part of the constraint that is refused, such as
            ``#/properties/age/not``. None if no single part is.
        keyword: the JSON Schema keyword at fault, such as ``not``. None if there is
            none.
        num_needed: the tokens that the request needs, where ``max_tokens`` is less.
            None for all other errors.
    """

    default_kind: ClassVar[GrammarErrorKind] = GrammarErrorKind.MALFORMED

    def __init__(
        self,
        message: str,
        request_id: str | None = None,
        *,
        kind: GrammarErrorKind | None = None,
        pointer: str | None = None,
        keyword: str | None = None,
        num_needed: int | None = None,
    ):
        super().__init__(message, request_id)
        self.kind = kind or self.default_kind
        self.pointer = pointer
        self.keyword = keyword
        self.num_needed = num_needed

    @property
    def client_fault(self) -> bool:
        """True if the request is at fault (HTTP 400). False for failures of the server
        (HTTP 503): timeouts, crashes, full queues, a closed manager, a failed
        replay."""
        return self.kind.client_fault

    def at(self, pointer: str, keyword: str | None) -> "GrammarError":
        """This error with its place in the constraint, which the message then names."""
        self.pointer, self.keyword = pointer, keyword
        self.args = (f"{pointer}: {self}",)
        return self

    def inside(self, part: str) -> "GrammarError":
        """This error with the part of the constraint that it is in, such as a tag, at
        the end of the message."""
        self.args = (f"{self} (in {part})",)
        return self

    def copy(self) -> "GrammarError":
        """A copy without the traceback, which would keep frames alive."""
        return _restored(type(self), self.args, self.__dict__)

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (type(self), self.args, self.__dict__)

    def as_dict(self) -> dict[str, Any]:
        """The error as a JSON object, for another process or the body of a response."""
        return {
            "message": str(self),
            "kind": self.kind.value,
            "pointer": self.pointer,
            "keyword": self.keyword,
            "client_fault": self.client_fault,
            "num_needed": self.num_needed,
        }

    @staticmethod
    def from_dict(described: Mapping[str, Any], request_id: str | None = None) -> "GrammarError":
        """The error that ``as_dict`` described."""
        return GrammarError(
            described["message"],
            request_id,
            kind=GrammarErrorKind(described["kind"]),
            pointer=described["pointer"],
            keyword=described["keyword"],
            num_needed=described["num_needed"],
        )


def _restored(cls: type[GrammarError], args: tuple[Any, ...], attributes: dict[str, Any]) -> GrammarError:
    # Classes differ in their __init__, so this goes around it.
    new = OSError.__new__ if issubclass(cls, OSError) else Exception.__new__
    error = new(cls, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class GrammarLimitError(GrammarError):
    """The constraint is too large, or too many constraints are waiting.

    Attributes:
        limit: the name of the limit, as in :class:`structout.Limits`.
        got: the size that was found.
        max: the largest size that is allowed.
    """

    default_kind = GrammarErrorKind.LIMIT

    def __init__(
        self,
        limit: str,
        got: int,
        max: int,
        request_id: str | None = None,
        *,
        kind: GrammarErrorKind | None = None,
    ):
        super().__init__(f"{limit} is limited to {max:,}, got {got:,}", request_id, kind=kind)
        self.limit, self.got, self.max = limit, got, max


class GrammarTimeoutError(GrammarError, TimeoutError):
    """The constraint did not compile before its deadline."""

    default_kind = GrammarErrorKind.TIMEOUT


class CompileCrashError(GrammarError):
    """The compilation crashed.

    The constraint need not be the cause, so the compilation is repeated and the failure
    is never remembered.
    """

    default_kind = GrammarErrorKind.CRASH


class DuplicateRequestError(StructOutError):
    """The manager already has a request of this id. The existing request is
    unchanged."""


class UnknownRequestError(StructOutError):
    """The manager has no request of this id."""


class StaleMasksError(StructOutError):
    """The masks' buffer has been filled by a later step."""


class CollectiveError(StructOutError):
    """The ranks of a group disagree, or one of them is gone.

    Attributes:
        rank: the rank that raises the error.
        step: number of exchanges that it had started in the group, this one included.
        at_fault: the ranks that are gone, late, refused, or disagree with rank 0. Empty
            if that is unknown.
    """

    def __init__(self, message: str, rank: int, step: int, at_fault: tuple[int, ...] = ()):
        super().__init__(f"[rank {rank}, step {step}] {message}")
        self.message, self.rank, self.step, self.at_fault = message, rank, step, at_fault

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.rank, self.step, self.at_fault)
