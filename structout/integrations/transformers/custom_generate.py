"""structout under transformers' own `generate`: the manager fills masks, masked_sample draws.

model.generate(
    **inputs,
    custom_generate=structout.integrations.transformers.masked_generate,
    manager=manager, request_ids=["a", None], seed=7,          # row 0 is constrained, row 1 free
    do_sample=True, temperature=0.7, top_p=0.9, max_new_tokens=200,
)
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from structout.sampler import DeviceMasks, MaskedSampler, SamplingParams
from structout.scheduler.manager import StructuredOutputManager

# What the op does itself, from the generation config.
_DONE_BY_THE_OP = ("TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper")


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
    """A decoding loop for ``generate(custom_generate=...)``.

    Args:
        manager: holds the requests, READY; made for this tokenizer and lm_head.
        request_ids: for each row its request, or None for a free row.
        seed: any integer of 64 bits. Each row draws with a seed of its own, made of this one and the row's number:
            neither the rows of a call share their noise, nor those of calls with neighbouring seeds.
        stream_to: one of transformers' streamers, or None. (Transformers does not hand its own ``streamer`` argument to
            custom loops: given there, it would see the prompt and nothing else.)

    ``do_sample``, ``temperature``, ``top_k``, ``top_p`` and ``min_p`` come from the generation config; other logits
    processors run first. A token's position is its index in its own text, without the padding to the left of it: a row
    draws the same alone as beside a longer prompt.

    Returns:
        int64 ``[N, prompt + generated]``; rows that end early are padded with the pad token.

    Raises:
        ValueError: not one request id a row; ``return_dict_in_generate``.
        RuntimeError: a grammar has no way on, or nothing can be drawn from a row.
    """
    device, num_rows = input_ids.device, input_ids.shape[0]
    if len(request_ids) != num_rows:
        raise ValueError(f"request_ids needs one entry for each of {num_rows} rows, got {len(request_ids)}")
    if generation_config.return_dict_in_generate:
        raise ValueError("masked_generate returns token ids alone; leave out return_dict_in_generate")
    names = [request_id if request_id is not None else f"free row {i}" for i, request_id in enumerate(request_ids)]
    processors = [p for p in logits_processor if type(p).__name__ not in _DONE_BY_THE_OP]
    sampler, params = MaskedSampler(), _sampling_params(generation_config)
    seeds = torch.tensor(row_seeds(seed, num_rows), device=device)
    position = _prompt_lengths(input_ids, model_kwargs)
    pad = generation_config._pad_token_tensor
    unfinished = torch.ones(num_rows, dtype=torch.bool, device=device)
    one_by_one: dict[str, int] = {}  # after the prompt, the cache holds all but the last token
    if stream_to is not None:
        stream_to.put(input_ids.cpu())

    while bool(unfinished.any()):
        inputs = model.prepare_inputs_for_generation(input_ids, **one_by_one, **model_kwargs)
        outputs = model(**inputs, return_dict=True)
        model_kwargs = model._update_model_kwargs_for_generation(outputs, model_kwargs)
        one_by_one = {"next_sequence_length": 1} if model_kwargs.get("use_cache") else {}
        logits = outputs.logits[:, -1]
        for processor in processors:
            logits = processor(input_ids, logits)

        masks = manager.grammar_bitmask([name for name in names if name in request_ids])
        if masks.errors:
            raise RuntimeError(f"generation cannot go on: {dict(masks.errors)}")
        step = replace(params, seed=seeds, position=position)
        drawn = sampler(logits, DeviceMasks.of(masks, names, device), step)
        assert isinstance(drawn, torch.Tensor)
        tokens = torch.where(unfinished, drawn, drawn if pad is None else pad)
        for name, token, is_open in zip(names, tokens.tolist(), unfinished.tolist(), strict=True):
            if is_open and token < 0:
                raise RuntimeError(f"{name}: nothing can be drawn from its logits (NaN?)")
            if is_open and name in request_ids:
                manager.accept_tokens(name, [token])
        input_ids = torch.cat([input_ids, tokens.unsqueeze(1)], dim=1)
        position = position + 1
        if stream_to is not None:
            stream_to.put(tokens.cpu())
        unfinished &= ~stopping_criteria(input_ids, None)
    if stream_to is not None:
        stream_to.end()
    return input_ids


def row_seeds(seed: int, num_rows: int) -> list[int]:
    """Row i's is mix(mix(seed) + i), as int64."""
    seeds = [_mix(_mix(seed) + row) for row in range(num_rows)]
    return [number - 2**64 if number >= 2**63 else number for number in seeds]


def _mix(number: int) -> int:
    """SplitMix64: a permutation of 64 bits that leaves no pattern of its input.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    number = (number + 0x9E3779B97F4A7C15) % 2**64
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    number = (number ^ number >> 27) * 0x94D049BB133111EB % 2**64
    return number ^ number >> 31


def _prompt_lengths(input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> torch.Tensor:
    """int64 ``[N]``, without padding."""
    mask = model_kwargs.get("attention_mask")
    if mask is None:
        return torch.full((input_ids.shape[0],), input_ids.shape[1], device=input_ids.device)
    return mask.to(torch.int64).sum(-1)


def _sampling_params(config: Any) -> SamplingParams:
    if not config.do_sample:
        return SamplingParams(temperature=0.0)
    temperature = 1.0 if config.temperature is None else config.temperature
    return SamplingParams(temperature, config.top_k, config.top_p, config.min_p)
