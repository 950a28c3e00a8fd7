"""The function with which SGLang makes the grammar backend, from its server's
settings."""

from collections.abc import Iterable
from typing import Any

from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend
from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarBackend
from sglang.srt.parser.reasoning_parser import ReasoningParser
from sglang.srt.runtime_context import get_serving

from structout import envs
from structout.constraints.config import StructuredOutputsConfig
from structout.integrations.sglang.grammar_backend import StructoutGrammarBackend
from structout.integrations.sglang.grammar_cache import GrammarCache


def create_grammar_backend(
    server_args: Any, tokenizer: Any, vocab_size: int, eos_token_ids: Iterable[int] | int | None
) -> BaseGrammarBackend:
    """Make the backend of one scheduler process.

    It honours ``--constrained-json-whitespace-pattern``,
    ``--constrained-json-disable-any-whitespace``,
    ``--constrained-json-max-whitespace-cnt``, ``--reasoning-parser``,
    ``--enable-strict-thinking`` and the environment variables ``STRUCTOUT_KEY_ORDER``
    and ``STRUCTOUT_COMPILE_TIMEOUT``.

    Args:
        server_args: ignored; the resolved settings are in SGLang's runtime context.
        tokenizer: the Hugging Face tokenizer of the model.
        vocab_size: the width of the model's lm_head.
        eos_token_ids: tokens that end a text. Default: the tokenizer's eos_token_id.
    """
    config = _config()
    stop_token_ids = [eos_token_ids] if isinstance(eos_token_ids, int) else sorted(eos_token_ids or ()) or None
    backend = StructoutGrammarBackend(
        tokenizer, vocab_size, stop_token_ids, config, get_serving().constrained_json_whitespace_pattern
    )
    backend.prepare()
    return _with_reasoning(backend, tokenizer, config)


def _config() -> StructuredOutputsConfig:
    """The config that the server's settings imply."""
    serving = get_serving()
    max_whitespace = serving.constrained_json_max_whitespace_cnt
    settings = {} if max_whitespace is None else {"max_whitespace": max_whitespace}
    return StructuredOutputsConfig(
        any_whitespace=not serving.constrained_json_disable_any_whitespace,
        key_order=envs.key_order(),
        compile_timeout=envs.compile_timeout(),
        **settings,
    )


def _with_reasoning(
    backend: StructoutGrammarBackend, tokenizer: Any, config: StructuredOutputsConfig
) -> BaseGrammarBackend:
    """The backend for constraints that apply after the reasoning, if the server has a
    reasoning parser. SGLang wraps only its own backends."""
    serving = get_serving()
    if not serving.reasoning_parser:
        return backend
    parser = ReasoningParser(model_type=serving.reasoning_parser, stream_reasoning=False, tokenizer=tokenizer)
    if not parser.detector.get_think_end_token_ids(tokenizer):
        return backend
    wrapped = ReasonerGrammarBackend(backend, parser, tokenizer, enable_strict_thinking=serving.enable_strict_thinking)
    wrapped.executor = backend.executor
    wrapped.cache = GrammarCache(config.cache_bytes)
    return wrapped
