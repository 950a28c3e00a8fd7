"""What a grammar engine implements to serve the manager: vLLM's two abstract classes, by name and signature
(vllm/v1/structured_output/backend_types.py), plus what a scheduler of ours needs.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from structout.bitmask import allocate_token_bitmask, bitmask_width
from structout.errors import GrammarError
from structout.grammar.vocabulary import Vocabulary
from structout.params import StructuredOutputOptions


class StructuredOutputGrammar(ABC):
    """One request's position in its constraint. Never used from two threads at once.

    Attributes:
        error_reason: why nothing is allowed any more, where the engine itself gave up.
    """

    error_reason: str = ""

    @abstractmethod
    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Advance by all of ``tokens``, or, if one of them is not allowed, by none and return False.

        Never raises for a token. After a stop token every token is accepted, and counts for ``rollback``.
        """

    @abstractmethod
    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """The longest allowed prefix of ``tokens``; the position stays."""

    @abstractmethod
    def rollback(self, num_tokens: int) -> None:
        """Take back the last ``num_tokens`` accepted tokens, also across termination."""

    @abstractmethod
    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        """Write the next token's mask to ``bitmask[batch_index]`` (int32 CPU, contiguous, vocabulary-wide)."""

    @abstractmethod
    def is_terminated(self) -> bool:
        """A stop token has been accepted: no mask follows."""

    @abstractmethod
    def reset(self) -> None:
        """Back to the start."""

    @abstractmethod
    def copy(self, stop_token_ids: Sequence[int] | None = None) -> "StructuredOutputGrammar":
        """A new grammar at the start, sharing what was compiled. Default: with the stop tokens of this one."""

    @abstractmethod
    def fork(self) -> "StructuredOutputGrammar":
        """A new grammar at this position, for beams and n > 1."""

    @property
    def unwrapped(self) -> "StructuredOutputGrammar":
        """What masks are asked of once the grammar constrains anything: itself, unless it waits behind a gate."""
        return self

    def is_unconstrained(self) -> bool:
        """The next token may be any: its logits need no mask."""
        return self.is_terminated()

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """How many tokens have been accepted since the start, those after a stop token too: what can be rolled back."""

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """Of what was compiled, which all copies and forks share."""

    @abstractmethod
    def forced_bytes(self) -> bytes:
        """The bytes with which every allowed text goes on from here; empty where there is a choice."""

    def find_jump_forward_string(self) -> str:
        """The text with which every allowed text goes on from here: whole characters only."""
        return whole_characters(self.forced_bytes())

    @abstractmethod
    def compute_ff_tokens(self) -> list[int]:
        """The tokens that must follow, as the tokenizer itself would write them: those of the forced text which no
        longer token that is allowed could replace (llguidance's fast-forward tokens)."""

    def fill_bitmask_drafts(self, bitmask: torch.Tensor, first_row: int, draft_tokens: Sequence[int]) -> int:
        """Fill ``bitmask[first_row + j]`` with the mask after ``draft_tokens[:j]``, for j = 0 ... len(draft_tokens).

        A draft of -1 ends the checking: later rows allow everything, as do rows after a stop token. After a draft that
        is not allowed the last row repeats. The position stays.

        Returns:
            how many drafts are allowed in a row from the first.
        """
        rows = bitmask[first_row : first_row + len(draft_tokens) + 1]
        before = self.num_tokens
        try:
            for j in range(len(rows)):
                if self.is_terminated():
                    rows[j:] = -1
                    break
                self.fill_bitmask(bitmask, first_row + j)
                if j == len(draft_tokens):
                    break
                if draft_tokens[j] == -1:
                    rows[j + 1 :] = -1
                    break
                if not self.accept_tokens("", [draft_tokens[j]]):
                    rows[j + 1 :] = rows[j]
                    break
            return self.num_tokens - before
        finally:
            self.rollback(self.num_tokens - before)

    def fill_bitmask_tree(
        self,
        bitmask: torch.Tensor,
        first_row: int,
        draft_tokens: Sequence[int],
        next_token: Sequence[int],
        next_sibling: Sequence[int],
    ) -> int:
        """Fill ``bitmask[first_row + n]`` with the mask after node n of a tree of drafts.

        Node 0 is where the grammar stands; its token is not read. A node that is not allowed, and all below it, repeat
        the row of the node above; a node of -1, and all below it or below a stop token, allow everything. The position
        stays.

        Args:
            draft_tokens: of each node.
            next_token: of each node the first node below it, -1 where there is none.
            next_sibling: of each node the next one below the same node, -1 where there is none.

        Returns:
            how many nodes, without node 0, are allowed.

        Raises:
            ValueError: it is no tree.
        """
        rows = bitmask[first_row : first_row + len(draft_tokens)]
        order = nodes_below(next_token, next_sibling)
        rows[:] = 0
        self._fill(bitmask, first_row)
        is_allowed = [True] + [False] * (len(rows) - 1)
        depth_of = [0] * len(rows)
        before = self.num_tokens
        try:
            for node, above in order:
                rows[node] = rows[above]
                if not is_allowed[above]:
                    continue
                self.rollback(self.num_tokens - before - depth_of[above])
                if draft_tokens[node] == -1 or self.is_terminated():
                    rows[node] = -1
                elif self.accept_tokens("", [draft_tokens[node]]):
                    is_allowed[node], depth_of[node] = True, depth_of[above] + 1
                    self._fill(bitmask, first_row + node)
        finally:
            self.rollback(self.num_tokens - before)
        return sum(is_allowed) - 1

    def _fill(self, bitmask: torch.Tensor, row: int) -> None:
        if self.is_unconstrained():
            bitmask[row] = -1
        else:
            self.fill_bitmask(bitmask, row)


class PrefixGrammar(StructuredOutputGrammar):
    """A grammar of an engine that takes tokens one after the other, as far as they are allowed."""

    @abstractmethod
    def _accept_prefix(self, tokens: list[int]) -> int:
        """Accept up to the first token that is not allowed; how many that is."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        accepted = self._accept_prefix(tokens)
        if accepted < len(tokens):
            self.rollback(accepted)
            return False
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        accepted = self._accept_prefix(tokens)
        self.rollback(accepted)
        return tokens[:accepted]


def nodes_below(next_token: Sequence[int], next_sibling: Sequence[int]) -> list[tuple[int, int]]:
    """Each node of a tree of drafts below node 0, with the node above it; those above come first.

    Raises:
        ValueError: it is no tree.
    """
    order: list[tuple[int, int]] = []
    seen = {0}
    pending = [(next_token[0], 0)]
    while pending:
        node, above = pending.pop()
        if node == -1:
            continue
        if not 0 < node < len(next_token) or node in seen:
            raise ValueError(f"the drafts are no tree: node {node} is out of range, or below two nodes")
        seen.add(node)
        order.append((node, above))
        pending += [(next_sibling[node], above), (next_token[node], node)]
    return order


def check_mask_buffer(bitmask: torch.Tensor, vocab_size: int) -> None:
    """Native fills write rows one after the other, whatever the strides of the buffer are.

    Raises:
        ValueError: not int32 ``[rows, ceil(vocab_size / 32)]``, contiguous and on the CPU.
    """
    width = bitmask_width(vocab_size)
    is_right = bitmask.dtype == torch.int32 and bitmask.device.type == "cpu" and bitmask.is_contiguous()
    if not is_right or bitmask.dim() != 2 or bitmask.shape[1] != width:
        raise ValueError(
            f"a mask buffer is a contiguous int32 CPU tensor of shape [rows, {width}], got {bitmask.dtype} of shape "
            f"{list(bitmask.shape)} and strides {list(bitmask.stride())} on {bitmask.device}; "
            "structout.allocate_token_bitmask makes one"
        )


def whole_characters(data: bytes) -> str:
    """The longest prefix of ``data`` that is UTF-8 text."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode()


class StructuredOutputBackend(ABC):
    """Compiles constraints for one vocabulary. ``compile_grammar`` may be called from several threads."""

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary

    @abstractmethod
    def compile_grammar(
        self, request_type: StructuredOutputOptions, grammar_spec: str, stop_token_ids: Sequence[int] | None = None
    ) -> StructuredOutputGrammar:
        """Raises ``GrammarError`` for a constraint that is malformed, unsupported or allows nothing."""

    @abstractmethod
    def fill_bitmask_batch(
        self, grammars: Sequence[StructuredOutputGrammar], bitmask: torch.Tensor, rows: Sequence[int]
    ) -> None:
        """Fill ``bitmask[rows[i]]`` from ``grammars[i]``; other rows stay as they are."""

    def allocate_token_bitmask(self, max_num_seqs: int) -> torch.Tensor:
        return allocate_token_bitmask(max_num_seqs, self.vocabulary.size)

    def _refuse_empty_language(self, grammar: StructuredOutputGrammar, request_type: StructuredOutputOptions) -> None:
        """Raise ``GrammarError`` for a grammar that, at its start, allows nothing."""
        mask = allocate_token_bitmask(1, self.vocabulary.size, pin_memory=False)
        grammar.fill_bitmask(mask, 0)
        if not mask.any():
            raise GrammarError(grammar.error_reason or f"the {request_type.value} constraint allows no text at all")

    @abstractmethod
    def destroy(self) -> None:
        """Let go of what was compiled."""
