"""structout, its own engine, xgrammar and llguidance behind one interface; the latter
two as their documentation uses them."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import llguidance.torch
import xgrammar
from llguidance import LLMatcher, LLTokenizer

from structout import GrammarError, StructuredOutputManager, StructuredOutputsParams, allocate_token_bitmask
from structout.constraints.params import Constraint, StructuredOutputOptions
from structout.errors import GrammarErrorKind, GrammarLimitError
from structout.grammar.native.backend import NativeBackend
from structout.grammar.native.extension import core
from structout.grammar.native.json_schema import TextForm
from structout.grammar.vocabulary import Vocabulary

OWN_SCHEMAS = Path(__file__).parent.parent / "tests" / "corpus" / "schemas.jsonl"

Schemas = Mapping[str, Any] | None


class Refused(Exception):
    """The engine refuses the schema.

    Attributes:
        reason: the keyword at fault, or what kind of error it is. Empty for engines
            that give text only.
        is_impossible: whether that is because no text satisfies the schema.
    """

    def __init__(self, message: str, reason: str = "", *, is_impossible: bool = False):
        super().__init__(message)
        self.reason = reason
        self.is_impossible = is_impossible

    @classmethod
    def by(cls, error: GrammarError) -> "Refused":
        """The refusal by structout."""
        reason = error.limit if isinstance(error, GrammarLimitError) else error.keyword or error.kind.value
        return cls(str(error), reason, is_impossible=error.kind is GrammarErrorKind.IMPOSSIBLE)


class Walk(NamedTuple):
    """The calls of one text, step by step.

    Attributes:
        fill: computes the mask of the next token.
        accept: returns whether a token is accepted. A stop token ends the text.
    """

    fill: Callable[[], object]
    accept: Callable[[int], bool]


class Engine(Protocol):
    name: str

    @property
    def any_order(self) -> "Engine | None":
        """The same engine without an order of keys, where it keeps one."""

    def compile(self, schema: Any, schemas: Schemas = None) -> Any:
        """Return a matcher at its start, ready to fill a mask. Raises ``Refused``.

        Args:
            schema: a JSON schema.
            schemas: those that it may refer to by their URIs. Engines other than
                structout's own have no use for them.
        """

    def finish(self, matcher: Any) -> None:
        """Release the matcher."""

    def fill_first_mask(self, matcher: Any) -> None:
        """Compute the mask at the start. llguidance defers work until then."""

    def accepts(self, matcher: Any, tokens: Sequence[int]) -> bool:
        """Return whether the tokens and then a stop token are accepted. Raises
        ``Refused`` if the engine gives up."""

    def walk(self, matcher: Any) -> Walk | None:
        """Start a text. None where a step has no single call."""

    def memory_bytes(self, matcher: Any) -> int | None:
        """Return the memory of the compiled schema and its masks, if the engine tells
        it."""


class StructoutAuto:
    name = "structout"
    any_order: Engine | None = None

    def __init__(self, tokenizer: Any, vocabulary: Vocabulary):
        self._stop = vocabulary.stop_token_ids[0]
        self.manager = StructuredOutputManager(tokenizer, vocabulary.size)
        self.manager.warm_up([])
        self._num_requests = 0

    def compile(self, schema: Any, schemas: Schemas = None) -> str:
        """Return the id of a READY request."""
        self._num_requests += 1
        request_id = f"schema {self._num_requests}"
        try:
            self.manager.add_request(request_id, StructuredOutputsParams(json=schema, schemas=schemas, key_order="any"))
            self.manager.wait_ready(request_id)
        except GrammarError as error:
            self.manager.finish_request(request_id)
            raise Refused.by(error) from error
        return request_id

    def fill_first_mask(self, matcher: Any) -> None:
        self.manager.grammar_bitmask([matcher])

    def finish(self, matcher: Any) -> None:
        self.manager.finish_request(matcher)

    def accepts(self, matcher: Any, tokens: Sequence[int]) -> bool:
        text = f"{matcher}, a text"
        self.manager.fork(matcher, text)
        is_accepted = self.manager.accept_tokens(text, [*tokens, self._stop])
        self.manager.finish_request(text)
        return is_accepted

    def walk(self, matcher: Any) -> None:
        return None

    def memory_bytes(self, matcher: Any) -> None:
        return None


class FsmAlone:
    """structout's own engine, without a manager."""

    def __init__(self, vocabulary: Vocabulary, key_order: str):
        self.name = f"structout fsm, {key_order} order"
        self.any_order: Engine | None = None if key_order == "any" else FsmAlone(vocabulary, "any")
        self._stop = vocabulary.stop_token_ids[0]
        self._backend = NativeBackend(vocabulary, form=TextForm(key_order=key_order))
        self._row = allocate_token_bitmask(1, vocabulary.size, pin_memory=False)

    def compile(self, schema: Any, schemas: Schemas = None) -> Any:
        try:
            others = tuple((uri, json.dumps(other)) for uri, other in (schemas or {}).items())
            constraint = Constraint(StructuredOutputOptions.JSON, json.dumps(schema), schemas=others)
            return self._backend.compile(constraint).grammar
        except GrammarError as error:
            raise Refused.by(error) from error

    def fill_first_mask(self, matcher: Any) -> None:
        self.walk(matcher).fill()

    def finish(self, matcher: Any) -> None:
        pass

    def accepts(self, matcher: Any, tokens: Sequence[int]) -> bool:
        accept = self.walk(matcher).accept
        return all(accept(token) for token in [*tokens, self._stop])

    def walk(self, matcher: Any) -> Walk:
        native, address, row_bytes = matcher.copy().matcher, self._row.data_ptr(), self._row.shape[1] * 4

        def accept(token: int) -> bool:
            try:
                return bool(native.accept([token]))
            except core().LimitError as error:
                raise Refused(str(error), f"{error.args[0]}, in a text") from error

        def fill() -> None:
            try:
                core().fill_batch([native], address, row_bytes, [0])
            except core().LimitError as error:
                raise Refused(str(error), f"{error.args[0]}, in a mask") from error

        return Walk(fill, accept)

    def memory_bytes(self, matcher: Any) -> int:
        return int(matcher.memory_bytes)


class XgrammarAlone:
    """xgrammar on one thread and without a cache, because each schema is new."""

    name = "xgrammar"
    any_order: Engine | None = None

    def __init__(self, tokenizer: Any, vocabulary: Vocabulary):
        self._stop = vocabulary.stop_token_ids[0]
        self._info = xgrammar.TokenizerInfo.from_huggingface(
            tokenizer, vocab_size=vocabulary.size, stop_token_ids=list(vocabulary.stop_token_ids)
        )
        self._compiler = xgrammar.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)
        self._bitmask = allocate_token_bitmask(1, vocabulary.size, pin_memory=False)

    def compile(self, schema: Any, schemas: Schemas = None) -> Any:
        try:
            return self._compiler.compile_json_schema(json.dumps(schema))
        except (RuntimeError, ValueError, TypeError) as error:
            raise Refused(str(error)) from error

    def fill_first_mask(self, matcher: Any) -> None:
        xgrammar.GrammarMatcher(matcher).fill_next_token_bitmask(self._bitmask, 0)

    def finish(self, matcher: Any) -> None:
        pass

    def accepts(self, matcher: Any, tokens: Sequence[int]) -> bool:
        state = xgrammar.GrammarMatcher(matcher)
        return all(state.accept_token(token) for token in [*tokens, self._stop])

    def walk(self, matcher: Any) -> Walk:
        state = xgrammar.GrammarMatcher(matcher)
        return Walk(lambda: state.fill_next_token_bitmask(self._bitmask, 0), state.accept_token)

    def memory_bytes(self, matcher: Any) -> int:
        return int(matcher.memory_size_bytes)


class LlguidanceAlone:
    name = "llguidance"
    any_order: Engine | None = None

    def __init__(self, tokenizer: Any, vocabulary: Vocabulary):
        from llguidance.hf import from_tokenizer

        self._stop = vocabulary.stop_token_ids[0]
        self._tokenizer: LLTokenizer = from_tokenizer(tokenizer, n_vocab=vocabulary.size)
        self._bitmask = allocate_token_bitmask(1, vocabulary.size, pin_memory=False)

    def compile(self, schema: Any, schemas: Schemas = None) -> Any:
        if isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        try:
            grammar = LLMatcher.grammar_from_json_schema(schema)
        except ValueError as error:  # some integers
            raise Refused(str(error)) from error
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise Refused(matcher.get_error())
        return matcher

    def fill_first_mask(self, matcher: Any) -> None:
        matcher.compute_bitmask()

    def finish(self, matcher: Any) -> None:
        pass

    def accepts(self, matcher: Any, tokens: Sequence[int]) -> bool:
        return bool(matcher.deep_copy().consume_tokens([*tokens, self._stop]))

    def walk(self, matcher: Any) -> Walk:
        state = matcher.deep_copy()
        fill = partial(llguidance.torch.fill_next_token_bitmask, state, self._bitmask, 0)

        def accept(token: int) -> bool:
            if state.is_stopped():  # where nothing but a stop token can follow, it takes none
                return token == self._stop and bool(state.is_accepting())
            return bool(state.consume_tokens([token]))

        return Walk(fill, accept)

    def memory_bytes(self, matcher: Any) -> None:
        return None


def engines(tokenizer: Any, vocab_size: int) -> list[Engine]:
    vocabulary = Vocabulary.from_tokenizer(tokenizer, vocab_size)
    return [cls(tokenizer, vocabulary) for cls in (StructoutAuto, XgrammarAlone, LlguidanceAlone)]


def fsm_engines(tokenizer: Any, vocab_size: int) -> list[Engine]:
    """structout's own engine, with each order of keys."""
    vocabulary = Vocabulary.from_tokenizer(tokenizer, vocab_size)
    return [FsmAlone(vocabulary, key_order) for key_order in ("any", "declared")]


def read_cases(path: Path | None) -> list[dict[str, Any]]:
    """Read schemas with instances in MaskBench's format: a file with one of them a
    line, or a folder of files. Without a path, those of the tests."""
    if path is not None and path.is_dir():
        cases = [{"tests": []} | json.loads(file.read_text()) for file in sorted(path.glob("*.json"))]
    else:
        cases = [json.loads(line) for line in (path or OWN_SCHEMAS).read_text().splitlines()]
        cases = [case for case in cases if "tests" in case]
    if not cases:
        raise SystemExit(f"{path} has no schemas")
    return cases
