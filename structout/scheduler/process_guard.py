"""ForkGuard: refuses to use an object in a process forked from the one that made it."""

import os

from structout.errors import StructOutError


class ForkGuard:
    """Remembers the process that owns an object.

    Only the calling thread survives a fork: worker threads are gone, and a lock that
    another thread held stays locked forever. Check before taking such a lock.

    Args:
        owner: what the error message calls the object, such as its class name.
    """

    def __init__(self, owner: str):
        self._owner = owner
        self._process_id = os.getpid()

    def is_forked(self) -> bool:
        """Whether this process was forked after the object was made."""
        return os.getpid() != self._process_id

    def check(self) -> None:
        """Raise ``StructOutError`` in a forked process."""
        if self.is_forked():
            raise StructOutError(
                f"this {self._owner} belongs to process {self._process_id}, from which this process was forked; "
                "its threads and locks cannot be used here. Create a new one in this process"
            )
