"""Hooks of vLLM's model runner V2, in vllm/v1/worker/gpu.

A :class:`structout.MaskBatch` travels from the scheduler where vLLM sends its dense
mask, and waits with the batch until the sampler draws. vLLM keeps its own path for what
has no masks of ours.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from vllm.v1.worker.gpu.input_batch import get_num_sampled_and_rejected
from vllm.v1.worker.gpu.metrics.logits import get_num_nans
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.sample import batch_shard
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.sample.states import NO_LOGPROBS
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler, gather_draft_sampled
from vllm.v1.worker.gpu.structured_outputs import StructuredOutputsWorker

from structout.integrations.vllm.v2_masks import StepMasks, mask_in_place, take_masks, upload_masks
from structout.integrations.vllm.v2_sampling import draw, draw_and_verify, logits_context, logprobs_tensors
from structout.mask_batch import MaskBatch
from structout.sampler import DeviceMasks

Function = Callable[..., Any]


@dataclass(frozen=True)
class Hook:
    """A function of vLLM to replace.

    Attributes:
        owner: its class or module.
        name: its name there.
        parameters: the names of its first parameters in the versions that are known.
        replacement: makes the new function from vLLM's.
    """

    owner: Any
    name: str
    parameters: tuple[str, ...]
    replacement: Callable[[Function], Function]

    def fits(self) -> bool:
        """Whether this vLLM has the function as it is known."""
        function = getattr(self.owner, self.name, None)
        return function is not None and tuple(inspect.signature(function).parameters)[: len(self.parameters)] == (
            self.parameters
        )

    def install(self) -> None:
        """Replace the function."""
        function = getattr(self.owner, self.name)
        setattr(self.owner, self.name, functools.wraps(function)(self.replacement(function)))


@functools.cache
def install() -> None:
    """Make model runner V2 draw with structout. A second call does nothing.

    Raises:
        ImportError: this vLLM's model runner V2 is not one that is known. Nothing is
            replaced.
    """
    unknown = [f"{hook.owner.__name__}.{hook.name}" for hook in HOOKS if not hook.fits()]
    if unknown:
        raise ImportError(f"structout does not know {', '.join(unknown)} of this vLLM's model runner V2")
    for hook in HOOKS:
        hook.install()


def _apply_grammar_bitmask(stock: Function) -> Function:
    def apply_grammar_bitmask(
        self: Any, logits: torch.Tensor, input_batch: Any, grammar_req_ids: list[str], grammar_bitmask: Any
    ) -> None:
        if isinstance(grammar_bitmask, MaskBatch):
            upload_masks(self, grammar_bitmask, input_batch)
        else:  # at warm-up
            stock(self, logits, input_batch, grammar_req_ids, grammar_bitmask)

    return apply_grammar_bitmask


def _shard_grammar_output(stock: Function) -> Function:
    # With batch-sharded sampling each rank draws for some of the requests. vLLM cuts
    # their rows out of its dense mask; our row map finds them in the whole one.
    def shard_grammar_output(grammar_output: Any, *layout: Any) -> Any:
        if not isinstance(grammar_output.grammar_bitmask, MaskBatch):
            return stock(grammar_output, *layout)
        local = set(layout[-1])
        acceptable = grammar_output.num_acceptable_drafts
        request_ids = grammar_output.structured_output_request_ids
        kept = [i for i, request_id in enumerate(request_ids) if request_id in local]
        if not kept:
            return None
        return replace(
            grammar_output,
            structured_output_request_ids=[request_ids[i] for i in kept],
            num_acceptable_drafts=None if acceptable is None else [acceptable[i] for i in kept],
        )

    return shard_grammar_output


def _sampler_call(stock: Function) -> Function:
    def call(self: Any, logits: torch.Tensor, input_batch: Any) -> Any:
        step = take_masks(input_batch)
        masks = None if step is None else step.masks
        if _draws_by_itself(self):
            mask_in_place(logits, masks)
            output = stock(self, logits, input_batch)
        else:
            output = _sample(self, logits, masks, input_batch)
        _release(step)
        return output

    return call


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


def _rejection_sampler_call(stock: Function) -> Function:
    def call(
        self: Any,
        logits: torch.Tensor,
        input_batch: Any,
        draft_logits: torch.Tensor | None = None,
        invalid_drafts: torch.Tensor | None = None,
    ) -> Any:
        step = take_masks(input_batch)
        masks = None if step is None else step.masks
        if draft_logits is not None or _verifies_by_itself(self):
            mask_in_place(logits, masks)
            output = stock(self, logits, input_batch, draft_logits, invalid_drafts)
        else:
            output = _verify(self, logits, masks, input_batch, invalid_drafts)
        _release(step)
        return output

    return call


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


def _postprocess_sampled(stock: Function) -> Function:
    # -1 goes to the scheduler, which ends the request, but it must not reach the
    # embedding or vLLM's counts of tokens, which it would index.
    def postprocess_sampled(
        self: Any, idx_mapping: torch.Tensor, sampled_tokens: torch.Tensor, *others: Any, **named: Any
    ) -> None:
        stock(self, idx_mapping, sampled_tokens.clamp(min=0), *others, **named)

    return postprocess_sampled


def _draws_by_itself(sampler: Any) -> bool:
    """Whether the engine's configuration asks for a draw that is vLLM's own: it is
    watermarked, or returned with the tokens that the filters keep."""
    return type(sampler) is not Sampler or bool(sampler.return_sampling_mask)


def _verifies_by_itself(rejection_sampler: Any) -> bool:
    """Whether the engine's configuration asks for a rule of acceptance other than the
    standard one."""
    return (
        type(rejection_sampler) is not RejectionSampler
        or _draws_by_itself(rejection_sampler.sampler)
        or rejection_sampler.synthetic_conditional_rates is not None
        or rejection_sampler.use_block_verification
        or getattr(rejection_sampler, "fly_window_size", 0) > 0  # since 0.33
    )


def _release(step: StepMasks | None) -> None:
    if step is not None:
        step.release()


HOOKS = (
    Hook(
        StructuredOutputsWorker,
        "apply_grammar_bitmask",
        ("self", "logits", "input_batch", "grammar_req_ids", "grammar_bitmask"),
        _apply_grammar_bitmask,
    ),
    Hook(batch_shard, "_shard_grammar_output", ("grammar_output",), _shard_grammar_output),
    Hook(Sampler, "__call__", ("self", "logits", "input_batch"), _sampler_call),
    Hook(
        RejectionSampler,
        "__call__",
        ("self", "logits", "input_batch", "draft_logits", "invalid_drafts"),
        _rejection_sampler_call,
    ),
    Hook(GPUModelRunner, "postprocess_sampled", ("self", "idx_mapping", "sampled_tokens"), _postprocess_sampled),
)
