"""GrammarManager: structout's manager in the place of vLLM's."""

import itertools
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from vllm.parser.engine.adapters import ParserEngineReasoningAdapter
from vllm.v1.structured_output import StructuredOutputManager as VllmManager
from vllm.v1.structured_output.utils import apply_grammar_bitmask, strip_speculative_padding

from structout.errors import GrammarError, StructOutError
from structout.integrations.vllm import request_params
from structout.integrations.vllm.mask_edits import Reasoning, ReasoningRules, with_reasonings
from structout.integrations.vllm.proposer import is_jump_forward
from structout.masks.batch import MaskBatch
from structout.scheduler.manager import StructuredOutputManager
from structout.scheduler.requests import GrammarStatus

_log = logging.getLogger("vllm.structout")

# Since 0.33 vLLM's workers skip a fixed number of rows for each request. Before, they
# counted its rows.
_HAS_STRIDE = "mask_stride" in apply_grammar_bitmask.__code__.co_varnames

_keys = itertools.count()  # of requests: managers may share one of structout's

_ANSWER_TOKENS = 40  # beside the least ones, of which an answer keeps half at most from its reasoning


class Grammar:
    """A request's grammar as vLLM holds it: a handle whose methods call the manager.

    The request is finished when vLLM drops this object, however the request ends.

    Args:
        manager: the manager that has the request.
        key: the id of the request with the manager. It is not vLLM's, which may be used
            again while an earlier request is still there.

    Attributes:
        reasoning_rules: those of the request, None until they are known.
    """

    def __init__(self, manager: StructuredOutputManager, key: str):
        self.manager = manager
        self.key = key
        self.reasoning_rules: ReasoningRules | None = None
        weakref.finalize(self, manager.finish_request, key).atexit = False

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return self.manager.accept_tokens(self.key, tokens)

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        return self.manager.validate_tokens(self.key, tokens)

    def rollback(self, num_tokens: int) -> None:
        self.manager.rollback(self.key, num_tokens)

    def is_terminated(self) -> bool:
        return self.manager.is_terminated(self.key)


class PendingGrammar(Future["Grammar | GrammarError"]):
    """The future of a :class:`Grammar`. vLLM polls it, so nobody has to be woken."""

    def __init__(self, grammar: Grammar):
        super().__init__()
        self.grammar = grammar

    def done(self) -> bool:
        return self.grammar.manager.status(self.grammar.key) is not GrammarStatus.WAITING

    def wait(self) -> bool:
        """Block until it is done. Return whether it is a grammar."""
        self.grammar.manager.wait_all([self.grammar.key])
        return self.grammar.manager.error(self.grammar.key) is None

    def result(self, timeout: float | None = None) -> Grammar | GrammarError:
        """The grammar, or the error, which vLLM keeps in its place.

        Raised, the error would keep the scheduler's frames, and through them other
        requests, until a garbage collection.
        """
        error = self.grammar.manager.error(self.grammar.key)
        if error is not None:  # before 0.33 the client of vLLM learns no reason
            _log.error("request %s is refused: %s", self.grammar.key.rpartition("#")[0], error)
        return error or self.grammar


class GrammarManager(VllmManager):  # type: ignore[misc]  # mypy does not read vLLM
    """vLLM's ``StructuredOutputManager`` over structout's.

    It acts as vLLM's own if structout lacks the configured backend or cannot read the
    model's tokenizer, or if the engine runs without one.

    Args:
        vllm_config: vLLM's config.
        structout: the manager, where another one of this process has it already.
        config_changes: what a new manager's ``StructuredOutputsConfig`` has instead of
            what vLLM's config and the environment give it.

    Attributes:
        has_structout_workers: whether the workers take a :class:`structout.MaskBatch`.
            Otherwise they get vLLM's dense masks.
        structout: the manager; None if vLLM's own backend is used.
    """

    has_structout_workers = True

    def __init__(self, vllm_config: Any, structout: StructuredOutputManager | None = None, **config_changes: Any):
        super().__init__(vllm_config)
        self.structout = structout
        config = vllm_config.structured_outputs_config
        is_served = not vllm_config.model_config.skip_tokenizer_init and request_params.serves(config, self.tokenizer)
        if is_served and structout is None:
            # vLLM holds the masks of the steps that a pipeline has in flight. A worker
            # and a scheduler may share them.
            num_buffers = 2 * (vllm_config.parallel_config.pipeline_parallel_size + 2)
            max_requests = max(4096, 4 * vllm_config.scheduler_config.max_num_seqs)
            self.structout = StructuredOutputManager(
                self.tokenizer,
                vllm_config.model_config.get_vocab_size(),
                replace(
                    request_params.manager_config(config, num_mask_buffers=num_buffers, queue_size=max_requests),
                    **config_changes,
                ),
            )
            # A compile deadline must not pass while the first request waits for an
            # engine's tables of the vocabulary.
            self.structout.warm_up(())
        self._jumps_forward = is_jump_forward(vllm_config.speculative_config)

    def grammar_init(self, request: Any) -> None:
        structured = request.structured_output_request
        if self.structout is None or structured is None:
            super().grammar_init(request)
            return
        structured.grammar = pending = self.start(request)
        if not self._use_async_grammar_compilation and pending.wait():
            # Every rank has a scheduler: they must go on in the same step.
            structured.grammar = pending.result()

    def start(self, request: Any) -> PendingGrammar:
        """Start to compile the constraint of a structured request."""
        assert self.structout is not None
        structured, sampling_params = request.structured_output_request, request.sampling_params
        key = f"{request.request_id}#{next(_keys)}"
        stop = sampling_params.all_stop_token_ids if sampling_params is not None else None
        config = self.vllm_config.structured_outputs_config
        params = request_params.params_of(structured.params, config, self.tokenizer, sampling_params)
        if sampling_params is not None:
            # vLLM ends the text there in any case. A worker does not know the length of
            # each prompt.
            room = self.vllm_config.model_config.max_model_len - request.num_prompt_tokens
            sampling_params.max_tokens = min(sampling_params.max_tokens, room)
        self.structout.add_request(
            key, params, stop_token_ids=list(stop) if stop else None, max_tokens=self._limit_of(request)
        )
        return PendingGrammar(Grammar(self.structout, key))

    def grammar_bitmask(
        self,
        requests: Mapping[str, Any],
        structured_output_request_ids: list[str],
        scheduled_spec_decode_tokens: Mapping[str, list[int]],
    ) -> MaskBatch | npt.NDArray[np.int32] | None:
        ids = structured_output_request_ids
        if self.structout is None or not ids:
            return super().grammar_bitmask(requests, ids, scheduled_spec_decode_tokens)
        keys = [key_of(requests[request_id]) for request_id in ids]
        drafts = {}
        reasonings = {}
        for request_id, key in zip(ids, keys, strict=True):
            tokens = scheduled_spec_decode_tokens.get(request_id, ())
            if tokens:
                drafts[key] = tokens
            if self.is_reasoning(requests[request_id]):
                reasonings[key] = self.reasoning(requests[request_id], tokens)
        bounds = {key: reasoning.bounds for key, reasoning in reasonings.items()}
        masks = with_reasonings(self.structout.grammar_bitmask(keys, drafts, bounds=bounds), reasonings)
        for key, reason in masks.errors.items():
            _log.error("request %s cannot continue: %s", key.rpartition("#")[0], reason)
        masks = masks.renamed(ids)
        if self.has_structout_workers:
            return masks
        num_logits = [1 + len(scheduled_spec_decode_tokens.get(request_id, ())) for request_id in ids]
        return dense_masks(masks, num_logits, 1 + self.vllm_config.num_speculative_tokens)

    def accept_tokens(self, request: Any, new_token_ids: list[int]) -> bool:
        if self.structout is None:
            return super().accept_tokens(request, new_token_ids)
        if drop_undrawn(new_token_ids):
            return False
        if not request.use_structured_output or not new_token_ids:
            return True
        tokens = self.constrained(request, new_token_ids)
        return tokens is None or self.structout.accept_tokens(key_of(request), tokens)

    def constrained(self, request: Any, new_token_ids: list[int]) -> list[int] | None:
        """The tokens that the grammar is to accept: those after the reasoning. None
        while the reasoning goes on.

        Args:
            request: vLLM's ``Request``, which has the tokens already.
            new_token_ids: its last tokens.
        """
        start = 0
        if self.is_reasoning(request):
            start, _ = self._get_constraint_bounds(request, new_token_ids, spec_tokens_committed=True)
            if start > len(new_token_ids):
                return None
            self._end_after(request, request.num_output_tokens - len(new_token_ids) + start)
        request.structured_output_request.reasoning_ended = True
        return new_token_ids[start:]

    def reasoning(self, request: Any, drafts: Sequence[int] = ()) -> Reasoning:
        """What the rows of a request that reasons allow."""
        drafts = strip_speculative_padding(drafts)
        start, constraint_start = self._get_constraint_bounds(request, drafts)
        if start <= len(drafts):
            self._end_after(request, request.num_output_tokens + start)
        grammar = request.structured_output_request.grammar
        has_free_rows = constraint_start > 0
        if not has_free_rows or not isinstance(grammar, Grammar) or grammar.manager.error(grammar.key) is not None:
            return Reasoning((start, constraint_start))
        if grammar.reasoning_rules is None:
            stops = request.sampling_params.all_stop_token_ids
            ends, wrong_ends = _ends_of_reasoning(grammar, self._get_reasoner(request), stops)
            max_tokens = _max_reasoning_tokens(grammar, self._limit_of(request))
            grammar.reasoning_rules = ReasoningRules(ends, wrong_ends, max_tokens)
        return Reasoning((start, constraint_start), grammar.reasoning_rules, request.num_output_tokens)

    def _end_after(self, request: Any, num_reasoning: int) -> None:
        """Let the text of a request end within what its reasoning leaves of the limit.
        If that is too little, the text is cut off."""
        limit = self._limit_of(request)
        if limit is not None and self.structout is not None:
            with suppress(StructOutError):
                self.structout.end_within(key_of(request), limit - num_reasoning)

    def _limit_of(self, request: Any) -> int | None:
        # A session's next prompt goes on with its grammar.
        return None if request.resumable else request_params.limit_of(request.sampling_params)

    def validate_tokens(self, request: Any, spec_tokens: list[int]) -> list[int]:
        if self.structout is None:
            return super().validate_tokens(request, spec_tokens)
        if not request.use_structured_output:
            return [] if self._jumps_forward else spec_tokens
        key = key_of(request)
        if self._jumps_forward:
            is_free = self.is_reasoning(request)
            return [] if is_free else self.structout.compute_ff_tokens(key)[: len(spec_tokens)]
        tokens = strip_speculative_padding(spec_tokens)
        start = 0
        if self.is_reasoning(request):
            start, _ = self._get_constraint_bounds(request, tokens)
        if start >= len(tokens):
            return tokens
        return [*tokens[:start], *self._up_to_the_end(request, self.structout.validate_tokens(key, tokens[start:]))]

    def _up_to_the_end(self, request: Any, tokens: list[int]) -> list[int]:
        """Drafts without those after a token that ends the text: they would be
        verified in vain."""
        assert self.structout is not None
        stops = {*self.structout.vocabulary.stop_token_ids, *request.sampling_params.all_stop_token_ids}
        end = next((i for i, token in enumerate(tokens) if token in stops), len(tokens))
        return tokens[: end + 1]

    def clear_backend(self) -> None:
        if self.structout is not None:
            self.structout.close()
        super().clear_backend()

    def is_reasoning(self, request: Any) -> bool:
        """True until vLLM has found the end of the reasoning, after which the
        constraint applies. False without a reasoning parser."""
        return self.reasoner_cls is not None and not request.structured_output_request.reasoning_ended


def _ends_of_reasoning(
    grammar: Grammar, reasoner: Any, stops: Iterable[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that end the reasoning of a request, and those that would also be the
    first of its answer, as the start of a tool call or a stop token, where its grammar
    allows no such answer."""
    end = getattr(reasoner, "end_token_id", None)
    ends, firsts = [] if end is None else [end], []
    if isinstance(reasoner, ParserEngineReasoningAdapter):
        ends = sorted(reasoner.reasoning_end_token_ids)
        firsts = [token for token in ends if reasoner.find_reasoning_end([token]).implicit]
        ends = [token for token in ends if token not in firsts]
    if ends:  # else a reasoning might never end
        firsts += sorted(stops)
    return tuple(ends), tuple(token for token in firsts if not grammar.validate_tokens([token]))


def _max_reasoning_tokens(grammar: Grammar, limit: int | None) -> int | None:
    """How many tokens a reasoning may have before its end, to leave the answer what it
    needs, and half of the rest. None if the text has no limit."""
    needed = None if limit is None else grammar.manager.num_needed(grammar.key)
    if limit is None or needed is None:
        return None
    spare = max(0, limit - needed - 1)
    return spare - min(spare // 2, _ANSWER_TOKENS)


def dense_masks(masks: MaskBatch, num_logits: Sequence[int], max_num_logits: int) -> npt.NDArray[np.int32]:
    """The masks as vLLM's own workers read them: a row for each logits row, and since
    0.33 ``max_num_logits`` rows for each request.

    Args:
        masks: the step's masks.
        num_logits: how many logits rows each of its requests has.
        max_num_logits: how many a request can have.
    """
    rows = masks.dense(masks.request_ids, num_logits)
    if not _HAS_STRIDE:
        return rows
    padded = np.full((len(num_logits) * max_num_logits, rows.shape[1]), -1, dtype=np.int32)
    is_used = np.arange(max_num_logits) < np.array(num_logits)[:, None]
    padded[is_used.reshape(-1)] = rows
    return padded


def ending_dead_ends(accept_tokens: Callable[..., bool]) -> Callable[..., bool]:
    """Make the replacement of ``accept_tokens`` of vLLM's own manager, which does not
    know the id of a token that could not be drawn."""

    def accept_drawn_tokens(self: Any, request: Any, new_token_ids: list[int]) -> bool:
        return not drop_undrawn(new_token_ids) and accept_tokens(self, request, new_token_ids)

    return accept_drawn_tokens


def drop_undrawn(new_token_ids: list[int]) -> bool:
    """True if a token could not be drawn, which a negative id marks. The list then
    loses the tokens from that id on: vLLM ends the request with an error, and sends
    this list to the client."""
    if not new_token_ids or min(new_token_ids) >= 0:
        return False
    del new_token_ids[next(i for i, token in enumerate(new_token_ids) if token < 0) :]
    return True


def key_of(request: Any) -> str:
    grammar = request.structured_output_request.grammar
    assert isinstance(grammar, Grammar)  # vLLM schedules no request before
    return grammar.key
