"""Ops that change a few listed logits of each row in place: penalties and bias."""

import torch

from structout.ops import kernels
from structout.ops.row_parameters import float_parameter

kernels.require()
_apply_penalties = torch.ops.structout.apply_penalties.default
_apply_logit_bias = torch.ops.structout.apply_logit_bias.default


def apply_penalties(
    logits: torch.Tensor,
    indptr: torch.Tensor,
    token_ids: torch.Tensor,
    output_counts: torch.Tensor,
    *,
    repetition: torch.Tensor | float = 1.0,
    frequency: torch.Tensor | float = 0.0,
    presence: torch.Tensor | float = 0.0,
) -> None:
    """Penalize the tokens of prompt and output, in place.

    ``apply_penalties(logits [N, V], indptr [N + 1], token_ids [M], output_counts [M],
    *, repetition [N], frequency [N], presence [N]) -> None``

    Equivalent to::

        for i in range(N):
            for j in range(indptr[i], indptr[i + 1]):
                x, count = logits[i, token_ids[j]].float(), output_counts[j]
                x = x / repetition[i] if x > 0 else x * repetition[i]
                x = x - frequency[i] * count - presence[i] * (count > 0)
                logits[i, token_ids[j]] = x              # rounded once to logits.dtype

    It touches only listed logits, so rows that list nothing cost nothing.

    Args:
        logits: ``[N, V]`` or ``[V]`` (one row), float32, float16 or bfloat16, V below
            2^23. Any row stride.
        indptr: int32 or int64 ``[N + 1]``. Row i lists entries ``indptr[i]`` to
            ``indptr[i + 1]``. Values are clamped to ``[0, M]``.
        token_ids: int32 or int64 ``[M]``, the distinct tokens of each row's prompt and
            output. Ids outside ``[0, V)`` are ignored, so a shard of the vocabulary
            takes ``token_ids - vocab_begin``. A repeated token is penalized once per
            entry, in order.
        output_counts: int32 or int64 ``[M]``, how often each token is in the output. 0:
            it is in the prompt only.
        repetition: float32 ``[N]`` or a number, for all listed tokens. 1 turns it off.
        frequency: float32 ``[N]`` or a number; 0 turns it off.
        presence: float32 ``[N]`` or a number; 0 turns it off.

    Raises:
        ValueError: a dtype, rank, shape, stride or device is wrong, or rows of logits
            overlap in memory. Nothing is written. In torch 2.15 it is a RuntimeError.
        TypeError: a penalty is neither a tensor nor a number.
        RuntimeError: logits require a gradient, which this op does not have.

    Source: repetition is CTRL's (Keskar et al., 2019), frequency and presence OpenAI's;
    the order is vLLM's.
    """
    _refuse_gradients("apply_penalties", logits)
    per_row = [
        float_parameter("apply_penalties", name, value, logits, minimum=-torch.inf)
        for name, value in (("repetition", repetition), ("frequency", frequency), ("presence", presence))
    ]
    _apply_penalties(logits, indptr, token_ids, output_counts, *per_row)


def apply_logit_bias(logits: torch.Tensor, indptr: torch.Tensor, token_ids: torch.Tensor, bias: torch.Tensor) -> None:
    """Add a bias to listed logits, in place.

    ``apply_logit_bias(logits [N, V], indptr [N + 1], token_ids [M], bias [M]) -> None``

    Equivalent to::

        for i in range(N):
            for j in range(indptr[i], indptr[i + 1]):
                logits[i, token_ids[j]] += bias[j]

    The sum is float32, rounded once to the dtype of logits. A bias of -inf bans a
    token.

    Args:
        logits: as in :func:`apply_penalties`.
        indptr: as in :func:`apply_penalties`.
        token_ids: as in :func:`apply_penalties`.
        bias: float32 ``[M]``.

    Raises:
        ValueError: as :func:`apply_penalties`.
        RuntimeError: logits require a gradient, which this op does not have.
    """
    _refuse_gradients("apply_logit_bias", logits)
    _apply_logit_bias(logits, indptr, token_ids, bias)


def _refuse_gradients(op: str, logits: torch.Tensor) -> None:
    if logits.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(f"{op} has no gradient; call it under torch.inference_mode() or torch.no_grad()")
