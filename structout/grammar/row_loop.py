"""Decoding steps of grammars that are not structout's own: one grammar after the
other, in Python."""

import time
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch

from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.interface import StructuredOutputGrammar

Bound = tuple[int, int]
Tree = tuple[Sequence[int], Sequence[int]]

_MAX_SLOW = 3  # tokens or masks in a row


class RowLoop:
    """Accepts tokens and fills rows, and gives up grammars that would hold up all
    requests.

    Args:
        slow_seconds: a grammar fails after three tokens or masks in a row that each
            took longer. CPU seconds of one thread: a busy machine fails nobody.
    """

    def __init__(self, slow_seconds: float):
        self._slow_seconds = slow_seconds
        self._num_slow: dict[str, WeakKeyDictionary[StructuredOutputGrammar, int]] = {
            "tokens": WeakKeyDictionary(),
            "masks": WeakKeyDictionary(),
        }

    def accept(self, grammar: StructuredOutputGrammar, request_id: str, tokens: list[int]) -> bool:
        """Advance by all of ``tokens`` or by none.

        Raises:
            GrammarError: the tokens took too long, as did those before them.
        """
        started = time.thread_time()
        is_accepted = grammar.accept_tokens(request_id, tokens)
        self._note(grammar, "tokens", "to accept", (time.thread_time() - started) / max(1, len(tokens)))
        return is_accepted

    def fill(
        self,
        grammar: StructuredOutputGrammar,
        rows: torch.Tensor,
        drafts: Sequence[int] | None,
        bound: Bound | None,
        tree: Tree | None,
    ) -> int:
        """Fill a request's rows, as ``StructuredOutputManager.grammar_bitmask`` says.

        Returns:
            how many of its leading drafts, or of the nodes below node 0, are allowed.

        Raises:
            ValueError: the bounds or the tree are malformed.
            GrammarError: the masks took too long, as did those before them.
            Exception: whatever the engine raises.
        """
        started = time.thread_time()
        tokens = [] if drafts is None else list(drafts)
        num_allowed = _fill(grammar, rows, tokens, bound, tree if tokens else None)
        self._note(grammar, "masks", "to fill", (time.thread_time() - started) / max(1, len(rows)))
        return num_allowed

    def _note(self, grammar: StructuredOutputGrammar, what: str, purpose: str, seconds: float) -> None:
        num_slow = self._num_slow[what].get(grammar, 0) + 1 if seconds > self._slow_seconds else 0
        self._num_slow[what][grammar] = num_slow
        if num_slow >= _MAX_SLOW:
            message = (
                f"each of the last {what} took more than {self._slow_seconds:g} s {purpose}: "
                "the grammar is too ambiguous for a text of this length"
            )
            raise GrammarError(message, kind=GrammarErrorKind.LIMIT)


def _fill(
    grammar: StructuredOutputGrammar, rows: torch.Tensor, tokens: list[int], bound: Bound | None, tree: Tree | None
) -> int:
    if bound is not None and min(bound) < 0:
        raise ValueError(f"bounds must not be negative, got {bound}")
    if tree is not None:
        if bound is not None:
            raise ValueError("bounds apply to chains of drafts, got a tree; pass bounds or draft_trees, not both")
        next_token, next_sibling = tree
        if not len(next_token) == len(next_sibling) == len(tokens):
            raise ValueError(
                f"a tree of {len(tokens)} drafts needs {len(tokens)} entries in next_token and in next_sibling, "
                f"got {len(next_token)} and {len(next_sibling)}"
            )
        return grammar.fill_bitmask_tree(rows, 0, tokens, next_token, next_sibling)
    start = 0 if bound is None else min(bound[0], len(tokens))
    num_allowed = start + grammar.fill_bitmask_drafts(rows, start, tokens[start:])
    if bound is not None:
        rows[: max(bound)] = -1
    return num_allowed
