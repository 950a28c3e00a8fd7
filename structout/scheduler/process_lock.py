"""ProcessLock: a lock that knows its holder and its process."""

import os
import threading

from structout.errors import StructOutError


class ProcessLock(threading.Condition):
    """A reentrant lock and condition variable of one process.

    A forked process has none of the other threads, and a lock that one of them held
    stays locked there for ever. So entering it raises instead of waiting.

    Args:
        owner: what the error message calls the object that the lock guards.
    """

    def __init__(self, owner: str):
        super().__init__()
        self._owner = owner
        self._process_id = os.getpid()

    def __enter__(self) -> bool:
        self.check_process()
        return super().__enter__()

    def is_held(self) -> bool:
        """Whether the calling thread holds the lock.

        A finalizer runs on any thread at any time, also inside of a locked region,
        whose data it must not change.
        """
        return bool(self._is_owned())  # type: ignore[attr-defined]

    def is_forked(self) -> bool:
        """Whether this process was forked after the lock was made."""
        return os.getpid() != self._process_id

    def check_process(self) -> None:
        """Raise ``StructOutError`` in a forked process."""
        if self.is_forked():
            raise StructOutError(
                f"this {self._owner} belongs to process {self._process_id}, from which this process was forked; "
                "its threads and locks cannot be used here. Create a new one in this process"
            )
