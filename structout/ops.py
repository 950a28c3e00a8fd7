"""Typed, documented doors to ``torch.ops.structout.*``, and the drop-in for xgrammar's."""

import operator
import warnings
from collections.abc import Iterable

import torch

from structout import _kernels
from structout.bitmask import BITS_PER_WORD, bitmask_width

_kernels.require()
_apply_bitmask = torch.ops.structout.apply_bitmask.default
_masked_sample = torch.ops.structout.masked_sample.default
_masked_sample_logprobs = torch.ops.structout.masked_sample_logprobs.default


def apply_bitmask(logits: torch.Tensor, bitmask: torch.Tensor, rows: torch.Tensor | None = None) -> None:
    """Set every logit that its row's mask disallows to -inf, in place.

    Equivalent to::

        allowed = unpack_bitmask(bitmask, logits.shape[-1])          # bool [R, V]
        allowed = allowed if rows is None else allowed[rows]         # and rows == -1 allow everything
        logits.masked_fill_(~allowed, -inf)

    Args:
        logits: ``[N, V]`` or ``[V]``, float32, float16 or bfloat16; any row stride and alignment.
        bitmask: int32 ``[R, W]`` or ``[W]``, bit ``i & 31`` of word ``i >> 5`` is 1 where token ``i`` is allowed.
            Columns past the last word are disallowed; bits past the last column are ignored.
        rows: int32 or int64 ``[N]``: the mask row that governs each logits row. -1 leaves the row alone; any other id
            outside ``[0, R)`` disallows the whole row. ``None``: row i governs row i, and R must equal N.

    Raises:
        ValueError: wrong dtype, rank, shape, stride or device; rows of logits that overlap. Nothing is written.
        RuntimeError: logits would need a gradient through this op, which has none.

    ``torch.ops.structout.apply_bitmask`` is the same op without this door, for use in model code. It is made for
    inference: autograd neither records it nor notices that it has written.
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
    """xgrammar's function of this name, with its semantics: change the import, keep the call.

    Unlike :func:`apply_bitmask`, columns at or past ``vocab_size`` are left untouched, and ``indices`` selects both the
    logits row and the mask row.

    Args:
        logits: ``[N, V]`` or ``[V]``, float32, float16 or bfloat16.
        bitmask: int32 ``[R, W]`` or ``[W]``, on the device of logits.
        vocab_size: columns that the mask speaks for. Default ``min(V, 32 * W)``; warns if that is less than V.
        indices: logits rows to mask, each by the mask row of the same number; ints, or an int32 or int64 tensor
            (ids outside ``[0, N)`` are ignored in a tensor, and raise otherwise). Default: all, R == N.
        backend: accepted for xgrammar's callers. Which kernels run is decided by the device and STRUCTOUT_BACKEND.

    Raises:
        ValueError, IndexError: as above, or vocab_size beyond what logits or bitmask hold. Nothing is written.

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
    """The row map in which each row of ``indices`` governs itself and the others are free."""
    if isinstance(indices, torch.Tensor):
        if indices.dim() != 1 or indices.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"indices must be a 1-D int32 or int64 tensor, got {indices.dtype} {list(indices.shape)}")
        chosen = indices.to(device=device, dtype=torch.int64)
        # One spare entry takes the ids that are out of range, so that the device never sees a bad index.
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


_LARGEST_FLOAT32 = 3.4028234663852886e38
_ROUNDS_TO_0 = 2.0**-150  # half of the smallest float32


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
    """Mask, temperature, min-p, top-k, top-p and the draw: one token a row, the same one on every backend.

    Equivalent, up to the source of randomness, to::

        apply_bitmask(scores := logits.float(), bitmask, rows)
        scores = top_p(top_k(min_p(scores / temperature)))           # each over what the one before left
        ids = torch.multinomial(scores.softmax(-1), 1).squeeze(-1)   # or argmax where temperature is 0

    The noise is a pure function of (seed, position, token id), so neither batch, slot, sharding nor backend can change
    a token. docs/sampling_contract.md fixes every operation.

    Args:
        logits: ``[N, V]`` or ``[V]`` (one row), float32, float16 or bfloat16, V below 2^23. Only read; any row
            stride.
        bitmask: as in :func:`apply_bitmask`. ``None``: every row is free.
        rows: as in :func:`apply_bitmask`; rows that are -1 are free.
        temperature: float32 ``[N]`` or a number. Exactly 0 is greedy: the largest logit, lowest id on ties.
        top_k: int32 or int64 ``[N]`` or a number: keep everything that reaches the k-th largest logit. k <= 0: off.
        top_p: float32 ``[N]`` or a number: keep the fewest largest logits whose mass reaches p. p >= 1: off.
        min_p: float32 ``[N]`` or a number: keep what is at least min_p times as likely as the likeliest.
        seed: int64 ``[N]`` or a number; any value. A number may also be a uint64, with the same 64 bits.
        position: int64 ``[N]`` or a number: which token of its text the row draws. Together with the seed it should not
            repeat.

    Tensors of per-row values are on the device of logits, of any stride, 0 included. Compiled code takes a number for a
    constant: what changes from step to step should be a tensor there.

    Returns:
        int64 ``[N]``. -1 where nothing can be drawn: an empty mask, a NaN at an allowed place, a row id out of range,
        or an invalid value in a tensor (negative, infinite or NaN temperature; negative or NaN top_p or min_p).

    Raises:
        ValueError: wrong dtype, rank, shape, stride or device, or an invalid number.

    Source of the draw: Gumbel-max with Philox noise, as FlashSampling and vLLM draw; of the order of filters: vLLM.
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
    """:func:`masked_sample`, and the logprob of each token.

    Returns:
        ids int64 ``[N]``, and float32 ``[N]``: the token's log-probability among the allowed tokens after temperature
        (greedy: temperature 1) and before the filters. -inf where the id is -1.

    Raises:
        ValueError: as :func:`masked_sample`.
        RuntimeError: logits would need a gradient through the logprobs, which have none.
    """
    if logits.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            "masked_sample_logprobs has no gradient; call it under torch.inference_mode() or torch.no_grad(), and for "
            "a gradient take log_softmax of the masked logits at the ids"
        )
    parameters = row_parameters(logits, temperature, top_k, top_p, min_p, seed, position)
    ids, logprobs = _masked_sample_logprobs(logits, bitmask, rows, *parameters)
    return ids, logprobs


def row_parameters(
    logits: torch.Tensor,
    temperature: torch.Tensor | float,
    top_k: torch.Tensor | int | None,
    top_p: torch.Tensor | float | None,
    min_p: torch.Tensor | float | None,
    seed: torch.Tensor | int,
    position: torch.Tensor | int,
) -> tuple[torch.Tensor | None, ...]:
    """Numbers become tensors that stand for all rows, with stride 0."""
    num_rows = logits.shape[0] if logits.dim() == 2 else 1

    def floats(name: str, value: torch.Tensor | float | None) -> torch.Tensor | None:
        if value is None or isinstance(value, torch.Tensor):
            return value
        _check_float(name, value)
        return torch.full((1,), value, dtype=torch.float32, device=logits.device).expand(num_rows)

    def integers(name: str, value: torch.Tensor | int | None) -> torch.Tensor | None:
        if value is None or isinstance(value, torch.Tensor):
            return value
        number = _as_int64(name, operator.index(value))
        return torch.full((1,), number, dtype=torch.int64, device=logits.device).expand(num_rows)

    filters = (integers("top_k", top_k), floats("top_p", top_p), floats("min_p", min_p))
    return (floats("temperature", temperature), *filters, integers("seed", seed), integers("position", position))


def _check_float(name: str, value: float) -> None:
    if not 0 <= value < float("inf"):
        raise ValueError(f"masked_sample: {name} must be a finite number of at least 0, got {value}")
    if value > _LARGEST_FLOAT32:
        raise ValueError(f"masked_sample: {name} must fit float32, so be at most {_LARGEST_FLOAT32:.7g}, got {value}")
    if name == "temperature" and 0 < value <= _ROUNDS_TO_0:
        raise ValueError(f"masked_sample: temperature {value} is 0 in float32, which would be greedy; say 0, or 1e-45")


def _as_int64(name: str, number: int) -> int:
    """Seeds are 64 bits, and engines hold them as uint64."""
    largest = 2**64 - 1 if name == "seed" else 2**63 - 1
    if not -(2**63) <= number <= largest:
        raise ValueError(f"masked_sample: {name} must be from -2^63 to {largest}, got {number}")
    return number - 2**64 if number >= 2**63 else number


def empty_ids(logits: torch.Tensor) -> torch.Tensor:
    """Of the shape that ids of these logits have."""
    return logits.new_empty(logits.shape[0] if logits.dim() == 2 else 1, dtype=torch.int64)


@torch.library.register_fake("structout::masked_sample")
def _(logits: torch.Tensor, *_: torch.Tensor | None) -> torch.Tensor:
    return empty_ids(logits)


@torch.library.register_fake("structout::masked_sample_logprobs")
def _(logits: torch.Tensor, *_: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    ids = empty_ids(logits)
    return ids, ids.new_empty(ids.shape, dtype=torch.float32)
