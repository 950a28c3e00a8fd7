"""Masks that take more work than a decoding step gives them: they are finished outside
of it."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import torch

from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.interface import StructuredOutputGrammar
from structout.masks.bitmask import allocate_token_bitmask
from structout.scheduler.requests import REQUEST_WORK, Request, RequestTable

STEP_WORK = 100_000  # in steps of the engine's work, some 30,000 of which take a millisecond

EXHAUSTED = f"the masks of this request take more than {REQUEST_WORK:,} steps of work outside of decoding steps"


class UnfinishedPlan(Protocol):
    """The part of a ``StepPlan`` that finishes rows."""

    def finish(self, bitmask: torch.Tensor, index: int, work: int) -> int | None: ...


def finish_rows(plan: UnfinishedPlan, bitmask: torch.Tensor, index: int, request: Request) -> bool:
    """Fill the rows of a step's request ``index`` with the work that ``request`` has
    left. Return False if it is not enough."""
    work = plan.finish(bitmask, index, request.work_left)
    request.work_left -= request.work_left if work is None else work
    return work is not None


class LateMasks:
    """Computes the masks of WAITING requests on a thread of its own.

    Args:
        requests: the manager's requests.
        vocab_size: V, the number of tokens that a mask covers.
    """

    def __init__(self, requests: RequestTable, vocab_size: int):
        self._requests = requests
        self._vocab_size = vocab_size
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="structout-late-masks")

    def finish(self, request: Request, draft_tokens: Sequence[int] | None) -> None:
        """Make the request WAITING until the masks of its position and its drafts are
        computed. The caller holds the lock of the grammars."""
        grammar = request.grammar
        if grammar is not None and self._requests.set_waiting(request):
            position = grammar.num_tokens
            self._executor.submit(self._finish, request, grammar.fork(), position, draft_tokens)

    def close(self) -> None:
        """Drop what has not begun."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _finish(
        self,
        request: Request,
        grammar: StructuredOutputGrammar,
        position: int,
        draft_tokens: Sequence[int] | None,
    ) -> None:
        if request.removal_error is not None:
            return
        plan = grammar.plan_step([grammar], [draft_tokens] if draft_tokens else None)
        masks = allocate_token_bitmask(plan.num_rows, self._vocab_size, pin_memory=False)
        if finish_rows(plan, masks, 0, request) and not grammar.error_reason:
            request.finished_position = position
            self._requests.set_ready_again(request)
        else:
            error = GrammarError(grammar.error_reason or EXHAUSTED, kind=GrammarErrorKind.LIMIT)
            self._requests.set_failed(request, error)
