"""Constraints on xgrammar (https://github.com/mlc-ai/xgrammar)."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xgrammar

from structout.constraints.config import MAX_INDENTATION, StructuredOutputsConfig
from structout.constraints.params import Constraint, StructuredOutputOptions, has_nul
from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.external import DEFAULT_SLOW_SECONDS, ExternalGrammar, ExternalText
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.interface import StructuredOutputBackend
from structout.grammar.vocabulary import Vocabulary
from structout.masks.bitmask import bitmask_width

_CACHE_SHARE = 8  # xgrammar may cache one part in so many of the config's cache_bytes


class XgrammarText(ExternalText):
    """One text in a constraint that xgrammar compiled.

    Args:
        compiled: the ``xgrammar.CompiledGrammar``.
        vocabulary: the token ids of the model.
    """

    def __init__(self, compiled: Any, vocabulary: Vocabulary):
        self._compiled = compiled
        self._vocabulary = vocabulary
        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._words = np.empty(bitmask_width(vocabulary.size), dtype=np.int32)
        self._bitmask = torch.from_numpy(self._words)[None]  # the same memory

    @property
    def memory_bytes(self) -> int:
        return int(self._compiled.memory_size_bytes)

    def start(self) -> "XgrammarText":
        return XgrammarText(self._compiled, self._vocabulary)

    def accept(self, token: int) -> bool:
        return token not in self._vocabulary.stop_token_ids and bool(self._matcher.accept_token(token))

    def rollback(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)

    def mask(self) -> npt.NDArray[np.int32]:
        self._matcher.fill_next_token_bitmask(self._bitmask)
        for stop in self._vocabulary.stop_token_ids:  # which xgrammar allows at the end
            self._words[stop >> 5] &= ~(1 << (stop & 31))
        return self._words

    def may_end(self) -> bool:
        return bool(self._matcher.is_completed())

    def forced_bytes(self) -> bytes:
        try:
            text: str = self._matcher.find_jump_forward_string()
        except UnicodeDecodeError as error:  # the forced bytes end inside a character
            return error.object
        return text.encode()


class XgrammarBackend(StructuredOutputBackend):
    """Compiles constraints for one vocabulary with xgrammar.

    Args:
        vocabulary: the token ids of the model.
        canonical_tokenizer: needed for ``compute_ff_tokens`` of the grammars.
        any_whitespace: as in :class:`structout.StructuredOutputsConfig`.
        max_whitespace: as in :class:`structout.StructuredOutputsConfig`. "indent"
            allows any characters, as many as a line feed and its indentation have.
        cache_bytes: size limit of xgrammar's own cache of compiled grammars.
        slow_seconds: see ``StructuredOutputsConfig.slow_token_seconds``.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        canonical_tokenizer: CanonicalTokenizer | None = None,
        any_whitespace: bool = True,
        max_whitespace: int | str | None = None,
        cache_bytes: int = 256 << 20,
        slow_seconds: float = DEFAULT_SLOW_SECONDS,
    ):
        super().__init__(vocabulary)
        self._canonical_tokenizer = canonical_tokenizer
        self._slow_seconds = slow_seconds
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
            slow_seconds=config.slow_token_seconds,
        )

    def compile_grammar(
        self, request_type: StructuredOutputOptions, grammar_spec: str, stop_token_ids: Sequence[int] | None = None
    ) -> ExternalGrammar:
        if has_nul(Constraint(request_type, grammar_spec).value, grammar_spec):  # xgrammar takes C strings
            raise GrammarError("xgrammar takes no NUL character in a schema", kind=GrammarErrorKind.UNSUPPORTED)
        stops = self.vocabulary.stop_token_ids if stop_token_ids is None else stop_token_ids
        try:
            text = XgrammarText(self._compiled(request_type, grammar_spec), self.vocabulary)
        except (RuntimeError, ValueError, TypeError) as error:
            if "bad_alloc" in str(error):  # out of memory, which says nothing about the constraint
                raise MemoryError("xgrammar could not allocate the memory it needs") from error
            reason = str(error).strip().split("\n")[0]
            raise GrammarError(f"xgrammar refuses it: {reason}", kind=GrammarErrorKind.UNSUPPORTED) from error
        grammar = ExternalGrammar(text, self.vocabulary, stops, self._canonical_tokenizer, self._slow_seconds)
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
