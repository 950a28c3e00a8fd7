"""The position of a request in its constraint, and the engines that compile
constraints.

Both classes have the names and methods of vLLM's
(vllm/v1/structured_output/backend_types.py), and the further ones that the manager
needs.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from structout.constraints.params import Constraint, StructuredOutputOptions
from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.forced_tokens import NUM_CONTEXT_TOKENS, CanonicalTokenizer, whole_characters
from structout.grammar.native.extension import core
from structout.grammar.vocabulary import Vocabulary
from structout.masks.bitmask import bitmask_width

if TYPE_CHECKING:
    import torch

    Bitmask = torch.Tensor | npt.NDArray[np.int32]

_Grammar = TypeVar("_Grammar", bound="StructuredOutputGrammar")

_MAX_WORK = 1 << 62  # no bound but the limits of the constraint


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


class StructuredOutputGrammar:
    """The position of one request in a constraint, which a matcher of the C++ core
    keeps. Not safe to use from two threads at once.

    A subclass for each kind of language names the class of its matchers.

    Args:
        index: what the constraint was compiled into.
        vocab_size: V, the number of tokens that a mask covers.
        stop_token_ids: tokens that end the text.
        canonical_tokenizer: needed for ``compute_ff_tokens``.

    Attributes:
        index: the same, which all copies and forks share.
        vocab_size: the same.
        matcher: the core's matcher of this position. Decoding steps follow it: one
            native call serves all requests.
    """

    _matcher_class: str

    def __init__(
        self,
        index: Any,
        vocab_size: int,
        stop_token_ids: Sequence[int],
        canonical_tokenizer: CanonicalTokenizer | None = None,
    ):
        self.index = index
        self.vocab_size = vocab_size
        self._stop_token_ids = tuple(stop_token_ids)
        self._canonical_tokenizer = canonical_tokenizer
        self._end_of_reasoning: tuple[int, ...] = ()
        self.matcher = self._new_matcher()

    def _new_matcher(self) -> Any:
        """A matcher at the start."""
        return getattr(core(), self._matcher_class)(self.index.native, sorted(set(self._stop_token_ids)))

    # -- the start ---------------------------------------------------------------------

    def copy(self: _Grammar, stop_token_ids: Sequence[int] | None = None) -> _Grammar:
        """A new grammar at the start, which shares what was compiled.

        Args:
            stop_token_ids: tokens that end the text. Default: those of this grammar.
        """
        at_start = self._duplicate()
        if stop_token_ids is not None:
            at_start._stop_token_ids = tuple(stop_token_ids)
        at_start.matcher = at_start._new_matcher()
        if self._end_of_reasoning:
            at_start.begin_after(self._end_of_reasoning)
        return at_start

    def fork(self: _Grammar) -> _Grammar:
        """A new grammar at this position, for beams and n > 1."""
        fork = self._duplicate()
        fork.matcher = self.matcher.copy()
        return fork

    def _duplicate(self: _Grammar) -> _Grammar:
        """A grammar with the same attributes, in a fourth of ``copy.copy``'s time."""
        duplicate = object.__new__(type(self))
        duplicate.__dict__.update(self.__dict__)
        return duplicate

    def reset(self) -> None:
        """Go back to the start."""
        self.rollback(self.num_tokens)

    def begin_after(self, end_of_reasoning: Sequence[int]) -> None:
        """Let the text begin with free tokens, up to and including these. A stop token
        may not come before them, unless the text may be empty. To be called at the
        start."""
        self._end_of_reasoning = tuple(end_of_reasoning)
        self.matcher.begin_after(self._end_of_reasoning)

    def end_within(self, max_tokens: int, *, is_fair: bool) -> None:
        """Let the whole text end within ``max_tokens`` tokens: masks allow only what
        can still end in time and, if ``is_fair``, leaves values that still come their
        share. To be called at the start, after ``begin_after``."""
        self.matcher.end_within(max_tokens, is_fair)

    # -- tokens ------------------------------------------------------------------------

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Advance by all of ``tokens``. If one of them is not allowed, advance by none
        and return False.

        Never raises for a token. After a stop token every token is accepted, and counts
        for ``rollback``.
        """
        accepted: bool = self.matcher.accept(tokens)
        return accepted

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """The longest allowed prefix of ``tokens``. The position does not change."""
        return tokens[: self.matcher.num_allowed(tokens)]

    def rollback(self, num_tokens: int) -> None:
        """Undo the last ``num_tokens`` accepted tokens, also after termination."""
        self.matcher.rollback(num_tokens)

    def is_terminated(self) -> bool:
        """True once a stop token was accepted. No mask follows."""
        return self.matcher.is_terminated

    def is_unconstrained(self) -> bool:
        """True if every token may come next, so that its logits need no mask."""
        return self.matcher.is_unconstrained

    @property
    def num_tokens(self) -> int:
        """Number of tokens accepted since the start, including those after a stop
        token. All can be rolled back."""
        return self.matcher.num_tokens

    @property
    def num_needed(self) -> int | None:
        """The least number of tokens that complete the text from here, the end of the
        reasoning and the stop token included. None: no end is known, and
        ``end_within`` has no effect."""
        return self.matcher.num_needed

    @property
    def was_narrowed(self) -> bool:
        """True if ``end_within`` has forbidden a token in some mask."""
        return self.matcher.was_narrowed

    @property
    def error_reason(self) -> str:
        """Why a token or draft is not allowed, if the engine itself gave up; else
        empty."""
        error: str = self.matcher.error
        return f"the constraint takes too much work: {error}" if error else ""

    @property
    def memory_bytes(self) -> int:
        """Memory of what was compiled, which all copies and forks share."""
        return self.index.memory_bytes

    # -- masks -------------------------------------------------------------------------

    def mask(self) -> npt.NDArray[np.int32]:
        """The mask of the next token, int32 ``[ceil(vocab_size / 32)]``."""
        mask = np.empty((1, bitmask_width(self.vocab_size)), dtype=np.int32)
        self.fill_bitmask(mask, 0)
        return mask[0]

    def fill_bitmask(self, bitmask: "Bitmask", batch_index: int) -> None:
        """Write the mask of the next token to ``bitmask[batch_index]``.

        Args:
            bitmask: int32 ``[rows, ceil(vocab_size / 32)]``, contiguous, on the CPU.
            batch_index: the row to write.
        """
        address, row_bytes = mask_memory(bitmask, self.vocab_size, [batch_index])
        core().fill_batch([self.matcher], address, row_bytes, [batch_index])

    def fill_bitmask_drafts(self, bitmask: "Bitmask", first_row: int, draft_tokens: Sequence[int]) -> int:
        """Fill ``bitmask[first_row + j]`` with the mask after ``draft_tokens[:j]``, for
        j = 0 ... len(draft_tokens).

        A draft of -1 ends the checking: later rows allow everything. So do rows after a
        stop token. After a draft that is not allowed, the last row is repeated. The
        position does not change.

        Returns:
            Number of drafts before the first one that is not allowed.
        """
        num_rows = len(draft_tokens) + 1
        address, row_bytes = mask_memory(bitmask, self.vocab_size, [first_row, first_row + num_rows - 1])
        if self.is_terminated():  # a step gives it no rows
            bitmask[first_row : first_row + num_rows] = -1
            return 0
        step = core().Step({0: self.matcher}, [0], {0: draft_tokens})
        masks = core().MaskBuffer(address + first_row * row_bytes, row_bytes, num_rows)
        step.run(_MAX_WORK, masks)
        for _, problem in step.problems:
            raise ValueError(problem)
        if step.unfinished:  # another thread computes what it needs
            step.finish(0, _MAX_WORK, masks)
        return int(step.num_allowed[0])

    def device_tables(self) -> DeviceTables | None:
        """The automaton and state by which a :class:`structout.DeviceFSM` can follow
        this grammar on a device.

        None for a language that is not regular or has too large an automaton, for an
        engine that names no states, and before the text begins (``begin_after``).
        """
        return None

    # -- bytes -------------------------------------------------------------------------

    def forced_bytes(self) -> bytes:
        """The bytes with which every allowed continuation starts. Empty if there is a
        choice."""
        return b"" if self.is_terminated() else self.matcher.forced()

    def find_jump_forward_string(self) -> str:
        """The text with which every allowed continuation starts, without an incomplete
        last character."""
        return whole_characters(self.forced_bytes())

    def compute_ff_tokens(self) -> list[int]:
        """The tokens that must follow, as the tokenizer itself would write them.

        These are the tokens of the forced text that no longer allowed token could
        replace (llguidance's fast-forward tokens).

        Raises:
            RuntimeError: the backend has no tokenizer.
        """
        if self._canonical_tokenizer is None:
            raise RuntimeError("compute_ff_tokens needs the tokenizer: pass canonical_tokenizer to NativeBackend")
        if self.is_unconstrained():
            return []
        return self._canonical_tokenizer.ff_tokens(self, self.matcher.recent_tokens(NUM_CONTEXT_TOKENS))

    def accept_bytes(self, data: bytes) -> bool:
        """Advance by ``data`` as one step. If it is not allowed, do nothing and return
        False."""
        return self.matcher.accept_bytes(data)

    def undo_bytes(self) -> None:
        """Undo the last step, which ``accept_bytes`` made."""
        self.matcher.undo_bytes()

    def captures(self) -> list[tuple[str, bytes]]:
        """The names and texts of the rules whose captures the grammar asks for, in the
        order in which they end. Empty until the text is complete."""
        return []


def mask_memory(bitmask: "Bitmask", vocab_size: int, rows: Sequence[int]) -> tuple[int, int]:
    """Check memory that the core writes to. It checks nothing itself.

    Returns:
        the address of the first row, and the bytes from one row to the next.

    Raises:
        ValueError: not an int32 tensor or array ``[rows, ceil(vocab_size / 32)]``,
            contiguous, writable and on the CPU.
        IndexError: one of ``rows`` is not in it.
    """
    width = bitmask_width(vocab_size)
    array = _as_array(bitmask)
    is_right = array is not None and array.dtype == np.int32 and array.flags.c_contiguous and array.flags.writeable
    if array is None or not is_right or array.ndim != 2 or array.shape[1] != width:
        raise ValueError(
            f"a mask buffer must be a contiguous int32 CPU tensor of shape [rows, {width}], or such an array, got "
            f"{bitmask.dtype} of shape {list(bitmask.shape)} on {getattr(bitmask, 'device', 'cpu')}; "
            "allocate one with structout.allocate_token_bitmask"
        )
    if rows and not 0 <= min(rows) <= max(rows) < len(array):
        raise IndexError(f"rows must be in [0, {len(array)}), got {min(rows)} ... {max(rows)}")
    # `data_ptr` takes a tenth of the time of `ctypes.data`.
    address = bitmask.ctypes.data if isinstance(bitmask, np.ndarray) else bitmask.data_ptr()
    return address, array.strides[0]


def _as_array(bitmask: "Bitmask") -> npt.NDArray[Any] | None:
    """The same memory; None if numpy cannot see it."""
    if isinstance(bitmask, np.ndarray):
        return bitmask
    try:
        return bitmask.numpy()
    except (TypeError, RuntimeError):  # of a dtype that numpy lacks, or on a device
        return None


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
        self, grammars: Sequence[StructuredOutputGrammar], bitmask: "Bitmask", rows: Sequence[int]
    ) -> None:
        """Fill ``bitmask[rows[i]]`` from ``grammars[i]``, in one native call that gives
        Python's global lock away at most once. Other rows do not change."""
        try:
            matchers = [grammar.matcher for grammar in grammars]
        except AttributeError as error:
            raise TypeError(f"expected grammars that a backend compiled, got a {type(error.obj).__name__}") from None
        address, row_bytes = mask_memory(bitmask, self.vocabulary.size, rows)
        core().fill_batch(matchers, address, row_bytes, rows)

    def _refuse_empty_language(self, grammar: StructuredOutputGrammar, request_type: StructuredOutputOptions) -> None:
        """Raise ``GrammarError`` for a grammar that allows nothing at its start."""
        if not grammar.matcher.allows_any():
            if grammar.error_reason:
                raise GrammarError(grammar.error_reason, kind=GrammarErrorKind.LIMIT)
            message = f"the {request_type.value} constraint allows no text at all"
            raise GrammarError(message, kind=GrammarErrorKind.IMPOSSIBLE)

    @abstractmethod
    def destroy(self) -> None:
        """Release what was compiled."""
