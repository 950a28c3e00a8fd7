"""Constraints compiled and followed by xgrammar (https://github.com/mlc-ai/xgrammar)."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import xgrammar

from structout.bitmask import allocate_token_bitmask
from structout.errors import GrammarError
from structout.grammar.interface import StructuredOutputBackend, StructuredOutputGrammar
from structout.grammar.vocabulary import Vocabulary
from structout.params import StructuredOutputOptions

# The whole rule, as xgrammar prints it, of one character of a string with a bounded length.
_BOUNDED_STRING_CHARACTER = re.compile(r"^(\w+ ::= \(\()\[\^\\\"\\\\\\r\\n\](\)\))$", re.MULTILINE)


class XgrammarGrammar(StructuredOutputGrammar):
    def __init__(self, matcher: Any, compiled: Any, vocabulary: Vocabulary, stop_token_ids: Iterable[int]):
        self.matcher = matcher
        self._compiled = compiled
        self._vocabulary = vocabulary
        self._stop_token_ids = frozenset(stop_token_ids)

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        if self.matcher.is_terminated():
            return True
        accepted = self._accept_prefix(tokens)
        if accepted < len(tokens):
            self.matcher.rollback(accepted)
            return False
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        accepted = self._accept_prefix(tokens)
        self.matcher.rollback(accepted)
        return tokens[:accepted]

    def rollback(self, num_tokens: int) -> None:
        self.matcher.rollback(num_tokens)

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        self.matcher.fill_next_token_bitmask(bitmask, batch_index)

    def is_terminated(self) -> bool:
        return bool(self.matcher.is_terminated())

    def reset(self) -> None:
        self.matcher.reset()

    def copy(self) -> "XgrammarGrammar":
        return XgrammarGrammar.at_start(self._compiled, self._vocabulary, self._stop_token_ids)

    def fork(self) -> "XgrammarGrammar":
        return XgrammarGrammar(self.matcher.fork(), self._compiled, self._vocabulary, self._stop_token_ids)

    @classmethod
    def at_start(cls, compiled: Any, vocabulary: Vocabulary, stop_token_ids: Iterable[int]) -> "XgrammarGrammar":
        stops = sorted(stop_token_ids)
        matcher = xgrammar.GrammarMatcher(compiled, override_stop_tokens=stops)
        return cls(matcher, compiled, vocabulary, stops)

    def _accept_prefix(self, tokens: list[int]) -> int:
        for accepted, token in enumerate(tokens):
            if not (self._may_occur(token) and self.matcher.accept_token(token)):
                return accepted
        return len(tokens)

    def _may_occur(self, token: int) -> bool:
        """Checked here because the native call keeps only the low 32 bits of an id, and takes a token without text for
        no step at all."""
        text = self._vocabulary.token_bytes
        return token in self._stop_token_ids or (0 <= token < len(text) and text[token] != b"")


class XgrammarBackend(StructuredOutputBackend):
    """
    Args:
        vocabulary: of the model.
        any_whitespace: whether JSON may have whitespace anywhere, or is written as ``{"a": 1, "b": [2, 3]}``.
        cache_bytes: bound on xgrammar's own cache of compiled grammars.
        compile_threads: native threads of one compilation.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        any_whitespace: bool = True,
        cache_bytes: int = 256 << 20,
        compile_threads: int = 1,
    ):
        super().__init__(vocabulary)
        self._any_whitespace = any_whitespace
        self._tokenizer_info = xgrammar.TokenizerInfo(
            list(vocabulary.token_bytes),
            xgrammar.VocabType.RAW,
            vocab_size=vocabulary.size,
            stop_token_ids=list(vocabulary.stop_token_ids),
        )
        self._compiler = xgrammar.GrammarCompiler(
            self._tokenizer_info, max_threads=compile_threads, cache_limit_bytes=cache_bytes
        )
        self._batch = xgrammar.BatchGrammarMatcher(max_threads=1)

    def compile_grammar(
        self, request_type: StructuredOutputOptions, grammar_spec: str, stop_token_ids: Sequence[int] | None = None
    ) -> XgrammarGrammar:
        try:
            compiled = self._compile(self._compile_call(request_type, grammar_spec))
        except (RuntimeError, ValueError, TypeError) as error:
            raise GrammarError(f"invalid {request_type.value} constraint: {_first_line(error)}") from error
        stops = self.vocabulary.stop_token_ids if stop_token_ids is None else stop_token_ids
        grammar = XgrammarGrammar.at_start(compiled, self.vocabulary, stops)
        self._refuse_empty_language(grammar, request_type)
        return grammar

    def fill_bitmask_batch(
        self, grammars: Sequence[StructuredOutputGrammar], bitmask: torch.Tensor, rows: Sequence[int]
    ) -> None:
        matchers = [grammar.matcher for grammar in grammars if isinstance(grammar, XgrammarGrammar)]
        self._batch.batch_fill_next_token_bitmask(matchers, bitmask, list(rows))

    def destroy(self) -> None:
        self._compiler.clear_cache()

    def _compile_call(self, request_type: StructuredOutputOptions, spec: str) -> Callable[[Any], Any]:
        match request_type:
            case StructuredOutputOptions.JSON:
                return self._compile_json_call(spec)
            case StructuredOutputOptions.JSON_OBJECT:
                return lambda compiler: compiler.compile_builtin_json_grammar()
            case StructuredOutputOptions.REGEX:
                return lambda compiler: compiler.compile_regex(spec)
            case StructuredOutputOptions.CHOICE:
                return lambda compiler: compiler.compile_grammar(_choice_grammar(json.loads(spec)))
            case StructuredOutputOptions.GRAMMAR:
                return lambda compiler: compiler.compile_grammar(spec)

    def _compile_json_call(self, schema: str) -> Callable[[Any], Any]:
        if "Length" not in schema:
            return lambda compiler: compiler.compile_json_schema(schema, any_whitespace=self._any_whitespace)
        # xgrammar 0.2.8 lets raw control characters into strings with minLength or maxLength, which JSON forbids.
        grammar = str(xgrammar.Grammar.from_json_schema(schema, any_whitespace=self._any_whitespace))
        sound = _BOUNDED_STRING_CHARACTER.sub(r"\1[^\\0-\\x1f\\\"\\\\]\2", grammar)
        return lambda compiler: compiler.compile_grammar(sound)

    def _compile(self, compile_with: Callable[[Any], Any]) -> Any:
        try:
            return compile_with(self._compiler)
        except RuntimeError as error:
            # xgrammar 0.2.8's cache trips over some sound grammars (a bound above 128 in a pattern, for one).
            if "Check failed" not in str(error):
                raise
            return compile_with(xgrammar.GrammarCompiler(self._tokenizer_info, max_threads=1, cache_enabled=False))

    def _refuse_empty_language(self, grammar: XgrammarGrammar, request_type: StructuredOutputOptions) -> None:
        mask = allocate_token_bitmask(1, self.vocabulary.size, pin_memory=False)
        grammar.fill_bitmask(mask, 0)
        if not mask.any():
            raise GrammarError(f"the {request_type.value} constraint allows no text at all")


def _choice_grammar(choices: list[str]) -> str:
    return "root ::= " + " | ".join(json.dumps(choice) for choice in choices)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
