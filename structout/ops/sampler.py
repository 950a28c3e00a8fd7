"""MaskedSampler: ``masked_sample`` as a module, in place of an engine's sampler."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch

from structout.masks.batch import MaskBatch
from structout.ops.listed_logits import apply_logit_bias, apply_penalties
from structout.ops.masked_sample import masked_sample
from structout.ops.token_logprobs import check_top_n, token_logprobs
from structout.ops.verify_drafts import verify_drafts


@dataclass(frozen=True)
class SamplingParams:
    """The per-row parameters of :func:`structout.masked_sample`, with the same meaning.

    Each is a number for all rows, or a tensor ``[N]`` on the logits' device.

    Attributes:
        temperature: float32. 0 is greedy.
        top_k: int32 or int64; None or k <= 0 turns it off.
        top_p: float32; None or p >= 1 turns it off.
        min_p: float32; None or 0 turns it off.
        seed: int64.
        position: int64, the index of the token in its text. Do not repeat a
            (seed, position) pair.
    """

    temperature: torch.Tensor | float = 1.0
    top_k: torch.Tensor | int | None = None
    top_p: torch.Tensor | float | None = None
    min_p: torch.Tensor | float | None = None
    seed: torch.Tensor | int = 0
    position: torch.Tensor | int = 0


@dataclass(frozen=True)
class DeviceMasks:
    """A step's masks on the worker's device, in the order of the worker's batch.

    Attributes:
        bitmask: int32 ``[R, ceil(V / 32)]``.
        rows: int32 ``[N]``, the bitmask row of each logits row, -1 for none.
    """

    bitmask: torch.Tensor
    rows: torch.Tensor

    @classmethod
    def of(
        cls,
        masks: MaskBatch,
        request_ids: Sequence[str],
        device: torch.device | str,
        num_logits_per_request: Sequence[int] | None = None,
    ) -> "DeviceMasks":
        """Copy a step's masks to the device.

        Args:
            masks: the step's masks.
            request_ids: the requests of the worker's batch, in order.
            device: the device of the logits.
            num_logits_per_request: how many logits rows each request has. Default: one
                each.
        """
        rows = masks.rows_for(request_ids, num_logits_per_request)
        return cls(masks.to(device), rows.to(device, non_blocking=True))


@dataclass(frozen=True)
class Penalties:
    """The arguments of :func:`structout.apply_penalties` beside the logits."""

    indptr: torch.Tensor
    token_ids: torch.Tensor
    output_counts: torch.Tensor
    repetition: torch.Tensor | float = 1.0
    frequency: torch.Tensor | float = 0.0
    presence: torch.Tensor | float = 0.0


@dataclass(frozen=True)
class LogitBias:
    """The arguments of :func:`structout.apply_logit_bias` beside the logits."""

    indptr: torch.Tensor
    token_ids: torch.Tensor
    bias: torch.Tensor


@dataclass(frozen=True)
class Drafts:
    """The drafts of :func:`structout.verify_drafts`.

    Attributes:
        token_ids: int64 ``[T]``, the token that each logits row is to confirm.
        row_indptr: int32 or int64 ``[B + 1]``, the first row of each request.
    """

    token_ids: torch.Tensor
    row_indptr: torch.Tensor


class SamplerOutput(NamedTuple):
    """The drawn tokens of one call. Fields that the call did not ask for are None.

    Attributes:
        ids: int64 ``[N]``. -1 where no token can be drawn, or after a draft that was
            not accepted. Replace it before the next forward pass: it is no index of an
            embedding.
        logprobs: float32 ``[N]``, as :class:`structout.TokenLogprobs`.
        ranks: int64 ``[N]``, as :class:`structout.TokenLogprobs`.
        top_ids: int64 ``[N, top_n]``, as :class:`structout.TokenLogprobs`.
        top_logprobs: float32 ``[N, top_n]``, as :class:`structout.TokenLogprobs`.
        num_accepted: int32 ``[B]``, as :func:`structout.verify_drafts`.
    """

    ids: torch.Tensor
    logprobs: torch.Tensor | None = None
    ranks: torch.Tensor | None = None
    top_ids: torch.Tensor | None = None
    top_logprobs: torch.Tensor | None = None
    num_accepted: torch.Tensor | None = None


class MaskedSampler(torch.nn.Module):
    """Penalties, bias, mask, filters, the draw and its logprobs, for a whole batch.

    It has no state, and no branch depends on the contents of the batch, so it compiles
    to one graph and can be captured in a CUDA graph.

    Args:
        top_n: also return the logprob and rank of each drawn token, and the ``top_n``
            likeliest tokens, 0 to 64. None: only ids.
        raw: take logprobs and ranks from the logits as they come, before penalties,
            bias, mask and temperature. Otherwise they are those among the allowed
            tokens after temperature, before the filters.

    Raises:
        ValueError: ``top_n`` is out of range.
    """

    def __init__(self, *, top_n: int | None = None, raw: bool = False):
        super().__init__()
        if top_n is not None:
            check_top_n("MaskedSampler", top_n)
        self.top_n = top_n
        self.raw = raw

    def forward(
        self,
        logits: torch.Tensor,
        masks: DeviceMasks | MaskBatch | None,
        params: SamplingParams,
        *,
        penalties: Penalties | None = None,
        bias: LogitBias | None = None,
        drafts: Drafts | None = None,
    ) -> SamplerOutput:
        """Draw one token from each row.

        Args:
            logits: ``[N, V]``, float32, float16 or bfloat16. Penalties and bias change
                them in place, in this order; otherwise they are only read.
            masks: the step's masks; None if no row is constrained. A ``MaskBatch`` is
                copied to the device, in an eager call; its requests are the rows of
                logits, in their order.
            params: the sampling parameters of each row.
            penalties: the tokens to penalize.
            bias: the biased tokens.
            drafts: the drafts to verify.

        Returns:
            a :class:`SamplerOutput`; ``num_accepted`` if there are drafts.

        Raises:
            ValueError: as the ops.
        """
        if isinstance(masks, MaskBatch):
            rows = masks.rows_in_order(logits.shape[0])
            masks = DeviceMasks(masks.to(logits.device), rows.to(logits.device, non_blocking=True))
        raw_logits = unchanged_logits(logits, penalties, bias) if self.raw and self.top_n is not None else logits
        change_listed(logits, penalties, bias)
        arguments = op_arguments(masks, params)
        num_accepted = None
        if drafts is None:
            ids = masked_sample(logits, **arguments)
        else:
            ids, num_accepted = verify_drafts(logits, drafts.token_ids, drafts.row_indptr, **arguments)
        if self.top_n is None:
            return SamplerOutput(ids, num_accepted=num_accepted)
        context = {} if self.raw else logprob_context(arguments)
        logprobs = token_logprobs(raw_logits, ids, **context, top_n=self.top_n)
        return SamplerOutput(ids, *logprobs, num_accepted=num_accepted)


def unchanged_logits(logits: torch.Tensor, penalties: Penalties | None, bias: LogitBias | None) -> torch.Tensor:
    """The logits, or a copy if penalties or bias will change them."""
    return logits if penalties is None and bias is None else logits.clone()


def logprob_context(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the draw on which logprobs depend."""
    return {name: arguments[name] for name in ("bitmask", "rows", "temperature") if name in arguments}


def change_listed(
    logits: torch.Tensor, penalties: Penalties | None, bias: LogitBias | None, vocab_begin: int = 0
) -> None:
    """Apply penalties, then bias, to columns that begin at token ``vocab_begin``."""
    if penalties is not None:
        p = penalties
        per_row = {"repetition": p.repetition, "frequency": p.frequency, "presence": p.presence}
        apply_penalties(logits, p.indptr, _shifted(p.token_ids, vocab_begin), p.output_counts, **per_row)
    if bias is not None:
        apply_logit_bias(logits, bias.indptr, _shifted(bias.token_ids, vocab_begin), bias.bias)


def _shifted(token_ids: torch.Tensor, vocab_begin: int) -> torch.Tensor:
    return token_ids if vocab_begin == 0 else token_ids - vocab_begin


def op_arguments(masks: DeviceMasks | None, params: SamplingParams) -> dict[str, Any]:
    """The keyword arguments of ``masked_sample`` for these masks and parameters."""
    arguments = {field.name: getattr(params, field.name) for field in fields(params)}
    if masks is not None:
        arguments |= {"bitmask": masks.bitmask, "rows": masks.rows}
    return arguments
