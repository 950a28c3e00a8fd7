"""The states of grammars in vLLM's worker.

The scheduler hands requests over (handover.py). The worker advances their grammars by
the tokens that it has drawn, and fills their masks while the model computes the logits
that they are for. Each rank that draws follows all requests, so nothing is exchanged.
"""

import weakref
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.v1.request import Request

from structout.integrations.vllm.grammar_manager import GrammarManager, PendingGrammar, key_of
from structout.integrations.vllm.handover import is_handed_over, replay, request_of
from structout.masks.batch import MaskBatch

# The scheduler has compiled each constraint before. Ranks must not differ because one
# of them was slower.
_COMPILE_TIMEOUT = 3600.0


@dataclass(frozen=True)
class _DrawnTokens:
    """The tokens of a step, on their way to the host.

    Attributes:
        token_ids: on the host. A copy to it may be in flight.
        requests: the requests that follow grammars, by their place in ``token_ids``.
        copied: the event of the copy; None on the CPU.
    """

    token_ids: torch.Tensor
    requests: dict[int, Request]
    copied: Any

    @classmethod
    def copy(cls, token_ids: torch.Tensor, requests: dict[int, Request]) -> "_DrawnTokens":
        if not token_ids.is_cuda:
            return cls(token_ids.clone(), requests, None)
        host = torch.empty(token_ids.shape, dtype=token_ids.dtype, pin_memory=True)
        host.copy_(token_ids, non_blocking=True)
        copied = torch.cuda.Event(blocking=True)
        copied.record()
        return cls(host, requests, copied)

    def wait(self) -> list[tuple[Request, int]]:
        """Each request with its token."""
        if self.copied is not None:
            self.copied.synchronize()
        token_ids = self.token_ids.flatten().tolist()
        return [(request, token_ids[place]) for place, request in self.requests.items()]


class WorkerStates:
    """Follows the requests that were handed over to one model runner.

    Args:
        vllm_config: vLLM's config.
    """

    def __init__(self, vllm_config: Any):
        self._manager = GrammarManager(vllm_config, compile_timeout=_COMPILE_TIMEOUT)
        # vLLM tells no model runner that it ends. Without this a thread would wait for
        # the compile deadline.
        weakref.finalize(self, self._manager.clear_backend).atexit = False
        self._requests: dict[str, Request] = {}
        self._rows: list[Request] = []  # whose masks the step in progress needs
        self._starting: list[PendingGrammar] = []  # the grammars that may still be compiled
        self._drawn: _DrawnTokens | None = None
        self._masks: Future[MaskBatch | None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="structout-states")

    @property
    def num_requests(self) -> int:
        """How many requests it follows."""
        return len(self._requests)

    def begin_step(self, scheduler_output: Any, states: Mapping[str, Any]) -> None:
        """Start to fill the masks of a step.

        Args:
            scheduler_output: vLLM's ``SchedulerOutput``.
            states: vLLM's ``CachedRequestState`` of each request, after the scheduler's
                changes.
        """
        self.take_masks()  # of a step that drew nothing: its thread has ended
        for request_id in scheduler_output.finished_req_ids:
            self._requests.pop(request_id, None)
        for new in scheduler_output.scheduled_new_reqs:
            self._requests.pop(new.req_id, None)
            if is_handed_over(new.sampling_params):
                self._add(request_of(new.req_id, new.prompt_token_ids, new.sampling_params))
        if not self._requests and self._drawn is None:
            self._rows = []
            return
        self._take_back(scheduler_output.scheduled_cached_reqs)
        num_scheduled = scheduler_output.num_scheduled_tokens
        self._rows = [
            request
            for request_id, request in self._requests.items()
            if request_id in num_scheduled and _is_prefilled(states[request_id], num_scheduled[request_id])
        ]
        starting, self._starting = self._starting, []
        self._masks = self._thread.submit(self._advance, self._drawn, self._rows, starting)
        self._drawn = None

    def take_masks(self) -> MaskBatch | None:
        """The masks of the step, None if none of its rows is constrained."""
        masks, self._masks = self._masks, None
        return None if masks is None else masks.result()

    def end_step(self, token_ids: torch.Tensor, index_of: Mapping[str, int]) -> None:
        """Take the tokens of the step.

        Args:
            token_ids: ``[B, 1]``, -1 where none could be drawn.
            index_of: the place of each request in the batch.
        """
        if self._rows:
            requests = {index_of[request.request_id]: request for request in self._rows}
            self._drawn = _DrawnTokens.copy(token_ids, requests)

    # -- private -----------------------------------------------------------------------

    def _add(self, request: Request) -> None:
        pending = self._manager.start(request)
        request.structured_output_request.grammar = pending.grammar
        self._requests[request.request_id] = request
        self._starting.append(pending)

    def _take_back(self, cached: Any) -> None:
        """Replay the requests whose last tokens vLLM has dropped, to compute them
        again."""
        drawn = set() if self._drawn is None else {request.request_id for request in self._drawn.requests.values()}
        for request_id, num_tokens in zip(cached.req_ids, cached.num_output_tokens, strict=True):
            request = self._requests.get(request_id)
            if request is None or num_tokens >= request.num_output_tokens + (request_id in drawn):
                continue
            twin = request_of(request_id, request.prompt_token_ids, request.sampling_params)
            replay(self._manager, twin, list(request.output_token_ids)[:num_tokens])
            self._requests[request_id] = twin

    def _advance(
        self, drawn: _DrawnTokens | None, rows: list[Request], starting: list[PendingGrammar]
    ) -> MaskBatch | None:
        """Accept the tokens of the last step, and fill the masks of the next."""
        structout = self._manager.structout
        assert structout is not None
        tokens = {}
        for request, token in [] if drawn is None else drawn.wait():
            request.append_output_token_ids(token)
            accepted = None if token < 0 else self._manager.constrained(request, [token])
            if accepted:
                tokens[key_of(request)] = accepted
        for pending in starting:
            if not pending.wait():
                pending.result()  # logs why; its rows allow nothing, so that the scheduler ends it
        keys = [key_of(request) for request in rows]
        bounds = {
            key: self._manager.bounds(request)
            for key, request in zip(keys, rows, strict=True)
            if self._manager.is_reasoning(request)
        }
        if not keys and not tokens:
            return None
        masks = structout.step(tokens, keys, bounds=bounds, strict=False).result()
        return masks.renamed([request.request_id for request in rows]) if rows else None


def joined(own: MaskBatch | None, sent: MaskBatch | None) -> MaskBatch | None:
    """The masks of a step: the worker's, and those of requests that the scheduler
    keeps. Without both nothing is copied."""
    if own is None or sent is None:
        return own or sent
    return MaskBatch(
        request_ids=own.request_ids + sent.request_ids,
        row_indptr=np.concatenate([own.row_indptr, sent.row_indptr[1:] + own.row_indptr[-1]]),
        errors={**own.errors, **sent.errors},
        num_acceptable_drafts=np.concatenate([own.num_acceptable_drafts, sent.num_acceptable_drafts]),
        bitmask=np.concatenate([own.bitmask, sent.bitmask]),
    )


def _is_prefilled(state: Any, num_scheduled: int) -> bool:
    """Whether a step computes the last of a request's tokens, so that it draws one."""
    return bool(state.num_computed_tokens + num_scheduled >= state.num_tokens)
