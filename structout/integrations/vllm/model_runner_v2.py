"""The sampler of vLLM's model runner V2 (vllm/v1/worker/gpu).

The masks of a step come where vLLM applies its dense ones, and wait with the batch
until its sampler draws. The CPU's and XPU's model runners inherit it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from vllm.v1.core.sched.output import GrammarOutput
from vllm.v1.worker.gpu.input_batch import get_num_sampled_and_rejected
from vllm.v1.worker.gpu.metrics.logits import get_num_nans
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.sample.states import NO_LOGPROBS
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler, gather_draft_sampled

from structout.integrations.vllm.v2_masks import StepMasks, mask_in_place, take_masks, upload_masks
from structout.integrations.vllm.v2_sampling import draw, draw_and_verify, logits_context, logprobs_tensors
from structout.integrations.vllm.worker_states import UNDRAWABLE, DeviceDrafts, joined, states_of
from structout.masks.batch import MaskBatch
from structout.ops.sampler import DeviceMasks

_Function = Callable[..., Any]


def beginning_steps(update_requests: _Function) -> _Function:
    """Make the replacement of ``GPUModelRunner.update_requests``, the last of the
    scheduler's changes."""

    def _update_requests(self: Any, scheduler_output: Any) -> None:
        update_requests(self, scheduler_output)
        states = states_of(self)
        if states is not None:
            known, num_scheduled = self.req_states, scheduler_output.num_scheduled_tokens
            drawing = [
                request_id
                for request_id in num_scheduled
                if known.num_computed_tokens_np[index := known.req_id_to_index[request_id]] + num_scheduled[request_id]
                >= known.prefill_len.np[index]
            ]
            drafts = DeviceDrafts(known.draft_tokens, known.req_id_to_index)
            states.begin_step(scheduler_output, drawing, drafts)

    return _update_requests


def taking_masks(sample: _Function) -> _Function:
    """Make the replacement of ``GPUModelRunner.sample``: the masks of the worker's own
    states come as those of the scheduler do."""

    def _sample(self: Any, hidden_states: torch.Tensor, input_batch: Any, grammar_output: Any) -> Any:
        states = states_of(self)
        if states is None:
            return sample(self, hidden_states, input_batch, grammar_output)
        own = states.take_masks()
        if own is not None:
            masks = joined(own, None if grammar_output is None else grammar_output.grammar_bitmask)
            assert masks is not None
            grammar_output = GrammarOutput(list(masks.request_ids), masks, masks.num_acceptable_drafts.tolist())
        output = sample(self, hidden_states, input_batch, grammar_output)
        index_of = {request_id: index for index, request_id in enumerate(input_batch.req_ids)}
        states.end_step(_drawn_tokens(output[0]), index_of)
        return output

    return _sample


def _drawn_tokens(output: Any) -> torch.Tensor:
    """The tokens ``[B, S]`` of a ``SamplerOutput``, -1 after those of each request."""
    token_ids = output.sampled_token_ids
    if token_ids.shape[1] == 1:
        return token_ids
    columns = torch.arange(token_ids.shape[1], device=token_ids.device)
    token_ids = token_ids.where(token_ids >= 0, UNDRAWABLE)
    return token_ids.where(columns < output.num_sampled.unsqueeze(1), -1)


def applying_masks(apply_grammar_bitmask: _Function) -> _Function:
    """Make the replacement of ``StructuredOutputsWorker.apply_grammar_bitmask``: the
    masks wait for the sampler, which applies them while it draws."""

    def keep_masks(
        self: Any, logits: torch.Tensor, input_batch: Any, grammar_req_ids: list[str], grammar_bitmask: Any
    ) -> None:
        if isinstance(grammar_bitmask, MaskBatch):
            upload_masks(self, grammar_bitmask, input_batch)
        else:  # at warm-up
            apply_grammar_bitmask(self, logits, input_batch, grammar_req_ids, grammar_bitmask)

    return keep_masks


def sharding_masks(shard_grammar_output: _Function) -> _Function:
    """Make the replacement of ``_shard_grammar_output``.

    With batch-sharded sampling each rank draws for some of the requests. vLLM cuts
    their rows out of its dense mask. Our row map finds them in the masks of all.
    """

    def _shard_grammar_output(grammar_output: Any, *layout: Any) -> Any:
        if not isinstance(grammar_output.grammar_bitmask, MaskBatch):
            return shard_grammar_output(grammar_output, *layout)
        local_ids = set(layout[-1])  # after the batch, which 0.32 passes too
        request_ids = grammar_output.structured_output_request_ids
        acceptable = grammar_output.num_acceptable_drafts
        kept = [i for i, request_id in enumerate(request_ids) if request_id in local_ids]
        if not kept:
            return None
        return replace(
            grammar_output,
            structured_output_request_ids=[request_ids[i] for i in kept],
            num_acceptable_drafts=None if acceptable is None else [acceptable[i] for i in kept],
        )

    return _shard_grammar_output


def sampling(sample: _Function) -> _Function:
    """Make the replacement of ``Sampler.__call__``."""

    def __call__(self: Any, logits: torch.Tensor, input_batch: Any) -> Any:
        step = take_masks(input_batch)
        masks = None if step is None else step.masks
        if _is_own_draw(self):
            mask_in_place(logits, masks)
            output = sample(self, logits, input_batch)
        else:
            output = _sample(self, logits, masks, input_batch)
        _release(step)
        return output

    return __call__


def _sample(sampler: Any, logits: torch.Tensor, masks: DeviceMasks | None, input_batch: Any) -> Any:
    num_nans = get_num_nans(logits) if sampler.compute_nans else None
    last_inputs = input_batch.logits_indices
    context = logits_context(input_batch, input_batch.input_ids[last_inputs], input_batch.positions[last_inputs])
    ids = draw(sampler, logits, masks, context)
    if sampler.trace_replay_state is not None:
        sampler.trace_replay_state.apply_trace(ids, input_batch.idx_mapping)
    dims = sampler.get_logprobs_dims(input_batch.idx_mapping_np)
    logprobs = None if dims is None else logprobs_tensors(sampler, logits, masks, ids, context, dims, None)
    num_sampled, num_rejected = get_num_sampled_and_rejected(
        input_batch.seq_lens.new_ones(input_batch.num_reqs),
        input_batch.seq_lens,
        input_batch.cu_num_logits,
        input_batch.idx_mapping,
        sampler.req_states.prefill_len.gpu,
    )
    return SamplerOutput(ids.view(-1, 1), logprobs, num_nans, num_sampled, num_rejected)


def verifying(verify: _Function) -> _Function:
    """Make the replacement of ``RejectionSampler.__call__``."""

    def __call__(
        self: Any,
        logits: torch.Tensor,
        input_batch: Any,
        draft_logits: torch.Tensor | None = None,
        invalid_drafts: torch.Tensor | None = None,
    ) -> Any:
        step = take_masks(input_batch)
        masks = None if step is None else step.masks
        if draft_logits is not None or _is_own_verification(self):
            mask_in_place(logits, masks)
            output = verify(self, logits, input_batch, draft_logits, invalid_drafts)
        else:
            output = _verify(self, logits, masks, input_batch, invalid_drafts)
        _release(step)
        return output

    return __call__


def _verify(
    rejection_sampler: Any,
    logits: torch.Tensor,
    masks: DeviceMasks | None,
    input_batch: Any,
    invalid_drafts: torch.Tensor | None,
) -> Any:
    sampler = rejection_sampler.sampler
    num_nans = get_num_nans(logits) if sampler.compute_nans else None
    input_ids, positions = gather_draft_sampled(
        input_batch.input_ids,
        input_batch.positions,
        input_batch.logits_indices,
        input_batch.expanded_idx_mapping,
        input_batch.expanded_local_pos,
        sampler.req_states.prefill_len.gpu,
    )
    context = logits_context(input_batch, input_ids, positions)
    # The grammar has not seen these drafts; their rows are free.
    valid_ids = input_ids if invalid_drafts is None else input_ids.masked_fill(invalid_drafts, -1)
    drafts = valid_ids.roll(-1).to(torch.int64)  # row j confirms the input of row j + 1
    ids, num_accepted = draw_and_verify(rejection_sampler, logits, masks, context, drafts, input_batch)
    logprobs = None
    max_num_logprobs = sampler.sampling_states.max_num_logprobs(input_batch.idx_mapping_np)
    if max_num_logprobs != NO_LOGPROBS:
        first_rows = _first_rows(rejection_sampler, logits, input_batch)
        logprobs = logprobs_tensors(sampler, logits, masks, ids, context, (max_num_logprobs, 0), first_rows)
    num_sampled, num_rejected = get_num_sampled_and_rejected(
        num_accepted + 1,
        input_batch.seq_lens,
        input_batch.cu_num_logits,
        input_batch.idx_mapping,
        sampler.req_states.prefill_len.gpu,
    )
    # vLLM reads the first num_sampled entries of a request's row.
    offsets = torch.arange(rejection_sampler.num_speculative_steps + 1, device=ids.device)
    entries = (input_batch.cu_num_logits[:-1, None] + offsets).clamp(max=len(ids) - 1)
    return SamplerOutput(ids[entries], logprobs, num_nans, num_sampled, num_rejected)


def _first_rows(rejection_sampler: Any, logits: torch.Tensor, input_batch: Any) -> list[int] | torch.Tensor | None:
    """The first logits row of each request, where vLLM knows it: on the host, or only
    on the device. None if each request has one row."""
    if len(logits) == input_batch.num_reqs:
        return None
    if rejection_sampler.enable_adaptive_verification:
        copy: torch.Tensor = input_batch.cu_num_logits.clone()
        return copy
    first_rows: list[int] = input_batch.cu_num_logits_np.tolist()
    return first_rows


def postprocessing(postprocess_sampled: _Function) -> _Function:
    """Make the replacement of ``GPUModelRunner.postprocess_sampled``.

    It feeds the drawn ids back, and counts them for the penalties. The id of a dead end
    must be an index of the embedding and of the counts there. The scheduler gets it as
    it is, and ends the request.
    """

    def _postprocess_sampled(
        self: Any, idx_mapping: torch.Tensor, sampled_tokens: torch.Tensor, *args: Any, **kwargs: Any
    ) -> None:
        postprocess_sampled(self, idx_mapping, sampled_tokens.clamp(min=0), *args, **kwargs)

    return _postprocess_sampled


def _is_own_draw(sampler: Any) -> bool:
    """True if the engine is configured for a draw of vLLM's own: one with a watermark,
    or one that also returns the tokens that the filters keep."""
    return type(sampler) is not Sampler or bool(sampler.return_sampling_mask)


def _is_own_verification(rejection_sampler: Any) -> bool:
    """True if the engine is configured for a rule of acceptance other than the standard
    one, such as block verification, or for a draw of vLLM's own."""
    return (
        type(rejection_sampler) is not RejectionSampler
        or _is_own_draw(rejection_sampler.sampler)
        or rejection_sampler.synthetic_conditional_rates is not None
        or rejection_sampler.use_block_verification
        or getattr(rejection_sampler, "fly_window_size", 0) > 0  # since 0.33
    )


def _release(step: StepMasks | None) -> None:
    if step is not None:
        step.release()
