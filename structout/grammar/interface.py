"""The interface between the manager and a grammar engine.

It has vLLM's two abstract classes, with the same names and signatures
(vllm/v1/structured_output/backend_types.py), and the further methods that the manager
needs.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from structout.constraints.params import Constraint, StructuredOutputOptions
from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.vocabulary import Vocabulary
from structout.masks.bitmask import allocate_token_bitmask, bitmask_width


class DeviceTables(NamedTuple):
    """A position in a regular language over tokens.

    Attributes:
        index: a :class:`structout.grammar.native.token_index.TokenIndex`.
        stop_token_ids: tokens that end the text.
        state: the state of ``index``; None after a stop token.
    """

    index: Any
    stop_token_ids: tuple[int, ...]
    state: int | None


class StructuredOutputGrammar(ABC):
    """The position of one request in its constraint. Not safe to use from two threads
    at once.

    Attributes:
        matcher: the core's matcher of this position. Decoding steps follow it: one
            native call serves all requests.
    """

    matcher: Any

    @property
    def error_reason(self) -> str:
        """Why a token or draft is not allowed, if the engine itself gave up; else
        empty."""
        return ""

    @abstractmethod
    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Advance by all of ``tokens``. If one of them is not allowed, advance by none
        and return False.

        Never raises for a token. After a stop token every token is accepted, and counts
        for ``rollback``.
        """

    @abstractmethod
    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """Return the longest allowed prefix of ``tokens``. The position does not
        change."""

    @abstractmethod
    def rollback(self, num_tokens: int) -> None:
        """Undo the last ``num_tokens`` accepted tokens, also after termination."""

    @abstractmethod
    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        """Write the mask of the next token to ``bitmask[batch_index]``.

        Args:
            bitmask: int32 ``[rows, ceil(vocab_size / 32)]``, contiguous, on the CPU.
            batch_index: the row to write.
        """

    @abstractmethod
    def is_terminated(self) -> bool:
        """True once a stop token was accepted. No mask follows."""

    @abstractmethod
    def reset(self) -> None:
        """Go back to the start."""

    @abstractmethod
    def copy(self, stop_token_ids: Sequence[int] | None = None) -> "StructuredOutputGrammar":
        """Return a new grammar at the start, which shares what was compiled.

        Args:
            stop_token_ids: tokens that end the text. Default: those of this grammar.
        """

    @abstractmethod
    def fork(self) -> "StructuredOutputGrammar":
        """Return a new grammar at this position, for beams and n > 1."""

    @abstractmethod
    def begin_after(self, end_of_reasoning: Sequence[int]) -> None:
        """Let the text begin with free tokens, up to and including these. To be called
        at the start."""

    def is_unconstrained(self) -> bool:
        """True if every token may come next, so that its logits need no mask."""
        return self.is_terminated()

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """Number of tokens accepted since the start, including those after a stop
        token. All can be rolled back."""

    @property
    @abstractmethod
    def num_needed(self) -> int | None:
        """The least number of tokens that complete the text from here, the end of the
        reasoning and the stop token included. None: no end is known, and
        ``end_within`` has no effect."""

    @abstractmethod
    def end_within(self, max_tokens: int, *, is_fair: bool) -> None:
        """Let the whole text end within ``max_tokens`` tokens: masks allow only what
        can still end in time and, if ``is_fair``, leaves values that still come their
        share. To be called at the start, after ``begin_after``."""

    @property
    @abstractmethod
    def was_narrowed(self) -> bool:
        """True if ``end_within`` has forbidden a token in some mask."""

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """Memory of what was compiled, which all copies and forks share."""

    def device_tables(self) -> DeviceTables | None:
        """The automaton and state by which a :class:`structout.DeviceFSM` can follow
        this grammar on a device.

        None for a language that is not regular or has too large an automaton, for an
        engine that names no states, and before the text begins (``begin_after``).
        """
        return None

    @abstractmethod
    def forced_bytes(self) -> bytes:
        """The bytes with which every allowed continuation starts. Empty if there is a
        choice."""

    def find_jump_forward_string(self) -> str:
        """The text with which every allowed continuation starts, without an incomplete
        last character."""
        return whole_characters(self.forced_bytes())

    def captures(self) -> list[tuple[str, bytes]]:
        """The names and texts of the rules whose captures the grammar asks for, in the
        order in which they end. Empty until the text is complete."""
        return []

    @abstractmethod
    def compute_ff_tokens(self) -> list[int]:
        """Return the tokens that must follow, as the tokenizer itself would write them.

        These are the tokens of the forced text that no longer allowed token could
        replace (llguidance's fast-forward tokens).
        """

    @abstractmethod
    def fill_bitmask_drafts(self, bitmask: torch.Tensor, first_row: int, draft_tokens: Sequence[int]) -> int:
        """Fill ``bitmask[first_row + j]`` with the mask after ``draft_tokens[:j]``, for
        j = 0 ... len(draft_tokens).

        A draft of -1 ends the checking: later rows allow everything. So do rows after a
        stop token. After a draft that is not allowed, the last row is repeated. The
        position does not change.

        Returns:
            Number of drafts before the first one that is not allowed.
        """

    @abstractmethod
    def fill_bitmask_tree(
        self,
        bitmask: torch.Tensor,
        first_row: int,
        draft_tokens: Sequence[int],
        next_token: Sequence[int],
        next_sibling: Sequence[int],
    ) -> int:
        """Fill ``bitmask[first_row + n]`` with the mask after node n of a tree of
        drafts.

        Node 0 is the current position, and its token is not read. A node that is not
        allowed, and all nodes below it, repeat the row of its parent. A node of -1, all
        nodes below it and all nodes below a stop token allow everything. The position
        does not change.

        Args:
            bitmask: as in ``fill_bitmask``.
            first_row: the row of node 0.
            draft_tokens: the token of each node.
            next_token: the first child of each node, or -1.
            next_sibling: the next node with the same parent, or -1.

        Returns:
            Number of allowed nodes, without node 0.

        Raises:
            ValueError: the nodes do not form a tree.
        """


def check_mask_buffer(bitmask: torch.Tensor, vocab_size: int) -> None:
    """Check that ``bitmask`` is int32 ``[rows, ceil(vocab_size / 32)]``, contiguous and
    on the CPU.

    Native fills ignore the strides of the buffer.

    Raises:
        ValueError: it is not.
    """
    width = bitmask_width(vocab_size)
    is_right = bitmask.dtype == torch.int32 and bitmask.device.type == "cpu" and bitmask.is_contiguous()
    if not is_right or bitmask.dim() != 2 or bitmask.shape[1] != width:
        raise ValueError(
            f"a mask buffer must be a contiguous int32 CPU tensor of shape [rows, {width}], got {bitmask.dtype} "
            f"of shape {list(bitmask.shape)} and strides {list(bitmask.stride())} on {bitmask.device}; "
            "allocate one with structout.allocate_token_bitmask"
        )


def whole_characters(data: bytes) -> str:
    """The longest prefix of ``data`` that is UTF-8 text."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode()


@dataclass(frozen=True)
class CompiledConstraint:
    """A constraint that a backend compiled.

    Attributes:
        grammar: the grammar at its start.
        backend_name: the backend that compiled it.
        weakened: parts of a lenient constraint that the backend does not enforce, such
            as ``#/properties/age/not``.
        annotations: parts of the constraint that constrain nothing, as JSON Schema
            allows: each ``format`` that it does not define, or that no backend which
            can serve the constraint enforces, such as ``#/properties/file/format``.
        cpu_seconds: how long the compilation took, by the clock of its thread.
    """

    grammar: StructuredOutputGrammar
    backend_name: str = ""
    weakened: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()
    cpu_seconds: float = 0.0

    @property
    def memory_bytes(self) -> int:
        return self.grammar.memory_bytes


class StructuredOutputBackend(ABC):
    """Compiles constraints for one vocabulary. The methods that compile may be called
    from several threads.

    Args:
        vocabulary: the token ids of the model.
    """

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary

    @abstractmethod
    def compile_grammar(
        self, request_type: StructuredOutputOptions, grammar_spec: str, stop_token_ids: Sequence[int] | None = None
    ) -> StructuredOutputGrammar:
        """Compile a constraint without further options, as vLLM does.

        Args:
            request_type: the kind of constraint.
            grammar_spec: see :class:`structout.constraints.params.Constraint`.
            stop_token_ids: tokens that end the text. Default: those of the vocabulary.

        Raises:
            GrammarError: the constraint is malformed, unsupported or allows no text.
        """

    def compile(self, constraint: Constraint, stop_token_ids: Sequence[int] | None = None) -> CompiledConstraint:
        """Compile a constraint with all its options (``whitespace_pattern``,
        ``lenient``).

        The default calls ``compile_grammar``, which has no place for the options, and
        refuses those that would change what is allowed.

        Args:
            constraint: what to compile.
            stop_token_ids: tokens that end the text. Default: those of the vocabulary.

        Raises:
            GrammarError: as ``compile_grammar``.
        """
        options = {"whitespace_pattern": constraint.whitespace_pattern is not None, "schemas": bool(constraint.schemas)}
        for option, is_given in options.items():
            if is_given:
                message = f"{type(self).__name__} takes no {option}"
                raise GrammarError(message, kind=GrammarErrorKind.UNSUPPORTED)
        return CompiledConstraint(self.compile_grammar(constraint.kind, constraint.spec, stop_token_ids))

    def fill_bitmask_batch(
        self, grammars: Sequence[StructuredOutputGrammar], bitmask: torch.Tensor, rows: Sequence[int]
    ) -> None:
        """Fill ``bitmask[rows[i]]`` from ``grammars[i]``. Other rows do not change.

        Should release Python's global lock at most once: getting it back may take
        milliseconds while other threads run Python code. The default fills one row
        after the other.
        """
        for grammar, row in zip(grammars, rows, strict=True):
            grammar.fill_bitmask(bitmask, row)

    def allocate_token_bitmask(self, max_num_seqs: int) -> torch.Tensor:
        return allocate_token_bitmask(max_num_seqs, self.vocabulary.size)

    def _refuse_empty_language(self, grammar: StructuredOutputGrammar, request_type: StructuredOutputOptions) -> None:
        """Raise ``GrammarError`` for a grammar that allows nothing at its start."""
        if not self._allows_any(grammar):
            if grammar.error_reason:
                raise GrammarError(grammar.error_reason, kind=GrammarErrorKind.LIMIT)
            message = f"the {request_type.value} constraint allows no text at all"
            raise GrammarError(message, kind=GrammarErrorKind.IMPOSSIBLE)

    def _allows_any(self, grammar: StructuredOutputGrammar) -> bool:
        """True if the grammar allows a token at its position."""
        mask = allocate_token_bitmask(1, self.vocabulary.size, pin_memory=False)
        grammar.fill_bitmask(mask, 0)
        return bool(mask.numpy().any())

    @abstractmethod
    def destroy(self) -> None:
        """Release what was compiled."""
