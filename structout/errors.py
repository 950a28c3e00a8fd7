"""What the scheduler side and the ranks of a group raise. Each error says which request or rank it is about."""


class StructOutError(Exception):
    """Base of all manager errors. ``request_id`` is None where no single request is at fault."""

    def __init__(self, message: str, request_id: str | None = None):
        super().__init__(message)
        self.request_id = request_id


class GrammarError(StructOutError, ValueError):
    """The constraint is malformed, unsupported, or allows no text at all."""


class GrammarLimitError(GrammarError):
    """The constraint, or the number of them that wait, is larger than the manager takes.

    Attributes:
        limit: the name of the limit, as in :class:`structout.config.Limits`.
        got: what came.
        max: what is taken.
    """

    def __init__(self, limit: str, got: int, max: int, request_id: str | None = None):
        super().__init__(f"{limit} is limited to {max:,}, got {got:,}", request_id)
        self.limit, self.got, self.max = limit, got, max

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.limit, self.got, self.max, self.request_id)


class GrammarTimeoutError(GrammarError, TimeoutError):
    """The constraint was not compiled in time."""


class CompileCrashError(GrammarError):
    """The compilation broke down. The constraint need not be at fault, so this is tried again and never remembered."""


class DuplicateRequestError(StructOutError):
    """A request of this id is already with the manager; it is untouched."""


class UnknownRequestError(StructOutError):
    """No request of this id is with the manager."""


class CollectiveError(StructOutError):
    """The ranks of a group could not agree, or one of them is gone.

    Attributes:
        rank: the rank that raises.
        step: how many exchanges it had begun in the group, this one included.
        at_fault: the ranks that are gone, late, refused, or disagree with rank 0; empty where that cannot be told.
    """

    def __init__(self, message: str, rank: int, step: int, at_fault: tuple[int, ...] = ()):
        super().__init__(f"[rank {rank}, step {step}] {message}")
        self.message, self.rank, self.step, self.at_fault = message, rank, step, at_fault

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.rank, self.step, self.at_fault)
