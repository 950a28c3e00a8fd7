"""Compiles constraints with llguidance (https://github.com/guidance-ai/llguidance)."""

import os
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from llguidance import LLExecutor, LLMatcher, LLTokenizer, regex_to_lark

from structout.bitmask import bitmask_dtype, bitmask_width
from structout.config import StructuredOutputsConfig
from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.engine_versions import warn_if_unmeasured
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.interface import CompiledConstraint, StructuredOutputBackend, StructuredOutputGrammar
from structout.grammar.llguidance.matcher import NOT_WRITTEN, CompiledSpec, LlguidanceGrammar, MaskBuffer, error_of
from structout.grammar.llguidance.refusals import explain_refusal
from structout.grammar.llguidance.spec import json_whitespace_pattern, lark_spec, llguidance_spec
from structout.grammar.llguidance.support import llguidance_support, places_of_warnings
from structout.grammar.refusals import locate
from structout.grammar.vocabulary import Vocabulary
from structout.json_schema import Node, subschemas
from structout.params import Constraint, StructuredOutputOptions

_BYTES_PER_WORD = 4
_CACHED_TEXTS = 1 << 13
_READ_AT_THE_ROOT = ("$schema", "$defs", "definitions")
# From this many rows on, a batch is one native call. While another thread runs Python
# code, that call costs a switch interval (5 ms) to get the global lock back. Calls of
# some 10 us mostly end before the other thread has taken the lock: 3 of 100 lose it.
_NUM_BATCHED_ROWS = 32


class LlguidanceBackend(StructuredOutputBackend):
    """Compiles constraints for one vocabulary with llguidance.

    Args:
        vocabulary: the token ids of the model.
        any_whitespace: as in :class:`structout.StructuredOutputsConfig`.
        max_whitespace: as in :class:`structout.StructuredOutputsConfig`.
        canonical_tokenizer: needed for ``compute_ff_tokens`` of the grammars. By
            default that method raises.
        fill_threads: native threads that share the rows of a batch.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        any_whitespace: bool = True,
        max_whitespace: int | None = None,
        canonical_tokenizer: CanonicalTokenizer | None = None,
        fill_threads: int = 1,
    ):
        super().__init__(vocabulary)
        warn_if_unmeasured("llguidance")
        self.encode: Callable[[str], list[int] | None] | None = None
        if canonical_tokenizer is not None:
            self.encode = lru_cache(_CACHED_TEXTS)(canonical_tokenizer.encode)
        self.default_stop_token_ids = frozenset(vocabulary.stop_token_ids)
        self._any_whitespace = any_whitespace
        self._max_whitespace = max_whitespace
        self._tokenizer = LLTokenizer(_Tokenizer(vocabulary, self.encode), eos_token=list(vocabulary.stop_token_ids))
        self._fill_threads = fill_threads
        self._executors: dict[int, LLExecutor] = {}  # by process: threads do not survive a fork
        self.row_bytes = bitmask_width(vocabulary.size) * _BYTES_PER_WORD
        stop = vocabulary.stop_token_ids[0]  # llguidance allows all of them or none
        self.stop_word, self.stop_bit = stop >> 5, 1 << (stop & 31)

    @classmethod
    def from_config(
        cls, vocabulary: Vocabulary, config: StructuredOutputsConfig, canonical_tokenizer: CanonicalTokenizer | None
    ) -> "LlguidanceBackend":
        return cls(
            vocabulary,
            any_whitespace=config.any_whitespace,
            max_whitespace=config.max_whitespace,
            canonical_tokenizer=canonical_tokenizer,
            fill_threads=config.fill_threads,
        )

    def compile_grammar(
        self, request_type: StructuredOutputOptions, grammar_spec: str, stop_token_ids: Sequence[int] | None = None
    ) -> LlguidanceGrammar:
        """Compile a constraint as the interface specifies.

        Raises:
            GrammarError: also for a structural tag, and for a Lark grammar that refers
                to tokens by name or number, or uses max_tokens, stop or temperature,
                which cannot be rolled back or masked.
        """
        return self._compile(Constraint(request_type, grammar_spec), stop_token_ids)

    def compile(self, constraint: Constraint, stop_token_ids: Sequence[int] | None = None) -> CompiledConstraint:
        """Compile a constraint with all its options.

        Args:
            constraint: with ``whitespace_pattern``, whitespace between two JSON tokens
                matches it as a whole. With ``lenient``, keywords that llguidance does
                not implement are ignored, and listed in ``weakened``.
            stop_token_ids: tokens that end the text. Default: those of the vocabulary.
        """
        grammar = self._compile(constraint, stop_token_ids)
        weakened: tuple[str, ...] = ()
        if grammar.weakened:
            known = llguidance_support(constraint).weakened
            places = dict.fromkeys(places_of_warnings(grammar.weakened, constraint.nodes))
            weakened = tuple(place for place in places if place not in known)
        return CompiledConstraint(grammar, weakened=weakened)

    def fill_bitmask_batch(
        self, grammars: Sequence[StructuredOutputGrammar], bitmask: torch.Tensor, rows: Sequence[int]
    ) -> None:
        """Fill rows as the interface specifies, many of them in one native call."""
        buffer = self.mask_buffer(bitmask, rows)
        own_grammars = [_own_grammar(grammar) for grammar in grammars]
        if not self._is_batched(buffer, len(rows)):
            for grammar, row in zip(own_grammars, rows, strict=True):
                grammar.fill_row(buffer, row)
            return
        matchers = [(grammar.matcher, row) for grammar, row in zip(own_grammars, rows, strict=True)]
        self._executor().unsafe_compute_mask_ptr(matchers, buffer.address, self.row_bytes, len(bitmask))
        for grammar, row in zip(own_grammars, rows, strict=True):
            grammar.correct_row(buffer, row)

    def fill_bitmask_drafts_batch(
        self,
        grammars: Sequence[StructuredOutputGrammar],
        bitmask: torch.Tensor,
        first_rows: Sequence[int],
        draft_tokens: Sequence[Sequence[int]],
    ) -> list[int]:
        """Fill rows as the interface specifies, many of them in one native call."""
        last_rows = [row + len(tokens) for row, tokens in zip(first_rows, draft_tokens, strict=True)]
        buffer = self.mask_buffer(bitmask, [*first_rows, *last_rows])
        own_grammars = [_own_grammar(grammar) for grammar in grammars]
        texts = [grammar.draft_text(tokens) for grammar, tokens in zip(own_grammars, draft_tokens, strict=True)]
        for row, text in zip(first_rows, texts, strict=True):
            buffer.words[row : row + len(text) + 1, 0] = NOT_WRITTEN
        going = [i for i, grammar in enumerate(own_grammars) if not grammar.is_terminated()]
        if self._is_batched(buffer, sum(len(texts[i]) + 1 for i in going)):
            drafted = [(own_grammars[i].matcher, first_rows[i], texts[i]) for i in going if texts[i]]
            plain = [(own_grammars[i].matcher, first_rows[i]) for i in going if not texts[i]]
            if drafted:
                self._executor().unsafe_compute_mask_ptr_with_draft_token(
                    drafted, buffer.address, self.row_bytes, len(bitmask)
                )
            if plain:
                self._executor().unsafe_compute_mask_ptr(plain, buffer.address, self.row_bytes, len(bitmask))
        return [
            grammar.finish_drafts(buffer, row, tokens, text)
            for grammar, row, tokens, text in zip(own_grammars, first_rows, draft_tokens, texts, strict=True)
        ]

    def destroy(self) -> None:
        """Do nothing: llguidance keeps nothing that no grammar holds."""

    def mask_buffer(self, bitmask: torch.Tensor, rows: Sequence[int]) -> MaskBuffer:
        """Check the memory that ``fill_row`` writes to. The native call checks nothing.

        Raises:
            ValueError: not an int32 CPU buffer of the vocabulary's width with
                contiguous rows.
            IndexError: one of ``rows`` is not in it.
        """
        width = self.row_bytes // _BYTES_PER_WORD
        if bitmask.dtype != bitmask_dtype or not bitmask.is_cpu or bitmask.dim() != 2 or bitmask.shape[1] != width:
            raise ValueError(
                f"expected a CPU bitmask {bitmask_dtype} [rows, {width}], "
                f"got {bitmask.dtype} {list(bitmask.shape)} on {bitmask.device}"
            )
        if bitmask.stride(1) != 1:
            raise ValueError(f"expected contiguous rows, got strides {bitmask.stride()}")
        if rows and not 0 <= min(rows) <= max(rows) < len(bitmask):
            raise IndexError(f"rows must be in [0, {len(bitmask)}), got {min(rows)} ... {max(rows)}")
        words = bitmask.numpy().view(np.uint32)
        return MaskBuffer(words, bitmask.data_ptr(), words.strides[0])

    def _is_batched(self, buffer: MaskBuffer, num_rows: int) -> bool:
        """Whether one native call fills so many rows. There must be no gaps between
        them."""
        return num_rows >= _NUM_BATCHED_ROWS and buffer.row_stride == self.row_bytes

    def _executor(self) -> LLExecutor:
        executor = self._executors.get(os.getpid())
        if executor is None:
            executor = self._executors[os.getpid()] = LLExecutor(self._fill_threads)
        return executor

    def _compile(self, constraint: Constraint, stop_token_ids: Sequence[int] | None) -> LlguidanceGrammar:
        spec = llguidance_spec(constraint, any_whitespace=self._any_whitespace, max_whitespace=self._max_whitespace)
        if constraint.whitespace_pattern is not None:
            self._check_whitespace(json_whitespace_pattern(constraint.whitespace_pattern))
        compiled = CompiledSpec(self._tokenizer, spec)
        if compiled.error:
            raise self._refusal(constraint, compiled.error)
        if compiled.warnings and not constraint.lenient:
            message = f"llguidance does not enforce all of this {constraint.kind.value} constraint"
            raise GrammarError(message, kind=GrammarErrorKind.UNSUPPORTED)
        stops = self.vocabulary.stop_token_ids if stop_token_ids is None else stop_token_ids
        grammar = LlguidanceGrammar(compiled, self, stops)
        self._refuse_empty_language(grammar, constraint.kind)
        return grammar

    def _refusal(self, constraint: Constraint, message: str) -> GrammarError:
        refusal = explain_refusal(message, constraint.kind)
        if constraint.kind is not StructuredOutputOptions.JSON or refusal.kind is GrammarErrorKind.LIMIT:
            return refusal.as_error()
        shared = {key: constraint.value[key] for key in _READ_AT_THE_ROOT if key in constraint.value}

        def is_refused_alone(node: Node) -> bool:
            schema = {**shared, **node}
            spec = llguidance_spec(
                constraint.rewritten(schema, nodes=list(subschemas(schema))), any_whitespace=True, max_whitespace=None
            )
            return CompiledSpec(self._tokenizer, spec).error == message

        return refusal.as_error(*locate(refusal, constraint.nodes, is_refused_alone))

    def _check_whitespace(self, pattern: str) -> None:
        """Check that ``pattern`` matches JSON's four whitespace characters only.
        llguidance takes any pattern."""
        rule = f"/{regex_to_lark(pattern, '')}/"
        whitespace = LLMatcher(self._tokenizer, lark_spec(f"start: {rule}"), log_level=0)
        if whitespace.is_error():
            refusal = explain_refusal(error_of(whitespace), StructuredOutputOptions.REGEX)
            raise GrammarError(f"whitespace_pattern: {refusal.sentence}", kind=refusal.kind)
        other = LLMatcher(self._tokenizer, lark_spec(f"start: A\nA: {rule} & ~/[ \\t\\n\\r]*/"), log_level=0)
        other.compute_bitmask()
        if not other.is_error():
            raise GrammarError(
                f"whitespace_pattern may match spaces, tabs, line feeds and carriage returns only, got {pattern!r}"
            )


def _own_grammar(grammar: StructuredOutputGrammar) -> LlguidanceGrammar:
    if not isinstance(grammar, LlguidanceGrammar):
        raise TypeError(f"expected grammars that LlguidanceBackend compiled, got a {type(grammar).__name__}")
    return grammar


class _Tokenizer:
    """The interface that LLTokenizer expects of a tokenizer. Tokens without bytes are
    never allowed."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids = ()

    def __init__(self, vocabulary: Vocabulary, encode: Callable[[str], list[int] | None] | None):
        self._vocabulary = vocabulary
        self._encode = encode
        self.eos_token_id = vocabulary.stop_token_ids[0]
        self.tokens = list(vocabulary.token_bytes)
        for stop in vocabulary.stop_token_ids:
            self.tokens[stop] = b""

    def __call__(self, text: str) -> list[int]:
        tokens = None if self._encode is None else self._encode(text)
        return tokens or self._vocabulary.spell(text) or []
