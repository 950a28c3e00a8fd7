"""CpuCommunicator exchanges messages on the CPU among the ranks of a process group.

Every exchange is completed as its headers announce, and only then checked. All ranks
check the same headers, so all reach the same result, and no message is left
undelivered.
"""

import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from structout.distributed.process_groups import resolve_group
from structout.distributed.transport import (
    PAYLOAD_SIZE,
    PeerLostError,
    ReceivedMessage,
    Transport,
    allocate_buffer,
    choose_transport,
)
from structout.errors import CollectiveError

_FAILURE_REPORT = "failure report"
OPERATIONS = (
    *(_FAILURE_REPORT, "all_gather_bitmask", "sharded_masked_sample", "sharded_token_logprobs"),
    *("grammar_bitmask", "poll_ready", "ask_owner"),
)
_OPERATION_CODES = {operation: code for code, operation in enumerate(OPERATIONS)}
_FAILURE_CODE = _OPERATION_CODES[_FAILURE_REPORT]
# A header has the operation, the step and values that are equal on all ranks, then the
# payload size, and fields that may differ.
_NUM_EXPECTED = PAYLOAD_SIZE - 2


class Message(NamedTuple):
    """A checked message of one rank.

    Attributes:
        header_fields: the two header fields that may differ among ranks.
        payload: uint8, or the buffer for it; valid until the next exchange.
    """

    header_fields: tuple[int, int]
    payload: torch.Tensor


@dataclass
class Traffic:
    """What this rank has sent since its first exchange.

    Attributes:
        num_exchanges: the number of exchanges.
        payload_bytes: payload bytes sent, added up over the other ranks.
        bytes_sent: the same with headers and the padding of frames.
    """

    num_exchanges: int = 0
    payload_bytes: int = 0
    bytes_sent: int = 0


class CpuCommunicator:
    """This rank's end of a process group, made by :func:`cpu_communicator`."""

    def __init__(self, group: dist.ProcessGroup):
        self._group = weakref.ref(group)
        self.rank: int = group.rank()
        self.world_size: int = group.size()
        self.traffic = Traffic()
        self._step = 0
        self._timeout = _group_timeout(group)
        self.transport: Transport | None = None  # chosen at the first exchange
        self._exchange_lock = threading.Lock()
        self._fatal_error: CollectiveError | None = None
        self._workspaces: dict[str, torch.Tensor] = {}

    def exchange(
        self,
        operation: str,
        payloads: Sequence[torch.Tensor],
        *,
        expected_equal: Mapping[str, int],
        header_fields: tuple[int, int] = (0, 0),
        recv_buffers: Sequence[torch.Tensor] | None = None,
    ) -> list[Message]:
        """Send ``payloads[r]`` to each rank r and receive theirs.

        This rank's own is returned as it was given.

        Args:
            operation: one of ``OPERATIONS``; the same on all ranks.
            payloads: one contiguous CPU tensor of any dtype for each rank; one tensor
                may serve several ranks.
            expected_equal: up to three values, by name, that must be equal on all
                ranks.
            header_fields: two values that may differ.
            recv_buffers: contiguous tensors for the payloads of each rank, which must
                have that size.

        Returns:
            The messages in rank order.

        Raises:
            CollectiveError: a rank has died, is late, reported a failure, or disagrees.
                In the first two cases the group is broken, and further calls raise at
                once. In the others all ranks raise, and the group can still be used.
        """
        if self._fatal_error is not None:
            raise CollectiveError(f"the group broke down earlier: {self._fatal_error.message}", self.rank, self._step)
        expected_values = [*expected_equal.values(), 0, 0][:_NUM_EXPECTED]
        received = self._transfer(operation, operation, expected_values, header_fields, payloads, recv_buffers)
        first = received[0].header[:PAYLOAD_SIZE]
        if first[0] == _FAILURE_CODE or any(message.header[:PAYLOAD_SIZE] != first for message in received):
            self._raise_disagreement(operation, received, expected_equal)
        messages = []
        for rank, (header, payload) in enumerate(received):
            if recv_buffers is not None and payload.nbytes != recv_buffers[rank].nbytes:
                sizes = f"expected {recv_buffers[rank].nbytes} bytes from rank {rank}, got {payload.nbytes}"
                raise self.error(operation, f"ranks disagree on the payload: {sizes}")
            messages.append(Message((header[6], header[7]), payload))
        return messages

    def report_failure(self, operation: str, error: Exception) -> None:
        """Take part in the other ranks' current or next exchange, to make it fail."""
        if self._fatal_error is not None or self.world_size == 1:
            return
        text = torch.frombuffer(bytearray(f"{type(error).__name__}: {error}".encode()), dtype=torch.uint8)
        self._transfer(operation, _FAILURE_REPORT, [0] * _NUM_EXPECTED, (0, 0), [text] * self.world_size, None)

    def workspace(self, name: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return ``[count]`` of reused, uninitialized memory.

        Allocating it anew would cost more than the work that is done in it.
        """
        size = count * dtype.itemsize
        memory = self._workspaces.get(name)
        if memory is None or memory.numel() < size:
            memory = self._workspaces[name] = allocate_buffer(size)
        return memory[:size].view(dtype)

    def error(self, operation: str, problem: str) -> CollectiveError:
        """Return an error of the last exchange, which leaves the group in order."""
        return CollectiveError(f"{operation}: {problem}", self.rank, self._step)

    def _transfer(
        self,
        operation: str,
        sent_operation: str,
        expected_values: Sequence[int],
        header_fields: tuple[int, int],
        payloads: Sequence[torch.Tensor],
        recv_buffers: Sequence[torch.Tensor] | None,
    ) -> list[ReceivedMessage]:
        """Exchange messages. ``operation`` is for errors."""
        if not self._exchange_lock.acquire(blocking=False):
            raise RuntimeError(
                f"{operation}: another thread is exchanging messages in this process group; use one group per thread"
            )
        self._step += 1
        deadline = time.monotonic() + self._timeout
        header = [_OPERATION_CODES[sent_operation], self._step, *expected_values, 0, *header_fields]
        try:
            if self.transport is None:
                with torch.inference_mode(False):  # its buffers are used in and out of inference mode
                    self.transport = choose_transport(self._live_group(), deadline)
            received = self.transport.transfer(header, payloads, recv_buffers, deadline)
        except PeerLostError as error:
            self._fatal_error = CollectiveError(
                f"{operation}: rank {error.rank} has died or did not answer within {self._timeout:g} s ({error}). "
                "Make a new process group of the remaining ranks",
                self.rank,
                self._step,
                (error.rank,),
            )
            raise self._fatal_error from error
        except BaseException as error:  # such as KeyboardInterrupt: a message may have been sent in part
            self._fatal_error = CollectiveError(f"{operation}: interrupted by {error!r}", self.rank, self._step)
            raise
        finally:
            self._exchange_lock.release()
        sizes = [payload.nbytes for peer, payload in enumerate(payloads) if peer != self.rank]
        self.traffic.num_exchanges += 1
        self.traffic.payload_bytes += sum(sizes)
        self.traffic.bytes_sent += sum(map(self.transport.num_bytes_sent, sizes))
        return received

    def _raise_disagreement(self, operation: str, received: Sequence[ReceivedMessage], names: Iterable[str]) -> None:
        failed = tuple(rank for rank, message in enumerate(received) if message.header[0] == _FAILURE_CODE)
        if failed:
            reason = received[failed[0]].payload.numpy().tobytes().decode(errors="replace")
            raise CollectiveError(
                f"{operation}: rank {failed[0]} failed at step {self._step}: {reason}", self.rank, self._step, failed
            )
        for index, name in enumerate(("operation", "step", *names)):
            values = [message.header[index] for message in received]
            differing = tuple(rank for rank, value in enumerate(values) if value != values[0])
            if not differing:
                continue
            shown = [OPERATIONS[value] if name == "operation" else str(value) for value in values]
            raise CollectiveError(
                f"{operation}: ranks disagree on the {name}: {', '.join(shown)}, in rank order. All ranks must make "
                "the same calls, in the same order, with the same rows, dtypes, masks and parameters",
                self.rank,
                self._step,
                differing,
            )

    def _live_group(self) -> dist.ProcessGroup:
        group = self._group()
        assert group is not None  # the caller holds it
        return group


_communicators: "weakref.WeakKeyDictionary[dist.ProcessGroup, CpuCommunicator]" = weakref.WeakKeyDictionary()


def cpu_communicator(group_name: str) -> CpuCommunicator:
    """Return the communicator of the process group with that ``group.group_name``.

    Raises:
        ValueError: there is no such group, or it has no backend for CPU tensors.
    """
    group = resolve_group(group_name)
    communicator = _communicators.get(group)
    if communicator is None:
        communicator = _communicators[group] = CpuCommunicator(group)
    return communicator


def _group_timeout(group: dist.ProcessGroup) -> float:
    """Return the timeout of the group's backend for CPU tensors, in seconds."""
    try:
        backend: Any = group._get_backend(torch.device("cpu"))
    except RuntimeError as error:
        raise ValueError(
            f"the process group {group.group_name!r} has no backend for CPU tensors; make it with backend='gloo', or "
            "'cpu:gloo,cuda:nccl'"
        ) from error
    timeout: timedelta = backend.options._timeout
    return timeout.total_seconds()
