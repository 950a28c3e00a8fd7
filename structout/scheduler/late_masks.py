"""Masks that take more work than a decoding step gives them: they are finished outside
of it."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.interface import StructuredOutputGrammar
from structout.grammar.native.extension import core
from structout.masks.bitmask import allocate_token_bitmask
from structout.masks.buffers import MaskBuffer
from structout.scheduler.requests import REQUEST_WORK, Request, RequestTable

EXHAUSTED = f"the masks of this request take more than {REQUEST_WORK:,} steps of work outside of decoding steps"


def finish_rows(step: Any, index: int, memory: tuple[int, int, int], request: Request) -> bool:
    """Fill the rows of a native step's request ``index`` with the work that ``request``
    has left, without Python's global lock. Return False if it is not enough."""
    work = step.finish(index, request.work_left, *memory)
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
            self._executor.submit(self._settle, request, grammar.fork(), draft_tokens)

    def close(self) -> None:
        """Drop what has not begun."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _settle(self, request: Request, grammar: StructuredOutputGrammar, draft_tokens: Sequence[int] | None) -> None:
        try:
            self._finish(request, grammar, draft_tokens)
        except Exception as error:  # whatever it is, the request must not wait for ever
            self._requests.set_failed(request, GrammarError(f"its masks could not be computed: {error}"))

    def _finish(self, request: Request, grammar: StructuredOutputGrammar, draft_tokens: Sequence[int] | None) -> None:
        if request.removal_error is not None:
            return
        step = core().Step({0: grammar.position}, [0], {0: draft_tokens})
        masks = MaskBuffer(allocate_token_bitmask(step.max_rows, self._vocab_size, pin_memory=False))
        step.run(0, *masks.memory)
        if finish_rows(step, 0, masks.memory, request) and not grammar.error_reason:
            request.finished_position = grammar.num_tokens
            self._requests.set_ready_again(request)
        else:
            error = GrammarError(grammar.error_reason or EXHAUSTED, kind=GrammarErrorKind.LIMIT)
            self._requests.set_failed(request, error)
