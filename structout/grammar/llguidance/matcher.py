"""Matchers of llguidance, and what all requests of one constraint share."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from structout.grammar.interface import PrefixGrammar, StructuredOutputGrammar
from structout.grammar.vocabulary import Vocabulary, token_id

_EVERYTHING = 0xFFFFFFFF  # a word of a mask
NOT_WRITTEN = 0x5A5A5A5A  # in the first word of a row, until the engine has filled it

# llguidance reports no sizes. These are from a linear fit to the growth of the process
# for 150 schemas of MaskBench, each compiled and followed along its instances.
_MEMORY_AT_LEAST = 200_000
_MEMORY_PER_BYTE_OF_GRAMMAR = 24

# Copies of a matcher share its lexer, which never drops a state. Once a mask needs more
# states than the lexer may have, or too much work, the lexer is exhausted: every mask
# of every copy is an error then, and every token is refused without an error.
# llguidance's own limit allows 150 MB. MaskBench's schemas need at most 1,000 states of
# 600 bytes or more.
_MIN_STATES = 4_000
_STATE_GROWTH = 8  # factor, if a single step needs more states
_MAX_STATES = 250_000  # llguidance's default
_MEMORY_PER_STATE = 600
_PRIVATE = -1  # the generation of a lexer that one matcher does not share
_EXHAUSTED = "lexer error"
_TOO_MANY_STATES = "too many states"
_NOTHING_ALLOWED = "NoExtensionBias"  # no token is allowed

Answer = TypeVar("Answer")


class CompiledSpec:
    """What all requests of one constraint share. Safe to use from any thread.

    Args:
        tokenizer: llguidance's form of the vocabulary.
        spec: what :func:`structout.grammar.llguidance.spec.llguidance_spec` returned.

    Attributes:
        warnings: what a lenient compilation ignored, in llguidance's words.
        error: why the spec did not compile. Empty if it did.
    """

    def __init__(self, tokenizer: LLTokenizer, spec: str):
        self._tokenizer = tokenizer
        self._spec = spec
        self._lock = threading.Lock()  # guards what follows
        self._num_states = _MIN_STATES
        self._generation = 0
        self._start = self._new()  # never advanced, only copied
        while _TOO_MANY_STATES in self._start.get_error() and self._grow():
            self._start = self._new()
        self.warnings = tuple(self._start.get_grammar_warnings())
        self.error = error_of(self._start) if self._start.is_error() else ""

    @property
    def memory_bytes(self) -> int:
        """Estimated memory of one lexer."""
        for_states = _MEMORY_PER_STATE * (self._num_states - _MIN_STATES)
        return _MEMORY_AT_LEAST + _MEMORY_PER_BYTE_OF_GRAMMAR * len(self._spec) + for_states

    def start(self) -> tuple[Any, int]:
        """Return a matcher at the start, and the generation of the lexer that it
        shares."""
        with self._lock:
            return self._start.deep_copy(), self._generation

    def start_after(self, generation: int) -> tuple[Any, int]:
        """Do what ``start`` does, after the lexer of ``generation`` was exhausted."""
        with self._lock:
            if generation == self._generation:
                self._start = self._new()
                self._generation += 1
        return self.start()

    def start_private(self) -> tuple[Any, int]:
        """Return a matcher at the start with a lexer of its own, and how many states
        that lexer may have."""
        with self._lock:
            return self._new(), self._num_states

    def grow(self, num_states: int) -> bool:
        """Allow new lexers more than ``num_states`` states. Return False at the
        maximum."""
        with self._lock:
            return self._num_states > num_states or self._grow()

    def _new(self) -> Any:
        return LLMatcher(
            self._tokenizer, self._spec, log_level=0, limits=LLParserLimits(max_lexer_states=self._num_states)
        )

    def _grow(self) -> bool:
        grown = min(self._num_states * _STATE_GROWTH, _MAX_STATES)
        has_grown, self._num_states = grown > self._num_states, grown
        return has_grown


class MaskBuffer(NamedTuple):
    """The memory of a bitmask.

    Attributes:
        words: uint32 ``[rows, W]``.
        address: where they begin.
        row_stride: bytes from one row to the next.
    """

    words: Any
    address: int
    row_stride: int


class GrammarBackend(Protocol):
    """What a grammar needs of its LlguidanceBackend.

    Attributes:
        vocabulary: the token ids of the model.
        encode: the canonical tokens of a text; None without a tokenizer.
        default_stop_token_ids: the stop tokens of the vocabulary.
        row_bytes: length of a mask row.
        stop_word, stop_bit: where a mask row shows the first of these stop tokens.
    """

    vocabulary: Vocabulary
    encode: Callable[[str], list[int] | None] | None
    default_stop_token_ids: frozenset[int]
    row_bytes: int
    stop_word: int
    stop_bit: int

    def fill_bitmask_batch(
        self, grammars: Sequence[StructuredOutputGrammar], bitmask: torch.Tensor, rows: Sequence[int]
    ) -> None: ...

    def fill_bitmask_drafts_batch(
        self,
        grammars: Sequence[StructuredOutputGrammar],
        bitmask: torch.Tensor,
        first_rows: Sequence[int],
        draft_tokens: Sequence[Sequence[int]],
    ) -> list[int]: ...


class LlguidanceGrammar(PrefixGrammar):
    """The position of one request in a constraint that llguidance compiled.

    Attributes:
        error_reason: the limit of llguidance that the request exceeded, in
            llguidance's words.
    """

    def __init__(self, compiled: CompiledSpec, backend: GrammarBackend, stop_token_ids: Sequence[int]):
        self.matcher, self._generation = compiled.start()
        self._compiled = compiled
        self._backend = backend
        self._stop_token_ids = frozenset(stop_token_ids)
        self._has_own_stops = self._stop_token_ids != backend.default_stop_token_ids
        # llguidance takes such stop tokens for text, and allows them where the text
        # cannot end.
        self._has_stops_with_text = any(backend.vocabulary.token_bytes[stop] for stop in stop_token_ids)
        self._row_bytes, self._stop_word, self._stop_bit = backend.row_bytes, backend.stop_word, backend.stop_bit
        self._text: list[int] = []  # tokens that the matcher has accepted
        self._replaced_at = -1  # the length of _text when the lexer was last replaced
        self._num_private_states = 0  # states that a lexer of its own may have
        self._num_stopped = 0  # the stop token and those after it, which the matcher never sees

    @property
    def weakened(self) -> tuple[str, ...]:
        """What a lenient compilation ignored, in llguidance's words."""
        return self._compiled.warnings

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens <= self.num_tokens:
            raise ValueError(f"cannot roll back {num_tokens} of {self.num_tokens} tokens")
        stopped = min(num_tokens, self._num_stopped)
        self._num_stopped -= stopped
        if num_tokens > stopped:
            del self._text[stopped - num_tokens :]
            if not self.matcher.rollback(num_tokens - stopped):  # it has exceeded a limit
                self._restart(self._compiled.start())

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        self._backend.fill_bitmask_batch([self], bitmask, [batch_index])

    def fill_bitmask_drafts(self, bitmask: torch.Tensor, first_row: int, draft_tokens: Sequence[int]) -> int:
        """Fill rows as the interface specifies, in one native call."""
        return self._backend.fill_bitmask_drafts_batch([self], bitmask, [first_row], [draft_tokens])[0]

    def draft_text(self, draft_tokens: Sequence[int]) -> list[int]:
        """The drafts that the engine can check: those before the first that has no text
        or ends the text."""
        return [] if self.is_terminated() else self._text_prefix(list(draft_tokens))

    def finish_drafts(
        self, buffer: MaskBuffer, first_row: int, draft_tokens: Sequence[int], text: Sequence[int]
    ) -> int:
        """Complete the rows of drafts after the engine has filled those of ``text``, as
        far as it allows them.

        Returns:
            what ``fill_bitmask_drafts`` returns.
        """
        words, last_row = buffer.words, first_row + len(draft_tokens)
        if self.is_terminated():
            words[first_row : last_row + 1] = _EVERYTHING
            return 0
        num_allowed = self._count_filled(words, first_row, text)
        if num_allowed is None:
            num_allowed = self._fill_one_by_one(buffer, first_row, text)
        row = first_row + num_allowed
        if row == last_row:
            return num_allowed
        refused = draft_tokens[num_allowed]
        stop = token_id(refused, self._backend.vocabulary.size)
        ends = stop in self._stop_token_ids and words.item(row, stop >> 5) >> (stop & 31) & 1
        words[row + 1 : last_row + 1] = _EVERYTHING if ends or refused == -1 else words[row]
        return num_allowed + ends

    def _count_filled(self, words: Any, first_row: int, text: Sequence[int]) -> int | None:
        """The number of leading drafts that the filled rows allow. None if the engine
        has met a limit on its way."""
        if self.matcher.is_error():
            return None
        for row, token in enumerate([*text, None], first_row):
            if words.item(row, 0) == NOT_WRITTEN:
                return None
            self._correct_stops(words, row)
            if token is None or not words.item(row, token >> 5) >> (token & 31) & 1:
                break
        return row - first_row

    def _fill_one_by_one(self, buffer: MaskBuffer, first_row: int, text: Sequence[int]) -> int:
        num_before = len(self._text)
        try:
            for row, token in enumerate([*text, None], first_row):
                self.fill_row(buffer, row)
                if token is None or not buffer.words.item(row, token >> 5) >> (token & 31) & 1:
                    break
                if not self._consume([token]):
                    break
        finally:
            self.rollback(len(self._text) - num_before)
        return row - first_row

    def is_terminated(self) -> bool:
        return self._num_stopped > 0

    @property
    def num_tokens(self) -> int:
        return len(self._text) + self._num_stopped

    @property
    def memory_bytes(self) -> int:
        """Estimated from the length of the constraint. Use adds up to a few
        megabytes."""
        return self._compiled.memory_bytes

    def forced_bytes(self) -> bytes:
        return b"" if self.is_terminated() else bytes(self._ask(LLMatcher.compute_ff_bytes))

    def compute_ff_tokens(self) -> list[int]:
        """Return forced tokens as the interface specifies.

        Raises:
            RuntimeError: the backend has no tokenizer.
        """
        encode = self._backend.encode
        if encode is None:
            raise RuntimeError("compute_ff_tokens needs the tokenizer: pass canonical_tokenizer to LlguidanceBackend")
        text = self.find_jump_forward_string()  # llguidance sees nothing forced otherwise, because of no_forcing
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
        fork._text, fork._replaced_at = self._text.copy(), self._replaced_at
        fork._num_private_states = self._num_private_states
        fork._num_stopped = self._num_stopped
        return fork

    def fill_row(self, buffer: MaskBuffer, row: int) -> None:
        """Do what ``fill_bitmask`` does, without its checks."""
        self.matcher.unsafe_compute_mask_ptr(buffer.address + row * buffer.row_stride, self._row_bytes)
        self.correct_row(buffer, row)

    def correct_row(self, buffer: MaskBuffer, row: int) -> None:
        """Correct a row that the engine has filled.

        llguidance gives a matcher that has exceeded a limit the mask of a complete
        text, and knows the vocabulary's stop tokens only.
        """
        words, address, row_stride = buffer
        address += row * row_stride
        if words.item(row, self._stop_word) & self._stop_bit and self.matcher.is_error():
            self._ask(lambda matcher: matcher.unsafe_compute_mask_ptr(address, self._row_bytes))
            if self.matcher.is_error():
                words[row] = 0
                return
        self._correct_stops(words, row)

    def _correct_stops(self, words: Any, row: int) -> None:
        if self._has_own_stops:
            is_complete = words.item(row, self._stop_word) & self._stop_bit
            if is_complete or self._has_stops_with_text:
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
        """Advance the matcher to the first token that is not allowed, and return the
        number of tokens accepted."""
        rest = text
        while rest:
            accepted = self.matcher.try_consume_tokens(rest)
            self._text += rest[:accepted]
            rest = rest[accepted:]
            if rest and not self._has_replaced_lexer():
                break
        return len(text) - len(rest)

    def _is_complete(self) -> bool:
        return self._ask(LLMatcher.is_accepting) or (self._has_replaced_lexer() and self._ask(LLMatcher.is_accepting))

    def _has_replaced_lexer(self) -> bool:
        """Whether a token was refused only because the lexer was exhausted, which a
        mask shows. It is replaced then."""
        if self.matcher.is_error():
            return self._replace_lexer()
        matcher_before = self.matcher
        self._ask(LLMatcher.compute_bitmask)
        return self.matcher is not matcher_before

    def _ask(self, method: Callable[[Any], Answer]) -> Answer:
        """Call a method of the matcher. If its lexer is exhausted, replace the matcher
        and call again."""
        answer = method(self.matcher)
        while self.matcher.is_error() and self._replace_lexer():
            answer = method(self.matcher)
        return answer

    def _replace_lexer(self) -> bool:
        """Continue with another lexer, if the error of the matcher is that its lexer is
        exhausted."""
        message = error_of(self.matcher)
        self.error_reason = "" if _NOTHING_ALLOWED in message else f"the constraint takes too much work: {message}"
        if _EXHAUSTED not in message:
            return False
        if self._replaced_at != len(self._text):
            self._restart(self._compiled.start_after(self._generation))
        elif self._generation != _PRIVATE or (
            _TOO_MANY_STATES in message and self._compiled.grow(self._num_private_states)
        ):
            # Other requests may have exhausted that one meanwhile. A private lexer
            # shows whether its size is too small.
            matcher, self._num_private_states = self._compiled.start_private()
            self._restart((matcher, _PRIVATE))
        else:
            return False
        self._replaced_at = len(self._text)
        return True

    def _restart(self, start: tuple[Any, int]) -> None:
        self.matcher, self._generation = start
        if self.matcher.try_consume_tokens(self._text) < len(self._text):
            self.matcher.compute_bitmask()  # this lexer is exhausted too: makes the matcher report it
        self.error_reason = ""

    def _text_prefix(self, tokens: list[int]) -> list[int]:
        """The tokens before the first that has no text or ends the text.

        An id out of range would put the matcher into an error that it keeps.
        """
        token_bytes = self._backend.vocabulary.token_bytes
        prefix: list[int] = []
        for token in tokens:
            known = token_id(token, len(token_bytes))
            if known is None or known in self._stop_token_ids or not token_bytes[known]:
                break
            prefix.append(known)
        return prefix

    def _is_stop(self, token: object) -> bool:
        return token_id(token, self._backend.vocabulary.size) in self._stop_token_ids


def error_of(matcher: Any) -> str:
    """Why a matcher is in error.

    The first line of llguidance's message says it, and the others show where. Only for
    a regular expression that does not parse, the last line has the cause.
    """
    first, *others = str(matcher.get_error()).strip().split("\n")
    if first.endswith(":"):
        causes = [line.strip().removeprefix("error: ") for line in others if line.strip().startswith("error: ")]
        return " ".join([first, *causes])
    return first
