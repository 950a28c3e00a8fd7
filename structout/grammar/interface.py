"""What a grammar engine implements to serve the manager: vLLM's two abstract classes, by name and signature
(vllm/v1/structured_output/backend_types.py), plus what a scheduler of ours needs.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from structout.bitmask import allocate_token_bitmask
from structout.grammar.vocabulary import Vocabulary
from structout.params import StructuredOutputOptions


class StructuredOutputGrammar(ABC):
    """One request's position in its constraint. Never used from two threads at once."""

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
    def copy(self) -> "StructuredOutputGrammar":
        """A new grammar at the start, sharing what was compiled."""

    @abstractmethod
    def fork(self) -> "StructuredOutputGrammar":
        """A new grammar at this position, for beams and n > 1."""


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

    @abstractmethod
    def destroy(self) -> None:
        """Let go of what was compiled."""
