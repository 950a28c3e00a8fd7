"""ModelFeed: the columns of tokens that a model has read, and its cache."""

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch


class ModelFeed:
    """Feeds a batch of texts to a transformers model, several tokens a row at a time.

    Inputs are prepared and caches kept by transformers' own methods, so that every
    model that ``generate`` supports can be fed one token a row. All rows have the same
    number of columns. A row that got fewer tokens than another, or has forgotten some,
    has gaps: columns that attention masks out. Gaps need a cache of keys and values.
    With sliding-window attention gaps still take up room in the window.

    Args:
        model: a transformers model.
        input_ids: int64 ``[N, columns]``, the prompts.
        generation_config: as ``generate`` prepares it for its decoding loops.
        model_kwargs: as ``generate`` prepares them for its decoding loops.

    Attributes:
        columns: int64 ``[N, C]``, what has been appended so far, gaps included.
        num_passes: forward passes of the model.
    """

    def __init__(self, model: Any, input_ids: torch.Tensor, generation_config: Any, model_kwargs: dict[str, Any]):
        self._model = model
        self._config = generation_config
        self._kwargs = model_kwargs
        self._prompt = {name: model_kwargs.get(name) for name in ("attention_mask", "position_ids")}
        self._is_token = torch.zeros(len(input_ids), 0, dtype=torch.bool)  # of the columns after the prompts
        self._num_new = 0  # of the last columns, which the model has not read
        self._outputs: Any = {}
        self.columns = input_ids
        self.num_passes = 0

    def append(self, token_ids: Sequence[Sequence[int]]) -> None:
        """Append tokens to each row. Rows that get fewer than others get gaps."""
        width = max(map(len, token_ids))
        lengths = torch.tensor([len(tokens) for tokens in token_ids])
        self._is_token = torch.cat([self._is_token, torch.arange(width) < lengths.unsqueeze(1)], dim=1)
        new = torch.tensor([[*tokens, *[0] * (width - len(tokens))] for tokens in token_ids], dtype=torch.int64)
        self.columns = torch.cat([self.columns, new.to(self.columns.device)], dim=1)
        self._num_new += width

    def forward(self, max_logits: int | None = None) -> torch.Tensor:
        """Let the model read the new columns.

        Args:
            max_logits: how many of the last columns' logits are needed. None: all.

        Returns:
            the logits after each of them, ``[N, new columns, V]``. In the first pass
            they begin with those after the last column of the prompts. Logits of gaps
            are undefined.
        """
        num_logits = self._num_new + (self.num_passes == 0)
        num_logits = num_logits if max_logits is None else min(num_logits, max_logits)
        if self._num_new:
            self._kwargs = self._model._update_model_kwargs_for_generation(
                self._outputs,
                self._kwargs,
                is_encoder_decoder=self._model.config.is_encoder_decoder,
                num_new_tokens=self._num_new,
            )
            # In the first pass _prefill compares the mask with the columns.
            if self.num_passes == 0 or not self._is_token.all():
                self._mask_gaps()
        self._outputs = {}  # frees the logits of the last pass
        self._keep_logits(num_logits)
        if self.num_passes == 0:
            outputs = self._model._prefill(self.columns, self._config, self._kwargs)
        else:
            # Without a cache the model reads everything again.
            num_read = self._num_new if self._kwargs.get("use_cache") else None
            inputs = self._model.prepare_inputs_for_generation(
                self.columns, next_sequence_length=num_read, **self._kwargs
            )
            outputs = self._model(**inputs, return_dict=True)
        self._outputs = outputs
        self._num_new = 0
        self.num_passes += 1
        logits: torch.Tensor = outputs.logits[:, -num_logits:]
        return logits.to(self.columns.device)

    def forget(self, row: int, count: int) -> None:
        """Remove the last ``count`` tokens of a row, which the model has read."""
        if count == 0:
            return
        places = self._is_token[row].nonzero().flatten()
        self._is_token[row, places[len(places) - count :]] = False
        is_used = self._is_token.any(0).nonzero()
        width = int(is_used.max()) + 1 if len(is_used) else 0
        surplus = self._is_token.shape[1] - width
        cache = self._outputs["past_key_values"]
        # A sliding window has dropped what came before it, so its cache cannot be
        # cropped.
        if surplus > 0 and not any(cache.is_sliding):
            cache.crop(-surplus)
            self._is_token = self._is_token[:, :width]
            self.columns = self.columns[:, :-surplus]
            for name, value in self._kwargs.items():
                if name in _PER_COLUMN and value is not None:
                    self._kwargs[name] = value[:, :-surplus]

    def reorder(self, rows: Sequence[int]) -> None:
        """Put in the place of each row the one of index ``rows[i]``, of an equal
        prompt."""
        order = torch.tensor(rows)
        self._is_token = self._is_token[order]
        order = order.to(self.columns.device)
        self.columns = self.columns[order]
        self._outputs["past_key_values"].reorder_cache(order)

    def _keep_logits(self, num_logits: int) -> None:
        if "logits_to_keep" in self._kwargs:
            self._kwargs["logits_to_keep"] = num_logits

    def _mask_gaps(self) -> None:
        """Set the attention mask, and positions that do not count gaps."""
        device = self.columns.device
        is_token = self._is_token.to(device)
        prompt = self._prompt["attention_mask"]
        if prompt is None:
            prompt = torch.ones_like(self.columns[:, : self.columns.shape[1] - is_token.shape[1]])
        self._kwargs["attention_mask"] = torch.cat([prompt, is_token.to(prompt.dtype)], dim=1)
        positions = self._prompt["position_ids"]
        if positions is not None:
            # Gaps take position 0: one past the tokens might be past the model's limit.
            new = torch.where(is_token, positions[:, -1:] + is_token.cumsum(1), 0)
            self._kwargs["position_ids"] = torch.cat([positions, new], dim=1)


def last_logits(model: Any, token_ids: Sequence[int], num_logits: int, **inputs: Any) -> torch.Tensor:
    """Let a model read one row of tokens without a cache.

    Args:
        model: a transformers causal LM.
        token_ids: the tokens.
        num_logits: how many of the last tokens' logits are needed.
        inputs: further arguments of the model.

    Returns:
        the logits, ``[num_logits, V]``.
    """
    if "logits_to_keep" in signature(model.forward).parameters:
        inputs["logits_to_keep"] = num_logits
    with torch.inference_mode():
        row = torch.tensor([token_ids], device=model.device)
        logits: torch.Tensor = model(input_ids=row, use_cache=False, **inputs).logits
    return logits[0, -num_logits:]


# The arguments of transformers' models with an entry for each column.
_PER_COLUMN = ("attention_mask", "position_ids", "token_type_ids")
