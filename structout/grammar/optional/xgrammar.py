"""Constraints on xgrammar (https://github.com/mlc-ai/xgrammar)."""

import json
from collections.abc import Sequence
from typing import Any

import torch
import xgrammar

from structout.constraints.config import MAX_INDENTATION, StructuredOutputsConfig
from structout.constraints.params import Constraint, StructuredOutputOptions
from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.interface import StructuredOutputBackend
from structout.grammar.optional.optional_grammar import OptionalGrammar, refuse_nul
from structout.grammar.vocabulary import Vocabulary

_CACHE_SHARE = 8  # xgrammar may cache one part in so many of the config's cache_bytes


class XgrammarGrammar(OptionalGrammar):
    """The position of one request in a constraint that xgrammar compiled."""

    def __init__(
        self,
        compiled: Any,
        vocabulary: Vocabulary,
        stop_token_ids: Sequence[int],
        canonical_tokenizer: CanonicalTokenizer | None,
    ):
        super().__init__(vocabulary, stop_token_ids, canonical_tokenizer)
        self._compiled = compiled
        self._matcher = xgrammar.GrammarMatcher(compiled, override_stop_tokens=list(self._stop_token_ids))

    @property
    def memory_bytes(self) -> int:
        return int(self._compiled.memory_size_bytes)

    def _advance(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def _undo(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)

    def _fill_text(self, bitmask: torch.Tensor, row: int) -> None:
        self._matcher.fill_next_token_bitmask(bitmask, row)

    def _may_end(self) -> bool:
        return bool(self._matcher.is_completed())

    def _forced_bytes(self) -> bytes:
        try:
            text: str = self._matcher.find_jump_forward_string()
        except UnicodeDecodeError as error:  # the forced bytes end inside a character
            return error.object
        return text.encode()

    def _at_start(self, stop_token_ids: Sequence[int]) -> "XgrammarGrammar":
        return XgrammarGrammar(self._compiled, self._vocabulary, stop_token_ids, self._canonical_tokenizer)


class XgrammarBackend(StructuredOutputBackend):
    """Compiles constraints for one vocabulary with xgrammar.

    Args:
        vocabulary: the token ids of the model.
        canonical_tokenizer: needed for ``compute_ff_tokens`` of the grammars.
        any_whitespace: as in :class:`structout.StructuredOutputsConfig`.
        max_whitespace: as in :class:`structout.StructuredOutputsConfig`. "indent"
            allows any characters, as many as a line feed and its indentation have.
        cache_bytes: size limit of xgrammar's own cache of compiled grammars.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        canonical_tokenizer: CanonicalTokenizer | None = None,
        any_whitespace: bool = True,
        max_whitespace: int | str | None = None,
        cache_bytes: int = 256 << 20,
    ):
        super().__init__(vocabulary)
        self._canonical_tokenizer = canonical_tokenizer
        if max_whitespace == "indent":
            max_whitespace = 1 + MAX_INDENTATION
        self._whitespace = {
            "any_whitespace": any_whitespace,
            "max_whitespace_cnt": max_whitespace if any_whitespace else None,
        }
        tokenizer_info = xgrammar.TokenizerInfo(
            list(vocabulary.token_bytes),
            xgrammar.VocabType.RAW,
            vocab_size=vocabulary.size,
            stop_token_ids=list(vocabulary.stop_token_ids),
        )
        self._compiler = xgrammar.GrammarCompiler(tokenizer_info, max_threads=1, cache_limit_bytes=cache_bytes)

    @classmethod
    def from_config(
        cls, vocabulary: Vocabulary, config: StructuredOutputsConfig, canonical_tokenizer: CanonicalTokenizer | None
    ) -> "XgrammarBackend":
        return cls(
            vocabulary,
            canonical_tokenizer=canonical_tokenizer,
            any_whitespace=config.any_whitespace,
            max_whitespace=config.max_whitespace,
            cache_bytes=config.cache_bytes // _CACHE_SHARE,
        )

    def compile_grammar(
        self, request_type: StructuredOutputOptions, grammar_spec: str, stop_token_ids: Sequence[int] | None = None
    ) -> XgrammarGrammar:
        refuse_nul(Constraint(request_type, grammar_spec))
        stops = self.vocabulary.stop_token_ids if stop_token_ids is None else stop_token_ids
        try:
            compiled = self._compiled(request_type, grammar_spec)
            grammar = XgrammarGrammar(compiled, self.vocabulary, stops, self._canonical_tokenizer)
        except (RuntimeError, ValueError, TypeError) as error:
            if "bad_alloc" in str(error):  # out of memory, which says nothing about the constraint
                raise MemoryError("xgrammar could not allocate the memory it needs") from error
            reason = str(error).strip().split("\n")[0]
            raise GrammarError(f"xgrammar refuses it: {reason}", kind=GrammarErrorKind.UNSUPPORTED) from error
        self._refuse_empty_language(grammar, request_type)
        return grammar

    def destroy(self) -> None:
        self._compiler.clear_cache()

    def _compiled(self, kind: StructuredOutputOptions, spec: str) -> Any:
        match kind:
            case StructuredOutputOptions.JSON:
                return self._compiler.compile_json_schema(spec, **self._whitespace)
            case StructuredOutputOptions.JSON_OBJECT:
                return self._compiler.compile_json_schema('{"type": "object"}', **self._whitespace)
            case StructuredOutputOptions.REGEX:
                return self._compiler.compile_regex(spec)
            case StructuredOutputOptions.CHOICE:
                texts = (json.dumps(choice, ensure_ascii=False) for choice in json.loads(spec))
                return self._compiler.compile_grammar("root ::= " + " | ".join(texts))
            case StructuredOutputOptions.GRAMMAR:
                return self._compiler.compile_grammar(spec)
            case StructuredOutputOptions.STRUCTURAL_TAG:
                return self._compiler.compile_structural_tag(spec)
