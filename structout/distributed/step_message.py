"""StepMessage: what a rank sends to the others in a decoding step."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True)
class StepMessage:
    """One rank's requests and mask rows.

    Attributes:
        row_counts: int32 ``[requests]``: mask rows of each request.
        num_acceptable_drafts: int32 ``[requests]``, as in :class:`structout.MaskBatch`.
        terminated: int32 ``[requests]``: 1 where the text is complete.
        errors: as in :class:`structout.MaskBatch`.
        has_missed_masks: whether the others are asked to tell all masks again.
        masks: uint32 words as ``csrc/masks/mask_messages.h`` describes: numbers of
            masks that were told before, and new masks.
    """

    row_counts: Int32Array
    num_acceptable_drafts: Int32Array
    terminated: Int32Array
    errors: Mapping[str, str]
    has_missed_masks: bool
    masks: npt.NDArray[np.uint32]

    def pack(self) -> torch.Tensor:
        """Return the message as one int32 tensor."""
        errors = json.dumps(self.errors).encode() if self.errors else b""
        errors += b" " * (-len(errors) % 4)
        sizes = np.array([len(errors) // 4, self.has_missed_masks], dtype=np.int32)
        parts = (
            sizes,
            self.row_counts,
            self.num_acceptable_drafts,
            self.terminated,
            np.frombuffer(errors, dtype=np.int32),
            self.masks.view(np.int32),
        )
        return torch.from_numpy(np.concatenate(parts))

    @classmethod
    def unpack(cls, payload: torch.Tensor, num_requests: int) -> "StepMessage":
        """Read a message of ``num_requests`` requests."""
        words = payload.numpy().view(np.int32)
        (errors_words, has_missed_masks), words = words[:2], words[2:]
        row_counts, num_acceptable_drafts, terminated = words[: 3 * num_requests].reshape(3, -1)
        words = words[3 * num_requests :]
        errors = json.loads(words[:errors_words].tobytes() or b"{}")
        masks = words[errors_words:].view(np.uint32)
        return cls(row_counts, num_acceptable_drafts, terminated, errors, bool(has_missed_masks), masks)
