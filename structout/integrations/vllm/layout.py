"""Layout: which logits rows belong to which requests of a vLLM worker's batch."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt


class Layout:
    """The logits rows of a step: 1 + its number of drafts for each request, in the
    order of the batch.

    Args:
        requests: the ``CachedRequestState`` of each request of the batch.
        num_drafts: how many drafts each request has in this step; None without drafts.
        drafts: the drafts of each request, as far as the host knows them.
    """

    def __init__(
        self, requests: Sequence[Any], num_drafts: Sequence[int] | None = None, drafts: Sequence[Sequence[int]] = ()
    ):
        self.requests = requests
        self._drafts = drafts
        self.num_logits = [1] * len(requests) if num_drafts is None else [1 + count for count in num_drafts]
        self.row_indptr = np.append(0, np.cumsum(self.num_logits, dtype=np.int64))
        self._first_row = {request.req_id: int(row) for request, row in zip(requests, self.row_indptr, strict=False)}

    @property
    def num_rows(self) -> int:
        return int(self.row_indptr[-1])

    @cached_property
    def request_ids(self) -> list[str]:
        return [request.req_id for request in self.requests]

    @cached_property
    def index_of_row(self) -> npt.NDArray[np.int64]:
        """The index of each row's request in the batch."""
        return np.repeat(np.arange(len(self.requests)), self.num_logits)

    @cached_property
    def place_of_row(self) -> npt.NDArray[np.int64]:
        """The number of drafts that precede each row in its request."""
        return np.arange(self.num_rows) - self.row_indptr[self.index_of_row]

    def rows_of(self, requests: Iterable[Any]) -> Iterator[tuple[Any, int, Sequence[int]]]:
        """Yield each row of the requests: its request, its index, and the drafts that
        precede it."""
        for request in requests:
            first = self._first_row[request.req_id]
            index = int(self.index_of_row[first])
            drafts = self._drafts[index] if self._drafts else ()
            for place in range(self.num_logits[index]):
                yield request, first + place, drafts[:place]
