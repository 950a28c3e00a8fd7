"""The draw of vLLM's model runner V2, with the request states that vLLM keeps on the
device."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.config.model import PROCESSED_LOGPROBS_MODES
from vllm.v1.worker.gpu.sample.bad_words import BadWordsState
from vllm.v1.worker.gpu.sample.logit_bias import LogitBiasState
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext
from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores
from vllm.v1.worker.gpu.sample.penalties import PenaltiesState
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import _iter_request_chunks, get_max_chunk_logits

from structout.integrations.vllm.logprobs import listed_logprobs
from structout.integrations.vllm.v2_masks import mask_in_place
from structout.ops.masked_sample import masked_sample
from structout.ops.sampler import DeviceMasks, SamplingParams, op_arguments
from structout.ops.token_logprobs import MAX_TOP_N
from structout.ops.verify_drafts import verify_drafts

_NATIVE = (LogitBiasState, PenaltiesState, BadWordsState)


def logits_context(input_batch: Any, input_ids: torch.Tensor, positions: torch.Tensor) -> Any:
    """The layout of a step's logits rows, as vLLM's logits processors take it.

    Args:
        input_batch: vLLM's ``InputBatch``.
        input_ids: the token fed at each logits row.
        positions: int64 ``[N]``, the position of each logits row in its text.
    """
    return LogitsContext(
        expanded_idx_mapping=input_batch.expanded_idx_mapping,
        idx_mapping=input_batch.idx_mapping,
        idx_mapping_np=input_batch.idx_mapping_np,
        expanded_local_pos=input_batch.expanded_local_pos,
        input_ids=input_ids,
        pos=positions,
        seq_lens_upper_bound_np=input_batch.seq_lens_cpu_upper_bound.numpy(),
    )


def draw(sampler: Any, logits: torch.Tensor, masks: DeviceMasks | None, context: Any) -> torch.Tensor:
    """Draw one token from each logits row.

    Args:
        sampler: vLLM's ``Sampler``, which keeps the parameters of the requests.
        logits: ``[N, V]``. Disallowed ones become -inf if vLLM's processors need it.
        masks: the step's masks.
        context: the layout of the rows.

    Returns:
        int64 ``[N]``, -1 where no token can be drawn.
    """
    logits, masks = _processed(sampler, logits, masks, context)
    return masked_sample(logits, **op_arguments(masks, _sampling_params(sampler, context)))


def draw_and_verify(
    rejection_sampler: Any,
    logits: torch.Tensor,
    masks: DeviceMasks | None,
    context: Any,
    drafts: torch.Tensor,
    input_batch: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token from each logits row, and count the drafts that were drawn.

    Args:
        rejection_sampler: vLLM's ``RejectionSampler``.
        logits: ``[T, V]``, as in :func:`draw`.
        masks: the step's masks.
        context: the layout of the rows.
        drafts: int64 ``[T]``, the token that each row is to confirm.
        input_batch: vLLM's ``InputBatch``.

    Returns:
        ids int64 ``[T]`` and num_accepted int32 ``[B]``, as
        :func:`structout.verify_drafts`.
    """
    sampler, results = rejection_sampler.sampler, []
    for requests, rows in _chunks(rejection_sampler, logits, context, input_batch):
        row_indptr = input_batch.cu_num_logits[requests.start : requests.stop + 1] - rows.start
        part = _part(context, requests, rows)
        part_masks = None if masks is None else DeviceMasks(masks.bitmask, masks.rows[rows])
        part_logits, part_masks = _processed(sampler, logits[rows], part_masks, part)
        arguments = op_arguments(part_masks, _sampling_params(sampler, part))
        results.append(verify_drafts(part_logits, drafts[rows], row_indptr, **arguments))
        del part_logits  # before the next part's copy is made
    if len(results) == 1:
        return results[0]
    return torch.cat([ids for ids, _ in results]), torch.cat([accepted for _, accepted in results])


def _chunks(
    rejection_sampler: Any, logits: torch.Tensor, context: Any, input_batch: Any
) -> Iterable[tuple[slice, slice]]:
    """The requests and the logits rows of each part of the batch that is copied to
    float32 at once: all, or what vLLM's own limit allows."""
    num_rows, vocab_size = logits.shape
    limit = get_max_chunk_logits(vocab_size)
    is_copied = _has_processing(rejection_sampler.sampler, context.idx_mapping_np)
    # Adaptive verification makes the row numbers on the host stale. vLLM then keeps the
    # batch within the limit.
    if not is_copied or num_rows <= limit or rejection_sampler.enable_adaptive_verification:
        yield slice(0, input_batch.num_reqs), slice(0, num_rows)
        return
    first_rows = input_batch.cu_num_logits_np
    for start, end in _iter_request_chunks(first_rows, limit):
        yield slice(start, end), slice(int(first_rows[start]), int(first_rows[end]))


def _part(context: Any, requests: slice, rows: slice) -> Any:
    return replace(
        context,
        expanded_idx_mapping=context.expanded_idx_mapping[rows],
        idx_mapping=context.idx_mapping[requests],
        idx_mapping_np=context.idx_mapping_np[requests],
        expanded_local_pos=context.expanded_local_pos[rows],
        input_ids=context.input_ids[rows],
        pos=context.pos[rows],
        seq_lens_upper_bound_np=context.seq_lens_upper_bound_np[requests],
    )


def _sampling_params(sampler: Any, context: Any) -> SamplingParams:
    """The parameters of the rows. A filter that no request of the batch uses is
    None."""
    states, requests, rows = sampler.sampling_states, context.idx_mapping_np, context.expanded_idx_mapping
    if np.all(states.temperature.np[requests] == 0.0):
        return SamplingParams(temperature=0.0)

    def if_used(parameter: Any, off: float) -> torch.Tensor | None:
        return None if np.all(parameter.np[requests] == off) else parameter.gpu[rows]

    return SamplingParams(
        temperature=states.temperature.gpu[rows],
        top_k=if_used(states.top_k, states.vocab_size),
        top_p=if_used(states.top_p, 1.0),
        min_p=if_used(states.min_p, 0.0),
        seed=states.seeds.gpu[rows],
        position=context.pos,
    )


def _processed(
    sampler: Any, logits: torch.Tensor, masks: DeviceMasks | None, context: Any
) -> tuple[torch.Tensor, DeviceMasks | None]:
    """Bias, penalties, bad words and the like, by vLLM's kernels: their states, counts
    of a request's tokens for example, are on the device and dense already.

    Returns:
        the logits, or a changed float32 copy; and the masks that the draw is to apply.
    """
    requests = context.idx_mapping_np
    if not _has_processing(sampler, requests):
        return logits, masks
    if _needs_masked_logits(sampler, requests):
        mask_in_place(logits, masks)
        masks = None
    logits = torch.empty_like(logits, dtype=torch.float32).copy_(logits)
    for processor in sampler.logits_processors:
        logits = processor.apply(logits, context)
    sampler.thinking_budget_state.apply(logits, context)
    return logits, masks


def _has_processing(sampler: Any, requests: npt.NDArray[np.int32]) -> bool:
    # This flag of vLLM's is also set for temperature, top_k, top_p and min_p.
    if not np.any(sampler.needs_logits_processing[requests]):
        return False
    return _has_thinking_budget(sampler, requests) or any(
        _is_active(processor, requests) for processor in sampler.logits_processors
    )


def _is_active(processor: Any, requests: npt.NDArray[np.int32]) -> bool:
    match processor:
        case LogitBiasState():
            return bool(np.any(processor.use_logit_bias[requests]))
        case PenaltiesState():
            return bool(np.any(processor.use_penalty[requests]))
        case BadWordsState():
            return bool(np.any(processor.num_bad_words.np[requests]))
    return True


def _has_thinking_budget(sampler: Any, requests: npt.NDArray[np.int32]) -> bool:
    state = sampler.thinking_budget_state
    return bool(state.enabled and np.any(state.use_thinking_budget[requests]))


def _needs_masked_logits(sampler: Any, requests: npt.NDArray[np.int32]) -> bool:
    """True if a logits processor needs logits that the masks are applied to.

    ``min_tokens`` gives stop tokens back where the grammar allows nothing else, a
    thinking budget overrules the masks, and other packages' processors are promised
    masked logits.
    """
    return _has_thinking_budget(sampler, requests) or any(
        bool(np.any(processor.restore_when_all_masked.np[requests]))
        if isinstance(processor, LogitBiasState)
        else not isinstance(processor, _NATIVE)
        for processor in sampler.logits_processors
    )


def logprobs_tensors(
    sampler: Any,
    logits: torch.Tensor,
    masks: DeviceMasks | None,
    ids: torch.Tensor,
    context: Any,
    dims: tuple[int, int],
    cu_num_logits: list[int] | torch.Tensor | None,
) -> Any:
    """The logprobs of the drawn tokens, as vLLM's ``LogprobsTensors``.

    vLLM's raw logprobs are those among the allowed tokens, before penalties, bias and
    temperature.

    Args:
        sampler: vLLM's ``Sampler``.
        logits: ``[N, V]``, as they were before the draw.
        masks: the step's masks.
        ids: int64 ``[N]``, the drawn tokens.
        context: the layout of the rows.
        dims: how many of the likeliest tokens, and of tokens that a request lists.
        cu_num_logits: the first row of each request; None if each has one.
    """
    num_logprobs, num_listed = dims
    if sampler.logprobs_mode == "raw_logprobs" and num_listed == 0 and num_logprobs <= MAX_TOP_N:
        is_on_device = isinstance(cu_num_logits, torch.Tensor)
        return listed_logprobs(logits, ids, masks, num_logprobs)._replace(
            cu_num_generated_tokens=None if is_on_device else cu_num_logits,
            cu_num_generated_tokens_tensor=cu_num_logits if is_on_device else None,
        )
    # Other modes score filtered logits or no probabilities, and all tokens of the
    # vocabulary can be asked for: vLLM's own functions do that, on masked logits.
    mask_in_place(logits, masks)
    if sampler.logprobs_mode in PROCESSED_LOGPROBS_MODES:
        logits = sampler.apply_sampling_params(
            logits,
            context.expanded_idx_mapping,
            context.idx_mapping,
            context.idx_mapping_np,
            context.pos,
            context.input_ids,
            context.expanded_local_pos,
            context.seq_lens_upper_bound_np,
        )
    return compute_topk_scores(
        logits,
        num_logprobs,
        ids.clamp(min=0),
        cu_num_logits,
        logprob_token_ids_state=sampler.logprob_token_ids_state,
        expanded_idx_mapping=context.expanded_idx_mapping,
        max_per_req_token_ids=num_listed,
        logits_mode=sampler.logprobs_mode in ("raw_logits", "processed_logits"),
    )
