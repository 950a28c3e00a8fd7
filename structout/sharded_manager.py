"""ShardedManager: where every rank runs the scheduler, each compiles and fills the masks of its own requests only."""

import json
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import xxhash

from structout.bitmask import allocate_token_bitmask
from structout.errors import DuplicateRequestError, GrammarError, UnknownRequestError
from structout.exchange import Channel, channel, name_of, world_size_of
from structout.fill import Bounds, Drafts, Trees
from structout.manager import StructuredOutputManager
from structout.mask_batch import MaskBatch, MaskShard
from structout.params import StructuredOutputsParams
from structout.request import GrammarStatus

Integers = npt.NDArray[np.int32]
_MOST_IMBALANCE = 4  # requests


@dataclass(eq=False, slots=True)
class _SharedRequest:
    """What all ranks know of a request."""

    owner: int
    constraint: int  # a hash, to tell equal ones
    status: GrammarStatus = GrammarStatus.WAITING
    error: GrammarError | None = None
    is_terminated: bool = False


class ShardedManager:
    """A :class:`StructuredOutputManager` on each rank of a group, for engines that run their scheduler on every rank.

    All ranks make the same calls in the same order. A request belongs to one rank: to one that has few, and its
    constraint already if that can be. Only there is the constraint compiled, are masks filled and tokens followed. What
    one rank finds out (that a request is ready, has failed, has ended, refused its tokens) the others learn in the next
    collective call, and all act on it from then on, the owner included: so ranks never differ in what they do. With
    each such call travel its number and a checksum of all calls before it; where they differ all ranks raise.

    Args:
        manager: this rank's own, with the same vocabulary and configuration on all ranks.
        group: a process group with a CPU backend, its name, or None for the default group. Without one, or with one
            rank, nothing is sent.

    Source: the entry-rank proposals for SGLang (issue 13809), in which every rank compiles and fills everything.
    """

    def __init__(self, manager: StructuredOutputManager, group: dist.ProcessGroup | str | None = None):
        self._manager = manager
        name = name_of(group)
        self._link: Channel | None = None if world_size_of(name) == 1 else channel(name)
        self.rank = 0 if self._link is None else self._link.rank
        self.world_size = 1 if self._link is None else self._link.world_size
        self._requests: dict[str, _SharedRequest] = {}
        self._refused: dict[str, str] = {}  # of this rank's requests: the others are to be told
        self._calls = xxhash.xxh3_64()
        self._step = 0
        ring = range(manager.config.num_mask_buffers)
        self._buffers = deque(allocate_token_bitmask(0, manager.vocabulary.size) for _ in ring)

    # -- a request's life ---------------------------------------------------------------------------------------------

    def add_request(self, request_id: str, params: StructuredOutputsParams, **options: Any) -> GrammarStatus:
        """As :meth:`StructuredOutputManager.add_request`; WAITING until :meth:`poll_ready` says otherwise.

        Raises:
            DuplicateRequestError: the id is in use.
        """
        if request_id in self._requests:
            raise DuplicateRequestError(f"request {request_id!r} is already with the manager", request_id)
        constraint = xxhash.xxh3_64_intdigest(repr(params).encode())
        self._note("add", request_id, str(constraint))
        owner = self._owner_for(constraint)
        if owner == self.rank:
            self._manager.add_request(request_id, params, **options)
        self._requests[request_id] = _SharedRequest(owner, constraint)
        return GrammarStatus.WAITING

    def fork(self, request_id: str, new_id: str) -> None:
        """As :meth:`StructuredOutputManager.fork`; the new request stays with the owner of the old one."""
        request = self._known(request_id)
        if new_id in self._requests:
            raise DuplicateRequestError(f"request {new_id!r} is already with the manager", new_id)
        self._note("fork", request_id, new_id)
        if request.owner == self.rank:
            self._manager.fork(request_id, new_id)
        self._requests[new_id] = replace(request)

    def finish_request(self, request_id: str) -> None:
        """Forget the request, at any moment; unknown ids are fine."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        self._note("finish", request_id)
        self._refused.pop(request_id, None)
        if request.owner == self.rank:
            self._manager.finish_request(request_id)

    def owner(self, request_id: str) -> int:
        """The rank that compiles and fills for the request."""
        return self._known(request_id).owner

    def status(self, request_id: str) -> GrammarStatus:
        """What all ranks know."""
        return self._known(request_id).status

    def error(self, request_id: str) -> GrammarError | None:
        """Why the request FAILED."""
        return self._known(request_id).error

    def is_terminated(self, request_id: str) -> bool:
        """Whether the last :meth:`grammar_bitmask` found that the text is complete."""
        return self._known(request_id).is_terminated

    def poll_ready(self) -> list[str]:
        """The requests that became READY or FAILED since the last call: the same on all ranks, and so are their
        statuses from now on. Collective, but sends nothing where no request waits.

        Raises:
            CollectiveError: a rank is gone or late, or the ranks have not made the same calls.
        """
        if not any(request.status is GrammarStatus.WAITING for request in self._requests.values()):
            return []
        mine = []
        for request_id in self._manager.poll_ready():
            problem = self._manager.error(request_id)
            mine.append([request_id, None if problem is None else str(problem)])
        messages = self._tell("poll_ready", torch.frombuffer(bytearray(json.dumps(mine).encode()), dtype=torch.uint8))
        settled = [entry for said in messages for entry in json.loads(said.numpy().tobytes())]
        for request_id, problem in settled:
            request = self._known(request_id)
            request.status = GrammarStatus.READY if problem is None else GrammarStatus.FAILED
            request.error = None if problem is None else GrammarError(problem, request_id)
        return [request_id for request_id, _ in settled]

    # -- a decoding step ----------------------------------------------------------------------------------------------

    def accept_tokens(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Advance by tokens that all ranks have drawn. Not collective: that the grammar refuses them shows in the
        ``errors`` of the next masks, on all ranks."""
        request = self._known(request_id)
        self._note("accept", request_id, *map(str, token_ids))
        if request.owner == self.rank and not self._manager.accept_tokens(request_id, token_ids):
            self._refused[request_id] = f"the grammar does not allow the tokens {list(token_ids)}"

    def accept_batch(self, token_ids: Mapping[str, Sequence[int]]) -> None:
        """:meth:`accept_tokens` for many requests; those that are not with the manager are passed over."""
        for request_id, tokens in token_ids.items():
            if request_id in self._requests:
                self.accept_tokens(request_id, tokens)

    def rollback(self, request_id: str, num_tokens: int) -> None:
        """As :meth:`StructuredOutputManager.rollback`, which raises on the owner."""
        request = self._known(request_id)
        self._note("rollback", request_id, str(num_tokens))
        if request.owner == self.rank:
            self._manager.rollback(request_id, num_tokens)
        request.is_terminated = False

    def grammar_bitmask(
        self,
        request_ids: Sequence[str],
        draft_tokens: Drafts | None = None,
        *,
        bounds: Bounds | None = None,
        draft_trees: Trees | None = None,
    ) -> MaskBatch:
        """As :meth:`StructuredOutputManager.grammar_bitmask`, with the rows of all ranks, each filled by one of them.

        Collective. Requests come in the order of their owners. Equal rows of a rank travel once.

        Raises:
            CollectiveError: a rank is gone or late, or the ranks have not made the same calls.
        """
        step = (request_ids, draft_tokens, bounds, draft_trees)
        mine = self._fill(*step)
        if self._link is None:
            return self._learn(mine)
        ids, parts = self._exchange(step, _Part.of(mine, with_rows=True))
        bitmask = self._next_buffer(sum(len(part.index) for part in parts))
        begin = 0
        for rank, part in enumerate(parts):
            rows = bitmask[begin : begin + len(part.index)]
            if rank == self.rank:
                rows[:] = mine.bitmask
            else:
                np.take(part.distinct, part.index, axis=0, out=rows, mode="clip")  # which needs no buffer of its own
            begin += len(part.index)
        return self._learn(_masks_of(ids, parts, bitmask))

    def grammar_bitmask_shard(
        self,
        request_ids: Sequence[str],
        draft_tokens: Drafts | None = None,
        *,
        bounds: Bounds | None = None,
        draft_trees: Trees | None = None,
    ) -> MaskShard:
        """The same with the rows left where they are, for :meth:`DeviceMasks.of_shard` to bring together on the
        workers' devices. Collective all the same."""
        step = (request_ids, draft_tokens, bounds, draft_trees)
        mine = self._fill(*step)
        if self._link is None:
            return MaskShard(mine.bitmask, self._learn(mine), (len(mine.bitmask),))
        ids, parts = self._exchange(step, _Part.of(mine, with_rows=False))
        rows_of_rank = tuple(int(part.counts.sum()) for part in parts)
        return MaskShard(mine.bitmask, self._learn(_masks_of(ids, parts, mine.bitmask[:0])), rows_of_rank)

    def _fill(
        self, request_ids: Sequence[str], drafts: Drafts | None, bounds: Bounds | None, trees: Trees | None
    ) -> MaskBatch:
        """This rank's requests. Those whose tokens were refused get rows that allow nothing."""
        mine = [request_id for request_id in request_ids if self._rank_of(request_id) == self.rank]
        masks = self._manager.grammar_bitmask(mine, drafts, bounds=bounds, draft_trees=trees)
        refused = {request_id: self._refused[request_id] for request_id in mine if request_id in self._refused}
        for request_id in refused:
            i = mine.index(request_id)
            masks.bitmask[masks.row_indptr[i] : masks.row_indptr[i + 1]] = 0
        return replace(masks, errors={**masks.errors, **refused})

    def _exchange(self, step: tuple[Any, ...], part: "_Part") -> tuple[list[str], list["_Part"]]:
        """All requests in rank order, and the parts of all ranks."""
        self._note("fill", repr(step))
        messages = self._tell("grammar_bitmask", part.pack())
        ids_of_rank: list[list[str]] = [[] for _ in range(self.world_size)]
        for request_id in step[0]:
            ids_of_rank[self._rank_of(request_id)].append(request_id)
        width = part.distinct.shape[1]
        parts = [_Part.unpack(said, len(ids), width) for said, ids in zip(messages, ids_of_rank, strict=True)]
        return [request_id for ids in ids_of_rank for request_id in ids], parts

    def _learn(self, masks: MaskBatch) -> MaskBatch:
        """Which texts are complete: those of requests that have no rows."""
        for request_id, count in zip(masks.request_ids, np.diff(masks.row_indptr).tolist(), strict=True):
            if request_id in self._requests:
                self._requests[request_id].is_terminated = count == 0
        return masks

    def _rank_of(self, request_id: str) -> int:
        """Unknown requests, which have no rows, count as rank 0's."""
        request = self._requests.get(request_id)
        return 0 if request is None else request.owner

    # -- what the ranks tell each other -------------------------------------------------------------------------------

    def _note(self, *call: str) -> None:
        """A call that all ranks make."""
        self._calls.update("\0".join(call).encode() + b"\1")

    def _tell(self, what: str, mine: torch.Tensor) -> list[torch.Tensor]:
        """The messages of all ranks, uint8."""
        if self._link is None:
            return [mine.view(torch.uint8)]
        self._step += 1
        agreed = {
            "step": self._step,
            "calls so far (requests, tokens, finishes)": self._calls.intdigest() >> 1,
            "number of requests": len(self._requests),
        }
        messages = self._link.exchange(what, [mine] * self.world_size, agreed=agreed)
        return [message.payload for message in messages]

    def _owner_for(self, constraint: int) -> int:
        """The rank with the fewest requests, or one that has the constraint already, if it has hardly more: what an
        engine finds out about a grammar on the way serves all requests that have it."""
        load = Counter(request.owner for request in self._requests.values())
        known = Counter(request.owner for request in self._requests.values() if request.constraint == constraint)
        least_busy = min(range(self.world_size), key=lambda rank: (load[rank], rank))
        if not known:
            return least_busy
        at_home = min(known, key=lambda rank: (load[rank], rank))
        return at_home if load[at_home] - load[least_busy] <= _MOST_IMBALANCE else least_busy

    def _next_buffer(self, num_rows: int) -> Integers:
        """One of a ring, as the manager's."""
        buffer = self._buffers.popleft()
        if buffer.shape[0] < num_rows:
            vocab_size = self._manager.vocabulary.size
            buffer = allocate_token_bitmask(max(num_rows, 2 * buffer.shape[0]), vocab_size)
        self._buffers.append(buffer)
        return buffer.numpy()[:num_rows]

    def _known(self, request_id: str) -> _SharedRequest:
        request = self._requests.get(request_id)
        if request is None:
            raise UnknownRequestError(f"request {request_id!r} is not with the manager", request_id)
        return request


@dataclass(frozen=True)
class _Part:
    """What one rank contributes to a step: of each of its requests the number of rows and of drafts that may pass; the
    rows, equal ones once."""

    counts: Integers
    acceptable: Integers
    errors: Mapping[str, str]
    index: Integers  # [rows], into `distinct`
    distinct: Integers  # [d, W]

    @classmethod
    def of(cls, masks: MaskBatch, with_rows: bool) -> "_Part":
        counts = np.diff(masks.row_indptr).astype(np.int32)
        rows = masks.bitmask if with_rows else masks.bitmask[:0]
        places: dict[bytes, int] = {}
        index = [places.setdefault(xxhash.xxh3_128_digest(row), len(places)) for row in rows]
        first = np.unique(np.array(index, dtype=np.int32), return_index=True)[1]
        return cls(counts, masks.num_acceptable_drafts, masks.errors, np.array(index, dtype=np.int32), rows[first])

    def pack(self) -> torch.Tensor:
        errors = json.dumps(self.errors).encode()
        errors += b" " * (-len(errors) % 4)
        sizes = np.array([len(errors) // 4, len(self.index)], dtype=np.int32)
        text = np.frombuffer(errors, dtype=np.int32)
        words = (sizes, self.counts, self.acceptable, text, self.index, self.distinct.ravel())
        return torch.from_numpy(np.concatenate(words))

    @classmethod
    def unpack(cls, message: torch.Tensor, num_requests: int, width: int) -> "_Part":
        words = message.numpy().view(np.int32)
        (text_size, num_rows), words = words[:2], words[2:]
        ends = np.cumsum([num_requests, num_requests, text_size, num_rows])
        counts, acceptable, text, index, distinct = np.split(words, ends)
        return cls(counts, acceptable, json.loads(text.tobytes()), index, distinct.reshape(-1, width))


def _masks_of(request_ids: Sequence[str], parts: Sequence[_Part], bitmask: Integers) -> MaskBatch:
    row_indptr = np.concatenate([[0], *(part.counts for part in parts)]).cumsum().astype(np.int32)
    errors = {request_id: text for part in parts for request_id, text in part.errors.items()}
    acceptable = np.concatenate([part.acceptable for part in parts])
    return MaskBatch(tuple(request_ids), bitmask, row_indptr, errors, acceptable)
