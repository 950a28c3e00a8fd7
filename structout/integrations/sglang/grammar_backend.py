"""SGLang's grammar backend over :class:`structout.BackendSet`."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend, BaseGrammarObject, GrammarStats
from sglang.srt.constrained.torch_ops.token_filter_torch_ops import set_token_filter_torch

from structout.constraints.config import StructuredOutputsConfig
from structout.constraints.params import StructuredOutputsParams
from structout.errors import GrammarError
from structout.grammar.registry import BackendSet
from structout.grammar.vocabulary import Vocabulary
from structout.integrations.client_tags import as_parsers_read, current_structural_tag
from structout.integrations.sglang.grammar_cache import GrammarCache
from structout.integrations.sglang.grammar_object import RefusedGrammar, StructoutGrammar
from structout.ops.token_bitmask import allocate_token_bitmask

_ANY_JSON = "$$ANY$$"  # SGLang's key for JSON without a schema

_log = logging.getLogger("structout.integrations.sglang")


class StructoutGrammarBackend(BaseGrammarBackend):  # type: ignore[misc]  # mypy does not read SGLang
    """Compiles SGLang's constraints with whichever of structout's engines enforces them
    best.

    As with SGLang's own backends, a constraint that no engine enforces in full is
    served without what is not enforced. The log then names these parts. A constraint
    that is malformed, impossible or too large fails its own request.

    Args:
        tokenizer: the Hugging Face tokenizer of the model.
        vocab_size: the width of the model's lm_head.
        stop_token_ids: tokens that end a text. Default: the tokenizer's eos_token_id.
        config: limits, whitespace and compilation.
        whitespace_pattern: regular expression of the whitespace between two JSON
            tokens.

    Raises:
        ValueError: the bytes of the tokenizer's tokens cannot be determined.
    """

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int,
        stop_token_ids: Sequence[int] | None = None,
        config: StructuredOutputsConfig | None = None,
        whitespace_pattern: str | None = None,
    ):
        super().__init__()
        self._config = config or StructuredOutputsConfig()
        self._whitespace_pattern = whitespace_pattern
        self._vocabulary = Vocabulary.from_tokenizer(tokenizer, vocab_size, stop_token_ids)
        self._engines = BackendSet(self._vocabulary, self._config)
        self.executor = ThreadPoolExecutor(self._config.compile_workers, thread_name_prefix="structout-compile")
        self.cache = GrammarCache(self._config.cache_bytes)

    def prepare(self) -> None:
        """Make the engines now, not with the first request."""
        self._engines.prepare()

    def dispatch_json(self, key_string: str) -> BaseGrammarObject:
        if key_string == _ANY_JSON:
            return self._compile("json", json_object=True)
        return self._compile("json", json=key_string, whitespace_pattern=self._whitespace_pattern)

    def dispatch_regex(self, key_string: str) -> BaseGrammarObject:
        return self._compile("regex", regex=key_string)

    def dispatch_ebnf(self, key_string: str) -> BaseGrammarObject:
        return self._compile("ebnf", grammar=key_string)

    def dispatch_structural_tag(self, key_string: str) -> BaseGrammarObject:
        return self._compile("structural_tag", structural_tag=as_parsers_read(current_structural_tag(key_string)))

    def dispatch_fallback(self, key_type: str, key_string: str) -> BaseGrammarObject:
        return RefusedGrammar(f"structout knows no constraint of type {key_type!r}", is_permanent=True)

    def allocate_vocab_mask(self, vocab_size: int, batch_size: int, device: Any) -> torch.Tensor:
        """A bitmask for requests that have no grammar, but tokens to filter."""
        return allocate_token_bitmask(batch_size, self._vocabulary.size)

    move_vocab_mask = staticmethod(StructoutGrammar.move_vocab_mask)
    apply_vocab_mask = staticmethod(StructoutGrammar.apply_vocab_mask)

    @property
    def is_support_token_filter(self) -> bool:
        """True: SGLang may restrict the tokens of the reasoning (strict thinking)."""
        return True

    @staticmethod
    def set_token_filter(
        vocab_mask: torch.Tensor,
        token_ids: list[int],
        batch_idx: int,
        is_allowed: bool = True,
        reset_vocab_mask: bool = True,
    ) -> None:
        """Allow or disallow some tokens of a mask row, which is on the CPU."""
        set_token_filter_torch(
            vocab_mask, token_ids, batch_idx, is_allowed=is_allowed, reset_vocab_mask=reset_vocab_mask
        )

    def _compile(self, kind: str, **params: Any) -> BaseGrammarObject:
        """Compile a constraint; called from several threads. Never raises: SGLang would
        remember the failure for good."""
        try:
            constraint = StructuredOutputsParams(lenient=True, **params).constraint(self._config)
            compiled = self._engines.compile(constraint)
            backend = self._engines.backend(compiled.backend_name)
        except GrammarError as error:
            _log.info("refused a %s constraint: %s", kind, error)
            return RefusedGrammar(str(error), is_permanent=error.client_fault)
        except Exception as error:
            _log.exception("the compilation of a %s constraint crashed", kind)
            return RefusedGrammar(f"compilation failed: {error}", is_permanent=False)
        if compiled.weakened:
            _log.warning("a %s constraint is served without %s", kind, ", ".join(compiled.weakened))
        return StructoutGrammar(compiled, backend, GrammarStats(dispatch_type=kind))
