"""Python wrappers of ``torch.ops.structout.*``, and a drop-in for xgrammar's mask
op."""

import operator
import warnings
from collections.abc import Iterable

import torch

from structout import _kernels
from structout.bitmask import BITS_PER_WORD, bitmask_width
from structout.parameters import float_parameter, integer_parameter

_kernels.require()
_apply_bitmask = torch.ops.structout.apply_bitmask.default
_masked_sample = torch.ops.structout.masked_sample.default
_masked_sample_logprobs = torch.ops.structout.masked_sample_logprobs.default
_verify_drafts = torch.ops.structout.verify_drafts.default


def apply_bitmask(logits: torch.Tensor, bitmask: torch.Tensor, rows: torch.Tensor | None = None) -> None:
    """Set the logits of disallowed tokens to -inf, in place.

    ``apply_bitmask(logits [N, V], bitmask [R, ceil(V / 32)], rows [N] | None) -> None``

    Equivalent to::

        allowed = unpack_bitmask(bitmask, logits.shape[-1])   # bool [R, V]
        if rows is not None:
            allowed = allowed[rows]                  # [N, V]; all True where rows == -1
        logits.masked_fill_(~allowed, float("-inf"))

    Args:
        logits: ``[N, V]`` or ``[V]`` (one row), float32, float16 or bfloat16. Any row
            stride and alignment.
        bitmask: int32 ``[R, W]`` or ``[W]`` on the device of logits. Token ``i`` is
            allowed where bit ``i & 31`` of word ``i >> 5`` is 1. Columns of logits past
            the last word are disallowed; bits past the last column are ignored.
        rows: int32 or int64 ``[N]`` on the device of logits, the bitmask row that
            governs each logits row. -1 leaves a logits row unchanged. Any other id
            outside ``[0, R)`` disallows the whole row. Default: bitmask row i governs
            logits row i, and R must equal N.

    Raises:
        ValueError: a dtype, rank, shape, stride or device is wrong, or rows of logits
            overlap in memory. Nothing is written. In torch 2.15 it is a RuntimeError.
        RuntimeError: logits require a gradient, which this op does not have.

    ``torch.ops.structout.apply_bitmask`` is the same op for use in model code. It does
    not check for gradients: autograd neither records it nor notices its writes.

    Source: the layout of the bitmask is xgrammar's and llguidance's.
    docs/mask_contract.md defines every edge case.
    """
    if logits.requires_grad and torch.is_grad_enabled():
        raise RuntimeError("apply_bitmask has no gradient; call it under torch.inference_mode() or torch.no_grad()")
    _apply_bitmask(logits, bitmask, rows)
    if logits.requires_grad and not logits.is_inference():
        torch.autograd.graph.increment_version(logits)


def apply_token_bitmask_inplace(
    logits: torch.Tensor,
    bitmask: torch.Tensor,
    *,
    vocab_size: int | None = None,
    indices: Iterable[int] | torch.Tensor | None = None,
    backend: str = "auto",
) -> None:
    """Apply a bitmask in place, with the semantics of xgrammar's function of this name.

    ``apply_token_bitmask_inplace(logits [N, V], bitmask [R, W], *, vocab_size,
    indices) -> None``

    To use it in place of xgrammar's, change the import and keep the call. Unlike
    :func:`apply_bitmask` it leaves columns from ``vocab_size`` on unchanged, and
    ``indices`` selects both the logits rows and the bitmask rows.

    Equivalent to::

        allowed = unpack_bitmask(bitmask, vocab_size)         # bool [R, vocab_size]
        for i in range(N) if indices is None else indices:
            logits[i, :vocab_size].masked_fill_(~allowed[i], float("-inf"))

    Args:
        logits: ``[N, V]`` or ``[V]``, float32, float16 or bfloat16.
        bitmask: int32 ``[R, W]`` or ``[W]``, on the device of logits.
        vocab_size: how many columns to mask. Default: ``min(V, 32 * W)``, with a
            warning if that is less than V.
        indices: the rows to mask: ints, or a 1-D int32 or int64 tensor. In a tensor,
            ids outside ``[0, N)`` are ignored. Default: all rows, and R must equal N.
        backend: ignored. The device and ``STRUCTOUT_BACKEND`` choose the kernels.

    Raises:
        ValueError: as :func:`apply_bitmask`, or ``vocab_size`` exceeds the columns of
            logits or the bits of bitmask. Nothing is written.
        IndexError: an int in ``indices`` is out of range. Nothing is written.
        RuntimeError: logits require a gradient.

    Source: xgrammar 0.2.8, ``xgrammar.apply_token_bitmask_inplace``.
    """
    if logits.dim() == 0 or bitmask.dim() == 0:
        raise ValueError("apply_token_bitmask_inplace: logits and bitmask must have 1 or 2 dimensions, got 0")
    columns, covered = logits.shape[-1], BITS_PER_WORD * bitmask.shape[-1]
    if vocab_size is None:
        vocab_size = min(columns, covered)
        if covered < columns:
            warnings.warn(
                f"the bitmask covers {covered} tokens and logits has {columns}: "
                f"logits[..., {covered}:] are left unmasked; "
                "allocate the bitmask for the whole vocabulary, or pass vocab_size",
                stacklevel=2,
            )
    elif not 0 <= vocab_size <= min(columns, covered):
        raise ValueError(
            f"apply_token_bitmask_inplace: vocab_size must be in [0, {min(columns, covered)}] for {columns} logits and "
            f"{covered} mask bits, got {vocab_size}"
        )
    rows = None
    if indices is not None:
        num_rows = logits.shape[0] if logits.dim() == 2 else 1
        num_masks = bitmask.shape[0] if bitmask.dim() == 2 else 1
        rows = _rows_at(indices, num_rows, num_masks, logits.device)
    apply_bitmask(logits[..., :vocab_size], bitmask[..., : bitmask_width(vocab_size)], rows)


def _rows_at(
    indices: Iterable[int] | torch.Tensor, num_rows: int, num_masks: int, device: torch.device
) -> torch.Tensor:
    """The row map in which each row of ``indices`` governs itself, and others are
    free."""
    if isinstance(indices, torch.Tensor):
        if indices.dim() != 1 or indices.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"indices must be a 1-D int32 or int64 tensor, got {indices.dtype} {list(indices.shape)}")
        chosen = indices.to(device=device, dtype=torch.int64)
        # Ids out of range go to a spare entry, so that the device never sees a bad
        # index.
        chosen = torch.where((chosen >= 0) & (chosen < num_rows), chosen, num_rows)
    else:
        limit = min(num_rows, num_masks)
        numbers = [operator.index(index) for index in indices]
        for index in numbers:
            if not 0 <= index < limit:
                raise IndexError(
                    f"indices must be in [0, {limit}) for {num_rows} logits and {num_masks} mask rows, got {index}"
                )
        chosen = torch.tensor(numbers, dtype=torch.int64, device=device)
    rows = torch.full((num_rows + 1,), -1, dtype=torch.int64, device=device)
    rows[chosen] = chosen
    return rows[:num_rows]


def masked_sample(
    logits: torch.Tensor,
    bitmask: torch.Tensor | None = None,
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
        TypeError: a parameter is neither a tensor nor a number.

    Source: the draw is Gumbel-max with Philox noise, as in FlashSampling and vLLM. The
    order of the filters is vLLM's.
    """
    parameters = row_parameters(logits, temperature, top_k, top_p, min_p, seed, position)
    ids: torch.Tensor = _masked_sample(logits, bitmask, rows, *parameters)
    return ids


def masked_sample_logprobs(
    logits: torch.Tensor,
    bitmask: torch.Tensor | None = None,
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
    ids, logprobs = _masked_sample_logprobs(logits, bitmask, rows, *parameters)
    return ids, logprobs


def verify_drafts(
    logits: torch.Tensor,
    drafts: torch.Tensor,
    row_indptr: torch.Tensor,
    bitmask: torch.Tensor | None = None,
    rows: torch.Tensor | None = None,
    *,
    temperature: torch.Tensor | float = 1.0,
    top_k: torch.Tensor | int | None = None,
    top_p: torch.Tensor | float | None = None,
    min_p: torch.Tensor | float | None = None,
    seed: torch.Tensor | int = 0,
    position: torch.Tensor | int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a token for each draft and one more, and count the drafts that were drawn.

    ``verify_drafts(logits [T, V], drafts [T], row_indptr [B + 1], bitmask, rows, *, the
    parameters of masked_sample) -> (ids [T], num_accepted [B])``

    Equivalent to::

        ids = masked_sample(logits, bitmask, rows, ...)
        for b in range(B):
            row, end = row_indptr[b], row_indptr[b + 1]
            while row + 1 < end and ids[row] == drafts[row] != -1:
                row += 1
            num_accepted[b] = row - row_indptr[b]
            ids[row + 1 : end] = -1

    Request b owns rows ``row_indptr[b]`` to ``row_indptr[b + 1]``: row j has the logits
    after j drafts, so a request with k drafts owns k + 1 rows. Its new tokens are
    ``ids[row_indptr[b] :][: num_accepted[b] + 1]``. They are those of decoding one by
    one with the same seeds and positions, if the drafts are a function of the text
    (n-grams, forced text) or were drawn with the noise of the same seed and position.

    Args:
        logits: ``[T, V]``, the rows of all requests.
        drafts: int64 ``[T]``, the token that each row is to confirm. -1 confirms
            nothing. A request's last entry is not read.
        row_indptr: int32 or int64 ``[B + 1]``, not decreasing.
        bitmask: as in :func:`masked_sample`.
        rows: as in :func:`masked_sample`; :meth:`MaskBatch.rows_for` makes it.
        temperature: as in :func:`masked_sample`, as are all other parameters. They are
            per row: a request's positions count up.
        top_k: see :func:`masked_sample`.
        top_p: see :func:`masked_sample`.
        min_p: see :func:`masked_sample`.
        seed: see :func:`masked_sample`.
        position: see :func:`masked_sample`.

    Returns:
        ids int64 ``[T]``, -1 after the first draft of a request that was not drawn; and
        num_accepted int32 ``[B]``.

    Raises:
        ValueError: as :func:`masked_sample`.
        TypeError: as :func:`masked_sample`.

    Source: speculative decoding (Leviathan et al., 2023) with Gumbel noise shared by
    drafter and target.
    """
    parameters = row_parameters(logits, temperature, top_k, top_p, min_p, seed, position)
    ids, num_accepted = _verify_drafts(logits, bitmask, rows, *parameters, drafts, row_indptr)
    return ids, num_accepted


def row_parameters(
    logits: torch.Tensor,
    temperature: torch.Tensor | float,
    top_k: torch.Tensor | int | None,
    top_p: torch.Tensor | float | None,
    min_p: torch.Tensor | float | None,
    seed: torch.Tensor | int,
    position: torch.Tensor | int,
) -> tuple[torch.Tensor | None, ...]:
    """The per-row parameters of the op: numbers become tensors ``[N]`` of stride 0.

    Raises:
        ValueError: a number is out of range.
        TypeError: a parameter is neither a tensor nor a number.
    """
    op = "masked_sample"
    return (
        float_parameter(op, "temperature", temperature, logits),
        None if top_k is None else integer_parameter(op, "top_k", top_k, logits, is_kept=True),
        None if top_p is None else float_parameter(op, "top_p", top_p, logits),
        None if min_p is None else float_parameter(op, "min_p", min_p, logits),
        integer_parameter(op, "seed", seed, logits),
        integer_parameter(op, "position", position, logits),
    )


def empty_ids(logits: torch.Tensor) -> torch.Tensor:
    """An uninitialized int64 ``[N]`` tensor for the ids of these logits."""
    return logits.new_empty(logits.shape[0] if logits.dim() == 2 else 1, dtype=torch.int64)


@torch.library.register_fake("structout::masked_sample")
def _(logits: torch.Tensor, *_: torch.Tensor | None) -> torch.Tensor:
    return empty_ids(logits)


@torch.library.register_fake("structout::masked_sample_logprobs")
def _(logits: torch.Tensor, *_: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    ids = empty_ids(logits)
    return ids, ids.new_empty(ids.shape, dtype=torch.float32)


@torch.library.register_fake("structout::verify_drafts")
def _(logits: torch.Tensor, *others: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    row_indptr = others[-1]
    assert row_indptr is not None
    return empty_ids(logits), logits.new_empty(row_indptr.shape[0] - 1, dtype=torch.int32)


@torch.library.register_fake("structout::_accept_drafts")
def _(ids: torch.Tensor, drafts: torch.Tensor, row_indptr: torch.Tensor) -> torch.Tensor:
    return ids.new_empty(row_indptr.shape[0] - 1, dtype=torch.int32)
