"""The tokens whose logits a batch's requests change: by penalties and by a bias."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from structout.integrations.vllm.layout import Layout
from structout.ops.sampler import LogitBias, Penalties

_Array = npt.NDArray[Any]


class TokenCounts:
    """The number of times each token of a request is in its output: 0 for one that only
    the prompt has.

    Args:
        prompt_token_ids: the tokens of the prompt.
    """

    def __init__(self, prompt_token_ids: Sequence[int]):
        self._prompt = prompt_token_ids
        self._count_of: dict[int, int] = {}
        self._num_counted = 0
        self._forget_output()

    def update(self, output_token_ids: Sequence[int]) -> None:
        """Count the output, of which only the end is new in most steps."""
        if len(output_token_ids) < self._num_counted:  # vLLM has taken tokens back
            self._forget_output()
        _count(self._count_of, output_token_ids[self._num_counted :])
        self._num_counted = len(output_token_ids)

    def with_drafts(self, drafts: Sequence[int]) -> Mapping[int, int]:
        """The count of each token of prompt, output and drafts."""
        if not drafts:
            return self._count_of
        count_of = dict(self._count_of)
        _count(count_of, drafts)
        return count_of

    def _forget_output(self) -> None:
        self._count_of = dict.fromkeys(self._prompt, 0)
        self._num_counted = 0


def _count(count_of: dict[int, int], tokens: Iterable[int]) -> None:
    for token in tokens:
        count_of[token] = count_of.get(token, 0) + 1


class TokenLists:
    """Makes the arguments of ``apply_penalties`` and ``apply_logit_bias`` for each step
    of a vLLM worker.

    Args:
        device: the device of the logits.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._counts: dict[str, TokenCounts] = {}

    def penalties(self, layout: Layout, requests: Sequence[Any]) -> Penalties | None:
        """The penalized tokens of each logits row.

        Args:
            layout: the rows of the step.
            requests: those of the batch that have penalties.
        """
        self._counts = {r.req_id: self._counts.get(r.req_id) or TokenCounts(r.prompt_token_ids or ()) for r in requests}
        if not requests:
            return None
        for request in requests:
            self._counts[request.req_id].update(request.output_token_ids)
        counts_of_row = {
            row: self._counts[request.req_id].with_drafts(drafts) for request, row, drafts in layout.rows_of(requests)
        }
        indptr, token_ids, counts = _csr(layout.num_rows, counts_of_row, np.int64)
        parameters = np.array([[1.0, 0.0, 0.0]] * layout.num_rows, dtype=np.float32)
        for request, row, _ in layout.rows_of(requests):
            p = request.sampling_params
            parameters[row] = p.repetition_penalty, p.frequency_penalty, p.presence_penalty
        repetition, frequency, presence = self._copy(parameters.T)
        return Penalties(self._copy(indptr), self._copy(token_ids), self._copy(counts), repetition, frequency, presence)

    def bias(self, layout: Layout, requests: Sequence[Any]) -> LogitBias | None:
        """The biased tokens of each logits row.

        Args:
            layout: the rows of the step.
            requests: those of the batch that have a logit bias.
        """
        bias_of_row = {row: request.sampling_params.logit_bias for request, row, _ in layout.rows_of(requests)}
        if not bias_of_row:
            return None
        return LogitBias(*map(self._copy, _csr(layout.num_rows, bias_of_row, np.float32)))

    def _copy(self, array: _Array) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device, non_blocking=True)


def _csr(num_rows: int, values_of_row: Mapping[int, Mapping[int, float]], dtype: Any) -> Iterator[_Array]:
    """The row boundaries, tokens and values of sparse rows."""
    lengths = np.zeros(num_rows + 1, dtype=np.int64)
    rows = sorted(values_of_row)
    lengths[[row + 1 for row in rows]] = [len(values_of_row[row]) for row in rows]
    yield lengths.cumsum()
    num_values = int(lengths.sum())
    yield np.fromiter((token for row in rows for token in values_of_row[row]), np.int64, num_values)
    yield np.fromiter((value for row in rows for value in values_of_row[row].values()), dtype, num_values)
