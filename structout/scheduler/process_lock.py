"""ProcessLock: a lock that knows its holder and its process."""

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from structout.errors import StructOutError


class ProcessLock(threading.Condition):
    """A reentrant lock and condition variable of one process.

    A finalizer may run on any thread at any time, also inside of a region that holds
    the lock, whose data it must not change. Its work can be deferred to the region's
    end.

    A forked process has none of the other threads, and a lock that one of them held
    stays locked there for ever. So entering it raises instead of waiting.

    Args:
        owner: what the error message calls the object that the lock guards.
    """

    def __init__(self, owner: str):
        super().__init__()
        self._owner = owner
        self._process_id = os.getpid()
        self._deferred: deque[Callable[[], object]] = deque()

    def __enter__(self) -> bool:
        if os.getpid() != self._process_id:
            self.check_process()
        return super().__enter__()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(exc_type, exc_value, traceback)
        if self._deferred and not self.is_held():
            calls = []
            with suppress(IndexError):  # another thread may take the last one
                while self._deferred:
                    calls.append(self._deferred.popleft())
            for call in calls:
                call()

    def is_held(self) -> bool:
        """True if the calling thread holds the lock."""
        return bool(self._is_owned())  # type: ignore[attr-defined]

    def defer(self, call: Callable[[], object]) -> None:
        """Make the call once the calling thread, which holds the lock, has released
        it."""
        self._deferred.append(call)

    def is_forked(self) -> bool:
        """True if this process was forked after the lock was made."""
        return os.getpid() != self._process_id

    def check_process(self) -> None:
        """Raise ``StructOutError`` in a forked process."""
        if self.is_forked():
            raise StructOutError(
                f"this {self._owner} belongs to process {self._process_id}, from which this process was forked; "
                "its threads and locks cannot be used here. Create a new one in this process"
            )
