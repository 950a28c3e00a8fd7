"""ShardedManager divides requests among ranks that all run the scheduler."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from structout.constraints.params import StructuredOutputsParams
from structout.distributed.checksum import CallChecksum, checksum_bytes
from structout.distributed.cpu_communicator import CpuCommunicator, cpu_communicator
from structout.distributed.mask_exchange import MaskExchange, choose_mask_exchange
from structout.distributed.process_groups import group_name_of, world_size_of
from structout.distributed.shared_requests import SharedRequests, StepLayout, StepRequests, outcome_of
from structout.distributed.step_message import NO_MASKS, StepMessage
from structout.errors import CollectiveError, CompileCrashError, GrammarError, GrammarTimeoutError, StructOutError
from structout.masks.batch import MaskBatch, MaskShard
from structout.scheduler.decoding_step import Bounds, Drafts, Trees
from structout.scheduler.manager import StructuredOutputManager
from structout.scheduler.refusals import AllowedToken, Refusal
from structout.scheduler.requests import GrammarStatus, check_known

_WAIT_SECONDS = 1.0  # between the exchanges of wait_all; far below the timeout of a group


class ShardedManager:
    """Divides requests among ranks, for engines that run their scheduler on every rank.

    Each rank has a :class:`StructuredOutputManager`. All ranks make the same calls in
    the same order. Each request has one owner, a rank with few requests, and if
    possible one that has the same constraint already. Only the owner compiles the
    constraint, fills masks and follows the tokens. The other ranks learn in the next
    collective call whether a request is ready, has failed, is complete, or was given
    tokens that its grammar refuses. All ranks, the owner included, act on it only from
    then on, so that they never differ.

    Each collective call carries its number and a checksum of all calls before it. All
    ranks raise if these differ.

    Args:
        manager: this rank's own, with the same vocabulary and configuration on all
            ranks.
        group: a process group with a CPU backend, its name, or None for the default
            group. Without a group, or with a single rank, nothing is sent.

    Source: the entry-rank proposals for SGLang (issue 13809), in which every rank
    compiles and fills everything.
    """

    def __init__(self, manager: StructuredOutputManager, group: dist.ProcessGroup | str | None = None):
        self._manager = manager
        name = group_name_of(group)
        self._communicator: CpuCommunicator | None = None if world_size_of(name) == 1 else cpu_communicator(name)
        self.rank = 0 if self._communicator is None else self._communicator.rank
        self.world_size = 1 if self._communicator is None else self._communicator.world_size
        self._requests = SharedRequests(self.world_size)
        # What the other ranks do not know yet of this rank's requests that are READY or
        # FAILED.
        self._unreported: dict[str, dict[str, Any]] = {}
        # For requests of this rank that cannot continue: why.
        self._request_errors: dict[str, str] = {}
        self._calls = CallChecksum()
        vocabulary = manager.vocabulary
        token_hash = checksum_bytes(b"\0".join(vocabulary.token_bytes))
        self._calls.add("vocabulary", str(vocabulary.size), f"{token_hash:016x}")
        # None at first, and after a step that has failed: all ranks make new ones then,
        # because they cannot know what the others have written and read.
        self._mask_exchange: MaskExchange | None = None

    # -- requests ----------------------------------------------------------------------

    def add_request(self, request_id: str, params: StructuredOutputsParams, **options: Any) -> GrammarStatus:
        """Add a request as :meth:`StructuredOutputManager.add_request` does, without
        ``on_settled``, which only the owner could call.

        Returns:
            WAITING; :meth:`poll_ready` reports what becomes of it.

        Raises:
            DuplicateRequestError: the id is in use.
            TypeError: ``on_settled`` is given.
        """
        if "on_settled" in options:
            raise TypeError("ShardedManager takes no on_settled: only the owner could call it; use poll_changed")
        if self._share_request(request_id, repr(params)):
            try:
                self._manager.add_request(request_id, params, **options)
            except Exception as error:  # only this rank knows of it, so it is reported rather than raised
                failure = CompileCrashError(f"{type(error).__name__}: {error}")
                self._manager.add_failed_request(request_id, failure)
        return GrammarStatus.WAITING

    def add_failed_request(self, request_id: str, error: GrammarError) -> None:
        """Add a request as :meth:`StructuredOutputManager.add_failed_request` does.

        It is WAITING until :meth:`poll_ready` reports it.
        """
        if self._share_request(request_id, repr(error)):
            self._manager.add_failed_request(request_id, error)

    def fork(self, request_id: str, new_id: str) -> None:
        """Fork a request as :meth:`StructuredOutputManager.fork` does.

        The new one has the same owner.
        """
        request = self._requests.fork(request_id, new_id)
        self._calls.add("fork", request_id, new_id)
        if request.owner == self.rank:
            try:
                self._manager.fork(request_id, new_id)
            except Exception as error:  # as in add_request
                failure = CompileCrashError(f"the request could not be forked: {error}")
                self._manager.add_failed_request(new_id, failure)
            if request_id in self._request_errors:
                self._request_errors[new_id] = self._request_errors[request_id]

    def finish_request(self, request_id: str) -> None:
        """Remove the request, in any state. Unknown ids are ignored."""
        request = self._requests.remove(request_id)
        if request is None:
            return
        self._calls.add("finish", request_id)
        self._request_errors.pop(request_id, None)
        self._unreported.pop(request_id, None)
        if request.owner == self.rank:
            self._manager.finish_request(request_id)

    def owner(self, request_id: str) -> int:
        """Return the rank that compiles the constraint and fills the masks."""
        return self._requests[request_id].owner

    def status(self, request_id: str) -> GrammarStatus:
        """Return the status as of the last :meth:`poll_ready` or :meth:`wait_all`,
        equal on all ranks."""
        return self._requests[request_id].status

    def error(self, request_id: str) -> GrammarError | None:
        """Return why the request FAILED, as a new object in each call."""
        error = self._requests[request_id].error
        return None if error is None else error.copy()

    def weakened(self, request_id: str) -> tuple[str, ...]:
        """Return the parts of the constraint that are not enforced; see
        :meth:`StructuredOutputManager.weakened`."""
        return self._requests[request_id].weakened

    def annotations(self, request_id: str) -> tuple[str, ...]:
        """Return JSON pointers to each ``format`` that constrains nothing."""
        return self._requests[request_id].annotations

    def backend_name(self, request_id: str) -> str:
        """Return the backend that serves the request; empty until it is READY."""
        return self._requests[request_id].backend_name

    @property
    def num_requests(self) -> int:
        """Number of requests, of all owners."""
        return len(self._requests)

    def is_terminated(self, request_id: str) -> bool:
        """Return whether the last :meth:`grammar_bitmask` found the text complete."""
        check_known([request_id], self._requests)
        return request_id in self._requests.terminated

    def poll_ready(self) -> list[str]:
        """Return the requests that became READY or FAILED since the last call.

        The result is equal on all ranks, and statuses change there only now.
        Collective; nothing is sent if no request is WAITING.

        Raises:
            CollectiveError: a rank has died or is late, or the ranks have made
                different calls.
        """
        return [request_id for request_id, _ in self.poll_changed()]

    def poll_changed(self) -> list[tuple[str, GrammarStatus]]:
        """Return what :meth:`poll_ready` returns, each request with its status.
        Collective too."""
        if self._requests.has_waiting:
            self._exchange_statuses()
        return self._requests.pop_changes()

    def wait_ready(self, request_id: str, timeout: float | None = None) -> None:
        """Block until the request is READY. Collective; see :meth:`wait_all`.

        Raises:
            GrammarError: its constraint failed.
        """
        self.wait_all([request_id], timeout)
        error = self.error(request_id)
        if error is not None:
            raise error

    def wait_all(
        self, request_ids: Iterable[str] | None = None, timeout: float | None = None
    ) -> dict[str, GrammarStatus]:
        """Block until none of the requests is WAITING on any rank. Collective.

        Args:
            request_ids: requests of this manager. Default: all that it has now.
            timeout: seconds to wait for all of them together, the same on all ranks.
                Default: no limit.

        Returns:
            the status of each request. A failed one does not raise.

        Raises:
            GrammarTimeoutError: one is still WAITING after ``timeout`` seconds. All
                ranks raise it.
            UnknownRequestError: one of the ids is unknown.
            CollectiveError: a rank has died or is late, or the ranks have made
                different calls.
        """
        names = list(self._requests) if request_ids is None else list(request_ids)
        waiting = [name for name in names if self.status(name) is GrammarStatus.WAITING]
        self._calls.add("wait", str(timeout), *names)
        seconds_left = timeout
        while waiting:
            self._exchange_statuses(
                waiting, _WAIT_SECONDS if seconds_left is None else min(seconds_left, _WAIT_SECONDS)
            )
            waiting = [name for name in waiting if self.status(name) is GrammarStatus.WAITING]
            # Each rank's clock differs, but all ranks count the same rounds.
            if seconds_left is not None:
                seconds_left -= _WAIT_SECONDS
                if waiting and seconds_left <= 0:
                    raise GrammarTimeoutError(f"requests {waiting} are still compiling after {timeout} s", waiting[0])
        return {name: self.status(name) for name in names}

    # -- a decoding step ---------------------------------------------------------------

    def accept_tokens(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Advance by tokens that all ranks have drawn. Not collective.

        If the grammar refuses them, the ``errors`` of the next masks say so on all
        ranks.
        """
        request = self._requests[request_id]
        self._calls.add("accept", request_id, *map(str, token_ids))
        if request.owner == self.rank and not self._manager.accept_tokens(request_id, token_ids):
            self._request_errors[request_id] = f"the grammar does not allow the tokens {list(token_ids)}"

    def accept_batch(self, token_ids: Mapping[str, Sequence[int]]) -> None:
        """Call :meth:`accept_tokens` for many requests. Unknown ids are ignored."""
        for request_id, tokens in token_ids.items():
            if request_id in self._requests:
                self.accept_tokens(request_id, tokens)

    def rollback(self, request_id: str, num_tokens: int) -> None:
        """Roll back as :meth:`StructuredOutputManager.rollback` does.

        Failures are reported as refused tokens are.
        """
        request = self._requests[request_id]
        self._calls.add("rollback", request_id, str(num_tokens))
        self._requests.terminated.discard(request_id)
        if request.owner == self.rank:
            try:
                self._manager.rollback(request_id, num_tokens)
            except Exception as error:
                self._request_errors[request_id] = f"the request could not be rolled back: {error}"

    def grammar_bitmask(
        self,
        request_ids: Sequence[str],
        draft_tokens: Drafts | None = None,
        *,
        bounds: Bounds | None = None,
        draft_trees: Trees | None = None,
        strict: bool = True,
    ) -> MaskBatch:
        """Return the masks of all requests, each filled by its owner.

        Requests come in the order of their owners. A request that needs no masks, such
        as a terminated one, owns free rows, as many as it has logits. Collective. Ranks
        of one host fill their rows in memory that all of them map; others send each
        mask once, and its number afterwards. The arguments are those of
        :meth:`StructuredOutputManager.grammar_bitmask`.

        Raises:
            UnknownRequestError: all ranks have passed an id that is unknown.
            CollectiveError: a rank has died or is late, the ranks have made different
                calls, or one was interrupted in an earlier step and has missed masks.
        """
        requests = self._requests.by_owner(request_ids)
        with self._beginning_anew_after_failures():
            layout, local_masks, messages = self._run_step(
                "masks", requests, draft_tokens, bounds, draft_trees, shares_masks=True
            )
            if self._mask_exchange is None:
                bitmask, lease = local_masks.bitmask, local_masks.lease
            else:
                bitmask, lease = self._mask_exchange.gather(messages, layout.rows_of_ranks)
        # Not before the exchange: if only this rank has finished the request, all must
        # learn of it.
        if strict and not requests.are_known:
            check_known(request_ids, self._requests)
        return MaskBatch(
            bitmask=bitmask, lease=lease, row_indptr=layout.row_indptr.copy(), **_merge_messages(requests, messages)
        )

    def grammar_bitmask_shard(
        self,
        request_ids: Sequence[str],
        draft_tokens: Drafts | None = None,
        *,
        bounds: Bounds | None = None,
        draft_trees: Trees | None = None,
        strict: bool = True,
    ) -> MaskShard:
        """Fill masks as :meth:`grammar_bitmask`, but leave each rank's rows there.

        :func:`structout.distributed.gather_device_masks` gathers them on the workers'
        devices. Collective too.
        """
        requests = self._requests.by_owner(request_ids)
        with self._beginning_anew_after_failures():
            _, local_masks, messages = self._run_step(
                "shards of masks", requests, draft_tokens, bounds, draft_trees, shares_masks=False
            )
        if strict and not requests.are_known:  # as in grammar_bitmask
            check_known(request_ids, self._requests)
        row_counts = [message.row_counts for message in messages]
        return MaskShard(
            bitmask=local_masks.bitmask,
            lease=local_masks.lease,
            rows_of_rank=tuple(map(sum, row_counts)),
            row_indptr=np.concatenate([[0], *row_counts]).cumsum().astype(np.int32),
            **_merge_messages(requests, messages),
        )

    # -- questions to the owner --------------------------------------------------------

    def num_tokens(self, request_id: str) -> int:
        """Return what :meth:`StructuredOutputManager.num_tokens` returns on the owner.
        Collective."""
        return int(self._ask_owner("num_tokens", request_id, lambda: self._manager.num_tokens(request_id)))

    def explain_refusal(self, request_id: str, token_ids: Sequence[int]) -> Refusal | None:
        """Return what :meth:`StructuredOutputManager.explain_refusal` returns on the
        owner. Collective."""
        tokens = list(token_ids)

        def explain() -> dict[str, Any] | None:
            refusal = self._manager.explain_refusal(request_id, tokens)
            return None if refusal is None else asdict(replace(refusal, token=None))  # a token may be any object

        fields = self._ask_owner("explain_refusal", request_id, explain, tokens)
        if fields is None:
            return None
        samples = tuple(AllowedToken(**sample) for sample in fields["samples"])
        return Refusal(**fields | {"token": tokens[fields["index"]], "samples": samples})

    def validate_tokens(self, request_id: str, token_ids: Sequence[int]) -> list[int]:
        """Return what :meth:`StructuredOutputManager.validate_tokens` returns on the
        owner. Collective."""
        tokens = list(token_ids)
        length = self._ask_owner(
            "validate_tokens", request_id, lambda: len(self._manager.validate_tokens(request_id, tokens)), tokens
        )
        return tokens[:length]

    def find_jump_forward_string(self, request_id: str) -> str:
        """Return what :meth:`StructuredOutputManager.find_jump_forward_string` returns
        on the owner. Collective."""
        name = "find_jump_forward_string"
        return str(self._ask_owner(name, request_id, lambda: self._manager.find_jump_forward_string(request_id)))

    def compute_ff_tokens(self, request_id: str) -> list[int]:
        """Return what :meth:`StructuredOutputManager.compute_ff_tokens` returns on the
        owner. Collective."""
        name = "compute_ff_tokens"
        return list(self._ask_owner(name, request_id, lambda: self._manager.compute_ff_tokens(request_id)))

    def captures(self, request_id: str) -> list[tuple[str, bytes]]:
        """Return what :meth:`StructuredOutputManager.captures` returns on the owner.
        Collective."""

        def answer() -> list[tuple[str, str]]:
            return [(name, text.hex()) for name, text in self._manager.captures(request_id)]

        return [(name, bytes.fromhex(text)) for name, text in self._ask_owner("captures", request_id, answer)]

    # -- helpers -----------------------------------------------------------------------

    @contextlib.contextmanager
    def _beginning_anew_after_failures(self) -> Iterator[None]:
        """Forget, if a step fails, what this rank knows of the others' masks and
        ends."""
        try:
            yield
        except BaseException:
            self._mask_exchange = None
            raise

    def _run_step(
        self,
        call: str,
        requests: StepRequests,
        drafts: Drafts | None,
        bounds: Bounds | None,
        trees: Trees | None,
        *,
        shares_masks: bool,
    ) -> tuple[StepLayout, MaskBatch, list[StepMessage]]:
        """Fill this rank's masks and exchange messages.

        Args:
            shares_masks: whether all ranks get the masks, in this layout.

        Returns:
            The layout, this rank's masks, and the messages of all ranks.
        """
        self._calls.add(call, str(requests.checksum))
        try:
            options: list[Mapping[str, Any] | None] = [drafts, bounds, trees]
            for option in options:
                for request_id, values in sorted((option or {}).items()):
                    self._calls.add(request_id, repr(np.asarray(values, dtype=object).tolist()))
            layout = requests.layout(drafts, trees)
            local_ids = requests.ids_of_ranks[self.rank]
            knows_all_ends = shares_masks and self._mask_exchange is not None
            mask_exchange = buffer = None
            if shares_masks and self._communicator is not None:
                mask_exchange = self._mask_exchange_for(layout.rows_of_ranks[-1].stop)
                buffer = mask_exchange.local_buffer(layout.rows_of_ranks[self.rank])
            filled, ended = self._manager._fill_for_ranks(local_ids, drafts, bounds, trees, shares_masks, buffer)
            if buffer is not None and filled.row_indptr[-1] < len(buffer.array):
                raise StructOutError("requests of a ShardedManager were finished on this rank's own manager only")
            local_masks = self._clear_failed(filled)
            terminated = [local_ids[index] for index in ended]
            if knows_all_ends:  # then all ranks know of the others
                terminated = [request_id for request_id in terminated if request_id not in self._requests.terminated]
            local_message = StepMessage(
                [] if shares_masks else np.diff(local_masks.row_indptr).tolist(),
                local_masks.num_acceptable_drafts.tolist() if drafts else [],
                terminated,
                local_masks.errors,
                NO_MASKS if mask_exchange is None else mask_exchange.message(local_masks),
            )
        except CollectiveError:
            raise
        except Exception as error:
            if self._communicator is not None:
                self._communicator.report_failure("grammar_bitmask", error)
            raise
        messages = [local_message]
        if self._communicator is not None:
            payloads = self._all_gather("grammar_bitmask", local_message.pack(), mask_exchange)
            messages = list(map(StepMessage.unpack, payloads))
        for message in messages:
            self._requests.terminated.update(message.terminated)
        return layout, local_masks, messages

    def _mask_exchange_for(self, num_rows: int) -> MaskExchange:
        """Return how the ranks exchange so many rows. Collective if there was no step
        before, or none with so many rows."""
        assert self._communicator is not None
        before = self._mask_exchange
        if before is not None and num_rows <= before.max_rows:
            return before

        def all_gather(payload: torch.Tensor) -> list[torch.Tensor]:
            return self._all_gather("grammar_bitmask", payload, before)

        max_rows = num_rows if before is None else max(num_rows, 2 * int(before.max_rows))
        config, vocab_size = self._manager.config, self._manager.vocabulary.size
        self._mask_exchange = choose_mask_exchange(
            self.rank, self.world_size, config.num_mask_buffers, max_rows, vocab_size, all_gather
        )
        return self._mask_exchange

    def _clear_failed(self, masks: MaskBatch) -> MaskBatch:
        """Let the rows of this rank's requests that cannot continue allow nothing."""
        errors = {name: text for name, text in self._request_errors.items() if name in masks.request_ids}
        if not errors:
            return masks
        assert masks.lease is not None
        for request_id in errors:
            i = masks.request_ids.index(request_id)
            masks.lease.native.clear(*masks.row_indptr[i : i + 2])
            masks.num_acceptable_drafts[i] = 0
        return replace(masks, errors={**errors, **masks.errors})

    def _all_gather(
        self, operation: str, payload: torch.Tensor, mask_exchange: MaskExchange | None = None
    ) -> list[torch.Tensor]:
        """Return the payloads of all ranks as uint8.

        Raises:
            CollectiveError: also if a rank, after it was interrupted, has not the
                ``mask_exchange`` of the others.
        """
        if self._communicator is None:
            return [payload.view(torch.uint8)]
        expected_equal = {
            "number of requests": len(self._requests),
            "vocabulary size": self._manager.vocabulary.size,
            "calls so far (requests, tokens, finishes)": self._calls.value(),
        }
        messages = self._communicator.exchange(
            operation,
            [payload] * self.world_size,
            expected_equal=expected_equal,
            header_fields=(0 if mask_exchange is None else mask_exchange.number, 0),
        )
        numbers = [message.header_fields[0] for message in messages]
        late = [rank for rank, number in enumerate(numbers) if number != max(numbers)]
        if late:
            problem = f"ranks {late} were interrupted in an earlier step and have missed masks; the next step tells all"
            raise self._communicator.error(operation, problem)
        return [message.payload for message in messages]

    def _share_request(self, request_id: str, constraint: str) -> bool:
        """Add a request on all ranks. Return whether this rank is its owner."""
        constraint_hash = checksum_bytes(constraint.encode())
        request = self._requests.add(request_id, constraint_hash)
        self._calls.add("add", request_id, str(constraint_hash))
        return request.owner == self.rank

    def _exchange_statuses(self, wait_for: Sequence[str] = (), timeout: float = 0.0) -> None:
        """Let all ranks know which requests are READY or FAILED.

        Args:
            wait_for: before that, each rank waits until none of its own requests among
                these is WAITING, or until the timeout.
            timeout: in seconds.
        """
        self._calls.add("poll")
        try:
            self._manager.wait_all(
                [request_id for request_id in wait_for if self.owner(request_id) == self.rank], timeout
            )
        except GrammarTimeoutError:
            pass
        except Exception as error:
            if self._communicator is not None:
                self._communicator.report_failure("poll_ready", error)
            raise
        for request_id in self._manager.poll_ready():
            self._unreported[request_id] = outcome_of(self._manager, request_id)
        payloads = self._all_gather("poll_ready", _as_json(self._unreported))
        self._unreported.clear()
        for payload in payloads:
            for request_id, outcome in _from_json(payload).items():
                self._requests.settle(request_id, outcome)

    def _ask_owner(
        self, operation: str, request_id: str, answer: Callable[[], Any], token_ids: Sequence[int] = ()
    ) -> Any:
        """Return the owner's answer, which must be JSON, on all ranks.

        Raises:
            StructOutError: the request is not READY, or the owner could not answer.
        """
        request = self._requests[request_id]
        if request.status is not GrammarStatus.READY:
            raise StructOutError(f"request {request_id!r} has no grammar: it is {request.status.value}", request_id)
        self._calls.add(operation, request_id, *map(str, token_ids))
        reply: dict[str, Any] = {}
        if request.owner == self.rank:
            try:
                reply = {"answer": answer()}
            except Exception as error:  # only this rank knows of it, and all must raise
                reply = {"error": str(error)}
        reply = _from_json(self._all_gather("ask_owner", _as_json(reply))[request.owner])
        if "error" in reply:
            raise StructOutError(reply["error"], request_id)
        return reply["answer"]


def _as_json(value: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _from_json(payload: torch.Tensor) -> Any:
    return json.loads(payload.numpy().tobytes())


def _merge_messages(requests: StepRequests, messages: Sequence[StepMessage]) -> dict[str, Any]:
    """Return the fields of ``MaskRows`` that messages tell of all ranks' requests."""
    num_acceptable_drafts = np.zeros(len(requests.all_ids), dtype=np.int32)
    if any(message.num_acceptable_drafts for message in messages):
        num_acceptable_drafts[:] = [count for message in messages for count in message.num_acceptable_drafts]
    return {
        "request_ids": requests.all_ids,
        "errors": {request_id: text for message in messages for request_id, text in message.errors.items()},
        "num_acceptable_drafts": num_acceptable_drafts,
    }
