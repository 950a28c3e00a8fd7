"""Texts from prompts in one call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from structout.constraints.params import StructuredOutputsParams
from structout.constraints.tools.definitions import read_tools
from structout.integrations.transformers.custom_generate import masked_generate
from structout.integrations.transformers.decode import Monitor
from structout.integrations.transformers.manager_cache import new_request_id, shared_manager
from structout.jump_forward import JumpForward
from structout.scheduler.manager import StructuredOutputManager

_DEFAULT_MAX_NEW_TOKENS = 512


@dataclass(frozen=True)
class Usage:
    """The tokens of one text, with OpenAI's names.

    Attributes:
        prompt_tokens: of the prompt.
        completion_tokens: of the text, with its stop token if it has one.
    """

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Generation:
    """The texts of one call of :func:`generate`.

    Attributes:
        texts: in the order of the prompts; with ``num_return_sequences=k`` each prompt
            has k consecutive ones. Special tokens inside are written as their names.
        token_ids: the tokens of each text, without its stop token.
        is_complete: for each text whether it ended with a stop token. If not, it ran
            out of tokens, and is only the beginning of a valid text.
        finish_reasons: for each text why it ended, with OpenAI's names: "stop",
            "tool_calls" if it calls ``tools``, or "length" if it is not complete.
        usage: the tokens of each text.
        weakened: parts of the constraint that are not enforced, see
            ``StructuredOutputManager.weakened``.
        annotations: parts of the constraint that constrain nothing by definition, see
            ``StructuredOutputManager.annotations``.
        params: the constraint.
    """

    texts: list[str]
    token_ids: list[list[int]]
    is_complete: list[bool]
    finish_reasons: list[str]
    usage: list[Usage]
    weakened: tuple[str, ...]
    annotations: tuple[str, ...]
    params: StructuredOutputsParams = field(repr=False)

    @cached_property
    def parsed(self) -> list[Any]:
        """Each text read back by ``StructuredOutputsParams.parse``: values of the type
        that was given as ``json`` or ``choice``, parsed JSON, the calls of ``tools``,
        or the text itself. None for texts that are not complete.

        Raises:
            ValueError: a validator of the type refuses a text.
        """
        texts = zip(self.texts, self.is_complete, strict=True)
        return [self.params.parse(text) if is_complete else None for text, is_complete in texts]


def generate(
    model: Any,
    tokenizer: Any,
    prompts: Any,
    *,
    json: Any = None,
    regex: str | None = None,
    choice: Any = None,
    grammar: str | None = None,
    structural_tag: dict[str, Any] | str | None = None,
    tools: Sequence[Any] | None = None,
    schemas: Mapping[str, Any] | None = None,
    key_order: str | None = None,
    formats: str | None = None,
    params: StructuredOutputsParams | None = None,
    manager: StructuredOutputManager | None = None,
    num_return_sequences: int = 1,
    seed: int = 0,
    jump_forward: JumpForward | str = JumpForward.OFF,
    device_fsm: bool = False,
    monitor: Monitor | None = None,
    **generation_kwargs: Any,
) -> Generation:
    """Generate texts that satisfy one constraint, as one batch.

    Exactly one of ``json``, ``regex``, ``choice``, ``grammar``, ``structural_tag``,
    ``tools`` and ``params`` must be given.

    Args:
        model: a transformers causal LM.
        tokenizer: its tokenizer.
        prompts: a string, a list of token ids, or a list of chat messages (dicts with
            ``role`` and ``content``, for the tokenizer's chat template); or a list of
            such prompts.
        json: a type or a JSON Schema, see :class:`structout.StructuredOutputsParams`.
        regex: as in ``StructuredOutputsParams``.
        choice: as in ``StructuredOutputsParams``.
        grammar: as in ``StructuredOutputsParams``.
        structural_tag: as in ``StructuredOutputsParams``.
        tools: as in ``StructuredOutputsParams``, in hermes' format, with text between
            calls; ``params`` has further options. Prompts that are chat messages get
            the tools through the chat template.
        schemas: other schemas by their URIs, which ``json`` refers to.
        key_order: as in ``StructuredOutputsParams``; not with ``params``.
        formats: the same.
        params: a constraint with further options.
        manager: made for this tokenizer and lm_head. Default: one that later calls with
            the same tokenizer share, so that a constraint compiles once.
        num_return_sequences: texts for each prompt.
        seed: any integer of 64 bits. The same seed draws the same texts.
        jump_forward: see :func:`masked_generate`.
        device_fsm: see :func:`masked_generate`.
        monitor: see :func:`masked_generate`.
        **generation_kwargs: arguments of ``model.generate``: ``do_sample``,
            ``temperature``, ``top_p``, ``max_new_tokens`` (default: 512, or what the
            model's positions leave) and others.

    Raises:
        GrammarError: the constraint is bad.
        ValueError: the model has too few positions, a prompt is empty, or an option is
            not supported, see :func:`masked_generate`.
        DeadEndError: the grammar has no way on, or nothing can be drawn from a row.
    """
    if params is None:
        params = StructuredOutputsParams(
            json=json,
            regex=regex,
            choice=choice,
            grammar=grammar,
            structural_tag=structural_tag,
            tools=tools,
            schemas=schemas,
            key_order=key_order,
            formats=formats,
        )
    elif any(given is not None for given in (json, regex, choice, grammar, structural_tag, tools, schemas)):
        raise ValueError(
            "expected one of json, regex, choice, grammar, structural_tag, tools and params, got params and another"
        )
    elif (key_order, formats) != (None, None):
        name = "formats" if key_order is None else "key_order"
        raise ValueError(f"{name} does not go with params: give params its own {name}")
    params.validate(None if manager is None else manager.config)
    unsupported = [name for name in ("streamer", "assistant_model") if generation_kwargs.get(name) is not None]
    if unsupported:
        raise ValueError(f"generate does not support {', '.join(unsupported)}: see masked_generate for streams")
    if num_return_sequences < 1:
        raise ValueError(f"num_return_sequences must be at least 1, got {num_return_sequences}")
    jump_forward = JumpForward(jump_forward)
    described_tools = None if params.tools is None else [tool.as_dict for tool in read_tools(params.tools)]
    prompt_ids = [ids for ids in _prompt_ids(tokenizer, prompts, described_tools) for _ in range(num_return_sequences)]
    longest = max(map(len, prompt_ids))
    if not {"max_new_tokens", "max_length", "generation_config"} & generation_kwargs.keys():
        room = (max_positions(model) or longest + _DEFAULT_MAX_NEW_TOKENS) - longest
        generation_kwargs["max_new_tokens"] = min(_DEFAULT_MAX_NEW_TOKENS, room)
    _check_positions(model, longest, generation_kwargs.get("max_new_tokens"))

    if manager is None:
        manager = shared_manager(tokenizer, model.get_output_embeddings().weight.shape[0])
    request_ids = [new_request_id("generate") for _ in prompt_ids]
    try:
        for request_id in request_ids:
            manager.add_request(request_id, params)
        manager.wait_ready(request_ids[0])
        padding = manager.vocabulary.stop_token_ids[0]
        input_ids, attention_mask = _left_padded(prompt_ids, padding)
        generated = model.generate(
            input_ids=input_ids.to(model.device),
            attention_mask=attention_mask.to(model.device),
            custom_generate=masked_generate,
            manager=manager,
            request_ids=request_ids,
            seed=seed,
            jump_forward=jump_forward,
            device_fsm=device_fsm,
            monitor=monitor,
            **({"pad_token_id": padding} | generation_kwargs),
        )[:, longest:].tolist()
        is_complete = [manager.is_terminated(request_id) for request_id in request_ids]
        lengths = [manager.num_tokens(request_id) for request_id in request_ids]
        return _generation(manager, request_ids[0], params, prompt_ids, generated, lengths, is_complete)
    finally:
        for request_id in request_ids:
            manager.finish_request(request_id)


def max_positions(model: Any) -> int | None:
    """The number of positions of a transformers model, None if its config has no
    limit."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def _generation(
    manager: StructuredOutputManager,
    request_id: str,
    params: StructuredOutputsParams,
    prompt_ids: Sequence[Sequence[int]],
    generated: Sequence[Sequence[int]],
    lengths: Sequence[int],
    is_complete: list[bool],
) -> Generation:
    with_stops = [ids[:length] for ids, length in zip(generated, lengths, strict=True)]
    token_ids = [list(ids[: len(ids) - ends]) for ids, ends in zip(with_stops, is_complete, strict=True)]
    texts = [manager.vocabulary.text_of(ids, with_names=True) for ids in token_ids]
    return Generation(
        texts=texts,
        token_ids=token_ids,
        is_complete=is_complete,
        finish_reasons=[_finish_reason(params, *each) for each in zip(texts, is_complete, strict=True)],
        usage=[Usage(*map(len, ids)) for ids in zip(prompt_ids, with_stops, strict=True)],
        weakened=manager.weakened(request_id),
        annotations=manager.annotations(request_id),
        params=params,
    )


def _finish_reason(params: StructuredOutputsParams, text: str, is_complete: bool) -> str:
    if not is_complete:
        return "length"
    return "tool_calls" if params.tools is not None and params.parse_tool_calls(text) else "stop"


def _check_positions(model: Any, num_prompt_tokens: int, max_new_tokens: int | None) -> None:
    limit = max_positions(model)
    if limit is not None and max_new_tokens is not None and num_prompt_tokens + max_new_tokens > limit:
        raise ValueError(
            f"a prompt of {num_prompt_tokens:,} tokens and max_new_tokens={max_new_tokens:,} need "
            f"{num_prompt_tokens + max_new_tokens:,} positions, but the model has {limit:,}: "
            "shorten the prompt or lower max_new_tokens"
        )


def _prompt_ids(tokenizer: Any, prompts: Any, tools: list[dict[str, Any]] | None) -> list[list[int]]:
    """The tokens of each prompt."""
    is_single = isinstance(prompts, str) or all(isinstance(part, int | dict) for part in prompts)
    prompt_ids = [_tokens_of(tokenizer, prompt, tools) for prompt in ([prompts] if is_single else prompts)]
    if not prompt_ids or not all(prompt_ids):
        raise ValueError("a prompt has no tokens: give each at least one")
    return prompt_ids


def _tokens_of(tokenizer: Any, prompt: Any, tools: list[dict[str, Any]] | None) -> list[int]:
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    if all(isinstance(part, int) for part in prompt):
        return list(prompt)
    text = tokenizer.apply_chat_template(prompt, tools=tools, add_generation_prompt=True, tokenize=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _left_padded(rows: Sequence[Sequence[int]], padding: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and attention mask, both int64 ``[N, longest]``."""
    width = max(map(len, rows))
    token_ids = [[*[padding] * (width - len(row)), *row] for row in rows]
    mask = [[*[0] * (width - len(row)), *[1] * len(row)] for row in rows]
    return torch.tensor(token_ids), torch.tensor(mask)
