"""Texts from prompts in one call."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, Literal

import torch

from structout.constraints.config import StructuredOutputsConfig
from structout.constraints.params import StructuredOutputsParams
from structout.integrations.request_ids import new_request_id
from structout.integrations.transformers.confidence import Confidence, confidence_of
from structout.integrations.transformers.custom_generate import masked_generate
from structout.integrations.transformers.decode import Monitor, Text
from structout.integrations.transformers.manager_cache import shared_manager
from structout.integrations.transformers.prompts import list_of_prompts, tokens_of
from structout.jump_forward import JumpForward
from structout.scheduler.manager import StructuredOutputManager

_DEFAULT_MAX_NEW_TOKENS = 512
_END_OF_PROMPT = 64  # tokens, which have the mark of a reasoning if the prompt ends with it


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
        is_complete: for each text whether it is whole: it ended with a stop token, or
            met its limit where it may end. If not, it is only the beginning of a valid
            text. That happens with ``fit="off"``, to free texts, to constraints of
            other engines and under stopping criteria.
        finish_reasons: for each text why it ended, with OpenAI's names: "length" if its
            limit or a stopping criterion cut it off where it is not whole (with
            ``fit="off"``: where it might have gone on), "tool_calls" if it calls
            ``tools``, else "stop".
        usage: the tokens of each text.
        fitted: for each text whether its limit has forbidden a token, so that it ends
            in time. Without the limit it might be another text.
        weakened: parts of the constraints that are not enforced, see
            ``StructuredOutputManager.compiled``.
        annotations: parts of the constraints that constrain nothing by definition, see
            ``StructuredOutputManager.compiled``.
        params: the constraint of each text, None for free ones.
    """

    texts: list[str]
    token_ids: list[list[int]]
    is_complete: list[bool]
    finish_reasons: list[str]
    usage: list[Usage]
    fitted: list[bool]
    weakened: tuple[str, ...]
    annotations: tuple[str, ...]
    params: list[StructuredOutputsParams | None] = field(repr=False)
    confidence: list[Confidence] | None = None

    @cached_property
    def parsed(self) -> list[Any]:
        """Each text read back by ``StructuredOutputsParams.parse``: values of the type
        passed as ``json`` or ``choice``, parsed JSON, the calls of ``tools``, or the
        text itself. None for texts that are not complete.

        Raises:
            ValueError: a validator of the type refuses a text.
        """
        texts = zip(self.params, self.texts, self.is_complete, strict=True)
        return [_parsed(params, text) if is_complete else None for params, text, is_complete in texts]

    def only(self, indices: Sequence[int]) -> "Generation":
        """The texts of these indices alone."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        lists = {name: value for name, value in values.items() if isinstance(value, list)}
        chosen: dict[str, Any] = {name: [value[i] for i in indices] for name, value in lists.items()}
        return replace(self, **chosen)


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
    additional_properties: str | None = None,
    fit: Literal["on", "exact", "off"] | None = None,
    params: StructuredOutputsParams | Sequence[StructuredOutputsParams | None] | None = None,
    describe: bool = False,
    confidence: bool = False,
    select: Literal["best", "resample"] | None = None,
    manager: StructuredOutputManager | None = None,
    num_return_sequences: int = 1,
    seed: int = 0,
    jump_forward: JumpForward | str = JumpForward.OFF,
    device_fsm: bool = False,
    streamer: Any = None,
    monitor: Monitor | None = None,
    **generation_kwargs: Any,
) -> Generation:
    """Generate texts that satisfy a constraint, as one batch.

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
        tools: as in ``StructuredOutputsParams``, with text between calls; ``params``
            has further options. Calls are written as the chat template writes them,
            unless ``params`` name a format. Prompts that are chat messages get the
            tools through the template, too. A template that ignores them causes a
            warning: see ``describe``.
        schemas: other schemas by their URIs, which ``json`` refers to.
        key_order: as in ``StructuredOutputsParams``; not with ``params``.
        formats: the same.
        additional_properties: the same.
        fit: the same, also with ``params``. By default each text ends within
            ``max_new_tokens``, and a constraint whose shortest text is longer is
            refused.
        params: a constraint with further options; or a list of one for each prompt,
            None for a prompt whose answer is free.
        describe: whether the system message of chat prompts describes the constraint:
            the tools, unless the chat template describes them, the schema or the
            choices. The model follows the constraint in any case, and what it writes is
            often better if it knows it.
        confidence: whether the model reads each text once more, in one forward pass,
            for ``Generation.confidence``.
        select: what becomes of the k texts of a prompt. None: they are returned as they
            were drawn. "best": the one to which the model itself gives the highest
            probability is returned, whole texts before others; costs a forward pass
            over each. "resample": k texts that are, for large k, draws of the model's
            own distribution given the constraint, where a constrained draw is
            renormalized at each token; see :class:`Population`. Costs nothing beside k
            texts, and needs ``do_sample=True`` without filters.
        manager: made for this tokenizer and lm_head. Default: one that later calls with
            the same tokenizer share, so that a constraint compiles once.
        num_return_sequences: texts for each prompt.
        seed: any integer of 64 bits. Equal seeds draw equal texts.
        jump_forward: see :func:`masked_generate`.
        device_fsm: see :func:`masked_generate`.
        streamer: one of transformers' streamers. See :func:`stream` for an iterator.
        monitor: see :func:`masked_generate`.
        **generation_kwargs: arguments of ``model.generate``: ``do_sample``,
            ``temperature``, ``top_p``, ``max_new_tokens`` (default: 512, or what the
            model's positions leave) and others.

    Raises:
        GrammarError: the constraint is bad, or its shortest text does not fit the
            limit.
        ValueError: the model has too few positions, a prompt is empty, ``params`` are
            more or fewer than the prompts, or an option is not supported, see
            :func:`masked_generate`.
        DeadEndError: the grammar has no way on, or nothing can be drawn from a row.
    """
    if generation_kwargs.get("assistant_model") is not None:
        raise ValueError("generate does not support assistant_model: see StructuredLogitsProcessor")
    if generation_kwargs.get("stop_strings") is not None:
        raise ValueError(
            "stop_strings need a criterion: stopping_criteria=[StopStringCriteria(tokenizer, stop_strings)]"
        )
    if num_return_sequences < 1:
        raise ValueError(f"num_return_sequences must be at least 1, got {num_return_sequences}")
    if select not in (None, "best", "resample"):
        raise ValueError(f'select must be None, "best" or "resample", got {select!r}')
    jump_forward = JumpForward(jump_forward)
    constraint = {
        "json": json,
        "regex": regex,
        "choice": choice,
        "grammar": grammar,
        "structural_tag": structural_tag,
        "tools": tools,
        "schemas": schemas,
        "key_order": key_order,
        "formats": formats,
        "additional_properties": additional_properties,
    }
    config = None if manager is None else manager.config
    prompt_ids, params_of = prompts_and_params(
        tokenizer, prompts, params, constraint, fit=fit, describe=describe, config=config
    )
    prompt_ids = [ids for ids in prompt_ids for _ in range(num_return_sequences)]
    params_of = [each for each in params_of for _ in range(num_return_sequences)]
    longest = max(map(len, prompt_ids))
    if not {"max_new_tokens", "max_length", "generation_config"} & generation_kwargs.keys():
        room = (max_positions(model) or longest + _DEFAULT_MAX_NEW_TOKENS) - longest
        generation_kwargs["max_new_tokens"] = min(_DEFAULT_MAX_NEW_TOKENS, max(room, 1))
    check_positions(model, longest, generation_kwargs.get("max_new_tokens"))
    if select == "resample":
        generation_kwargs = {"top_k": 0, "top_p": 1.0} | generation_kwargs

    if manager is None:
        manager = shared_manager(tokenizer, model.get_output_embeddings().weight.shape[0])
    texts: list[Text] = []
    with ready_requests(manager, "generate", params_of) as request_ids:
        padding = manager.vocabulary.stop_token_ids[0]
        input_ids, attention_mask = _left_padded(prompt_ids, padding)
        model.generate(
            input_ids=input_ids.to(model.device),
            attention_mask=attention_mask.to(model.device),
            custom_generate=masked_generate,
            manager=manager,
            request_ids=request_ids,
            seed=seed,
            jump_forward=jump_forward,
            device_fsm=device_fsm,
            stream_to=streamer,
            monitor=monitor,
            texts=texts,
            population=num_return_sequences if select == "resample" else 0,
            **({"pad_token_id": padding} | generation_kwargs),
        )
        found = generation_of(manager, prompt_ids, texts, request_ids, params_of)
        if not confidence and select != "best":
            return found
        sure = [
            confidence_of(
                model, manager, ids, text.token_ids, request_id, each, has_values=confidence and text.is_complete
            )
            for ids, text, request_id, each in zip(prompt_ids, texts, request_ids, params_of, strict=True)
        ]
        found = replace(found, confidence=sure) if confidence else found
        if select != "best":
            return found
        ranks = [(text.is_complete, each.model_logprob) for text, each in zip(texts, sure, strict=True)]
        groups = range(0, len(texts), num_return_sequences)
        return found.only([max(range(first, first + num_return_sequences), key=ranks.__getitem__) for first in groups])


def prompts_and_params(
    tokenizer: Any,
    prompts: Any,
    params: StructuredOutputsParams | Sequence[StructuredOutputsParams | None] | None,
    constraint: dict[str, Any],
    *,
    fit: Literal["on", "exact", "off"] | None,
    describe: bool,
    config: StructuredOutputsConfig | None,
) -> tuple[list[list[int]], list[StructuredOutputsParams | None]]:
    """The tokens of each prompt, and its constraint, of the arguments of
    :func:`generate`."""
    prompts = list_of_prompts(prompts)
    params_of = params_of_prompts(params, constraint, len(prompts))
    with_format = {id(each): each.for_tokenizer(tokenizer) for each in params_of if each is not None}
    params_of = [None if each is None else with_format[id(each)] for each in params_of]
    for distinct in with_format.values():
        distinct.validate(config)
    if fit is not None:
        params_of = [None if each is None else replace(each, fit=fit) for each in params_of]
    prompt_ids = [*map(partial(tokens_of, tokenizer, describe=describe), prompts, params_of)]
    params_of = [
        None if each is None else each.for_prompt(tokenizer.decode(ids[-_END_OF_PROMPT:]))
        for each, ids in zip(params_of, prompt_ids, strict=True)
    ]
    return prompt_ids, params_of


@contextmanager
def ready_requests(
    manager: StructuredOutputManager,
    owner: str,
    params: Sequence[StructuredOutputsParams | None],
    max_tokens: Sequence[int | None] | None = None,
) -> Iterator[list[str | None]]:
    """A request of a manager for each constraint, READY, until the context ends.

    Args:
        manager: the manager.
        owner: names the requests.
        params: the constraints. None has no request.
        max_tokens: the limit on the tokens of each text.

    Raises:
        GrammarError: a constraint is bad, or needs more tokens than its limit.
    """
    request_ids = [None if each is None else new_request_id(owner) for each in params]
    constrained = [request_id for request_id in request_ids if request_id is not None]
    try:
        for request_id, each, limit in zip(request_ids, params, max_tokens or [None] * len(params), strict=True):
            if request_id is not None and each is not None:
                manager.add_request(request_id, each, max_tokens=limit)
        for request_id in constrained:
            manager.wait_ready(request_id)
        yield request_ids
    finally:
        for request_id in constrained:
            manager.finish_request(request_id)


def generation_of(
    manager: StructuredOutputManager,
    prompt_ids: Sequence[Sequence[int]],
    texts: Sequence[Text],
    request_ids: Sequence[str | None],
    params: list[StructuredOutputsParams | None],
) -> Generation:
    """The result of texts that have been decoded. Their requests are with the
    manager."""
    written = [manager.vocabulary.text_of(text.content, with_names=True) for text in texts]
    compiled = [manager.compiled(request_id) for request_id in request_ids if request_id is not None]
    return Generation(
        texts=written,
        token_ids=[text.content for text in texts],
        is_complete=[text.is_complete for text in texts],
        finish_reasons=[*map(_finish_reason, params, written, texts)],
        usage=[Usage(len(ids), len(text.token_ids)) for ids, text in zip(prompt_ids, texts, strict=True)],
        fitted=[request_id is not None and manager.was_fitted(request_id) for request_id in request_ids],
        weakened=_union(each.weakened for each in compiled),
        annotations=_union(each.annotations for each in compiled),
        params=params,
    )


def max_positions(model: Any) -> int | None:
    """The number of positions of a transformers model, None if its config has no
    limit."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def params_of_prompts(
    params: StructuredOutputsParams | Sequence[StructuredOutputsParams | None] | None,
    constraint: dict[str, Any],
    num_prompts: int,
) -> list[StructuredOutputsParams | None]:
    """The constraint of each prompt, of the arguments of :func:`generate` and of
    :func:`decide`."""
    if params is None:
        return [StructuredOutputsParams(**constraint)] * num_prompts
    given = [name for name, value in constraint.items() if value is not None]
    for name in ("key_order", "formats", "additional_properties", "schemas"):
        if given == [name]:
            raise ValueError(f"{name} does not go with params: give params its own {name}")
    if given:
        raise ValueError(
            "expected one of json, regex, choice, grammar, structural_tag, tools and params, got params and another"
        )
    if isinstance(params, StructuredOutputsParams):
        return [params] * num_prompts
    params = list(params)
    if not all(each is None or isinstance(each, StructuredOutputsParams) for each in params):
        raise TypeError(f"params must be StructuredOutputsParams, or a list of these and None, got {params!r}")
    if len(params) != num_prompts:
        raise ValueError(f"params needs one entry for each of the {num_prompts} prompts, got {len(params)}")
    return params


def _parsed(params: StructuredOutputsParams | None, text: str) -> Any:
    return text if params is None else params.parse(text)


def _finish_reason(params: StructuredOutputsParams | None, written: str, text: Text) -> str:
    is_whole = params is not None and params.fit != "off" and text.is_complete
    if text.is_cut and not is_whole:
        return "length"
    has_calls = params is not None and params.tools is not None and bool(params.parse_tool_calls(written))
    return "tool_calls" if has_calls else "stop"


def _union(parts: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(parts)))


def check_positions(model: Any, num_prompt_tokens: int, max_new_tokens: int | None) -> None:
    """Raise ``ValueError`` if the model has too few positions."""
    limit = max_positions(model)
    if limit is not None and max_new_tokens is not None and num_prompt_tokens + max_new_tokens > limit:
        raise ValueError(
            f"a prompt of {num_prompt_tokens:,} tokens and max_new_tokens={max_new_tokens:,} need "
            f"{num_prompt_tokens + max_new_tokens:,} positions, but the model has {limit:,}: "
            "shorten the prompt or lower max_new_tokens"
        )


def _left_padded(rows: Sequence[Sequence[int]], padding: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and attention mask, both int64 ``[N, longest]``."""
    width = max(map(len, rows))
    token_ids = [[*[padding] * (width - len(row)), *row] for row in rows]
    mask = [[*[0] * (width - len(row)), *[1] * len(row)] for row in rows]
    return torch.tensor(token_ids), torch.tensor(mask)
