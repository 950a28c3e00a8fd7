"""A transformers model and its KV cache, for texts that grow by different numbers of tokens, and lose some again."""

from collections.abc import Sequence
from typing import Any

import torch


class CachedModel:
    """
    Args:
        model: a transformers causal LM whose cache holds keys and values.
        num_texts: in the batch, empty at first.

    Every forward pass adds the same number of columns to the cache for all texts. Where a text got fewer tokens, or has
    lost some, there are gaps, which attention does not see. (Where it slides over a window, they take up room in that.)
    """

    def __init__(self, model: Any, num_texts: int):
        self._model = model
        self._cache: Any = None
        self._is_token = torch.zeros(num_texts, 0, dtype=torch.bool)  # of each column of the cache, for each text
        self.num_passes = 0

    def forward(self, token_ids: Sequence[Sequence[int]]) -> torch.Tensor:
        """Append tokens to each text, to one of them at least. Logits ``[texts, most tokens, V]``; those behind the
        tokens of a text mean nothing."""
        lengths = torch.tensor([len(tokens) for tokens in token_ids])
        width = int(lengths.max())
        inputs = torch.tensor([[*tokens, *[0] * (width - len(tokens))] for tokens in token_ids])
        offsets = torch.arange(width)
        positions = self._is_token.sum(1, keepdim=True) + offsets
        self._is_token = torch.cat([self._is_token, offsets < lengths.unsqueeze(1)], dim=1)
        placement = {}
        if not self._is_token.all():
            device = self._model.device
            placement = {"attention_mask": self._is_token.long().to(device), "position_ids": positions.to(device)}
        with torch.inference_mode():
            output = self._model(
                input_ids=inputs.to(self._model.device), past_key_values=self._cache, use_cache=True, **placement
            )
        self._cache = output.past_key_values
        self.num_passes += 1
        logits: torch.Tensor = output.logits
        return logits

    def forget(self, text: int, count: int) -> None:
        """Take off the last ``count`` tokens of a text."""
        if count == 0:
            return
        columns = self._is_token[text].nonzero().flatten()
        self._is_token[text, columns[len(columns) - count :]] = False
        width = int(self._is_token.any(0).nonzero().max()) + 1
        surplus = self._is_token.shape[1] - width
        if surplus > 0 and not any(self._cache.is_sliding):  # a window has nothing left of what was before it
            self._cache.crop(-surplus)
            self._is_token = self._is_token[:, :width]
