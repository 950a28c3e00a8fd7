"""Constraints on llguidance (https://github.com/guidance-ai/llguidance)."""

import json
from collections.abc import Sequence
from typing import Any

import torch
from llguidance import LLMatcher, LLTokenizer, regex_to_lark

from structout.constraints import exact_json
from structout.constraints.config import MAX_INDENTATION, MAX_TABS, StructuredOutputsConfig
from structout.constraints.params import Constraint, StructuredOutputOptions
from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.interface import StructuredOutputBackend
from structout.grammar.optional.optional_grammar import OptionalGrammar, refuse_nul
from structout.grammar.vocabulary import Vocabulary

_JSON_WHITESPACE = r"[ \t\n\r]"
_COMPACT_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_BYTES_PER_WORD = 4
# llguidance reports no sizes. A linear fit to the growth of the process for 150 schemas
# of MaskBench, each compiled and followed along its instances.
_MEMORY_AT_LEAST = 200_000
_MEMORY_PER_BYTE_OF_GRAMMAR = 24
# Without this, a mask shows only the first of the tokens that llguidance would force,
# which is narrower than what it accepts.
_NO_FORCING = '%llguidance {"no_forcing": true}\n'


class LlguidanceGrammar(OptionalGrammar):
    """The position of one request in a constraint that llguidance compiled.

    Attributes:
        error_reason: the limit of llguidance that the request exceeded, in
            llguidance's words.
    """

    def __init__(
        self,
        tokenizer: LLTokenizer,
        spec: str,
        vocabulary: Vocabulary,
        stop_token_ids: Sequence[int],
        canonical_tokenizer: CanonicalTokenizer | None,
    ):
        super().__init__(vocabulary, stop_token_ids, canonical_tokenizer)
        self._tokenizer = tokenizer
        self._spec = spec
        # Not a copy of another matcher: copies share the lexer, and its limits.
        self._matcher = LLMatcher(tokenizer, spec, log_level=0)
        if self._matcher.is_error():
            reason = str(self._matcher.get_error()).strip().split("\n")[0]
            raise GrammarError(f"llguidance refuses it: {reason}", kind=GrammarErrorKind.UNSUPPORTED)

    @property
    def memory_bytes(self) -> int:
        """Estimated from the length of the constraint."""
        return _MEMORY_AT_LEAST + _MEMORY_PER_BYTE_OF_GRAMMAR * len(self._spec)

    def _advance(self, token: int) -> bool:
        return bool(self._matcher.try_consume_tokens([token]))

    def _undo(self, num_tokens: int) -> None:
        if self._matcher.rollback(num_tokens):
            self.error_reason = ""
            return
        self._matcher = LLMatcher(self._tokenizer, self._spec, log_level=0)  # it had exceeded a limit
        self._matcher.try_consume_tokens(self._text[: len(self._text) - num_tokens])

    def _fill_text(self, bitmask: torch.Tensor, row: int) -> None:
        words = bitmask[row]
        self._matcher.unsafe_compute_mask_ptr(words.data_ptr(), words.numel() * _BYTES_PER_WORD)
        if self._matcher.is_error():
            self.error_reason = str(self._matcher.get_error()).strip().split("\n")[0]
            words.zero_()

    def _may_end(self) -> bool:
        return not self._matcher.is_error() and bool(self._matcher.is_accepting())

    def _forced_bytes(self) -> bytes:
        return bytes(self._matcher.compute_ff_bytes())

    def _at_start(self, stop_token_ids: Sequence[int]) -> "LlguidanceGrammar":
        return LlguidanceGrammar(
            self._tokenizer, self._spec, self._vocabulary, stop_token_ids, self._canonical_tokenizer
        )


class LlguidanceBackend(StructuredOutputBackend):
    """Compiles constraints for one vocabulary with llguidance.

    Args:
        vocabulary: the token ids of the model.
        canonical_tokenizer: needed for ``compute_ff_tokens`` of the grammars.
        any_whitespace: as in :class:`structout.StructuredOutputsConfig`.
        max_whitespace: as in :class:`structout.StructuredOutputsConfig`.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        canonical_tokenizer: CanonicalTokenizer | None = None,
        any_whitespace: bool = True,
        max_whitespace: int | str | None = None,
    ):
        super().__init__(vocabulary)
        self._canonical_tokenizer = canonical_tokenizer
        self._options: dict[str, Any] = {}
        if not any_whitespace:
            self._options = _COMPACT_JSON
        elif max_whitespace == "indent":
            indentation = rf" {{0,{MAX_INDENTATION}}}|\t{{1,{MAX_TABS}}}"
            self._options = {"whitespace_pattern": rf" ?|\n({indentation})"}
        elif max_whitespace is not None:
            self._options = {"whitespace_pattern": f"{_JSON_WHITESPACE}{{0,{max_whitespace}}}"}
        self._tokenizer = LLTokenizer(_Tokenizer(vocabulary), eos_token=list(vocabulary.stop_token_ids))

    @classmethod
    def from_config(
        cls, vocabulary: Vocabulary, config: StructuredOutputsConfig, canonical_tokenizer: CanonicalTokenizer | None
    ) -> "LlguidanceBackend":
        return cls(
            vocabulary,
            canonical_tokenizer=canonical_tokenizer,
            any_whitespace=config.any_whitespace,
            max_whitespace=config.max_whitespace,
        )

    def compile_grammar(
        self, request_type: StructuredOutputOptions, grammar_spec: str, stop_token_ids: Sequence[int] | None = None
    ) -> LlguidanceGrammar:
        stops = self.vocabulary.stop_token_ids if stop_token_ids is None else stop_token_ids
        constraint = Constraint(request_type, grammar_spec)
        refuse_nul(constraint)
        spec = self._spec(constraint)
        grammar = LlguidanceGrammar(self._tokenizer, spec, self.vocabulary, stops, self._canonical_tokenizer)
        self._refuse_empty_language(grammar, request_type)
        return grammar

    def destroy(self) -> None:
        """Do nothing: llguidance keeps nothing that no grammar holds."""

    def _spec(self, constraint: Constraint) -> str:
        """The constraint in llguidance's own format."""
        match constraint.kind:
            case StructuredOutputOptions.JSON:
                return self._json_spec(constraint.value)
            case StructuredOutputOptions.JSON_OBJECT:
                return self._json_spec({"type": "object"})
            case StructuredOutputOptions.REGEX:
                return _lark_spec(f"start: /{regex_to_lark(constraint.spec, '')}/")
            case StructuredOutputOptions.CHOICE:
                texts = (json.dumps(choice, ensure_ascii=False) for choice in constraint.value)
                return _lark_spec(f"start: CHOICE\nCHOICE: {' | '.join(texts)}")
            case StructuredOutputOptions.GRAMMAR:
                return _lark_spec(constraint.spec)
        message = f"llguidance takes no {constraint.kind.value} in structout's format"
        raise GrammarError(message, kind=GrammarErrorKind.UNSUPPORTED)

    def _json_spec(self, schema: Any) -> str:
        if schema is False:
            raise GrammarError("llguidance refuses it: the schema is false", kind=GrammarErrorKind.IMPOSSIBLE)
        # llguidance takes options inside the schema. These replace those of its author.
        known = {**({} if schema is True else schema), "x-guidance": self._options}
        grammars = [{"lark_grammar": f"{_NO_FORCING}start: @json"}, {"name": "json", "json_schema": known}]
        return exact_json.dumps({"grammars": grammars}, ensure_ascii=False)


def _lark_spec(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": _NO_FORCING + text}]}, ensure_ascii=False)


class _Tokenizer:
    """The interface that LLTokenizer expects of a tokenizer. Tokens without bytes are
    never allowed."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids = ()

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self.eos_token_id = vocabulary.stop_token_ids[0]
        self.tokens = list(vocabulary.token_bytes)
        for stop in vocabulary.stop_token_ids:
            self.tokens[stop] = b""

    def __call__(self, text: str) -> list[int]:
        return self._vocabulary.spell(text) or []
