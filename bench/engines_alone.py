"""structout, xgrammar and llguidance behind one interface; the latter two as their
documentation uses them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import xgrammar
from llguidance import LLMatcher, LLTokenizer

from structout import GrammarError, StructuredOutputManager, StructuredOutputsParams, allocate_token_bitmask
from structout.grammar.vocabulary import Vocabulary

OWN_SCHEMAS = Path(__file__).parent.parent / "tests" / "data" / "schemas.jsonl"


class Refused(Exception):
    """The engine refuses the schema.

    Attributes:
        reason: the keyword at fault, or what kind of error it is. Empty for engines
            that give text only.
    """

    def __init__(self, message: str, reason: str = ""):
        super().__init__(message)
        self.reason = reason


class Engine(Protocol):
    name: str

    def compile(self, schema: Any) -> Any:
        """Return a matcher at its start, ready to fill a mask. Raises ``Refused``."""

    def finish(self, matcher: Any) -> None:
        """Release the matcher."""

    def fill_first_mask(self, matcher: Any) -> None:
        """Compute the mask at the start. llguidance defers work until then."""

    def accepts(self, matcher: Any, tokens: Sequence[int]) -> bool:
        """Return whether the tokens and then a stop token are accepted."""


class StructoutAuto:
    name = "structout"

    def __init__(self, tokenizer: Any, vocabulary: Vocabulary):
        self._stop = vocabulary.stop_token_ids[0]
        self.manager = StructuredOutputManager(tokenizer, vocabulary.size)
        self.manager.warm_up([])
        self._num_requests = 0

    def compile(self, schema: Any) -> str:
        """Return the id of a READY request."""
        self._num_requests += 1
        request_id = f"schema {self._num_requests}"
        try:
            self.manager.add_request(request_id, StructuredOutputsParams(json=schema))
            self.manager.wait_ready(request_id)
        except GrammarError as error:
            self.manager.finish_request(request_id)
            raise Refused(str(error), error.keyword or error.kind.value) from error
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


class XgrammarAlone:
    """xgrammar on one thread and without a cache, because each schema is new."""

    name = "xgrammar"

    def __init__(self, tokenizer: Any, vocabulary: Vocabulary):
        self._stop = vocabulary.stop_token_ids[0]
        self._info = xgrammar.TokenizerInfo.from_huggingface(
            tokenizer, vocab_size=vocabulary.size, stop_token_ids=list(vocabulary.stop_token_ids)
        )
        self._compiler = xgrammar.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)
        self._bitmask = allocate_token_bitmask(1, vocabulary.size, pin_memory=False)

    def compile(self, schema: Any) -> Any:
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


class LlguidanceAlone:
    name = "llguidance"

    def __init__(self, tokenizer: Any, vocabulary: Vocabulary):
        from llguidance.hf import from_tokenizer

        self._stop = vocabulary.stop_token_ids[0]
        self._tokenizer: LLTokenizer = from_tokenizer(tokenizer, n_vocab=vocabulary.size)

    def compile(self, schema: Any) -> Any:
        if isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        matcher = LLMatcher(self._tokenizer, LLMatcher.grammar_from_json_schema(schema), log_level=0)
        if matcher.is_error():
            raise Refused(matcher.get_error())
        return matcher

    def fill_first_mask(self, matcher: Any) -> None:
        matcher.compute_bitmask()

    def finish(self, matcher: Any) -> None:
        pass

    def accepts(self, matcher: Any, tokens: Sequence[int]) -> bool:
        return bool(matcher.deep_copy().consume_tokens([*tokens, self._stop]))


def engines(tokenizer: Any, vocab_size: int) -> list[Engine]:
    vocabulary = Vocabulary.from_tokenizer(tokenizer, vocab_size)
    return [cls(tokenizer, vocabulary) for cls in (StructoutAuto, XgrammarAlone, LlguidanceAlone)]


def read_cases(path: Path | None) -> list[dict[str, Any]]:
    """Read schemas with instances in MaskBench's format: a file with one of them a
    line, or a folder of files. Without a path, those of the tests."""
    if path is not None and path.is_dir():
        return [{"tests": []} | json.loads(file.read_text()) for file in sorted(path.glob("*.json"))]
    return [json.loads(line) for line in (path or OWN_SCHEMAS).read_text().splitlines()]
