"""The part of vLLM's model runner V2 that samples, without a model: its own classes and
kernels, the latter under Triton's interpreter."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from support import vllm_under_interpreter  # noqa: F401  before vLLM

import vllm.v1.worker.cpu.shm  # noqa: F401  replaces streams and pinned memory, as vLLM's CPU worker does  isort: skip
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import GrammarOutput
from vllm.v1.worker.gpu import structured_outputs
from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers, expand_idx_mapping
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler
from vllm.v1.worker.gpu.states import RequestState

from structout import MaskBatch

CPU = torch.device("cpu")
_sample, _verify = Sampler.__call__, RejectionSampler.__call__  # without hooks


@dataclass
class Request:
    request_id: str
    tokens: list[int]
    drafts: list[int] = field(default_factory=list)


class Worker:
    """A model runner that has no model: each step is given its logits.

    Args:
        vocab_size: V.
        num_drafts: the most drafts that a request can have.
        max_num_reqs: how many requests there can be.
        reasoning_config: vLLM's ``ReasoningConfig``.
        options: of vLLM's ``Sampler``.

    Attributes:
        logits: the last step's, which its sampler may have changed.
    """

    def __init__(
        self,
        vocab_size: int,
        num_drafts: int = 0,
        *,
        max_num_reqs: int = 16,
        reasoning_config: Any = None,
        **options: Any,
    ):
        self.vocab_size, self.requests = vocab_size, {}
        states = RequestState(max_num_reqs, 64, 256, num_drafts, vocab_size, CPU, use_dense_all_token_ids=True)
        config: Any = SimpleNamespace(reasoning_config=reasoning_config)
        self.runner = object.__new__(GPUModelRunner)
        self.sampler = Sampler(config, max_num_reqs, vocab_size, CPU, states, **options)
        speculation: Any = SimpleNamespace(
            num_speculative_tokens=num_drafts,
            enable_adaptive_verification=False,
            rejection_sample_method="standard",
            fly_entropy_threshold=0.3,
            fly_entropy_top_k=3,
        )
        num_rows = max_num_reqs * (1 + num_drafts)
        last = (1,) if hasattr(structured_outputs, "_build_grammar_mapping") else ()  # vLLM 0.32
        vars(self.runner).update(
            batch_sharder=None,
            device=CPU,
            is_last_pp_rank=True,
            model=SimpleNamespace(compute_logits=self._keep_logits),
            model_state=SimpleNamespace(postprocess_state=lambda *_: None),
            rejection_sampler=RejectionSampler(self.sampler, speculation, CPU) if num_drafts else None,
            req_states=states,
            sampler=self.sampler,
            speculator=SimpleNamespace(draft_logits=None),
            structured_outputs_worker=structured_outputs.StructuredOutputsWorker(
                num_rows, vocab_size, CPU, 1 + num_drafts, *last
            ),
        )
        self.states = states
        self.buffers = InputBuffers(max_num_reqs, 256, CPU)
        self.num_drafts = num_drafts

    def _keep_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        self.logits = hidden_states
        return hidden_states

    def add(
        self, request_id: str, params: SamplingParams, prompt: Sequence[int] = (1, 2, 3), output: Sequence[int] = ()
    ) -> Request:
        """Add a request whose output is already there."""
        self.states.add_request(request_id, len(prompt), list(prompt), 0, 32)
        self.sampler.add_request(self.states.req_id_to_index[request_id], params)
        self.states.apply_staged_writes()
        self.sampler.apply_staged_writes()
        request = self.requests[request_id] = Request(request_id, list(prompt))
        for token in output:
            self.commit(request, token)
        return request

    def commit(self, request: Request, token: int) -> None:
        """Postprocess one drawn token."""
        slot = torch.tensor([self.states.req_id_to_index[request.request_id]])
        one, none = torch.ones(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        self.runner.postprocess_sampled(slot, torch.tensor([[token]]), one, none)
        request.tokens.append(token)

    def batch(self, request_ids: Sequence[str] | None = None) -> InputBatch:
        """The input batch of the next step, as ``GPUModelRunner.prepare_inputs`` makes
        it."""
        requests = list(self.requests.values()) if request_ids is None else [self.requests[i] for i in request_ids]
        num_reqs = len(requests)
        slots = np.array([self.states.req_id_to_index[request.request_id] for request in requests])
        num_rows = np.array([1 + len(request.drafts) for request in requests], dtype=np.int32)
        has_drafts = bool((num_rows > 1).any())
        first_rows = np.concatenate([[0], np.cumsum(num_rows)]).astype(np.int32)
        fed = [token for request in requests for token in (request.tokens[-1], *request.drafts)]
        positions = [len(r.tokens) - 1 + j for r in requests for j in range(1 + len(r.drafts))]
        lengths = np.array([len(r.tokens) + len(r.drafts) for r in requests], dtype=np.int32)
        idx_mapping, cu_num_logits = torch.from_numpy(slots), torch.from_numpy(first_rows.copy())
        expanded, local = idx_mapping, torch.zeros(num_reqs, dtype=torch.int32)
        if has_drafts:
            expanded, local = expand_idx_mapping(idx_mapping, len(fed), cu_num_logits, 1 + self.num_drafts)
        return replace(
            InputBatch.make_dummy(num_reqs, len(fed), self.buffers),
            req_ids=[request.request_id for request in requests],
            idx_mapping=idx_mapping,
            idx_mapping_np=slots,
            expanded_idx_mapping=expanded,
            expanded_local_pos=local,
            num_draft_tokens=len(fed) - num_reqs,
            num_draft_tokens_per_req=num_rows - 1 if has_drafts else None,
            query_start_loc=cu_num_logits.clone(),
            query_start_loc_np=first_rows,
            seq_lens=torch.from_numpy(lengths),
            seq_lens_cpu_upper_bound=torch.from_numpy(lengths.copy()),
            input_ids=torch.tensor(fed, dtype=torch.int32),
            positions=torch.tensor(positions),
            logits_indices=torch.arange(len(fed)),
            cu_num_logits=cu_num_logits,
            cu_num_logits_np=first_rows,
        )

    def sample(self, logits: torch.Tensor, masks: MaskBatch | None = None, **batch_options: Any) -> Any:
        """A step of the real ``GPUModelRunner.sample``."""
        grammar_output = None
        if masks is not None:
            grammar_output = GrammarOutput(list(masks.request_ids), masks, masks.num_acceptable_drafts.tolist())
        batch = self.batch(**batch_options)
        with torch.inference_mode():
            output, num_sampled, num_rejected = self.runner.sample(logits, batch, grammar_output)
        assert output.num_sampled is num_sampled
        assert output.num_rejected is num_rejected
        return output

    def sample_as_vllm(self, logits: torch.Tensor, invalid_drafts: torch.Tensor | None = None) -> Any:
        """The same step without the hooks, on logits that are masked already."""
        batch = self.batch()
        with torch.inference_mode():
            if batch.num_draft_tokens == 0:
                return _sample(self.sampler, logits, batch)
            return _verify(self.runner.rejection_sampler, logits, batch, None, invalid_drafts)


def tokens_of(output: Any) -> list[list[int]]:
    """The new tokens of each request, as vLLM's ``AsyncOutput`` reads them."""
    ids = output.sampled_token_ids.tolist()
    return [row[:count] for row, count in zip(ids, output.num_sampled.tolist(), strict=True)]
