"""Constraints for transformers' continuous batching.

with structured_batching(model, manager, default_request_id="order") as batching:
    outputs = model.generate_batch(prompts, max_new_tokens=200)
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor

from structout.errors import StructOutError
from structout.integrations.request_ids import new_request_id
from structout.masks.bitmask import bitmask_width
from structout.ops.apply_bitmask import apply_bitmask
from structout.ops.token_bitmask import pack_bitmask
from structout.scheduler.manager import StructuredOutputManager


@dataclass
class _Text:
    """The processor's own request at the position of one text.

    Attributes:
        num_tokens: how many generated tokens it has accepted.
        error: why the text cannot go on, if so.
    """

    request_id: str
    num_tokens: int = 0
    error: str = ""


class StructuredBatchingProcessor(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]  # as in logits_processor.py
    """Masks the scores of requests that name a constraint.

    A request names it as ``add_request(..., structured_request="a")``. The position of
    its text follows from the tokens that transformers has kept for it, so preemption
    and ``num_return_sequences`` need no care. It ends within the request's
    ``max_new_tokens``. A text that cannot go on, or whose limit is below the shortest
    text, may only end: no error of a request stops the others.

    Args:
        manager: made for this tokenizer and lm_head.
        max_requests: the largest batch.
        device: the model's device.
        default_request_id: the constraint of requests that name none. None: they are
            free.

    Attributes:
        errors: by transformers' request id, why a text could not go on. Its text is
            not complete.
    """

    supported_kwargs = {"structured_request": str}  # noqa: RUF012 - transformers' class attribute
    ignored_kwargs = ()

    def __init__(
        self,
        manager: StructuredOutputManager,
        max_requests: int,
        device: torch.device | str,
        default_request_id: str | None = None,
    ):
        size = manager.vocabulary.size
        is_stop = torch.zeros(1, size, dtype=torch.bool)
        is_stop[0, list(manager.vocabulary.stop_token_ids)] = True
        self._manager = manager
        self._default = default_request_id
        # Row 0 allows stop tokens only. The buffer stays in its place: a CUDA graph
        # reads it.
        self._bitmask = torch.zeros(1 + max_requests, bitmask_width(size), dtype=torch.int32, device=device)
        self._bitmask[0] = pack_bitmask(is_stop)[0]
        self._texts: dict[str, _Text] = {}
        self.errors: dict[str, str] = {}

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """Set the argument of rows without a request: they are free."""
        int32_tensor.fill_(-1)

    def prepare_tensor_args(self, requests_with_new_token: Sequence[Any]) -> torch.Tensor:
        """Follow the texts of a step, and fill its masks.

        Args:
            requests_with_new_token: transformers' states of the step's requests.

        Returns:
            int32 ``[N]``: the mask row that governs each request's logits, -1 for free
            ones.
        """
        texts = [self._follow(request.state) for request in requests_with_new_token]
        live = [text.request_id for text in texts if text is not None and not text.error]
        masks = self._manager.grammar_bitmask(live, strict=False)
        self._bitmask[1 : 1 + len(masks.bitmask)].copy_(masks.to("cpu"))
        rows = dict(zip(live, (masks.rows_for(live) + 1).tolist(), strict=True))  # 0: the text has ended
        for request, text in zip(requests_with_new_token, texts, strict=True):
            if text is not None:
                text.error = text.error or masks.errors.get(text.request_id, "")
                if text.error:
                    self.errors[request.state.request_id] = text.error
        self._forget_others({request.state.request_id for request in requests_with_new_token})
        return torch.tensor(
            [-1 if text is None else 0 if text.error else rows[text.request_id] for text in texts], dtype=torch.int32
        )

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """Apply the masks of the step to ``scores``, ``[N, V]``, in place."""
        apply_bitmask(scores, self._bitmask, tensor_arg[: scores.shape[0]].contiguous())
        return scores

    def forget(self, request_id: str) -> None:
        """Forget a request that has ended, from any thread. Without this call the next
        step forgets it, except for its error.

        Args:
            request_id: transformers' id of the request.
        """
        self.errors.pop(request_id, None)
        text = self._texts.pop(request_id, None)
        if text is not None:
            self._manager.finish_request(text.request_id)

    def close(self) -> None:
        """Finish the processor's own requests."""
        self._forget_others(set())

    def _follow(self, state: Any) -> _Text | None:
        """The text of a request, brought to its last token. None if it is free."""
        name = state.logit_processor_kwargs.get("structured_request", self._default)
        if name is None:
            return None
        text = self._texts.get(state.request_id)
        if text is None:
            text = self._texts[state.request_id] = self._start(name, state)
        if text.error:
            return text
        tokens = [*_earlier_tokens(state), *state.generated_tokens]
        if not self._manager.accept_tokens(text.request_id, tokens[text.num_tokens :]):
            text.error = "its tokens are not those of its masks"
        text.num_tokens = len(tokens)
        return text

    def _start(self, name: str, state: Any) -> _Text:
        text = _Text(new_request_id("continuous-batching"))
        try:
            self._manager.fork(name, text.request_id)
            if state.max_new_tokens is not None:  # of those that are not part of its prompt by now
                self._manager.end_within(text.request_id, state.max_new_tokens + len(_earlier_tokens(state)))
        except StructOutError as error:
            text.error = str(error)
        return text

    def _forget_others(self, current: set[str]) -> None:
        """Finish the texts that are not in the step: they have ended, or wait and will
        be followed from their start."""
        for request_id, text in list(self._texts.items()):
            if request_id not in current:
                self._texts.pop(request_id, None)
                self._manager.finish_request(text.request_id)


def _earlier_tokens(state: Any) -> list[int]:
    """The tokens of a text that count as part of its prompt, once it was preempted."""
    num_prompt_tokens = state._true_initial_tokens or len(state.initial_tokens)
    tokens: list[int] = state.initial_tokens[num_prompt_tokens:]
    return tokens


@contextmanager
def structured_batching(
    model: Any,
    manager: StructuredOutputManager,
    *,
    default_request_id: str | None = None,
    generation_config: Any = None,
    continuous_batching_config: Any = None,
) -> Iterator[Any]:
    """A manager of continuous batching whose requests may name constraints.

    Inside of the context ``model.generate_batch`` uses it too. Masks depend on the last
    token, so asynchronous batching is off.

    Args:
        model: a transformers causal LM.
        manager: made for its tokenizer and lm_head. It has the requests that are named,
            READY; they stay where they are.
        default_request_id: the constraint of requests that name none, such as those of
            ``generate_batch``. None: they are free.
        generation_config: as for ``model.init_continuous_batching``.
        continuous_batching_config: the same.

    Yields:
        transformers' ContinuousBatchingManager, not started. Its attribute
        ``structured`` is the :class:`StructuredBatchingProcessor`.

    Raises:
        ValueError: the model has such a manager already, or the config asks for
            asynchronous batching.
        GrammarError: the default constraint is bad.
        UnknownRequestError: ``default_request_id`` is not with the manager.
    """
    config = continuous_batching_config or ContinuousBatchingConfig()
    if config.use_async_batching:
        raise ValueError("use_async_batching must be off: a mask depends on the token before it")
    if getattr(model, "_cached_continuous_batching_manager", None) is not None:
        raise ValueError(
            "the model has a continuous batching manager without constraints: call "
            "model.destroy_cached_continuous_batching_manager() first"
        )
    if default_request_id is not None:
        manager.wait_ready(default_request_id)
    attention = model.config._attn_implementation
    batching = model.init_continuous_batching(generation_config, config)
    batching.continuous_batching_config.use_async_batching = False
    processor = StructuredBatchingProcessor(
        manager, batching.continuous_batching_config.max_requests_per_batch, model.device, default_request_id
    )
    _install(batching.logit_processor, processor)
    batching.structured = processor
    model._cached_continuous_batching_manager = batching  # generate_batch takes it from here
    try:
        yield batching
    finally:
        if batching.is_running():
            batching.stop(block=True)
        model.destroy_cached_continuous_batching_manager()
        if model.config._attn_implementation != attention:
            model.set_attn_implementation(attention)
        processor.close()


def _install(processors: Any, processor: StructuredBatchingProcessor) -> None:
    """Put a processor before all others, whose filters have to see masked scores."""
    processors.logits_processor.insert(0, processor)
    processors.tensors_required += 1
    processors.do_processing = True
    processors._retrieve_processors_kwargs()
