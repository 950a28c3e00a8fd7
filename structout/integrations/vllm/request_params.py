"""vLLM's constraints as structout's, and their validation in vLLM's frontend."""

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase
from vllm.exceptions import VLLMValidationError

from structout import envs
from structout.constraints import exact_json
from structout.constraints.config import StructuredOutputsConfig
from structout.constraints.grammar_texts import is_gbnf
from structout.constraints.params import StructuredOutputsParams
from structout.errors import GrammarError
from structout.grammar.mistral import mistral_tokenizer
from structout.grammar.registry import check_params
from structout.integrations.client_tags import as_parsers_read, current_structural_tag
from structout.integrations.vllm import custom_tools

_log = logging.getLogger("vllm.structout")

# structout's backends by vLLM's names.
_BACKENDS = {"auto": "auto", "xgrammar": "xgrammar", "guidance": "auto"}

# In the extra_args of SamplingParams.
_KEY_ORDER = "structout_key_order"
_FIT = "structout_fit"


def serves(structured_outputs_config: Any, tokenizer: Any) -> bool:
    """True if structout serves the backend that vLLM is configured with, and can read
    the model's tokenizer."""
    is_read = isinstance(tokenizer, PreTrainedTokenizerBase) or mistral_tokenizer(tokenizer) is not None
    return structured_outputs_config.backend in _BACKENDS and is_read


def manager_config(structured_outputs_config: Any, **arguments: Any) -> StructuredOutputsConfig:
    """The manager's config for vLLM's ``StructuredOutputsConfig``."""
    any_whitespace = not structured_outputs_config.disable_any_whitespace
    return StructuredOutputsConfig(
        any_whitespace=any_whitespace,
        max_whitespace=envs.max_whitespace(),
        key_order=envs.key_order(),
        additional_properties="closed" if structured_outputs_config.disable_additional_properties else "schema",
        compile_timeout=envs.compile_timeout(),
        **arguments,
    )


def params_of(
    constraint: Any, structured_outputs_config: Any, tokenizer: Any, sampling_params: Any = None
) -> StructuredOutputsParams:
    """structout's params for vLLM's.

    Args:
        constraint: a ``vllm.sampling_params.StructuredOutputsParams``.
        structured_outputs_config: vLLM's ``StructuredOutputsConfig``.
        tokenizer: the model's.
        sampling_params: those of the request. Their ``extra_args``, ``vllm_xargs`` in
            vLLM's API, may have a ``structout_key_order`` and a ``structout_fit``.
    """
    backend = _BACKENDS[structured_outputs_config.backend]
    whitespace_pattern = constraint.whitespace_pattern if constraint.json is not None else None
    is_lark = constraint.grammar is not None and not is_gbnf(constraint.grammar)
    tag = current_structural_tag(constraint.structural_tag)
    has_lark_input = custom_tools.has_lark_input(tag)
    if is_lark or has_lark_input or whitespace_pattern is not None:  # which vLLM takes and xgrammar does not
        backend = "auto"
    reasoning_parser = structured_outputs_config.reasoning_parser
    if tag is not None and backend == "auto":  # xgrammar ignores the bounds of strings that exclude texts
        tag = as_parsers_read(tag, _reasoning_marks(reasoning_parser, tokenizer) if reasoning_parser else ())
        tag = custom_tools.with_grammars(tag) if has_lark_input else tag
    has_schemas = any(part is not None for part in (constraint.json, constraint.grammar, tag))
    extra = getattr(sampling_params, "extra_args", None) or {}
    return StructuredOutputsParams(
        json=constraint.json,
        regex=constraint.regex,
        choice=constraint.choice,
        grammar=constraint.grammar,
        json_object=bool(constraint.json_object),
        structural_tag=tag,
        whitespace_pattern=whitespace_pattern,
        backend=backend,
        lenient=not envs.vllm_strict(),
        key_order=extra.get(_KEY_ORDER),
        additional_properties="closed" if has_schemas and constraint.disable_additional_properties else None,
        fit=extra.get(_FIT, "on"),
    )


def limit_of(sampling_params: Any) -> int | None:
    """The tokens within which the text of a request has to end. None if it has no
    limit, or if vLLM lets no stop token end it."""
    limit: int | None = None if sampling_params is None else sampling_params.max_tokens
    if limit is None or sampling_params.ignore_eos or sampling_params.min_tokens >= limit:
        return None
    return limit


@lru_cache(maxsize=8)
def _reasoning_marks(parser: str, tokenizer: Any) -> tuple[str, ...]:
    """The texts that begin and end a reasoning for one of vLLM's parsers, such as
    ``<think>`` and ``</think>``."""
    from vllm.reasoning import ReasoningParserManager

    reader = ReasoningParserManager.get_reasoning_parser(parser)(tokenizer)
    return tuple(mark for mark in (reader.reasoning_start_str, reader.reasoning_end_str) if mark)


def validating(validate: Callable[..., None]) -> Callable[..., None]:
    """Make the replacement of ``SamplingParams._validate_structured_outputs``."""

    def validate_structured_outputs(self: Any, model_config: Any, config: Any, tokenizer: Any) -> None:
        constraint = self.structured_outputs
        is_ours = config is not None and constraint is not None and serves(config, tokenizer)
        if not is_ours or model_config.is_diffusion:  # vLLM refuses these models' requests
            tag = None if constraint is None else current_structural_tag(constraint.structural_tag)
            if custom_tools.has_lark_input(tag):
                raise VLLMValidationError("only structout enforces Lark grammars of custom tools: use the backend auto")
            validate(self, model_config, config, tokenizer)
            return
        try:
            params = params_of(constraint, config, tokenizer, self)
            limit = limit_of(self)
            weakened = check_params(params, manager_config(config), tokenizer=tokenizer, max_tokens=limit)
        except GrammarError as error:
            raise VLLMValidationError(str(error)) from None
        if params.backend == "xgrammar":
            validate(self, model_config, config, tokenizer)  # asks xgrammar itself
            return
        if weakened:
            _log_weakened(weakened)
        # vLLM requires the name of one of its own backends; GrammarManager ignores it.
        constraint._backend = "xgrammar" if config.backend == "auto" else config.backend
        constraint._backend_was_auto = config.backend == "auto"

    return validate_structured_outputs


def checking_tags(validate: Callable[..., None]) -> Callable[..., None]:
    """Make the replacement of ``validate_structural_tag_payload``, in which xgrammar
    checks the structural tags that clients send."""

    def validate_structural_tag_payload(payload: Any, *, parameter: str) -> None:
        try:
            tag = current_structural_tag(payload)
            check_params(StructuredOutputsParams(structural_tag=tag, lenient=not envs.vllm_strict()))
        except GrammarError as error:
            try:
                validate(payload, parameter=parameter)  # the engine may have a backend that takes more
            except VLLMValidationError:
                message = f"Invalid {parameter} structural_tag specification: {error}"
                raise VLLMValidationError(message, parameter=parameter) from None

    return validate_structural_tag_payload


def supporting(_: Callable[..., bool]) -> Callable[..., bool]:
    """Make the replacement of ``_xgrammar_supports``, which decides whether tools may
    stand beside a ``response_format``: both are one structural tag then."""

    def supports(constraint: Any) -> bool:
        try:
            tag = {"type": "structural_tag", "format": _format_of(constraint)}
            params = StructuredOutputsParams(structural_tag=tag, lenient=not envs.vllm_strict())
            check_params(params)
        except GrammarError as error:
            _log.info("tool calls cannot stand beside the constraint: %s", error)
            return False
        return True

    return supports


def formatting(to_format: Callable[..., Any]) -> Callable[..., Any]:
    """Make the replacement of ``structured_outputs_to_format``, in which xgrammar
    translates Lark."""

    def structured_outputs_to_format(constraint: Any) -> Any:
        if constraint.grammar is None:
            return to_format(constraint)
        from xgrammar.structural_tag import GrammarFormat  # vLLM's own type of a format

        return GrammarFormat(grammar=constraint.grammar)

    return structured_outputs_to_format


def _format_of(constraint: Any) -> Any:
    """A constraint as a format of structural tags."""
    if constraint.structural_tag is not None:
        return current_structural_tag(constraint.structural_tag)["format"]
    if constraint.json is not None or constraint.json_object:
        schema = {"type": "object"} if constraint.json is None else constraint.json
        return {"type": "json_schema", "json_schema": exact_json.loads(schema) if isinstance(schema, str) else schema}
    if constraint.regex is not None:
        return {"type": "regex", "pattern": constraint.regex}
    if constraint.choice is not None:
        return {"type": "or", "elements": [{"type": "const_string", "value": choice} for choice in constraint.choice]}
    return {"type": "grammar", "grammar": constraint.grammar}


@lru_cache(maxsize=1024)  # one line for each kind of constraint
def _log_weakened(weakened: tuple[str, ...]) -> None:
    _log.warning(
        "a constraint is not enforced in full: %s; STRUCTOUT_VLLM_STRICT=1 refuses such constraints",
        ", ".join(weakened),
    )
