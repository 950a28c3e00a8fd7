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

from structout.manager import StructuredOutputManager
from structout.sampler import DeviceMasks, MaskedSampler, SamplingParams

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
    **model_kwargs: Any,
) -> torch.Tensor:
    """A decoding loop for ``generate(custom_generate=...)``.

    Args:
        manager: holds the requests, READY; made for this tokenizer and lm_head.
        request_ids: for each row its request, or None for a free row.
        seed: row i draws with seed ``seed + i``.

    ``do_sample``, ``temperature``, ``top_k``, ``top_p`` and ``min_p`` come from the generation config; other logits
    processors run first.

    Returns:
        int64 ``[N, prompt + generated]``; rows that end early are padded with the pad token.

    Raises:
        RuntimeError: a grammar has no way on, or nothing can be drawn from a row.
    """
    device, num_rows = input_ids.device, input_ids.shape[0]
    if len(request_ids) != num_rows:
        raise ValueError(f"request_ids needs one entry for each of {num_rows} rows, got {len(request_ids)}")
    names = [request_id if request_id is not None else f"free row {i}" for i, request_id in enumerate(request_ids)]
    processors = [p for p in logits_processor if type(p).__name__ not in _DONE_BY_THE_OP]
    sampler, params = MaskedSampler(), _sampling_params(generation_config)
    seeds = torch.arange(seed, seed + num_rows, device=device)
    pad = generation_config._pad_token_tensor
    unfinished = torch.ones(num_rows, dtype=torch.bool, device=device)
    one_by_one: dict[str, int] = {}  # after the prompt, the cache holds all but the last token

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
        position = torch.full((1,), input_ids.shape[1], device=device).expand(num_rows)
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
        unfinished &= ~stopping_criteria(input_ids, None)
    return input_ids


def _sampling_params(config: Any) -> SamplingParams:
    if not config.do_sample:
        return SamplingParams(temperature=0.0)
    temperature = 1.0 if config.temperature is None else config.temperature
    return SamplingParams(temperature, config.top_k, config.top_p, config.min_p)
