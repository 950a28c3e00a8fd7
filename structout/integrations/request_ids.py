"""Ids for the requests of callers that share a manager."""

import itertools
from collections.abc import Iterator

_numbers: Iterator[int] = itertools.count()


def new_request_id(owner: str) -> str:
    """An id that no other request of a shared manager has."""
    return f"{owner}-{next(_numbers)}"
