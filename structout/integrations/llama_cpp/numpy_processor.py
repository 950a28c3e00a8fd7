"""StructuredLogitsProcessor: constraints for the methods of ``llama_cpp.Llama``."""

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from structout.constraints.params import StructuredOutputsParams
from structout.errors import StructOutError
from structout.grammar.native.extension import core
from structout.integrations.llama_cpp.llama_tokenizer import tokenizer_of
from structout.integrations.request_ids import new_request_id
from structout.scheduler.manager import StructuredOutputManager


class StructuredLogitsProcessor:
    """Masks the scores that llama.cpp draws from, for one text.

    For ``Llama.__call__``, ``create_completion`` and ``create_chat_completion``, also
    with ``stream``. The tokens of the first call are the prompt. llama.cpp draws on
    when a processor raises: so where a text cannot go on, only the tokens that end it
    keep their scores, and :meth:`parse` raises the reason again.

    Args:
        llama: a ``llama_cpp.Llama`` without a draft model.
        params: the constraint, in place of ``constraint``.
        manager: made for :func:`tokenizer_of` the model. Default: its own.
        max_tokens: the limit that the method of ``Llama`` gets, which does not tell its
            processors. The text ends within it, and within the context of the model.
        **constraint: ``json``, ``regex``, ``choice``, ``grammar``, ``structural_tag``
            or ``tools``, and other arguments of
            :class:`structout.StructuredOutputsParams`. Calls of tools are written as
            the model's chat template writes them.

    Attributes:
        error: why the text could not go on; None if it could.

    Raises:
        GrammarError: the constraint is bad, or its shortest text is longer than
            ``max_tokens``.
        ValueError: the arguments do not go together.
    """

    def __init__(
        self,
        llama: Any,
        *,
        params: StructuredOutputsParams | None = None,
        manager: StructuredOutputManager | None = None,
        max_tokens: int | None = None,
        **constraint: Any,
    ):
        if params is not None and constraint:
            raise ValueError(f"expected a constraint or params, got params and {', '.join(constraint)}")
        if getattr(llama, "draft_model", None) is not None:
            raise ValueError("a logits processor does not go with the draft_model of a llama_cpp.Llama: leave it out")
        tokenizer = tokenizer_of(llama)
        self._params = (params or StructuredOutputsParams(**constraint)).for_tokenizer(tokenizer)
        self._manager = manager or tokenizer.manager
        self._num_positions: int = llama.n_ctx()
        self._request_id = new_request_id("llama-processor")
        self._seen: bytes | None = None  # the tokens of the last call
        self.error: BaseException | None = None
        self._manager.add_request(self._request_id, self._params, max_tokens=max_tokens)
        weakref.finalize(self, self._manager.finish_request, self._request_id)
        self._manager.wait_ready(self._request_id)

    def __call__(self, input_ids: npt.NDArray[np.intc], scores: npt.NDArray[np.single]) -> npt.NDArray[np.single]:
        """Mask the scores of the next token.

        Args:
            input_ids: int32 ``[tokens]``, the prompt and the text so far.
            scores: float32 ``[V]`` of any stride. Written in place, also where an error
                is raised.

        Returns:
            ``scores``.

        Raises:
            ValueError: these are not the last tokens and one more, or not the scores.
            StructOutError: the text does not satisfy the constraint, or cannot end.
        """
        try:
            self._check(scores)
            self._follow(input_ids)
            masks = self._manager.grammar_bitmask([self._request_id])
            for reason in masks.errors.values():
                raise StructOutError(f"the text cannot go on: {reason}", self._request_id)
        except BaseException as error:
            self.error = error
            self._only_stops(scores)
            raise
        for mask in masks.bitmask:
            core().apply_bitmask(scores, mask)
        if not len(masks.bitmask) and self._manager.is_terminated(self._request_id):  # else free text follows
            self._only_stops(scores)
        return scores

    def parse(self, text: str) -> Any:
        """Read the finished text back, see :meth:`StructuredOutputsParams.parse`.

        Raises:
            ValueError: the text is not whole, or a validator of its type refuses it.
            Exception: the text ended with an :attr:`error`, or the model did not call.
        """
        if self.error is not None:
            raise self.error
        if self._seen is None:
            raise StructOutError("the model did not call this processor: llama-cpp-python drops all with logit_bias")
        return self._params.parse(text)

    def _check(self, scores: npt.NDArray[np.single]) -> None:
        if self.error is not None:
            raise self.error
        size = self._manager.vocabulary.size
        if scores.shape != (size,) or scores.dtype != np.single:
            raise ValueError(f"expected float32 scores of {size} tokens, got {scores.dtype} {list(scores.shape)}")

    def _follow(self, input_ids: npt.NDArray[np.intc]) -> None:
        if self._seen is None:
            self._manager.end_within(self._request_id, max(1, self._num_positions - len(input_ids)))
        elif input_ids[:-1].tobytes() != self._seen:
            raise ValueError("a StructuredLogitsProcessor serves one text: make another for each call of the model")
        elif not self._manager.accept_tokens(self._request_id, [int(input_ids[-1])]):
            token = int(input_ids[-1])
            raise StructOutError(
                f"the constraint does not allow token {token}, {self._manager.vocabulary.bytes_of([token])!r}: "
                "another processor, or a grammar, has changed the scores"
            )
        self._seen = input_ids.tobytes()

    def _only_stops(self, scores: npt.NDArray[np.single]) -> None:
        stops = [stop for stop in self._manager.vocabulary.stop_token_ids if stop < len(scores)]
        kept = scores[stops]
        scores.fill(-np.inf)
        scores[stops] = np.where(np.isfinite(kept), kept, 0)
