"""A decoding loop that does not wait for the CPU: the states of the constraints are on
the model's device."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from structout.grammar.native.device_fsm import DeviceFSM
from structout.integrations.transformers.decode import Monitor, Text
from structout.ops.fsm_states import FINISHED_STATE, FREE_STATE
from structout.ops.masked_sample import masked_sample
from structout.ops.sampler import SamplingParams
from structout.scheduler.manager import StructuredOutputManager

_STEPS_BETWEEN_CHECKS = 16
_MAX_MASKS = 1024


class DeviceDecodingLoop:
    """Decodes a batch of texts to their ends with a :class:`structout.DeviceFSM`.

    A step is a forward pass, :func:`structout.masked_sample` under the masks of the
    states, and :func:`structout.fsm_advance`. On CUDA it is captured as a graph once
    and replayed. The CPU looks at the states every 16 steps, to stop when all texts are
    complete.

    Args:
        model: a transformers causal LM that takes a ``StaticCache``.
        input_ids: int64 ``[N, C]``, the prompts, padded on the left.
        attention_mask: int64 ``[N, C]``, 0 for padding.
        texts: one for each row.
        fsm: holds the tables of the constraints.
        states: int32 ``[N]``, the states of the texts. The loop advances them.
        params: temperature and filters of all rows.
        max_tokens: the limit on each text.
        monitor: measures the stage "step".
    """

    def __init__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        texts: Sequence[Text],
        fsm: DeviceFSM,
        states: torch.Tensor,
        params: SamplingParams,
        max_tokens: int,
        monitor: Monitor,
    ):
        self._model = model
        self._prompts = input_ids
        self._texts = texts
        from transformers import StaticCache  # other loops need no transformers

        self._fsm = fsm
        self._params = params
        self._max_tokens = max_tokens
        self._monitor = monitor
        num_rows, device = len(input_ids), input_ids.device
        # A captured step reads and writes these in place.
        self._states = states
        self._attention_mask = torch.cat([attention_mask, attention_mask.new_ones(num_rows, max_tokens)], dim=1)
        self._seed = torch.tensor([text.row.seed for text in texts], device=device)
        self._position = torch.tensor([text.row.position for text in texts], device=device)
        self._cache = StaticCache(config=model.config, max_cache_len=input_ids.shape[1] + max_tokens)
        self._last_token = input_ids.new_zeros(num_rows, 1)
        self._token_ids = input_ids.new_full((num_rows, max_tokens), -1)
        self._num_tokens = torch.zeros(1, dtype=torch.int64, device=device)

    def run(self, accept: Callable[..., bool]) -> None:
        """Decode until every text is complete or has ``max_tokens`` tokens.

        Args:
            accept: see :meth:`ConstrainedSampler.accept`. Called when all is drawn.

        Raises:
            DeadEndError: nothing can be drawn from a row.
        """
        self._decode()
        for text, token_ids in zip(self._texts, self._token_ids.tolist(), strict=True):
            for token in token_ids:
                text.append([token], accept)
                if not text.is_live:
                    break
        self._monitor.after_step(self._texts)

    def _decode(self) -> None:
        with self._monitor.measure("prefill"):
            self._prefill()
        step = self._step
        for num_done in range(1, self._max_tokens):
            if num_done % _STEPS_BETWEEN_CHECKS == 0 and bool((self._states < FREE_STATE).all()):
                break
            with self._monitor.measure("step"):
                step()
            if num_done == 1 and self._prompts.is_cuda:  # the first step has warmed up the libraries
                step = self._captured_step()

    def _prefill(self) -> None:
        mask = self._attention_mask[:, : self._prompts.shape[1]]
        self._forward(self._prompts, (mask.cumsum(1) - 1).clamp(min=0))

    def _step(self) -> None:
        self._forward(self._last_token, (self._position - 1).unsqueeze(1))

    def _captured_step(self) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        return graph.replay

    def _forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> None:
        """Let the model read tokens, and draw the next one of each row."""
        logits = self._model(
            input_ids=input_ids,
            attention_mask=self._attention_mask,
            position_ids=position_ids,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        token_ids = masked_sample(
            logits,
            self._fsm.masks,
            self._fsm.rows(self._states),
            temperature=self._params.temperature,
            top_k=self._params.top_k,
            top_p=self._params.top_p,
            min_p=self._params.min_p,
            seed=self._seed,
            position=self._position,
        )
        self._fsm.advance(self._states, token_ids)
        self._token_ids.index_copy_(1, self._num_tokens, token_ids.unsqueeze(1))
        self._last_token.copy_(token_ids.clamp(min=0).unsqueeze(1))
        self._num_tokens += 1
        self._position += 1


def states_on_device(
    manager: StructuredOutputManager, request_ids: Sequence[str], device: torch.device
) -> tuple[DeviceFSM, torch.Tensor]:
    """Copy the automata of READY requests to a device, and return their states.

    Raises:
        ValueError: the engine of a request has no automaton.
    """
    positions = []
    for request_id in request_ids:
        tables = manager.device_tables(request_id)
        if tables is None:
            engine = manager.compiled(request_id).backend_name
            raise ValueError(
                f"request {request_id!r} is served by {engine}, which has no automaton of its constraint: "
                "only regular languages that the native backend serves can go to a device"
            )
        positions.append(tables)
    num_states = {id(tables.index): tables.index.num_states for tables in positions}
    fsm = DeviceFSM(
        manager.vocabulary,
        device,
        max_states=sum(num_states.values()),
        max_masks=min(sum(num_states.values()), _MAX_MASKS),
        max_rows=len(positions),
        max_grammars=len(positions),
        max_stop_tokens=max(len(tables.stop_token_ids) for tables in positions),
    )
    states = [
        FINISHED_STATE
        if tables.state is None
        else fsm.state_of(fsm.add(tables.index, tables.stop_token_ids), tables.state)
        for tables in positions
    ]
    return fsm, torch.tensor(states, dtype=torch.int32, device=device)
