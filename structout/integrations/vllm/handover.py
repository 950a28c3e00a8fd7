"""The scheduler's side of grammars whose states live in vLLM's workers.

The scheduler compiles a constraint to admit its request, and hands the request over:
from then on vLLM's scheduler takes it for a free one. No step waits for its tokens, and
no mask is sent. The worker (worker_states.py) recognizes it by a mark in its sampling
parameters. A request that can go on no further comes back as a token that could not be
drawn. Its text is replayed here once, to log the reason.
"""

import logging
import weakref
from typing import Any

from vllm.v1.request import Request, RequestStatus

from structout import envs
from structout.errors import GrammarError
from structout.grammar.registry import NATIVE
from structout.integrations.vllm.grammar_manager import Grammar, GrammarManager, PendingGrammar
from structout.integrations.vllm.proposer import is_jump_forward
from structout.masks.batch import MaskBatch

_log = logging.getLogger("vllm.structout")

_MARK = "structout_worker_states"  # in the extra_args of SamplingParams

# A worker in a process of its own compiles once more, in a step of all its requests. A
# constraint that takes longer stays with the scheduler, which lets the other requests
# go on meanwhile.
MAX_COMPILE_SECONDS = 0.1

# The scheduler has compiled each constraint before such a worker does. Ranks must not
# differ because one of them was slower.
_COMPILE_TIMEOUT = 3600.0

# The managers of workers in this process, by the id of vLLM's config, which they hold.
_workers: "weakref.WeakValueDictionary[int, GrammarManager]" = weakref.WeakValueDictionary()


def scheduler_manager(vllm_config: Any) -> GrammarManager:
    """The manager of an engine's scheduler."""
    if workers_keep_states(vllm_config):
        return AdmittingManager(vllm_config)
    if envs.vllm_worker_states():
        _log.warning(
            "STRUCTOUT_VLLM_WORKER_STATES=1 has no effect with jump-forward drafts, with drafts under asynchronous "
            "scheduling of model runner V1, with vLLM's other rules of acceptance, watermarks, sampling masks or "
            "diffusion models of V2, or with an external launcher: the scheduler keeps the states of grammars"
        )
    return GrammarManager(vllm_config)


def worker_manager(vllm_config: Any) -> GrammarManager:
    """The manager of a worker that keeps states. The scheduler of an engine in one
    process, which is made later, shares its grammars: nothing is compiled twice."""
    if vllm_config.parallel_config.distributed_executor_backend != "uni":
        return GrammarManager(vllm_config, compile_timeout=_COMPILE_TIMEOUT)
    manager = _workers[id(vllm_config)] = GrammarManager(vllm_config)
    return manager


def workers_keep_states(vllm_config: Any) -> bool:
    """True if the workers of an engine keep the states of grammars. The default is that
    they do under asynchronous scheduling, whose steps else wait for the scheduler."""
    wanted = envs.vllm_worker_states()
    if wanted is None:
        wanted = vllm_config.scheduler_config.async_scheduling
    return wanted and _can_keep_states(vllm_config)


def _can_keep_states(vllm_config: Any) -> bool:
    """True if the workers of an engine share one scheduler, learn drafts in time, and
    draw with structout's ops."""
    # With an external launcher each rank has a scheduler, and all must schedule alike.
    has_one_scheduler = vllm_config.parallel_config.distributed_executor_backend != "external_launcher"
    return has_one_scheduler and _knows_drafts(vllm_config) and not _draws_by_itself(vllm_config)


def _knows_drafts(vllm_config: Any) -> bool:
    """True if the worker's host can learn the drafts before it computes a step's
    logits, and drafting needs no grammar."""
    if vllm_config.speculative_config is None:
        return True
    # V2 has them on the device in any case; V1 only sometimes.
    is_known = vllm_config.use_v2_model_runner or not vllm_config.scheduler_config.async_scheduling
    return is_known and not is_jump_forward(vllm_config.speculative_config)


def _draws_by_itself(vllm_config: Any) -> bool:
    """True if model runner V2 draws with vLLM's own code, which draws an arbitrary
    token from a row that allows none, or several at once (diffusion)."""
    if not vllm_config.use_v2_model_runner:
        return False
    model, drafts = vllm_config.model_config, vllm_config.speculative_config
    is_watermarked = getattr(vllm_config, "watermark_config", None) is not None
    return is_watermarked or model.return_sampling_mask or model.is_diffusion or _accepts_by_itself(drafts)


def _accepts_by_itself(speculative_config: Any) -> bool:
    """True if model runner V2 may accept a draft that is not the drawn token: another
    rule of acceptance than the standard one, or sampled drafts."""
    return speculative_config is not None and (
        speculative_config.rejection_sample_method != "standard" or speculative_config.draft_sample_method != "greedy"
    )


def is_handed_over(params: Any) -> bool:
    """True if the request with these sampling parameters was handed over: a worker
    keeps its state."""
    return params is not None and params.structured_outputs is not None and _MARK in (params.extra_args or {})


def request_of(request_id: str, prompt_token_ids: list[int] | None, params: Any) -> Request:
    """vLLM's ``Request`` for one that was handed over, without tokens of its own. A
    prompt of embeddings has no ids."""
    return Request(request_id, prompt_token_ids or [], params, None, **params.extra_args[_MARK])


def replay(manager: GrammarManager, request: Request, token_ids: list[int]) -> bool:
    """Compile the constraint of a new request, and let its grammar accept tokens.

    Returns:
        whether it has compiled, and accepts them.
    """
    pending = GrammarManager.start(manager, request)
    request.structured_output_request.grammar = pending.grammar
    is_compiled = pending.wait()
    request.append_output_token_ids(token_ids)
    return is_compiled and manager.accept_tokens(request, list(token_ids))


class _HandOver(PendingGrammar):
    """The future of a grammar that hands its request over when it is done.

    Args:
        grammar: the grammar.
        request: vLLM's ``Request``.
        is_shared: whether the worker need not compile it again.
    """

    def __init__(self, grammar: Grammar, request: Request, is_shared: bool):
        super().__init__(grammar)
        self._is_shared = is_shared
        self._request = weakref.ref(request)  # which has this future: no cycle

    def result(self, timeout: float | None = None) -> Grammar | GrammarError:
        grammar = super().result(timeout)
        request = self._request()
        if request is not None and isinstance(grammar, Grammar) and self._is_for_workers(request):
            structured, params = request.structured_output_request, request.sampling_params
            mark = {name: getattr(structured, name) for name in ("reasoning_ended", "reasoning_parser_kwargs")}
            params.extra_args = (params.extra_args or {}) | {_MARK: mark}
            request.structured_output_request = None
            request.status = RequestStatus.WAITING
        return grammar

    def _is_for_workers(self, request: Request) -> bool:
        compiled = self.grammar.manager.compiled(self.grammar.key)
        # Other engines have limits of time, at which ranks might differ.
        is_own = compiled.backend_name == NATIVE
        is_quick = self._is_shared or compiled.cpu_seconds <= MAX_COMPILE_SECONDS
        # A session's next prompt goes on with its grammar.
        return is_own and is_quick and not request.resumable


class AdmittingManager(GrammarManager):
    """The manager of a scheduler that only admits requests, and ends them.

    Args:
        vllm_config: vLLM's config.

    Attributes:
        is_shared: whether the worker is in this process, and compiles nothing again.
    """

    def __init__(self, vllm_config: Any):
        worker = _workers.get(id(vllm_config))
        super().__init__(vllm_config, None if worker is None else worker.structout)
        self.is_shared = worker is not None

    def start(self, request: Request) -> PendingGrammar:
        params = request.sampling_params
        if params.extra_args:  # a client has no say in this
            params.extra_args = {name: value for name, value in params.extra_args.items() if name != _MARK}
        pending = super().start(request)
        return _HandOver(pending.grammar, request, self.is_shared) if self.has_structout_workers else pending

    def accept_tokens(self, request: Request, new_token_ids: list[int]) -> bool:
        is_accepted = super().accept_tokens(request, new_token_ids)
        if not is_accepted and not request.use_structured_output and is_handed_over(request.sampling_params):
            self._log_reason(request)
        return is_accepted

    def _log_reason(self, request: Request) -> None:
        request_id = request.request_id
        twin = request_of(request_id, request.prompt_token_ids, request.sampling_params)
        tokens = [token for token in request.output_token_ids if token >= 0]
        if not replay(self, twin, tokens):
            reason = f"its grammar does not allow its tokens {tokens}"
        else:
            masks = self.grammar_bitmask({request_id: twin}, [request_id], {})
            assert isinstance(masks, MaskBatch)
            if masks.errors:  # they have been logged
                return
            reason = "its grammar allows a token, but its sampling parameters forbid it, or its logits are NaN"
        _log.error("request %s cannot continue: %s", request_id, reason)
