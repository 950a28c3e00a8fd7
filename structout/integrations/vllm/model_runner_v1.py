"""The sampler of vLLM's model runner V1 (vllm/v1/worker/gpu_model_runner.py).

The CPU's and XPU's model runners inherit it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.logits_processor.builtin import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)

from structout.integrations.vllm.layout import Layout
from structout.integrations.vllm.logprobs import dense_logprobs, is_dense, listed_logprobs
from structout.integrations.vllm.mask_edits import MaskEdits, edits_masks
from structout.integrations.vllm.token_lists import TokenLists
from structout.integrations.vllm.worker_states import UNDRAWABLE, joined, states_of
from structout.masks.batch import MaskBatch
from structout.ops.apply_bitmask import apply_bitmask
from structout.ops.listed_logits import apply_logit_bias, apply_penalties
from structout.ops.masked_sample import masked_sample
from structout.ops.sampler import DeviceMasks, SamplingParams, op_arguments
from structout.ops.verify_drafts import verify_drafts

_MASKS = "structout_masks"  # attribute of the input batch, from one hook to the next
_SAMPLER = "structout_sampler"  # attribute of the model runner

# The processors whose work masked_sample, apply_logit_bias and the masks do.
_REPLACED_PROCESSORS = (MinPLogitsProcessor, LogitBiasLogitsProcessor, MinTokensLogitsProcessor)

_Ints = npt.NDArray[np.int64]


def applying_masks(apply_grammar_bitmask: Callable[..., None]) -> Callable[..., None]:
    """Make the replacement of ``apply_grammar_bitmask``: the masks wait for
    ``_sample``, which applies them while it draws."""

    def keep_masks(scheduler_output: Any, grammar_output: Any, input_batch: Any, logits: torch.Tensor) -> None:
        if isinstance(grammar_output.grammar_bitmask, MaskBatch):
            setattr(input_batch, _MASKS, grammar_output.grammar_bitmask)
        else:
            apply_grammar_bitmask(scheduler_output, grammar_output, input_batch, logits)

    return keep_masks


def beginning_steps(update_states: Callable[..., Any]) -> Callable[..., Any]:
    """Make the replacement of ``GPUModelRunner._update_states``."""

    def _update_states(self: Any, scheduler_output: Any) -> Any:
        result = update_states(self, scheduler_output)
        states = states_of(self)
        if states is not None:
            num_scheduled = scheduler_output.num_scheduled_tokens
            requests = [self.requests[request_id] for request_id in self.input_batch.req_ids]
            drawing = [
                request.req_id
                for request in requests
                if request.num_computed_tokens + num_scheduled[request.req_id] >= request.num_tokens
            ]
            states.begin_step(scheduler_output, drawing)
        return result

    return _update_states


def sampling(sample: Callable[..., Any]) -> Callable[..., Any]:
    """Make the replacement of ``GPUModelRunner._sample``."""

    def _sample(self: Any, logits: torch.Tensor, spec_decode_metadata: Any) -> Any:
        batch = self.input_batch
        masks = getattr(batch, _MASKS, None)
        setattr(batch, _MASKS, None)
        states = states_of(self)
        if states is None:
            return draw(self, logits, masks, spec_decode_metadata)
        masks = joined(states.take_masks(), masks)
        output = draw(self, logits, masks, spec_decode_metadata)
        if masks is not None and _wants_processed_logprobs(self):
            requests = [self.requests[request_id] for request_id in batch.req_ids]
            layout = Layout(requests, None if spec_decode_metadata is None else spec_decode_metadata.num_draft_tokens)
            output.sampled_token_ids = _undrawn_where_disallowed(output.sampled_token_ids, masks, layout)
        states.end_step(output.sampled_token_ids, batch.req_id_to_index)
        return output

    def draw(self: Any, logits: torch.Tensor, masks: MaskBatch | None, spec_decode_metadata: Any) -> Any:
        batch = self.input_batch
        if _wants_processed_logprobs(self):
            if masks is not None:
                num_logits = None
                if spec_decode_metadata is not None:
                    num_logits = [1 + count for count in spec_decode_metadata.num_draft_tokens]
                rows = masks.rows_for(batch.req_ids, num_logits, expected_rows=len(logits))
                apply_bitmask(logits, masks.to(logits.device), rows.to(logits.device))
            return sample(self, logits, spec_decode_metadata)
        batch.update_async_output_token_ids()
        if self.use_async_scheduling and self._draft_token_req_ids is not None:
            batch.update_async_spec_token_ids(self._get_draft_token_ids_cpu()[0])
        sampler = getattr(self, _SAMPLER, None)
        if sampler is None:
            sampler = RunnerSampler(self)
            setattr(self, _SAMPLER, sampler)
        return sampler.sample(logits, masks, spec_decode_metadata)

    return _sample


def _wants_processed_logprobs(runner: Any) -> bool:
    """True if a request asks for logprobs after all filters, which only vLLM's sampler
    computes."""
    is_processed = runner.sampler.logprobs_mode.startswith("processed")
    return is_processed and runner.input_batch.sampling_metadata.max_num_logprobs is not None


def _undrawn_where_disallowed(token_ids: torch.Tensor, masks: MaskBatch, layout: Layout) -> torch.Tensor:
    """Tokens ``[B, S]`` with a negative one in place of each that its mask does not
    allow: vLLM's sampler draws an arbitrary token from a row that allows none."""
    bitmask = masks.to(token_ids.device)
    if len(bitmask) == 0:
        return token_ids
    rows = masks.rows_for(layout.request_ids, layout.num_logits).to(token_ids.device)
    row_indptr = torch.from_numpy(layout.row_indptr).to(token_ids.device)
    columns = torch.arange(token_ids.shape[1], device=token_ids.device)
    row_of_token = rows[(row_indptr[:-1, None] + columns).clamp(max=len(rows) - 1)]
    words = bitmask[row_of_token.clamp(min=0).long(), token_ids.clamp(min=0).long() // 32]
    is_allowed = (row_of_token < 0) | ((words >> (token_ids % 32)) & 1).bool() | (token_ids < 0)
    return token_ids.masked_fill(~is_allowed, -1 if token_ids.shape[1] == 1 else UNDRAWABLE)


def bookkeeping(bookkeeping_sync: Callable[..., Any]) -> Callable[..., Any]:
    """Make the replacement of ``GPUModelRunner._bookkeeping_sync``.

    With asynchronous scheduling the drawn ids go to the next forward pass without
    passing the scheduler. There the id of a dead end must be an index of the embedding.
    The scheduler gets it as it is, and ends the request.
    """

    def _bookkeeping_sync(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = bookkeeping_sync(self, *args, **kwargs)
        drawn = self.input_batch.prev_sampled_token_ids
        if self.use_async_scheduling and drawn is not None:
            self.input_batch.prev_sampled_token_ids = drawn.clamp(min=0)
        return result

    return _bookkeeping_sync


def drafting(propose: Callable[..., Any]) -> Callable[..., Any]:
    """Make the replacement of ``GPUModelRunner.propose_draft_token_ids``: draft models
    take the drawn ids as they are, too."""

    def propose_draft_token_ids(self: Any, scheduler_output: Any, token_ids: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(token_ids, torch.Tensor):
            token_ids = [[max(token, 0) for token in tokens] for tokens in token_ids]
        elif token_ids.shape[1] == 1:
            token_ids = token_ids.clamp(min=0)
        else:
            token_ids = token_ids.masked_fill(token_ids == UNDRAWABLE, 0)
        return propose(self, scheduler_output, token_ids, *args, **kwargs)

    return propose_draft_token_ids


@dataclass(frozen=True)
class _Composition:
    """The requests of a batch, and those with parameters that most do not have.

    Attributes:
        metadata: vLLM's ``SamplingMetadata``, which is made anew for each composition.
        requests: the ``CachedRequestState`` of each request of the batch.
        penalized: requests with penalties.
        biased: requests with a logit bias.
        edited: requests whose parameters forbid tokens.
        processors: logits processors of users, which apply to the whole batch.
    """

    metadata: Any
    requests: list[Any]
    penalized: list[Any]
    biased: list[Any]
    edited: list[Any]
    processors: list[Any]

    @classmethod
    def of(cls, metadata: Any, requests: list[Any]) -> "_Composition":
        def those(has: Callable[[Any], Any]) -> list[Any]:
            return [request for request in requests if has(request.sampling_params)]

        processors = [p for p in metadata.logitsprocs.all if not isinstance(p, _REPLACED_PROCESSORS)]
        return cls(
            metadata, requests, those(_is_penalized), those(lambda p: p.logit_bias), those(edits_masks), processors
        )

    @cached_property
    def layout(self) -> Layout:
        """The layout of steps without drafts."""
        return Layout(self.requests)

    @property
    def has_thinking_budget(self) -> bool:
        holder = self.metadata.thinking_budget_state_holder
        return holder is not None and holder.has_tracked_requests()


def _is_penalized(params: Any) -> bool:
    return bool(params.repetition_penalty != 1.0 or params.frequency_penalty or params.presence_penalty)


class RunnerSampler:
    """Draws the tokens of one model runner.

    Args:
        runner: a ``GPUModelRunner``.
    """

    def __init__(self, runner: Any):
        self._runner = runner
        self._device = runner.device
        self._lists = TokenLists(runner.device)
        self._edits = MaskEdits(runner.input_batch.vocab_size)
        self._composition: _Composition | None = None
        self._num_steps = 0

    def sample(self, logits: torch.Tensor, masks: MaskBatch | None, spec_decode_metadata: Any) -> SamplerOutput:
        """Draw one token from each row, or verify drafts.

        Args:
            logits: ``[N, V]``; with drafts 1 + k rows for each request.
            masks: the masks of the structured requests; None if there are none.
            spec_decode_metadata: vLLM's ``SpecDecodeMetadata``; None without drafts.
        """
        self._num_steps += 1
        composition = self._current_composition()
        layout = composition.layout
        if spec_decode_metadata is not None:
            drafts = self._runner.input_batch.spec_token_ids
            layout = Layout(composition.requests, spec_decode_metadata.num_draft_tokens, drafts)
        self._drop_rejected(layout)
        grammar, allowed = self._masks(composition, layout, masks, len(logits))
        wants_logprobs = composition.metadata.max_num_logprobs is not None or composition.metadata.logprob_token_ids
        raw_logits = logits
        if _changes_logits(composition):
            # vLLM computes in float32, and reports the logprobs of the logits before.
            logits = logits.to(torch.float32, copy=bool(wants_logprobs))
        params = self._parameters(composition, layout)
        logits, params = self._change(logits, allowed, params, composition, layout)
        if spec_decode_metadata is None:
            ids = masked_sample(logits, **op_arguments(allowed, params))
            drawn = ids.unsqueeze(1)
        else:
            drafts = self._drafts(layout, masks, spec_decode_metadata)
            row_indptr = self._copy(layout.row_indptr)
            ids, num_accepted = verify_drafts(logits, drafts, row_indptr, **op_arguments(allowed, params))
            drawn = self._by_request(layout, ids, num_accepted)
        logprobs = None
        if wants_logprobs:
            logprobs = self._logprobs(raw_logits, ids, grammar, composition.metadata)
            if spec_decode_metadata is not None:
                logprobs = self._padded(layout, logprobs, drawn.shape[1])
        return SamplerOutput(sampled_token_ids=drawn.to(torch.int32), logprobs_tensors=logprobs)

    def _current_composition(self) -> _Composition:
        batch = self._runner.input_batch
        if self._composition is None or self._composition.metadata is not batch.sampling_metadata:
            requests = [self._runner.requests[request_id] for request_id in batch.req_ids]
            self._composition = _Composition.of(batch.sampling_metadata, requests)
        return self._composition

    def _drop_rejected(self, layout: Layout) -> None:
        """Drop the placeholders of drafts that the last step has rejected. Under
        asynchronous scheduling vLLM keeps one for each draft."""
        if not getattr(self._runner, "use_async_spec_decode", False):
            return
        num_scheduled = np.diff(self._runner.query_start_loc.np[: len(layout.requests) + 1])
        for request, count, num_logits in zip(layout.requests, num_scheduled, layout.num_logits, strict=True):
            num_known = request.num_computed_tokens + count + 1 - num_logits  # before its first row
            while request.num_tokens > num_known and request.output_token_ids[-1:] == [-1]:
                request.output_token_ids.pop()

    def _masks(
        self, composition: _Composition, layout: Layout, masks: MaskBatch | None, num_rows: int
    ) -> tuple[DeviceMasks | None, DeviceMasks | None]:
        """The grammars' masks alone, and with what sampling parameters forbid."""
        bitmask = grammar_rows = None
        if masks is not None:
            bitmask = masks.to("cpu").numpy()  # torch warns where it is given read-only arrays
            grammar_rows = masks.rows_for(layout.request_ids, layout.num_logits, expected_rows=num_rows).numpy()
        edited, rows = self._edits.edited(layout, composition.edited, bitmask, grammar_rows)
        if edited is None or rows is None:
            return None, None
        device_bitmask = self._copy(edited)
        grammar = None if grammar_rows is None else DeviceMasks(device_bitmask, self._copy(grammar_rows))
        return grammar, grammar if rows is grammar_rows else DeviceMasks(device_bitmask, self._copy(rows))

    def _parameters(self, composition: _Composition, layout: Layout) -> SamplingParams:
        """The sampling parameters of the rows."""
        metadata = composition.metadata
        if metadata.all_greedy:
            return SamplingParams(temperature=0.0)
        min_p = None
        for processor in metadata.logitsprocs.argmax_invariant:
            if isinstance(processor, MinPLogitsProcessor) and processor.min_p_count:
                min_p = processor.min_p.squeeze(1)
        per_request = [metadata.temperature, metadata.top_k, metadata.top_p, min_p]
        if layout.num_rows > len(composition.requests):
            index = self._copy(layout.index_of_row)
            per_request = [None if values is None else values[index] for values in per_request]
        temperature, top_k, top_p, min_p = per_request
        seed, position = map(self._copy, self._noise(metadata.generators, layout))
        return SamplingParams(temperature, top_k, top_p, min_p, seed, position)

    def _noise(self, generators: dict[int, torch.Generator], layout: Layout) -> tuple[_Ints, _Ints]:
        """The seed and position of each row.

        A request with a seed draws the same tokens in any batch. The others share the
        seed of the engine, and each row of each step has a position of its own. All
        ranks agree on both.
        """
        seed = np.full(layout.num_rows, self._runner.model_config.seed or 0, dtype=np.int64)
        position = (self._num_steps << 32) + np.arange(layout.num_rows)
        for index, generator in generators.items():
            rows = slice(*layout.row_indptr[index : index + 2])
            seed[rows] = np.uint64(generator.initial_seed() % 2**64).astype(np.int64)
            position[rows] = layout.requests[index].num_tokens + layout.place_of_row[rows]
        return seed, position

    def _change(
        self,
        logits: torch.Tensor,
        allowed: DeviceMasks | None,
        params: SamplingParams,
        composition: _Composition,
        layout: Layout,
    ) -> tuple[torch.Tensor, SamplingParams]:
        """Apply bias, users' processors and penalties, in vLLM's order. The temperature
        is 1 if the logits have been divided by it."""
        bias = self._lists.bias(layout, composition.biased)
        penalties = self._lists.penalties(layout, composition.penalized)
        if bias is not None:
            apply_logit_bias(logits, bias.indptr, bias.token_ids, bias.bias)
        processors = composition.processors
        if processors and allowed is not None:
            apply_bitmask(logits, allowed.bitmask, allowed.rows)
        for processor in processors:
            if not processor.is_argmax_invariant():
                logits = processor.apply(logits)
        if penalties is not None:
            p = penalties
            per_row = {"repetition": p.repetition, "frequency": p.frequency, "presence": p.presence}
            apply_penalties(logits, p.indptr, p.token_ids, p.output_counts, **per_row)
        if composition.has_thinking_budget:
            logits = self._force_end_of_thinking(logits, composition.metadata, layout)
        invariant = [processor for processor in processors if processor.is_argmax_invariant()]
        if invariant and not composition.metadata.all_greedy:
            temperature = composition.metadata.temperature[self._copy(layout.index_of_row)]
            logits = logits / torch.where(temperature == 0, 1.0, temperature).unsqueeze(1)
            for processor in invariant:
                logits = processor.apply(logits)
            params = replace(params, temperature=(temperature > 0).to(torch.float32))
        return logits, params

    def _force_end_of_thinking(self, logits: torch.Tensor, metadata: Any, layout: Layout) -> torch.Tensor:
        """Force the tokens that end the reasoning of requests whose budget is spent."""
        holder, drafts = metadata.thinking_budget_state_holder, metadata.spec_token_ids
        holder.update_state(metadata.output_token_ids, drafts, repeat_indices=None)
        last_rows = layout.row_indptr[1:] - 1
        draft_rows = np.setdiff1d(np.arange(layout.num_rows), last_rows)
        for rows, is_last in ((last_rows, True), (draft_rows, False)):
            if len(rows):
                index = self._copy(rows)
                logits[index] = holder.apply_to_logits(logits[index], is_last, drafts)
        return logits

    def _drafts(self, layout: Layout, masks: MaskBatch | None, metadata: Any) -> torch.Tensor:
        """The draft that each row is to confirm, -1 where it must not be accepted."""
        drafts = torch.full((layout.num_rows,), -1, dtype=torch.int64, device=self._device)
        drafts[metadata.target_logits_indices.long()] = metadata.draft_token_ids.long()
        if masks is not None:
            acceptable = dict(zip(masks.request_ids, masks.num_acceptable_drafts.tolist(), strict=True))
            limits = np.array(
                [acceptable.get(i, n - 1) for i, n in zip(layout.request_ids, layout.num_logits, strict=True)]
            )
            refused = np.flatnonzero(layout.place_of_row >= limits[layout.index_of_row])
            drafts[self._copy(refused)] = -1
        return drafts

    def _by_request(self, layout: Layout, ids: torch.Tensor, num_accepted: torch.Tensor) -> torch.Tensor:
        """The tokens of each request, as vLLM's rejection sampler returns them: ``[B,
        S]``, -1 after a request's last token."""
        num_requests = len(layout.requests)
        drawn = ids.new_full((num_requests, max(layout.num_logits)), -1)
        drawn[self._copy(layout.index_of_row), self._copy(layout.place_of_row)] = ids
        last = num_accepted.long().unsqueeze(1)
        last_ids = drawn.gather(1, last)
        return drawn.scatter(1, last, torch.where(last_ids < 0, UNDRAWABLE, last_ids))

    def _logprobs(self, logits: torch.Tensor, ids: torch.Tensor, grammar: DeviceMasks | None, metadata: Any) -> Any:
        """The logprobs that vLLM calls raw: after the grammar's mask, before all
        else."""
        vllm_sampler = self._runner.sampler
        if is_dense(metadata, vllm_sampler.logprobs_mode):
            return dense_logprobs(vllm_sampler, logits, ids, grammar, metadata)
        return listed_logprobs(logits, ids, grammar, metadata.max_num_logprobs)

    def _padded(self, layout: Layout, logprobs: Any, num_columns: int) -> Any:
        """The logprobs of rows as those of ``[B, S]`` tokens."""
        index = self._copy(layout.index_of_row * num_columns + layout.place_of_row)
        num_tokens = len(layout.requests) * num_columns

        def pad(values: torch.Tensor) -> torch.Tensor:
            return values.new_zeros((num_tokens, *values.shape[1:])).index_copy(0, index, values)

        return type(logprobs)(
            pad(logprobs.logprob_token_ids), pad(logprobs.logprobs), pad(logprobs.selected_token_ranks)
        )

    def _copy(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)


def _changes_logits(composition: _Composition) -> bool:
    c = composition
    return bool(c.penalized or c.biased or c.processors or c.has_thinking_budget)
