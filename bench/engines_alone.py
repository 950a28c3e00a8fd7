"""structout, xgrammar and llguidance behind one interface; the latter two as their
documentation uses them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import xgrammar
from llguidance import LLMatcher, LLTokenizer

from structout import GrammarError, StructuredOutputManager, StructuredOutputsParams
from structout.grammar.vocabulary import Vocabulary

OWN_SCHEMAS = Path(__file__).parent.parent / "tests" / "data" / "schemas.jsonl"


class Refused(Exception):
    """The engine refuses the schema."""


class Engine(Protocol):
    name: str

    def compile(self, schema: Any) -> Any:
        """Return a matcher at its start, ready to fill a mask. Raises ``Refused``."""

    def accepts(self, matcher: Any, tokens: Sequence[int]) -> bool:
        """Return whether the tokens and then a stop token are accepted. Called once per
        matcher."""


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
        self.manager.add_request(request_id, StructuredOutputsParams(json=schema))
        try:
            self.manager.wait_ready(request_id)
        except GrammarError as error:
            self.manager.finish_request(request_id)
            raise Refused(str(error)) from error
        return request_id

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

    def compile(self, schema: Any) -> Any:
        try:
            return self._compiler.compile_json_schema(json.dumps(schema))
        except (RuntimeError, ValueError, TypeError) as error:
            raise Refused(str(error)) from error

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

    def accepts(self, matcher: Any, tokens: Sequence[int]) -> bool:
        return bool(matcher.deep_copy().consume_tokens([*tokens, self._stop]))


def engines(tokenizer: Any, vocab_size: int) -> list[Engine]:
    vocabulary = Vocabulary.from_tokenizer(tokenizer, vocab_size)
    return [cls(tokenizer, vocabulary) for cls in (StructoutAuto, XgrammarAlone, LlguidanceAlone)]


def read_cases(path: Path | None) -> list[dict[str, Any]]:
    """Read schemas with instances in MaskBench's format. Without a file, those of the
    tests."""
    return [json.loads(line) for line in (path or OWN_SCHEMAS).read_text().splitlines()]
