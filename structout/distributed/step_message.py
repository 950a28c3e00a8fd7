"""StepMessage: what a rank sends to the others in a decoding step."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

UInt32Array = npt.NDArray[np.uint32]
NO_MASKS: UInt32Array = np.zeros(0, dtype=np.uint32)
_LENGTH_BYTES = 4


@dataclass(frozen=True)
class StepMessage:
    """What the others do not know of one rank's requests and masks.

    Attributes:
        row_counts: the mask rows of each request, in steps in which they depend on
            where it stands. Empty in others.
        num_acceptable_drafts: of each request, as in :class:`structout.MaskBatch`.
            Empty in steps without drafts.
        terminated: the requests whose text is complete, unless all ranks know it.
        errors: as in :class:`structout.MaskBatch`.
        masks: uint32 words as ``csrc/masks/mask_messages.h`` describes: numbers of
            masks that were told before, and new masks. Empty if the others read the
            masks elsewhere.
    """

    row_counts: list[int]
    num_acceptable_drafts: list[int]
    terminated: list[str]
    errors: Mapping[str, str]
    masks: UInt32Array

    def pack(self) -> torch.Tensor:
        """Return the message as uint8: the masks, JSON of the rest, and its length in
        four bytes. A message that tells nothing is empty."""
        if not (self.row_counts or self.num_acceptable_drafts or self.terminated or self.errors or len(self.masks)):
            return _NO_BYTES
        text = json.dumps([self.row_counts, self.num_acceptable_drafts, self.terminated, self.errors]).encode()
        message = bytearray().join((self.masks.data, text, len(text).to_bytes(_LENGTH_BYTES, "little")))
        return torch.frombuffer(message, dtype=torch.uint8)

    @classmethod
    def unpack(cls, payload: torch.Tensor) -> "StepMessage":
        """Read a message. Its masks are valid as long as the payload is."""
        if payload.numel() == 0:
            return _NOTHING
        message = payload.numpy()
        end_of_text = len(message) - _LENGTH_BYTES
        end_of_masks = end_of_text - int.from_bytes(message[end_of_text:].tobytes(), "little")
        row_counts, num_drafts, terminated, errors = json.loads(message[end_of_masks:end_of_text].tobytes())
        return cls(row_counts, num_drafts, terminated, errors, message[:end_of_masks].view(np.uint32))


_NOTHING = StepMessage([], [], [], {}, NO_MASKS)
_NO_BYTES = torch.zeros(0, dtype=torch.uint8)
