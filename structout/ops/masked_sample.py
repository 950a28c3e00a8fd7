"""Draws a token from each row: the ops ``masked_sample`` and
``masked_sample_logprobs``."""

import torch

from structout.masks.batch import MaskBatch
from structout.ops import kernels
from structout.ops.mask_arguments import mask_tensors
from structout.ops.row_parameters import empty_ids, row_parameters

kernels.require()
_masked_sample = torch.ops.structout.masked_sample.default
_masked_sample_logprobs = torch.ops.structout.masked_sample_logprobs.default


def masked_sample(
    logits: torch.Tensor,
    bitmask: torch.Tensor | MaskBatch | None = None,
    rows: torch.Tensor | None = None,
    *,
    temperature: torch.Tensor | float = 1.0,
    top_k: torch.Tensor | int | None = None,
    top_p: torch.Tensor | float | None = None,
    min_p: torch.Tensor | float | None = None,
    seed: torch.Tensor | int = 0,
    position: torch.Tensor | int = 0,
) -> torch.Tensor:
    """Draw one token from each row: mask, temperature, min-p, top-k, top-p and
    sampling.

    ``masked_sample(logits [N, V], bitmask [R, ceil(V / 32)] | None, rows [N] | None, *,
    temperature [N], top_k [N], top_p [N], min_p [N], seed [N], position [N]) ->
    ids [N]``

    Equivalent, except for the source of randomness, to::

        scores = logits.float()
        apply_bitmask(scores, bitmask, rows)
        scores = scores / temperature
        scores = keep_top_p(keep_top_k(keep_min_p(scores)))  # the rest becomes -inf
        ids = torch.multinomial(scores.softmax(-1), 1).squeeze(-1)  # or the argmax

    Every backend returns the same ids. The noise depends on seed, position and token id
    alone, so a token does not depend on the batch, the row, the sharding or the device.
    docs/sampling_contract.md defines every operation.

    Args:
        logits: ``[N, V]`` or ``[V]`` (one row), float32, float16 or bfloat16, V below
            2^23. Any row stride. Only read.
        bitmask: as in :func:`apply_bitmask`. None: every token is allowed.
        rows: as in :func:`apply_bitmask`. In rows that are -1 every token is allowed.
        temperature: float32 ``[N]`` or a number. 0 is greedy: the largest logit, the
            lowest id on ties.
        top_k: int32 or int64 ``[N]`` or an int. Keep logits that reach the k-th
            largest. k <= 0 turns it off.
        top_p: float32 ``[N]`` or a number. Keep the smallest set of largest logits
            whose probability reaches p. p >= 1 turns it off.
        min_p: float32 ``[N]`` or a number. Keep tokens that are at least ``min_p``
            times as likely as the likeliest. 0 turns it off.
        seed: int64 ``[N]`` or an int. A uint64 int counts as the int64 with its bits.
        position: int64 ``[N]`` or an int, the index of the token in its text. Do not
            repeat a (seed, position) pair.

    Tensors of parameters are on the device of logits, with any stride, 0 included.
    Under ``torch.compile`` a number is a constant; pass a tensor for what changes from
    step to step.

    Returns:
        int64 ``[N]``. The id is -1 where no token can be drawn: nothing is allowed, an
        allowed logit is NaN, the row id is out of range, or a parameter tensor has an
        invalid value (negative, infinite or NaN temperature; negative or NaN top_p or
        min_p).

    Raises:
        ValueError: a number is out of range; or a dtype, rank, shape, stride or device
            is wrong, which in torch 2.15 is a RuntimeError.
        TypeError: a parameter is neither a tensor nor a number, or ``bitmask`` is no
            mask.

    Source: the draw is Gumbel-max with Philox noise, as in FlashSampling and vLLM. The
    order of the filters is vLLM's.
    """
    parameters = row_parameters(logits, temperature, top_k, top_p, min_p, seed, position)
    mask, rows = mask_tensors("masked_sample", logits, bitmask, rows)
    ids: torch.Tensor = _masked_sample(logits, mask, rows, *parameters)
    return ids


def masked_sample_logprobs(
    logits: torch.Tensor,
    bitmask: torch.Tensor | MaskBatch | None = None,
    rows: torch.Tensor | None = None,
    *,
    temperature: torch.Tensor | float = 1.0,
    top_k: torch.Tensor | int | None = None,
    top_p: torch.Tensor | float | None = None,
    min_p: torch.Tensor | float | None = None,
    seed: torch.Tensor | int = 0,
    position: torch.Tensor | int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token from each row as :func:`masked_sample` does, with its logprob.

    ``masked_sample_logprobs(the same arguments) -> (ids [N], logprobs [N])``

    Equivalent to::

        ids = masked_sample(logits, bitmask, rows, ...)
        scores = logits.float() / temperature            # temperature 0: logits.float()
        apply_bitmask(scores, bitmask, rows)
        logprobs = scores.log_softmax(-1).gather(-1, ids[:, None]).squeeze(-1)

    The arguments are those of :func:`masked_sample`.

    Returns:
        ids int64 ``[N]`` and logprobs float32 ``[N]``. A logprob is taken among the
        allowed tokens, after temperature and before the filters. It is -inf where the
        id is -1.

    Raises:
        ValueError: as :func:`masked_sample`.
        TypeError: as :func:`masked_sample`.
        RuntimeError: logits require a gradient, which the logprobs do not have.
    """
    if logits.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            "masked_sample_logprobs has no gradient; call it under torch.inference_mode() or torch.no_grad(), and for "
            "a gradient take log_softmax of the masked logits at the ids"
        )
    parameters = row_parameters(logits, temperature, top_k, top_p, min_p, seed, position)
    mask, rows = mask_tensors("masked_sample_logprobs", logits, bitmask, rows)
    ids, logprobs = _masked_sample_logprobs(logits, mask, rows, *parameters)
    return ids, logprobs


@torch.library.register_fake("structout::masked_sample")
def _(logits: torch.Tensor, *_: torch.Tensor | None) -> torch.Tensor:
    return empty_ids(logits)


@torch.library.register_fake("structout::masked_sample_logprobs")
def _(logits: torch.Tensor, *_: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    ids = empty_ids(logits)
    return ids, ids.new_empty(ids.shape, dtype=torch.float32)
