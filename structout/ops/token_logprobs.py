"""Logprobs, ranks and the likeliest tokens, of given tokens or of drawn ones."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from structout.ops import kernels
from structout.ops.row_parameters import empty_ids, float_parameter, row_parameters

kernels.require()
_token_logprobs = torch.ops.structout.token_logprobs.default
_masked_sample_topn = torch.ops.structout.masked_sample_topn.default

MAX_TOP_N = 64


class TokenLogprobs(NamedTuple):
    """The logprobs of one token per row, and the likeliest tokens of the row.

    Attributes:
        logprobs: float32 ``[N]``. -inf where the token does not count: it is
            disallowed, NaN, -inf, or no token id.
        ranks: int64 ``[N]``, 1 + the number of tokens with a higher logit. 0 where the
            token does not count.
        top_ids: int64 ``[N, top_n]``, the likeliest tokens in descending order, the
            lowest id first on ties. -1 where there are fewer.
        top_logprobs: float32 ``[N, top_n]``, -inf where there are fewer.
    """

    logprobs: torch.Tensor
    ranks: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor


class TopnSample(NamedTuple):
    """The drawn tokens, int64 ``[N]``, and the fields of :class:`TokenLogprobs`."""

    ids: torch.Tensor
    logprobs: torch.Tensor
    ranks: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor


def token_logprobs(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    bitmask: torch.Tensor | None = None,
    rows: torch.Tensor | None = None,
    *,
    temperature: torch.Tensor | float | None = None,
    top_n: int = 0,
) -> TokenLogprobs:
    """Compute the logprob and rank of one token per row, and the likeliest tokens.

    ``token_logprobs(logits [N, V], token_ids [N], bitmask, rows, *, temperature [N],
    top_n) -> (logprobs [N], ranks [N], top_ids [N, top_n], top_logprobs [N, top_n])``

    Equivalent to::

        scores = logits.float() / temperature                # temperature 0: as 1
        apply_bitmask(scores, bitmask, rows)
        scores = scores.log_softmax(-1)                      # NaN counts as -inf
        logprobs = scores.gather(-1, token_ids[:, None]).squeeze(-1)
        ranks = 1 + (scores > logprobs[:, None]).sum(-1)
        top_logprobs, top_ids = scores.topk(top_n)           # ties: the lowest id first

    Without a mask and a temperature these are the raw logprobs of the model: of a
    prompt, for example. Every backend returns the same bits.

    Args:
        logits: ``[N, V]`` or ``[V]`` (one row), float32, float16 or bfloat16, V below
            2^23. Any row stride. Only read.
        token_ids: int64 ``[N]``. Rows whose id is negative are skipped: their results
            are -inf, 0 and -1.
        bitmask: as in :func:`masked_sample`. None: all tokens count.
        rows: as in :func:`masked_sample`.
        temperature: float32 ``[N]`` or a number, as in :func:`masked_sample`. None: 1.
            Rows with an invalid value are skipped.
        top_n: how many of the likeliest tokens to return, 0 to 64.

    Raises:
        ValueError: a dtype, rank, shape, stride or device is wrong (in torch 2.15 a
            RuntimeError), or a number is out of range.
        TypeError: the temperature is neither a tensor nor a number.
        RuntimeError: logits require a gradient, which this op does not have.
    """
    _refuse_gradients("token_logprobs", logits)
    if temperature is not None:
        temperature = float_parameter("token_logprobs", "temperature", temperature, logits)
    return TokenLogprobs(*_token_logprobs(logits, bitmask, rows, temperature, token_ids, top_n))


def masked_sample_topn(
    logits: torch.Tensor,
    bitmask: torch.Tensor | None = None,
    rows: torch.Tensor | None = None,
    *,
    top_n: int,
    raw: bool = False,
    temperature: torch.Tensor | float = 1.0,
    top_k: torch.Tensor | int | None = None,
    top_p: torch.Tensor | float | None = None,
    min_p: torch.Tensor | float | None = None,
    seed: torch.Tensor | int = 0,
    position: torch.Tensor | int = 0,
) -> TopnSample:
    """Draw one token from each row as :func:`masked_sample` does, with its logprob, its
    rank and the likeliest tokens.

    ``masked_sample_topn(logits [N, V], ..., *, top_n, raw) -> (ids [N], logprobs [N],
    ranks [N], top_ids [N, top_n], top_logprobs [N, top_n])``

    Equivalent to::

        ids = masked_sample(logits, bitmask, rows, ...)
        if raw:
            return ids, *token_logprobs(logits, ids, top_n=top_n)
        return ids, *token_logprobs(
            logits, ids, bitmask, rows, temperature=temperature, top_n=top_n
        )

    The arguments are those of :func:`masked_sample`, and:

    Args:
        top_n: how many of the likeliest tokens to return, 0 to 64.
        raw: take logprobs and ranks from the logits as they are, before mask and
            temperature. Otherwise they are those among the allowed tokens after
            temperature, before the filters.

    Returns:
        a :class:`TopnSample`. A row with id -1 has logprobs of -inf, rank 0 and top ids
        of -1.

    Raises:
        ValueError: as :func:`masked_sample`; or top_n is out of range.
        TypeError: as :func:`masked_sample`.
        RuntimeError: logits require a gradient, which the logprobs do not have.
    """
    _refuse_gradients("masked_sample_topn", logits)
    parameters = row_parameters(logits, temperature, top_k, top_p, min_p, seed, position)
    return TopnSample(*_masked_sample_topn(logits, bitmask, rows, *parameters, top_n, raw))


def log_kept(
    logits: torch.Tensor,
    bitmask: torch.Tensor | None,
    rows: torch.Tensor | None = None,
    *,
    temperature: torch.Tensor | float | None = None,
) -> torch.Tensor:
    """Compute the log of the probability that a mask leaves of each row.

    ``log_kept(logits [N, V], bitmask, rows, *, temperature [N]) -> [N]``

    Equivalent to::

        p = (logits.float() / temperature).softmax(-1)       # temperature 0: as 1
        apply_bitmask(p, bitmask, rows, fill_value=0)
        return p.sum(-1).log()

    Summed over the steps of a text it is the weight with which constrained samples
    become samples of the model's own distribution given the constraint (Lipkin et al.,
    "Fast controlled generation from language models with adaptive weighted rejection
    sampling", arXiv:2504.05410). Every backend returns the same bits, and so do shards.

    Args:
        logits: as in :func:`token_logprobs`, as are all other arguments.
        bitmask: see ``logits``.
        rows: see ``logits``.
        temperature: see ``logits``.

    Returns:
        float32 ``[N]``, at most 0, which rows without a mask have. -inf where nothing
        is allowed.

    Raises:
        ValueError: as :func:`token_logprobs`, as are the others.
        TypeError: see above.
        RuntimeError: see above.
    """
    return log_kept_by(partial(token_logprobs, logits, temperature=temperature), logits, bitmask, rows)


def log_kept_by(
    compute: Callable[..., TokenLogprobs],
    logits: torch.Tensor,
    bitmask: torch.Tensor | None,
    rows: torch.Tensor | None,
) -> torch.Tensor:
    """The logprob of each row's likeliest allowed token without the mask, less that
    with it. ``compute(token_ids, bitmask, rows, top_n=0)`` is :func:`token_logprobs`
    without its other arguments."""
    any_ids = torch.zeros(len(torch.atleast_2d(logits)), dtype=torch.int64, device=logits.device)
    allowed = compute(any_ids, bitmask, rows, top_n=1)
    likeliest = allowed.top_ids[:, 0]
    kept = compute(likeliest).logprobs - allowed.top_logprobs[:, 0]
    return torch.where(likeliest < 0, -torch.inf, kept.clamp(max=0))


def check_top_n(op: str, top_n: int) -> None:
    """Raise ``ValueError`` if ``top_n`` is out of range."""
    if not 0 <= top_n <= MAX_TOP_N:
        raise ValueError(f"{op}: top_n must be in [0, {MAX_TOP_N}], got {top_n}")


def _refuse_gradients(op: str, logits: torch.Tensor) -> None:
    if logits.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(f"{op} has no gradient; call it under torch.inference_mode() or torch.no_grad()")


def empty_token_logprobs(
    logits: torch.Tensor, top_n: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Uninitialized results of token_logprobs for these logits."""
    num_rows = logits.shape[0] if logits.dim() == 2 else 1
    return (
        logits.new_empty(num_rows, dtype=torch.float32),
        logits.new_empty(num_rows, dtype=torch.int64),
        logits.new_empty(num_rows, top_n, dtype=torch.int64),
        logits.new_empty(num_rows, top_n, dtype=torch.float32),
    )


@torch.library.register_fake("structout::token_logprobs")
def _(logits: torch.Tensor, *arguments: object) -> tuple[torch.Tensor, ...]:
    top_n = arguments[-1]
    assert isinstance(top_n, int)
    return empty_token_logprobs(logits, top_n)


@torch.library.register_fake("structout::masked_sample_topn")
def _(logits: torch.Tensor, *arguments: object) -> tuple[torch.Tensor, ...]:
    top_n = arguments[-2]
    assert isinstance(top_n, int)
    return empty_ids(logits), *empty_token_logprobs(logits, top_n)
