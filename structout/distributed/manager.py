"""ShardedManager: where every rank runs the scheduler, each compiles and fills the masks of its own requests only."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import xxhash

from structout.distributed.cpu_communicator import Channel, channel, name_of, world_size_of
from structout.errors import DuplicateRequestError, GrammarError, StructOutError, UnknownRequestError
from structout.mask_batch import MaskBatch, MaskShard
from structout.mask_buffers import BufferRing
from structout.params import StructuredOutputsParams
from structout.scheduler.bitmask_filler import Bounds, Drafts, Trees
from structout.scheduler.manager import StructuredOutputManager
from structout.scheduler.requests import GrammarStatus

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
        # Of this rank's requests, what the others are to be told: None for ready, or what is wrong.
        self._settled: dict[str, str | None] = {}
        self._refused: dict[str, str] = {}
        self._calls = xxhash.xxh3_64()
        vocabulary = manager.vocabulary
        tokens = xxhash.xxh3_64_hexdigest(b"\0".join(vocabulary.token_bytes))
        self._note("vocabulary", str(vocabulary.size), tokens)
        self._buffers = BufferRing(manager.config.num_mask_buffers, manager.vocabulary.size)

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
        self._requests[request_id] = _SharedRequest(owner, constraint)
        if owner == self.rank:
            try:
                self._manager.add_request(request_id, params, **options)
            except Exception as problem:  # the others cannot know of it, so it must not be raised here alone
                error = GrammarError(f"{type(problem).__name__}: {problem}")
                self._manager.add_failed_request(request_id, error)
        return GrammarStatus.WAITING

    def fork(self, request_id: str, new_id: str) -> None:
        """As :meth:`StructuredOutputManager.fork`; the new request stays with the owner of the old one."""
        request = self._known(request_id)
        if new_id in self._requests:
            raise DuplicateRequestError(f"request {new_id!r} is already with the manager", new_id)
        if request.status is not GrammarStatus.READY:
            raise StructOutError(f"request {request_id!r} is {request.status.value}", request_id)
        self._note("fork", request_id, new_id)
        self._requests[new_id] = replace(request)
        if request.owner == self.rank:
            try:
                self._manager.fork(request_id, new_id)
            except Exception as problem:
                self._refused[new_id] = f"it could not be forked: {problem}"
            if request_id in self._refused:
                self._refused[new_id] = self._refused[request_id]

    def finish_request(self, request_id: str) -> None:
        """Forget the request, at any moment; unknown ids are fine."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        self._note("finish", request_id)
        self._refused.pop(request_id, None)
        self._settled.pop(request_id, None)
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
        self._note("poll")
        for request_id in self._manager.poll_ready():
            problem = self._manager.error(request_id)
            self._settled.setdefault(request_id, None if problem is None else str(problem))
        payload = torch.frombuffer(bytearray(json.dumps(self._settled).encode()), dtype=torch.uint8)
        told: dict[str, str | None] = {}
        for said in self._tell("poll_ready", payload):
            told |= json.loads(said.numpy().tobytes())
        self._settled.clear()
        for request_id, reason in told.items():
            request = self._known(request_id)
            request.status = GrammarStatus.READY if reason is None else GrammarStatus.FAILED
            request.error = None if reason is None else GrammarError(reason, request_id)
        return list(told)

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
        """As :meth:`StructuredOutputManager.rollback`; what cannot be rolled back shows as refused tokens do."""
        request = self._known(request_id)
        self._note("rollback", request_id, str(num_tokens))
        request.is_terminated = False
        if request.owner == self.rank:
            try:
                self._manager.rollback(request_id, num_tokens)
            except Exception as problem:
                self._refused[request_id] = f"it could not be rolled back: {problem}"

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
        mine, ids, parts = self._step_of("masks", request_ids, draft_tokens, bounds, draft_trees)
        if self._link is None:
            return MaskBatch(bitmask=mine.bitmask, **_rows_of(ids, parts))
        bitmask = self._buffers.next_rows(sum(len(part.index) for part in parts)).numpy()
        begin = 0
        for rank, part in enumerate(parts):
            rows = bitmask[begin : begin + len(part.index)]
            if rank == self.rank:
                rows[:] = mine.bitmask
            else:
                np.take(part.distinct, part.index, axis=0, out=rows, mode="clip")  # which needs no buffer of its own
            begin += len(part.index)
        return MaskBatch(bitmask=bitmask, **_rows_of(ids, parts))

    def grammar_bitmask_shard(
        self,
        request_ids: Sequence[str],
        draft_tokens: Drafts | None = None,
        *,
        bounds: Bounds | None = None,
        draft_trees: Trees | None = None,
    ) -> MaskShard:
        """:meth:`grammar_bitmask` with each rank's rows left on it.

        :func:`structout.distributed.gather_device_masks` brings them together on the
        workers' devices. Collective all the same.
        """
        mine, ids, parts = self._step_of("shards of masks", request_ids, draft_tokens, bounds, draft_trees)
        rows_of_rank = tuple(int(part.counts.sum()) for part in parts)
        return MaskShard(bitmask=mine.bitmask, rows_of_rank=rows_of_rank, **_rows_of(ids, parts))

    def _step_of(
        self,
        what: str,
        request_ids: Sequence[str],
        drafts: Drafts | None,
        bounds: Bounds | None,
        trees: Trees | None,
    ) -> "tuple[MaskBatch, list[str], list[_Part]]":
        """This rank's masks, all requests in the order of their owners, and the parts of all ranks."""
        if len(set(request_ids)) < len(request_ids):
            raise ValueError(f"request_ids has an id more than once: {list(request_ids)}")
        self._note(what, *request_ids)
        ids_of_rank: list[list[str]] = [[] for _ in range(self.world_size)]
        for request_id in request_ids:
            ids_of_rank[self._rank_of(request_id)].append(request_id)
        try:
            options: list[Mapping[str, Any] | None] = [drafts, bounds, trees]
            for given in options:
                for request_id, values in sorted((given or {}).items()):
                    self._note(request_id, repr(np.asarray(values, dtype=object).tolist()))
            masks = self._fill(ids_of_rank[self.rank], drafts, bounds, trees)
            part = self._part_of(masks, with_rows=what == "masks")
        except Exception as problem:
            if self._link is not None:
                self._link.refuse("grammar_bitmask", problem)
            raise
        ids = [request_id for ids in ids_of_rank for request_id in ids]
        parts = [part]
        if self._link is not None:
            messages = self._tell("grammar_bitmask", part.pack())
            width = part.distinct.shape[1]
            parts = [_Part.unpack(said, len(ids), width) for said, ids in zip(messages, ids_of_rank, strict=True)]
        for request_id, has_ended in zip(ids, np.concatenate([part.ended for part in parts]).tolist(), strict=True):
            if request_id in self._requests:
                self._requests[request_id].is_terminated = bool(has_ended)
        return masks, ids, parts

    def _fill(self, mine: list[str], drafts: Drafts | None, bounds: Bounds | None, trees: Trees | None) -> MaskBatch:
        """This rank's requests. Those that cannot go on get rows that allow nothing."""
        masks = self._manager.grammar_bitmask(mine, drafts, bounds=bounds, draft_trees=trees)
        refused = {request_id: self._refused[request_id] for request_id in mine if request_id in self._refused}
        for request_id in refused:
            i = mine.index(request_id)
            masks.bitmask[masks.row_indptr[i] : masks.row_indptr[i + 1]] = 0
            masks.num_acceptable_drafts[i] = 0
        return replace(masks, errors={**refused, **masks.errors})

    def _part_of(self, masks: MaskBatch, with_rows: bool) -> "_Part":
        counts = np.diff(masks.row_indptr).astype(np.int32)
        ended = [
            count == 0 and request_id in self._requests and self._manager.is_terminated(request_id)
            for request_id, count in zip(masks.request_ids, counts.tolist(), strict=True)
        ]
        index, distinct = _deduplicated(masks.bitmask if with_rows else masks.bitmask[:0])
        return _Part(
            counts, masks.num_acceptable_drafts, np.array(ended, dtype=np.int32), masks.errors, index, distinct
        )

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
        agreed = {
            "number of requests": len(self._requests),
            "vocabulary size": self._manager.vocabulary.size,
            "calls so far (requests, tokens, finishes)": self._calls.intdigest() >> 1,
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

    def _known(self, request_id: str) -> _SharedRequest:
        request = self._requests.get(request_id)
        if request is None:
            raise UnknownRequestError(f"request {request_id!r} is not with the manager", request_id)
        return request


@dataclass(frozen=True)
class _Part:
    """What one rank contributes to a step: of each of its requests the number of rows and of drafts that may pass, and
    whether it has ended; the rows, equal ones once."""

    counts: Integers
    acceptable: Integers
    ended: Integers  # 1: the text is complete
    errors: Mapping[str, str]
    index: Integers  # [rows], into `distinct`
    distinct: Integers  # [d, W]

    def pack(self) -> torch.Tensor:
        errors = json.dumps(self.errors).encode()
        errors += b" " * (-len(errors) % 4)
        sizes = np.array([len(errors) // 4, len(self.index)], dtype=np.int32)
        text = np.frombuffer(errors, dtype=np.int32)
        words = (sizes, self.counts, self.acceptable, self.ended, text, self.index, self.distinct.ravel())
        return torch.from_numpy(np.concatenate(words))

    @classmethod
    def unpack(cls, message: torch.Tensor, num_requests: int, width: int) -> "_Part":
        words = message.numpy().view(np.int32)
        (text_size, num_rows), words = words[:2], words[2:]
        ends = np.cumsum([num_requests, num_requests, num_requests, text_size, num_rows])
        counts, acceptable, ended, text, index, distinct = np.split(words, ends)
        return cls(counts, acceptable, ended, json.loads(text.tobytes()), index, distinct.reshape(-1, width))


def _deduplicated(rows: Integers) -> tuple[Integers, Integers]:
    """For each row its place among the different ones, and these."""
    places: dict[bytes, int] = {}
    index = np.array([places.setdefault(xxhash.xxh3_128_digest(row), len(places)) for row in rows], dtype=np.int32)
    return index, rows[np.unique(index, return_index=True)[1]]


def _rows_of(request_ids: Sequence[str], parts: Sequence[_Part]) -> dict[str, Any]:
    """The fields of ``MaskRows`` for all ranks' requests."""
    row_indptr = np.concatenate([[0], *(part.counts for part in parts)]).cumsum().astype(np.int32)
    errors = {request_id: text for part in parts for request_id, text in part.errors.items()}
    acceptable = np.concatenate([part.acceptable for part in parts])
    return {
        "request_ids": tuple(request_ids),
        "row_indptr": row_indptr,
        "errors": errors,
        "num_acceptable_drafts": acceptable,
    }
