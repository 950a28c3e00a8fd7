"""Constrained decoding inside transformers' own ``generate``.

model.generate(
    **inputs,
    custom_generate=structout.integrations.transformers.masked_generate,
    manager=manager, request_ids=["a", None], seed=7,  # row 1 is free
    do_sample=True, temperature=0.7, top_p=0.9, max_new_tokens=200,
)
"""

from collections.abc import Sequence
from typing import Any

import torch

from structout.integrations.transformers.constrained_sampler import ConstrainedSampler, Row, row_seeds
from structout.sampler import SamplingParams
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
    stream_to: Any = None,
    **model_kwargs: Any,
) -> torch.Tensor:
    """Decode as ``generate(custom_generate=masked_generate)``, under a manager's masks.

    ``do_sample``, ``temperature``, ``top_k``, ``top_p`` and ``min_p`` mean what they
    mean to transformers, and other logits processors run before the mask. A constrained
    row ends with the stop token of its request, a free row as transformers ends it.

    Transformers passes neither ``streamer`` nor ``assistant_model`` on to custom loops:
    use ``stream_to`` for the first; the second has no effect.

    Args:
        manager: made for this tokenizer and lm_head. Waits for requests that are still
            being compiled.
        request_ids: for each row its request, or None for a free row. With
            ``num_return_sequences=k`` every prompt has k consecutive rows.
        seed: any integer of 64 bits. Each row draws with a seed of its own, derived
            from this one and the index of the row.
        stream_to: one of transformers' streamers, or None.

    Returns:
        int64 ``[N, prompt + generated]``. Rows that end early are padded.

    Raises:
        ValueError: ``request_ids`` does not fit the batch, a request has been completed
            before, or an option is not supported (beam search, assisted generation,
            outputs other than token ids). Nothing has been drawn then.
        UnknownRequestError: a request is not with the manager, or was finished.
        GrammarError: the constraint of a request is bad.
        DeadEndError: a grammar has no way on, or nothing can be drawn from a row.
    """
    num_rows = len(input_ids)
    _check_options(generation_config)
    _check_requests(manager, request_ids, num_rows)
    params, processors = _split_processors(logits_processor, generation_config.do_sample)
    sampler = ConstrainedSampler(manager, params)
    seeds = row_seeds(seed, num_rows)
    positions = _prompt_lengths(model, input_ids, model_kwargs)
    is_finished = [False] * num_rows
    pad = generation_config._pad_token_tensor
    padding = manager.vocabulary.stop_token_ids[0] if pad is None else int(pad)
    if stream_to is not None:
        stream_to.put(input_ids.cpu())

    outputs = model._prefill(input_ids, generation_config, model_kwargs)
    while True:
        model_kwargs = model._update_model_kwargs_for_generation(
            outputs, model_kwargs, is_encoder_decoder=model.config.is_encoder_decoder
        )
        logits = outputs.logits[:, -1].to(input_ids.device)
        for processor in processors:
            logits = processor(input_ids, logits)

        live = [Row(i, request_ids[i], seeds[i], positions[i]) for i in range(num_rows) if not is_finished[i]]
        drawn = sampler.draw(logits[[row.index for row in live]], live)
        tokens = [padding] * num_rows
        for row, (token,) in zip(live, drawn, strict=True):
            is_finished[row.index] = sampler.accept(row, token)
            tokens[row.index] = token
        positions = [position + 1 for position in positions]

        new_ids = torch.tensor(tokens, device=input_ids.device)
        input_ids = torch.cat([input_ids, new_ids.unsqueeze(1)], dim=1)
        if stream_to is not None:
            stream_to.put(new_ids.cpu())
        is_stopped = stopping_criteria(input_ids, None).tolist()
        is_finished = [ended or stopped for ended, stopped in zip(is_finished, is_stopped, strict=True)]
        if all(is_finished):
            break
        next_length = 1 if model_kwargs.get("use_cache") else None  # the cache holds all but the last token
        inputs = model.prepare_inputs_for_generation(input_ids, next_sequence_length=next_length, **model_kwargs)
        outputs = model(**inputs, return_dict=True)
    if stream_to is not None:
        stream_to.end()
    return input_ids


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
