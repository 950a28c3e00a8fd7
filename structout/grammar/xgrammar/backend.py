"""Compiles constraints with xgrammar (https://github.com/mlc-ai/xgrammar), and tracks
requests in them."""

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
import xgrammar

from structout import exact_json
from structout.config import StructuredOutputsConfig
from structout.errors import GrammarError, GrammarErrorKind
from structout.grammar.ecma_regex import with_explicit_classes
from structout.grammar.engine_versions import warn_if_unmeasured
from structout.grammar.forced_tokens import CanonicalTokenizer
from structout.grammar.interface import (
    CompiledConstraint,
    PrefixGrammar,
    StructuredOutputBackend,
    StructuredOutputGrammar,
    check_mask_buffer,
    nodes_below,
)
from structout.grammar.support import is_gbnf
from structout.grammar.vocabulary import Vocabulary, token_id
from structout.grammar.xgrammar import native
from structout.grammar.xgrammar.refusals import explain_refusal
from structout.grammar.xgrammar.support import FORMATS
from structout.json_schema import without_no_ops
from structout.params import Constraint, StructuredOutputOptions
from structout.structural_tag import tag_parts, with_schemas

# In the grammars that xgrammar prints: the rule for one character of a string of
# bounded length, and the class that it should have; any class or quoted text, to find
# all classes. In its errors: the time and place in front of the message.
_BOUNDED_STRING_CHARACTER = re.compile(r"^(\w+ ::= \(\()\[\^\\\"\\\\\\r\\n\](\)\))$", re.MULTILINE)
_STRING_CHARACTER = r"[^\0-\x1f\"\\]"
_CLASS_OR_TEXT = re.compile(r'\[[^\]\\]*(?:\\.[^\]\\]*)*\]?|"[^"\\]*(?:\\.[^"\\]*)*"?')
_CACHE_SHARE = 8  # xgrammar may cache one part in so many of the config's cache_bytes
_SERIALIZED_GROWTH = 4  # as text, grammars were seen to take 1 to 14 times their memory
_NUM_SAMPLED = 8  # rows of a batch whose time decides whether threads share the others
_MIN_SHARED_SECONDS = 1e-3  # what is shorter is done without giving Python's global lock away
_LOG_PREFIX = re.compile(r"^\[\d+:\d+:\d+\] \S+:\d+: ")


class XgrammarGrammar(PrefixGrammar):
    """The position of one request in a constraint that xgrammar compiled."""

    def __init__(
        self,
        matcher: Any,
        compiled: Any,
        vocabulary: Vocabulary,
        stop_token_ids: Iterable[int],
        canonical_tokenizer: CanonicalTokenizer | None = None,
    ):
        self.matcher = matcher
        self._handle = matcher._handle  # what native calls take
        self._compiled = compiled
        self._vocabulary = vocabulary
        self._stop_token_ids = frozenset(stop_token_ids)
        self._stops_with_text = [stop for stop in self._stop_token_ids if vocabulary.token_bytes[stop]]
        self._canonical_tokenizer = canonical_tokenizer
        self._accepted: list[int] = []  # tokens that the matcher has accepted
        self._num_after_stop = 0  # tokens after a stop token, which the matcher never sees

    def rollback(self, num_tokens: int) -> None:
        after_stop = min(num_tokens, self._num_after_stop)
        self._num_after_stop -= after_stop
        if num_tokens > after_stop:
            native.rollback(self._handle, num_tokens - after_stop)
            del self._accepted[after_stop - num_tokens :]

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        check_mask_buffer(bitmask, self._vocabulary.size)
        self.matcher.fill_next_token_bitmask(bitmask, batch_index)
        self.correct_stop_tokens(bitmask, batch_index)

    def correct_stop_tokens(self, bitmask: torch.Tensor, row: int) -> None:
        """Disallow stop tokens with text in a mask row, where the text cannot end.

        xgrammar 0.2.7 allows them there as text, but does not accept them.
        """
        if not self._stops_with_text or native.is_completed(self._handle):
            return
        words: Any = bitmask[row].numpy().view(np.uint32)
        for stop in self._stops_with_text:
            words[stop >> 5] = words.item(stop >> 5) & ~(1 << (stop & 31)) & 0xFFFFFFFF

    def fill_bitmask_tree(
        self,
        bitmask: torch.Tensor,
        first_row: int,
        draft_tokens: Sequence[int],
        next_token: Sequence[int],
        next_sibling: Sequence[int],
    ) -> int:
        """Fill rows as the interface specifies, in one native call
        (``traverse_draft_tree``).

        That call fills the rows of the allowed nodes only.
        """
        if self._stops_with_text:
            return super().fill_bitmask_tree(bitmask, first_row, draft_tokens, next_token, next_sibling)
        check_mask_buffer(bitmask, self._vocabulary.size)
        order = nodes_below(next_token, next_sibling)
        rows = bitmask[first_row : first_row + len(draft_tokens)]
        rows[:] = -1 if self.is_terminated() else 0
        if self.is_terminated():
            return 0
        tokens = [token_id(token, self._vocabulary.size) for token in draft_tokens]
        known = torch.tensor([-1 if token is None else token for token in tokens])
        self.matcher.traverse_draft_tree(torch.tensor(next_token), torch.tensor(next_sibling), known, rows)

        words: Any = rows.numpy()
        is_allowed = [True] + [False] * (len(words) - 1)
        for node, parent in order:
            token = tokens[node]
            if not is_allowed[parent]:
                words[node] = words[parent]
            elif draft_tokens[node] == -1 or (tokens[parent] in self._stop_token_ids and parent):
                words[node] = -1
            elif token is not None and words[parent, token >> 5] >> (token & 31) & 1:
                is_allowed[node] = True
                if token in self._stop_token_ids:
                    words[node] = -1
            else:
                words[node] = words[parent]
        return sum(is_allowed) - 1

    def is_terminated(self) -> bool:
        return bool(self._accepted) and self._accepted[-1] in self._stop_token_ids

    def reset(self) -> None:
        self.matcher.reset()
        self._accepted.clear()
        self._num_after_stop = 0

    @property
    def num_tokens(self) -> int:
        return len(self._accepted) + self._num_after_stop

    @property
    def memory_bytes(self) -> int:
        return int(self._compiled.memory_size_bytes)

    def forced_bytes(self) -> bytes:
        if self.is_terminated():
            return b""
        try:
            text: str = self.matcher.find_jump_forward_string()
        except UnicodeDecodeError as error:  # the forced bytes end inside a character
            return error.object
        return text.encode()

    def compute_ff_tokens(self) -> list[int]:
        """Return forced tokens as the interface specifies.

        Raises:
            RuntimeError: the backend has no tokenizer.
        """
        if self._canonical_tokenizer is None:
            raise RuntimeError("compute_ff_tokens needs the tokenizer: pass canonical_tokenizer to XgrammarBackend")
        tokens = self._canonical_tokenizer.ff_tokens(self, self._accepted)
        return tokens if self._stop_token_ids.isdisjoint(tokens) else []

    def accept_bytes(self, data: bytes) -> bool:
        """Advance by bytes, for the CanonicalTokenizer. Must be undone before the next
        token."""
        return bool(native.accept_string(self._handle, data, False))

    def undo_bytes(self) -> None:
        native.rollback(self._handle, 1)

    def copy(self, stop_token_ids: Sequence[int] | None = None) -> "XgrammarGrammar":
        stops = self._stop_token_ids if stop_token_ids is None else stop_token_ids
        return XgrammarGrammar.at_start(self._compiled, self._vocabulary, stops, self._canonical_tokenizer)

    def fork(self) -> "XgrammarGrammar":
        fork = XgrammarGrammar(
            self.matcher.fork(), self._compiled, self._vocabulary, self._stop_token_ids, self._canonical_tokenizer
        )
        fork._accepted = self._accepted.copy()
        fork._num_after_stop = self._num_after_stop
        return fork

    @classmethod
    def at_start(
        cls,
        compiled: Any,
        vocabulary: Vocabulary,
        stop_token_ids: Iterable[int],
        canonical_tokenizer: CanonicalTokenizer | None = None,
    ) -> "XgrammarGrammar":
        stops = sorted(stop_token_ids)
        matcher = xgrammar.GrammarMatcher(compiled, override_stop_tokens=stops)
        return cls(matcher, compiled, vocabulary, stops, canonical_tokenizer)

    def _accept_prefix(self, tokens: list[int]) -> int:
        for accepted, token in enumerate(tokens):
            if self.is_terminated():
                self._num_after_stop += len(tokens) - accepted
                break
            if not self._accept(token):
                return accepted
        return len(tokens)

    def _accept(self, token: int) -> bool:
        """Advance by one token.

        The native call raises for anything but an int, keeps only the low 32 bits of an
        id, and accepts a token without text without a step. Hence the checks.
        """
        known = token_id(token, self._vocabulary.size)
        if known is None or not (known in self._stop_token_ids or self._vocabulary.token_bytes[known]):
            return False
        if not native.accept_token(self._handle, known, False):
            return False
        self._accepted.append(known)
        return True


class XgrammarBackend(StructuredOutputBackend):
    """Compiles constraints for one vocabulary with xgrammar.

    Args:
        vocabulary: the token ids of the model.
        canonical_tokenizer: needed for ``compute_ff_tokens`` of the grammars. By
            default that method raises.
        any_whitespace: as in :class:`structout.StructuredOutputsConfig`.
        max_whitespace: as in :class:`structout.StructuredOutputsConfig`.
        cache_bytes: size limit of xgrammar's own cache of compiled grammars.
        compile_threads: native threads of one compilation.
        fill_threads: native threads that share the rows of a batch.
    """

    can_isolate = True

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        canonical_tokenizer: CanonicalTokenizer | None = None,
        any_whitespace: bool = True,
        max_whitespace: int | None = None,
        cache_bytes: int = 256 << 20,
        compile_threads: int = 1,
        fill_threads: int = 1,
    ):
        super().__init__(vocabulary)
        warn_if_unmeasured("xgrammar")
        self._canonical_tokenizer = canonical_tokenizer
        self._any_whitespace = any_whitespace
        self._max_whitespace = max_whitespace
        self._tokenizer_info = xgrammar.TokenizerInfo(
            list(vocabulary.token_bytes),
            xgrammar.VocabType.RAW,
            vocab_size=vocabulary.size,
            stop_token_ids=list(vocabulary.stop_token_ids),
        )
        self._compiler = xgrammar.GrammarCompiler(
            self._tokenizer_info, max_threads=compile_threads, cache_limit_bytes=cache_bytes
        )
        self._batch = xgrammar.BatchGrammarMatcher(max_threads=fill_threads)
        self._serial_batch = xgrammar.BatchGrammarMatcher(max_threads=1)

    @classmethod
    def from_config(
        cls, vocabulary: Vocabulary, config: StructuredOutputsConfig, canonical_tokenizer: CanonicalTokenizer | None
    ) -> "XgrammarBackend":
        return cls(
            vocabulary,
            any_whitespace=config.any_whitespace,
            max_whitespace=config.max_whitespace,
            cache_bytes=config.cache_bytes // _CACHE_SHARE,
            fill_threads=config.fill_threads,
            canonical_tokenizer=canonical_tokenizer,
        )

    def compile_grammar(
        self, request_type: StructuredOutputOptions, grammar_spec: str, stop_token_ids: Sequence[int] | None = None
    ) -> XgrammarGrammar:
        constraint = Constraint(request_type, grammar_spec)
        return self._at_start(request_type, self.compile_native(constraint), stop_token_ids)

    def compile_native(self, constraint: Constraint) -> Any:
        """Compile into xgrammar's own compiled grammar, for any stop tokens. Raises
        ``GrammarError``."""
        with _refusal_as_grammar_error(constraint.kind):
            return self._compile(self._compile_call(constraint))

    def serialize(self, native: Any, max_bytes: int) -> bytes | None:
        if native.memory_size_bytes > max_bytes // _SERIALIZED_GROWTH:
            return None
        serialized: bytes = native.serialize_json().encode()
        return serialized if len(serialized) <= max_bytes else None

    def load_grammar(
        self, constraint: Constraint, serialized: bytes, stop_token_ids: Sequence[int] | None = None
    ) -> CompiledConstraint:
        with _refusal_as_grammar_error(constraint.kind):
            compiled = xgrammar.CompiledGrammar.deserialize_json(serialized.decode(), self._tokenizer_info)
        return CompiledConstraint(self._at_start(constraint.kind, compiled, stop_token_ids))

    def fill_bitmask_batch(
        self, grammars: Sequence[StructuredOutputGrammar], bitmask: torch.Tensor, rows: Sequence[int]
    ) -> None:
        """Fill rows as the interface specifies.

        A short batch keeps Python's global lock. Others release it once, and
        ``fill_threads`` native threads share them.
        """
        check_mask_buffer(bitmask, self.vocabulary.size)
        own_grammars = [_own_grammar(grammar) for grammar in grammars]
        matchers, rows = [grammar.matcher for grammar in own_grammars], list(rows)
        started = time.thread_time()
        self._fill_keeping_lock(matchers[:_NUM_SAMPLED], bitmask, rows[:_NUM_SAMPLED])
        row_seconds = (time.thread_time() - started) / _NUM_SAMPLED
        others, other_rows = matchers[_NUM_SAMPLED:], rows[_NUM_SAMPLED:]
        if row_seconds * len(others) < _MIN_SHARED_SECONDS:
            self._fill_keeping_lock(others, bitmask, other_rows)
        else:
            self._batch.batch_fill_next_token_bitmask(others, bitmask, other_rows)
        for grammar, row in zip(own_grammars, rows, strict=True):
            grammar.correct_stop_tokens(bitmask, row)

    def _fill_keeping_lock(self, matchers: list[Any], bitmask: torch.Tensor, rows: list[int]) -> None:
        if matchers:
            handles = [matcher._handle for matcher in matchers]
            native.fill_batch(self._serial_batch._handle, handles, bitmask, rows, False)

    def destroy(self) -> None:
        self._compiler.clear_cache()

    def _compile_call(self, constraint: Constraint) -> Callable[[Any], Any]:
        spec = constraint.spec
        match constraint.kind:
            case StructuredOutputOptions.JSON:
                schema = without_no_ops(constraint.value, constraint.nodes, FORMATS)
                return self._compile_json_call(
                    spec if schema is constraint.value else exact_json.dumps(schema, ensure_ascii=False)
                )
            case StructuredOutputOptions.JSON_OBJECT:
                return self._compile_json_call('{"type": "object"}')
            case StructuredOutputOptions.REGEX:
                return lambda compiler: compiler.compile_regex(spec)
            case StructuredOutputOptions.CHOICE:
                return lambda compiler: compiler.compile_grammar(_choice_grammar(constraint.value))
            case StructuredOutputOptions.GRAMMAR:
                if is_gbnf(spec):
                    return lambda compiler: compiler.compile_grammar(spec)
                return lambda compiler: compiler.compile_grammar(xgrammar.Grammar.from_lark(spec))
            case StructuredOutputOptions.STRUCTURAL_TAG:
                schemas = {
                    part.pointer: without_no_ops(part.schema, part.nodes, FORMATS) for part in constraint.tag_schemas
                }
                with_classes = _with_explicit_classes(with_schemas(constraint.value, schemas))
                tag = exact_json.dumps(with_classes, ensure_ascii=False)
                return lambda compiler: compiler.compile_structural_tag(tag)

    def _compile_json_call(self, schema: str) -> Callable[[Any], Any]:
        whitespace = {
            "any_whitespace": self._any_whitespace,
            "max_whitespace_cnt": self._max_whitespace if self._any_whitespace else None,
        }
        if "Length" not in schema:
            return lambda compiler: compiler.compile_json_schema(schema, **whitespace)
        # xgrammar allows raw control characters, which JSON forbids, in strings with
        # minLength or maxLength.
        grammar = str(xgrammar.Grammar.from_json_schema(schema, **whitespace))
        sound = _BOUNDED_STRING_CHARACTER.sub(lambda rule: rule[1] + _STRING_CHARACTER + rule[2], grammar)
        for part in _CLASS_OR_TEXT.findall(sound):
            if part.startswith("[^") and not part.startswith(r"[^\0-\x1f"):
                raise GrammarError(
                    f"xgrammar {version('xgrammar')} would allow control characters in this schema's strings by {part}",
                    kind=GrammarErrorKind.UNSUPPORTED,
                )
        return lambda compiler: compiler.compile_grammar(sound)

    def _compile(self, compile_with: Callable[[Any], Any]) -> Any:
        try:
            return compile_with(self._compiler)
        except RuntimeError as error:
            # xgrammar's cache fails for some sound grammars, such as a pattern with a
            # bound above 128.
            if "Check failed" not in str(error):
                raise
            return compile_with(xgrammar.GrammarCompiler(self._tokenizer_info, max_threads=1, cache_enabled=False))

    def _at_start(
        self, request_type: StructuredOutputOptions, compiled: Any, stop_token_ids: Sequence[int] | None
    ) -> XgrammarGrammar:
        stops = self.vocabulary.stop_token_ids if stop_token_ids is None else stop_token_ids
        with _refusal_as_grammar_error(request_type):
            grammar = XgrammarGrammar.at_start(compiled, self.vocabulary, stops, self._canonical_tokenizer)
        self._refuse_empty_language(grammar, request_type)
        return grammar


def _with_explicit_classes(tag: Any) -> Any:
    """``tag``, changed: its regular expressions mean what they mean elsewhere."""
    for _, part in tag_parts(tag):
        if part.get("type") == "regex" and isinstance(part.get("pattern"), str):
            part["pattern"] = with_explicit_classes(part["pattern"])
    return tag


@contextlib.contextmanager
def _refusal_as_grammar_error(request_type: StructuredOutputOptions) -> Iterator[None]:
    try:
        yield
    except GrammarError:
        raise
    except (RuntimeError, ValueError, TypeError) as error:
        if "bad_alloc" in str(error):  # out of memory, which says nothing about the constraint
            raise MemoryError("xgrammar could not allocate the memory it needs") from error
        raise explain_refusal(_reason(error), request_type).as_error() from error


def _own_grammar(grammar: StructuredOutputGrammar) -> XgrammarGrammar:
    if not isinstance(grammar, XgrammarGrammar):
        raise TypeError(f"expected grammars that XgrammarBackend compiled, got a {type(grammar).__name__}")
    return grammar


def _choice_grammar(choices: list[str]) -> str:
    """A choice in GBNF. It has JSON's escapes except for surrogate pairs, so other
    characters are not escaped."""
    return "root ::= " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


def _reason(error: Exception) -> str:
    return _LOG_PREFIX.sub("", str(error).strip().split("\n")[0])
