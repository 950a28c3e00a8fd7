"""A transformers model whose KV cache serves texts that grow and shrink
independently."""

from collections.abc import Sequence
from typing import Any

import torch


class CachedModel:
    """A model and the KV cache of a batch of texts.

    Every forward pass adds the same number of columns to the cache for all texts. Where
    a text got fewer tokens, or has forgotten some, its columns are gaps that attention
    masks out. With sliding-window attention gaps still take up room in the window.

    Args:
        model: a transformers causal LM whose cache holds keys and values.
        num_texts: the size of the batch. All texts start empty.
    """

    def __init__(self, model: Any, num_texts: int):
        self._model = model
        self._cache: Any = None
        self._is_token = torch.zeros(num_texts, 0, dtype=torch.bool)  # [texts, columns of the cache]
        self.num_passes = 0

    def forward(self, token_ids: Sequence[Sequence[int]]) -> torch.Tensor:
        """Append tokens to each text and return their logits.

        Args:
            token_ids: new tokens of each text. Some, but not all, may be empty.

        Returns:
            ``[texts, longest, V]``. Logits past the tokens of a text are undefined.
        """
        lengths = torch.tensor([len(tokens) for tokens in token_ids])
        width = int(lengths.max())
        inputs = torch.tensor([[*tokens, *[0] * (width - len(tokens))] for tokens in token_ids])
        offsets = torch.arange(width)
        is_token = offsets < lengths.unsqueeze(1)
        # Gaps take position 0: one past the tokens might be past the model's limit.
        positions = torch.where(is_token, self._is_token.sum(1, keepdim=True) + offsets, 0)
        self._is_token = torch.cat([self._is_token, is_token], dim=1)
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
        """Remove the last ``count`` tokens of a text."""
        if count == 0:
            return
        columns = self._is_token[text].nonzero().flatten()
        self._is_token[text, columns[len(columns) - count :]] = False
        width = int(self._is_token.any(0).nonzero().max()) + 1
        surplus = self._is_token.shape[1] - width
        # A sliding window has dropped what came before it, so its cache cannot be
        # cropped.
        if surplus > 0 and not any(self._cache.is_sliding):
            self._cache.crop(-surplus)
            self._is_token = self._is_token[:, :width]
