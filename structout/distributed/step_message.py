"""StepMessage: what a rank sends to the others in a decoding step."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from structout.distributed.checksum import row_digest

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True)
class StepMessage:
    """One rank's requests and mask rows; equal rows are sent once.

    Attributes:
        row_counts: int32 ``[requests]``: mask rows of each request.
        num_acceptable_drafts: int32 ``[requests]``, as in :class:`structout.MaskBatch`.
        terminated: int32 ``[requests]``: 1 where the text is complete.
        errors: as in :class:`structout.MaskBatch`.
        row_index: int32 ``[rows]``: the row of ``distinct_rows`` that each mask row
            equals.
        distinct_rows: int32 ``[distinct rows, W]``.
    """

    row_counts: Int32Array
    num_acceptable_drafts: Int32Array
    terminated: Int32Array
    errors: Mapping[str, str]
    row_index: Int32Array
    distinct_rows: Int32Array

    def pack(self) -> torch.Tensor:
        """Return the message as one int32 tensor."""
        errors = json.dumps(self.errors).encode()
        errors += b" " * (-len(errors) % 4)
        sizes = np.array([len(errors) // 4, len(self.row_index)], dtype=np.int32)
        parts = (
            sizes,
            self.row_counts,
            self.num_acceptable_drafts,
            self.terminated,
            np.frombuffer(errors, dtype=np.int32),
            self.row_index,
            self.distinct_rows.ravel(),
        )
        return torch.from_numpy(np.concatenate(parts))

    @classmethod
    def unpack(cls, payload: torch.Tensor, num_requests: int, width: int) -> "StepMessage":
        """Read a message of ``num_requests`` requests with masks of ``width`` words."""
        words = payload.numpy().view(np.int32)
        (errors_words, num_rows), words = words[:2], words[2:]
        ends = np.cumsum([num_requests, num_requests, num_requests, errors_words, num_rows])
        row_counts, num_acceptable_drafts, terminated, errors, row_index, distinct_rows = np.split(words, ends)
        return cls(
            row_counts,
            num_acceptable_drafts,
            terminated,
            json.loads(errors.tobytes()),
            row_index,
            distinct_rows.reshape(-1, width),
        )


def deduplicate_rows(rows: Int32Array) -> tuple[Int32Array, Int32Array]:
    """Return the index of each row among the distinct rows, and the distinct rows."""
    index_of: dict[bytes, int] = {}
    row_index = np.array([index_of.setdefault(row_digest(row), len(index_of)) for row in rows], dtype=np.int32)
    return row_index, rows[np.unique(row_index, return_index=True)[1]]
