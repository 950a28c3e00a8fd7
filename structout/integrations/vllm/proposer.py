"""Jump-forward decoding as lossless drafts, through vLLM's custom proposers.

``speculative_config={"method": "custom_class", "num_speculative_tokens": 8,
"model": "structout.integrations.vllm.proposer.Proposer"}``

The worker asks for drafts without knowing the grammars. The scheduler, which validates
all drafts, replaces them by the tokens that must follow.
"""

from collections.abc import Sequence
from typing import Any


class Proposer:
    """Proposes placeholders for the tokens that the grammar forces.

    Args:
        vllm_config: vLLM's config; ``num_speculative_tokens`` limits a jump.
    """

    def __init__(self, vllm_config: Any):
        self._num_drafts = vllm_config.speculative_config.num_speculative_tokens

    def propose(self, sampled_token_ids: Sequence[Sequence[int]], *_: Any, **__: Any) -> list[list[int]]:
        """Return ``num_speculative_tokens`` placeholders for each text that goes on."""
        return [[0] * self._num_drafts if tokens else [] for tokens in sampled_token_ids]

    def load_model(self, *_: Any, **__: Any) -> None:
        """Do nothing: the drafts need no model."""


def is_jump_forward(speculative_config: Any) -> bool:
    """True if vLLM is configured to draft with :class:`Proposer`."""
    return speculative_config is not None and speculative_config.model == f"{Proposer.__module__}.{Proposer.__name__}"
