"""Constraints compiled and followed by xgrammar (https://github.com/mlc-ai/xgrammar)."""

import json
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from typing import Any

import torch
import xgrammar

from structout.bitmask import allocate_token_bitmask
from structout.errors import GrammarError
from structout.grammar.interface import StructuredOutputBackend, StructuredOutputGrammar
from structout.grammar.vocabulary import Vocabulary
from structout.params import StructuredOutputOptions

# As xgrammar prints grammars: the whole rule of one character of a string with a bounded length, and the class that it
# should be; any class or quoted text, to find all classes. As it prints errors: the time and place in front.
_BOUNDED_STRING_CHARACTER = re.compile(r"^(\w+ ::= \(\()\[\^\\\"\\\\\\r\\n\](\)\))$", re.MULTILINE)
_STRING_CHARACTER = r"[^\0-\x1f\"\\]"
_CLASS_OR_TEXT = re.compile(r'\[(?:[^\]\\]|\\.)*\]|"(?:[^"\\]|\\.)*"')
_LOG_PREFIX = re.compile(r"^\[\d+:\d+:\d+\] \S+:\d+: ")


class XgrammarGrammar(StructuredOutputGrammar):
    def __init__(self, matcher: Any, compiled: Any, vocabulary: Vocabulary, stop_token_ids: Iterable[int]):
        self.matcher = matcher
        self._compiled = compiled
        self._vocabulary = vocabulary
        self._stop_token_ids = frozenset(stop_token_ids)
        self._num_after_stop = 0  # accepted without the matcher, which takes nothing after a stop token

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

    def rollback(self, num_tokens: int) -> None:
        after_stop = min(num_tokens, self._num_after_stop)
        self._num_after_stop -= after_stop
        self.matcher.rollback(num_tokens - after_stop)

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        self.matcher.fill_next_token_bitmask(bitmask, batch_index)

    def is_terminated(self) -> bool:
        return bool(self.matcher.is_terminated())

    def reset(self) -> None:
        self.matcher.reset()
        self._num_after_stop = 0

    def copy(self) -> "XgrammarGrammar":
        return XgrammarGrammar.at_start(self._compiled, self._vocabulary, self._stop_token_ids)

    def fork(self) -> "XgrammarGrammar":
        fork = XgrammarGrammar(self.matcher.fork(), self._compiled, self._vocabulary, self._stop_token_ids)
        fork._num_after_stop = self._num_after_stop
        return fork

    @classmethod
    def at_start(cls, compiled: Any, vocabulary: Vocabulary, stop_token_ids: Iterable[int]) -> "XgrammarGrammar":
        stops = sorted(stop_token_ids)
        matcher = xgrammar.GrammarMatcher(compiled, override_stop_tokens=stops)
        return cls(matcher, compiled, vocabulary, stops)

    def _accept_prefix(self, tokens: list[int]) -> int:
        """Accept up to the first token that is not allowed; how many that is."""
        for accepted, token in enumerate(tokens):
            if self.matcher.is_terminated():
                self._num_after_stop += len(tokens) - accepted
                break
            if not self._accept(token):
                return accepted
        return len(tokens)

    def _accept(self, token: int) -> bool:
        """Checked here, because the native call raises for what is no int, keeps only the low 32 bits of an id, and
        takes a token without text for no step at all."""
        try:
            token = operator.index(token)
        except (TypeError, RuntimeError):  # RuntimeError: a tensor without data
            return False
        text = self._vocabulary.token_bytes
        may_occur = token in self._stop_token_ids or (0 <= token < len(text) and text[token] != b"")
        return may_occur and bool(self.matcher.accept_token(token))


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
        stops = self.vocabulary.stop_token_ids if stop_token_ids is None else stop_token_ids
        try:
            compiled = self._compile(self._compile_call(request_type, grammar_spec))
            grammar = XgrammarGrammar.at_start(compiled, self.vocabulary, stops)
        except GrammarError:
            raise
        except (RuntimeError, ValueError, TypeError) as error:
            raise GrammarError(f"invalid {request_type.value} constraint: {_reason(error)}") from error
        self._refuse_empty_language(grammar, request_type)
        return grammar

    def fill_bitmask_batch(
        self, grammars: Sequence[StructuredOutputGrammar], bitmask: torch.Tensor, rows: Sequence[int]
    ) -> None:
        matchers = [_matcher(grammar) for grammar in grammars]
        self._batch.batch_fill_next_token_bitmask(matchers, bitmask, list(rows))

    def destroy(self) -> None:
        self._compiler.clear_cache()

    def _compile_call(self, request_type: StructuredOutputOptions, spec: str) -> Callable[[Any], Any]:
        match request_type:
            case StructuredOutputOptions.JSON:
                return self._compile_json_call(spec)
            case StructuredOutputOptions.JSON_OBJECT:
                if self._any_whitespace:
                    return lambda compiler: compiler.compile_builtin_json_grammar()
                return self._compile_json_call('{"type": ["object", "array"]}')
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
        sound = _BOUNDED_STRING_CHARACTER.sub(lambda rule: rule[1] + _STRING_CHARACTER + rule[2], grammar)
        for part in _CLASS_OR_TEXT.findall(sound):
            if part.startswith("[^") and not part.startswith(r"[^\0-\x1f"):
                raise GrammarError(
                    f"xgrammar {version('xgrammar')} would let control characters into this schema's strings by {part}"
                )
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


def _matcher(grammar: StructuredOutputGrammar) -> Any:
    if not isinstance(grammar, XgrammarGrammar):
        raise TypeError(f"expected grammars that XgrammarBackend compiled, got a {type(grammar).__name__}")
    return grammar.matcher


def _choice_grammar(choices: list[str]) -> str:
    """JSON's escapes are EBNF's, except for surrogate pairs: hence characters as they are."""
    return "root ::= " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


def _reason(error: Exception) -> str:
    return _LOG_PREFIX.sub("", str(error).strip().split("\n")[0])
