"""StructuredLogitsProcessor: constraints for any decoding loop of transformers.

processor = StructuredLogitsProcessor(tokenizer, json=Order)
model.generate(**inputs, logits_processor=[processor], num_beams=4)
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from structout.constraints.params import StructuredOutputsParams
from structout.integrations.request_ids import new_request_id
from structout.integrations.transformers.constrained_sampler import DeadEndError, Row
from structout.integrations.transformers.manager_cache import shared_manager
from structout.ops.apply_bitmask import apply_bitmask
from structout.ops.sampler import DeviceMasks
from structout.scheduler.manager import StructuredOutputManager


@dataclass(eq=False)
class _Row:
    """The text of one row.

    Attributes:
        request_id: the processor's own request at the text's position. None for a free
            row.
        num_tokens: how many generated tokens the request has accepted.
        is_over: whether the text has ended: with a stop token, or with a token that its
            constraint does not allow. The second happens to beams of score -inf, and to
            rows that a stopping criterion has ended and that are padded since.
    """

    request_id: str | None
    num_tokens: int = 0
    is_over: bool = False


class StructuredLogitsProcessor(transformers.LogitsProcessor):  # type: ignore[misc]  # mypy does not read transformers
    """Masks the scores that ``model.generate`` or a pipeline draws from.

    It follows batches, left padding, ``num_return_sequences``, beam search and assisted
    generation: the position of each text is found from its tokens, and forked where
    beams fork. A processor may be used for one ``generate`` after another. A call whose
    rows are the last ones and one more token continues the texts; any other call begins
    new ones. Prefer ``masked_generate`` for greedy search and sampling: it draws while
    it masks, which is several times as fast.

    A text that has ended allows only stop tokens. Scores are not changed in place.

    Give ``tokenizer`` or ``manager``, and one constraint; or ``manager`` and
    ``request_ids``.

    Args:
        tokenizer: the model's tokenizer. The first call makes its manager, because it
            needs the width of the scores. Other users of the tokenizer share the
            manager.
        json: as in :class:`structout.StructuredOutputsParams`; for all rows.
        regex: the same.
        choice: the same.
        grammar: the same.
        key_order: the same; with json only.
        params: a constraint with further options; for all rows.
        manager: the manager to use.
        request_ids: the request of each prompt, None for a free one. They stay where
            they are: the processor follows forks of them.
        max_new_tokens: the limit that ``model.generate`` has, which does not tell its
            processors. Each text ends within it.

    Raises:
        GrammarError: the constraint is malformed. The first call raises errors that
            only compiling finds, and refuses a limit below the shortest text.
        ValueError: the arguments do not go together.
    """

    supports_continuous_batching = False

    def __init__(
        self,
        tokenizer: Any = None,
        *,
        json: Any = None,
        regex: str | None = None,
        choice: Any = None,
        grammar: str | None = None,
        key_order: str | None = None,
        params: StructuredOutputsParams | None = None,
        manager: StructuredOutputManager | None = None,
        request_ids: Sequence[str | None] | None = None,
        max_new_tokens: int | None = None,
    ):
        shorthands = {"json": json, "regex": regex, "choice": choice, "grammar": grammar}
        has_shorthand = any(value is not None for value in shorthands.values())
        if (params is not None) + (request_ids is not None) + has_shorthand != 1:
            raise ValueError("expected one of a constraint, params and request_ids")
        if (tokenizer is None) == (manager is None):
            raise ValueError("expected a tokenizer or a manager, and not both")
        if request_ids is not None and manager is None:
            raise ValueError("request_ids need the manager that has them")
        if key_order is not None and not has_shorthand:
            raise ValueError("key_order goes with json: give params its own key_order")
        if has_shorthand:
            params = StructuredOutputsParams(**shorthands, key_order=key_order)
        if params is not None:
            params.validate(None if manager is None else manager.config)
        self._tokenizer = tokenizer
        self._params = params
        self._manager = manager
        self._templates = request_ids
        self._max_new_tokens = max_new_tokens
        self._rows: list[_Row] = []
        self._last_ids = torch.empty(0, 0, dtype=torch.int64)
        self._num_prompt_columns = 0
        self._own_ids: set[str] = set()
        self._release: Any = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Mask the scores of each text's next token.

        Args:
            input_ids: int64 ``[N, columns]``.
            scores: ``[N, V]``, float32, float16 or bfloat16.

        Raises:
            GrammarError: the constraint is bad.
            ValueError: the width of the scores is not the manager's, or N is not a
                multiple of the number of prompts.
            UnknownRequestError: one of ``request_ids`` is not with the manager.
            DeadEndError: a grammar allows no token.
        """
        manager = self._manager_for(scores.shape[-1])
        if not self._continue(manager, input_ids):
            self._begin(manager, input_ids)
        self._last_ids = input_ids
        constrained = {row.request_id: i for i, row in enumerate(self._rows) if row.request_id and not row.is_over}
        masks = manager.grammar_bitmask(list(constrained))
        for request_id, reason in masks.errors.items():
            raise DeadEndError(Row(constrained[request_id], request_id, 0, 0), reason)
        # An id without a mask, None among them, leaves its row free.
        device_masks = DeviceMasks.of(masks, [row.request_id or "" for row in self._rows], scores.device)
        scores = scores.clone()
        apply_bitmask(scores, device_masks.bitmask, device_masks.rows)
        is_over = [row.is_over for row in self._rows]
        if any(is_over):
            stops = torch.full((scores.shape[-1],), float("-inf"), dtype=scores.dtype, device=scores.device)
            stops[list(manager.vocabulary.stop_token_ids)] = 0
            scores[torch.tensor(is_over, device=scores.device)] = stops
        return scores

    def reset(self) -> None:
        """Forget the texts, and finish the processor's own requests. The next call
        begins new texts."""
        self._rows = []
        self._last_ids = self._last_ids[:0]
        for request_id in list(self._own_ids):
            self._finish(request_id)

    def _manager_for(self, vocab_size: int) -> StructuredOutputManager:
        if self._manager is None:
            self._manager = shared_manager(self._tokenizer, vocab_size)
        if self._manager.vocabulary.size != vocab_size:
            raise ValueError(
                f"the scores have {vocab_size} columns, but the manager was made for vocab_size="
                f"{self._manager.vocabulary.size}: make it for the width of the lm_head"
            )
        if self._release is None:
            self._release = weakref.finalize(self, _finish_all, self._manager, self._own_ids)
        return self._manager

    def _begin(self, manager: StructuredOutputManager, input_ids: torch.Tensor) -> None:
        """Begin new texts after the prompts ``input_ids``."""
        self.reset()
        try:
            self._fork_templates(manager, len(input_ids))
        except Exception:
            self.reset()
            raise
        self._num_prompt_columns = input_ids.shape[1]

    def _fork_templates(self, manager: StructuredOutputManager, num_rows: int) -> None:
        templates = [self._add_request(manager)] if self._templates is None else list(self._templates)
        if num_rows % len(templates):
            raise ValueError(f"request_ids has {len(templates)} entries, but the batch has {num_rows} rows")
        copies = num_rows // len(templates)  # beams, or several sequences for a prompt
        for template in templates:
            if template is not None:
                manager.wait_ready(template)
            self._rows += [_Row(None if template is None else self._start(template)) for _ in range(copies)]
        if self._templates is None:
            self._finish(str(templates[0]))

    def _add_request(self, manager: StructuredOutputManager) -> str:
        assert self._params is not None
        request_id = self._own_id()
        manager.add_request(request_id, self._params)
        return request_id

    def _continue(self, manager: StructuredOutputManager, input_ids: torch.Tensor) -> bool:
        """Follow the texts to ``input_ids``. Return False if these are other texts."""
        num_columns = input_ids.shape[1]
        last = self._last_ids
        if len(input_ids) != len(last) or input_ids.device != last.device:
            return False
        if not self._num_prompt_columns < num_columns <= last.shape[1] + 1:
            return False
        seen, tokens = input_ids[:, :-1], input_ids[:, -1]
        parents = list(range(len(last)))
        if not torch.equal(seen, last[:, : num_columns - 1]):
            found = self._parents(seen, last[:, : num_columns - 1])
            if found is None:
                return False
            parents = found
        is_rollback = num_columns <= last.shape[1]
        if is_rollback:  # assisted generation takes candidates back; it has one row
            if len(last) > 1:
                return False
            self._roll_back(manager, self._rows[0], num_columns - 1 - self._num_prompt_columns)
        self._inherit(parents)
        return self._accept(manager, tokens.tolist()) or not is_rollback

    def _parents(self, seen: torch.Tensor, last: torch.Tensor) -> list[int] | None:
        """For each row of ``seen`` the row of ``last`` that it continues: of the same
        prompt, itself if possible. None if a row continues none."""
        size = len(seen) // (1 if self._templates is None else len(self._templates))
        is_parent = (seen.unflatten(0, (-1, size)).unsqueeze(2) == last.unflatten(0, (-1, size)).unsqueeze(1)).all(-1)
        parents = []
        for i, flags in enumerate(is_parent.flatten(0, 1).tolist()):
            if True not in flags:
                return None
            parents.append(i if flags[i % size] else i // size * size + flags.index(True))
        return parents

    def _inherit(self, parents: Sequence[int]) -> None:
        """Let each row go on from its parent: the first child takes over the parent's
        request, others fork it."""
        if list(parents) == list(range(len(self._rows))):
            return
        taken: set[int] = set()
        rows = []
        for parent in parents:
            row = self._rows[parent]
            request_id = row.request_id
            if parent in taken and request_id is not None:
                request_id = self._fork(request_id)
            taken.add(parent)
            rows.append(_Row(request_id, row.num_tokens, row.is_over))
        for i, row in enumerate(self._rows):
            if i not in taken and row.request_id is not None:
                self._finish(row.request_id)
        self._rows = rows

    def _accept(self, manager: StructuredOutputManager, token_ids: Sequence[int]) -> bool:
        """Advance the texts by one token each. Return whether all were allowed."""
        tokens = {
            row.request_id: [token]
            for row, token in zip(self._rows, token_ids, strict=True)
            if row.request_id is not None and not row.is_over
        }
        accepted = manager.accept_batch(tokens)
        for row in self._rows:
            if row.request_id in tokens:
                row.num_tokens += accepted[row.request_id]
                row.is_over = not accepted[row.request_id] or manager.is_terminated(row.request_id)
        return all(accepted.values())

    def _roll_back(self, manager: StructuredOutputManager, row: _Row, num_tokens: int) -> None:
        """Take the text back to its first ``num_tokens`` tokens."""
        surplus = row.num_tokens - num_tokens
        if row.request_id is not None and surplus >= 0:
            manager.rollback(row.request_id, surplus)
            row.num_tokens = num_tokens
            row.is_over = manager.is_terminated(row.request_id)

    def _start(self, template: str) -> str:
        request_id = self._fork(template)
        if self._max_new_tokens is not None:
            assert self._manager is not None
            self._manager.end_within(request_id, self._max_new_tokens)
        return request_id

    def _fork(self, request_id: str) -> str:
        assert self._manager is not None
        new_id = self._own_id()
        self._manager.fork(request_id, new_id)
        return new_id

    def _own_id(self) -> str:
        request_id = new_request_id("logits-processor")
        self._own_ids.add(request_id)
        return request_id

    def _finish(self, request_id: str) -> None:
        assert self._manager is not None
        self._manager.finish_request(request_id)
        self._own_ids.discard(request_id)


def _finish_all(manager: StructuredOutputManager, request_ids: set[str]) -> None:
    for request_id in request_ids:
        manager.finish_request(request_id)
