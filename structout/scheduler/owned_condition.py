"""A condition variable that knows its holder."""

import threading


class OwnedCondition(threading.Condition):
    """A condition variable that tells whether the calling thread holds its lock.

    A finalizer runs on any thread at any time, also inside of a locked region. There it
    must take no other lock, and must not change what the region reads.
    """

    def is_held(self) -> bool:
        """Whether the calling thread holds the lock."""
        return bool(self._is_owned())  # type: ignore[attr-defined]
