"""The states of grammars in vLLM's worker.

The scheduler hands requests over (handover.py). The worker advances their grammars by
the tokens that it has drawn, and fills their masks while the model computes the logits
that they are for. Each rank that draws follows all requests, so nothing is exchanged.
"""

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from vllm.distributed import get_pp_group
from vllm.v1.request import Request

from structout.errors import GrammarError, GrammarErrorKind
from structout.integrations.vllm.grammar_manager import PendingGrammar, key_of
from structout.integrations.vllm.handover import (
    is_handed_over,
    replay,
    request_of,
    worker_manager,
    workers_keep_states,
)
from structout.integrations.vllm.mask_edits import Reasoning, with_reasonings
from structout.masks.batch import MaskBatch

_log = logging.getLogger("vllm.structout")

UNDRAWABLE = -2  # the token of a dead end among drafts, where -1 means none

_STATES_ATTRIBUTE = "structout_states"  # of a model runner


@dataclass(eq=False)
class _Followed:
    """A request whose grammar the worker advances.

    Attributes:
        request: vLLM's ``Request``. It has its tokens while it may reason.
        key: its id with the manager.
        token_ids: its tokens.
        is_reasoning: whether its constraint may not hold yet.
    """

    request: Request
    key: str
    token_ids: list[int]
    is_reasoning: bool


class _TokenLists:
    """Lists of tokens, which may be on their way to the host.

    Args:
        token_ids: those that the host knows; or ``[B, S]`` on any device, of which a
            copy is begun.
    """

    def __init__(self, token_ids: list[list[int]] | torch.Tensor):
        self._copied: Any = None  # the event of a copy
        self._token_ids = token_ids
        if isinstance(token_ids, torch.Tensor):
            self._token_ids = token_ids.clone() if not token_ids.is_cuda else self._copy(token_ids)

    def _copy(self, token_ids: torch.Tensor) -> torch.Tensor:
        host = torch.empty(token_ids.shape, dtype=token_ids.dtype, pin_memory=True)
        host.copy_(token_ids, non_blocking=True)
        self._copied = torch.cuda.Event(blocking=True)
        self._copied.record()
        return host

    @property
    def are_here(self) -> bool:
        return self._copied is None or self._copied.query()

    @cached_property
    def lists(self) -> list[list[int]]:
        """The lists, once they are there."""
        if self._copied is not None:
            self._copied.synchronize()
        token_ids = self._token_ids
        return token_ids.tolist() if isinstance(token_ids, torch.Tensor) else token_ids


@dataclass(frozen=True)
class _DrawnTokens:
    """The tokens of a step.

    Attributes:
        tokens: of each request of the batch the drafts that were accepted and a token
            more, then -1.
        requests: the requests that follow grammars, by their place in ``tokens``.
        max_tokens: the most that a request may have.
    """

    tokens: _TokenLists
    requests: dict[int, _Followed]
    max_tokens: int

    @cached_property
    def by_request(self) -> dict[_Followed, list[int]]:
        """The tokens of each request, without padding. A negative id marks a token that
        could not be drawn."""
        lists = self.tokens.lists
        return {request: _without_padding(lists[place]) for place, request in self.requests.items()}

    def num_tokens(self) -> dict[_Followed, int]:
        """The number of tokens that each request gets. It waits for the device only
        after drafts."""
        if self.max_tokens == 1:
            return dict.fromkeys(self.requests.values(), 1)
        return {request: len(tokens) for request, tokens in self.by_request.items()}


@dataclass(frozen=True)
class _Drafts:
    """The drafts of a step.

    Attributes:
        tokens: lists that begin with drafts.
        places: of each request with drafts its place in ``tokens``, and how many of
            them are verified.
    """

    tokens: _TokenLists
    places: dict[_Followed, tuple[int, int]]

    @cached_property
    def by_request(self) -> dict[_Followed, list[int]]:
        return {followed: self.tokens.lists[place][:count] for followed, (place, count) in self.places.items()}


class DeviceDrafts(NamedTuple):
    """The drafts of a model runner whose host does not know them.

    Attributes:
        token_ids: ``[R, S]`` on the device.
        place_of: the place of each request in ``token_ids``.
    """

    token_ids: torch.Tensor
    place_of: Mapping[str, int]


def keeping_states(initialize_kv_cache: Callable[..., None]) -> Callable[..., None]:
    """Make the replacement of ``GPUModelRunner.initialize_kv_cache`` of both model
    runners, the last call before the first request."""

    def _initialize_kv_cache(self: Any, *args: Any, **kwargs: Any) -> None:
        initialize_kv_cache(self, *args, **kwargs)
        is_wanted = workers_keep_states(self.vllm_config) and get_pp_group().is_last_rank
        if is_wanted and states_of(self) is None:
            setattr(self, _STATES_ATTRIBUTE, WorkerStates(self.vllm_config))

    return _initialize_kv_cache


def states_of(runner: Any) -> "WorkerStates | None":
    """The grammar states of a model runner; None if it keeps none."""
    return getattr(runner, _STATES_ATTRIBUTE, None)


class WorkerStates:
    """Follows the requests that were handed over to one model runner.

    Args:
        vllm_config: vLLM's config.
    """

    def __init__(self, vllm_config: Any):
        self._manager = worker_manager(vllm_config)
        # To model runner V2 a preempted request comes back as a new one.
        self._comes_back_shorter = not vllm_config.use_v2_model_runner
        # vLLM tells no model runner that it ends. Without this a thread would wait for
        # the compile deadline.
        weakref.finalize(self, self._manager.clear_backend).atexit = False
        self._requests: dict[str, _Followed] = {}
        self._rows: list[_Followed] = []  # whose masks the step in progress needs
        self._starting: list[PendingGrammar] = []  # that may still be compiled
        self._drawn: _DrawnTokens | None = None
        self._masks: Future[MaskBatch] | None = None
        self._reasonings: dict[str, Reasoning] = {}  # of the step in progress, by key
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="structout-states")

    @property
    def num_requests(self) -> int:
        """The number of requests that the worker follows."""
        return len(self._requests)

    def begin_step(self, scheduler_output: Any, drawing: Iterable[str], drafts: DeviceDrafts | None = None) -> None:
        """Start to fill the masks of a step.

        Args:
            scheduler_output: vLLM's ``SchedulerOutput``.
            drawing: the requests that draw in this step: those without more of a prompt
                to compute.
            drafts: those that only the device has; None if they are in
                ``scheduler_output``.
        """
        self.take_masks()  # of a step that drew nothing: its thread has ended
        for request_id in scheduler_output.finished_req_ids:
            self._requests.pop(request_id, None)
        for new in scheduler_output.scheduled_new_reqs:
            self._requests.pop(new.req_id, None)
            if is_handed_over(new.sampling_params):
                self._add(new)
        if self._comes_back_shorter:
            self._take_back(scheduler_output.scheduled_cached_reqs)
        self._rows = [self._requests[request_id] for request_id in drawing if request_id in self._requests]
        drawn, self._drawn = self._drawn, None
        starting, self._starting = self._starting, []
        if not self._rows and drawn is None and not starting:
            return
        drafted = self._drafts(scheduler_output.scheduled_spec_decode_tokens, drafts)
        are_here = all(each is None or each.tokens.are_here for each in (drawn, drafted))
        if starting or not are_here:
            self._masks = self._thread.submit(self._wait_and_advance, drawn, self._rows, drafted, starting)
        else:
            self._masks = self._advance(drawn, self._rows, drafted)

    def take_masks(self) -> MaskBatch | None:
        """The masks of the step, None if none of its rows is constrained."""
        future, self._masks = self._masks, None
        masks = None if future is None else future.result()
        if masks is None or not self._rows:
            return None
        masks = with_reasonings(masks, self._reasonings)
        return masks.renamed([followed.request.request_id for followed in self._rows])

    def end_step(self, token_ids: torch.Tensor, index_of: Mapping[str, int]) -> None:
        """Take the tokens of the step.

        Args:
            token_ids: ``[B, S]``: of each request the drafts that were accepted and a
                token more, which is negative where none could be drawn, then -1.
            index_of: the place of each request in the batch.
        """
        if self._rows:
            requests = {index_of[followed.request.request_id]: followed for followed in self._rows}
            self._drawn = _DrawnTokens(_TokenLists(token_ids), requests, token_ids.shape[1])

    # -- private -----------------------------------------------------------------------

    def _drafts(self, scheduled: Mapping[str, list[int]], on_device: DeviceDrafts | None) -> _Drafts | None:
        rows = [followed for followed in self._rows if followed.request.request_id in scheduled] if scheduled else []
        if not rows:
            return None
        drafts = [scheduled[followed.request.request_id] for followed in rows]
        if on_device is None:
            tokens, places = _TokenLists(drafts), [*range(len(rows))]
        else:  # all of them: an index would have to be copied to the device first
            tokens = _TokenLists(on_device.token_ids)
            places = [on_device.place_of[followed.request.request_id] for followed in rows]
        return _Drafts(tokens, dict(zip(rows, zip(places, map(len, drafts), strict=True), strict=True)))

    def _add(self, new: Any) -> None:
        request = request_of(new.req_id, new.prompt_token_ids, new.sampling_params)
        # Model runner V2 gets a preempted request as a new one, with its tokens.
        token_ids = list(new.prefill_token_ids or ())[new.prompt_len :]
        if token_ids:
            self._replay(request, token_ids)
        else:
            pending = self._manager.start(request)
            request.structured_output_request.grammar = pending.grammar
            self._starting.append(pending)
        self._follow(request)

    def _follow(self, request: Request) -> None:
        is_reasoning = self._manager.is_reasoning(request)
        self._requests[request.request_id] = _Followed(
            request, key_of(request), list(request.output_token_ids), is_reasoning
        )

    def _take_back(self, cached: Any) -> None:
        """Replay the requests whose last tokens vLLM has dropped, to compute them
        again."""
        if not self._requests:
            return
        num_drawn = {} if self._drawn is None else self._drawn.num_tokens()
        for request_id, num_tokens in zip(cached.req_ids, cached.num_output_tokens, strict=True):
            followed = self._requests.get(request_id)
            if followed is None or num_tokens >= len(followed.token_ids) + num_drawn.get(followed, 0):
                continue
            old = followed.request
            twin = request_of(request_id, old.prompt_token_ids, old.sampling_params)
            self._replay(twin, followed.token_ids[:num_tokens])
            self._follow(twin)

    def _replay(self, request: Request, token_ids: list[int]) -> None:
        """Compile the constraint of a request that has tokens, and accept them. If that
        fails, the request can draw nothing."""
        structout = self._manager.structout
        assert structout is not None
        if replay(self._manager, request, token_ids):
            return
        key = key_of(request)
        if structout.error(key) is None:
            structout.finish_request(key)
            reason = f"the grammar does not allow the tokens {token_ids} again"
            structout.add_failed_request(key, GrammarError(reason, kind=GrammarErrorKind.REPLAY))
        _log.error("request %s cannot continue: %s", request.request_id, structout.error(key))

    def _wait_and_advance(
        self,
        drawn: _DrawnTokens | None,
        rows: list[_Followed],
        drafts: _Drafts | None,
        starting: list[PendingGrammar],
    ) -> MaskBatch:
        """``_advance``, after what has to come before it."""
        for pending in starting:
            if not pending.wait():
                pending.result()  # logs why; its rows allow nothing, so that the scheduler ends it
        return self._advance(drawn, rows, drafts).result()

    def _advance(self, drawn: _DrawnTokens | None, rows: list[_Followed], drafts: _Drafts | None) -> Future[MaskBatch]:
        """Accept the tokens of the last step, and fill the masks of the next."""
        assert self._manager.structout is not None
        accepted = {}
        for followed, tokens in () if drawn is None else drawn.by_request.items():
            followed.token_ids += tokens
            if min(tokens) < 0:  # the scheduler ends the request
                continue
            constrained = self._constrained(followed, tokens) if followed.is_reasoning else tokens
            if constrained:
                accepted[followed.key] = constrained
        drafted = {} if drafts is None else drafts.by_request
        self._reasonings = {
            followed.key: self._manager.reasoning(followed.request, drafted.get(followed, ()))
            for followed in rows
            if followed.is_reasoning
        }
        return self._manager.structout.step(
            accepted,
            [followed.key for followed in rows],
            {followed.key: tokens for followed, tokens in drafted.items()},
            bounds={key: reasoning.bounds for key, reasoning in self._reasonings.items()},
            strict=False,
        )

    def _constrained(self, followed: _Followed, tokens: list[int]) -> list[int]:
        """Append tokens to a request that may reason. Return those after the end of its
        reasoning."""
        followed.request.append_output_token_ids(tokens)
        constrained = self._manager.constrained(followed.request, tokens)
        followed.is_reasoning = self._manager.is_reasoning(followed.request)
        return constrained or []


def _without_padding(token_ids: list[int]) -> list[int]:
    """The tokens of a request, one at least."""
    return token_ids[: token_ids.index(-1, 1)] if -1 in token_ids[1:] else token_ids


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
