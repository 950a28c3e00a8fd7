"""Constraints compiled and followed by llguidance (https://github.com/guidance-ai/llguidance)."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer, regex_to_lark

from structout.bitmask import allocate_token_bitmask, bitmask_dtype, bitmask_width
from structout.errors import GrammarError
from structout.grammar.canonical import CanonicalTokenizer
from structout.grammar.interface import StructuredOutputBackend, StructuredOutputGrammar
from structout.grammar.tokens import token_id
from structout.grammar.vocabulary import Vocabulary
from structout.params import StructuredOutputOptions

_BYTES_PER_WORD = 4

# The drafts that llguidance checks schemas against; it fails for any other $schema.
_DRAFTS = re.compile(
    r"http://json-schema\.org/draft-0[467]/schema#?|https://json-schema\.org/draft/(2019-09|2020-12)/schema#?"
)

# One spelling for each character of a string. llguidance's default also takes \u00XX in the names of additional
# properties, so that "\u0061" passes for another property than "a".
_JSON_ESCAPES = 'nrbtf\\"'
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_JSON_WHITESPACE = {r"\s": r"[ \t\n\r]"}
_COMPACT_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

# By default a mask shows only the first of the tokens that llguidance would force, and filling it calls the tokenizer:
# narrower than what is accepted, and slower.
_NO_FORCING = '%llguidance {"no_forcing": true}\n'
_CACHED_TEXTS = 1 << 13
_EVERYTHING = 0xFFFFFFFF  # a word of a mask

# In a Lark grammar: text in which nothing else begins (strings, regular expressions, comments), references to tokens,
# and the attributes of a rule.
_LARK_PART = re.compile(
    r"""(?P<text>"(?:[^"\\\n]|\\.)*"|//[^\n]*|/(?:[^/\\\n]|\\.)+/|\#[^\n]*)"""
    r"""|(?P<token><[^<>\s]+>)|\w\[(?P<attributes>[^\]\n]*)\]"""
)
_LARK_ATTRIBUTE = re.compile(r"\b(max_tokens|stop|temperature)\b")

# A straight line through what the process grew by for each of 150 MaskBench schemas, compiled and followed along its
# instances: llguidance reports no sizes.
_MEMORY_AT_LEAST = 200_000
_MEMORY_PER_BYTE_OF_GRAMMAR = 24


@dataclass(frozen=True)
class _Compiled:
    """What all requests of one constraint share.

    Attributes:
        start: never advanced, only copied; copies share its lexer.
        memory_bytes: an estimate.
        weakened: what a lenient compilation gave up, in llguidance's words.
    """

    start: Any
    memory_bytes: int
    weakened: tuple[str, ...]


class LlguidanceGrammar(StructuredOutputGrammar):
    def __init__(self, matcher: Any, compiled: _Compiled, backend: "LlguidanceBackend", stop_token_ids: Sequence[int]):
        self.matcher = matcher
        self._compiled = compiled
        self._backend = backend
        self._stop_token_ids = frozenset(stop_token_ids)
        self._num_text = 0  # tokens that the matcher has taken
        self._num_stopped = 0  # the stop token and those after it, of which the matcher hears nothing

    @property
    def weakened(self) -> tuple[str, ...]:
        """What a lenient compilation gave up, in llguidance's words."""
        return self._compiled.weakened

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
        if not 0 <= num_tokens <= self.num_tokens:
            raise ValueError(f"cannot take back {num_tokens} of {self.num_tokens} tokens")
        stopped = min(num_tokens, self._num_stopped)
        self._num_stopped -= stopped
        if num_tokens > stopped:
            self.matcher.rollback(num_tokens - stopped)
            self._num_text -= num_tokens - stopped

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        self._backend.fill_bitmask_batch([self], bitmask, [batch_index])

    def fill_bitmask_drafts(self, bitmask: torch.Tensor, first_row: int, draft_tokens: Sequence[int]) -> int:
        """As the interface says, with one look at the buffer for all rows."""
        last_row = first_row + len(draft_tokens)
        buffer = self._backend.mask_buffer(bitmask, (first_row, last_row))
        words = buffer.words
        if self.is_terminated():
            words[first_row : last_row + 1] = _EVERYTHING
            return 0
        row, row_after = first_row, first_row
        text = self._text_prefix(list(draft_tokens))
        for row in range(first_row, last_row + 1):
            self._backend.fill_row(self, buffer, row)
            row_after = row + 1
            num_taken = row - first_row
            if num_taken == len(text) or self.matcher.try_consume_tokens(text[num_taken : num_taken + 1]) == 0:
                break
        num_allowed = row - first_row
        is_complete = self.matcher.is_accepting()
        self.matcher.rollback(num_allowed)
        if num_allowed == len(draft_tokens):
            return num_allowed
        refused = draft_tokens[num_allowed]
        ends = self._is_stop(refused) and is_complete
        words[row_after : last_row + 1] = _EVERYTHING if ends or refused == -1 else words[row]
        return num_allowed + ends

    def is_terminated(self) -> bool:
        return self._num_stopped > 0

    @property
    def num_tokens(self) -> int:
        return self._num_text + self._num_stopped

    @property
    def memory_bytes(self) -> int:
        """An estimate from the length of the constraint: llguidance counts nothing, and goes on growing in use."""
        return self._compiled.memory_bytes

    def forced_bytes(self) -> bytes:
        return b"" if self.is_terminated() else bytes(self.matcher.compute_ff_bytes())

    def compute_ff_tokens(self) -> list[int]:
        """As the interface says. Raises ``RuntimeError`` where the backend was made without a tokenizer."""
        encode = self._backend.encode
        if encode is None:
            raise RuntimeError(
                "compute_ff_tokens needs the tokenizer: make the LlguidanceBackend with canonical_tokenizer"
            )
        text = self.find_jump_forward_string()  # without it llguidance would see nothing forced, see _NO_FORCING
        if not text or encode(text) is None:
            return []
        tokens: list[int] = self.matcher.compute_ff_tokens()
        stop = next((i for i, token in enumerate(tokens) if token in self._stop_token_ids), len(tokens))
        return tokens[:stop]

    def reset(self) -> None:
        self.rollback(self.num_tokens)

    def copy(self, stop_token_ids: Sequence[int] | None = None) -> "LlguidanceGrammar":
        stops = sorted(self._stop_token_ids) if stop_token_ids is None else stop_token_ids
        return LlguidanceGrammar(self._compiled.start.deep_copy(), self._compiled, self._backend, stops)

    def fork(self) -> "LlguidanceGrammar":
        fork = LlguidanceGrammar(self.matcher.deep_copy(), self._compiled, self._backend, sorted(self._stop_token_ids))
        fork._num_text, fork._num_stopped = self._num_text, self._num_stopped
        return fork

    def correct_row(self, row: Any) -> None:
        """Make exact what llguidance filled.

        It gives a matcher that has met one of the library's limits the mask of a complete text, and knows the
        vocabulary's stop tokens only.

        Args:
            row: uint32 ``[W]``, in place.
        """
        if self.matcher.is_error():
            row[:] = 0
        elif self._stop_token_ids != self._backend.default_stop_token_ids:
            default = self._backend.vocabulary.stop_token_ids
            is_complete = int(row[default[0] >> 5]) >> (default[0] & 31) & 1
            for token in default:
                row[token >> 5] &= ~np.uint32(1 << (token & 31))
            for token in self._stop_token_ids:
                bit = np.uint32(1 << (token & 31))
                row[token >> 5] = row[token >> 5] | bit if is_complete else row[token >> 5] & ~bit

    def _accept_prefix(self, tokens: list[int]) -> int:
        """Accept up to the first token that is not allowed; how many that is."""
        if self._num_stopped:
            self._num_stopped += len(tokens)
            return len(tokens)
        text = self._text_prefix(tokens)
        accepted: int = self.matcher.try_consume_tokens(text) if text else 0
        self._num_text += accepted
        if accepted == len(text) < len(tokens) and self._is_stop(tokens[accepted]) and self.matcher.is_accepting():
            self._num_stopped = len(tokens) - accepted
            return len(tokens)
        return accepted

    def _text_prefix(self, tokens: list[int]) -> list[int]:
        """The tokens up to the first that has no text, or ends it; an id out of range would cost the matcher its
        state."""
        text_of = self._backend.vocabulary.token_bytes
        prefix: list[int] = []
        for token in tokens:
            known = token_id(token, len(text_of))
            if known is None or known in self._stop_token_ids or not text_of[known]:
                break
            prefix.append(known)
        return prefix

    def _is_stop(self, token: object) -> bool:
        return token_id(token, self._backend.vocabulary.size) in self._stop_token_ids


class MaskBuffer(NamedTuple):
    """A bitmask in memory: its words, uint32 ``[rows, W]``, where they begin, and the bytes from row to row."""

    words: Any
    address: int
    row_stride: int


class LlguidanceBackend(StructuredOutputBackend):
    """
    Args:
        vocabulary: of the model.
        any_whitespace: whether JSON may have whitespace anywhere, or is written as ``{"a": 1, "b": [2, 3]}``.
        canonical_tokenizer: what ``compute_ff_tokens`` of the grammars needs. Default: they raise.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        any_whitespace: bool = True,
        canonical_tokenizer: CanonicalTokenizer | None = None,
    ):
        super().__init__(vocabulary)
        self.encode = None if canonical_tokenizer is None else lru_cache(_CACHED_TEXTS)(canonical_tokenizer.encode)
        self.default_stop_token_ids = frozenset(vocabulary.stop_token_ids)
        self._any_whitespace = any_whitespace
        self._tokenizer = LLTokenizer(_Tokenizer(vocabulary, self.encode), eos_token=list(vocabulary.stop_token_ids))
        self._row_bytes = bitmask_width(vocabulary.size) * _BYTES_PER_WORD

    def compile_grammar(
        self,
        request_type: StructuredOutputOptions,
        grammar_spec: str,
        stop_token_ids: Sequence[int] | None = None,
        *,
        whitespace_pattern: str | None = None,
        lenient: bool = False,
    ) -> LlguidanceGrammar:
        """
        Args:
            request_type: structural tags are refused.
            grammar_spec: see :class:`structout.params.Constraint`.
            stop_token_ids: default: the vocabulary's.
            whitespace_pattern: for JSON: a regular expression that the whitespace between two tokens, where there is
                any, matches as a whole.
            lenient: ignore the keywords of a JSON schema that llguidance does not implement; ``weakened`` names them.

        Raises:
            GrammarError: see the interface; also a Lark grammar that refers to tokens by name or number, or uses
                max_tokens, stop or temperature, which cannot be rolled back or masked.
        """
        spec = self._grammar(request_type, grammar_spec, whitespace_pattern, lenient)
        start = LLMatcher(self._tokenizer, spec, log_level=0)
        if start.is_error():
            raise GrammarError(f"invalid {request_type.value} constraint: {_reason(start)}")
        weakened = tuple(start.get_grammar_warnings())
        if weakened and not lenient:
            raise GrammarError(f"llguidance would weaken this {request_type.value} constraint: {'; '.join(weakened)}")
        memory_bytes = _MEMORY_AT_LEAST + _MEMORY_PER_BYTE_OF_GRAMMAR * len(spec)
        stops = self.vocabulary.stop_token_ids if stop_token_ids is None else stop_token_ids
        grammar = LlguidanceGrammar(start.deep_copy(), _Compiled(start, memory_bytes, weakened), self, stops)
        self._refuse_empty_language(grammar, request_type)
        return grammar

    def fill_bitmask_batch(
        self, grammars: Sequence[StructuredOutputGrammar], bitmask: torch.Tensor, rows: Sequence[int]
    ) -> None:
        """As the interface says. llguidance's own batches (LLExecutor) take a third longer on one thread."""
        buffer = self.mask_buffer(bitmask, rows)
        for grammar, row in zip(grammars, rows, strict=True):
            if not isinstance(grammar, LlguidanceGrammar):
                raise TypeError(f"expected grammars that LlguidanceBackend compiled, got a {type(grammar).__name__}")
            self.fill_row(grammar, buffer, row)

    def destroy(self) -> None:
        """llguidance keeps nothing that no grammar holds."""

    def fill_row(self, grammar: LlguidanceGrammar, buffer: "MaskBuffer", row: int) -> None:
        grammar.matcher.unsafe_compute_mask_ptr(buffer.address + row * buffer.row_stride, self._row_bytes)
        grammar.correct_row(buffer.words[row])

    def mask_buffer(self, bitmask: torch.Tensor, rows: Sequence[int]) -> "MaskBuffer":
        """What ``fill_row`` writes to, checked: the native call writes wherever it is told to.

        Raises:
            ValueError: not an int32 CPU buffer of the vocabulary's width with contiguous rows.
            IndexError: one of ``rows`` is not in it.
        """
        width = self._row_bytes // _BYTES_PER_WORD
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

    def _grammar(
        self, request_type: StructuredOutputOptions, spec: str, whitespace_pattern: str | None, lenient: bool
    ) -> str:
        """The constraint as llguidance takes it."""
        if whitespace_pattern is not None and request_type is not StructuredOutputOptions.JSON:
            raise GrammarError(f"whitespace_pattern goes with json, got a {request_type.value} constraint")
        match request_type:
            case StructuredOutputOptions.JSON:
                return self._json_grammar(json.loads(spec), whitespace_pattern, lenient)
            case StructuredOutputOptions.JSON_OBJECT:
                return self._json_grammar({"type": ["object", "array"]}, None, False)
            case StructuredOutputOptions.REGEX:
                return _lark_grammar(f"start: /{regex_to_lark(spec, 'dws')}/")
            case StructuredOutputOptions.CHOICE:
                options = " | ".join(json.dumps(option, ensure_ascii=False) for option in json.loads(spec))
                return _lark_grammar(f"start: CHOICE\nCHOICE: {options}")
            case StructuredOutputOptions.GRAMMAR:
                _check_lark(spec)
                return _lark_grammar(spec)
            case StructuredOutputOptions.STRUCTURAL_TAG:
                raise GrammarError("llguidance has no structural tags in xgrammar's format")

    def _json_grammar(self, schema: Any, whitespace_pattern: str | None, lenient: bool) -> str:
        if schema is False:
            raise GrammarError("the json constraint allows no text at all")
        options: dict[str, Any] = {} if self._any_whitespace else dict(_COMPACT_JSON)
        if whitespace_pattern is not None:
            pattern = _ESCAPE.sub(lambda escape: _JSON_WHITESPACE.get(escape[0], escape[0]), whitespace_pattern)
            self._check_whitespace(pattern)
            options = {"whitespace_pattern": pattern}
        options |= {"json_allowed_escapes": _JSON_ESCAPES, "lenient": lenient}
        schema = {} if schema is True else schema
        # x-guidance is how llguidance takes options; those of whoever wrote the schema do not count.
        known = {key: value for key, value in schema.items() if not _is_unknown_draft(key, value)}
        named = {"name": "json", "json_schema": known | {"x-guidance": options}}
        return json.dumps({"grammars": [{"lark_grammar": _NO_FORCING + "start: @json"}, named]}, ensure_ascii=False)

    def _check_whitespace(self, pattern: str) -> None:
        """JSON has four characters of whitespace; llguidance would take any pattern."""
        rule = f"/{regex_to_lark(pattern, '')}/"
        whitespace = LLMatcher(self._tokenizer, _lark_grammar(f"start: {rule}"), log_level=0)
        if whitespace.is_error():
            raise GrammarError(f"invalid whitespace_pattern: {_reason(whitespace)}")
        other = LLMatcher(self._tokenizer, _lark_grammar(f"start: A\nA: {rule} & ~/[ \\t\\n\\r]*/"), log_level=0)
        other.compute_bitmask()
        if not other.is_error():
            raise GrammarError(f"whitespace_pattern matches more than JSON's whitespace: {pattern}")

    def _refuse_empty_language(self, grammar: LlguidanceGrammar, request_type: StructuredOutputOptions) -> None:
        mask = allocate_token_bitmask(1, self.vocabulary.size, pin_memory=False)
        grammar.fill_bitmask(mask, 0)
        if not mask.any():
            raise GrammarError(f"the {request_type.value} constraint allows no text at all")


class _Tokenizer:
    """What LLTokenizer asks of a tokenizer. Tokens without bytes are none that it could allow."""

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


def _lark_grammar(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": _NO_FORCING + text}]}, ensure_ascii=False)


def _check_lark(text: str) -> None:
    for part in _LARK_PART.finditer(text):
        if part["token"]:
            raise GrammarError(f"a grammar constrains text; {part['token']} names a token")
        attribute = _LARK_ATTRIBUTE.search(part["attributes"] or "")
        if attribute:
            raise GrammarError(f"{attribute[0]} of a Lark rule is not supported")


def _is_unknown_draft(key: str, value: object) -> bool:
    return key == "$schema" and not (isinstance(value, str) and _DRAFTS.fullmatch(value))


def _reason(matcher: Any) -> str:
    """The first line: the others show where, and the state of the parser."""
    return str(matcher.get_error()).strip().split("\n")[0]
