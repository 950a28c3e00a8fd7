"""llguidance (https://github.com/guidance-ai/llguidance) as a judge: the masks and
texts of a constraint."""

import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer, regex_to_lark

from structout.constraints.params import StructuredOutputOptions
from structout.grammar.vocabulary import Vocabulary
from structout.masks.bitmask import bitmask_width

_COMPACT_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Without this, a mask shows only the first of the tokens that llguidance would force,
# which is narrower than what it accepts.
_NO_FORCING = '%llguidance {"no_forcing": true}\n'


class LlguidanceGrammar:
    """The position of one text in a constraint, with the methods of structout's
    interface that judges need.

    Args:
        matcher: llguidance's, at the start. It sees no stop token.
        vocabulary: of the backend.
    """

    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary):
        self.vocab_size = vocabulary.size
        self._matcher = matcher
        self._stop = vocabulary.stop_token_ids[0]
        self._is_terminated = False

    def mask(self) -> npt.NDArray[np.int32]:
        mask = np.empty(bitmask_width(self.vocab_size), dtype=np.int32)
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        assert not self._matcher.is_error(), self._matcher.get_error()
        return mask

    def accept_tokens(self, request_id: str, tokens: Sequence[int]) -> bool:
        return all(map(self._accept, tokens))

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        text = tokens[: tokens.index(self._stop)] if self._stop in tokens else tokens
        num_accepted = self._matcher.try_consume_tokens(text)
        is_text = num_accepted == len(text) and self._matcher.is_accepting()
        assert self._matcher.rollback(num_accepted), self._matcher.get_error()
        return tokens if is_text else tokens[:num_accepted]

    def is_terminated(self) -> bool:
        return self._is_terminated

    def _accept(self, token: int) -> bool:
        if token != self._stop:
            return bool(self._matcher.try_consume_tokens([token]))
        self._is_terminated = self._matcher.is_accepting()
        return self._is_terminated


class LlguidanceBackend:
    """Compiles constraints for one vocabulary. JSON has no whitespace but one space
    after ``,`` and ``:``."""

    def __init__(self, vocabulary: Vocabulary):
        self._tokenizer = LLTokenizer(_Tokenizer(vocabulary), eos_token=list(vocabulary.stop_token_ids))
        self._vocabulary = vocabulary

    def compile_grammar(self, kind: StructuredOutputOptions, spec: str) -> LlguidanceGrammar:
        lark, others = spec, []
        if kind is StructuredOutputOptions.REGEX:
            lark = f"start: /{regex_to_lark(spec, '')}/"
        elif kind is StructuredOutputOptions.JSON:
            schema = {**json.loads(spec), "x-guidance": _COMPACT_JSON}
            lark, others = "start: @json", [{"name": "json", "json_schema": schema}]
        grammars = [{"lark_grammar": _NO_FORCING + lark}, *others]
        matcher = LLMatcher(self._tokenizer, json.dumps({"grammars": grammars}), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        return LlguidanceGrammar(matcher, self._vocabulary)


class _Tokenizer:
    """The interface that LLTokenizer expects of a tokenizer. Tokens without bytes are
    never allowed."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids = ()

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self.eos_token_id = vocabulary.stop_token_ids[0]
        self.tokens = list(vocabulary.token_bytes)
        for stop in vocabulary.stop_token_ids:
            self.tokens[stop] = b""

    def __call__(self, text: str) -> list[int]:
        return self._vocabulary.spell(text) or []
