"""Errors of the scheduler side and of the ranks of a group. Each names its request or
rank."""


class StructOutError(Exception):
    """Base class of all errors of the manager.

    Attributes:
        request_id: the request that failed, or None if no single request is at fault.
    """

    def __init__(self, message: str, request_id: str | None = None):
        super().__init__(message)
        self.request_id = request_id


class GrammarError(StructOutError, ValueError):
    """The constraint is malformed, unsupported, or allows no text at all."""


class GrammarLimitError(GrammarError):
    """The constraint is too large, or too many constraints are waiting.

    Attributes:
        limit: the name of the limit, as in :class:`structout.config.Limits`.
        got: the size that was found.
        max: the largest size that is allowed.
    """

    def __init__(self, limit: str, got: int, max: int, request_id: str | None = None):
        super().__init__(f"{limit} is limited to {max:,}, got {got:,}", request_id)
        self.limit, self.got, self.max = limit, got, max

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.limit, self.got, self.max, self.request_id)


class GrammarTimeoutError(GrammarError, TimeoutError):
    """The constraint did not compile before its deadline."""


class CompileCrashError(GrammarError):
    """The compilation crashed.

    The constraint need not be the cause, so the compilation is repeated and the failure
    is never remembered.
    """


class DuplicateRequestError(StructOutError):
    """The manager already has a request of this id. That request is unchanged."""


class UnknownRequestError(StructOutError):
    """The manager has no request of this id."""


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
