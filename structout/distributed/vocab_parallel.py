"""Tensor parallelism on the CPU: masks gathered from the ranks that filled them, masked_sample on vocabulary shards.

Each rank holds the columns ``vocab_begin ... vocab_begin + width`` of the logits. What the ranks exchange depends on
what the host knows, never on the contents of the batch:

    no filter       one exchange: of each row the highest logit, and of its drawn token the score and the id (12 bytes)
    ... + logprobs  the token's logit too, and a second exchange for the mass of each shard (24 bytes in all)
    filters         each rank gets, of 1/N of the rows, what the masks allow of all columns; draws; and sends ids around

Every path gives the bits of masked_sample on the gathered logits (docs/tensor_parallel.md).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from structout.distributed.cpu_communicator import Channel, Message, checksum
from structout.errors import CollectiveError


def shard_rows(num_rows: int, rank: int, world_size: int) -> range:
    """The rows that ``rank`` owns of ``num_rows`` that are shared out evenly: contiguous, in rank order, perhaps none.

    Raises:
        ValueError: ``rank`` is not in ``[0, world_size)``, or ``num_rows`` is negative.
    """
    if not 0 <= rank < world_size or num_rows < 0:
        raise ValueError(
            f"shard_rows takes 0 <= rank < world_size and num_rows >= 0, got rank {rank}, world_size {world_size} and "
            f"num_rows {num_rows}"
        )
    return range(num_rows * rank // world_size, num_rows * (rank + 1) // world_size)


# -- masks ------------------------------------------------------------------------------------------------------------


def gather_masks(link: Channel, shard: torch.Tensor) -> torch.Tensor:
    """``[world_size * r, W]`` in rank order, of the ``[r, W]`` that every rank has."""
    num_rows, width = shard.shape
    gathered = shard.new_empty(link.world_size, num_rows, width)
    gathered[link.rank].copy_(shard)
    places = gathered.unbind()
    link.exchange(
        "all_gather_bitmask",
        [places[link.rank]] * link.world_size,
        agreed={"number of rows": num_rows, "mask width": width},
        into=places,
    )
    return gathered.view(link.world_size * num_rows, width)


# -- sampling ---------------------------------------------------------------------------------------------------------

_SAMPLE = "sharded_masked_sample"


@dataclass(frozen=True)
class ShardStep:
    """One call on one rank: the arguments of the op, its logits and mask in two dimensions."""

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
    def of(cls, arguments: tuple[Any, ...], vocab_begin: int) -> "ShardStep":
        """
        Raises:
            ValueError: the op cannot take them.
        """
        torch.ops.structout._check_sharded_masked_sample(*arguments, vocab_begin)
        logits, bitmask, *others = arguments
        mask = None if bitmask is None else torch.atleast_2d(bitmask)
        return cls(*(torch.atleast_2d(logits), mask, *others, vocab_begin))

    @property
    def has_filters(self) -> bool:
        return not (self.top_k is None and self.top_p is None and self.min_p is None)

    @property
    def unfiltered(self) -> tuple[object, ...]:
        """What _sample_shard and _shard_mass take."""
        return (
            *(self.logits, self.bitmask, self.rows, self.temperature, self.seed, self.position),
            self.vocab_begin,
        )

    def masks(self, owned: range) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The bitmask and row map of some of the rows."""
        part = slice(owned.start, owned.stop)
        if self.rows is not None or self.bitmask is None:
            return self.bitmask, None if self.rows is None else self.rows[part]
        return self.bitmask[part], None

    def parameters(self, owned: range) -> tuple[torch.Tensor | None, ...]:
        """What masked_sample takes after logits, bitmask and row map, for these rows."""
        part = slice(owned.start, owned.stop)
        parameters = (self.temperature, self.top_k, self.top_p, self.min_p, self.seed, self.position)
        return tuple(None if values is None else values[part] for values in parameters)

    def agreed(self, return_logprobs: bool) -> dict[str, int]:
        """What must be the same on all ranks: everything but the logits."""
        replicated = (self.bitmask, self.rows, self.temperature, self.top_k, self.top_p, self.min_p)
        return {
            "number of rows": self.logits.shape[0],
            "dtype of the logits": _DTYPES.index(self.logits.dtype),
            "masks, parameters and logprobs": checksum(*replicated, self.seed, self.position) ^ return_logprobs,
        }

    @property
    def columns(self) -> tuple[int, int]:
        return self.vocab_begin, self.logits.shape[1]


_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def sample(
    link: Channel, arguments: tuple[Any, ...], vocab_begin: int, return_logprobs: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Ids, and logprobs where they are wanted."""
    try:
        step = ShardStep.of(arguments, vocab_begin)
        path = _sample_owned if step.has_filters else _sample_shards
        return path(link, step, return_logprobs)
    except CollectiveError:
        raise
    except Exception as problem:
        link.refuse(_SAMPLE, problem)
        raise


def sample_alone(step: ShardStep, return_logprobs: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Where there is one rank."""
    if step.vocab_begin != 0:
        raise ValueError(f"{_SAMPLE}: one rank alone must hold all columns, got vocab_begin {step.vocab_begin}")
    return draw(
        step.logits, step.bitmask, step.rows, *step.parameters(range(len(step.logits))), return_logprobs=return_logprobs
    )


def _sample_shards(link: Channel, step: ShardStep, return_logprobs: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    agreed = step.agreed(return_logprobs)
    return sample_shards(step, return_logprobs, lambda mine: _exchange_equal(link, step, agreed, mine))


def sample_shards(
    step: ShardStep, return_logprobs: bool, all_gather: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Without filters: shards draw for themselves, and of their outcomes the best is the row's."""
    outcomes = torch.ops.structout._sample_shard(*step.unfiltered)
    of_all = all_gather(outcomes if return_logprobs else outcomes[:3])
    ids, merged = torch.ops.structout._merge_outcomes(of_all, step.temperature)
    if not return_logprobs:
        return ids, None
    masses = all_gather(torch.ops.structout._shard_mass(*step.unfiltered, merged))
    return ids, torch.ops.structout._merge_masses(masses, merged, step.temperature)


def _exchange_equal(link: Channel, step: ShardStep, agreed: dict[str, int], mine: torch.Tensor) -> torch.Tensor:
    of_all = mine.new_empty(link.world_size, *mine.shape)
    of_all[link.rank].copy_(mine)
    messages = link.exchange(_SAMPLE, [mine] * link.world_size, agreed=agreed, facts=step.columns, into=of_all.unbind())
    _vocab_size(link, messages)
    return of_all


def _sample_owned(link: Channel, step: ShardStep, return_logprobs: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """With filters: each rank draws for the rows it owns, from what the masks allow of all shards."""
    num_rows = step.logits.shape[0]
    owned = [shard_rows(num_rows, rank, link.world_size) for rank in range(link.world_size)]
    packed, width = [], step.logits.shape[1]
    room = link.workspace("packed", step.logits.numel(), step.logits.dtype)
    for rows in owned:
        part = room[rows.start * width : rows.stop * width]
        count = torch.ops.structout._pack_allowed(
            step.logits[rows.start : rows.stop], *step.masks(rows), step.vocab_begin, part
        )
        packed.append(part[:count])
    agreed = step.agreed(return_logprobs)
    messages = link.exchange(_SAMPLE, packed, agreed=agreed, facts=step.columns)

    mine = owned[link.rank]
    vocab_size = _vocab_size(link, messages)
    logits = link.workspace("logits", len(mine) * vocab_size, step.logits.dtype).view(len(mine), vocab_size)
    for message in messages:
        start, width = message.facts
        torch.ops.structout._unpack_allowed(
            logits[:, start : start + width], message.payload.view(logits.dtype), *step.masks(mine), start
        )
    ids, logprobs = draw(logits, *step.masks(mine), *step.parameters(mine), return_logprobs=return_logprobs)

    answers = torch.empty(num_rows, 1 if logprobs is None else 2, dtype=torch.int32)
    answers[mine.start : mine.stop, 0] = ids
    if logprobs is not None:
        answers[mine.start : mine.stop, 1] = logprobs.view(torch.int32)
    places = [answers[rows.start : rows.stop] for rows in owned]
    link.exchange(_SAMPLE, [places[link.rank]] * link.world_size, agreed=agreed, facts=step.columns, into=places)
    return answers[:, 0].long(), None if logprobs is None else answers[:, 1].contiguous().view(torch.float32)


def draw(
    logits: torch.Tensor, *arguments: torch.Tensor | None, return_logprobs: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """masked_sample, with logprobs where they are wanted."""
    if not return_logprobs:
        return torch.ops.structout.masked_sample(logits, *arguments), None
    ids, logprobs = torch.ops.structout.masked_sample_logprobs(logits, *arguments)
    return ids, logprobs


def _vocab_size(link: Channel, messages: Sequence[Message]) -> int:
    try:
        return vocab_size_of([message.facts for message in messages])
    except ValueError as problem:
        raise link.disagreement(_SAMPLE, str(problem)) from None


def vocab_size_of(columns: Sequence[tuple[int, int]]) -> int:
    """Where the last shard ends, given where each begins and how many columns it has.

    Raises:
        ValueError: they do not hold every column once.
    """
    end = 0
    for start, width in sorted(shard for shard in columns if shard[1] > 0):
        if start != end:
            shards = ", ".join(f"{first}..{first + count}" for first, count in columns)
            raise ValueError(f"the shards must hold every column once, from 0 on, but hold {shards}")
        end = start + width
    if end == 0:
        raise ValueError("no rank holds a column; there is nothing to draw from")
    return end
