"""The rows and vocabulary columns that each rank holds."""

import functools
from dataclasses import dataclass
from typing import Any

import torch


def owned_rows(num_rows: int, rank: int, world_size: int) -> range:
    """Return the rows that ``rank`` owns when all ranks share ``num_rows`` evenly.

    Ranges are contiguous and in rank order; some are empty if there are fewer rows than
    ranks. Vocabulary columns are divided by this formula too.

    Raises:
        ValueError: ``rank`` is not in ``[0, world_size)``, or ``num_rows`` is negative.
    """
    if not 0 <= rank < world_size or num_rows < 0:
        raise ValueError(
            f"owned_rows takes 0 <= rank < world_size and num_rows >= 0, got rank {rank}, world_size {world_size} and "
            f"num_rows {num_rows}"
        )
    return range(num_rows * rank // world_size, num_rows * (rank + 1) // world_size)


@dataclass(frozen=True)
class VocabShard:
    """The checked arguments of one ``sharded_masked_sample`` call on one rank.

    Attributes:
        logits: ``[N, width]``, columns ``vocab_begin ... vocab_begin + width``.
        bitmask: int32 ``[R, W]`` of the whole vocabulary.
        others: as in the op's schema.
    """

    logits: torch.Tensor
    bitmask: torch.Tensor | None
    rows: torch.Tensor | None
    temperature: torch.Tensor
    top_k: torch.Tensor | None
    top_p: torch.Tensor | None
    min_p: torch.Tensor | None
    seed: torch.Tensor
    position: torch.Tensor
    vocab_begin: int

    @classmethod
    def from_op_arguments(cls, tensors: tuple[Any, ...], vocab_begin: int) -> "VocabShard":
        """Check the op's arguments and make logits and bitmask two-dimensional.

        Raises:
            ValueError: the op does not accept the arguments.
        """
        torch.ops.structout._check_sharded_masked_sample(*tensors, vocab_begin)
        logits, bitmask, *others = tensors
        bitmask = None if bitmask is None else _as_rows(bitmask)
        return cls(*(_as_rows(logits), bitmask, *others, vocab_begin))

    @property
    def columns(self) -> tuple[int, int]:
        """The first column and the number of columns."""
        return self.vocab_begin, self.logits.shape[1]

    @property
    def has_filters(self) -> bool:
        """True if the call has top_k, top_p or min_p, even with values that keep every
        token."""
        return not (self.top_k is None and self.top_p is None and self.min_p is None)

    @property
    def unfiltered_arguments(self) -> tuple[object, ...]:
        """The arguments of ``_sample_shard``."""
        return (
            *(self.logits, self.bitmask, self.rows, self.temperature, self.seed, self.position),
            self.vocab_begin,
        )

    def masks(self, rows: range) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the bitmask and the row map that govern some of the rows."""
        part = slice(rows.start, rows.stop)
        if self.rows is not None or self.bitmask is None:
            return self.bitmask, None if self.rows is None else self.rows[part]
        return self.bitmask[part], None

    def row_parameters(self, rows: range) -> tuple[torch.Tensor | None, ...]:
        """Return ``masked_sample``'s arguments after the row map, for some rows."""
        part = slice(rows.start, rows.stop)
        parameters = (self.temperature, self.top_k, self.top_p, self.min_p, self.seed, self.position)
        return tuple(None if values is None else values[part] for values in parameters)


def _as_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dim() == 2 else tensor.unsqueeze(0)


@functools.lru_cache(maxsize=64)
def vocab_size_from(columns: tuple[tuple[int, int], ...]) -> int:
    """Return the number of columns that all ranks hold together.

    Args:
        columns: each rank's first column and number of columns.

    Raises:
        ValueError: they overlap, leave columns out, or are all empty.
    """
    end = 0
    for begin, width in sorted(shard for shard in columns if shard[1] > 0):
        if begin != end:
            ranges = ", ".join(f"{first}..{first + count}" for first, count in columns)
            raise ValueError(f"the shards must hold every column once, from 0 on, got {ranges}, in rank order")
        end = begin + width
    if end == 0:
        raise ValueError("every shard is empty; at least one rank must hold columns of the logits")
    return end
