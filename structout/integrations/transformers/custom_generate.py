"""Constrained decoding inside transformers' own ``generate``.

model.generate(
    **inputs,
    custom_generate=structout.integrations.transformers.masked_generate,
    manager=manager, request_ids=["a", None], seed=7,  # row 1 is free
    do_sample=True, temperature=0.7, top_p=0.9, max_new_tokens=200,
)
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from structout.integrations.transformers.constrained_sampler import ConstrainedSampler, Row, row_seeds
from structout.integrations.transformers.decode import DecodingLoop, Monitor, Text, mark_complete
from structout.integrations.transformers.device_loop import DeviceDecodingLoop, states_on_device
from structout.integrations.transformers.model_feed import ModelFeed
from structout.integrations.transformers.population import Population
from structout.jump_forward import JumpForward
from structout.ops.sampler import SamplingParams
from structout.scheduler.manager import StructuredOutputManager

# The warpers that masked_sample replaces, and the parameter that each of them holds.
_REPLACED_WARPERS = {
    "TemperatureLogitsWarper": "temperature",
    "TopKLogitsWarper": "top_k",
    "TopPLogitsWarper": "top_p",
    "MinPLogitsWarper": "min_p",
}
# The options with which transformers leaves greedy search and sampling.
_MODE_OPTIONS = (
    "num_beams",
    "num_beam_groups",
    "constraints",
    "force_words_ids",
    "penalty_alpha",
    "dola_layers",
    "prompt_lookup_num_tokens",
    "assistant_early_exit",
    "use_mtp",
)
_OUTPUT_OPTIONS = (
    "return_dict_in_generate",
    "output_scores",
    "output_logits",
    "output_attentions",
    "output_hidden_states",
)
# The criteria that need no more than the last token of a row. The loop itself keeps to
# the maximum length.
_CRITERIA_BESIDE_JUMPS = ("EosTokenCriteria", "MaxTimeCriteria")
_CRITERIA_ON_THE_DEVICE = ("EosTokenCriteria", "MaxLengthCriteria")


@torch.inference_mode()
def masked_generate(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    manager: StructuredOutputManager,
    request_ids: Sequence[str | None],
    seed: int = 0,
    jump_forward: JumpForward | str = JumpForward.OFF,
    device_fsm: bool = False,
    stream_to: Any = None,
    monitor: Monitor | None = None,
    texts: list[Text] | None = None,
    population: int = 0,
    **model_kwargs: Any,
) -> torch.Tensor:
    """Decode as ``generate(custom_generate=masked_generate)``, under a manager's masks.

    ``do_sample``, ``temperature``, ``top_k``, ``top_p`` and ``min_p`` mean what they
    mean to transformers, and other logits processors run before the mask. A constrained
    row ends with the stop token of its request, a free row as transformers ends it. A
    stop token that alone may follow is appended without a forward pass. The text of a
    request without tokens ends within ``max_new_tokens`` or ``max_length``, its stop
    token included, unless its ``fit`` is "off".

    Transformers passes neither ``streamer`` nor ``assistant_model`` on to custom loops:
    use ``stream_to`` for the first; the second has no effect. (The ``generate`` of this
    package raises.)

    Args:
        manager: made for this tokenizer and lm_head. Waits for requests that are still
            being compiled.
        request_ids: for each row its request, or None for a free row. With
            ``num_return_sequences=k`` every prompt has k consecutive rows.
        seed: any integer of 64 bits. Each row draws with a seed of its own, derived
            from this one and the index of the row.
        jump_forward: how text without a choice is skipped, a
            :class:`structout.jump_forward.JumpForward` or its value. "draft" draws the
            same tokens as "off", except where the model's forward passes over several
            tokens round differently.
        device_fsm: whether the states of the constraints live on the model's device, in
            a :class:`structout.DeviceFSM`, so that no step waits for the CPU. For
            regular constraints that structout's own engine serves, and models that take
            a ``StaticCache``. Draws the same tokens, except where the model's attention
            rounds differently, and where filters see masks that a limit has narrowed:
            what the limit cuts off is taken back and drawn again without it.
        stream_to: one of transformers' streamers, or None.
        monitor: watches the decoding loop.
        texts: an empty list that receives the rows' texts, which know whether they are
            complete.
        population: how many rows each prompt has, to be weighed and resampled as a
            :class:`Population`. 0: none are.

    Returns:
        int64 ``[N, prompt + generated]``. Rows that end early are padded.

    Raises:
        ValueError: ``request_ids`` does not fit the batch, a request has been completed
            before, an option is not supported (beam search, assisted generation,
            outputs other than token ids), or does not go with jump-forward. Nothing has
            been drawn then.
        UnknownRequestError: a request is not with the manager, or was finished.
        GrammarError: the constraint of a request is bad, or its shortest text does not
            fit the limit.
        DeadEndError: a grammar has no way on, or nothing can be drawn from a row.
    """
    num_rows = len(input_ids)
    mode = JumpForward(jump_forward)
    _check_options(generation_config)
    params, processors = _split_processors(logits_processor, generation_config.do_sample)
    criteria: Callable[..., torch.Tensor] = stopping_criteria
    if mode is not JumpForward.OFF:
        _check_jumps(mode, model, processors, model_kwargs, stream_to is not None, num_rows)
        criteria = _criteria_beside_jumps(stopping_criteria)
    _check_requests(manager, request_ids, num_rows)
    if device_fsm:
        _check_device_fsm(mode, model, processors, stopping_criteria, request_ids, stream_to is not None)

    if population:
        others = mode is not JumpForward.OFF or device_fsm or stream_to is not None
        _check_population(population, num_rows, params, model_kwargs, has_other_modes=others)

    monitor = monitor or Monitor()
    seeds = row_seeds(seed, num_rows)
    positions = _prompt_lengths(model, input_ids, model_kwargs)
    max_length = stopping_criteria.max_length
    max_tokens = None if max_length is None else max_length - input_ids.shape[1]
    if max_tokens is not None:
        _limit(manager, request_ids, max_tokens)
    texts = [] if texts is None else texts
    ends = generation_config._eos_token_tensor
    end_tokens = [] if ends is None else ends.tolist()
    rows = [Row(i, request_ids[i], seeds[i], positions[i]) for i in range(num_rows)]
    texts += [Text(manager, row, max_tokens, end_tokens) for row in rows]
    padding = _padding(generation_config, manager)
    weighed = Population(texts, population, seeds) if population else None
    sampler = ConstrainedSampler(manager, params, monitor.measure, None if weighed is None else weighed.log_weights)
    if stream_to is not None:
        stream_to.put(input_ids.cpu())
    if device_fsm:
        fsm, states = states_on_device(manager, [text.request_id for text in texts], input_ids.device)
        mask = model_kwargs.get("attention_mask")
        mask = torch.ones_like(input_ids) if mask is None else mask
        DeviceDecodingLoop(
            model, input_ids, mask, texts, fsm, states, params, max_length - input_ids.shape[1], monitor
        ).run(sampler.accept)
        for text in texts:
            text.take_back_misfit()
    if any(text.is_live for text in texts):
        DecodingLoop(
            ModelFeed(model, input_ids, generation_config, model_kwargs),
            texts,
            sampler,
            processors,
            criteria,
            mode,
            padding,
            monitor,
            weighed,
            None if stream_to is None else lambda token_ids: stream_to.put(torch.tensor(token_ids)),
        ).run()
    mark_complete(texts, sampler)
    if stream_to is not None:
        stream_to.end()
    return torch.cat([input_ids, _padded([text.token_ids for text in texts], padding).to(input_ids.device)], dim=1)


def _check_options(config: Any) -> None:
    """Refuse what this loop would otherwise ignore."""
    mode = config.get_generation_mode().value
    if mode not in ("greedy_search", "sample"):
        options = {name: getattr(config, name, None) for name in _MODE_OPTIONS}
        given = ", ".join(f"{name}={value}" for name, value in options.items() if value not in (None, False, 1))
        raise ValueError(
            f"masked_generate supports greedy search and sampling, got {mode.replace('_', ' ')}: leave out {given}"
        )
    outputs = [name for name in _OUTPUT_OPTIONS if getattr(config, name, None)]
    if outputs:
        raise ValueError(f"masked_generate returns token ids alone: leave out {', '.join(outputs)}")


def _check_jumps(
    mode: JumpForward,
    model: Any,
    processors: Sequence[Any],
    model_kwargs: dict[str, Any],
    has_stream: bool,
    num_rows: int,
) -> None:
    """Refuse what needs one token a row in each step."""
    option = f"jump_forward={mode.value!r}"
    if getattr(model, "_is_stateful", False):  # transformers' mark of recurrent models
        raise ValueError(f"{type(model).__name__} cannot forget tokens: {option} must be 'off'")
    cache = model_kwargs.get("past_key_values")
    if type(cache).__name__ != "DynamicCache" or not model_kwargs.get("use_cache"):
        raise ValueError(f"{option} needs a DynamicCache, got {type(cache).__name__}")
    position_ids = model_kwargs.get("position_ids")
    if model_kwargs.get("inputs_embeds") is not None or (position_ids is not None and position_ids.dim() != 2):
        raise ValueError(f"{option} needs prompts of token ids with one position each")
    if processors:
        names = ", ".join(type(processor).__name__ for processor in processors)
        raise ValueError(f"{option} does not go with logits processors: leave out {names}")
    if has_stream and (num_rows > 1 or mode is JumpForward.RETOKENIZE):
        raise ValueError(f"{option} does not go with stream_to, except 'draft' and 'ff_tokens' for a single row")


def _check_population(
    size: int, num_rows: int, params: SamplingParams, model_kwargs: dict[str, Any], *, has_other_modes: bool
) -> None:
    """Refuse what has no weights, or cannot be copied."""
    if num_rows % size:
        raise ValueError(f"population={size} does not divide the {num_rows} rows")
    if params.temperature == 0 or any(each is not None for each in (params.top_k, params.top_p, params.min_p)):
        raise ValueError(
            "resampling needs do_sample=True, without top_k, top_p and min_p: the weights are of all tokens"
        )
    if has_other_modes:
        raise ValueError("resampling goes neither with jump_forward nor with device_fsm or a streamer")
    cache = model_kwargs.get("past_key_values")
    if type(cache).__name__ != "DynamicCache" or not model_kwargs.get("use_cache"):
        raise ValueError(f"resampling needs a DynamicCache, got {type(cache).__name__}")


def _check_device_fsm(
    mode: JumpForward,
    model: Any,
    processors: Sequence[Any],
    stopping_criteria: Any,
    request_ids: Sequence[str | None],
    has_stream: bool,
) -> None:
    """Refuse what needs the CPU in each step."""
    if mode is not JumpForward.OFF:
        raise ValueError(f"device_fsm does not go with jump_forward={mode.value!r}")
    if has_stream:
        raise ValueError("device_fsm does not go with stream_to: the CPU does not see single tokens")
    if None in request_ids:
        raise ValueError(f"device_fsm needs a request for each row, got none for row {request_ids.index(None)}")
    if not getattr(model, "_can_compile_fullgraph", False):  # transformers' mark of models that take a StaticCache
        raise ValueError(f"device_fsm needs a model that takes a StaticCache, which {type(model).__name__} does not")
    if processors:
        names = ", ".join(type(processor).__name__ for processor in processors)
        raise ValueError(f"device_fsm does not go with logits processors: leave out {names}")
    criteria = [type(criterion).__name__ for criterion in stopping_criteria]
    others = [name for name in criteria if name not in _CRITERIA_ON_THE_DEVICE]
    if others:
        raise ValueError(f"device_fsm does not go with stopping criteria: leave out {', '.join(others)}")
    if "MaxLengthCriteria" not in criteria:
        raise ValueError("device_fsm needs a limit on the length: give max_new_tokens")


def _criteria_beside_jumps(stopping_criteria: Any) -> Any:
    """The criteria without the maximum length, if jumps go with them."""
    kept = [criterion for criterion in stopping_criteria if type(criterion).__name__ != "MaxLengthCriteria"]
    others = [type(criterion).__name__ for criterion in kept if type(criterion).__name__ not in _CRITERIA_BESIDE_JUMPS]
    if others:
        raise ValueError(f"jump-forward does not go with stopping criteria on the text: leave out {', '.join(others)}")
    return type(stopping_criteria)(kept)


def _check_requests(manager: StructuredOutputManager, request_ids: Sequence[str | None], num_rows: int) -> None:
    """Wait for the requests. Raise for those that would leave their row free."""
    if len(request_ids) != num_rows:
        raise ValueError(f"request_ids needs one entry for each of {num_rows} rows, got {len(request_ids)}")
    constrained = [request_id for request_id in request_ids if request_id is not None]
    for request_id in constrained:
        if constrained.count(request_id) > 1:
            raise ValueError(f"request {request_id!r} is given for more than one row: add a request for each")
        manager.wait_ready(request_id)
        if manager.is_terminated(request_id):
            raise ValueError(
                f"request {request_id!r} is complete already: its row would be unconstrained. "
                "Call finish_request, then add_request for each new text"
            )


def _limit(manager: StructuredOutputManager, request_ids: Sequence[str | None], max_tokens: int) -> None:
    """Let the texts of the requests that begin here end within ``max_tokens``."""
    for request_id in request_ids:
        if request_id is not None:
            manager.end_within(request_id, max_tokens)


def _split_processors(logits_processor: Any, do_sample: bool) -> tuple[SamplingParams, list[Any]]:
    """The parameters of the warpers that masked_sample replaces, and all other
    processors."""
    values: dict[str, Any] = {} if do_sample else {"temperature": 0.0}
    others = []
    for processor in logits_processor:
        name = _REPLACED_WARPERS.get(type(processor).__name__)
        if name is None:
            others.append(processor)
        elif do_sample:
            values[name] = getattr(processor, name)
    return SamplingParams(**values), others


def _prompt_lengths(model: Any, input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> list[int]:
    """The number of prompt tokens of each row, without padding."""
    mask = model_kwargs.get("decoder_attention_mask" if model.config.is_encoder_decoder else "attention_mask")
    if mask is not None:
        return mask.to(torch.int64).sum(-1).tolist()
    embeddings = None if model.config.is_encoder_decoder else model_kwargs.get("inputs_embeds")
    return [input_ids.shape[1] if embeddings is None else embeddings.shape[1]] * len(input_ids)


def _padding(generation_config: Any, manager: StructuredOutputManager) -> int:
    """The token that pads rows which are done."""
    pad = generation_config._pad_token_tensor
    return manager.vocabulary.stop_token_ids[0] if pad is None else int(pad)


def _padded(rows: Sequence[Sequence[int]], padding: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[padding] * (width - len(row))] for row in rows], dtype=torch.int64)
