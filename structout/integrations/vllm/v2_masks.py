"""A step's masks on the device, for vLLM's model runner V2."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.utils.torch_utils import async_tensor_h2d

from structout.masks.batch import MaskBatch
from structout.ops.apply_bitmask import apply_bitmask
from structout.ops.sampler import DeviceMasks

_ATTRIBUTE = "structout_masks"


@dataclass(frozen=True)
class StepMasks:
    """The masks of one step, from their copy to the device until the draw.

    Attributes:
        masks: in the order of the logits rows.
        copy_stream: the stream that copies the next step's masks to the same memory.
    """

    masks: DeviceMasks
    copy_stream: Any

    def release(self) -> None:
        """Let the next step's copy begin when the work launched so far is done."""
        self.copy_stream.wait_stream(torch.cuda.current_stream())


def upload_masks(worker: Any, masks: MaskBatch, input_batch: Any) -> None:
    """Copy a step's masks to the device, while the forward pass runs, and leave them
    with the batch for its sampler.

    Args:
        worker: vLLM's ``StructuredOutputsWorker``. Its device buffer is used, which
            has a row for each logits row that a step can have.
        masks: the step's masks.
        input_batch: vLLM's ``InputBatch`` of the logits.
    """
    if len(masks.bitmask) == 0:
        return
    with torch.cuda.stream(worker.copy_stream):
        bitmask = async_tensor_h2d(masks.to("cpu"), out=worker.grammar_bitmask[: len(masks.bitmask)])
    rows = row_map(masks, input_batch)
    torch.cuda.current_stream().wait_stream(worker.copy_stream)
    setattr(input_batch, _ATTRIBUTE, StepMasks(DeviceMasks(bitmask, rows), worker.copy_stream))


def take_masks(input_batch: Any) -> StepMasks | None:
    """Remove the masks from the batch, and return them; None if no row is
    constrained."""
    return vars(input_batch).pop(_ATTRIBUTE, None)


def row_map(masks: MaskBatch, input_batch: Any) -> torch.Tensor:
    """The mask row of each logits row, int32 ``[N]`` on the device of the batch.

    A logits row beyond the mask rows of its request gets an id out of range, so that
    nothing can be drawn from it.
    """
    device = input_batch.cu_num_logits.device
    first_rows = masks.rows_for(input_batch.req_ids)
    if input_batch.num_draft_tokens_per_req is None:
        return async_tensor_h2d(first_rows, device=device)
    # Adaptive verification drops drafts on the device, and the host does not learn how
    # many rows each request has left. So the rows are counted there.
    num_rows = dict(zip(masks.request_ids, np.diff(masks.row_indptr).tolist(), strict=True))
    nums_rows = torch.tensor([num_rows.get(request_id, 0) for request_id in input_batch.req_ids], dtype=torch.int32)
    per_request = async_tensor_h2d(torch.stack([first_rows, nums_rows]), device=device)
    position = input_batch.expanded_local_pos
    first_row, num_rows_left = per_request.repeat_interleave(
        input_batch.cu_num_logits.diff(), dim=1, output_size=len(position)
    )
    row = torch.where(position < num_rows_left, first_row + position, len(masks.bitmask))
    return row.where(first_row >= 0, -1)


def mask_in_place(logits: torch.Tensor, masks: DeviceMasks | None) -> None:
    """Set disallowed logits to -inf, for code of vLLM that expects it."""
    if masks is not None:
        apply_bitmask(logits, masks.bitmask, masks.rows)
