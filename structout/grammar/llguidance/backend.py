"""Constraints compiled and followed by llguidance (https://github.com/guidance-ai/llguidance)."""

import json
import re
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark

from structout.bitmask import bitmask_dtype, bitmask_width
from structout.errors import GrammarError
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.interface import PrefixGrammar, StructuredOutputBackend, StructuredOutputGrammar
from structout.grammar.vocabulary import Vocabulary, token_id
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
# and attributes of rules. Text that is not closed goes on to the end of its line, so that nothing is read twice.
_LARK_PART = re.compile(
    r"""(?P<text>"[^"\\\n]*(?:\\.[^"\\\n]*)*"?|//[^\n]*|/[^/\\\n]*(?:\\.[^/\\\n]*)*/?|\#[^\n]*)"""
    r"""|(?P<token><[^<>\s]+>)|\b(?P<attribute>max_tokens|stop|temperature)\s*="""
)

# A straight line through what the process grew by for each of 150 MaskBench schemas, compiled and followed along its
# instances: llguidance reports no sizes.
_MEMORY_AT_LEAST = 200_000
_MEMORY_PER_BYTE_OF_GRAMMAR = 24


# Copies of a matcher share its lexer, which never drops a state. When a mask needs one more than it may have, or too
# much work, the lexer is spent: every mask of every copy is an error then, and every token refused, without an error.
# By llguidance's own bound that is after 150 MB. MaskBench's schemas need at most 1,000 states, of 600 bytes or more.
_FEW_STATES = 4_000
_MORE_STATES = 8  # times as many, where those do not do for a single step
_MOST_STATES = 250_000  # llguidance's default
_MEMORY_PER_STATE = 600
_ALONE = -1  # the generation of a lexer that one matcher has to itself
_SPENT = "lexer error"
_TOO_MANY_STATES = "too many states"

Answer = TypeVar("Answer")


class _Compiled:
    """What all requests of one constraint share. Safe from any thread.

    Attributes:
        weakened: what a lenient compilation gave up, in llguidance's words.
    """

    def __init__(self, tokenizer: LLTokenizer, spec: str):
        self._tokenizer = tokenizer
        self._spec = spec
        self._lock = threading.Lock()  # held by who renews the lexer
        self._num_states = _FEW_STATES
        self._generation = 0
        self._start = self._new()  # never advanced, only copied
        while _TOO_MANY_STATES in self._start.get_error() and self._grow():
            self._start = self._new()
        self.weakened = tuple(self._start.get_grammar_warnings())
        self.error = _reason(self._start) if self._start.is_error() else ""

    @property
    def memory_bytes(self) -> int:
        """An estimate."""
        for_states = _MEMORY_PER_STATE * (self._num_states - _FEW_STATES)
        return _MEMORY_AT_LEAST + _MEMORY_PER_BYTE_OF_GRAMMAR * len(self._spec) + for_states

    def start(self) -> tuple[Any, int]:
        """A matcher at the start, and which lexer it shares."""
        with self._lock:
            return self._start.deep_copy(), self._generation

    def start_after(self, generation: int) -> tuple[Any, int]:
        """As ``start``, with another lexer than that one, which is spent."""
        with self._lock:
            if generation == self._generation:
                self._start = self._new()
                self._generation += 1
        return self.start()

    def start_alone(self) -> tuple[Any, int]:
        """A matcher at the start whose lexer nobody shares, and how many states that may have."""
        with self._lock:
            return self._new(), self._num_states

    def grow(self, num_states: int) -> bool:
        """Let lexers have more states than that from now on. False: they cannot."""
        with self._lock:
            return self._num_states > num_states or self._grow()

    def _new(self) -> Any:
        return LLMatcher(
            self._tokenizer, self._spec, log_level=0, limits=LLParserLimits(max_lexer_states=self._num_states)
        )

    def _grow(self) -> bool:
        grown = min(self._num_states * _MORE_STATES, _MOST_STATES)
        has_grown, self._num_states = grown > self._num_states, grown
        return has_grown


class LlguidanceGrammar(PrefixGrammar):
    """
    Attributes:
        error_reason: as the interface says, the limit of llguidance that the request has met, in its words.
    """

    def __init__(self, compiled: _Compiled, backend: "LlguidanceBackend", stop_token_ids: Sequence[int]):
        self.matcher, self._generation = compiled.start()
        self._compiled = compiled
        self._backend = backend
        self._stop_token_ids = frozenset(stop_token_ids)
        self._has_own_stops = self._stop_token_ids != backend.default_stop_token_ids
        # Those that llguidance takes for text, and allows where they would end nothing.
        self._has_stops_with_text = any(backend.vocabulary.token_bytes[stop] for stop in stop_token_ids)
        self._row_bytes, self._stop_word, self._stop_bit = backend.row_bytes, backend.stop_word, backend.stop_bit
        self._text: list[int] = []  # tokens that the matcher has taken
        self._renewed_at = -1  # how many they were when the lexer was last renewed
        self._num_states_alone = 0  # that a lexer of its own may have
        self._num_stopped = 0  # the stop token and those after it, of which the matcher hears nothing

    @property
    def weakened(self) -> tuple[str, ...]:
        """What a lenient compilation gave up, in llguidance's words."""
        return self._compiled.weakened

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens <= self.num_tokens:
            raise ValueError(f"cannot take back {num_tokens} of {self.num_tokens} tokens")
        stopped = min(num_tokens, self._num_stopped)
        self._num_stopped -= stopped
        if num_tokens > stopped:
            del self._text[stopped - num_tokens :]
            if not self.matcher.rollback(num_tokens - stopped):  # it has met a limit, which lies ahead again
                self._start_again(self._compiled.start())

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
        row = first_row
        text = self._text_prefix(list(draft_tokens))
        num_before = len(self._text)
        try:
            for row in range(first_row, last_row + 1):
                self.fill_row(buffer, row)
                num_allowed = row - first_row
                if num_allowed == len(text):
                    break
                token = text[num_allowed]
                if not words.item(row, token >> 5) >> (token & 31) & 1 or not self._consume([token]):
                    break
        finally:
            self.rollback(len(self._text) - num_before)
        if num_allowed == len(draft_tokens):
            return num_allowed
        refused = draft_tokens[num_allowed]
        stop = token_id(refused, self._backend.vocabulary.size)
        ends = stop in self._stop_token_ids and words.item(row, stop >> 5) >> (stop & 31) & 1
        words[row + 1 : last_row + 1] = _EVERYTHING if ends or refused == -1 else words[row]
        return num_allowed + ends

    def is_terminated(self) -> bool:
        return self._num_stopped > 0

    @property
    def num_tokens(self) -> int:
        return len(self._text) + self._num_stopped

    @property
    def memory_bytes(self) -> int:
        """An estimate from the length of the constraint: llguidance counts nothing. Use adds up to some megabytes."""
        return self._compiled.memory_bytes

    def forced_bytes(self) -> bytes:
        return b"" if self.is_terminated() else bytes(self._ask(LLMatcher.compute_ff_bytes))

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
        tokens: list[int] = self._ask(LLMatcher.compute_ff_tokens)
        stop = next((i for i, token in enumerate(tokens) if token in self._stop_token_ids), len(tokens))
        return tokens[:stop]

    def reset(self) -> None:
        self.rollback(self.num_tokens)

    def copy(self, stop_token_ids: Sequence[int] | None = None) -> "LlguidanceGrammar":
        stops = sorted(self._stop_token_ids) if stop_token_ids is None else stop_token_ids
        return LlguidanceGrammar(self._compiled, self._backend, stops)

    def fork(self) -> "LlguidanceGrammar":
        fork = self.copy()
        fork.matcher, fork._generation = self.matcher.deep_copy(), self._generation
        fork._text, fork._renewed_at = self._text.copy(), self._renewed_at
        fork._num_states_alone = self._num_states_alone
        fork._num_stopped = self._num_stopped
        return fork

    def fill_row(self, buffer: "MaskBuffer", row: int) -> None:
        """``fill_bitmask`` without its checks.

        llguidance gives a matcher that has met a limit the mask of a complete text, and knows the vocabulary's stop
        tokens only.
        """
        words, address, row_stride = buffer
        address += row * row_stride
        self.matcher.unsafe_compute_mask_ptr(address, self._row_bytes)
        is_complete = words.item(row, self._stop_word) & self._stop_bit
        if is_complete and self.matcher.is_error():
            self._ask(lambda matcher: matcher.unsafe_compute_mask_ptr(address, self._row_bytes))
            if self.matcher.is_error():
                words[row] = 0
                return
            is_complete = words.item(row, self._stop_word) & self._stop_bit
        if self._has_own_stops and (is_complete or self._has_stops_with_text):
            self._set_own_stops(words, row, bool(is_complete))

    def _set_own_stops(self, words: Any, row: int, is_complete: bool) -> None:
        for stops, is_allowed in ((self._backend.default_stop_token_ids, False), (self._stop_token_ids, is_complete)):
            for stop in stops:
                bit = 1 << (stop & 31)
                word = words.item(row, stop >> 5)
                words[row, stop >> 5] = word | bit if is_allowed else word & ~bit

    def _accept_prefix(self, tokens: list[int]) -> int:
        if self._num_stopped:
            self._num_stopped += len(tokens)
            return len(tokens)
        text = self._text_prefix(tokens)
        accepted = self._consume(text)
        if accepted == len(text) < len(tokens) and self._is_stop(tokens[accepted]) and self._is_complete():
            self._num_stopped = len(tokens) - accepted
            return len(tokens)
        return accepted

    def _consume(self, text: list[int]) -> int:
        """Have the matcher take the tokens up to the first that is not allowed; how many that is."""
        rest = text
        while rest:
            accepted = self.matcher.try_consume_tokens(rest)
            self._text += rest[:accepted]
            rest = rest[accepted:]
            if rest and not self._has_renewed():
                break
        return len(text) - len(rest)

    def _is_complete(self) -> bool:
        return self._ask(LLMatcher.is_accepting) or (self._has_renewed() and self._ask(LLMatcher.is_accepting))

    def _has_renewed(self) -> bool:
        """Whether a refusal meant only that the lexer was spent; another one is in its place. A mask shows it."""
        if self.matcher.is_error():
            return self._renew()
        refusing = self.matcher
        self._ask(LLMatcher.compute_bitmask)
        return self.matcher is not refusing

    def _ask(self, question: Callable[[Any], Answer]) -> Answer:
        """What the matcher answers, or another one in its place if its lexer is spent."""
        answer = question(self.matcher)
        while self.matcher.is_error() and self._renew():
            answer = question(self.matcher)
        return answer

    def _renew(self) -> bool:
        """Go on with another lexer, if the matcher's error is that its own is spent."""
        self.error_reason = _reason(self.matcher)
        if _SPENT not in self.error_reason:
            return False
        if self._renewed_at != len(self._text):
            self._start_again(self._compiled.start_after(self._generation))
        elif self._generation != _ALONE or (
            _TOO_MANY_STATES in self.error_reason and self._compiled.grow(self._num_states_alone)
        ):
            # Others may have spent that one meanwhile. A lexer of its own tells whether it is too small.
            matcher, self._num_states_alone = self._compiled.start_alone()
            self._start_again((matcher, _ALONE))
        else:
            return False
        self._renewed_at = len(self._text)
        return True

    def _start_again(self, start: tuple[Any, int]) -> None:
        self.matcher, self._generation = start
        if self.matcher.try_consume_tokens(self._text) < len(self._text):
            self.matcher.compute_bitmask()  # others have spent this lexer too: have the matcher know
        self.error_reason = ""

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
        self.row_bytes = bitmask_width(vocabulary.size) * _BYTES_PER_WORD
        stop = vocabulary.stop_token_ids[0]  # llguidance allows all of them or none
        self.stop_word, self.stop_bit = stop >> 5, 1 << (stop & 31)

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
        compiled = _Compiled(self._tokenizer, spec)
        if compiled.error:
            raise GrammarError(f"invalid {request_type.value} constraint: {compiled.error}")
        weakened = compiled.weakened
        if weakened and not lenient:
            raise GrammarError(f"llguidance would weaken this {request_type.value} constraint: {'; '.join(weakened)}")
        stops = self.vocabulary.stop_token_ids if stop_token_ids is None else stop_token_ids
        grammar = LlguidanceGrammar(compiled, self, stops)
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
            grammar.fill_row(buffer, row)

    def destroy(self) -> None:
        """llguidance keeps nothing that no grammar holds."""

    def mask_buffer(self, bitmask: torch.Tensor, rows: Sequence[int]) -> "MaskBuffer":
        """What ``fill_row`` writes to, checked: the native call writes wherever it is told to.

        Raises:
            ValueError: not an int32 CPU buffer of the vocabulary's width with contiguous rows.
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
        if part["attribute"]:
            raise GrammarError(f"{part['attribute']} of a Lark rule is not supported")


def _is_unknown_draft(key: str, value: object) -> bool:
    return key == "$schema" and not (isinstance(value, str) and _DRAFTS.fullmatch(value))


def _reason(matcher: Any) -> str:
    """The first line: the others show where, and the state of the parser."""
    return str(matcher.get_error()).strip().split("\n")[0]
