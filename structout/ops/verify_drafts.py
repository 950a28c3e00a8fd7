"""Draws a token for each draft, and counts the drafts that were drawn."""

import torch

from structout.ops import kernels
from structout.ops.row_parameters import empty_ids, row_parameters

kernels.require()
_verify_drafts = torch.ops.structout.verify_drafts.default


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


@torch.library.register_fake("structout::verify_drafts")
def _(logits: torch.Tensor, *others: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    row_indptr = others[-1]
    assert row_indptr is not None
    return empty_ids(logits), logits.new_empty(row_indptr.shape[0] - 1, dtype=torch.int32)


@torch.library.register_fake("structout::_accept_drafts")
def _(ids: torch.Tensor, drafts: torch.Tensor, row_indptr: torch.Tensor) -> torch.Tensor:
    return ids.new_empty(row_indptr.shape[0] - 1, dtype=torch.int32)
