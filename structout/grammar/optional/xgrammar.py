"""Constraints on xgrammar (https://github.com/mlc-ai/xgrammar)."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xgrammar

from structout.constraints.config import MAX_INDENTATION, StructuredOutputsConfig
from structout.constraints.params import Constraint, StructuredOutputOptions
from structout.constraints.schema_walks import has_nul
from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.interface import StructuredOutputBackend, StructuredOutputGrammar, check_mask_buffer
from structout.grammar.vocabulary import Vocabulary, token_id

_CACHE_SHARE = 8  # xgrammar may cache one part in so many of the config's cache_bytes


class XgrammarGrammar(StructuredOutputGrammar):
    """The position of one request in a constraint that xgrammar compiled.

    xgrammar's matcher follows the tokens of the text. It never sees a stop token.

    Args:
        compiled: the ``xgrammar.CompiledGrammar``.
        vocabulary: the token ids of the model.
        stop_token_ids: tokens that end the text.
        canonical_tokenizer: needed for ``compute_ff_tokens``.
    """

    def __init__(
        self,
        compiled: Any,
        vocabulary: Vocabulary,
        stop_token_ids: Sequence[int],
        canonical_tokenizer: CanonicalTokenizer | None,
    ):
        self._compiled = compiled
        self._vocabulary = vocabulary
        self._stop_token_ids = tuple(sorted(set(stop_token_ids)))
        self._canonical_tokenizer = canonical_tokenizer
        self._matcher = xgrammar.GrammarMatcher(compiled, override_stop_tokens=list(self._stop_token_ids))
        self._text: list[int] = []
        self._num_stopped = 0  # the stop token and those after it
        self._steps_of_bytes: list[int] = []  # the numbers of tokens that undo_bytes() takes back

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        num_accepted = self._accept_prefix(tokens)
        if num_accepted < len(tokens):
            self.rollback(num_accepted)
        return num_accepted == len(tokens)

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        num_before = self.num_tokens
        try:
            return tokens[: self._accept_prefix(tokens)]
        finally:  # also where KeyboardInterrupt comes in place of the result
            self.rollback(self.num_tokens - num_before)

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens <= self.num_tokens:
            raise ValueError(f"cannot roll back {num_tokens} of {self.num_tokens} tokens")
        num_stopped = min(num_tokens, self._num_stopped)
        self._num_stopped -= num_stopped
        if num_tokens > num_stopped:
            self._matcher.rollback(num_tokens - num_stopped)
            del self._text[num_stopped - num_tokens :]

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        check_mask_buffer(bitmask, self._vocabulary.size)
        if not 0 <= batch_index < len(bitmask):
            raise IndexError(f"rows must be in [0, {len(bitmask)}), got {batch_index}")
        self._matcher.fill_next_token_bitmask(bitmask, batch_index)
        words = bitmask[batch_index].numpy().view(np.uint32)
        may_end = self._matcher.is_completed()
        for stop in {*self._vocabulary.stop_token_ids, *self._stop_token_ids}:
            bit = np.uint32(1 << (stop & 31))
            is_allowed = may_end and stop in self._stop_token_ids
            words[stop >> 5] = words[stop >> 5] | bit if is_allowed else words[stop >> 5] & ~bit

    def is_terminated(self) -> bool:
        return self._num_stopped > 0

    def reset(self) -> None:
        self.rollback(self.num_tokens)

    @property
    def num_tokens(self) -> int:
        return len(self._text) + self._num_stopped

    @property
    def memory_bytes(self) -> int:
        return int(self._compiled.memory_size_bytes)

    def copy(self, stop_token_ids: Sequence[int] | None = None) -> "XgrammarGrammar":
        stops = self._stop_token_ids if stop_token_ids is None else stop_token_ids
        return XgrammarGrammar(self._compiled, self._vocabulary, stops, self._canonical_tokenizer)

    def fork(self) -> "XgrammarGrammar":
        """Return a new grammar at this position. It reads the text again."""
        fork = self.copy()
        for token in self._text:
            fork._matcher.accept_token(token)
        fork._text, fork._num_stopped = self._text.copy(), self._num_stopped
        return fork

    def forced_bytes(self) -> bytes:
        if self.is_terminated():
            return b""
        try:
            text: str = self._matcher.find_jump_forward_string()
        except UnicodeDecodeError as error:  # the forced bytes end inside a character
            return error.object
        return text.encode()

    def compute_ff_tokens(self) -> list[int]:
        """Return forced tokens as the interface specifies.

        Raises:
            RuntimeError: the backend has no tokenizer.
        """
        if self._canonical_tokenizer is None:
            raise RuntimeError("compute_ff_tokens needs the tokenizer: pass canonical_tokenizer to the backend")
        tokens = self._canonical_tokenizer.ff_tokens(self, self._text)
        return tokens if set(self._stop_token_ids).isdisjoint(tokens) else []

    def accept_bytes(self, data: bytes) -> bool:
        """Advance by ``data``, as the tokens of single bytes. If it is not allowed, do
        nothing and return False."""
        tokens = [self._vocabulary.token_of_byte(byte) for byte in data]
        if None in tokens or not self.accept_tokens("", [token for token in tokens if token is not None]):
            return False
        self._steps_of_bytes.append(len(data))
        return True

    def undo_bytes(self) -> None:
        """Undo what the last ``accept_bytes`` did that is not undone."""
        self.rollback(self._steps_of_bytes.pop())

    def _accept_prefix(self, tokens: Sequence[int]) -> int:
        """Accept the tokens before the first that is not allowed, and return their
        number."""
        for i, token in enumerate(tokens):
            if self._num_stopped:
                self._num_stopped += len(tokens) - i
                return len(tokens)
            known = token_id(token, self._vocabulary.size)
            if known is None:
                return i
            if known in self._stop_token_ids:
                if not self._matcher.is_completed():
                    return i
                self._num_stopped = 1
            elif self._vocabulary.token_bytes[known] and self._matcher.accept_token(known):
                self._text.append(known)
            else:
                return i
        return len(tokens)


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
        if has_nul(Constraint(request_type, grammar_spec).value, grammar_spec):  # xgrammar takes C strings
            raise GrammarError("xgrammar takes no NUL character in a schema", kind=GrammarErrorKind.UNSUPPORTED)
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
